//! `rankrun restart`.

use harness::is_stopped;
use nix::sys::signal::Signal;

use super::Runtime;

#[test]
fn requested_restart_uses_no_budget_and_counts_for_workers() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(2).args(["--max-restarts", "0"]);
    let launch = launch.shell("echo ready; echo attempt $$TORCHELASTIC_RESTART_COUNT; exec sleep 1000");
    let job = runtime.start_until_ready(launch, 2);
    job.wait_for_lines("attempt 0", 2);
    let id = runtime.job_id();
    for attempt in 1..3 {
        runtime.ask(&["restart", &id]).expect_exit_code(0).expect_stdout("starts its workers again");
        job.wait_for_lines(&format!("attempt {attempt}"), 2);
    }
    let status = runtime.status(&["status", &id, "--json"]);
    assert_eq!((&status["generation"], &status["restarts"]), (&2.into(), &0.into()));
    runtime.stop(job, &id).expect_stderr("no restart of the budget is used");
}

/// As by Ctrl-Z. Each request is answered at once, and none is kept for later.
#[test]
fn restart_of_suspended_job_is_refused_with_reason() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).in_own_process_group();
    let launch = launch.shell("echo ready; echo attempt $$TORCHELASTIC_RESTART_COUNT; exec sleep 1000");
    let job = runtime.start_until_ready(launch, 1);
    let id = runtime.job_id();
    let pid = runtime.status(&["status", &id, "--json"])["ranks"][0]["pid"].as_i64().unwrap();
    let worker = i32::try_from(pid).unwrap();
    job.signal(Signal::SIGTSTP);
    job.wait_until("the worker is suspended", || is_stopped(worker));
    for _ in 0..3 {
        let refused = runtime.ask(&["restart", &id]);
        refused.expect_exit_code(1).expect_stderr("the job is suspended (Ctrl-Z)").expect_stderr("`fg`");
    }
    job.signal(Signal::SIGCONT);
    job.wait_until("the worker goes on", || !is_stopped(worker));
    runtime.ask(&["restart", &id]).expect_exit_code(0);
    job.wait_for_line("attempt 1");
    let outcome = runtime.stop(job, &id);
    assert_eq!(outcome.stderr().matches("asks for a restart").count(), 1, "{outcome}");
}
