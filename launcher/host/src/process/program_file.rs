//! Facts for the scope of a stop signal: the file of the workers' program, and the image of a running worker. Which
//! processes get the signal is decided in `rankrun_core::agent::signal_scope`.

use std::fs;
use std::path::{Path, PathBuf};

use rankrun_contract::program_note::WORKER_NOTE;
use rankrun_core::agent::signal_scope::ProgramFile;
use rankrun_core::posix::Pid;

use crate::process::elf::{Elf, NOTE};
use crate::process::exec_problem::head;

/// What the first bytes of the program show. Its file system may not answer.
#[must_use]
pub(crate) fn look_at_program(program: &Path) -> ProgramFile {
    let Some(head) = head(program) else { return ProgramFile::Other };
    match head.strip_prefix(b"#!") {
        Some(rest) => ProgramFile::of_script(rest.split(|byte| *byte == b'\n').next().unwrap_or_default()),
        None if has_worker_note(&head) => {
            fs::canonicalize(program).map_or(ProgramFile::Other, ProgramFile::RustWorker)
        }
        None => ProgramFile::Other,
    }
}

/// Whether the program is linked with the worker runtime for Rust.
fn has_worker_note(head: &[u8]) -> bool {
    let has_name = |notes: &[u8]| notes.windows(WORKER_NOTE.len()).any(|name| name == WORKER_NOTE);
    Elf::parse(head).is_some_and(|elf| elf.segments(NOTE).any(has_name))
}

/// The file that a process executes. The kernel has its name in memory, so no file system is asked.
#[must_use]
pub(crate) fn image_of(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}
