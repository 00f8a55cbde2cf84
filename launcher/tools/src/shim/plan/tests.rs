use std::collections::BTreeMap;

use super::*;
use crate::shim::environment::PythonEnvironment;
use crate::shim::script::{SCRIPTS, is_shim};
use crate::shim::state::ShimTarget;

const RANKRUN: &str = "/env/bin/rankrun";

fn layout() -> Layout {
    Layout::at(Path::new("/env/bin"), Path::new("/env/lib"))
}

fn texts() -> ShimTexts {
    let environment = PythonEnvironment {
        python: "/env/bin/python".into(),
        prefix: "/env".into(),
        scripts: "/env/bin".into(),
        packages: "/env/lib".into(),
        installs: BTreeMap::new(),
    };
    ShimTexts::of(&environment, &layout()).unwrap()
}

fn script(text: &str) -> File {
    File { bytes: text.into(), mode: 0o755 }
}

fn original(text: &str) -> ScriptFile {
    ScriptFile::Original(script(text))
}

fn record(scripts: &[(&str, Option<&str>)]) -> Option<OriginalFiles> {
    let original = |(name, text): &(&str, Option<&str>)| {
        ((*name).to_owned(), text.map(|text| OriginalScript::from(&script(text))))
    };
    let scripts = scripts.iter().map(original).collect();
    Some(OriginalFiles { rankrun: env!("CARGO_PKG_VERSION").to_owned(), scripts })
}

/// Nothing of ours; the other launchers have no script.
fn before(torchrun: ScriptFile) -> ShimState {
    let off = |script| ScriptState { script, file: ScriptFile::Missing, saved_original: None, link: None };
    let mut state =
        ShimState { scripts: SCRIPTS.iter().map(off).collect(), record: None, hook: None, has_traces: false };
    state.scripts[0].file = torchrun;
    state
}

/// All of ours, over pip's script.
fn on() -> ShimState {
    let mut state = before(ScriptFile::Missing);
    replace(&mut state.scripts[0], "pip");
    state.record = record(&[("torchrun", Some("pip"))]);
    (state.hook, state.has_traces) = (Some(FileAge::Current), true);
    state
}

/// torchrun and deepspeed.
fn on_with_deepspeed() -> ShimState {
    let mut state = on();
    replace(&mut state.scripts[3], "pip 3");
    replace(&mut state.scripts[4], "pip 4");
    state.record = record(&[("torchrun", Some("pip")), ("deepspeed", Some("pip 3")), ("ds", Some("pip 4"))]);
    state
}

fn replace(state: &mut ScriptState, original: &str) {
    state.file = ScriptFile::Shim(FileAge::Current);
    state.saved_original = Some(script(original));
    state.link = Some(ShimTarget::Works(RANKRUN.into()));
}

/// The shim is on, with a change of torchrun's script.
fn on_but(change: impl FnOnce(&mut ScriptState)) -> ShimState {
    let mut state = on();
    change(&mut state.scripts[0]);
    state
}

/// The changes as words, in their order.
fn descriptions(changes: &[PathChange]) -> Vec<String> {
    let change = |change: &PathChange| {
        let name = change.path.file_name().unwrap_or_default().to_string_lossy();
        match &change.to {
            Content::Nothing => format!("- {name}"),
            Content::File(file) if is_shim(&file.bytes) => format!("{name}: shim"),
            Content::File(file) if file.bytes == texts().guard => format!("{name}: guard"),
            Content::File(file) => format!("{name}: {}", String::from_utf8_lossy(&file.bytes)),
            Content::SameAs(path) => format!("{name} = {}", path.file_name().unwrap().to_string_lossy()),
            Content::Package(package) => {
                let original = |(name, original): (&String, &Option<OriginalScript>)| {
                    let file = original.as_ref().and_then(OriginalScript::file);
                    format!("{name} {:?}", file.map(|file| String::from_utf8(file.bytes).unwrap()))
                };
                let originals: Vec<_> = package.record.scripts.iter().map(original).collect();
                format!("{name} for {} over {}", package.rankrun.display(), originals.join(", "))
            }
        }
    };
    changes.iter().map(change).collect()
}

fn turned_on(state: &ShimState) -> Vec<String> {
    turned_on_for(state, &[Launcher::Torchrun])
}

fn turned_on_for(state: &ShimState, launchers: &[Launcher]) -> Vec<String> {
    let launchers = launchers.iter().copied().collect();
    descriptions(&turn_on(state, &layout(), &texts(), (&launchers, Path::new(RANKRUN))))
}

fn turned_off(state: &ShimState) -> Vec<String> {
    descriptions(&turn_off(state, &layout(), |_| true))
}

#[test]
fn turn_on_saves_original_first_and_adds_guard_last() {
    assert_eq!(
        turned_on(&before(original("pip"))),
        [
            "_rankrun_shim for /env/bin/rankrun over torchrun Some(\"pip\")",
            "torchrun.rankrun-original = torchrun",
            "torchrun: shim",
            "rankrun_shim.pth: guard",
        ]
    );
}

#[test]
fn turn_on_creates_missing_torchrun() {
    assert_eq!(
        turned_on(&before(ScriptFile::Missing)),
        [
            "_rankrun_shim for /env/bin/rankrun over torchrun None",
            "torchrun: shim",
            "rankrun_shim.pth: guard"
        ]
    );
}

