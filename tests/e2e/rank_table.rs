//! The table of ranks that follows a stop of a job in which a rank has not joined the store.

use std::fs;
use std::path::Path;

use harness::{
    Job, Launch, Name, Outcome, Scratch, field, fixture, free_port, is_rankrun, is_stopped, library,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The row of one rank, without the blanks in front of it.
#[track_caller]
fn rank_row(outcome: &Outcome, rank: &str) -> String {
    let start = format!("{rank} ");
    let lines = outcome.lines_with("alive, ").into_iter().chain(outcome.lines_with("exit code "));
    let mut rows = lines.map(|line| line.trim_start().to_owned()).filter(|line| line.starts_with(&start));
    rows.next().unwrap_or_else(|| panic!("rank {rank} has no row\n{outcome}"))
}

#[track_caller]
fn assert_row_has(outcome: &Outcome, rank: &str, texts: &[&str]) {
    let row = rank_row(outcome, rank);
    texts.iter().for_each(|text| assert!(row.contains(text), "`{row}` lacks `{text}`\n{outcome}"));
}

fn pid_of(line: &str) -> i32 {
    field(line, "pid").and_then(|pid| pid.parse().ok()).expect("the worker tells its pid")
}

/// Waits until a file is there.
#[track_caller]
fn wait_for_file(job: &Job, path: &str) {
    job.wait_until(&format!("the file {path}"), || Path::new(path).exists());
}

#[test]
fn rank_that_never_joins_is_shown_after_a_stop_signal() {
    if !is_rankrun() {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let steps = ["rank2:alive", "rank2:print=loading data", "rank<2:join", "forever"];
        let job = Launch::standalone(Name::Rankrun, 3).worker(steps).start();
        let pid = pid_of(&job.wait_for_line("alive rank=2"));
        job.wait_for_lines("joined rank=", 2);
        job.wait_for_line("loading data");
        job.signal(signal);
        let outcome = job.wait();
        outcome.expect_exit_code(128 + signal as i32);
        outcome.expect_stderr(&format!(
            "rankrun: rank 2 has not joined the store; the ranks when {signal} came:\n  rank  pid"
        ));
        assert_row_has(&outcome, "0", &["alive, ", " yes ", " s before: joined rank=0"]);
        assert_row_has(&outcome, "1", &["alive, ", " yes ", " s before: joined rank=1"]);
        assert_row_has(&outcome, "2", &["alive, ", " no ", " s before: loading data", &format!(" {pid} ")]);
        outcome.expect_stderr("  hint: while it hangs, `rankrun stacks`");
    }
}

#[test]
fn joined_job_prints_no_table_at_stop_signal() {
    for (name, steps, signal) in [
        (Name::Rankrun, ["join", "forever"], Signal::SIGINT),
        (Name::Rankrun, ["join", "forever"], Signal::SIGTERM),
        // torchrun has no table.
        (Name::Torchrun, ["rank0:join", "forever"], Signal::SIGTERM),
    ] {
        if !is_rankrun() {
            return;
        }
        let job = Launch::standalone(name, 2).worker(steps).start();
        job.wait_for_lines("joined rank=", if name == Name::Rankrun { 2 } else { 1 });
        job.signal(signal);
        let outcome = job.wait();
        outcome
            .expect_exit_code(name.code(128 + signal as i32))
            .expect_absent("joined the store")
            .expect_absent("last output");
    }
}

/// A rank that is alone waits for no other.
#[test]
fn single_rank_prints_no_table_at_stop_signal() {
    if is_rankrun() {
        let job = Launch::standalone(Name::Rankrun, 1).worker(["alive", "forever"]).start();
        job.wait_for_line("alive rank=0");
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(143).expect_absent("joined the store");
    }
}

/// Lets the steady clock of the job leap over its limit of 30 s, and waits for its end.
fn exceed_time_limit(job: Job, leap: &str) -> Outcome {
    let agent = job.only_child_of(job.pid());
    fs::write(leap, "").expect("the scratch folder takes a file");
    // It wakes the agent, which looks at its clock, unless a worker's line did, and the job is over.
    let _ = kill(Pid::from_raw(agent), Signal::SIGCHLD);
    job.wait()
}

/// A job whose clock can leap.
fn launch_with_fake_clock(name: Name, leap: &str) -> Launch {
    let launch = Launch::standalone(name, 2).env("LD_PRELOAD", library("fake_clock"));
    let launch = launch.env("FAKE_CLOCK_SHIFT", "0").env("FAKE_CLOCK_LEAP", leap);
    launch.limit(std::time::Duration::from_secs(200))
}

fn time_limited_launch(name: Name, leap: &str) -> Launch {
    launch_with_fake_clock(name, leap).env("RANKRUN_TIME_LIMIT", "30")
}

#[test]
fn time_limit_of_hung_job_shows_all_ranks() {
    if !is_rankrun() {
        return;
    }
    for (steps, joined, message) in [
        (["rank0:join", "rank1:alive", "forever"], 1, "rank 1 has not joined the store"),
        (["join", "rank1:alive", "forever"], 2, "all ranks that run have joined the store"),
    ] {
        let scratch = Scratch::new();
        let leap = scratch.at("leap");
        let job = time_limited_launch(Name::Rankrun, &leap).worker(steps).start();
        job.wait_for_lines("joined rank=", joined);
        job.wait_for_line("alive rank=1");
        let outcome = exceed_time_limit(job, &leap);
        outcome
            .expect_exit_code(124)
            .expect_stderr(&format!("rankrun: {message}; the ranks when the time limit was over:\n"));
        assert_row_has(&outcome, "0", &["alive, ", " yes ", "before: joined rank=0"]);
        assert_row_has(
            &outcome,
            "1",
            &["alive, ", if joined == 2 { " yes " } else { " no " }, "before: alive rank=1"],
        );
        outcome.expect_stderr("hint: ").expect_stderr("rankrun stacks");
    }
    let scratch = Scratch::new();
    let leap = scratch.at("leap");
    let job = time_limited_launch(Name::Torchrun, &leap).worker(["alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    exceed_time_limit(job, &leap)
        .expect_exit_code(1)
        .expect_stderr("the time limit of 30s is over")
        .expect_absent("joined");
}

#[test]
fn start_timeout_shows_all_ranks() {
    if is_rankrun() {
        let scratch = Scratch::new();
        let leap = scratch.at("leap");
        let launch = launch_with_fake_clock(Name::Rankrun, &leap).args(["--start-timeout", "30"]);
        let job = launch.worker(["print=here", "forever"]).start();
        job.wait_for_lines("here", 2);
        let outcome = exceed_time_limit(job, &leap);
        outcome
            .expect_exit_code(1)
            .expect_stderr("local ranks 0, 1 have not joined the store within 30 s: waiting up to");
        outcome.expect_stderr("rankrun: ranks 0, 1 have not joined the store; the ranks at that time:\n");
        assert_row_has(&outcome, "0, 1", &["alive, ", " no ", " before: here"]);
        outcome.expect_absent("`--start-timeout 60`");
    }
}

#[test]
fn table_after_restart_shows_new_workers() {
    if !is_rankrun() {
        return;
    }
    let steps = ["attempt0:join", "alive", "attempt0:rank0:exit=3", "forever"];
    let job = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).worker(steps).start();
    let pids: Vec<_> =
        (0..2).map(|rank| pid_of(&job.wait_for_line(&format!("alive rank={rank} attempt=1")))).collect();
    job.signal(Signal::SIGINT);
    let outcome = job.wait();
    outcome
        .expect_exit_code(130)
        .expect_stderr("rankrun: ranks 0, 1 have not joined the store; the ranks when SIGINT came:");
    for (rank, pid) in ["0", "1"].iter().zip(pids) {
        assert_row_has(
            &outcome,
            rank,
            &[&format!(" {pid} "), " no ", &format!("before: alive rank={rank} attempt=1")],
        );
    }
}

#[test]
fn rank_that_has_finished_is_shown_with_its_exit() {
    if !is_rankrun() {
        return;
    }
    let steps =
        ["join", "rank0:print=done", "rank0:exit=0", "catch=SIGUSR1", "alive", "signal=SIGUSR1", "forever"];
    let job = Launch::standalone(Name::Rankrun, 2).worker(steps).start();
    job.wait_for_line("alive rank=1");
    let agent = job.only_child_of(job.pid());
    job.wait_until("rank 0 is reaped", || job.children_of(agent).len() == 1);
    // When rank 1 has this signal, the launcher has taken in the end that it reaped before.
    job.signal(Signal::SIGUSR1);
    job.wait_for_line("got SIGUSR1 rank=1");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome
        .expect_exit_code(143)
        .expect_stderr("all ranks that run have joined the store; the ranks when SIGTERM came:");
    assert_row_has(&outcome, "0", &["exit code 0", " yes ", "before: done"]);
    assert_row_has(&outcome, "1", &["alive, ", " yes ", "before: got SIGUSR1 rank=1"]);
    outcome.expect_stderr("  hint: rank 0 has finished, and the others may wait");
}

/// Rank 0 joins by a child. Rank 1 has a child that computes.
#[test]
fn descendants_count_for_their_rank() {
    if !is_rankrun() {
        return;
    }
    let worker = fixture("worker");
    let line = format!(
        "if [ $$RANK = 0 ]; then {} join forever & wait; fi; \
         sh -c 'i=0; while [ $$i -lt 300000 ]; do i=$$((i+1)); done; echo computed; exec sleep 1000' & wait",
        worker.display()
    );
    let job = Launch::standalone(Name::Rankrun, 2).shell(&line).start();
    job.wait_for_line("joined rank=0");
    job.wait_for_line("computed");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143).expect_stderr("rank 1 has not joined the store");
    assert_row_has(&outcome, "0", &[" yes "]);
    assert_row_has(&outcome, "1", &[" no ", "before: computed"]);
    let row = rank_row(&outcome, "1");
    let cpu_time = row.split_once(" no ").map(|(_, rest)| rest.trim_start());
    let is_some = cpu_time.is_some_and(|time| !time.starts_with("0.00 s"));
    assert!(is_some, "the child has used CPU time: {row}\n{outcome}");
}

#[test]
fn rank_stopped_by_sigstop_is_shown_as_stopped() {
    if !is_rankrun() {
        return;
    }
    let job = Launch::standalone(Name::Rankrun, 2).worker(["rank0:join", "alive", "forever"]).start();
    let pid = pid_of(&job.wait_for_line("alive rank=1"));
    job.wait_for_line("alive rank=0");
    job.signal_to(pid, Signal::SIGSTOP);
    job.wait_until("rank 1 is stopped", || is_stopped(pid));
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    assert_row_has(&outcome, "1", &["alive, stopped (T)", " no "]);
    outcome.expect_exit_code(143).expect_stderr("  hint: rank 1 is stopped, by SIGSTOP or by a debugger");
}

#[test]
fn last_line_of_a_redirected_rank_is_read_from_its_file() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (logs, ready) = (scratch.folder("logs", 0o755), scratch.at("ready"));
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--redirects", "1:3", "--log-dir", &logs]);
    let steps = ["rank0:join", "rank1:eprint=reading the data", &format!("rank1:touch={ready}"), "forever"];
    let job = launch.worker(steps).start();
    job.wait_for_line("joined rank=0");
    wait_for_file(&job, &ready);
    job.signal(Signal::SIGINT);
    let outcome = job.wait();
    assert_row_has(&outcome, "1", &[" no ", " before: reading the data"]);
}

