//! The recorded sessions of README and guides, on this machine or on one of fake GPUs. `tests/pytorch` has those that need PyTorch.

use harness::{
    Launch, Machine, MachineTree, Session, WITH_TORCH, can_use_namespaces, check_recordings, checkout,
    is_rankrun, session_launch,
};

use super::documents;

/// GPUs of a fake driver of NVIDIA's.
fn machine(name: &str) -> Machine {
    match name {
        "2 fake GPUs, the second hot" => Machine::gpus(2).hot(1),
        "4 fake GPUs" => Machine::gpus(4),
        _ => panic!("no machine is called `{name}`"),
    }
}

fn launch(session: &Session, tree: &MachineTree) -> Option<Launch> {
    match session.on.as_deref() {
        None => Some(session_launch()),
        Some(WITH_TORCH) => None,
        Some(name) => can_use_namespaces().then(|| session_launch().under(tree.stage()).on(&machine(name))),
    }
}

#[test]
fn recorded_session_without_torch_is_what_a_run_prints() {
    if !is_rankrun() {
        return;
    }
    let tree = MachineTree::new();
    let paths = documents().into_iter().map(|(path, _)| checkout().join(path));
    let count = check_recordings(paths, |session| launch(session, &tree));
    assert!(count > 3 || !can_use_namespaces(), "{count}");
}
