//! The launcher's store alone, on loopback.
#![expect(clippy::disallowed_methods, reason = "the harness starts the programs under test")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::place::fixture;

/// A store that no agent hosts. Dropping it ends it.
#[derive(Debug)]
pub struct Store {
    child: Child,
    port: u16,
}

impl Store {
    /// One with a port of its own.
    ///
    /// # Panics
    /// When the fixture does not start.
    #[must_use]
    pub fn open() -> Self {
        let mut child = Command::new(fixture("store-under-test"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the store starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the store tells its port");
        Self { child, port: line.trim().parse().expect("a port") }
    }

    /// Where it is: `127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
