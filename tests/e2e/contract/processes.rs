//! Appendix A, "Processes and signals".

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Outcome, Process, Scratch, field, fixture, free_port, is_rankrun};
use nix::sys::signal::Signal;

use super::environment::two_workers_pair;
use super::pair::{Pair, status_and_out};
use super::report::{NO_TRACEBACK, failure_lines, report_lines};

/// Far above any grace that a row sets, far below torchrun's default of 30 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn own_session() {
    let lines = two_workers_pair().expect_equal(|outcome| {
        let leads = |line: &String| {
            let of = |key| field(line, key);
            of("pid") == of("group") && of("pid") == of("session")
        };
        outcome.lines_with("ids rank=").iter().map(leads).collect::<Vec<bool>>()
    });
    assert_eq!(lines, [true, true]);
}

#[test]
fn stdin_shared() {
    let pair = Pair::run_both(|name| {
        let mut job = Launch::standalone(name, 2).stdin_open().worker(["read"]).start();
        job.type_text("a\n");
        job.wait_for_line("text=<a>");
        job.type_text("b\n");
        job.wait()
    });
    // The first worker to come reads `a`.
    let (code, texts) = pair.expect_equal(|outcome| {
        let (code, lines) = status_and_out(outcome);
        let texts: BTreeSet<_> =
            lines.iter().filter_map(|line| field(line, "text")).map(str::to_owned).collect();
        (code, texts)
    });
    assert_eq!((code, texts), (Some(0), ["<a>", "<b>"].map(str::to_owned).into()));
}

#[test]
fn ok() {
    let pair = Pair::run_both(|name| Launch::standalone(name, 2).args(["--no-python", "true"]).run());
    assert_eq!(pair.expect_equal(status_and_out), (Some(0), Vec::new()));
}

/// A job with one worker that exits 3.
pub(super) fn exit_3_pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| Pair::run_both(|name| Launch::standalone(name, 1).shell("exit 3").run()))
}

fn status_and_report(outcome: &Outcome) -> (Option<i32>, Vec<String>) {
    (outcome.status.code(), report_lines(outcome))
}

#[test]
fn fail() {
    let (code, report) = exit_3_pair().expect_equal(status_and_report);
    assert_eq!(code, Some(1));
    let expected = failure_lines("3 (pid: PID) ", NO_TRACEBACK, 0);
    assert!(report.windows(expected.len()).any(|lines| lines == expected), "{report:#?}");
}

#[test]
fn fail_signal() {
    let pair = Pair::run_both(|name| Launch::standalone(name, 1).shell("kill -9 $$$$").run());
    let (code, report) = pair.expect_equal(status_and_report);
    assert_eq!(code, Some(1));
    let expected = failure_lines("-9 (pid: PID)  (SIGKILL)", "Signal 9 (SIGKILL) received by PID PID", 0);
    assert!(report.windows(expected.len()).any(|lines| lines == expected), "{report:#?}");
}

#[test]
fn fail_stops_peers() {
    let pair = Pair::run_both(|name| {
        let gate = Gate::closed();
        let steps =
            ["rank0:catch", "rank0:alive", &format!("rank1:{}", gate.step()), "rank1:exit=3", "signal"];
        let job = Launch::standalone(name, 2).worker(steps).start();
        job.wait_for_line("alive rank=0");
        gate.open(1);
        job.wait()
    });
    let (code, got, report) = pair.expect_equal(|outcome| {
        (outcome.status.code(), outcome.lines_with("got SIGTERM rank="), report_lines(outcome))
    });
    assert_eq!((code, got), (Some(1), vec!["got SIGTERM rank=0".to_owned()]));
    // A peer that ends well when it is stopped has not failed.
    assert!(report.contains(&"  <NO_OTHER_FAILURES>".to_owned()), "{report:#?}");
}

/// All that any row sends.
const SIGNALS: &str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1";

/// Ranks 0 and 1 end with the last step, once the launcher watches them: it has reaped a third that ended at once.
/// (A signal that reaches torchrun while it still starts its workers reaches none of them.)
#[track_caller]
fn start_watched_job(name: Name, options: &[&str], last: &str) -> Job {
    let launch = Launch::standalone(name, 3).args(options.iter().copied());
    let job = launch.worker([&format!("catch={SIGNALS}"), "alive", "rank2:exit=0", last]).start();
    let third = job.wait_for_lines("alive rank=", 3).into_iter().find(|line| line.contains("rank=2"));
    let pid = third.and_then(|line| field(&line, "pid")?.parse().ok()).expect("rank 2 said its pid");
    if let Some(third) = Process::open(pid) {
        assert!(third.reaped_within(STOP_TIMEOUT / 2), "rank 2 is still a zombie\n{job}");
    }
    job
}

