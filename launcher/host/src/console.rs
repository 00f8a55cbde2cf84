//! The only writer of the terminal: the launcher's standard output and standard error.
//!
//! If both are the same file, they are one [`Output`] with one [`Screen`]: lines of the two never mix. Without
//! captured worker output, a thread with a message writes it at once, as far as the reader takes it; if the output is a
//! file, whose file system may not answer, a thread of its own writes it (`file_writer`). A log pump that
//! [attaches](Output::attach) becomes the only writer of its output; messages then wait in a bounded queue. So neither a
//! slow terminal nor a file delays the agent.
use rankrun_core::spec::output_stream::OutputStream;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use tracing_subscriber::fmt::MakeWriter;

use rankrun_core::screen::{Screen, ScreenKind};

pub(crate) use output_kind::is_terminal;
use output_kind::{OutputFile, has_reader};
pub use output_kind::{OutputKind, write_while_ready};

mod file_writer;
mod output_kind;
#[cfg(test)]
mod tests;

/// Bytes of messages that may wait for a slow terminal. Messages beyond the limit are dropped and counted; a report is
/// never dropped.
const QUEUE_LIMIT: usize = 1024 * 1024;

/// Whether a message that does not fit into the queue is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Priority {
    Normal,
    /// For reports, which bound their own length.
    Always,
}

/// Whether the terminal's cursor can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// The terminal understands escape sequences that move the cursor.
    Moves,
    /// `TERM` is unset or `dumb`: only text is written.
    Stays,
}

/// Writes messages to the launcher's standard output and standard error. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Console {
    stdout: Arc<Output>,
    stderr: Arc<Output>,
}

impl Console {
    /// The console of this process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn of_process(cursor: Cursor) -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Self::new(stdout, stderr, cursor))
    }

    /// A console on any two files.
    #[must_use]
    pub fn new(stdout: OwnedFd, stderr: OwnedFd, cursor: Cursor) -> Self {
        let files = [&stdout, &stderr].map(|fd| OutputFile::of(fd.as_fd()).ok());
        let same = files[0].is_some() && files[0] == files[1];
        let output = |fd, file: &Option<OutputFile>| {
            let kind = file.as_ref().map_or(OutputKind::File, |file| file.kind);
            Arc::new(Output::new(fd, kind, cursor))
        };
        let stdout = output(stdout, &files[0]);
        let stderr = if same { Arc::clone(&stdout) } else { output(stderr, &files[1]) };
        Self { stdout, stderr }
    }

    /// Says something in whole lines; a missing last newline is added. Never waits.
    pub fn message(&self, stream: OutputStream, text: &[u8]) {
        self.output(stream).message(text, Priority::Normal);
    }

    /// As [`Self::message`], of the few texts of a job that are worth any memory: its reports.
    pub fn report(&self, stream: OutputStream, text: &[u8]) {
        self.output(stream).message(text, Priority::Always);
    }

    /// Writes the backlog of slow readers, for at most so long on each output: the last act of the launcher. `true`
    /// if everything on standard error was read.
    pub fn flush(&self, at_most: Duration) -> bool {
        let is_out = self.stdout.flush(at_most);
        if Arc::ptr_eq(&self.stdout, &self.stderr) { is_out } else { self.stderr.flush(at_most) }
    }

    /// The output that `stream` is written to.
    #[must_use]
    pub const fn output(&self, stream: OutputStream) -> &Arc<Output> {
        match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        }
    }
}

/// One descriptor of the launcher, and the state of its screen.
#[derive(Debug)]
pub struct Output {
    fd: OwnedFd,
    kind: OutputKind,
    cursor: Cursor,
    state: Mutex<OutputOwner>,
    /// Held during a write to a file: what a message thread has begun comes before the pump's first write.
    write_turn: Mutex<()>,
    /// Told when the thread that writes messages to a file ends.
    file_written: Condvar,
}

