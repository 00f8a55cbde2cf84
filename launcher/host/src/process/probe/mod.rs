//! Runs probes: child processes that inspect the hardware, with a deadline.
//!
//! A probe is this very program, started with [`PROBE_ARGUMENT`]: [`run_probe`] is its whole life. The launcher asks by
//! [`discover`] and [`cuda_order`] before it splits into guard and agent; the agent asks by [`Probes`] from its own
//! loop. In both cases the caller is the main thread: the probes die with the thread that forked them.
#![expect(unsafe_code, reason = "`_exit` ends a probe without the exit handlers of its libraries")]
#![expect(
    clippy::disallowed_methods,
    reason = "the blocking wait has a clock, a probe inherits our environment"
)]

mod run;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::{self, PanicHookInfo};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rankrun_contract::env::KEEP;
use rankrun_core::posix::Pid;

use crate::device_probe::{self, Answer, PROBE_ARGUMENT, Probe, merge};
use crate::process::signal::{SignalInbox, raise_with_default_action};
use rankrun_core::device::reading::{DeviceReading, ReadingProblem};
use rankrun_core::device::{CudaOrder, DeviceType, Machine, ProbeProblem, ProbeProblemKind, ProbeScope};
use rankrun_core::exit_code::{USAGE, code_of_signal};
use rankrun_core::posix::Exit;
use rankrun_core::worker_command::WorkerCommand;

use run::GIVE_UP_AFTER_KILL;
pub use run::{ProbeFailed, ProbeRun};

/// Our own program, also where its file was replaced or deleted since we were started.
const OWN_PROGRAM: &CStr = c"/proc/self/exe";
/// A longer wait is announced to the user.
const WAIT_NOTICE_DELAY: Duration = Duration::from_secs(2);
/// The interval of checks for the end of a probe, where the kernel does not report it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A panic of Rust's own ends a process with this.
const PANIC_EXIT_CODE: u8 = 101;
/// Device types that only the kernel's probe finds.
const KERNEL_ONLY: [DeviceType; 4] = [DeviceType::Rocm, DeviceType::Xpu, DeviceType::Hpu, DeviceType::Npu];

/// Announces a wait: its object, and its longest duration.
pub type TellOfWait = fn(&str, Duration);

/// The accelerators; whatever goes wrong is in [`Machine::troubles`].
///
/// Blocks for `limit` at most, and a little longer where a probe cannot be killed.
#[must_use]
pub fn discover(ask: ProbeScope, limit: Duration, tell_of_wait: TellOfWait) -> Machine {
    let mut probes = Probes::discovery(ask, limit, Instant::now());
    wait_for_all(&mut probes, limit, tell_of_wait);
    probes.into_machine()
}

/// The CUDA driver's own order of its devices.
///
/// # Errors
/// The reason why there is no answer, in words.
pub fn cuda_order(limit: Duration, tell_of_wait: TellOfWait) -> CudaOrder {
    let mut probes = Probes::start(&[Probe::CudaOrder], limit, Instant::now());
    wait_for_all(&mut probes, limit, tell_of_wait);
    probes.into_cuda_order()
}

/// Probes that run at the same time. Dropping them kills the unanswered ones and waits briefly for their ends: a
/// zombie would count as a child from before the job.
#[derive(Debug, Default)]
pub struct Probes {
    probes: Vec<(Probe, ProbeProgress)>,
}

/// How far one of them is.
#[derive(Debug)]
enum ProbeProgress {
    Running(ProbeRun),
    Answered(Result<Answer, ProbeFailed>),
}

impl Probes {
    /// Starts a probe for each question; a probe that cannot be started has failed.
    #[must_use]
    pub fn start(questions: &[Probe], limit: Duration, now: Instant) -> Self {
        let start = |probe: &Probe| {
            let run = probe_command(probe).and_then(|command| ProbeRun::start(&command, limit, now));
            let progress = match run {
                Ok(run) => ProbeProgress::Running(run),
                Err(error) => ProbeProgress::Answered(Err(ProbeFailed::not_started(&error))),
            };
            (probe.clone(), progress)
        };
        Self { probes: questions.iter().map(start).collect() }
    }

