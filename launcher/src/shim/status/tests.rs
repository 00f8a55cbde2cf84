use super::*;
use crate::shim::environment::Torch;
use crate::shim::layout::File;

fn environment() -> Environment {
    Environment {
        python: "/env/bin/python".into(),
        prefix: "/env".into(),
        scripts: "/env/bin".into(),
        packages: "/env/lib".into(),
        torch: Some(Torch { folder: "/env/lib/torch".into(), version: "2.15.0".to_owned() }),
    }
}

fn state(torchrun: Torchrun, hook: Option<Age>, link: Option<Target>) -> State {
    let has_traces = hook.is_some();
    State { torchrun, kept: None, record: None, hook, has_traces, link }
}

fn works() -> Option<Target> {
    Some(Target::Works("/env/bin/rankrun".into()))
}

fn original() -> Torchrun {
    Torchrun::Original(File { bytes: Vec::new(), mode: 0o755 })
}

fn status(state: &State, switched_off: bool) -> (Health, [Runs; 3], Vec<Note>) {
    let environment = environment();
    let outside = Outside { other_in_path: None, switched_off };
    let status = Status::of(&environment, &Layout::of(&environment), state, outside);
    let runs: Vec<Runs> = status.ways.iter().map(|way| way.runs).collect();
    (status.health, runs.try_into().unwrap(), status.notes)
}

const ALL_OURS: [Runs; 3] = [Runs::Rankrun; 3];
const ALL_TORCHS: [Runs; 3] = [Runs::Torch; 3];

#[test]
fn off_and_on_have_nothing_to_note() {
    assert_eq!(status(&state(original(), None, None), false), (Health::Off, ALL_TORCHS, vec![]));
    let on = state(Torchrun::Shim(Age::Current), Some(Age::Current), works());
    assert_eq!(status(&on, false), (Health::On, ALL_OURS, vec![]));
    assert_eq!(status(&on, true), (Health::On, ALL_TORCHS, vec![Note::SwitchedOff]));
}

#[test]
fn what_happened_to_a_shim_is_noted() {
    let gone = || Some(Target::Gone("/env/bin/rankrun".into()));
    let shim = || Torchrun::Shim(Age::Current);
    let current = Some(Age::Current);
    let foreign = [Runs::Foreign, Runs::Foreign, Runs::Rankrun];
    let missing = [Runs::Nothing, Runs::Nothing, Runs::Rankrun];
    for (state, runs, note) in [
        (state(original(), current, works()), ALL_OURS, Note::Reinstalled),
        (state(shim(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (state(original(), current, gone()), ALL_TORCHS, Note::Gone("/env/bin/rankrun".into())),
        (state(shim(), None, works()), [Runs::Rankrun, Runs::Torch, Runs::Torch], Note::NoHook),
        (state(shim(), None, None), ALL_TORCHS, Note::NoHook),
        (state(Torchrun::Shim(Age::Old), current, works()), ALL_OURS, Note::Old),
        (state(shim(), Some(Age::Old), works()), ALL_OURS, Note::Old),
        (state(Torchrun::Foreign, current, works()), foreign, Note::Foreign("/env/bin/torchrun".into())),
        (state(Torchrun::Missing, current, works()), missing, Note::Missing("/env/bin/torchrun".into())),
    ] {
        assert_eq!(status(&state, false), (Health::Partly, runs, vec![note]));
    }
}

#[test]
fn the_table_lines_up() {
    let environment = environment();
    let on = state(Torchrun::Shim(Age::Current), Some(Age::Current), works());
    let outside = Outside { other_in_path: Some("/other/bin/torchrun".into()), switched_off: false };
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
fn programs_get_json() {
    let mut environment = environment();
    environment.torch = None;
    let off = state(Torchrun::Missing, None, None);
    let outside = Outside { other_in_path: None, switched_off: false };
    let status = Status::of(&environment, &Layout::of(&environment), &off, outside);
    let value: Value = serde_json::from_str(&status.json()).unwrap();
    assert_eq!(value["shim"], "off");
    assert_eq!(value["torch"], Value::Null);
    assert_eq!(value["ways"][2]["runs"], "nothing");
    assert_eq!(value["notes"][0], "this environment has no PyTorch");
}