/// The current writer of the output.
#[derive(Debug)]
enum OutputOwner {
    /// Each thread writes its own messages.
    Direct(DirectOutput),
    /// The log pump writes; messages are queued.
    Pumped(MessageQueue),
}

/// The output while no pump is attached. No thread waits for its reader: unwritten bytes stay in the backlog until
/// the next message, the next pump, or the [flush](Console::flush).
#[derive(Debug)]
struct DirectOutput {
    screen: Screen,
    backlog: Vec<u8>,
    dropped: usize,
    /// The output is a file, and a thread writes the backlog.
    has_writer: bool,
}

#[derive(Debug)]
struct MessageQueue {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: usize,
    wake: Arc<EventFd>,
}

/// Why bytes did not reach their reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The reader is gone for good, as after `| head`.
    #[error("its reader is gone")]
    NoReader,
    /// These bytes are lost, later ones may be written: a full disk, for example.
    #[error("{0}")]
    Lost(Errno),
}

impl Output {
    fn new(fd: OwnedFd, kind: OutputKind, cursor: Cursor) -> Self {
        let direct = DirectOutput::new(Screen::new(screen_kind(&fd, kind, cursor)));
        Self {
            fd,
            kind,
            cursor,
            state: Mutex::new(OutputOwner::Direct(direct)),
            write_turn: Mutex::new(()),
            file_written: Condvar::new(),
        }
    }