    /// Everything that there is to ask about the accelerators.
    #[must_use]
    pub fn discovery(ask: ProbeScope, limit: Duration, now: Instant) -> Self {
        Self::start(&[Probe::Nvidia(ask), Probe::Kernel(ask)], limit, now)
    }

    /// The descriptors to poll before the next [`Self::advance`].
    pub fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.running().flat_map(ProbeRun::as_fds)
    }

    /// When [`Self::advance`] has something to do, if nothing becomes readable before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.running().filter_map(ProbeRun::deadline).min()
    }

    /// Records that another part of the agent has reaped this child; true if it was one of the probes.
    pub(crate) fn on_reaped(&mut self, pid: Pid, exit: Exit) -> bool {
        self.running_mut().map(|run| run.on_reaped(pid, exit)).fold(false, |one, other| one | other)
    }

    /// Handles the events so far; `true` once every question has its answer.
    pub fn advance(&mut self, now: Instant) -> bool {
        for (_, progress) in &mut self.probes {
            if let ProbeProgress::Running(run) = progress
                && let Some(answer) = run.advance(now)
            {
                *progress = ProbeProgress::Answered(answer);
            }
        }
        self.running().next().is_none()
    }

    /// The sources without an answer so far, in words.
    #[must_use]
    pub fn waiting_for(&self) -> String {
        let waiting =
            self.probes.iter().filter(|(_, progress)| matches!(progress, ProbeProgress::Running(_)));
        let sources: Vec<&str> = waiting.map(|(probe, _)| source(probe)).collect();
        sources.join(" and ")
    }

    /// The machine, merged from the probes that returned one.
    #[must_use]
    pub fn into_machine(self) -> Machine {
        let (mut nvidia, mut kernel) = (Machine::default(), Machine::default());
        for (probe, answer) in self.into_answers() {
            let machine = match answer {
                Ok(Answer::Machine(machine)) => machine,
                Ok(Answer::CudaOrder(_) | Answer::Readings(_) | Answer::Power(_)) => {
                    failed_probe_machine(&probe, &ProbeFailed::unreadable_answer("another question"))
                }
                Err(failed) => failed_probe_machine(&probe, &failed),
            };
            match probe {
                Probe::Nvidia(_) => nvidia = machine,
                Probe::Kernel(_) => kernel = machine,
                Probe::CudaOrder | Probe::Readings(_) | Probe::Power(_) => {}
            }
        }
        merge::merge(nvidia, kernel)
    }

    /// The answer of [`Probe::CudaOrder`], if it was the only probe.
    ///
    /// # Errors
    /// The reason why there is no answer, in words.
    pub(crate) fn into_cuda_order(self) -> CudaOrder {
        match self.into_answers().next() {
            Some((_, Ok(Answer::CudaOrder(order)))) => order,
            Some((_, Err(failed))) => Err(failed.to_string()),
            Some((_, Ok(Answer::Machine(_) | Answer::Readings(_) | Answer::Power(_)))) | None => {
                Err(ProbeFailed::unreadable_answer("another question").to_string())
            }
        }
    }

    /// The answer of [`Probe::Readings`], if it was the only probe.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub(crate) fn into_readings(self) -> Result<Vec<DeviceReading>, ReadingProblem> {
        let problem = |why| ReadingProblem { why, is_unkillable: false };
        match self.into_answers().next() {
            Some((_, Ok(Answer::Readings(readings)))) => readings.map_err(problem),
            Some((probe, Err(failed))) => Err(ReadingProblem {
                why: format!("{}: {failed}", source(&probe)),
                is_unkillable: matches!(failed, ProbeFailed::Unkillable { .. }),
            }),
            Some((_, Ok(Answer::Machine(_) | Answer::CudaOrder(_) | Answer::Power(_)))) | None => {
                Err(problem(ProbeFailed::unreadable_answer("another question").to_string()))
            }
        }
    }

    /// Until one of these is readable, or `left` is over; less where the end of a probe is not heard.
    fn wait_for_events<'fd>(&self, remaining: Duration, fds: impl Iterator<Item = BorrowedFd<'fd>>) {
        let unheard = self.running().any(ProbeRun::has_no_pidfd);
        let remaining = if unheard { remaining.min(POLL_INTERVAL) } else { remaining };
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Rounded up: a millisecond too early would be a useless turn.
        let timeout = PollTimeout::try_from(remaining + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout).is_err() {
            // Interrupted, or without memory: the next check is cheap.
            std::thread::yield_now();
        }
    }

    fn running(&self) -> impl Iterator<Item = &ProbeRun> {
        self.probes.iter().filter_map(|(_, progress)| match progress {
            ProbeProgress::Running(run) => Some(run),
            ProbeProgress::Answered(_) => None,
        })
    }

    fn running_mut(&mut self) -> impl Iterator<Item = &mut ProbeRun> {
        self.probes.iter_mut().filter_map(|(_, progress)| match progress {
            ProbeProgress::Running(run) => Some(run),
            ProbeProgress::Answered(_) => None,
        })
    }

    fn into_answers(mut self) -> impl Iterator<Item = (Probe, Result<Answer, ProbeFailed>)> {
        std::mem::take(&mut self.probes).into_iter().filter_map(|(probe, progress)| match progress {
            ProbeProgress::Answered(answer) => Some((probe, answer)),
            ProbeProgress::Running(_) => None,
        })
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for run in self.running_mut() {
            // A reaped process has no group any more.
            if !run.reap() {
                run.kill();
            }
        }
        // One wait for all, however many there are.
        let until = Instant::now() + GIVE_UP_AFTER_KILL;
        loop {
            self.probes.retain_mut(|(_, progress)| match progress {
                ProbeProgress::Running(run) => !run.reap(),
                ProbeProgress::Answered(_) => false,
            });
            let remaining = until.saturating_duration_since(Instant::now());
            if self.probes.is_empty() || remaining.is_zero() {
                return;
            }
            self.wait_for_events(remaining, self.running().filter_map(ProbeRun::exit_fd));
        }
    }
}

