//! Marks a program that is linked with this crate: a note in its file says so to the launcher, which then sends the
//! signal that stops a worker to the program alone.
#![expect(unsafe_code, reason = "a static with a section of its own")]

use rankrun_contract::program_note::{WORKER_NOTE, WORKER_NOTE_LENGTH};

/// A note without content: elf(5).
#[repr(C, align(4))]
struct Note {
    name_length: u32,
    content_length: u32,
    kind: u32,
    name: [u8; 16],
}

#[cfg(target_os = "linux")]
// SAFETY: the section has notes alone, and this is one.
#[unsafe(link_section = ".note.rankrun-worker")]
#[used]
static NOTE: Note = Note { name_length: WORKER_NOTE_LENGTH, content_length: 0, kind: 1, name: *WORKER_NOTE };
