//! `rankrun convert`: a command line of another launcher, printed as one of rankrun. Nothing is started.
//!
//! `wrapped` finds the launcher behind words such as `env A=B` or `uv run`, a file for each launcher reads its options,
//! and this file prints the result. The launcher's own errors stand for lines that it would refuse.

mod horovodrun;
mod job;
mod mpirun;
mod options;
mod program;
mod srun;
mod torchrun;
mod torchx;
mod translated;
mod wrapped;

use std::ffi::OsString;

use rankrun_core::facts::Facts;
use rankrun_core::shell::split::{ShellWords, SplitError, split};
use rankrun_core::spec::CliFlavor;

use self::job::{ALLOCATED_NODES, HEAD_NODE, Job, NODE_RANK, NODES};
use self::translated::{TranslatedLauncher, TranslatedLine};
use self::wrapped::{Launcher, Wrapped};
use super::{OLD_PYTHONPATH, OLD_THREADS, WORKING_FOLDER};
use crate::cli::error::{CliError, UsageError};
use crate::cli::subcommand;

/// Lines of the output are not longer, if their words allow it.
const WIDTH: usize = 100;

/// The variables of the launcher's environment to set, or to remove where there is no value.
type Environment = Vec<(String, Option<String>)>;

/// A command line of rankrun, and what it does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Conversion {
    /// Assignments at the very front.
    assignments: Environment,
    /// The words in front of the launcher, as typed.
    prefix: Vec<String>,
    /// What the other launcher's options set.
    environment: Environment,
    /// The words behind `rankrun`.
    words: Vec<String>,
    /// What has no equivalent: a sentence each, without a full stop.
    notes: Vec<String>,
}

/// The text of `rankrun convert`: a command line for a POSIX shell below its notes, which are comments; or JSON.
///
/// # Errors
/// The words are not the command line of a launcher, or the launcher would refuse them.
pub(in crate::cli) fn answer(words: &[OsString], json: bool, facts: &Facts) -> Result<String, CliError> {
    let mut line = read_words(words)?;
    let conversion = convert(&mut line, facts).map_err(|error| of_torchrun(error, words))?;
    Ok(if json { conversion.as_json() } else { conversion.as_shell(&line) })
}

/// The words of the command line, which may be one quoted text.
fn read_words(words: &[OsString]) -> Result<ShellWords, CliError> {
    let mut texts = Vec::with_capacity(words.len());
    for word in words {
        let text = word.to_str().ok_or_else(|| {
            let message = format!("`{}` is not UTF-8", word.to_string_lossy());
            CliError::refused(message, "convert the line without it, and add it by hand")
        })?;
        texts.push(text.to_owned());
    }
    // READMEs print the prompt in front of the line.
    if texts.first().is_some_and(|first| first == "$") {
        texts.remove(0);
    }
    let line = match texts.as_slice() {
        [text] if text.contains(char::is_whitespace) => {
            let text = text.trim_start();
            split(text.strip_prefix("$ ").unwrap_or(text)).map_err(|error| not_one_command(&error))?
        }
        _ => ShellWords::literal(texts),
    };
    if let Some(word) = line.words.first().filter(|word| word.starts_with('-')) {
        let error = UsageError::UnknownTo { command: "convert", word: word.clone() };
        return Err(CliError::Usage { cli_flavor: CliFlavor::Rankrun, error });
    }
    if line.words.is_empty() {
        let example = "name it, as in `rankrun convert torchrun --nproc_per_node 2 train.py`";
        return Err(CliError::refused("there is no command line to convert", example));
    }
    Ok(line)
}

fn not_one_command(error: &SplitError) -> CliError {
    let hint = match error {
        SplitError::Operator(_) | SplitError::SecondLine => {
            "convert one command without it, and put it back around the converted one; quote it if it is a value"
        }
        SplitError::Substitution(_) => {
            "write its value, or put it into a variable first, as in `N=$(nproc)` and `$N`"
        }
        SplitError::Pattern(_) => "quote the whole word, or write what it stands for",
        SplitError::Tilde(_) => "write the folder in its place, as in `$HOME/data`, or quote it",
        SplitError::OpenQuote(_) => "close it",
    };
    CliError::refused(format!("cannot convert the line: {error}"), hint)
}