/// The source that a probe queries.
const fn source(probe: &Probe) -> &'static str {
    match probe {
        Probe::Nvidia(_) | Probe::Readings(_) | Probe::Power(_) => "NVML",
        Probe::Kernel(_) => "the kernel's view of the devices",
        Probe::CudaOrder => "the CUDA driver",
    }
}

/// The snapshot of a probe that gave none.
fn failed_probe_machine(probe: &Probe, failed: &ProbeFailed) -> Machine {
    let kinds: &[DeviceType] = match probe {
        Probe::Nvidia(_) | Probe::CudaOrder | Probe::Readings(_) | Probe::Power(_) => &[DeviceType::Cuda],
        Probe::Kernel(_) => &KERNEL_ONLY,
    };
    let what: ProbeProblemKind = failed.to_problem_kind();
    let problem = |&kind| ProbeProblem { kind, source: source(probe).to_owned(), what: what.clone() };
    Machine { troubles: kinds.iter().map(problem).collect(), ..Machine::default() }
}

/// Waits until all have answered or are given up.
fn wait_for_all(probes: &mut Probes, limit: Duration, tell_of_wait: TellOfWait) {
    // Without it a signal is read when the guard opens its own.
    let inbox = SignalInbox::open_for_early_signals().ok().flatten();
    let mut say_at = Some(Instant::now() + WAIT_NOTICE_DELAY);
    loop {
        if let Some(signal) = inbox.as_ref().and_then(stop_signal) {
            drop(std::mem::take(probes));
            exit_probe_by_signal(signal);
        }
        let now = Instant::now();
        if probes.advance(now) {
            return;
        }
        if say_at.take_if(|say_at| *say_at <= now).is_some() {
            tell_of_wait(&probes.waiting_for(), limit);
        }
        let until = probes.deadline().into_iter().chain(say_at).min();
        let remaining = until.map_or(POLL_INTERVAL, |until| until.saturating_duration_since(now));
        probes.wait_for_events(remaining, probes.as_fds().chain(inbox.as_ref().map(AsFd::as_fd)));
    }
}

/// A signal that is to stop the launch, as far as it would not have ended this process by itself.
fn stop_signal(inbox: &SignalInbox) -> Option<i32> {
    std::iter::from_fn(|| inbox.next().ok().flatten())
        .find(|number| ![libc::SIGCHLD, libc::SIGWINCH].contains(number))
}

