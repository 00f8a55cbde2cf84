//! Helpers for the tests of the examples: they start the built programs and read their output.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A folder that goes away with its value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = Self(std::env::temp_dir().join(format!("rankrun-{}", uuid::Uuid::new_v4())));
        fs::create_dir(&folder.0).expect("the temporary folder can be written");
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Exit status, standard output and standard error of a program.
pub(crate) fn run_and_capture(program: &mut Command) -> (Option<i32>, String, String) {
    let output = program.output().expect("the example is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