#[test]
fn last_output_of_filtered_rank_is_not_seen() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let ready = scratch.at("ready");
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--local-ranks-filter", "0"]);
    let steps = ["rank0:join", "rank1:print=silent", &format!("rank1:touch={ready}"), "forever"];
    let job = launch.worker(steps).start();
    job.wait_for_line("joined rank=0");
    wait_for_file(&job, &ready);
    job.signal(Signal::SIGINT);
    assert_row_has(&job.wait(), "1", &[" no ", "not seen"]);
}

/// Rows fit 80 columns, and a progress bar is one line.
#[test]
fn table_on_a_terminal_fits_its_width() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).terminal().env("NO_COLOR", "1");
    // `stty` sets the terminal that the launcher has too.
    let long = "x".repeat(300);
    let line = format!(
        "if [ $$RANK = 0 ]; then stty cols 80; printf '10%%\\r20%%\\r'; printf '%s\\n' {long} ready; fi; exec sleep 1000"
    );
    let launch = launch.under(["sh", "-c", "stty cols 80 && exec \"$0\" \"$@\""]);
    let job = launch.shell(&line).start();
    job.wait_for_line("ready");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    let rows: Vec<_> = outcome.lines_with("alive, ");
    assert!(!rows.is_empty() && rows.iter().all(|row| row.trim_end().chars().count() < 80), "{outcome}");
}

