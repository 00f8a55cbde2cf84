//! One ssh client: its process, the frames for the agent at its other end, and what comes back.
#![expect(clippy::disallowed_methods, reason = "starts ssh clients")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;

use super::output::SharedOutput;
use rankrun_core::plain::plain;
use rankrun_core::posix::Exit;
use rankrun_core::ssh::node_lines::NodeLines;
use rankrun_core::ssh::protocol::Hello;

/// Bytes of one read.
const READ: usize = 64 * 1024;
/// Bytes before the hello that are kept: a login shell may be talkative.
const MAX_BEFORE_HELLO: usize = 64 * 1024;
/// The longest last line of an error message, in characters.
const MAX_CAUSE: usize = 300;

/// An ssh client with an agent at its other end.
#[derive(Debug)]
pub(super) struct SshClient {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Frames that the client has not taken yet.
    unsent: Vec<u8>,
    stdout: Stream<ChildStdout>,
    stderr: Stream<ChildStderr>,
    /// The agent has said hello.
    is_greeted: bool,
}

#[derive(Debug)]
struct Stream<T> {
    pipe: Option<T>,
    lines: NodeLines,
    /// What came before the hello.
    held: Vec<u8>,
    /// The last line, for an error message.
    last: Vec<u8>,
}

/// Both outputs of the local launcher.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) stdout: SharedOutput,
    pub(super) stderr: SharedOutput,
}

impl SshClient {
    /// Starts the client in a process group of its own: Ctrl-C of the terminal is for the local launcher, which passes it on.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start(command: &[String], lines: impl Fn() -> NodeLines) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ends = [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ];
        for end in ends.into_iter().flatten() {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let (stdout, stderr) = (Stream::new(stdout, lines()), Stream::new(stderr, lines()));
        Ok(Self { child, stdin, unsent: Vec::new(), stdout, stderr, is_greeted: false })
    }

    /// The descriptors to wait for. The client is not read while an output has no room.
    pub(super) fn interests(&self, can_read: bool) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let stdin = self.stdin.as_ref().filter(|_| !self.unsent.is_empty());
        let stdin = stdin.map(|pipe| (pipe.as_fd(), PollFlags::POLLOUT));
        let stdout = self.stdout.pipe.as_ref().map(AsFd::as_fd);
        let stderr = self.stderr.pipe.as_ref().map(AsFd::as_fd);
        let outputs = stdout.into_iter().chain(stderr).filter(move |_| can_read);
        outputs.map(|pipe| (pipe, PollFlags::POLLIN)).chain(stdin)
    }

    /// Sends a frame, as far as the client takes it now.
    pub(super) fn send(&mut self, frame: &[u8]) {
        self.unsent.extend_from_slice(frame);
        self.send_unsent();
    }

    pub(super) fn send_unsent(&mut self) {
        while let Some(stdin) = self.stdin.as_mut().filter(|_| !self.unsent.is_empty()) {
            match stdin.write(&self.unsent) {
                Ok(count @ 1..) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The end of the client says more.
                Ok(_) | Err(_) => self.stdin = None,
            }
        }
    }

    /// Kills the client.
    pub(super) fn kill(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
    }

    /// Copies what has come to the outputs; the hello of the agent, when it comes.
    pub(super) fn copy(&mut self, outputs: &mut Outputs) -> Option<Hello> {
        let mut bytes = vec![0; READ];
        while let Some(count @ 1..) = self.stderr.read(&mut bytes) {
            self.stderr.note_last(&bytes[..count]);
            self.stderr.show(&bytes[..count], self.is_greeted, outputs.stderr.pending());
            if !outputs.stderr.has_room() {
                break;
            }
        }
        let mut hello = None;
        while let Some(count @ 1..) = self.stdout.read(&mut bytes) {
            if self.is_greeted {
                self.stdout.show(&bytes[..count], true, outputs.stdout.pending());
            } else if let Some((found, behind)) = self.stdout.find_hello(&bytes[..count]) {
                self.is_greeted = true;
                self.stderr.show(&[], true, outputs.stderr.pending());
                self.stdout.show(&behind, true, outputs.stdout.pending());
                hello = Some(found);
            }
            if !outputs.stdout.has_room() {
                break;
            }
        }
        hello
    }

    /// The end of the client, once it has ended; with the last line of its standard error. What the agent wrote before is
    /// copied first.
    pub(super) fn ended(&mut self, outputs: &mut Outputs) -> Option<(Exit, String)> {
        let status = self.child.try_wait().ok()??;
        self.copy(outputs);
        if !self.is_greeted && self.stderr.has_several_lines() {
            // The error has the last one alone.
            self.stderr.show(&[], true, outputs.stderr.pending());
        }
        self.stdout.lines.finish(outputs.stdout.pending());
        self.stderr.lines.finish(outputs.stderr.pending());
        let exit = match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => {
                Exit::Signal { number: signal.unwrap_or_default(), core_dumped: status.core_dumped() }
            }
        };
        Some((exit, self.stderr.last_line()))
    }
}

impl<T: Read> Stream<T> {
    const fn new(pipe: Option<T>, lines: NodeLines) -> Self {
        Self { pipe, lines, held: Vec::new(), last: Vec::new() }
    }

    /// The number of bytes that have come; nothing where none is there.
    fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        loop {
            match self.pipe.as_mut()?.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(0) | Err(_) => {
                    self.pipe = None;
                    return None;
                }
                Ok(count) => return Some(count),
            }
        }
    }

    /// Bytes before the hello are held: they are the cause of an error, or are shown with it.
    fn show(&mut self, bytes: &[u8], is_greeted: bool, out: &mut Vec<u8>) {
        if is_greeted {
            let held = std::mem::take(&mut self.held);
            self.lines.push(&held, out);
            self.lines.push(bytes, out);
        } else if self.held.len() < MAX_BEFORE_HELLO {
            self.held.extend_from_slice(bytes);
        }
    }

    /// The hello in what has come so far, and the bytes behind it. Lines before it are a login shell's, and are dropped.
    fn find_hello(&mut self, bytes: &[u8]) -> Option<(Hello, Vec<u8>)> {
        self.held.extend_from_slice(bytes);
        while let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.held.drain(..=end).collect();
            if let Some(hello) = Hello::parse(&line[..end]) {
                return Some((hello, std::mem::take(&mut self.held)));
            }
        }
        self.held.truncate(MAX_BEFORE_HELLO);
        None
    }

    fn has_several_lines(&self) -> bool {
        self.held.iter().filter(|byte| **byte == b'\n').count() > 1
    }

    fn note_last(&mut self, bytes: &[u8]) {
        let start = bytes.len().saturating_sub(MAX_BEFORE_HELLO);
        self.last.extend_from_slice(&bytes[start..]);
        let excess = self.last.len().saturating_sub(4 * MAX_CAUSE);
        self.last.drain(..excess);
    }

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.last);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        plain(line).chars().take(MAX_CAUSE).collect()
    }
}
