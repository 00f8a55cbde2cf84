//! Classifies the files of an environment: PyTorch's, the shim's, or another program's. Pure.

use std::path::PathBuf;

use super::layout::{File, OriginalFiles, ShimTexts, is_original, is_shim};

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
    pub(super) torchrun: PathEntry,
    pub(super) saved_original: PathEntry,
    pub(super) guard: PathEntry,
    pub(super) hook: PathEntry,
    pub(super) record: PathEntry,
    /// The target of the link in our package.
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
pub(super) enum Torchrun {
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

/// An environment as the shim sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShimState {
    pub(super) torchrun: Torchrun,
    /// The file that is kept beside it.
    pub(super) saved_original: Option<File>,
    pub(super) record: Option<OriginalFiles>,
    /// The guard and the hook behind it; `None` unless both are there.
    pub(super) hook: Option<FileAge>,
    /// Whether any part of a hook is present.
    pub(super) has_traces: bool,
    pub(super) link: Option<ShimTarget>,
}

impl ShimState {
    /// Classifies the files, compared with the texts that would be written.
    #[must_use]
    pub(super) fn of(found: FoundFiles, texts: &ShimTexts) -> Self {
        let torchrun = match found.torchrun {
            PathEntry::Missing => Torchrun::Missing,
            PathEntry::File(file) if is_shim(&file.bytes) => {
                Torchrun::Shim(age(&file.bytes, &texts.torchrun))
            }
            PathEntry::File(file) if is_original(&file.bytes) => Torchrun::Original(file),
            PathEntry::File(_) | PathEntry::Other => Torchrun::Foreign,
        };
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
        let saved_original = match found.saved_original {
            PathEntry::File(file) => Some(file),
            PathEntry::Missing | PathEntry::Other => None,
        };
        Self { torchrun, saved_original, record, hook, has_traces, link: found.link }
    }

    /// Whether a Python that is started as torchrun becomes rankrun.
    #[must_use]
    pub(super) const fn hook_works(&self) -> bool {
        self.hook.is_some() && matches!(self.link, Some(ShimTarget::Works(_)))
    }
}

fn age(found: &[u8], current: &[u8]) -> FileAge {
    if found == current { FileAge::Current } else { FileAge::Old }
}
