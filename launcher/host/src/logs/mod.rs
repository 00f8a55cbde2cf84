//! The workers' standard output and standard error: their destinations ([`rankrun_core::log_route`]), the folders ([`tree`]), and the
//! threads that copy captured output. The agent owns [`Logs`]; log bytes never pass through it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::rank::Generation;

use crate::blocking::file_calls::FileCalls;
use crate::console::{Console, Output};
use crate::regular_file;
use channel::{Channel, PipeSize, size_beside_label};
use filter::{Filter, LinePicker};
use last_output::FileRead;
pub use latch::Drained;
use latch::{Completion, wait_for_drain};
use pump::{PumpCommand, PumpHandle};
use rankrun_core::log_route::{Route, Routes, RowLabel};
use rankrun_core::placement::WorkerId;
use rankrun_core::spec::output_stream::OutputStream;
use rankrun_core::spec::{CliFlavor, LineFilters};
use source::{LogFile, StreamSource};
use tail::Tail;
use tree::Attempt;

mod channel;
pub mod error_folder;
mod filter;
pub(crate) mod last_output;
mod latch;
mod pump;
mod source;
pub(crate) mod space;
mod tail;
#[cfg(test)]
mod tests;
pub mod tree;

/// The size of the read for the last lines of a redirected file, in bytes.
const FILE_TAIL: i64 = 64 * 1024;

/// Why a worker's output has no place to go.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A folder of the log tree cannot be made.
    #[error("cannot make a log folder in `{path}`", path = .path.display())]
    Folder {
        /// The folder, or the one above it.
        path: PathBuf,
        /// The kernel's error for the system call.
        source: io::Error,
    },
    /// A log file cannot be opened.
    #[error("cannot open the log file `{path}`", path = .path.display())]
    File {
        /// The path of the log file.
        path: PathBuf,
        /// The kernel's error for the system call.
        source: io::Error,
    },
    /// No pipe can be made for a worker's output.
    #[error("cannot make a pipe for the output of a worker")]
    Channel {
        /// The kernel's error for the system call.
        source: Errno,
    },
    /// The thread that copies the workers' output cannot be started.
    #[error("cannot start copying the output of the workers")]
    Pump {
        /// The kernel's error for the system call.
        source: io::Error,
    },
}

impl LogError {
    /// Advice for the user, one line.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        let errno = match self {
            Self::Folder { source, .. } | Self::File { source, .. } | Self::Pump { source } => {
                source.raw_os_error().map(Errno::from_raw)
            }
            Self::Channel { source } => Some(*source),
        };
        match (self, errno) {
            (_, Some(Errno::EMFILE | Errno::ENFILE)) => "raise the limit of open files (`ulimit -n`)",
            (Self::Folder { .. }, Some(Errno::ENOTDIR)) => {
                "name a folder with `--log-dir`; it is made if it is missing"
            }
            (_, Some(Errno::ENOSPC | Errno::EDQUOT)) => "make room, or choose another place with `--log-dir`",
            (Self::Folder { .. } | Self::File { .. }, _) => {
                "choose a folder that can be written with `--log-dir`, or none with `--log-dir /dev/null`"
            }
            (Self::Channel { .. } | Self::Pump { .. }, _) => {
                "raise the limits of this user or container: processes and threads (`ulimit -u`, `--pids-limit`), memory"
            }
        }
    }
}

/// A loss that is not an error: reported under `-v`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogNote {
    /// There is no log tree, and no error file either.
    #[error("no log folder and no error files: cannot make a folder in `{path}`: {source}", path = .path.display())]
    NoTree {
        /// The path of the temporary folder.
        path: PathBuf,
        /// The kernel's error for the system call.
        source: io::Error,
    },
    /// Workers write to pipes although we have a terminal.
    #[error("the workers see no terminal: cannot make a pseudo-terminal: {source}")]
    NoPseudoTerminal {
        /// The kernel's error for the system call.
        source: io::Error,
    },
}

/// The worker's end of one of its streams.
#[derive(Debug)]
pub enum ChildEnd {
    /// The worker inherits the launcher's stream.
    Inherit,
    /// This descriptor, which closes on exec under its own number. The spawner drops it when the worker has it:
    /// as long as we hold it, the stream does not end.
    Fd(OwnedFd),
}

