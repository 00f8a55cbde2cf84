//! Limits on the job's time: `--time-limit` and `--warn-signal`.

use std::time::Duration;

use harness::{Launch, Name, only_ours};

/// The option under our own name, its variable under torchrun's.
fn limited(name: Name, workers: usize, limit: &str) -> Launch {
    let launch = Launch::standalone(name, workers);
    match name {
        Name::Rankrun => launch.args(["--time-limit", limit]),
        Name::Torchrun | Name::Reference => launch.env("RANKRUN_TIME_LIMIT", limit),
    }
}

#[test]
fn at_its_end_the_job_is_stopped_and_not_restarted() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = limited(*name, 2, "2s").args(["--max-restarts", "3"]);
        let outcome = launch.worker(["catch", "alive", "signal", "print=saved", "exit=9"]).run();
        outcome.exits(name.code(124)).never_says("life=1").complains("the time limit of 2s is over");
        assert_eq!(outcome.lines_with("got SIGTERM rank=").len(), 2, "{outcome}");
        assert_eq!(outcome.lines_with("saved").len(), 2, "{outcome}");
        assert!(outcome.took >= Duration::from_millis(1_950), "it ended too early\n{outcome}");
    }
}

#[test]
fn who_ignores_it_is_killed_after_the_grace() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = limited(*name, 2, "1").args(["--shutdown-timeout", "1", "--max-restarts", "3"]);
        let outcome = launch.worker(["catch", "forever"]).run();
        outcome.exits(name.code(124)).complains("the time limit of 1s is over");
        assert!(outcome.took >= Duration::from_millis(1_950), "there was no grace\n{outcome}");
    }
}

#[test]
fn it_is_a_limit_over_all_restarts() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = limited(*name, 1, "2").args(["--max-restarts", "100000"]);
        let outcome = launch.worker(["alive", "sleep-ms=100", "exit=4"]).run();
        outcome.exits(name.code(124)).says("life=1").complains("the time limit of 2s is over");
    }
}

#[test]
fn the_workers_are_warned_before_and_may_end_well() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = limited(*name, 2, "1:00:00");
        let launch = match name {
            Name::Rankrun => launch.args(["--warn-signal", "USR1@3598"]),
            Name::Torchrun | Name::Reference => launch.env("RANKRUN_WARN_SIGNAL", "USR1@3598"),
        };
        let outcome = launch.worker(["catch=SIGUSR1", "signal=SIGUSR1", "exit=0"]).run();
        outcome.exits(0).complains("SIGUSR1 to 2 workers");
        assert_eq!(outcome.lines_with("got SIGUSR1 rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn a_limit_that_makes_no_sense_starts_nothing() {
    if only_ours() {
        for (args, said) in [
            (&["--time-limit", "soon"][..], "`--time-limit` is `soon`"),
            (&["--time-limit", "5M"], "`--time-limit` is `5M`"),
            (&["--warn-signal", "USR1"], "hint: give the limit too, as in `--time-limit 2h`"),
            (&["--time-limit", "9", "--warn-signal", "KILL@5"], "`--warn-signal` is `KILL@5`"),
        ] {
            let launch = Launch::standalone(Name::Rankrun, 1).args(args.iter().copied());
            launch.worker(["alive"]).run().exits(1).complains(said).never_says("alive rank=");
        }
    }
}