/// Sends the signal to a launcher of two workers: both must get it, and the launcher must exit 1.
#[track_caller]
fn assert_signal_forwarded(signal: Signal, options: &[&str]) {
    let pair = Pair::run_both(|name| {
        let job = start_watched_job(name, options, &format!("signal={SIGNALS}"));
        job.signal(signal);
        job.wait()
    });
    let (code, got) = pair.expect_equal(|outcome| {
        let mut got = outcome.lines_with("got SIG");
        got.sort();
        (outcome.status.code(), got)
    });
    assert_eq!((code, got), (Some(1), vec![format!("got {signal} rank=0"), format!("got {signal} rank=1")]));
}

#[test]
fn term() {
    assert_signal_forwarded(Signal::SIGTERM, &[]);
}

#[test]
fn int() {
    assert_signal_forwarded(Signal::SIGINT, &[]);
}

#[test]
fn hup() {
    assert_signal_forwarded(Signal::SIGHUP, &[]);
}

#[test]
fn quit() {
    assert_signal_forwarded(Signal::SIGQUIT, &[]);
}

#[test]
fn usr1_listed() {
    assert_signal_forwarded(Signal::SIGUSR1, &["--signals-to-handle", "SIGTERM,SIGUSR1"]);
}

/// How long a job of stubborn workers lasts after SIGTERM, with this grace.
#[track_caller]
fn stop_with_grace(name: Name, grace: &str) -> (Outcome, Duration) {
    let job = start_watched_job(name, &["--shutdown-timeout", grace], "forever");
    let signal_time = job.elapsed();
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    let took = outcome.took - signal_time;
    assert!(took < STOP_TIMEOUT, "the kill came after {took:?}\n{outcome}");
    (outcome, took)
}

#[test]
fn grace() {
    let pair = Pair::run_both(|name| {
        let (outcome, took) = stop_with_grace(name, "3");
        assert!(took >= Duration::from_millis(2_950), "the grace was only {took:?}\n{outcome}");
        outcome
    });
    assert_eq!(pair.expect_equal(|outcome| outcome.status.code()), Some(1));
}

#[test]
fn grace_zero() {
    let pair = Pair::run_both(|name| stop_with_grace(name, "0").0);
    assert_eq!(pair.expect_equal(|outcome| outcome.status.code()), Some(1));
}

#[test]
fn grace_on_failure() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--shutdown-timeout", "1"]).stdin_open();
        let mut job =
            launch.worker(["rank0:catch", "rank0:alive", "rank0:forever", "read", "exit=3"]).start();
        job.wait_for_line("alive rank=0");
        let failure_time = job.elapsed();
        job.close_stdin();
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(3));
        assert!(outcome.took - failure_time < STOP_TIMEOUT, "{outcome}");
    }
}

#[test]
fn double_term() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        // The grace is longer than the test may last.
        let launch = Launch::standalone(*name, 2).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["catch", "alive", "signal", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGTERM);
        job.wait_for_lines("got SIGTERM", 2);
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(name.code(143));
    }
}

#[test]
fn kill_agent() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let job = Launch::standalone(*name, 2).worker(["catch", "alive", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGKILL);
        // `orphans` measures how long it takes.
        job.expect_no_processes_within(Duration::from_secs(10));
    }
}

#[test]
fn spawn_half() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        // Enough to begin, not enough for all.
        let launch = Launch::standalone(*name, 64).under(["sh", "-c", "ulimit -n 40; exec \"$@\"", "sh"]);
        let launch = launch.args(["--log-dir", &scratch.at("logs"), "-t", "3"]);
        let outcome = launch.worker([gate.step()]).run();
        outcome.expect_exit_code(1).expect_stderr("error:").expect_absent("panicked");
    }
}

#[test]
fn group_of_dead() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        for helper in ["plain", "daemon"] {
            let launch = Launch::standalone(*name, 1).stdin_open();
            let mut job = launch.worker([&format!("helper={helper}"), "read", "exit=3"]).start();
            let line = job.wait_for_line(&format!("process={helper}"));
            let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("the helper said its pid");
            let process = Process::open(pid).expect("the helper lives");
            job.close_stdin();
            job.expect_processes_gone(&[process], Duration::from_secs(30));
            job.wait().expect_exit_code(name.code(3));
        }
    }
}