/// Ends this process as the signal would have, were it not PID 1.
#[expect(clippy::exit, reason = "the query of the devices has nothing to clean up, and nothing is started")]
fn exit_probe_by_signal(signal: i32) -> ! {
    raise_with_default_action(signal);
    std::process::exit(code_of_signal(signal).into())
}

fn program_name() -> OsString {
    std::env::args_os().next().unwrap_or_else(|| "rankrun".into())
}

/// This program under its own name, as the probe of one question. The environment is kept, since libraries are found
/// through it, except for the question with an answer that depends on it.
pub(crate) fn probe_command(probe: &Probe) -> io::Result<WorkerCommand> {
    let question = serde_json::to_string(probe)?;
    let order = match probe {
        Probe::CudaOrder => Some(c"CUDA_DEVICE_ORDER=FASTEST_FIRST"),
        // For the CUDA driver, in case NVML is missing.
        Probe::Nvidia(_) => Some(c"CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        Probe::Kernel(_) | Probe::Readings(_) | Probe::Power(_) => None,
    };
    let is_changed =
        |name: &OsStr| order.is_some() && (name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_DEVICE_ORDER");
    let mut envp = std::env::vars_os()
        .filter(|(name, _)| !is_changed(name))
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<Vec<_>, _>>()?;
    envp.extend(order.map(ToOwned::to_owned));
    // One that hangs in a driver while the workers end is not what they have left behind.
    envp.push(CString::new(format!("{KEEP}=1"))?);
    own_command(&format!("{PROBE_ARGUMENT}{question}"), envp)
}

/// The question, if this word makes the process a probe; the first on its command line.
#[must_use]
pub fn parse_probe_argument(argument: &OsStr) -> Option<&[u8]> {
    argument.as_bytes().strip_prefix(PROBE_ARGUMENT.as_bytes())
}

/// The main function of a probe: inspects, writes the answer to standard output, and ends.
///
/// Returns only without an answer: with 2 for a question that cannot be read, and else as a panic does.
#[must_use]
pub fn run_probe(question: &[u8]) -> ExitCode {
    let probe: Probe = match serde_json::from_slice(question) {
        Ok(probe) => probe,
        Err(error) => {
            write_stderr_line(&format!("`{}` is not a question: {error}", String::from_utf8_lossy(question)));
            return ExitCode::from(USAGE);
        }
    };
    become_probe(c"rankrun-probe");
    let answered = panic::catch_unwind(|| serde_json::to_vec(&device_probe::run_probe(probe)));
    let Ok(answer) = answered else { return ExitCode::from(PANIC_EXIT_CODE) };
    let mut stdout = io::stdout();
    let written = answer.map_err(io::Error::from).and_then(|answer| {
        stdout.write_all(&answer)?;
        stdout.flush()
    });
    if let Err(error) = written {
        write_stderr_line(&format!("the answer cannot be written: {error}"));
        return ExitCode::from(PANIC_EXIT_CODE);
    }
    // SAFETY: ends the process. What a vendor's library wants to do at the end may hang or crash, and the answer is
    // out.
    unsafe { libc::_exit(0) }
}

/// Makes this process one that may crash: it has this name, leaves no core, and says what it panics at in one line.
pub(crate) fn become_probe(name: &CStr) {
    let _ = nix::sys::prctl::set_name(name);
    // The core of a crashed library is useless here, and writing it may take long.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_CORE) {
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
    }
    panic::set_hook(Box::new(|panicked| write_stderr_line(&panic_line(panicked))));
}

/// This program itself, with this first argument and environment.
pub(crate) fn own_command(argument: &str, envp: Vec<CString>) -> io::Result<WorkerCommand> {
    let argv = vec![CString::new(program_name().into_vec())?, CString::new(argument)?];
    Ok(WorkerCommand { path: OWN_PROGRAM.to_owned(), argv, envp, cpus: None, names_tracer: false })
}

fn panic_line(panicked: &PanicHookInfo<'_>) -> String {
    let place = panicked.location().map(ToString::to_string).unwrap_or_default();
    let what = panicked.payload_as_str().unwrap_or("a panic");
    format!("{place}: {what}").replace('\n', " ")
}

/// To the launcher that started this probe: it quotes the last line.
fn write_stderr_line(line: &str) {
    let _ = writeln!(io::stderr(), "rankrun: {line}");
}

#[cfg(test)]
mod tests;
