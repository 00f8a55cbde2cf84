//! The restart policy: rules, waits, windows, progress.

use std::fs;
use std::str::FromStr;

use harness::{Launch, Name, Outcome, Scratch, field, only_ours};
use nix::sys::signal::Signal;

/// The values of `key` in the lines that begin with the text, in order. (A summary repeats lines, but indented.)
fn values<T: FromStr>(outcome: &Outcome, text: &str, key: &str) -> Vec<T> {
    let lines = outcome.lines_with(text);
    let lines = lines.iter().filter(|line| line.starts_with(text));
    lines.filter_map(|line| field(line, key)?.parse().ok()).collect()
}

/// The lives of rank 0.
fn lives(outcome: &Outcome) -> Vec<u32> {
    values(outcome, "alive rank=0", "life")
}

fn launch(workers: usize, options: &[&str]) -> Launch {
    Launch::standalone(Name::Rankrun, workers).args(options.iter().copied())
}

#[test]
fn each_rule_decides_about_its_failures() {
    if !only_ours() {
        return;
    }
    let rules =
        "exit=3:fail,exit=5:succeed,exit=7:restart,signal=KILL:restart,exit=8:requeue,exit=9:no-requeue";
    for (end, status, seen, said) in [
        ("exit=3", 3, &[0][..], "no restart, by the rule `exit=3:fail`"),
        ("exit=5", 0, &[0], "the job is done, by the rule `exit=5:succeed`"),
        ("exit=7", 0, &[0, 1], "starting all workers again (restart 1 of 2)"),
        ("die=SIGKILL", 0, &[0, 1], "starting all workers again (restart 1 of 2)"),
        ("exit=8", 75, &[0], "no restart, by the rule `exit=8:requeue`"),
        ("exit=9", 78, &[0], "no restart, by the rule `exit=9:no-requeue`"),
        ("exit=4", 0, &[0, 1], "starting all workers again (restart 1 of 2)"),
    ] {
        let job = launch(2, &["--max-restarts", "2", "--restart-rules", rules]);
        let ends = format!("rank0:life0:{end}");
        let outcome = job.worker(["alive", &ends, "life0:forever"]).run();
        outcome.exits(status).complains(said);
        assert_eq!(lives(&outcome), seen, "{end}\n{outcome}");
    }
}

#[test]
fn rules_count_as_variables_under_the_name_torchrun() {
    if !only_ours() {
        return;
    }
    let job = Launch::standalone(Name::Torchrun, 1).args(["--max-restarts", "2"]);
    let job = job.env("RANKRUN_RESTART_RULES", "exit=8:requeue");
    let outcome = job.worker(["alive", "exit=8"]).run();
    outcome.exits(75).complains("no restart, by the rule `exit=8:requeue`");
    assert_eq!(lives(&outcome), [0]);
}

#[test]
fn each_wait_is_longer_than_the_one_before() {
    if !only_ours() {
        return;
    }
    let options = ["--max-restarts", "3", "--restart-delay", "0.2s"];
    let outcome = launch(1, &options).worker(["clock", "exit=4"]).run();
    outcome
        .exits(4)
        .complains("starting all workers again in 0.2 s (restart 1 of 3); a signal ends the wait");
    let starts: Vec<f64> = values(&outcome, "clock rank=0", "seconds");
    let gaps: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 3, "{outcome}");
    for (gap, least) in gaps.iter().zip([0.2, 0.4, 0.8]) {
        // The kernel counts hundredths.
        assert!(*gap >= least - 0.02, "{gaps:?}\n{outcome}");
    }
}

#[test]
fn a_signal_ends_the_wait() {
    if !only_ours() {
        return;
    }
    let options = ["--max-restarts", "1", "--restart-delay", "1h"];
    let job = launch(1, &options).worker(["alive", "exit=4"]).start();
    job.text("starting all workers again in 3600.0 s (restart 1 of 1)");
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.exits(128 + 15);
    assert_eq!(lives(&outcome), [0]);
}

#[test]
fn a_window_limits_restarts_within_it() {
    if !only_ours() {
        return;
    }
    let options = ["--max-restarts", "1", "--restart-window", "1h"];
    let outcome = launch(1, &options).worker(["alive", "exit=4"]).run();
    outcome.exits(4).complains("no restart: 1 within 1h are used up");
    assert_eq!(lives(&outcome), [0, 1]);
}

