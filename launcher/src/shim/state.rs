//! Classifies the files of an environment: PyTorch's, the shim's, or another program's. Pure.

use std::path::PathBuf;

use super::layout::{File, Record, Texts, is_original, is_shim};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Missing,
    /// A file, or a link to one, that is no longer than a script.
    File(File),
    /// Anything else: a program, a folder, a link to nothing.
    Other,
}

/// The raw contents, as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) torchrun: Entry,
    pub(super) kept: Entry,
    pub(super) guard: Entry,
    pub(super) hook: Entry,
    pub(super) record: Entry,
    /// The target of our room's link.
    pub(super) link: Option<Target>,
}

/// The rankrun that a shim starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Works(PathBuf),
    Gone(PathBuf),
}

impl Target {
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
    Shim(Age),
    Foreign,
}

/// Whether a file of ours equals this version's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    Current,
    /// Another version, or another place of the environment.
    Old,
}

/// An environment as the shim sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) torchrun: Torchrun,
    /// The file that is kept beside it.
    pub(super) kept: Option<File>,
    pub(super) record: Option<Record>,
    /// The guard and the hook behind it; `None` unless both are there.
    pub(super) hook: Option<Age>,
    /// Whether any part of a hook is present.
    pub(super) has_traces: bool,
    pub(super) link: Option<Target>,
}

impl State {
    /// Classifies the files, compared with the texts that would be written.
    #[must_use]
    pub(super) fn of(found: Found, texts: &Texts) -> Self {
        let torchrun = match found.torchrun {
            Entry::Missing => Torchrun::Missing,
            Entry::File(file) if is_shim(&file.bytes) => Torchrun::Shim(age(&file.bytes, &texts.torchrun)),
            Entry::File(file) if is_original(&file.bytes) => Torchrun::Original(file),
            Entry::File(_) | Entry::Other => Torchrun::Foreign,
        };
        let has_traces = [&found.guard, &found.hook].into_iter().any(|entry| *entry != Entry::Missing);
        let hook = match (&found.guard, &found.hook) {
            // One that was copied with its environment acts in the old place only.
            (Entry::File(guard), Entry::File(hook)) if texts.are_of_the_place_of(&hook.bytes) => {
                let ages = [age(&guard.bytes, &texts.guard), age(&hook.bytes, &texts.hook)];
                Some(if ages == [Age::Current; 2] { Age::Current } else { Age::Old })
            }
            _ => None,
        };
        let record = match found.record {
            Entry::File(file) => serde_json::from_slice(&file.bytes).ok(),
            Entry::Missing | Entry::Other => None,
        };
        let kept = match found.kept {
            Entry::File(file) => Some(file),
            Entry::Missing | Entry::Other => None,
        };
        Self { torchrun, kept, record, hook, has_traces, link: found.link }
    }

    /// Whether a Python that is started as torchrun becomes rankrun.
    #[must_use]
    pub(super) const fn hook_works(&self) -> bool {
        self.hook.is_some() && matches!(self.link, Some(Target::Works(_)))
    }
}

fn age(found: &[u8], current: &[u8]) -> Age {
    if found == current { Age::Current } else { Age::Old }
}
