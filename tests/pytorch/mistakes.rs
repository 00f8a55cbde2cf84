//! Mistakes in programs that use PyTorch, as terminal sessions: `mistakes.txt`, in the form of `../e2e/mistakes/*.txt`.

use std::path::Path;

use harness::{Fleet, check_sessions, only_ours, session_launch};

#[test]
fn mistakes_with_pytorch_are_answered() {
    if only_ours() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/mistakes.txt");
        let fleet = Fleet::up(2);
        check_sessions(&file, |session| {
            let launch = session_launch().with_torch().env("RANKRUN_DEVICE_TYPE", "cpu");
            let launch = launch.env("CUDA_VISIBLE_DEVICES", "");
            match session.on.as_deref() {
                None => Some(launch),
                Some("two hosts") => fleet.as_ref().map(|fleet| fleet.on(1, launch)),
                Some(other) => panic!("no place is called `{other}`: {}", session.name),
            }
        });
    }
}
