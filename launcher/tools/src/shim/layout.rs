//! The paths of the shim's files in an environment, and the text of each file. `plan` orders the changes and `disk`
//! makes them. Pure.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::environment::{PythonEnvironment, quotable};
use super::error::ShimError;

/// The line that Python runs at each start: the whole cost of the shim for other programs. The inner text is compiled
/// only for `-m` and for scripts with names that end in `run`; Python 3.8 and 3.9 do not know the whole command line.
const GUARD: &str = include_str!("templates/guard.pth");
const HOOK: &str = include_str!("templates/hook.py");
const TORCHRUN: &str = include_str!("templates/torchrun");
/// Stands in every torchrun that the shim has written.
const MARK: &[u8] = b"# Made by `rankrun shim on`";
/// Every script that installers write for torchrun has one of them.
const SIGNS: [&str; 2] = ["torch.distributed.run", "console_scripts"];
/// Longer than any script that an installer writes.
pub(super) const LONGEST_SCRIPT: usize = 1 << 16;

/// The paths of all that the shim makes in an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) torchrun: PathBuf,
    pub(super) saved_original: PathBuf,
    /// The line that Python runs at each start.
    pub(super) guard: PathBuf,
    /// A package of three files: the hook that the guard calls, the link to rankrun, the record.
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
            torchrun: scripts.join("torchrun"),
            saved_original: scripts.join("torchrun.rankrun-original"),
            guard: packages.join("rankrun_shim.pth"),
            package: packages.join("_rankrun_shim"),
        }
    }

    /// Every path that a change may replace.
    #[must_use]
    pub(super) fn places(self) -> [PathBuf; 4] {
        [self.torchrun, self.saved_original, self.guard, self.package]
    }

    #[must_use]
    pub(super) fn hook(&self) -> PathBuf {
        self.package.join("__init__.py")
    }

    /// The link to rankrun; its name makes it torchrun.
    #[must_use]
    pub(super) fn link(&self) -> PathBuf {
        self.package.join("torchrun")
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
    pub(super) original: Option<OriginalScript>,
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
    pub(super) torchrun: Vec<u8>,
    pub(super) hook: Vec<u8>,
    pub(super) guard: Vec<u8>,
}

impl ShimTexts {
    /// The texts for this environment.
    ///
    /// # Errors
    /// A script cannot contain one of its paths.
    pub(super) fn of(environment: &PythonEnvironment, layout: &Layout) -> Result<Self, ShimError> {
        let link = layout.link();
        let torchrun = fill(
            TORCHRUN,
            &[
                ("@RANKRUN@", quotable(&link)?),
                ("@PYTHON@", quotable(&environment.python)?),
                ("@KEPT@", python_bytes(quotable(&layout.saved_original)?).as_bytes()),
            ],
        );
        let signs = SIGNS.map(|sign| format!("b\"{sign}\"")).join(", ");
        let hook = fill(
            HOOK,
            &[
                ("@PREFIX@", python_bytes(quotable(&environment.prefix)?).as_bytes()),
                ("@TORCHRUN@", python_bytes(quotable(&layout.torchrun)?).as_bytes()),
                ("@LONGEST@", LONGEST_SCRIPT.to_string().as_bytes()),
                ("@SIGNS@", format!("({signs})").as_bytes()),
            ],
        );
        Ok(Self { torchrun, hook, guard: GUARD.as_bytes().to_vec() })
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

/// Whether a `bin/torchrun` was written by the shim, of this or another version.
#[must_use]
pub(super) fn is_shim(script: &[u8]) -> bool {
    script.windows(MARK.len()).any(|window| window == MARK)
}

/// Whether it is a script that an installer writes for PyTorch's torchrun.
#[must_use]
pub(super) fn is_original(script: &[u8]) -> bool {
    let has = |sign: &str| script.windows(sign.len()).any(|window| window == sign.as_bytes());
    script.starts_with(b"#!") && !is_shim(script) && SIGNS.into_iter().any(has)
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

/// A Python literal of these bytes, in ASCII.
fn python_bytes(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
    format!("b'{escaped}'")
}

#[cfg(test)]
mod tests;
