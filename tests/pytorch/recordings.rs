//! The recorded sessions of README and guides that need PyTorch.

use std::fs;

use harness::{WITH_TORCH, check_recordings, checkout, is_rankrun, session_launch};

#[test]
fn recorded_session_with_torch_is_what_a_run_prints() {
    if !is_rankrun() {
        return;
    }
    let folder = fs::read_dir(checkout().join("docs")).expect("the guides are there");
    let guides = folder.map(|entry| entry.expect("an entry").path());
    let guides = guides.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let documents = guides.chain([checkout().join("README.md")]);
    let count: usize = documents
        .map(|path| {
            check_recordings(&path, |session| {
                (session.on.as_deref() == Some(WITH_TORCH)).then(|| session_launch().with_torch())
            })
        })
        .sum();
    assert!(count > 1, "{count}");
}