#[test]
fn turn_on_twice_changes_nothing() {
    assert_eq!(turned_on(&on()), [""; 0]);
}

#[test]
fn turn_on_repairs_damaged_shim() {
    let package = "_rankrun_shim for /env/bin/rankrun over torchrun Some(\"pip\")";
    let reinstalled = on_but(|torchrun| torchrun.file = original("new"));
    assert_eq!(
        turned_on(&reinstalled),
        [
            "_rankrun_shim for /env/bin/rankrun over torchrun Some(\"new\")",
            "torchrun.rankrun-original = torchrun",
            "torchrun: shim"
        ]
    );
    let mut old = on_but(|torchrun| torchrun.file = ScriptFile::Shim(FileAge::Old));
    old.hook = Some(FileAge::Old);
    assert_eq!(turned_on(&old), [package, "torchrun: shim", "rankrun_shim.pth: guard"]);
    let deleted = on_but(|torchrun| torchrun.file = ScriptFile::Missing);
    assert_eq!(turned_on(&deleted), ["torchrun: shim"]);
    let elsewhere = on_but(|torchrun| torchrun.link = Some(ShimTarget::Gone("/old/rankrun".into())));
    assert_eq!(turned_on(&elsewhere), [package]);
    // The package was deleted: the kept file shows the previous state.
    let no_package = ShimState { record: None, hook: None, ..on_but(|torchrun| torchrun.link = None) };
    assert_eq!(turned_on(&no_package), [package, "rankrun_shim.pth: guard"]);
}

#[test]
fn turn_off_removes_guard_first() {
    assert_eq!(
        turned_off(&on()),
        [
            "- rankrun_shim.pth",
            "- _rankrun_shim",
            "torchrun = torchrun.rankrun-original",
            "- torchrun.rankrun-original"
        ]
    );
}

#[test]
fn turn_off_restores_recorded_script() {
    let hooks = ["- rankrun_shim.pth", "- _rankrun_shim"];
    let tampered = on_but(|torchrun| torchrun.saved_original = Some(script("other")));
    assert_eq!(turned_off(&tampered)[2..], ["torchrun: pip", "- torchrun.rankrun-original"]);
    let lost = on_but(|torchrun| torchrun.saved_original = None);
    assert_eq!(turned_off(&lost), [hooks[0], hooks[1], "torchrun: pip"]);
    let none_before = ShimState { record: record(&[("torchrun", None)]), ..lost };
    assert_eq!(turned_off(&none_before), [hooks[0], hooks[1], "- torchrun"]);
    let no_package =
        ShimState { record: None, hook: None, has_traces: false, ..on_but(|torchrun| torchrun.link = None) };
    assert_eq!(
        turned_off(&no_package),
        ["torchrun = torchrun.rankrun-original", "- torchrun.rankrun-original"]
    );
    let deleted = on_but(|torchrun| torchrun.file = ScriptFile::Missing);
    assert_eq!(turned_off(&deleted)[2], "torchrun = torchrun.rankrun-original");
}

#[test]
fn turn_off_keeps_newer_torchrun() {
    let hooks = ["- rankrun_shim.pth", "- _rankrun_shim", "- torchrun.rankrun-original"];
    for file in [original("new"), ScriptFile::Foreign] {
        assert_eq!(turned_off(&on_but(|torchrun| torchrun.file = file)), hooks);
    }
    // PyTorch was uninstalled, and its torchrun with it.
    let uninstalled = on_but(|torchrun| torchrun.file = ScriptFile::Missing);
    assert_eq!(descriptions(&turn_off(&uninstalled, &layout(), |_| false)), hooks);
}

#[test]
fn turn_off_twice_changes_nothing() {
    for torchrun in [original("pip"), ScriptFile::Missing, ScriptFile::Foreign] {
        assert_eq!(turned_off(&before(torchrun)), [""; 0]);
    }
}

#[test]
fn turn_on_of_further_launcher_leaves_torchrun_alone() {
    let mut state = on();
    state.scripts[3].file = original("pip 3");
    let both = [Launcher::Torchrun, Launcher::Deepspeed];
    assert_eq!(
        turned_on_for(&state, &both),
        [
            "_rankrun_shim for /env/bin/rankrun over deepspeed Some(\"pip 3\"), ds None, torchrun Some(\"pip\")",
            "deepspeed.rankrun-original = deepspeed",
            "deepspeed: shim",
            "ds: shim",
        ]
    );
    assert_eq!(turned_on_for(&on_with_deepspeed(), &both), [""; 0]);
}

#[test]
fn turn_on_forgets_launcher_that_was_uninstalled() {
    let mut state = on_with_deepspeed();
    state.scripts[3].file = ScriptFile::Missing;
    state.scripts[4].file = ScriptFile::Missing;
    assert_eq!(
        turned_on(&state),
        [
            "_rankrun_shim for /env/bin/rankrun over torchrun Some(\"pip\")",
            "- deepspeed.rankrun-original",
            "- ds.rankrun-original",
        ]
    );
}

#[test]
fn turn_off_restores_every_script() {
    assert_eq!(
        turned_off(&on_with_deepspeed())[2..],
        [
            "torchrun = torchrun.rankrun-original",
            "- torchrun.rankrun-original",
            "deepspeed = deepspeed.rankrun-original",
            "- deepspeed.rankrun-original",
            "ds = ds.rankrun-original",
            "- ds.rankrun-original"
        ]
    );
}
