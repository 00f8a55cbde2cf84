use super::*;
use crate::shim::state::ShimTarget;

const RANKRUN: &str = "/env/bin/rankrun";

fn layout() -> Layout {
    Layout {
        torchrun: "/env/bin/torchrun".into(),
        saved_original: "/env/bin/torchrun.rankrun-original".into(),
        guard: "/env/lib/rankrun_shim.pth".into(),
        package: "/env/lib/_rankrun_shim".into(),
    }
}

fn texts() -> ShimTexts {
    ShimTexts { torchrun: b"shim".to_vec(), hook: b"hook".to_vec(), guard: b"guard".to_vec() }
}

fn script(text: &str) -> File {
    File { bytes: text.into(), mode: 0o755 }
}

fn record(original: Option<&File>) -> Option<OriginalFiles> {
    Some(OriginalFiles {
        rankrun: env!("CARGO_PKG_VERSION").to_owned(),
        original: original.map(OriginalScript::from),
    })
}

fn before(torchrun: Torchrun) -> ShimState {
    ShimState { torchrun, saved_original: None, record: None, hook: None, has_traces: false, link: None }
}

/// All of ours, over pip's script.
fn on() -> ShimState {
    ShimState {
        torchrun: Torchrun::Shim(FileAge::Current),
        saved_original: Some(script("pip")),
        record: record(Some(&script("pip"))),
        hook: Some(FileAge::Current),
        has_traces: true,
        link: Some(ShimTarget::Works(RANKRUN.into())),
    }
}

/// The changes as words, in their order.
fn descriptions(changes: &[PathChange]) -> Vec<String> {
    let change = |change: &PathChange| {
        let name = change.path.file_name().unwrap_or_default().to_string_lossy();
        match &change.to {
            Content::Nothing => format!("- {name}"),
            Content::File(file) => format!("{name}: {}", String::from_utf8_lossy(&file.bytes)),
            Content::SameAs(path) => format!("{name} = {}", path.file_name().unwrap().to_string_lossy()),
            Content::Package(package) => {
                let original = package.record.original.as_ref().and_then(OriginalScript::file);
                let original = original.map(|file| String::from_utf8(file.bytes).unwrap());
                format!("{name} for {} over {original:?}", package.rankrun.display())
            }
        }
    };
    changes.iter().map(change).collect()
}

fn turned_on(state: &ShimState) -> Vec<String> {
    descriptions(&turn_on(state, &layout(), &texts(), Path::new(RANKRUN)))
}

fn turned_off(state: &ShimState) -> Vec<String> {
    descriptions(&turn_off(state, &layout(), true))
}

#[test]
fn turn_on_saves_original_first_and_adds_guard_last() {
    assert_eq!(
        turned_on(&before(Torchrun::Original(script("pip")))),
        [
            "_rankrun_shim for /env/bin/rankrun over Some(\"pip\")",
            "torchrun.rankrun-original = torchrun",
            "torchrun: shim",
            "rankrun_shim.pth: guard",
        ]
    );
}

#[test]
fn turn_on_creates_missing_torchrun() {
    assert_eq!(
        turned_on(&before(Torchrun::Missing)),
        ["_rankrun_shim for /env/bin/rankrun over None", "torchrun: shim", "rankrun_shim.pth: guard"]
    );
}

#[test]
fn turn_on_twice_changes_nothing() {
    assert_eq!(turned_on(&on()), [""; 0]);
}

#[test]
fn turn_on_repairs_damaged_shim() {
    let package = "_rankrun_shim for /env/bin/rankrun over Some(\"pip\")";
    let reinstalled = ShimState { torchrun: Torchrun::Original(script("new")), ..on() };
    assert_eq!(
        turned_on(&reinstalled),
        [
            "_rankrun_shim for /env/bin/rankrun over Some(\"new\")",
            "torchrun.rankrun-original = torchrun",
            "torchrun: shim"
        ]
    );
    let old = ShimState { torchrun: Torchrun::Shim(FileAge::Old), hook: Some(FileAge::Old), ..on() };
    assert_eq!(turned_on(&old), [package, "torchrun: shim", "rankrun_shim.pth: guard"]);
    let deleted = ShimState { torchrun: Torchrun::Missing, ..on() };
    assert_eq!(turned_on(&deleted), ["torchrun: shim"]);
    let elsewhere = ShimState { link: Some(ShimTarget::Gone("/old/rankrun".into())), ..on() };
    assert_eq!(turned_on(&elsewhere), [package]);
    // The package was deleted: the kept file shows the previous state.
    let no_package = ShimState { record: None, hook: None, link: None, ..on() };
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
    let tampered = ShimState { saved_original: Some(script("other")), ..on() };
    assert_eq!(turned_off(&tampered)[2..], ["torchrun: pip", "- torchrun.rankrun-original"]);
    let lost = ShimState { saved_original: None, ..on() };
    assert_eq!(turned_off(&lost), [hooks[0], hooks[1], "torchrun: pip"]);
    let none_before = ShimState { saved_original: None, record: record(None), ..on() };
    assert_eq!(turned_off(&none_before), [hooks[0], hooks[1], "- torchrun"]);
    let no_package = ShimState { record: None, hook: None, has_traces: false, link: None, ..on() };
    assert_eq!(
        turned_off(&no_package),
        ["torchrun = torchrun.rankrun-original", "- torchrun.rankrun-original"]
    );
    let deleted = ShimState { torchrun: Torchrun::Missing, ..on() };
    assert_eq!(turned_off(&deleted)[2], "torchrun = torchrun.rankrun-original");
}

#[test]
fn turn_off_keeps_newer_torchrun() {
    let hooks = ["- rankrun_shim.pth", "- _rankrun_shim", "- torchrun.rankrun-original"];
    for torchrun in [Torchrun::Original(script("new")), Torchrun::Foreign] {
        assert_eq!(turned_off(&ShimState { torchrun, ..on() }), hooks);
    }
    // PyTorch was uninstalled, and its torchrun with it.
    let uninstalled = ShimState { torchrun: Torchrun::Missing, ..on() };
    assert_eq!(descriptions(&turn_off(&uninstalled, &layout(), false)), hooks);
}

#[test]
fn turn_off_twice_changes_nothing() {
    for torchrun in [Torchrun::Original(script("pip")), Torchrun::Missing, Torchrun::Foreign] {
        assert_eq!(turned_off(&before(torchrun)), [""; 0]);
    }
}