fn convert(line: &mut ShellWords, facts: &Facts) -> Result<Conversion, CliError> {
    let mut conversion = convert_words(&line.words, line, &translated::without_devices(facts))?;
    // A program of this name would be taken for a command of rankrun.
    if conversion.words.first().is_some_and(|word| subcommand::is_name(word)) {
        conversion.words.insert(0, "run".to_owned());
    }
    // Variables that take the place of what the line does not say.
    let is_used = |name: &&str| conversion.words.iter().any(|word| word.split(':').next() == Some(*name));
    let added = [HEAD_NODE, NODES, NODE_RANK, ALLOCATED_NODES].into_iter().filter(is_used);
    let is_set = |name: &&str| {
        conversion
            .environment
            .iter()
            .any(|(_, value)| value.as_ref().is_some_and(|value| value.contains(*name)))
    };
    let of_shell = [OLD_PYTHONPATH, WORKING_FOLDER, OLD_THREADS].into_iter().filter(is_set);
    line.expansions.extend(added.chain(of_shell).map(str::to_owned));
    let is_kept = |word: &String| conversion.prefix.contains(word) || conversion.words.contains(word);
    match line.ambiguous_text(is_kept) {
        None => Ok(conversion),
        Some(text) => Err(CliError::refused(
            format!(
                "`{text}` needs different quotes at two places, and `rankrun convert` writes it in one way"
            ),
            "quote it in one way, and correct the converted line",
        )),
    }
}

fn convert_words(words: &[String], line: &ShellWords, facts: &Facts) -> Result<Conversion, CliError> {
    let Wrapped { assignments, prefix, launcher, python, rest } = wrapped::find(words)?;
    let facts = &facts_of_launcher(&assignments, prefix, line, facts);
    let converted = match launcher {
        Launcher::Torchrun { is_old } => torchrun::convert(is_old, rest, &assignments, line)?,
        Launcher::Accelerate { is_launch } => {
            let launcher = TranslatedLauncher::Accelerate { is_launch };
            TranslatedLine { launcher, words: rest, shell: line, facts }.convert()?
        }
        Launcher::Deepspeed => {
            let launcher = TranslatedLauncher::Deepspeed;
            TranslatedLine { launcher, words: rest, shell: line, facts }.convert()?
        }
        Launcher::Mpirun => started_by(mpirun::read(rest, facts)?, (words, &assignments), line, facts)?,
        Launcher::Srun => started_by(srun::read(rest)?, (words, &assignments), line, facts)?,
        Launcher::Horovodrun => horovodrun::read(rest, facts)?.convert()?,
        Launcher::Torchx => torchx::read(rest)?.convert()?,
    };
    let mut conversion = Conversion {
        assignments: [assignments, converted.assignments].concat(),
        prefix: [prefix.to_vec(), converted.prefix].concat(),
        ..converted
    };
    conversion.environment.splice(..0, python.and_then(program::python_variable));
    Ok(conversion)
}

/// The facts that the launcher would see: with the variables that the line itself sets, if a shell replaces nothing in
/// them.
fn facts_of_launcher(
    assignments: &Environment,
    prefix: &[String],
    line: &ShellWords,
    facts: &Facts,
) -> Facts {
    let behind_env = prefix.iter().filter_map(|word| wrapped::assignment(word));
    let known = assignments.iter().cloned().chain(behind_env).filter_map(|(name, value)| {
        let value = value?;
        let is_live = line.expansions.iter().any(|expansion| value.contains(expansion));
        // That a line sets it is enough: accelerate then sets none.
        (!is_live || name == "OMP_NUM_THREADS").then(|| (name, Some(OsString::from(value))))
    });
    facts.with_environment(&known.collect::<Vec<_>>())
}

