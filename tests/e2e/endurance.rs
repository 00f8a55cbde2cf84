//! What happens to the launcher's surroundings while a job runs takes nothing with it: many restarts, a full disk, a
//! reader that goes away, a launcher that is stopped for a while, a clock that jumps.

use std::fs;
use std::time::Duration;

use harness::{
    Job, Launch, Name, Scratch, can_use_namespaces, is_rankrun, is_soak, is_zombie_or_gone, library,
    print_notice,
};
use nix::sys::signal::Signal;

/// Until the second look, and from there to the last: each generation has a thread, and the first hundred leave pieces in the heap
/// (12 runs: 48 to 72 KiB, then 40 to 68). A heap may have a peak once, when threads had to wait for a
/// processor. A leak of 260 bytes for each restart costs more.
const PEAK_GROWTH_KB: usize = 96;

/// From one look to the next, freed pieces of other sizes may cost the heap more than this once or twice, and more on a busy
/// machine. A leak of 200 bytes for each restart costs more each time.
const STEADY_GROWTH_KB: usize = 20;

/// A look may find a descriptor or a child that is about to go. What leaks at each restart is hundreds more.
const PEAK_GROWTH_COUNT: usize = 4;

/// What a process holds.
#[derive(Debug)]
struct Holdings {
    descriptors: usize,
    /// Without the pages of files: how many of those are in memory is not up to the process alone.
    own_memory_kb: usize,
    children: usize,
}

fn resource_usage(job: &Job, pid: i32) -> Holdings {
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let own = memory.lines().find_map(|line| line.strip_prefix("Anonymous:")?.strip_suffix("kB"));
    Holdings {
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours").count(),
        own_memory_kb: own.and_then(|text| text.trim().parse().ok()).expect("it has memory"),
        children: job.children_of(pid).len(),
    }
}

#[test]
fn many_restarts_leak_no_memory_descriptors_or_children() {
    if !is_rankrun() {
        return;
    }
    let last = if is_soak() { 1_000 } else { 500 };
    let sampled_attempts = [10, last / 4, last / 2, last * 3 / 4, last];
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", &last.to_string()]);
    let pauses = sampled_attempts
        .iter()
        .flat_map(|attempt| [format!("attempt{attempt}:alive"), format!("attempt{attempt}:read")]);
    let mut job = launch.stdin_open().worker(pauses.chain(["helper=daemon".into(), "exit=3".into()])).start();
    let samples = sampled_attempts.map(|attempt| {
        job.wait_for_line(&format!("alive rank=0 attempt={attempt} "));
        let usage = [job.pid(), job.only_child_of(job.pid())].map(|pid| resource_usage(&job, pid));
        job.type_text("\n");
        usage
    });
    job.wait().expect_exit_code(3);
    for process in 0..2 {
        let [early, .., late] = samples.each_ref().map(|sample| &sample[process]);
        print_notice(&format!("after 10 restarts {early:?}, after {last} {late:?}"));
        let limits = (early.descriptors + PEAK_GROWTH_COUNT, early.children + PEAK_GROWTH_COUNT);
        assert!(late.descriptors <= limits.0 && late.children <= limits.1, "{early:?}, {late:?}");
        let memory = samples.each_ref().map(|sample| sample[process].own_memory_kb);
        let mut growths = memory[1..].windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let is_steady = growths.any(|growth| growth < STEADY_GROWTH_KB);
        let has_peak = [(memory[0], memory[1]), (memory[1], late.own_memory_kb)];
        let has_peak = has_peak.iter().any(|(before, after)| *after > before + PEAK_GROWTH_KB);
        assert!(is_steady && !has_peak, "{memory:?} KiB");
    }
}

#[test]
fn full_disk_ends_log_file_but_not_the_job() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let logs = scratch.folder("logs", 0o755);
    let line = format!("mount -t tmpfs -o size=64k none {logs} && exec \"$@\"");
    let launch = Launch::standalone(Name::Rankrun, 2).under(["unshare", "--mount", "sh", "-c", &line, "sh"]);
    let launch = launch.args(["--log-dir", &logs, "--tee", "3"]);
    let outcome = launch.worker(["flood=5000", "print=done"]).run();
    outcome.expect_exit_code(0).expect_stderr(", it ends here: No space left");
    assert_eq!(outcome.lines_with("done").len(), 2, "{outcome}");
}

#[test]
fn closed_stdout_reader_does_not_stop_worker() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let proof = scratch.at("proof");
    // `head` has read one line and is gone before the worker writes the rest.
    let line = "\"$@\" | head -n 1; wait";
    let launch = Launch::standalone(Name::Rankrun, 1).under(["sh", "-c", line, "sh"]);
    let steps = ["print=first".to_owned(), "flood=20000".to_owned(), format!("touch={proof}")];
    launch.worker(steps).run().expect_exit_code(0).expect_stdout("first");
    assert!(fs::exists(&proof).expect("the folder can be read"), "the worker was ended");
}

#[test]
fn stopped_and_continued_launcher_handles_worker_failure() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).stdin_open();
    let steps =
        ["alive", "rank0:attempt<1:read", "rank0:attempt<1:exit=4", "rank1:attempt<1:forever", "print=over"];
    let mut job = launch.worker(steps).start();
    job.wait_for_lines("attempt=0", 2);
    let both = [job.pid(), job.only_child_of(job.pid())];
    both.iter().for_each(|pid| job.signal_to(*pid, Signal::SIGSTOP));
    let workers = job.children_of(both[1]);
    job.type_text("\n");
    // A worker dies between two checks of the launcher.
    while !workers.iter().any(|pid| is_zombie_or_gone(*pid)) {
        std::thread::yield_now();
    }
    both.iter().for_each(|pid| job.signal_to(*pid, Signal::SIGCONT));
    job.wait_for_lines("over", 2);
    job.wait().expect_exit_code(0);
}

/// The wall clock is a day fast and a day slow in turn, from one look to the next.
#[test]
fn wall_clock_jumps_do_not_change_timeouts() {
    if !is_rankrun() {
        return;
    }
    let clock = library("fake_clock");
    let jumping = |arguments: &[&str], steps: &[&str]| {
        let launch = Launch::standalone(Name::Rankrun, 2).args(arguments).env("LD_PRELOAD", &clock);
        launch.worker(steps.iter().copied()).run()
    };
    let steps = ["alive", "rank1:attempt<2:exit=3", "attempt<2:forever", "print=over"];
    let outcome = jumping(&["--max-restarts", "2", "--restart-delay", "0.2", "--time-limit", "1h"], &steps);
    outcome.expect_exit_code(0).expect_stdout("attempt=2");
    assert_eq!(outcome.lines_with("over").len(), 2, "{outcome}");
    // A wait of 0.2 s, and one of 0.4 s.
    assert!(outcome.took >= Duration::from_millis(600), "{outcome}");

    // The sum is complete when rank 0 has blocked the signal.
    let outcome = jumping(&["--grace", "0.5"], &["rank0:catch", "alive", "sum", "rank1:exit=3", "forever"]);
    outcome.expect_exit_code(3).expect_stderr("killing local rank 0: still alive after the grace");
    assert!(outcome.took >= Duration::from_millis(500), "{outcome}");
}
