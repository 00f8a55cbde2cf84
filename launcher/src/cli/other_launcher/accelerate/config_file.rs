//! The configuration file of accelerate: where it is, and what its keys say. It fills what the command line leaves open.

mod keys;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::args::AccelerateArgs;
use super::document::{Content, DocumentError, parse_document};
use super::python_value::PythonValue;
use super::settings::TrainingKind;
use crate::cli::error::{CliError, FilePlace, Origin, SettingError};
use rankrun_core::facts::Facts;

/// A larger file is not a configuration.
const MAX_SIZE: u64 = 1 << 20;

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ConfigFile {
    /// As the user wrote it.
    pub(super) path: String,
    /// The options that the file has a key for.
    pub(super) args: AccelerateArgs,
    /// Where its keys stand.
    pub(super) origins: BTreeMap<String, Origin>,
    pub(super) kind: Option<TrainingKind>,
    pub(super) use_cpu: bool,
    /// The values for the rows of `variable_option`.
    pub(super) variables: BTreeMap<&'static str, PythonValue>,
    /// Keys of `fp8_config` that no option has: accelerate makes a variable of each.
    pub(super) further_fp8: Vec<(String, String)>,
    /// The keys of `deepspeed_config`, which the program compares with DeepSpeed's own file.
    pub(super) deepspeed_keys: Vec<String>,
    pub(super) has_parallelism: bool,
    /// Keys without an effect, as sentences.
    pub(super) remarks: Vec<String>,
}

/// The file that counts: that of `--config_file`, else the one that `accelerate config` writes, unless `--cpu` was given.
pub(super) fn find(args: &AccelerateArgs, facts: &Facts) -> Option<PathBuf> {
    if let Some(path) = &args.config_file {
        return Some(PathBuf::from(path));
    }
    let default = default_path(facts).filter(|_| !args.cpu)?;
    facts.is_file(&default).then_some(default)
}

fn default_path(facts: &Facts) -> Option<PathBuf> {
    let home = || facts.variable("HOME").map(PathBuf::from);
    let expanded = |path: PathBuf| match path.strip_prefix("~") {
        Ok(rest) => home().map(|home| home.join(rest)),
        Err(_) => Some(path),
    };
    let cache = || match facts.variable("XDG_CACHE_HOME") {
        Some(cache) => Some(PathBuf::from(cache)),
        None => home().map(|home| home.join(".cache")),
    };
    let hugging_face = match facts.variable("HF_HOME") {
        Some(folder) => expanded(PathBuf::from(folder)),
        None => cache().and_then(|cache| expanded(cache.join("huggingface"))),
    };
    hugging_face.map(|folder| folder.join("accelerate/default_config.yaml"))
}

/// Reads the file.
///
/// # Errors
/// It is not there, not YAML, or has a key that accelerate does not know or rankrun does not launch by.
pub(super) fn read(path: &Path, facts: &Facts) -> Result<ConfigFile, CliError> {
    let name = path.display().to_string();
    let refused =
        |problem: String, hint: &'static str| CliError::refused(format!("`{name}` {problem}"), hint);
    let bytes = facts.world().read_file(path, MAX_SIZE).map_err(|error| {
        refused(
            format!("cannot be read: {error}"),
            "correct `--config_file`, or write the file with `accelerate config`",
        )
    })?;
    let text =
        String::from_utf8(bytes).map_err(|_| refused("is not valid UTF-8".into(), "write it in UTF-8"))?;
    let root = parse_document(&text).map_err(|error| not_yaml(&name, &error))?;
    let problem = match root.map(|root| root.content) {
        Some(Content::Map(entries)) => return keys::read_entries(&name, &entries),
        Some(Content::List(_)) => "is a list, and not keys with values",
        Some(Content::Scalar(..)) => "is one word, and not keys with values",
        None => "has no keys",
    };
    let hint = "write `key: value` lines, as in `num_processes: 2`, or let `accelerate config` write it";
    Err(refused(problem.into(), hint))
}

fn not_yaml(path: &str, error: &DocumentError) -> CliError {
    let hint = if error.is_about_alias() {
        "write the value there again: rankrun reads no aliases"
    } else if error.is_about_tab() {
        "write spaces: YAML does not allow tabs there"
    } else {
        "correct this line: the file is YAML, `key: value` on each line"
    };
    CliError::refused(format!("`{path}`, line {}: {}", error.line, error.problem), hint)
}

/// The place of a key, for errors.
#[derive(Debug, Clone, Copy)]
struct KeyPlace<'a> {
    path: &'a str,
    line: usize,
    key: &'a str,
}

impl KeyPlace<'_> {
    fn origin(&self) -> Origin {
        let (path, key) = (self.path.to_owned(), self.key.to_owned());
        Origin::File(Box::new(FilePlace { path, line: self.line, key }))
    }

    fn wrong_value(&self, value: &str, expected: &str) -> CliError {
        let hint = format!("give `{}` {expected}", self.key);
        SettingError::of_value(self.origin(), value, format!("which is not {expected}"), hint).into()
    }

    fn refused(&self, problem: &'static str, hint: &'static str) -> CliError {
        SettingError::of_origin(self.origin(), problem, hint).into()
    }
}

#[cfg(test)]
mod tests;