/// `srun` and `mpirun` may start another launcher on each node: then they stay, and that one is converted.
fn started_by(
    job: Job,
    (words, assignments): (&[String], &Environment),
    line: &ShellWords,
    facts: &Facts,
) -> Result<Conversion, CliError> {
    if wrapped::find(&job.program).is_err() {
        let inner = wrapped::launcher_in_quotes(&job.program).map(|inner| {
            format!("`{inner}` in the quotes stays, and each worker runs it: convert that line by itself")
        });
        let mut conversion = job.convert()?;
        conversion.notes.extend(inner);
        return Ok(conversion);
    }
    let mut inner = convert_words(&job.program, line, facts)?;
    let outer = &words[assignments.len()..words.len() - job.program.len()];
    // Behind another program an assignment needs `env`.
    let env = inner.assignments.drain(..).filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    let env: Vec<String> = env.collect();
    let env = if env.is_empty() { env } else { [vec!["env".to_owned()], env].concat() };
    inner.prefix.splice(..0, outer.iter().cloned().chain(env));
    Ok(inner)
}

/// torchrun's own error, without its usage text: the option of the line is not one of this command.
fn of_torchrun(error: CliError, words: &[OsString]) -> CliError {
    let CliError::Usage { cli_flavor: CliFlavor::Torchrun, error } = error else { return error };
    let has_variable = words.len() > 1 && words.iter().any(|word| word.to_string_lossy().contains('$'));
    let hint = if has_variable {
        "put the whole line in single quotes, which keeps its variables: `rankrun convert 'torchrun ...'`"
    } else {
        "correct the line: torchrun does not start it either"
    };
    CliError::OtherUsage {
        message: format!("torchrun refuses the line: {}", error.argparse()),
        hint: hint.to_owned(),
    }
}

impl Conversion {
    fn as_json(&self) -> String {
        let environment: serde_json::Map<_, _> = self
            .assignments
            .iter()
            .chain(&self.environment)
            .map(|(name, value)| (name.clone(), value.clone().into()))
            .collect();
        let command: Vec<&str> = self.command().collect();
        let json = serde_json::json!({"command": command, "environment": environment, "notes": self.notes});
        format!("{json:#}\n")
    }

    fn command(&self) -> impl Iterator<Item = &str> {
        let words = self.words.iter().map(String::as_str);
        self.prefix.iter().map(String::as_str).chain(["rankrun"]).chain(words)
    }

    /// The notes, and the command below them.
    fn as_shell(&self, line: &ShellWords) -> String {
        let notes = self.notes.iter().map(|note| format!("# note: {}\n", note.replace('\n', " ")));
        let assigned = |(name, value): &(String, Option<String>)| {
            Some(format!("{name}={}", line.quote_value(value.as_ref()?)))
        };
        let mut words: Vec<String> = self.assignments.iter().filter_map(assigned).collect();
        words.extend(self.prefix.iter().map(|word| line.quote(word)));
        let removed = self.environment.iter().filter(|(_, value)| value.is_none());
        let removed: Vec<String> = removed.flat_map(|(name, _)| ["-u".to_owned(), name.clone()]).collect();
        let set: Vec<String> = self.environment.iter().filter_map(assigned).collect();
        // A program in front of it may change the environment, and removes nothing by an assignment.
        if !removed.is_empty() || (!set.is_empty() && !self.prefix.is_empty()) {
            words.push("env".to_owned());
        }
        words.extend(removed);
        words.extend(set);
        words.push("rankrun".to_owned());
        words.extend(self.words.iter().map(|word| line.quote(word)));
        notes.collect::<String>() + &wrap(&words)
    }
}

/// One command on lines of at most [`WIDTH`] letters; an option and its value stay together.
fn wrap(words: &[String]) -> String {
    let mut lines = String::new();
    let mut width = 0;
    let mut previous = "";
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let is_value = previous.starts_with('-') && !previous.contains('=') && !word.starts_with('-');
        let value = words
            .peek()
            .filter(|next| word.starts_with('-') && !word.contains('=') && !next.starts_with('-'));
        let length = word.chars().count() + value.map_or(0, |value| value.chars().count() + 1);
        if width > 0 && !is_value && width + 1 + length > WIDTH - 2 {
            lines.push_str(" \\\n    ");
            width = 4;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += word.chars().count();
        previous = word;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests;
