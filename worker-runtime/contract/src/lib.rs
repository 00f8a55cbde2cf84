//! What a rankrun launcher and its workers agree on.
//!
//! Ranks, environment variables, the bytes of the store's protocol, the store as a state machine and the
//! worker's error file. Everything here is pure: no file, socket, clock or environment is touched, so the
//! launcher, the worker runtime and every test share one meaning of each byte.
#![warn(missing_docs)]

// Here and not in the crates that need it: they would add a hundred errors of their own.
#[cfg(not(target_os = "linux"))]
compile_error!(
    "rankrun and its worker runtime run on Linux; on another system, build them in a Linux container or virtual machine"
);

pub mod device;
pub mod env;
pub mod json;
pub mod network;
pub mod program_note;
pub mod progress_page;
pub mod rank;
pub mod report;
pub mod store;
