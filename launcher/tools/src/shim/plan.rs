//! Computes the changes of paths and their order. At every moment between two changes each call still runs a
//! torchrun. Pure.

use std::path::{Path, PathBuf};

use super::layout::{File, Layout, OriginalFiles, OriginalScript, ShimTexts};
use super::state::{FileAge, ShimState, Torchrun};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathChange {
    pub(super) path: PathBuf,
    pub(super) to: Content,
}

/// The planned content of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    File(File),
    /// The very file that is at another path now.
    SameAs(PathBuf),
    Package(GuardPackage),
}

/// The package that the guard imports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuardPackage {
    pub(super) hook: Vec<u8>,
    pub(super) record: OriginalFiles,
    pub(super) rankrun: PathBuf,
}

/// The changes that make an environment's torchrun ours; none if it is already. A foreign `bin/torchrun` and an
/// environment without PyTorch were refused before.
#[must_use]
pub(super) fn turn_on(
    state: &ShimState,
    layout: &Layout,
    texts: &ShimTexts,
    rankrun: &Path,
) -> Vec<PathChange> {
    let mut changes = Vec::new();
    let mut change = |path: &Path, to: Content| changes.push(PathChange { path: path.to_owned(), to });
    let record = OriginalFiles {
        rankrun: env!("CARGO_PKG_VERSION").to_owned(),
        original: match &state.torchrun {
            Torchrun::Original(file) => Some(file.into()),
            // `off` restores the file that an earlier `on` has recorded.
            Torchrun::Shim(_) | Torchrun::Missing | Torchrun::Foreign => original_script(state),
        },
    };
    let same_link = state.link.as_ref().is_some_and(|link| link.path() == rankrun);
    if state.hook != Some(FileAge::Current) || state.record.as_ref() != Some(&record) || !same_link {
        let package = GuardPackage { hook: texts.hook.clone(), record, rankrun: rankrun.to_owned() };
        change(&layout.package, Content::Package(package));
    }
    if let Torchrun::Original(_) = state.torchrun {
        change(&layout.saved_original, Content::SameAs(layout.torchrun.clone()));
    }
    if state.torchrun != Torchrun::Shim(FileAge::Current) {
        let file = File { bytes: texts.torchrun.clone(), mode: 0o755 };
        change(&layout.torchrun, Content::File(file));
    }
    if state.hook != Some(FileAge::Current) {
        change(&layout.guard, Content::File(File { bytes: texts.guard.clone(), mode: 0o644 }));
    }
    changes
}

/// The changes that restore the previous files; none if the shim is not there. `has_torch` says whether a PyTorch is
/// there that the old torchrun could start.
#[must_use]
pub(super) fn turn_off(state: &ShimState, layout: &Layout, has_torch: bool) -> Vec<PathChange> {
    let mut changes = Vec::new();
    let mut change = |path: &Path, to: Content| changes.push(PathChange { path: path.to_owned(), to });
    if state.has_traces || state.link.is_some() || state.record.is_some() {
        change(&layout.guard, Content::Nothing);
        change(&layout.package, Content::Nothing);
    }
    match state.torchrun {
        Torchrun::Shim(_) => change(&layout.torchrun, restored_content(state, layout)),
        Torchrun::Missing if has_torch && original_script(state).is_some() => {
            change(&layout.torchrun, restored_content(state, layout));
        }
        // A torchrun that came later stays.
        Torchrun::Missing | Torchrun::Original(_) | Torchrun::Foreign => {}
    }
    if state.saved_original.is_some() {
        change(&layout.saved_original, Content::Nothing);
    }
    changes
}

/// The previous file at `bin/torchrun`: from the record, else the kept one.
fn original_script(state: &ShimState) -> Option<OriginalScript> {
    match &state.record {
        Some(record) => record.original.clone(),
        None => state.saved_original.as_ref().map(OriginalScript::from),
    }
}

fn restored_content(state: &ShimState, layout: &Layout) -> Content {
    let Some(file) = original_script(state).and_then(|original| original.file()) else {
        return Content::Nothing;
    };
    // The very file has its owner and its time stamps too; one that was changed since is not it.
    if state.saved_original.as_ref() == Some(&file) {
        Content::SameAs(layout.saved_original.clone())
    } else {
        Content::File(file)
    }
}

#[cfg(test)]
mod tests;
