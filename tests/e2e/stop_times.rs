//! One stop story for every cause: the signal, the grace, SIGKILL by the grace + 0.1 s; the second Ctrl-C kills at once;
//! what a worker writes meanwhile is not lost.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use harness::{Job, Launch, Name, Process, field, is_rankrun, is_soak, print_notice};
use nix::sys::signal::Signal;

/// Far above any grace here, far below the 30 s that torchrun waits for a peer whatever it was told.
const PROMPT: Duration = Duration::from_secs(10);

/// Why workers are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The launcher gets it.
    Signal(Signal),
    /// Ctrl-C in the launcher's terminal.
    CtrlC,
    /// Rank 0 fails, and there is no restart.
    Failure,
    /// Rank 0 fails, and all start again.
    FailureBeforeRestart,
    /// The job takes longer than it may.
    TimeLimit,
    /// A worker has not joined the store in time.
    StartLimit,
}

const CAUSES: [Cause; 9] = [
    Cause::Signal(Signal::SIGTERM),
    Cause::Signal(Signal::SIGINT),
    Cause::Signal(Signal::SIGHUP),
    Cause::Signal(Signal::SIGQUIT),
    Cause::CtrlC,
    Cause::Failure,
    Cause::FailureBeforeRestart,
    Cause::TimeLimit,
    Cause::StartLimit,
];

impl Cause {
    /// A job of two: rank 1 does these steps, and rank 0 waits for a line and fails.
    fn launch(self, name: Name, grace: u32) -> Launch {
        let launch = Launch::standalone(name, 2).args(["--shutdown-timeout", &grace.to_string()]);
        match self {
            Self::CtrlC => launch.terminal(),
            Self::Signal(_) | Self::Failure => launch.stdin_open(),
            Self::FailureBeforeRestart => launch.args(["--max-restarts", "1"]).stdin_open(),
            Self::TimeLimit => launch.env("RANKRUN_TIME_LIMIT", "1").stdin_open(),
            Self::StartLimit => launch.env("RANKRUN_START_TIMEOUT", "1").stdin_open(),
        }
    }

    /// Brings it about, or waits until it has come.
    #[track_caller]
    fn trigger(self, job: &mut Job) {
        match self {
            Self::Signal(signal) => job.signal(signal),
            Self::CtrlC => job.type_text("\u{3}"),
            Self::Failure | Self::FailureBeforeRestart => job.type_text("\n"),
            Self::TimeLimit => drop(job.wait_for_line("the time limit of 1s is over")),
            Self::StartLimit => drop(job.wait_for_line("not joined the store within 1 s")),
        }
    }

    /// What rank 1 is asked to stop by.
    const fn stop_signal(self) -> Signal {
        match self {
            Self::Signal(signal) => signal,
            Self::CtrlC => Signal::SIGINT,
            Self::Failure | Self::FailureBeforeRestart | Self::TimeLimit | Self::StartLimit => {
                Signal::SIGTERM
            }
        }
    }

    /// The exit status, where rank 0 fails with 4 and the restarted generation ends well.
    const fn exit_code(self, name: Name) -> i32 {
        name.code(match self {
            Self::Signal(signal) => 128 + signal as i32,
            Self::CtrlC => 130,
            Self::Failure => 4,
            Self::FailureBeforeRestart => return 0,
            Self::TimeLimit => 124,
            Self::StartLimit => 1,
        })
    }
}

/// Rank 0 ends by itself when a line comes, or stops at once; rank 1 does the steps, in its first generation.
fn start_job(cause: Cause, name: Name, grace: u32, steps: &[&str]) -> Job {
    let first = ["attempt0:rank0:join", "attempt0:alive", "attempt0:rank0:read", "attempt0:rank0:exit=4"];
    let second = steps.iter().map(|step| format!("attempt0:{step}"));
    let steps = ["attempt0:rank1:catch".to_owned()].into_iter().chain(first.map(str::to_owned)).chain(second);
    let job = cause.launch(name, grace).worker(steps).start();
    job.wait_for_lines("alive rank=", 2);
    job
}

/// From the cause to the death of the worker that ignores everything, and to the end of the launcher, or to the next
/// generation.
#[derive(Debug, Clone, Copy)]
struct Times {
    killed: Duration,
    over: Duration,
}

#[track_caller]
fn time_stop(cause: Cause, name: Name, grace: u32) -> Times {
    let mut job = start_job(cause, name, grace, &["forever"]);
    let line = job.wait_for_line("alive rank=1");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a worker says its pid");
    let stubborn = Process::open(pid).expect("it lives");
    let before = job.elapsed();
    cause.trigger(&mut job);
    // Where the launcher says it, the time runs from there.
    let struck = if matches!(cause, Cause::TimeLimit | Cause::StartLimit) { job.elapsed() } else { before };
    job.expect_processes_gone(&[stubborn], PROMPT);
    let killed = job.elapsed() - struck;
    let outcome = job.wait();
    outcome.expect_exit_code(cause.exit_code(name));
    Times { killed, over: outcome.took - struck }
}

