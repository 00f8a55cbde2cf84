use super::*;
use crate::shim::environment::PackageInstall;
use crate::shim::layout::File;
use crate::shim::script::SCRIPTS;

fn environment(launchers: &[Launcher]) -> PythonEnvironment {
    let install = |launcher: &Launcher| {
        let folder = format!("/env/lib/{}", launcher.package()).into();
        (*launcher, PackageInstall { folder, version: "2.15.0".to_owned() })
    };
    PythonEnvironment {
        python: "/env/bin/python".into(),
        prefix: "/env".into(),
        scripts: "/env/bin".into(),
        packages: "/env/lib".into(),
        installs: launchers.iter().map(install).collect(),
    }
}

fn state(torchrun: ScriptFile, hook: Option<FileAge>, link: Option<ShimTarget>) -> ShimState {
    let off = |script| ScriptState { script, file: ScriptFile::Missing, saved_original: None, link: None };
    let mut scripts: Vec<_> = SCRIPTS.iter().map(off).collect();
    (scripts[0].file, scripts[0].link) = (torchrun, link);
    ShimState { scripts, record: None, hook, has_traces: hook.is_some() }
}

fn shim() -> ScriptFile {
    ScriptFile::Shim(FileAge::Current)
}

/// torchrun and accelerate.
fn on_with_accelerate() -> ShimState {
    let mut state = state(shim(), Some(FileAge::Current), working_target());
    for script in &mut state.scripts[1..3] {
        (script.file, script.link) = (shim(), working_target());
    }
    state
}

fn working_target() -> Option<ShimTarget> {
    Some(ShimTarget::Works("/env/bin/rankrun".into()))
}

fn original() -> ScriptFile {
    ScriptFile::Original(File { bytes: Vec::new(), mode: 0o755 })
}

fn outside(switched_off: bool) -> OutsideFacts {
    OutsideFacts { others_in_path: Vec::new(), switched_off }
}

fn status(state: &ShimState, switched_off: bool) -> (ShimHealth, [CallTarget; 3], Vec<Note>) {
    let environment = environment(&[Launcher::Torchrun]);
    let status = Status::of(&environment, &Layout::of(&environment), state, outside(switched_off));
    let runs: Vec<CallTarget> = status.ways.iter().map(|way| way.runs).collect();
    (status.health, runs.try_into().unwrap(), status.notes)
}

const ALL_OURS: [CallTarget; 3] = [CallTarget::Rankrun; 3];
const TORCH: CallTarget = CallTarget::Original(Launcher::Torchrun);
const ALL_TORCHS: [CallTarget; 3] = [TORCH; 3];

#[test]
fn status_off_and_on_have_no_notes() {
    assert_eq!(status(&state(original(), None, None), false), (ShimHealth::Off, ALL_TORCHS, vec![]));
    let on = state(shim(), Some(FileAge::Current), working_target());
    assert_eq!(status(&on, false), (ShimHealth::On, ALL_OURS, vec![]));
    assert_eq!(status(&on, true), (ShimHealth::On, ALL_TORCHS, vec![Note::SwitchedOff]));
}

#[test]
fn damaged_shim_status_has_notes() {
    let gone = || Some(ShimTarget::Gone("/env/bin/rankrun".into()));
    let current = Some(FileAge::Current);
    let foreign = [CallTarget::Foreign, CallTarget::Foreign, CallTarget::Rankrun];
    let missing = [CallTarget::Nothing, CallTarget::Nothing, CallTarget::Rankrun];
    for (state, runs, note) in [
        (
            state(original(), current, working_target()),
            ALL_OURS,
            Note::Reinstalled("/env/bin/torchrun".into()),
        ),
        (state(shim(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (state(original(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (state(shim(), None, working_target()), [CallTarget::Rankrun, TORCH, TORCH], Note::NoHook),
        (state(shim(), None, None), ALL_TORCHS, Note::NoHook),
        (state(ScriptFile::Shim(FileAge::Old), current, working_target()), ALL_OURS, Note::Old),
        (state(shim(), Some(FileAge::Old), working_target()), ALL_OURS, Note::Old),
        (
            state(ScriptFile::Foreign, current, working_target()),
            foreign,
            Note::Foreign(Launcher::Torchrun, "/env/bin/torchrun".into()),
        ),
        (
            state(ScriptFile::Missing, current, working_target()),
            missing,
            Note::Missing("/env/bin/torchrun".into()),
        ),
    ] {
        assert_eq!(status(&state, false), (ShimHealth::Partly, runs, vec![note]));
    }
}

#[test]
fn status_table_is_aligned() {
    let environment = environment(&[Launcher::Torchrun]);
    let on = state(shim(), Some(FileAge::Current), working_target());
    let outside = OutsideFacts { others_in_path: vec!["/other/bin/torchrun".into()], switched_off: false };
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
    let environment = environment(&[]);
    let off = state(ScriptFile::Missing, None, None);
    let status = Status::of(&environment, &Layout::of(&environment), &off, outside(false));
    let value: Value = serde_json::from_str(&status.json()).unwrap();
    assert_eq!(value["shim"], "off");
    assert_eq!(value["torch"], Value::Null);
    assert_eq!(value["ways"][2]["runs"], "nothing");
    assert_eq!(value["notes"][0], "this environment has no PyTorch");
}

#[test]
fn status_has_rows_of_installed_launchers() {
    let environment = environment(&[Launcher::Torchrun, Launcher::Accelerate, Launcher::Deepspeed]);
    let mut on = on_with_accelerate();
    (on.scripts[3].file, on.scripts[4].file) = (original(), ScriptFile::Foreign);
    let status = Status::of(&environment, &Layout::of(&environment), &on, outside(false));
    assert_eq!(
        status.table(),
        "\
environment  /env
python       /env/bin/python
torch        2.15.0 in /env/lib/torch
accelerate   2.15.0 in /env/lib/accelerate
deepspeed    2.15.0 in /env/lib/deepspeed
shim         on
starts       /env/bin/rankrun

call                                  runs             by
torchrun                              rankrun          the file itself
python /env/bin/torchrun              rankrun          the hook
python -m torch.distributed.run       rankrun          the hook
accelerate launch                     rankrun          the file itself
python /env/bin/accelerate launch     rankrun          the hook
accelerate-launch                     rankrun          the file itself
python /env/bin/accelerate-launch     rankrun          the hook
python -m accelerate.commands.launch  accelerate's     the module
deepspeed                             DeepSpeed's      the file itself
python /env/bin/deepspeed             DeepSpeed's      the file itself
ds                                    another program  the file itself
python /env/bin/ds                    another program  the file itself
python -m deepspeed.launcher.runner   DeepSpeed's      the module
"
    );
    let value: Value = serde_json::from_str(&status.json()).unwrap();
    assert_eq!((&value["deepspeed"], &value["ways"][8]["runs"]), (&json!("2.15.0"), &json!("deepspeed")));
}

#[test]
fn reinstalled_accelerate_is_noted_and_runs_rankrun() {
    let environment = environment(&[Launcher::Torchrun, Launcher::Accelerate]);
    let mut state = on_with_accelerate();
    state.scripts[1].file = original();
    let status = Status::of(&environment, &Layout::of(&environment), &state, outside(false));
    assert_eq!(status.health, ShimHealth::Partly);
    assert_eq!((status.ways[3].runs, status.ways[3].by), (CallTarget::Rankrun, "the hook"));
    assert_eq!(status.notes, [Note::Reinstalled("/env/bin/accelerate".into())]);
}
