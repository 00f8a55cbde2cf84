//! What a call of a fake library does beside its answer.

use std::io::Write;

use crate::Machine;

/// What goes wrong in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It answers with this code.
    Error(i32),
    /// It never comes back.
    Hang,
    /// It takes the process down.
    Crash,
}

/// Functions with a fault.
pub type Faults = Vec<(String, Fault)>;

/// Tells the test that a process has opened the library: a line `soname pid` in the file `<machine>.opened`. Called by
/// the loader, before any function.
pub fn announce(soname: &str) {
    let Some(mut path) = crate::file().map(std::path::PathBuf::into_os_string) else { return };
    path.push(".opened");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // One write, so that two processes cannot mix their lines; a test that misses the line fails.
    let line = format!("{soname} {}\n", std::process::id());
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Begins a function: does not return, or returns the code that it answers with, where it has a fault.
#[must_use]
pub fn enter(machine: &Machine, function: &str) -> Option<i32> {
    let (_, fault) = machine.faults.iter().find(|(name, _)| name == function)?;
    match fault {
        Fault::Error(code) => Some(*code),
        Fault::Hang => loop {
            std::thread::park();
        },
        Fault::Crash => std::process::abort(),
    }
}