/// After a success with a leftover process that ignores every signal.
#[track_caller]
fn time_leftover_stop(name: Name, grace: u32) -> Times {
    let launch = Launch::standalone(name, 1).args(["--shutdown-timeout", &grace.to_string()]);
    let launch = launch.env("RANKRUN_LEFTOVER_GRACE", "0").stdin_open();
    let mut job = launch.worker(["helper=daemon", "read"]).start();
    let line = job.wait_for_line("process=daemon");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("it says its pid");
    let stubborn = Process::open(pid).expect("it lives");
    job.type_text("\n");
    job.wait_for_line("still there: ending pid");
    let struck = job.elapsed();
    job.expect_processes_gone(&[stubborn], PROMPT);
    let killed = job.elapsed() - struck;
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    Times { killed, over: outcome.took - struck }
}

#[test]
fn worker_ignoring_signals_is_killed_after_grace_for_every_cause() {
    if !is_rankrun() {
        return;
    }
    let grace = if is_soak() { 2 } else { 1 };
    let causes = || CAUSES.into_iter().map(Some).chain([None]);
    let cases = || causes().flat_map(|cause| Name::both().iter().map(move |name| (cause, *name)));
    let time = move |(cause, name): (Option<Cause>, Name)| match cause {
        Some(cause) => time_stop(cause, name, grace),
        None => time_leftover_stop(name, grace),
    };
    // One after the other they are timed, all at once they are quick.
    let times: Vec<Times> = if is_soak() {
        cases().map(time).collect()
    } else {
        thread::scope(|scope| {
            let stops: Vec<_> = cases().map(|case| scope.spawn(move || time(case))).collect();
            stops.into_iter().map(|stop| stop.join().expect("the job was stopped")).collect()
        })
    };
    let mut table =
        format!("a grace of {grace} s, with a worker that ignores the signal: SIGKILL after, over after\n");
    let grace = Duration::from_secs(grace.into());
    for ((cause, name), times) in cases().zip(times) {
        let cause = cause.map_or_else(|| "Leftover".to_owned(), |cause| format!("{cause:?}"));
        let _ = writeln!(table, "{cause} {name:?}: {:.3?} {:.3?}", times.killed, times.over);
        // A line that says when the time begins is read later than it was written, the more so the busier the machine.
        let least = grace / 2;
        let most = if is_soak() { grace + Duration::from_millis(400) } else { PROMPT };
        assert!(least <= times.killed && times.killed < most, "{cause} under {name:?}: {times:?}");
        assert!(times.over < most, "{cause} under {name:?}: {times:?}");
    }
    if is_soak() {
        print_notice(&table);
    }
}

/// Within a grace of an hour.
#[test]
fn second_signal_kills_for_every_stop_cause() {
    if !is_rankrun() {
        return;
    }
    for (cause, name) in
        CAUSES.iter().flat_map(|cause| Name::for_shared_behaviour().iter().map(|name| (*cause, *name)))
    {
        let mut job = start_job(cause, name, 3_600, &["signal", "signal", "forever"]);
        cause.trigger(&mut job);
        job.wait_for_line(&format!("got {} rank=1", cause.stop_signal()));
        let interrupt = |job: &mut Job| match cause {
            Cause::CtrlC => job.type_text("\u{3}"),
            _ => job.signal(Signal::SIGINT),
        };
        if !matches!(cause, Cause::Signal(_) | Cause::CtrlC) {
            // The job was stopped for another reason: this is the first signal.
            interrupt(&mut job);
            job.wait_for_line("got SIGINT rank=1");
        }
        let signal_time = job.elapsed();
        interrupt(&mut job);
        let outcome = job.wait();
        assert!(!outcome.status.success(), "{outcome}");
        assert!(outcome.took - signal_time < PROMPT, "{cause:?} under {name:?}\n{outcome}");
        outcome.expect_absent("attempt=1");
    }
}

/// More than any pipe holds.
const BYTES: usize = 5_000_000;

#[test]
fn output_during_stop_is_not_lost() {
    if !is_rankrun() {
        return;
    }
    // A terminal changes what goes through it.
    for (at, cause) in CAUSES.into_iter().filter(|cause| *cause != Cause::CtrlC).enumerate() {
        let name = Name::both()[at % 2];
        let mut job =
            start_job(cause, name, 60, &["signal", &format!("blob={BYTES}"), "print=", "print=the end"]);
        cause.trigger(&mut job);
        let outcome = job.wait();
        let written = outcome.stdout_bytes().len();
        assert!(written > BYTES, "{cause:?} under {name:?}: {written} bytes\n{outcome}");
        outcome.expect_stdout("the end\n");
    }
}
