//! `--leave-out`: one worker is started by a person, by the script that the launcher names.

use std::fs;
use std::path::Path;

use harness::{Gate, Job, Launch, Name, Outcome, Scratch, example, field, is_rankrun};
use nix::sys::signal::Signal;

/// A job of two that leaves out local rank 1.
fn leave_out_rank_1(name: Name) -> Launch {
    let launch = Launch::standalone(name, 2);
    match name {
        Name::Rankrun => launch.args(["--leave-out", "1"]),
        // Its command line is torchrun's.
        Name::Torchrun | Name::Reference => launch.env("RANKRUN_LEAVE_OUT", "1"),
    }
}

/// The script that was named last, of so many.
#[track_caller]
fn wait_for_script_path(job: &Job, count: usize) -> String {
    let line = job.wait_for_lines("  sh /", count).pop().expect("there is one");
    line.trim_start().strip_prefix("sh ").expect("a command").to_owned()
}

/// Runs the script as a user does, with these words behind it.
fn launch_script(script: &str, arguments: &str) -> Launch {
    // What the harness adds, the launcher's own path, is nothing to the script.
    Launch::new(Name::Rankrun).under(["sh", "-c", &format!("exec sh \"$0\" {arguments}"), script])
}

/// The variable as the rank printed it.
fn printed_variable(outcome: &Outcome, rank: u32, name: &str) -> Option<String> {
    let prefix = format!("env{rank} {name}=");
    outcome.stdout_lines().iter().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
}

#[test]
fn job_succeeds_when_external_worker_does() {
    if !is_rankrun() {
        return;
    }
    for name in [Name::Rankrun, Name::Torchrun] {
        let job = leave_out_rank_1(name).worker(["env", "alive"]).start();
        job.wait_for_line("alive rank=0");
        let path = wait_for_script_path(&job, 1);
        let hand = launch_script(&path, "").run();
        hand.expect_exit_code(0).expect_stdout("alive rank=1");
        let outcome = job.wait();
        outcome
            .expect_exit_code(0)
            .expect_stderr("local rank 1 was started by hand (pid ")
            .expect_absent("alive rank=1");
        for shared in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "RANKRUN_JOB", "WORLD_SIZE"] {
            let of_other = printed_variable(&outcome, 0, shared);
            assert!(of_other.is_some(), "{shared}\n{outcome}");
            assert_eq!(printed_variable(&hand, 1, shared), of_other, "{shared}\n{hand}");
        }
        let error_file = printed_variable(&hand, 1, "TORCHELASTIC_ERROR_FILE").expect("it is set");
        assert!(error_file.ends_with("/attempt_0/1/error.json"), "{error_file}");
        assert!(!Path::new(&path).exists(), "the script is left");
    }
}

#[test]
fn external_worker_trains_with_launched_worker() {
    let program = example("data_parallel").into_os_string();
    let job = Launch::standalone(Name::Rankrun, 2).args(["--leave-out", "1"]).args([program]).start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").run();
    hand.expect_exit_code(0).expect_stdout("rank 1");
    job.wait().expect_exit_code(0);
}

#[test]
fn script_of_external_worker_has_its_wrapper() {
    let wrap = "1:sh -c 'echo wrapped %r; exec \"$@\"' sh";
    let job = leave_out_rank_1(Name::Rankrun).args(["--wrap", wrap]).worker(["alive"]).start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").run();
    hand.expect_exit_code(0).expect_stdout("wrapped 1").expect_stdout("alive rank=1");
    job.wait().expect_exit_code(0);
}

#[test]
fn external_worker_failure_fails_job_with_its_status() {
    for (step, status) in [("exit=7", 7), ("die=SIGUSR1", 128 + 10)] {
        let launch = leave_out_rank_1(Name::Rankrun).args(["--grace", "3600"]);
        let job = launch.worker(["rank0:forever", &format!("rank1:{step}")]).start();
        launch_script(&wait_for_script_path(&job, 1), "").run().expect_exit_code(status);
        let outcome = job.wait();
        outcome.expect_exit_code(status).expect_stderr("rank 1 failed first");
    }
}

#[test]
fn external_worker_error_file_is_reported() {
    let report = r#"error-file={"message": "of the hand", "timestamp": "1"}"#;
    let job = leave_out_rank_1(Name::Rankrun).worker(["rank0:forever", report, "exit=1"]).start();
    launch_script(&wait_for_script_path(&job, 1), "").run().expect_exit_code(1);
    job.wait().expect_exit_code(1).expect_stderr("of the hand");
}

