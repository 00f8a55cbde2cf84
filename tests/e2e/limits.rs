//! Limits on the job's time: `--time-limit`, `--warn-signal` and `--start-timeout`.

use std::time::Duration;

use harness::{Launch, Name, fixture, is_rankrun};

/// The option under our own name, its variable under torchrun's.
fn launch_with_time_limit(name: Name, workers: usize, limit: &str) -> Launch {
    let launch = Launch::standalone(name, workers);
    match name {
        Name::Rankrun => launch.args(["--time-limit", limit]),
        Name::Torchrun | Name::Reference => launch.env("RANKRUN_TIME_LIMIT", limit),
    }
}

#[test]
fn time_limit_stops_job_without_restart() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = launch_with_time_limit(*name, 2, "2s").args(["--max-restarts", "3"]);
        let outcome = launch.worker(["catch", "alive", "signal", "print=saved", "exit=9"]).run();
        outcome
            .expect_exit_code(name.code(124))
            .expect_absent("attempt=1")
            .expect_stderr("the time limit of 2s is over");
        assert_eq!(outcome.lines_with("got SIGTERM rank=").len(), 2, "{outcome}");
        assert_eq!(outcome.lines_with("saved").len(), 2, "{outcome}");
        assert!(outcome.took >= Duration::from_millis(1_950), "it ended too early\n{outcome}");
    }
}

#[test]
fn time_limit_kills_stubborn_workers_after_grace() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let launch =
            launch_with_time_limit(*name, 2, "1").args(["--shutdown-timeout", "1", "--max-restarts", "3"]);
        let outcome = launch.worker(["catch", "forever"]).run();
        outcome.expect_exit_code(name.code(124)).expect_stderr("the time limit of 1s is over");
        assert!(outcome.took >= Duration::from_millis(1_950), "there was no grace\n{outcome}");
    }
}

#[test]
fn time_limit_spans_all_restarts() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let launch = launch_with_time_limit(*name, 1, "2").args(["--max-restarts", "100000"]);
        let outcome = launch.worker(["alive", "sleep-ms=100", "exit=4"]).run();
        outcome.expect_exit_code(name.code(124)).expect_stdout("attempt=1").expect_stderr("time limit of 2s");
    }
}

#[test]
fn warn_signal_lets_workers_end_with_success() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = launch_with_time_limit(*name, 2, "1:00:00");
        let launch = match name {
            Name::Rankrun => launch.args(["--warn-signal", "USR1@3598"]),
            Name::Torchrun | Name::Reference => launch.env("RANKRUN_WARN_SIGNAL", "USR1@3598"),
        };
        let outcome = launch.worker(["catch=SIGUSR1", "signal=SIGUSR1", "exit=0"]).run();
        outcome.expect_exit_code(0).expect_stderr("SIGUSR1 to 2 workers");
        assert_eq!(outcome.lines_with("got SIGUSR1 rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn time_limit_after_warning_omits_warn_signal_hint() {
    if !is_rankrun() {
        return;
    }
    for options in [&[][..], &["--warn-signal", "USR1@0.5"]] {
        let launch = launch_with_time_limit(Name::Rankrun, 1, "1").args(options.iter().copied());
        let outcome = launch.worker(["catch=SIGUSR1", "forever"]).run();
        outcome.expect_exit_code(124).expect_stderr("hint: give it more with `--time-limit`");
        assert_eq!(outcome.stderr().contains("with `--warn-signal"), options.is_empty(), "{outcome}");
    }
}

/// With Slurm's own signal, as in `--signal=TERM@60`.
#[test]
fn workers_ended_by_warn_signal_are_not_restarted() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = launch_with_time_limit(*name, 2, "1:00:00").args(["--max-restarts", "3"]);
        let launch = match name {
            Name::Rankrun => launch.args(["--warn-signal", "TERM@3598"]),
            Name::Torchrun | Name::Reference => launch.env("RANKRUN_WARN_SIGNAL", "TERM@3598"),
        };
        let outcome = launch.worker(["alive", "forever"]).run();
        outcome.expect_exit_code(name.code(124)).expect_absent("attempt=1");
        outcome.expect_stderr("ended by the warning before the time limit (");
    }
}

#[test]
fn invalid_limit_options_are_refused() {
    if is_rankrun() {
        for (args, expected_message) in [
            (&["--time-limit", "soon"][..], "`--time-limit` is `soon`"),
            (&["--time-limit", "5M"], "`--time-limit` is `5M`"),
            (&["--warn-signal", "USR1"], "hint: give the limit too, as in `--time-limit 2h`"),
            (
                &["--time-limit", "1", "--leftover-grace", "5"],
                "the job would be over before the leftover processes are stopped",
            ),
            (&["--time-limit", "9", "--warn-signal", "KILL@5"], "`--warn-signal` is `KILL@5`"),
        ] {
            let launch = Launch::standalone(Name::Rankrun, 1).args(args.iter().copied());
            launch
                .worker(["alive"])
                .run()
                .expect_exit_code(1)
                .expect_stderr(expected_message)
                .expect_absent("alive rank=");
        }
    }
}

fn launch_with_start_timeout(name: Name, workers: usize, seconds: &str) -> Launch {
    let launch = Launch::standalone(name, workers);
    match name {
        Name::Rankrun => launch.args(["--start-timeout", seconds]),
        Name::Torchrun | Name::Reference => launch.env("RANKRUN_START_TIMEOUT", seconds),
    }
}

#[test]
fn start_timeout_names_missing_ranks_and_restarts_all() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = launch_with_start_timeout(*name, 3, "2").args(["--max-restarts", "1"]);
        let outcome = launch.worker(["rank0:join", "alive", "attempt0:forever", "exit=0"]).run();
        outcome.expect_exit_code(0).expect_stdout("alive rank=2 attempt=1");
        outcome.expect_stderr("local ranks 1, 2 have not joined the store within 2 s");
    }
}

#[test]
fn start_timeout_without_restart_reports_missing_ranks() {
    if is_rankrun() {
        let outcome =
            launch_with_start_timeout(Name::Rankrun, 3, "1.5").worker(["rank0:join", "forever"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("rank 1 failed first: it had not joined the store within 1.5 s");
        outcome.expect_stderr("missing   ranks 1, 2");
    }
}

/// The second worker joins by a child of its own.
#[test]
fn joined_workers_outlive_start_timeout() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let steps = "join sleep-ms=4000 print=done";
        let worker = fixture("worker");
        let line =
            format!("if [ $$RANK = 0 ]; then exec {0} {steps}; else {0} {steps}; fi", worker.display());
        let outcome = launch_with_start_timeout(*name, 2, "3").shell(&line).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.lines_with("done").len(), 2, "{outcome}");
    }
}

#[test]
fn start_timeout_without_shared_store_is_refused() {
    if is_rankrun() {
        let launch =
            launch_with_start_timeout(Name::Rankrun, 1, "5").env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        launch
            .worker(["alive"])
            .run()
            .expect_exit_code(1)
            .expect_stderr("`--start-timeout`")
            .expect_absent("alive rank=");
    }
}
