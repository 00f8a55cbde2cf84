use super::*;
use crate::shim::environment::TorchInstall;
use crate::shim::layout::File;

fn environment() -> PythonEnvironment {
    PythonEnvironment {
        python: "/env/bin/python".into(),
        prefix: "/env".into(),
        scripts: "/env/bin".into(),
        packages: "/env/lib".into(),
        torch: Some(TorchInstall { folder: "/env/lib/torch".into(), version: "2.15.0".to_owned() }),
    }
}

fn state(torchrun: Torchrun, hook: Option<FileAge>, link: Option<ShimTarget>) -> ShimState {
    let has_traces = hook.is_some();
    ShimState { torchrun, saved_original: None, record: None, hook, has_traces, link }
}

fn working_target() -> Option<ShimTarget> {
    Some(ShimTarget::Works("/env/bin/rankrun".into()))
}

fn original() -> Torchrun {
    Torchrun::Original(File { bytes: Vec::new(), mode: 0o755 })
}

fn status(state: &ShimState, switched_off: bool) -> (ShimHealth, [CallTarget; 3], Vec<Note>) {
    let environment = environment();
    let outside = OutsideFacts { other_in_path: None, switched_off };
    let status = Status::of(&environment, &Layout::of(&environment), state, outside);
    let runs: Vec<CallTarget> = status.ways.iter().map(|way| way.runs).collect();
    (status.health, runs.try_into().unwrap(), status.notes)
}

const ALL_OURS: [CallTarget; 3] = [CallTarget::Rankrun; 3];
const ALL_TORCHS: [CallTarget; 3] = [CallTarget::Torch; 3];

#[test]
fn status_off_and_on_have_no_notes() {
    assert_eq!(status(&state(original(), None, None), false), (ShimHealth::Off, ALL_TORCHS, vec![]));
    let on = state(Torchrun::Shim(FileAge::Current), Some(FileAge::Current), working_target());
    assert_eq!(status(&on, false), (ShimHealth::On, ALL_OURS, vec![]));
    assert_eq!(status(&on, true), (ShimHealth::On, ALL_TORCHS, vec![Note::SwitchedOff]));
}

#[test]
fn damaged_shim_status_has_notes() {
    let gone = || Some(ShimTarget::Gone("/env/bin/rankrun".into()));
    let shim = || Torchrun::Shim(FileAge::Current);
    let current = Some(FileAge::Current);
    let foreign = [CallTarget::Foreign, CallTarget::Foreign, CallTarget::Rankrun];
    let missing = [CallTarget::Nothing, CallTarget::Nothing, CallTarget::Rankrun];
    for (state, runs, note) in [
        (state(original(), current, working_target()), ALL_OURS, Note::Reinstalled),
        (state(shim(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (state(original(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (
            state(shim(), None, working_target()),
            [CallTarget::Rankrun, CallTarget::Torch, CallTarget::Torch],
            Note::NoHook,
        ),
        (state(shim(), None, None), ALL_TORCHS, Note::NoHook),
        (state(Torchrun::Shim(FileAge::Old), current, working_target()), ALL_OURS, Note::Old),
        (state(shim(), Some(FileAge::Old), working_target()), ALL_OURS, Note::Old),
        (
            state(Torchrun::Foreign, current, working_target()),
            foreign,
            Note::Foreign("/env/bin/torchrun".into()),
        ),
        (
            state(Torchrun::Missing, current, working_target()),
            missing,
            Note::Missing("/env/bin/torchrun".into()),
        ),
    ] {
        assert_eq!(status(&state, false), (ShimHealth::Partly, runs, vec![note]));
    }
}

#[test]
fn status_table_is_aligned() {
    let environment = environment();
    let on = state(Torchrun::Shim(FileAge::Current), Some(FileAge::Current), working_target());
    let outside = OutsideFacts { other_in_path: Some("/other/bin/torchrun".into()), switched_off: false };
    let status = Status::of(&environment, &Layout::of(&environment), &on, outside);
    assert_eq!(
        status.table(),
        "\
environment  /env
python       /env/bin/python
torch        2.15.0 in /env/lib/torch
shim         on
starts       /env/bin/rankrun

call                             runs             by
torchrun                         rankrun          the file itself
python /env/bin/torchrun         rankrun          the hook
python -m torch.distributed.run  rankrun          the hook

note: `torchrun` without a path is another environment's here: `/other/bin/torchrun`
"
    );
}

#[test]
fn status_json_has_expected_object() {
    let mut environment = environment();
    environment.torch = None;
    let off = state(Torchrun::Missing, None, None);
    let outside = OutsideFacts { other_in_path: None, switched_off: false };
    let status = Status::of(&environment, &Layout::of(&environment), &off, outside);
    let value: Value = serde_json::from_str(&status.json()).unwrap();
    assert_eq!(value["shim"], "off");
    assert_eq!(value["torch"], Value::Null);
    assert_eq!(value["ways"][2]["runs"], "nothing");
    assert_eq!(value["notes"][0], "this environment has no PyTorch");
}
