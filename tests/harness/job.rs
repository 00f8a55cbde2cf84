//! A launcher that runs.
#![expect(clippy::disallowed_methods, reason = "a wait reads the clock")]

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fork_server::reap_forked;
use crate::outcome::Outcome;
use crate::place::Scratch;
use crate::processes::{self, Process};
use crate::screen::Size;
use crate::transcript::{Transcript, lines_of};

/// How long whatever the job left may take to vanish once the launcher has ended.
const LEFT_LIMIT: Duration = Duration::from_secs(5);

/// Where the test types: a pipe, or the terminal.
#[derive(Debug)]
pub(crate) struct Input(File);

impl From<OwnedFd> for Input {
    fn from(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }
}

/// The process that the test started.
#[derive(Debug)]
pub(crate) enum StartedProcess {
    Spawned(Child),
    /// PyTorch's torchrun, a child of the fork server.
    Forked(i32),
}

impl StartedProcess {
    fn pid(&self) -> i32 {
        match self {
            Self::Spawned(child) => i32::try_from(child.id()).expect("a pid is an i32"),
            Self::Forked(pid) => *pid,
        }
    }

    /// The status of a process that has ended.
    fn reap(&mut self) -> ExitStatus {
        match self {
            Self::Spawned(child) => child.wait().expect("our child can be waited for"),
            Self::Forked(pid) => reap_forked(*pid),
        }
    }
}

/// A running launcher. Dropping it kills every process of the job.
#[derive(Debug)]
pub struct Job {
    /// Nothing once it is reaped.
    process: Option<StartedProcess>,
    pid: i32,
    handle: OwnedFd,
    transcript: Arc<Transcript>,
    input: Option<Input>,
    mark: String,
    started: Instant,
    ends: Instant,
    is_reference: bool,
    scratch: Option<Scratch>,
}

/// What a launch hands to its job.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) process: StartedProcess,
    pub(crate) transcript: Arc<Transcript>,
    pub(crate) input: Option<Input>,
    /// `NAME=value`, in the environment of every process of the job.
    pub(crate) mark: String,
    pub(crate) started: Instant,
    pub(crate) limit: Duration,
    /// Whether this is PyTorch's torchrun.
    pub(crate) is_reference: bool,
    pub(crate) scratch: Scratch,
}

impl Job {
    pub(crate) fn new(start: Start) -> Self {
        let Start { process, transcript, input, mark, started, limit, is_reference, scratch } = start;
        let pid = process.pid();
        let handle = processes::pidfd_open(pid).expect("an unreaped child has a pidfd");
        let (ends, scratch) = (started + limit, Some(scratch));
        let process = Some(process);
        Self { process, pid, handle, transcript, input, mark, started, ends, is_reference, scratch }
    }

    /// The process that the test started: the guard.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// The only child of a process.
    ///
    /// # Panics
    /// When it has none, or several.
    #[must_use]
    #[track_caller]
    pub fn only_child_of(&self, pid: i32) -> i32 {
        let children = self.children_of(pid);
        assert_eq!(children.len(), 1, "process {pid} has the children {children:?}, not one\n{self}");
        children[0]
    }

    /// The children of a process, zombies among them.
    #[must_use]
    pub fn children_of(&self, pid: i32) -> Vec<i32> {
        processes::children_of(pid)
    }

    /// Waits until `count` whole lines contain the text, and gives these.
    ///
    /// # Panics
    /// When the output ends or the launch's deadline comes first.
    #[track_caller]
    pub fn wait_for_lines(&self, text: &str, count: usize) -> Vec<String> {
        let found = self.transcript.find(self.ends, |all| {
            let whole = |bytes: &[u8]| {
                let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                lines_of(&bytes[..end])
            };
            let lines = whole(&all.out).into_iter().chain(whole(&all.err));
            let found: Vec<_> = lines.filter(|line| line.contains(text)).collect();
            (found.len() >= count).then_some(found)
        });
        found.unwrap_or_else(|| panic!("never saw {count} lines with `{text}`\n{self}"))
    }

    /// Waits for one line that contains the text.
    #[track_caller]
    pub fn wait_for_line(&self, text: &str) -> String {
        self.wait_for_lines(text, 1).remove(0)
    }

    /// Waits until the text is there, also within an unfinished line.
    ///
    /// # Panics
    /// As [`Job::wait_for_lines`].
    #[track_caller]
    pub fn wait_for_text(&self, text: &str) {
        let found = self.transcript.find(self.ends, |all| {
            let found = all.lines().iter().any(|line| line.contains(text));
            found.then_some(())
        });
        assert!(found.is_some(), "never saw `{text}`\n{self}");
    }

    /// Waits until a person at a terminal of this size sees what `look` looks for.
    ///
    /// # Panics
    /// As [`Job::wait_for_lines`].
    #[track_caller]
    pub fn wait_for_screen(&self, size: Size, is_expected: impl Fn(&[String]) -> bool) -> Vec<String> {
        let found = self.transcript.find(self.ends, |all| {
            let rows = size.rows_after(&all.out);
            is_expected(&rows).then_some(rows)
        });
        found.unwrap_or_else(|| {
            let rows = size.rows_after(&self.transcript.snapshot().out).join("\n");
            panic!("this is not what was to be seen:\n{rows}\n{self}")
        })
    }

    /// Gives the launcher's terminal another size.
    ///
    /// # Panics
    /// When it has none.
    pub fn resize(&self, size: Size) {
        let input = self.input.as_ref().expect("the launch has a terminal");
        let size = crate::screen::window_size(size);
        rustix::termios::tcsetwinsize(&input.0, size).expect("the terminal takes a size");
    }

