//! The recorded sessions of README and guides that need PyTorch.

use std::fs;
use std::time::Duration;

use harness::{
    FIRST_IN_PATH, Machine, MachineTree, WITH_TORCH, can_use_namespaces, check_recordings, checkout,
    is_rankrun, python, session_launch,
};

#[test]
fn recorded_session_with_torch_is_what_a_run_prints() {
    if !is_rankrun() || !can_use_namespaces() {
        return;
    }
    let folder = fs::read_dir(checkout().join("docs")).expect("the guides are there");
    let guides = folder.map(|entry| entry.expect("an entry").path());
    let guides = guides.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let documents = guides.chain([checkout().join("README.md")]);
    // Without the accelerators of this machine, and as a user has PyTorch: in the active environment.
    let (tree, machine, python) = (MachineTree::new(), Machine::empty(), python());
    let launch = || {
        let launch = session_launch().under(tree.stage()).on(&machine).limit(Duration::from_secs(300));
        launch.env(FIRST_IN_PATH, python.parent().expect("a program is in a folder"))
    };
    let count =
        check_recordings(documents, |session| (session.on.as_deref() == Some(WITH_TORCH)).then(launch));
    assert!(count > 0, "{count}");
}