#[test]
fn missing_program() {
    let pair = Pair::run_both(|name| Launch::standalone(name, 2).args(["--no-python", "/nonexistent"]).run());
    assert_eq!(pair.expect_equal(status_and_out), (Some(1), Vec::new()));
    for outcome in [&pair.rankrun, &pair.torchrun] {
        outcome.expect_stderr("/nonexistent");
    }
}

/// The `alive` lines without the pids.
fn alive_lines(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.lines_with("alive rank=");
    let mut alive: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split_once(" pid="))
        .map(|(attempt, _)| attempt.to_owned())
        .collect();
    alive.sort();
    alive
}

#[test]
fn restart() {
    let pair = Pair::run_both(|name| {
        let gate = Gate::closed();
        let launch = Launch::standalone(name, 2).args(["--max-restarts", "3", "-r", "2"]);
        let logs = launch.temporary().join("logs");
        let failure = format!("rank1:attempt<2:{}", gate.step());
        let steps = ["alive", &failure, "rank1:attempt<2:exit=4", "attempt<2:forever"];
        let job = launch.args(["--log-dir".into(), logs]).worker(steps).start();
        for attempt in 0..2 {
            job.wait_for_lines(&format!("attempt={attempt} pid="), 2);
            gate.open(1);
        }
        job.wait()
    });
    let observed = pair.expect_equal(|outcome| {
        let runs = fs::read_dir(outcome.temporary().join("logs")).expect("the log folder exists");
        let runs: Vec<_> = runs.map(|run| run.expect("it can be listed").path()).collect();
        let attempts = runs.iter().flat_map(|run| fs::read_dir(run).expect("it is a folder"));
        let attempts = attempts.map(|attempt| attempt.expect("it can be listed").file_name());
        let attempts: BTreeSet<String> = attempts.map(|name| name.to_string_lossy().into_owned()).collect();
        (outcome.status.code(), alive_lines(outcome), runs.len(), attempts)
    });
    let all =
        [0, 1].map(|rank| [0, 1, 2].map(|attempt| format!("alive rank={rank} attempt={attempt}"))).concat();
    let attempts = [0, 1, 2].map(|attempt| format!("attempt_{attempt}"));
    assert_eq!(observed, (Some(0), all, 1, attempts.into()));
}

#[test]
fn restart_exhausted() {
    let pair = Pair::run_both(|name| {
        Launch::standalone(name, 1).args(["--max-restarts", "1"]).worker(["alive", "exit=4"]).run()
    });
    let (code, alive, report) =
        pair.expect_equal(|outcome| (outcome.status.code(), alive_lines(outcome), report_lines(outcome)));
    assert_eq!(
        (code, alive),
        (Some(1), vec!["alive rank=0 attempt=0".into(), "alive rank=0 attempt=1".into()])
    );
    assert!(report.contains(&"  exitcode  : 4 (pid: PID) ".to_owned()), "{report:#?}");
}

#[test]
fn state_d() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "2");
        let launch = launch.args(["--shutdown-timeout", "1", "--max-restarts", "3", "--no-python"]);
        // Rank 0 of them.
        let outcome = launch.args([fixture("dstate").into_os_string(), "0".into()]).run();
        outcome.expect_exit_code(1).expect_stderr("error: rank 0 failed first: stuck in the kernel");
        assert!(outcome.took >= Duration::from_secs(2), "it was stopped too early\n{outcome}");
        assert!(outcome.took < STOP_TIMEOUT, "it was stopped too late\n{outcome}");
    }
}

/// Waits until a listener accepts there.
#[track_caller]
fn wait_for_listener(job: &Job, endpoint: &str) {
    while TcpStream::connect(endpoint).is_err() {
        assert!(job.elapsed() < Duration::from_secs(60), "no listener at {endpoint}\n{job}");
        std::thread::yield_now();
    }
}

#[test]
fn term_early() {
    let pair = Pair::run_both(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let launch = Launch::new(name).args(["--nnodes", "2", "--rdzv-backend", "c10d"]);
        let job = launch.args(["--rdzv-endpoint", &endpoint]).worker(["print=started"]).start();
        wait_for_listener(&job, &endpoint);
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_absent("started").expect_signal(Signal::SIGTERM);
        outcome
    });
    pair.expect_equal(|outcome| outcome.status.code());
}
