//! Computes the changes of paths and their order. At every moment between two changes each call still runs a
//! launcher. Pure.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::layout::{File, Layout, OriginalFiles, OriginalScript, ShimTexts};
use super::script::Launcher;
use super::state::{FileAge, ScriptFile, ScriptState, ShimState};

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

/// The changes that make the scripts of these launchers ours; none if they are already. The package of each is
/// installed, and no script of them is foreign. A script of another launcher, whose package is gone, is no longer ours.
#[must_use]
pub(super) fn turn_on(
    state: &ShimState,
    layout: &Layout,
    texts: &ShimTexts,
    (launchers, rankrun): (&BTreeSet<Launcher>, &Path),
) -> Vec<PathChange> {
    let mut changes = Vec::new();
    let is_wanted = |script: &&ScriptState| launchers.contains(&script.script.launcher);
    let (wanted, others): (Vec<_>, Vec<_>) = state.scripts.iter().partition(is_wanted);
    let originals = wanted.iter().map(|script| {
        let original = match &script.file {
            ScriptFile::Original(file) => Some(file.into()),
            // `off` restores the file that an earlier `on` has recorded.
            ScriptFile::Shim(_) | ScriptFile::Missing | ScriptFile::Foreign => original_script(state, script),
        };
        (script.script.name.to_owned(), original)
    });
    let record =
        OriginalFiles { rankrun: env!("CARGO_PKG_VERSION").to_owned(), scripts: originals.collect() };
    let same_links =
        wanted.iter().all(|script| script.link.as_ref().is_some_and(|link| link.path() == rankrun));
    if state.hook != Some(FileAge::Current) || state.record.as_ref() != Some(&record) || !same_links {
        let package = GuardPackage { hook: texts.hook.clone(), record, rankrun: rankrun.to_owned() };
        changes.push(PathChange { path: layout.package.clone(), to: Content::Package(package) });
    }
    for ScriptState { script, file, .. } in wanted {
        let path = layout.script(script);
        if let ScriptFile::Original(_) = file {
            let to = Content::SameAs(path.clone());
            changes.push(PathChange { path: layout.saved_original(script), to });
        }
        if *file != ScriptFile::Shim(FileAge::Current) {
            let to = Content::File(File { bytes: texts.script(script), mode: 0o755 });
            changes.push(PathChange { path, to });
        }
    }
    for script in others.into_iter().filter(|script| script.is_on()) {
        changes.extend(restore(state, script, layout, false));
    }
    if state.hook != Some(FileAge::Current) {
        let to = Content::File(File { bytes: texts.guard.clone(), mode: 0o644 });
        changes.push(PathChange { path: layout.guard.clone(), to });
    }
    changes
}

/// The changes that restore the previous files; none if the shim is not there. `is_installed` says whether the package
/// is there that an old script could start.
#[must_use]
pub(super) fn turn_off(
    state: &ShimState,
    layout: &Layout,
    is_installed: impl Fn(Launcher) -> bool,
) -> Vec<PathChange> {
    let mut changes = Vec::new();
    if state.has_traces || state.target().is_some() || state.record.is_some() {
        let paths = [&layout.guard, &layout.package].map(Clone::clone);
        changes.extend(paths.map(|path| PathChange { path, to: Content::Nothing }));
    }
    for script in &state.scripts {
        changes.extend(restore(state, script, layout, is_installed(script.script.launcher)));
    }
    changes
}

/// The changes that give one script its previous file back.
fn restore(
    state: &ShimState,
    script: &ScriptState,
    layout: &Layout,
    is_installed: bool,
) -> impl Iterator<Item = PathChange> {
    let path = layout.script(script.script);
    let script_change = match script.file {
        ScriptFile::Shim(_) => Some(restored_content(state, script, layout)),
        ScriptFile::Missing if is_installed && original_script(state, script).is_some() => {
            Some(restored_content(state, script, layout))
        }
        // A script that came later stays.
        ScriptFile::Missing | ScriptFile::Original(_) | ScriptFile::Foreign => None,
    };
    let saved = layout.saved_original(script.script);
    let saved_change =
        script.saved_original.as_ref().map(|_| PathChange { path: saved, to: Content::Nothing });
    script_change.map(|to| PathChange { path, to }).into_iter().chain(saved_change)
}

/// The previous file of the script: from the record, else the kept one.
fn original_script(state: &ShimState, script: &ScriptState) -> Option<OriginalScript> {
    match state.record.as_ref().and_then(|record| record.scripts.get(script.script.name)) {
        Some(original) => original.clone(),
        None => script.saved_original.as_ref().map(OriginalScript::from),
    }
}

fn restored_content(state: &ShimState, script: &ScriptState, layout: &Layout) -> Content {
    let Some(file) = original_script(state, script).and_then(|original| original.file()) else {
        return Content::Nothing;
    };
    // The very file has its owner and its time stamps too; one that was changed since is not it.
    if script.saved_original.as_ref() == Some(&file) {
        Content::SameAs(layout.saved_original(script.script))
    } else {
        Content::File(file)
    }
}

#[cfg(test)]
mod tests;
