//! Mistakes in programs that use PyTorch, as terminal sessions: `mistakes.txt`, in the form of `../e2e/mistakes/*.txt`.

use std::path::Path;

use harness::{check_sessions, is_rankrun, session_launch};

#[test]
fn pytorch_mistakes_get_hints() {
    if is_rankrun() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/mistakes.txt");
        check_sessions(&file, |_| {
            let launch = session_launch().with_torch().env("RANKRUN_DEVICE_TYPE", "cpu");
            let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/programs");
            Some(launch.env("PROGRAMS", programs))
        });
    }
}
