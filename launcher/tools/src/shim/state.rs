//! Classifies the files of an environment: an installer's, the shim's, or another program's. Pure.

use std::path::PathBuf;

use super::layout::{File, OriginalFiles, ShimTexts};
use super::script::{Launcher, Script, is_shim};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathEntry {
    Missing,
    /// A file, or a link to one, that is no longer than a script.
    File(File),
    /// Anything else: a program, a folder, a link to nothing.
    Other,
}

/// The raw contents, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFiles {
    pub(super) scripts: Vec<FoundScript>,
    pub(super) guard: PathEntry,
    pub(super) hook: PathEntry,
    pub(super) record: PathEntry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundScript {
    pub(super) script: &'static Script,
    pub(super) file: PathEntry,
    pub(super) saved_original: PathEntry,
    /// The target of its link in our package.
    pub(super) link: Option<ShimTarget>,
}

/// The rankrun that a shim starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShimTarget {
    Works(PathBuf),
    Gone(PathBuf),
}

impl ShimTarget {
    #[must_use]
    pub(super) const fn path(&self) -> &PathBuf {
        match self {
            Self::Works(path) | Self::Gone(path) => path,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScriptFile {
    Missing,
    Original(File),
    Shim(FileAge),
    Foreign,
}

/// Whether a file of the shim equals this version's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAge {
    Current,
    /// Another version, or another place of the environment.
    Old,
}

/// A console script as the shim sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptState {
    pub(super) script: &'static Script,
    pub(super) file: ScriptFile,
    /// The file that is kept beside it.
    pub(super) saved_original: Option<File>,
    pub(super) link: Option<ShimTarget>,
}

impl ScriptState {
    fn of(found: FoundScript, texts: &ShimTexts) -> Self {
        let FoundScript { script, file, saved_original, link } = found;
        let file = match file {
            PathEntry::Missing => ScriptFile::Missing,
            PathEntry::File(file) if is_shim(&file.bytes) => {
                ScriptFile::Shim(age(&file.bytes, &texts.script(script)))
            }
            PathEntry::File(file) if script.is_original(&file.bytes) => ScriptFile::Original(file),
            PathEntry::File(_) | PathEntry::Other => ScriptFile::Foreign,
        };
        let saved_original = match saved_original {
            PathEntry::File(file) => Some(file),
            PathEntry::Missing | PathEntry::Other => None,
        };
        Self { script, file, saved_original, link }
    }

    #[must_use]
    pub(super) const fn link_works(&self) -> bool {
        matches!(self.link, Some(ShimTarget::Works(_)))
    }

    /// Whether an earlier `on` has replaced it, even if an installer has written it again.
    #[must_use]
    pub(super) const fn is_on(&self) -> bool {
        self.link.is_some() || matches!(self.file, ScriptFile::Shim(_))
    }
}

/// An environment as the shim sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShimState {
    pub(super) scripts: Vec<ScriptState>,
    pub(super) record: Option<OriginalFiles>,
    /// The guard and the hook behind it; `None` unless both are there.
    pub(super) hook: Option<FileAge>,
    /// Whether any part of a hook is present.
    pub(super) has_traces: bool,
}

impl ShimState {
    /// Classifies the files, compared with the texts that would be written.
    #[must_use]
    pub(super) fn of(found: FoundFiles, texts: &ShimTexts) -> Self {
        let has_traces = [&found.guard, &found.hook].into_iter().any(|entry| *entry != PathEntry::Missing);
        let hook = match (&found.guard, &found.hook) {
            // One that was copied with its environment acts in the old place only.
            (PathEntry::File(guard), PathEntry::File(hook)) if texts.match_environment_of(&hook.bytes) => {
                let ages = [age(&guard.bytes, &texts.guard), age(&hook.bytes, &texts.hook)];
                Some(if ages == [FileAge::Current; 2] { FileAge::Current } else { FileAge::Old })
            }
            _ => None,
        };
        let record = match found.record {
            PathEntry::File(file) => serde_json::from_slice(&file.bytes).ok(),
            PathEntry::Missing | PathEntry::Other => None,
        };
        let scripts = found.scripts.into_iter().map(|found| ScriptState::of(found, texts)).collect();
        Self { scripts, record, hook, has_traces }
    }

    /// Whether a script of this launcher is on.
    #[must_use]
    pub(super) fn is_on(&self, launcher: Launcher) -> bool {
        self.scripts.iter().any(|script| script.script.launcher == launcher && script.is_on())
    }

    /// The scripts that notes are about: torchrun's, and those that are on.
    pub(super) fn reported_scripts(&self) -> impl Iterator<Item = &ScriptState> {
        self.scripts.iter().filter(|script| script.script.launcher == Launcher::Torchrun || script.is_on())
    }

    /// The rankrun that the scripts start.
    #[must_use]
    pub(super) fn target(&self) -> Option<&ShimTarget> {
        self.scripts.iter().find_map(|script| script.link.as_ref())
    }
}

fn age(found: &[u8], current: &[u8]) -> FileAge {
    if found == current { FileAge::Current } else { FileAge::Old }
}