/// Two launchers on this host. Node 0 has the store, so that node 1 sees connections alone. The first one that is told to
/// stop stops the other.
#[test]
fn each_node_shows_its_own_ranks() {
    if !is_rankrun() {
        return;
    }
    for (missing, first) in [("1", 0), ("3", 0), ("none", 0), ("1", 1), ("3", 1), ("none", 1)] {
        let port = free_port().to_string();
        let joins = ["0", "1", "2", "3"].into_iter().filter(|rank| *rank != missing);
        let steps: Vec<_> = joins.map(|rank| format!("rank{rank}:stay-joined")).collect();
        let steps = [&steps[..], &["alive".to_owned(), "forever".to_owned()]].concat();
        let start = |node_rank: &str| {
            let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank", node_rank]);
            let launch = launch.args(["--master-addr", "127.0.0.1", "--master-port", &port]);
            launch.args(["--nproc-per-node", "2"]).worker(&steps).start()
        };
        let [zero, one] = ["0", "1"].map(start);
        [&zero, &one].into_iter().for_each(|job| drop(job.wait_for_lines("alive rank=", 2)));
        if first == 0 {
            zero.signal(Signal::SIGTERM);
        } else {
            one.signal(Signal::SIGTERM);
            zero.wait_for_line("has left: it was told to stop by SIGTERM");
            zero.signal(Signal::SIGTERM);
        }
        let (zero, one) = (zero.wait(), one.wait());
        zero.expect_exit_code(143);
        one.expect_exit_code(if first == 0 { 1 } else { 143 });
        let moments = ["when SIGTERM came:\n", "when another node left:\n"];
        if missing == "1" {
            zero.expect_stderr("rankrun: rank 1 has not joined the store; the ranks of node 0 (");
            zero.expect_stderr(moments[first]);
            assert_row_has(&zero, "0", &[" yes ", "before: alive rank=0"]);
            assert_row_has(&zero, "1", &[" no ", "before: alive rank=1"]);
        } else {
            zero.expect_absent("joined the store");
        }
        if missing == "3" {
            one.expect_stderr(
                "rankrun: it is not known whether rank 3 joined the store; the ranks of node 1 (",
            );
            one.expect_stderr(moments[1 - first]);
            assert_row_has(&one, "2", &[" yes ", "before: alive rank=2"]);
            assert_row_has(&one, "3", &[" unknown ", "before: alive rank=3"]);
            one.expect_stderr("hint: these ranks have no connection to the store now");
        } else {
            one.expect_absent("joined the store");
        }
    }
}

/// A worker that ignores the signal does not hide the table, and a second signal adds none.
#[test]
fn table_is_printed_once() {
    if !is_rankrun() {
        return;
    }
    let job = Launch::standalone(Name::Rankrun, 2).worker(["catch", "alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.signal(Signal::SIGINT);
    job.wait_for_line("last output");
    job.signal(Signal::SIGINT);
    let outcome = job.wait();
    assert_eq!(outcome.expect_exit_code(130).lines_with("  rank  pid").len(), 1, "{outcome}");
}
