//! A gate at which workers wait until the test lets them through.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;

use crate::place::Scratch;

/// A FIFO: a worker's `gate=PATH` step reads one byte of it, and blocks until there is one.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    /// Its folder, where it is not one of the test.
    _scratch: Option<Scratch>,
    /// Open for both directions, so that neither side's `open` blocks.
    file: File,
}

impl Gate {
    /// A closed gate, for a test that needs no folder otherwise.
    ///
    /// # Panics
    /// When the FIFO cannot be made.
    #[must_use]
    pub fn closed() -> Self {
        let scratch = Scratch::new();
        let gate = Self::new(&scratch, "gate");
        Self { _scratch: Some(scratch), ..gate }
    }

    /// A closed gate of this name in a folder of the test.
    ///
    /// # Panics
    /// When the FIFO cannot be made.
    #[must_use]
    pub fn new(scratch: &Scratch, name: &str) -> Self {
        let path = scratch.path().join(name);
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o666)).expect("the scratch folder takes a FIFO");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("the FIFO opens");
        Self { path, _scratch: None, file }
    }

    /// Where workers find it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The worker's step that waits here.
    #[must_use]
    pub fn step(&self) -> String {
        format!("gate={}", self.path.display())
    }

    /// As [`Gate::open`], for shells that read a line.
    ///
    /// # Panics
    /// When the FIFO cannot be written.
    pub fn open_lines(&self, count: usize) {
        (&self.file).write_all(&vec![b'\n'; count]).expect("the gate takes a line for each worker");
    }

    /// Lets `count` workers through.
    ///
    /// # Panics
    /// When the FIFO cannot be written.
    pub fn open(&self, count: usize) {
        (&self.file).write_all(&vec![b'.'; count]).expect("the gate takes a byte for each worker");
    }
}