/// The worker's ends of its output streams.
#[derive(Debug)]
pub struct WorkerStdio {
    /// The worker's end of standard output.
    pub stdout: ChildEnd,
    /// The worker's end of standard error.
    pub stderr: ChildEnd,
}

/// The workers' output of one job: log tree, pumps and last lines.
#[derive(Debug)]
pub struct Logs {
    console: Console,
    pseudo_terminals: PseudoTerminals,
    stdout: Option<PumpHandle>,
    /// Unused when both outputs are the same file.
    stderr: Option<PumpHandle>,
    workers: HashMap<WorkerId, WorkerTail>,
    filters: Filters,
    files: LogFiles,
    calls: FileCalls,
    file_read: FileRead,
    notes: Vec<LogNote>,
}

/// Log files that are open before their worker starts.
#[derive(Debug, Default)]
pub(crate) struct LogFiles(HashMap<PathBuf, Result<File, LogError>>);

impl LogFiles {
    /// Opens the files of all routes and filters; an error is kept for the worker with that file. A file system may hang
    /// here.
    #[must_use]
    pub(crate) fn open<'a>(
        routes: impl Iterator<Item = &'a Routes>,
        attempt: Option<&Attempt>,
        filters: &LineFilters,
    ) -> Self {
        let workers = routes.flat_map(|routes| [&routes.stdout, &routes.stderr]);
        let workers = workers.filter_map(Route::file).map(Path::to_owned);
        let filters = filter_files(attempt, filters).into_iter().flatten();
        Self(workers.chain(filters).map(|path| (path.clone(), create(&path))).collect())
    }

    fn take(&mut self, path: &Path) -> Result<File, LogError> {
        // Several workers may have `/dev/null`.
        self.0.remove(path).unwrap_or_else(|| create(path))
    }
}

/// The files of filtered standard output and standard error, where there are any.
fn filter_files(attempt: Option<&Attempt>, wanted: &LineFilters) -> [Option<PathBuf>; 2] {
    let path = |texts: &[String], name| {
        attempt.filter(|_| !texts.is_empty()).map(|attempt| attempt.folder().join(name))
    };
    [path(&wanted.stdout, "filtered_stdout.log"), path(&wanted.stderr, "filtered_stderr.log")]
}

/// Where tee'd lines of the generation that was started last are copied to.
#[derive(Debug, Default)]
struct Filters {
    stdout: Option<Arc<Filter>>,
    stderr: Option<Arc<Filter>>,
}

/// Whether a worker may see a terminal where we have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PseudoTerminals {
    Wanted,
    No,
}

/// Where the last lines of a worker are found.
#[derive(Debug, Clone, Default)]
struct WorkerTail {
    captured: Arc<Mutex<Tail>>,
    is_captured: bool,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
}

/// One stream, ready for both sides.
struct OpenStream {
    child: ChildEnd,
    source: Option<StreamSource>,
}

impl Logs {
    /// Starts nothing and opens nothing. Under the name torchrun a captured stream is never a terminal: there,
    /// it is a file.
    #[must_use]
    pub fn new(console: Console, cli_flavor: CliFlavor) -> Self {
        let pseudo_terminals = match cli_flavor {
            CliFlavor::Rankrun => PseudoTerminals::Wanted,
            CliFlavor::Torchrun => PseudoTerminals::No,
        };
        Self {
            console,
            pseudo_terminals,
            stdout: None,
            stderr: None,
            workers: HashMap::new(),
            filters: Filters::default(),
            files: LogFiles::default(),
            calls: FileCalls::default(),
            file_read: FileRead::default(),
            notes: Vec::new(),
        }
    }