    /// Sends a signal to the process that the test started.
    ///
    /// # Panics
    /// When it has ended and was reaped.
    pub fn signal(&self, signal: Signal) {
        // By another process each time, as when a user types `kill`: the launcher counts signals of one sender once.
        let kill = Command::new("kill").args(["-s", &signal.as_str()[3..], &self.pid().to_string()]).status();
        assert!(kill.is_ok_and(|status| status.success()), "cannot send {signal} to {}", self.pid());
    }

    /// Sends a signal to any process of the job.
    pub fn signal_to(&self, pid: i32, signal: Signal) {
        signal_to(pid, signal);
    }

    /// Types into the launcher's standard input.
    ///
    /// # Panics
    /// When it has none, or has closed it.
    pub fn type_text(&mut self, text: &str) {
        let input = self.input.as_mut().expect("the launch has an open standard input");
        input.0.write_all(text.as_bytes()).expect("the launcher reads its standard input");
    }

    /// Closes the launcher's standard input.
    pub fn close_stdin(&mut self) {
        self.input = None;
    }

    /// Waits until something outside of the output holds: a file is there, a process is stopped.
    ///
    /// # Panics
    /// When the launch's deadline comes first.
    #[track_caller]
    pub fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        while !holds() {
            assert!(Instant::now() < self.ends, "never: {what}\n{self}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the first child of a process; nothing if that ends without one.
    ///
    /// # Panics
    /// When the launch's deadline comes first.
    #[must_use]
    #[track_caller]
    pub fn first_child_of(&self, parent: i32) -> Option<Process> {
        let parent = Process::open(parent)?;
        while parent.is_alive() {
            if let Some(child) = processes::first_child_of(parent.pid).and_then(Process::open) {
                return Some(child);
            }
            assert!(Instant::now() < self.ends, "process {} has no child\n{self}", parent.pid);
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// The living processes of the job.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        let mut running = processes::processes_with_mark(&self.mark);
        if let Some(StartedProcess::Forked(pid)) = self.process {
            // The kernel shows the environment of the fork server.
            running.extend(Process::open(pid).filter(Process::is_alive));
        }
        running
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Fails unless every process of the job is gone within the time; gives how long it took.
    ///
    /// # Panics
    /// With the list of those that are left.
    #[track_caller]
    pub fn expect_no_processes_within(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        if let Err(running) = processes::wait_for_none(&self.mark, start + limit) {
            panic!("left after {limit:?}: {}\n{self}", list_processes(&running));
        }
        start.elapsed()
    }

    /// Fails unless the process that the test started ends within the time; gives how long it took. The fixture
    /// `subreaper` ends when nothing below it lives any more.
    ///
    /// # Panics
    /// With the list of those below it, which are killed.
    #[track_caller]
    pub fn ends_within(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        if !processes::readable_by(&self.handle, start + limit) {
            let descendants = processes::descendants(self.pid());
            descendants.iter().for_each(|process| process.signal(Signal::SIGKILL));
            panic!("left after {limit:?}: {}\n{self}", list_processes(&descendants));
        }
        start.elapsed()
    }

    /// Fails unless these processes have ended within the time.
    ///
    /// # Panics
    /// With the one that lives.
    #[track_caller]
    pub fn expect_processes_gone(&self, gone: &[Process], limit: Duration) {
        let until = Instant::now() + limit;
        for process in gone {
            assert!(process.ended_by(until), "{} ({}) lives\n{self}", process.pid, process.command);
        }
    }

    /// Waits for the launcher's end; fails if it does not come within the launch's time, or if a process of the
    /// job is left then.
    ///
    /// # Panics
    /// See above.
    #[track_caller]
    pub fn wait(self) -> Outcome {
        self.wait_or_kill()
            .unwrap_or_else(|transcript| panic!("the launcher has not ended in time\n{transcript}"))
    }

    /// As [`Job::wait`], but a launcher that does not end in time is killed: then the error is all that it said.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Panics
    /// If a process of an ended job is left.
    #[track_caller]
    pub fn wait_or_kill(mut self) -> Result<Outcome, String> {
        if !processes::readable_by(&self.handle, self.ends) {
            return Err(format!("it runs {}\n{self}", list_processes(&self.processes())));
        }
        let status = self.process.take().expect("it is reaped once").reap();
        let took = self.started.elapsed();
        if self.is_reference {
            // torchrun leaves orphans, which is not under test.
            self.kill_all();
        }
        self.expect_no_processes_within(LEFT_LIMIT);
        let text = self.transcript.ended_by(Instant::now() + LEFT_LIMIT);
        Ok(Outcome::new(status, text, took, self.scratch.take()))
    }

    fn kill_all(&self) {
        let until = Instant::now() + LEFT_LIMIT;
        while Instant::now() < until {
            let running = self.processes();
            if running.is_empty() {
                break;
            }
            for process in &running {
                // It may have ended in between.
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
                let _ = process.ended_by(until);
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill_all();
        if let Some(mut process) = self.process.take() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            process.reap();
        }
    }
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "---- after {:?}", self.elapsed())?;
        self.transcript.snapshot().fmt(f)
    }
}

fn signal_to(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap_or_else(|error| panic!("cannot send {signal} to {pid}: {error}"));
}

fn list_processes(processes: &[Process]) -> String {
    let all: Vec<_> =
        processes.iter().map(|process| format!("{} `{}`", process.pid, process.command)).collect();
    all.join(", ")
}