#[test]
fn wrapper_killed_fails_job_as_its_worker() {
    let job = leave_out_rank_1(Name::Rankrun).worker(["catch", "alive", "forever"]).start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").start();
    let line = hand.wait_for_line("alive rank=1");
    job.wait_for_line("started by hand");
    hand.signal(Signal::SIGKILL);
    let outcome = job.wait();
    // The worker behind the wrapper gets SIGKILL and no other signal.
    outcome.expect_exit_code(137).expect_stderr("rank 1 failed first");
    assert!(outcome.stderr().contains(field(&line, "pid").expect("a pid")), "{outcome}");
    hand.wait().expect_signal(Signal::SIGKILL);
}

#[test]
fn job_failure_is_shown_to_external_worker_without_killing_it() {
    let scratch = Scratch::new();
    let (fails, goes_on) = (Gate::new(&scratch, "fails"), Gate::new(&scratch, "goes-on"));
    let steps = [
        "alive".to_owned(),
        format!("rank0:{}", fails.step()),
        "rank0:exit=5".to_owned(),
        goes_on.step(),
        "print=went on".to_owned(),
    ];
    let job = leave_out_rank_1(Name::Rankrun).args(["--grace", "0"]).worker(steps).start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").start();
    hand.wait_for_line("alive rank=1");
    job.wait_for_line("started by hand");
    fails.open(1);
    hand.wait_for_line("rankrun: local rank 0 failed: exit code 5");
    // Only then, so that nothing of the job is left when the launcher has ended.
    goes_on.open(1);
    hand.wait().expect_exit_code(0).expect_stdout("went on").expect_absent("the launcher is gone");
    job.wait().expect_exit_code(5).expect_stderr("rank 0 failed first");
}

#[test]
fn launcher_signal_is_shown_to_external_worker() {
    let gate = Gate::closed();
    let job = leave_out_rank_1(Name::Rankrun)
        .args(["--grace", "3600"])
        .worker(["alive", "rank0:forever", &gate.step()])
        .start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").start();
    hand.wait_for_line("alive rank=1");
    job.wait_for_line("started by hand");
    job.signal(Signal::SIGTERM);
    hand.wait_for_line("the job was told to stop");
    gate.open(1);
    hand.wait().expect_exit_code(0);
    job.wait().expect_exit_code(143);
}

#[test]
fn launcher_death_is_shown_to_external_worker() {
    let gate = Gate::closed();
    let job = leave_out_rank_1(Name::Rankrun).worker(["alive", "rank0:forever", &gate.step()]).start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").start();
    let line = hand.wait_for_line("alive rank=1");
    job.wait_for_line("started by hand");
    job.signal(Signal::SIGKILL);
    hand.wait_for_line("the launcher is gone");
    // By that name `rankrun gc` knows that no launcher stands above the worker.
    let pid = field(&line, "pid").expect("a pid");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker lives");
    let wrapper = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).expect("it has a parent");
    let name = std::fs::read_to_string(format!("/proc/{wrapper}/comm")).expect("the wrapper lives");
    assert_eq!(name, "rankrun-alone\n");
    gate.open(1);
    hand.wait().expect_exit_code(0);
    job.wait().expect_signal(Signal::SIGKILL);
}

#[test]
fn unstarted_external_worker_is_awaited_until_signal() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        // No other worker is left, and the launcher sets no time limit.
        let job = leave_out_rank_1(*name)
            .args(["--shutdown-timeout", "0"])
            .worker(["alive", "rank1:forever"])
            .start();
        let path = wait_for_script_path(&job, 1);
        job.wait_for_line("alive rank=0");
        job.signal(Signal::SIGINT);
        job.wait().expect_exit_code(name.code(130));
        assert!(!Path::new(&path).exists(), "the script is left");
    }
}

#[test]
fn unstarted_external_worker_is_named_at_stop() {
    let job = leave_out_rank_1(Name::Rankrun).worker(["alive", "forever"]).start();
    let _ = wait_for_script_path(&job, 1);
    job.wait_for_line("alive rank=0");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143).expect_stderr("hint: rank 1 is left out and not started yet");
}