#[test]
fn a_healthy_life_begins_anew_and_the_workers_count_on() {
    if !only_ours() {
        return;
    }
    let options = ["--max-restarts", "1", "--restart-reset", "0.1"];
    let outcome = launch(1, &options).worker(["alive", "env", "sleep-ms=150", "life<3:exit=4"]).run();
    outcome.exits(0);
    assert_eq!(lives(&outcome), [0, 1, 2, 3], "{outcome}");
    outcome.says("env0 TORCHELASTIC_RESTART_COUNT=3").says("env0 TORCHELASTIC_MAX_RESTARTS=1");
}

#[test]
fn a_job_that_gets_nowhere_is_given_up() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("checkpoints", 0o777);
    let options = ["--max-restarts", "9", "--progress-dir", &folder, "--progress-restarts", "2"];
    let outcome = launch(1, &options).worker(["alive", "exit=4"]).run();
    outcome.exits(4).complains("no restart: 2 restarts brought no newer file to");
    assert_eq!(lives(&outcome), [0, 1, 2], "{outcome}");

    // File times have steps of some milliseconds.
    let writes = format!("touch={folder}/step-{{life}}");
    let outcome = launch(1, &options).worker(["alive", "sleep-ms=30", &writes, "life<4:exit=4"]).run();
    outcome.exits(0);
    assert_eq!(lives(&outcome), [0, 1, 2, 3, 4], "{outcome}");
}

/// Writes a configuration file and names it.
fn configured(scratch: &Scratch, text: &str) -> Launch {
    let path = scratch.at("rankrun.toml");
    fs::write(&path, text).expect("the folder is ours");
    Launch::new(Name::Rankrun).args(["--config", &path])
}

#[test]
fn a_file_says_all_of_it() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let text = "[launch]\nstandalone = true\nnproc-per-node = 2\n[restart]\nmax-restarts = 3\ndelay = \"10ms\"\n\
                [[restart.rules]]\nexit = 5\nrank = 0\nthen = \"succeed\"\n[[restart.rules]]\nexit = 5\nthen = \"fail\"\n";
    let steps = ["alive", "rank0:life0:exit=7", "rank0:exit=5", "forever"];
    let outcome = configured(&scratch, text).worker(steps).run();
    outcome.exits(0).complains("in 0.0 s (restart 1 of 3)").complains("by the rule `exit=5+rank=0:succeed`");
    assert_eq!(lives(&outcome), [0, 1], "{outcome}");

    let options = ["--max-restarts", "0"];
    let outcome = configured(&scratch, text).args(options).worker(steps).run();
    outcome.exits(7);
    assert_eq!(lives(&outcome), [0], "the command line comes first\n{outcome}");
}

#[test]
fn a_file_in_the_working_folder_is_not_read() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.at("rankrun.toml"), "[restart]\nmax-restarts = 3\n").expect("the folder is ours");
    let folder = scratch.folder(".", 0o777);
    let outcome = launch(1, &[]).cwd(folder).worker(["alive", "life0:exit=4"]).run();
    outcome.exits(4);
    assert_eq!(lives(&outcome), [0], "{outcome}");
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_line() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    for (text, said) in [
        ("[restart]\nmax-restarts = 1\nwindows = \"1h\"\n", "line 3: `restart.windows` is no known key"),
        ("[restart]\nmax-restarts = \"1\"\n", "line 2: `restart.max-restarts` is a text, not a whole number"),
        (
            "\n[[restart.rules]]\nexit = 0\nthen = \"fail\"\n",
            "line 2: `restart.rules` has the rule `exit=0:fail`, which can never match",
        ),
        (
            "[restart]\nmax-restarts = 0\ndelay = 1\n",
            "line 3: `restart.delay` is given, but a `--max-restarts` above 0 is not",
        ),
        ("[restart\n", "line 1: "),
    ] {
        let outcome = configured(&scratch, text).worker(["alive"]).run();
        outcome.exits(1).complains(said).complains("hint: ");
        assert!(outcome.err().contains(&scratch.at("rankrun.toml")), "{outcome}");
        assert_eq!(lives(&outcome), [0_u32; 0], "nothing starts\n{outcome}");
    }
}