    /// Lines of the workers that are opened from now on are copied to files of this attempt, which are made also
    /// when no line is. Without a folder there are none.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub(crate) fn open_line_filters(
        &mut self,
        attempt: Option<&Attempt>,
        wanted: &LineFilters,
    ) -> Result<(), LogError> {
        let [stdout, stderr] = filter_files(attempt, wanted);
        let mut filter = |texts: &[String], path: Option<PathBuf>| {
            let file = |path: PathBuf| Ok(Arc::new(Filter::new(texts, self.files.take(&path)?, path)));
            path.map(file).transpose()
        };
        self.filters =
            Filters { stdout: filter(&wanted.stdout, stdout)?, stderr: filter(&wanted.stderr, stderr)? };
        Ok(())
    }

    /// Calls on the log folder, which may be on a file system that does not answer.
    #[must_use]
    pub const fn calls(&self) -> &FileCalls {
        &self.calls
    }

    /// Sets the open files of the workers that start next.
    pub(crate) fn set_files(&mut self, files: LogFiles) {
        self.files = files;
        self.calls.retry();
    }

    /// Opens the streams of a worker that is about to be spawned.
    ///
    /// # Errors
    /// A log file cannot be opened, or no descriptor is left.
    pub fn open(&mut self, worker: WorkerId, routes: &Routes) -> Result<WorkerStdio, LogError> {
        // Reports are about the generation that ended last; older ones are not asked for any more.
        self.workers.retain(|old, _| old.generation.0 + 1 >= worker.generation.0);
        let file = |route: &Route| match route {
            Route::File(path) => Some(path.clone()),
            Route::Inherit | Route::Capture { .. } => None,
        };
        let captured = Arc::new(Mutex::new(Tail::default()));
        let stdout = self.open_stream(worker, OutputStream::Stdout, routes, &captured)?;
        let stderr = self.open_stream(worker, OutputStream::Stderr, routes, &captured)?;
        let is_captured = stdout.source.is_some() || stderr.source.is_some();
        for source in [stdout.source, stderr.source].into_iter().flatten() {
            self.pump_of(source.stream)?.send(PumpCommand::Open(source));
        }
        let (stdout_file, stderr_file) = (file(&routes.stdout), file(&routes.stderr));
        let tail = WorkerTail { captured, is_captured, stdout: stdout_file, stderr: stderr_file };
        self.workers.insert(worker, tail);
        Ok(WorkerStdio { stdout: stdout.child, stderr: stderr.child })
    }

    /// Copies what was captured from now on. Not part of [`Self::open`], since a thread can start when the
    /// workers already run.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn pump(&mut self) -> Result<(), LogError> {
        for (pump, stream) in
            [(&mut self.stdout, OutputStream::Stdout), (&mut self.stderr, OutputStream::Stderr)]
        {
            if let Some(pump) = pump {
                pump.start(self.console.output(stream)).map_err(|source| LogError::Pump { source })?;
            }
        }
        Ok(())
    }

    /// The last lines of a worker. Complete when the output of its generation was [drained](Drained).
    #[must_use]
    pub fn tail(&self, worker: WorkerId) -> Vec<String> {
        let Some(tail) = self.workers.get(&worker) else { return Vec::new() };
        let captured = tail.captured.lock().unwrap_or_else(PoisonError::into_inner).lines();
        let of_file = |path: &Option<PathBuf>| {
            let path = path.clone()?;
            let read = {
                let path = path.clone();
                move || read_end(&path).ok()
            };
            self.calls.run(&path, read).flatten()
        };
        let [stdout, stderr] = [&tail.stdout, &tail.stderr].map(|path| of_file(path).unwrap_or_default());
        tail::join_tails(captured, &stdout, &stderr)
    }

    /// [`Self::tail`], with all that the worker wrote before its end, unless the threads are held up for so long.
    #[must_use]
    pub(crate) fn tail_after_drain(&self, worker: WorkerId, limit: Duration) -> Vec<String> {
        if let Ok(read) = self.send_with_completion(|done| PumpCommand::CatchUp(worker.generation, done))
            && !read.is_complete()
        {
            let mut read = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
            // Whatever ends the wait, the lines that are there are taken.
            let _ = poll(&mut read, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO));
        }
        self.tail(worker)
    }

    /// All workers of the generation have been reaped: their streams end, even where something that they left
    /// behind still has them.
    ///
    /// # Errors
    /// No descriptor is left to wait with.
    pub(crate) fn generation_ended(&self, generation: Generation) -> Result<Drained, LogError> {
        self.send_with_completion(|done| PumpCommand::Ended(generation, done))
    }

    /// All workers of the job have been reaped: the threads end, and the console is written to directly again.
    ///
    /// # Errors
    /// No descriptor is left to wait with.
    pub fn finish(&mut self) -> Result<Drained, LogError> {
        let drained = self.send_with_completion(PumpCommand::Finish);
        (self.stdout, self.stderr) = (None, None);
        drained
    }

    /// Passes a new size of the launcher's terminal on.
    pub fn resize(&self) {
        for pump in self.pumps() {
            pump.send(PumpCommand::Resize);
        }
    }

    /// The notes about losses since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<LogNote> {
        std::mem::take(&mut self.notes)
    }

    fn send_with_completion(&self, command: impl Fn(Completion) -> PumpCommand) -> Result<Drained, LogError> {
        let (drained, promises) =
            wait_for_drain(self.pumps().count()).map_err(|source| LogError::Channel { source })?;
        for (pump, promise) in self.pumps().zip(promises) {
            pump.send(command(promise));
        }
        Ok(drained)
    }

    fn pumps(&self) -> impl Iterator<Item = &PumpHandle> {
        [&self.stdout, &self.stderr].into_iter().flatten()
    }

    fn pump_of(&mut self, stream: OutputStream) -> Result<&PumpHandle, LogError> {
        let shared =
            Arc::ptr_eq(self.console.output(OutputStream::Stdout), self.console.output(OutputStream::Stderr));
        let slot = match stream {
            OutputStream::Stderr if !shared => &mut self.stderr,
            OutputStream::Stdout | OutputStream::Stderr => &mut self.stdout,
        };
        match slot {
            Some(pump) => Ok(pump),
            None => Ok(slot.insert(PumpHandle::new().map_err(|source| LogError::Channel { source })?)),
        }
    }

    fn open_stream(
        &mut self,
        worker: WorkerId,
        stream: OutputStream,
        routes: &Routes,
        tail: &Arc<Mutex<Tail>>,
    ) -> Result<OpenStream, LogError> {
        match routes.of(stream) {
            Route::Inherit => Ok(OpenStream { child: ChildEnd::Inherit, source: None }),
            Route::File(path) => {
                Ok(OpenStream { child: ChildEnd::Fd(self.files.take(path)?.into()), source: None })
            }
            Route::Capture { file, prefix } => {
                let file = match file {
                    Some(path) => Some(LogFile { file: self.files.take(path)?, path: path.clone() }),
                    None => None,
                };
                let output = Arc::clone(self.console.output(stream));
                // Without a prefix, output to a file or a pipe keeps every byte.
                let has_label =
                    |label: &&RowLabel| prefix.is_some() || (label.is_shared && output.is_terminal());
                let label = routes.label.as_ref().filter(has_label).map(|label| &*label.text);
                let (channel, writer) = self.channel(&output, label, PipeSize::of(worker.local_rank))?;
                let filter = match stream {
                    OutputStream::Stdout => &self.filters.stdout,
                    OutputStream::Stderr => &self.filters.stderr,
                };
                let picker = match (filter, prefix) {
                    (Some(filter), Some(prefix)) => Some(LinePicker::new(Arc::clone(filter), prefix)),
                    _ => None,
                };
                let source = StreamSource {
                    channel,
                    generation: worker.generation,
                    stream,
                    prefix: prefix.clone().unwrap_or_default(),
                    label: label.map(str::to_owned),
                    can_prompt: routes.can_prompt,
                    file,
                    picker,
                    tail: Arc::clone(tail),
                };
                Ok(OpenStream { child: ChildEnd::Fd(writer), source: Some(source) })
            }
        }
    }

    /// A pseudo-terminal in place of a terminal, else a pipe.
    fn channel(
        &mut self,
        output: &Output,
        label: Option<&str>,
        size: PipeSize,
    ) -> Result<(Channel, OwnedFd), LogError> {
        if self.pseudo_terminals == PseudoTerminals::Wanted && output.is_terminal() {
            match channel::pseudo_terminal(output.size().map(|size| size_beside_label(size, label))) {
                Ok(channel) => return Ok(channel),
                Err(errno) => {
                    self.pseudo_terminals = PseudoTerminals::No;
                    self.notes.push(LogNote::NoPseudoTerminal { source: errno.into() });
                }
            }
        }
        channel::pipe(size).map_err(|source| LogError::Channel { source })
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        drop(self.finish());
    }
}

/// A log file, empty. A worker of an earlier generation may have put any kind of file in its place.
fn create(path: &Path) -> Result<File, LogError> {
    let mut options = OpenOptions::new();
    let file = regular_file::open_nonblocking(path, options.write(true).create(true).truncate(true));
    file.map_err(|source| LogError::File { path: path.to_owned(), source })
}

/// The last bytes of a file. The worker may have put any kind of file in its place.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = regular_file::open_to_read(path)?;
    if file.seek(SeekFrom::End(-FILE_TAIL)).is_err() {
        file.rewind()?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_TAIL.unsigned_abs()).read_to_end(&mut bytes)?;
    Ok(bytes)
}