#[test]
fn each_attempt_has_own_script_and_old_one_is_refused() {
    let scratch = Scratch::new();
    let launch = leave_out_rank_1(Name::Rankrun).args(["--max-restarts", "1"]);
    let job = launch.worker(["alive", "rank1:attempt0:exit=3", "attempt0:forever"]).start();
    let first = wait_for_script_path(&job, 1);
    let kept = scratch.at("kept");
    fs::copy(&first, &kept).expect("the script can be read");
    launch_script(&first, "").run().expect_exit_code(3).expect_stdout("alive rank=1 attempt=0");
    let second = wait_for_script_path(&job, 2);
    assert!(second.contains("/attempt_1/"), "{second}");
    launch_script(&kept, "")
        .run()
        .expect_exit_code(1)
        .expect_stderr("no launcher waits for this worker")
        .expect_absent("alive");
    launch_script(&second, "").run().expect_exit_code(0).expect_stdout("alive rank=1 attempt=1");
    job.wait().expect_exit_code(0).expect_stderr("starting all workers again (restart 1 of 1)");
}

#[test]
fn second_run_of_script_is_refused() {
    let gate = Gate::closed();
    let job =
        leave_out_rank_1(Name::Rankrun).worker(["alive", "rank0:forever", &gate.step(), "exit=2"]).start();
    let path = wait_for_script_path(&job, 1);
    let hand = launch_script(&path, "").start();
    let pid = field(&hand.wait_for_line("alive rank=1"), "pid").expect("a pid").to_owned();
    let refused = launch_script(&path, "").run();
    refused
        .expect_exit_code(1)
        .expect_stderr(&format!("this worker runs already, as pid {pid}"))
        .expect_absent("alive");
    gate.open(1);
    hand.wait().expect_exit_code(2);
    job.wait().expect_exit_code(2);
}

#[test]
fn failed_wrapper_command_leaves_script_usable() {
    let job = leave_out_rank_1(Name::Rankrun).worker(["alive"]).start();
    let path = wait_for_script_path(&job, 1);
    launch_script(&path, "/no/such/debugger")
        .run()
        .expect_exit_code(1)
        .expect_stderr("cannot start `/no/such/debugger`");
    let wrapped = launch_script(&path, "sh -c 'echo wrapped; exec \"$@\"' sh").run();
    wrapped.expect_exit_code(0).expect_stdout("wrapped").expect_stdout("alive rank=1");
    job.wait().expect_exit_code(0);
}

#[test]
fn script_without_log_tree_is_in_temporary_folder() {
    let launch = leave_out_rank_1(Name::Rankrun).args(["--log-dir", "/dev/null"]);
    let temporary = launch.temporary();
    let job = launch.worker(["alive"]).start();
    let path = wait_for_script_path(&job, 1);
    assert_eq!(Path::new(&path).parent(), Some(temporary.as_path()));
    launch_script(&path, "").run().expect_exit_code(0);
    job.wait().expect_exit_code(0);
    assert!(!Path::new(&path).exists(), "the script is left");
}

#[test]
fn script_is_accessible_to_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let job = leave_out_rank_1(Name::Rankrun).worker(["alive"]).start();
    let path = wait_for_script_path(&job, 1);
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o700);
    launch_script(&path, "").run().expect_exit_code(0);
    job.wait().expect_exit_code(0);
}

#[test]
fn ctrl_c_reaches_external_worker_and_its_exit_fails_job() {
    let job = leave_out_rank_1(Name::Rankrun)
        .worker(["rank0:forever", "catch", "tty", "alive", "signal", "exit=3"])
        .start();
    let mut hand = launch_script(&wait_for_script_path(&job, 1), "").terminal().start();
    hand.wait_for_line("in=true out=true err=true");
    hand.wait_for_line("alive rank=1");
    hand.type_text("\u{3}");
    hand.wait_for_line("got SIGINT rank=1");
    hand.wait().expect_exit_code(3);
    job.wait().expect_exit_code(3).expect_stderr("rank 1 failed first");
}

#[test]
fn signal_to_wrapper_is_forwarded_to_worker() {
    let job = leave_out_rank_1(Name::Rankrun)
        .worker(["rank0:forever", "catch", "alive", "signal", "exit=0"])
        .start();
    let hand = launch_script(&wait_for_script_path(&job, 1), "").start();
    hand.wait_for_line("alive rank=1");
    hand.signal(Signal::SIGTERM);
    hand.wait().expect_exit_code(0).expect_stdout("got SIGTERM rank=1");
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn leave_out_rank_out_of_range_is_refused() {
    for value in ["2", "-1"] {
        let launch = Launch::standalone(Name::Rankrun, 2).args([format!("--leave-out={value}")]);
        let outcome = launch.worker(["print=started"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("the local ranks are 0 to 1")
            .expect_stderr("hint:")
            .expect_absent("started");
    }
}