    /// Whether the output is a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.kind == OutputKind::Terminal
    }

    /// The terminal's size, if the output is one.
    #[must_use]
    pub fn size(&self) -> Option<rustix::termios::Winsize> {
        self.is_terminal().then(|| rustix::termios::tcgetwinsize(&self.fd).ok())?
    }

    /// The current kind of screen, after a change of the terminal's size.
    #[must_use]
    pub(crate) fn screen_kind(&self) -> ScreenKind {
        screen_kind(&self.fd, self.kind, self.cursor)
    }

    fn message(self: &Arc<Self>, text: &[u8], priority: Priority) {
        match &mut *self.lock() {
            OutputOwner::Direct(direct) => {
                direct.add_message(text, priority);
                self.write_backlog(direct);
            }
            OutputOwner::Pumped(queue) => queue.push(text, priority),
        }
    }

    /// Writes what the reader takes at once, or has a thread write it.
    fn write_backlog(self: &Arc<Self>, direct: &mut DirectOutput) {
        if self.kind == OutputKind::File {
            self.start_file_writer(direct);
        } else {
            direct.write_while_ready(self, Duration::ZERO);
        }
    }

    fn flush(&self, at_most: Duration) -> bool {
        if self.kind == OutputKind::File {
            return self.await_file_writer(at_most);
        }
        let OutputOwner::Direct(direct) = &mut *self.lock() else { return false };
        direct.write_while_ready(self, at_most);
        direct.backlog.is_empty() && has_reader(self.fd.as_fd())
    }

    /// From now on only the caller writes; `wake` is written to when a message comes. The screen is the caller's
    /// until `Self::detach`, and so is what is still to be written. `None` when there is a writer already.
    #[must_use]
    pub fn attach(&self, wake: Arc<EventFd>) -> Option<(Screen, Vec<u8>)> {
        let mut state = self.lock();
        if matches!(*state, OutputOwner::Pumped(_)) {
            return None;
        }
        let queue = MessageQueue { messages: VecDeque::new(), bytes: 0, dropped: 0, wake };
        match std::mem::replace(&mut *state, OutputOwner::Pumped(queue)) {
            OutputOwner::Direct(direct) => Some((direct.screen, direct.backlog)),
            OutputOwner::Pumped(_) => None,
        }
    }

    /// The messages that came since, for the writer that attached.
    #[must_use]
    pub(crate) fn take_messages(&self) -> VecDeque<Vec<u8>> {
        match &mut *self.lock() {
            OutputOwner::Direct(_) => VecDeque::new(),
            OutputOwner::Pumped(queue) => queue.take(),
        }
    }

    /// Gives the screen back: messages that still wait, and later ones, are written at once again.
    pub(crate) fn detach(self: &Arc<Self>, screen: Screen) {
        let mut state = self.lock();
        let mut direct = DirectOutput::new(screen);
        if let OutputOwner::Pumped(queue) = &mut *state {
            queue.take().iter().for_each(|text| direct.add_message(text, Priority::Always));
        }
        self.write_backlog(&mut direct);
        *state = OutputOwner::Direct(direct);
    }

    /// Writes all of it, waiting as long as the reader takes.
    ///
    /// # Errors
    /// The error says whether later bytes have a chance.
    pub fn write(&self, mut bytes: &[u8]) -> Result<(), WriteError> {
        let _turn = self.write_turn.lock();
        while !bytes.is_empty() {
            match nix::unistd::write(&self.fd, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::EINTR) => {}
                // Another process that shares the terminal made it non-blocking.
                Err(Errno::EAGAIN) => {
                    let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
                    match poll(&mut fds, PollTimeout::NONE) {
                        Ok(_) | Err(Errno::EINTR) => {}
                        Err(errno) => return Err(WriteError::Lost(errno)),
                    }
                }
                Err(Errno::EPIPE | Errno::EIO | Errno::EBADF | Errno::ECONNRESET) => {
                    return Err(WriteError::NoReader);
                }
                Err(errno) => return Err(WriteError::Lost(errno)),
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, OutputOwner> {
        // The state is valid between any two statements that hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectOutput {
    const fn new(screen: Screen) -> Self {
        Self { screen, backlog: Vec::new(), dropped: 0, has_writer: false }
    }

    fn add_message(&mut self, text: &[u8], priority: Priority) {
        if priority == Priority::Normal && self.backlog.len() + text.len() > QUEUE_LIMIT {
            self.dropped += 1;
            return;
        }
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.screen.message(&dropped_message(dropped), &mut self.backlog);
        }
        self.screen.message(text, &mut self.backlog);
    }

    fn write_while_ready(&mut self, output: &Output, at_most: Duration) {
        let written = write_while_ready(output.fd.as_fd(), output.kind, &self.backlog, at_most);
        self.backlog.drain(..written);
    }
}

fn dropped_message(count: usize) -> Vec<u8> {
    format!("({count} messages of the launcher were dropped: the terminal was too slow)\n").into_bytes()
}

impl MessageQueue {
    fn push(&mut self, text: &[u8], priority: Priority) {
        if priority == Priority::Normal && self.bytes + text.len() > QUEUE_LIMIT {
            self.dropped += 1;
            return;
        }
        self.bytes += text.len();
        self.messages.push_back(text.to_vec());
        // Fails only when the counter is full, and then the pump is awake.
        let _ = self.wake.write(1);
    }

    fn take(&mut self) -> VecDeque<Vec<u8>> {
        self.bytes = 0;
        let mut messages = std::mem::take(&mut self.messages);
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            messages.push_back(dropped_message(dropped));
        }
        messages
    }
}

/// The launcher's log goes to standard error, an event at a time.
impl<'a> MakeWriter<'a> for Console {
    type Writer = MessageWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        MessageWriter { console: self }
    }
}

/// Takes each write as one message.
#[derive(Debug)]
pub struct MessageWriter<'a> {
    console: &'a Console,
}

impl Write for MessageWriter<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.console.message(OutputStream::Stderr, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn screen_kind(fd: &OwnedFd, kind: OutputKind, cursor: Cursor) -> ScreenKind {
    if kind != OutputKind::Terminal || cursor == Cursor::Stays {
        return ScreenKind::Plain;
    }
    match rustix::termios::tcgetwinsize(fd) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            ScreenKind::Terminal { columns: size.ws_col, rows: size.ws_row }
        }
        _ => ScreenKind::Terminal { columns: 80, rows: 24 },
    }
}
