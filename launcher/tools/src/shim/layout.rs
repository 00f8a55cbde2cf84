//! The paths of the shim's files in an environment, and the text of each file. `plan` orders the changes and `disk`
//! makes them. Pure.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::{PythonEnvironment, check_quotable};
use super::error::ShimError;
use super::script::{ENTRY_POINT, SCRIPTS, Script};

/// The line that Python runs at each start: the whole cost of the shim for other programs. The inner text is compiled
/// only for `-m` and for scripts whose names end as those of launchers do; Python 3.8 and 3.9 do not know the whole
/// command line.
const GUARD: &str = include_str!("templates/guard.pth");
const HOOK: &str = include_str!("templates/hook.py");
const SCRIPT: &str = include_str!("templates/script");
/// Longer than any script that an installer writes.
pub(super) const LONGEST_SCRIPT: usize = 1 << 16;

/// The paths of all that the shim makes in an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// The folder of the console scripts and of the originals that are kept.
    pub(super) scripts: PathBuf,
    /// The line that Python runs at each start.
    pub(super) guard: PathBuf,
    /// A package: the hook that the guard calls, a link to rankrun for each replaced script, the record.
    pub(super) package: PathBuf,
}

impl Layout {
    #[must_use]
    pub(super) fn of(environment: &PythonEnvironment) -> Self {
        Self::at(&environment.scripts, &environment.packages)
    }

    /// The places where commands and packages go to these folders.
    #[must_use]
    pub(super) fn at(scripts: &Path, packages: &Path) -> Self {
        Self {
            scripts: scripts.to_owned(),
            guard: packages.join("rankrun_shim.pth"),
            package: packages.join("_rankrun_shim"),
        }
    }

    /// Every path that a change may replace.
    #[must_use]
    pub(super) fn places(self) -> Vec<PathBuf> {
        let scripts = SCRIPTS.iter().flat_map(|script| [self.script(script), self.saved_original(script)]);
        scripts.chain([self.guard.clone(), self.package.clone()]).collect()
    }

    #[must_use]
    pub(super) fn script(&self, script: &Script) -> PathBuf {
        self.scripts.join(script.name)
    }

    #[must_use]
    pub(super) fn saved_original(&self, script: &Script) -> PathBuf {
        self.scripts.join(format!("{}.rankrun-original", script.name))
    }

    #[must_use]
    pub(super) fn hook(&self) -> PathBuf {
        self.package.join("__init__.py")
    }

    /// The link to rankrun; its name makes it the launcher. The script is replaced as long as the link is there.
    #[must_use]
    pub(super) fn link(&self, script: &Script) -> PathBuf {
        self.package.join(script.name)
    }

    #[must_use]
    pub(super) fn record(&self) -> PathBuf {
        self.package.join("record.json")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// The record of the state before the shim, to restore it to the byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OriginalFiles {
    pub(super) rankrun: String,
    /// The replaced scripts by name; null for one that did not exist.
    pub(super) scripts: BTreeMap<String, Option<OriginalScript>>,
}

/// A script as JSON can hold it: one character per byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OriginalScript {
    mode: u32,
    script: String,
}

impl From<&File> for OriginalScript {
    fn from(file: &File) -> Self {
        Self { mode: file.mode, script: file.bytes.iter().copied().map(char::from).collect() }
    }
}

impl OriginalScript {
    /// The file; `None` if the record was tampered with.
    #[must_use]
    pub(super) fn file(&self) -> Option<File> {
        let bytes: Result<_, _> = self.script.chars().map(u8::try_from).collect();
        Some(File { bytes: bytes.ok()?, mode: self.mode & 0o7777 })
    }
}

/// The texts that the shim writes into an environment, whichever rankrun it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShimTexts {
    pub(super) hook: Vec<u8>,
    pub(super) guard: Vec<u8>,
    python: PathBuf,
    layout: Layout,
}

impl ShimTexts {
    /// The texts for this environment.
    ///
    /// # Errors
    /// A script cannot contain one of its paths.
    pub(super) fn of(environment: &PythonEnvironment, layout: &Layout) -> Result<Self, ShimError> {
        for path in [&environment.python, &environment.prefix, &layout.scripts, &layout.package] {
            check_quotable(path)?;
        }
        let hook = fill(
            HOOK,
            &[
                ("@PREFIX@", python_bytes(&environment.prefix).as_bytes()),
                (
                    "@SCRIPTS@",
                    SCRIPTS.iter().map(|script| hook_line(script, layout)).collect::<String>().as_bytes(),
                ),
                ("@LONGEST@", LONGEST_SCRIPT.to_string().as_bytes()),
                ("@ENTRY_POINT@", ENTRY_POINT.as_bytes()),
            ],
        );
        let guard = GUARD.as_bytes().to_vec();
        Ok(Self { hook, guard, python: environment.python.clone(), layout: layout.clone() })
    }

    /// The text that takes the place of this script.
    #[must_use]
    pub(super) fn script(&self, script: &Script) -> Vec<u8> {
        let is_launch = script.subcommand.map(|word| format!(r#" && [ "$1" = {word} ]"#)).unwrap_or_default();
        fill(
            SCRIPT,
            &[
                ("@RANKRUN@", self.layout.link(script).as_os_str().as_bytes()),
                ("@IS_LAUNCH@", is_launch.as_bytes()),
                ("@PYTHON@", self.python.as_os_str().as_bytes()),
                ("@KEPT@", python_bytes(&self.layout.saved_original(script)).as_bytes()),
                ("@MODULE@", script.module.as_bytes()),
            ],
        )
    }

    /// Whether a hook, of whichever version, was written for the same environment.
    #[must_use]
    pub(super) fn match_environment_of(&self, hook: &[u8]) -> bool {
        let place = |hook: &[u8]| {
            hook.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"PREFIX = ")).map(<[u8]>::to_vec)
        };
        place(hook) == place(&self.hook)
    }
}

/// Replaces each of the names, at every place.
fn fill(template: &str, values: &[(&str, &[u8])]) -> Vec<u8> {
    let mut text = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('@') {
        text.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        match values.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                text.extend_from_slice(value);
                rest = &rest[name.len()..];
            }
            None => {
                text.push(b'@');
                rest = &rest[1..];
            }
        }
    }
    text.extend_from_slice(rest.as_bytes());
    text
}

/// A script in the hook's list.
fn hook_line(script: &Script, layout: &Layout) -> String {
    let subcommand = script.subcommand.map_or_else(|| "None".to_owned(), |word| format!("'{word}'"));
    format!("    ({}, b'{}', {subcommand}),\n", python_bytes(&layout.script(script)), script.module)
}

/// A Python literal of the path's bytes, in ASCII.
fn python_bytes(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let escaped: String = bytes.iter().flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
    format!("b'{escaped}'")
}

#[cfg(test)]
mod tests;
