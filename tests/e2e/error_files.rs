//! Error files: the report shows them, then they are removed; what no report shows is kept and named. `rankrun gc` removes
//! the folders of dead jobs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use harness::{Launch, Name, Outcome, Scratch, free_port, namespaces, only_ours, soak, tell};
use nix::sys::signal::Signal;

/// As torch's `record` writes it.
fn recorded(message: &str) -> String {
    let stack = format!("Traceback (most recent call last):\\n  step()\\n{message}");
    let extra = format!(r#"{{"py_callstack": "{stack}", "timestamp": "1700000000"}}"#);
    format!(r#"{{"message": {{"message": "{message}", "extraInfo": {extra}}}}}"#)
}

/// Rank 1 fails with this error file; ranks 0 and 2 write their own when they are stopped for that.
#[track_caller]
fn failed_job(launch: Launch, [first, second, third]: [&str; 3]) -> Outcome {
    let write = |rank: u32, text: &str| format!("rank{rank}:error-file={text}");
    let steps = ["catch", "alive", "rank1:read"].map(str::to_owned).into_iter();
    let fails = [write(1, second), "rank1:exit=3".to_owned(), "signal".to_owned()];
    let others = [write(0, first), write(2, third), "exit=1".to_owned()];
    let mut job = launch.stdin_open().args(["--stdin", "1"]).worker(steps.chain(fails).chain(others)).start();
    job.lines("alive rank=", 3);
    job.type_text("\n");
    job.wait()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("the folder exists").map(|entry| entry.expect("it can be listed"));
    let (folders, files): (Vec<_>, Vec<_>) =
        entries.map(|entry| entry.path()).partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| files_below(folder))).collect()
}

#[test]
fn error_files_in_the_report_are_removed() {
    if !only_ours() {
        return;
    }
    let peers = ["lost [10.0.0.1]:40", "ValueError: bad batch", "lost [10.0.0.2]:41"].map(recorded);
    let outcome = failed_job(Launch::standalone(Name::Rankrun, 3), peers.each_ref().map(String::as_str));
    outcome.exits(3).complains("error: rank 1 failed first").complains("    | ValueError: bad batch\n");
    outcome.complains("  what ranks 0, 2 reported, alike but for numbers:\n    | Traceback");
    outcome.complains("\n    | rank 2: lost [10.0.0.2]:41\n");
    outcome.complains("    | lost [10.0.0.1]:40\n");
    assert!(!outcome.err().contains("error.json"), "{outcome}");
    assert_eq!(fs::read_dir(outcome.temporary()).expect("it exists").count(), 0, "{outcome}");
}

#[test]
fn error_files_below_a_given_log_folder_are_kept_and_named() {
    if !only_ours() {
        return;
    }
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--log-dir", &scratch.at("logs")]);
    let texts = ["a", "b", "c"].map(recorded);
    let outcome = failed_job(launch, texts.each_ref().map(String::as_str));
    outcome.exits(3).complains("/attempt_0/1/error.json\n");
    assert_eq!(files_below(scratch.path()).len(), 3, "{outcome}");
}

#[test]
fn error_files_under_the_name_torchrun_are_kept() {
    let texts = ["a", "b", "c"].map(recorded);
    let launch = Launch::standalone(Name::Torchrun, 3).env("RANKRUN_STDIN", "1");
    let write = |rank: usize| format!("rank{rank}:error-file={}", texts[rank]);
    let outcome = launch.worker([write(0), write(1), write(2), "exit=1".to_owned()]).run();
    outcome.exits(1);
    assert!(!files_below(&outcome.temporary()).is_empty(), "{outcome}");
}

/// No JSON, and a text that is too long for a report.
#[test]
fn error_files_that_no_report_shows_are_kept_and_named() {
    if !only_ours() {
        return;
    }
    let long = recorded(&"x".repeat(20_000));
    let outcome = failed_job(Launch::standalone(Name::Rankrun, 3), ["{", &long, &recorded("shown")]);
    let kept = files_below(&outcome.temporary());
    assert_eq!(kept.len(), 2, "{kept:?}\n{outcome}");
    let run = kept[0].ancestors().nth(3).expect("it is in the run's folder").display().to_string();
    outcome.exits(3).complains(&format!("error files that no report shows are kept in `{run}`"));
    // What is kept of the first failure is named on its card.
    outcome.complains(&format!("  log       {run}/attempt_0/1/error.json\n"));
}

/// As `@record` leaves it on a full file system.
#[test]
fn error_file_without_content_is_removed_with_the_others() {
    if !only_ours() {
        return;
    }
    let outcome = failed_job(Launch::standalone(Name::Rankrun, 3), ["", &recorded("shown"), ""]);
    outcome.exits(3);
    assert!(!outcome.err().contains("no report shows"), "{outcome}");
    assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
}

#[test]
fn error_files_of_earlier_lives_go_if_the_report_shows_their_text() {
    if !only_ours() {
        return;
    }
    let launch = |last: &str| {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "2"]);
        let write = |life: &str, text: &str| format!("{life}:error-file={}", recorded(text));
        launch.worker([write("life<2", "bad batch 7"), write("life2", last), "exit=3".to_owned()]).run()
    };
    let outcome = launch("bad batch 7");
    outcome.exits(3);
    assert!(!outcome.err().contains("no report shows"), "{outcome}");
    assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
    // Another number is another text.
    let outcome = launch("bad batch 8");
    outcome.exits(3).complains("error files that no report shows are kept in `");
    assert_eq!(files_below(&outcome.temporary()).len(), 2, "{outcome}");
}

/// Rank 0 writes its error file when it is stopped for the failure on the other node.
#[test]
fn error_files_of_a_node_that_did_not_fail_first_are_shown_and_removed() {
    if !only_ours() {
        return;
    }
    let endpoint = format!("localhost:{}", free_port());
    let steps =
        ["catch", "alive", "rank0:signal", "rank0:error-file={\"message\": \"lost 1\"}", "rank0:exit=1"];
    let steps = steps.iter().chain(&["rank1:read", "rank1:error-file={\"message\": \"cause\"}", "exit=3"]);
    let node = || {
        let launch =
            Launch::new(Name::Rankrun).args(["--nnodes", "2", "--nproc-per-node", "1", "--stdin", "all"]);
        let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-id", "x", "--iface", "lo"]);
        launch.args(["--rdzv-endpoint", &endpoint]).stdin_open().worker(steps.clone().copied()).start()
    };
    let mut jobs = [node(), node()];
    jobs.iter().for_each(|job| drop(job.line("alive rank=")));
    jobs.iter_mut().for_each(|job| job.type_text("\n"));
    let outcomes = jobs.map(harness::Job::wait);
    let peer = outcomes.iter().find(|outcome| outcome.out().contains("alive rank=0")).expect("rank 0 ran");
    peer.complains("reports of this node's workers:\n  what rank 0 reported:\n    | lost 1\n");
    for outcome in &outcomes {
        assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
    }
}

/// The reader of the report has gone: the files are all that is left of it.
#[test]
fn error_files_stay_where_no_process_reads_the_report() {
    if !only_ours() {
        return;
    }
    let deaf = "exec 3>&2; { \"$@\" 2>&1 >&3; echo status=$? >&3; } | :";
    let launch = Launch::standalone(Name::Rankrun, 1).under(["sh", "-c", deaf, "sh"]);
    let text = format!("error-file={}", recorded("bad batch"));
    let outcome = launch.worker(["sleep-ms=300".to_owned(), text, "exit=3".to_owned()]).run();
    outcome.complains("status=3\n");
    assert_eq!(files_below(&outcome.temporary()).len(), 1, "{outcome}");
}

fn skipped() -> bool {
    !namespaces() || !only_ours()
}

/// A job with a killed agent leaves its folder.
#[track_caller]
fn killed_job(launch: Launch) -> Outcome {
    let job = launch.worker(["alive", "forever"]).start();
    job.line("alive rank=0");
    job.signal_to(job.only_child_of(job.pid()), Signal::SIGKILL);
    job.wait()
}

/// `gc` looks at every process of the user and at `/dev/shm`: it must not meet what other tests leave there.
fn apart(launch: Launch, script: &str) -> Launch {
    let script = format!("mount -t tmpfs tmpfs /dev/shm || exit 97; {script}");
    let spaces = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    launch.under(spaces.into_iter().chain(["sh", "-c", &script, "sh"]))
}

fn gc(temporary: &Path, words: &[&str]) -> Outcome {
    let launch = Launch::new(Name::Rankrun).env("TMPDIR", temporary).args(["gc"]).args(words.iter().copied());
    apart(launch, "exec \"$@\"").run()
}

/// A place for the folders of one test, which other tests do not share.
const PLACE: &str = "place";

#[test]
fn folder_of_a_dead_job_is_removed_and_that_of_a_live_one_stays() {
    if skipped() {
        return;
    }
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let place = PathBuf::from(scratch.folder(PLACE, 0o777));
    let launch = || Launch::standalone(Name::Rankrun, 1).env("TMPDIR", &place);
    // A pid means nothing here: its pids are those of another namespace.
    let container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let live =
        [launch(), launch().under(container)].map(|launch| launch.worker(["alive", "forever"]).start());
    live.iter().for_each(|job| drop(job.line("alive rank=0")));
    let living: Vec<_> =
        fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path()).collect();
    drop(killed_job(launch()));
    let all = || fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path());
    let dead = all().find(|path| !living.contains(path)).expect("the killed job leaves its folder");
    let kept = elsewhere.file("kept", "", 0o644);
    symlink(elsewhere.path(), dead.join("link")).expect("the folder is ours");
    // Names of others: torch's own, a link, and a file.
    fs::create_dir(place.join("torchelastic_abcdefgh")).expect("the place is ours");
    symlink(&living[0], place.join("torchelastic_rankrun_link1234")).expect("the place is ours");
    fs::write(place.join("torchelastic_rankrun_file1234"), "").expect("the place is ours");
    gc(&place, &["--dry-run"]).exits(0).says(&format!("a dead job                {}\n", dead.display()));
    assert!(dead.exists());
    let outcome = gc(&place, &["--json"]);
    outcome.exits(0).says("\"kind\": \"error_files\"").says("\"fate\": \"removed\"");
    assert!(outcome.out().contains(&dead.display().to_string()), "{outcome}");
    assert!(!dead.exists() && Path::new(&kept).exists() && living.iter().all(|path| path.is_dir()));
    assert_eq!(all().count(), living.len() + 3, "{:?}", all().collect::<Vec<_>>());
}

/// Root may remove anything, and does not.
#[test]
fn folder_of_a_dead_job_of_another_user_stays() {
    if skipped() {
        return;
    }
    let scratch = Scratch::new();
    let place = PathBuf::from(scratch.folder(PLACE, 0o777));
    drop(killed_job(Launch::standalone(Name::Rankrun, 1).env("TMPDIR", &place).user(65_534)));
    let folder =
        || fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path()).next();
    let dead = folder().expect("the killed job leaves its folder");
    assert!(!gc(&place, &[]).out().contains(&dead.display().to_string()));
    assert_eq!(folder(), Some(dead));
}

/// A worker ends with 4 if its folder is gone.
const LOOK: &str = "for i in 1 2 3 4 5; do [ -d $${TORCHELASTIC_ERROR_FILE%/*} ] || exit 4; sleep 0.01; done";

#[test]
fn folder_of_a_job_that_starts_beside_gc_stays() {
    if skipped() {
        return;
    }
    let rounds = if soak() { 400 } else { 20 };
    let scratch = Scratch::new();
    let place = PathBuf::from(scratch.folder(PLACE, 0o777));
    let collector = "while [ -d \"$TMPDIR/go-on\" ]; do \"$@\" gc --json; done";
    fs::create_dir(place.join("go-on")).expect("the place is ours");
    let collecting = apart(Launch::new(Name::Rankrun).env("TMPDIR", &place), collector).start();
    collecting.line("processes");
    for round in 0..rounds {
        let launch = Launch::standalone(Name::Rankrun, 2).env("TMPDIR", &place);
        let outcome = launch.shell(LOOK).run();
        assert_eq!(outcome.status.code(), Some(0), "in round {round}\n{outcome}");
    }
    fs::remove_dir(place.join("go-on")).expect("the place is ours");
    let outcome = collecting.wait();
    outcome.exits(0);
    assert!(!outcome.out().contains("failed"), "{outcome}");
    if soak() {
        tell(&format!("{rounds} of {rounds} jobs kept their folder beside a `gc` that runs again and again"));
    }
}

#[test]
fn json_error_file_that_is_not_a_report_is_named_and_the_exit_code_stays() {
    // PyTorch's torchrun ends with a traceback of its own, and without a report.
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        for text in ["[1,2]", r#"{"a":1}"#, "null", r#""a text""#, r#"{"message":5}"#, "{"] {
            let scratch = Scratch::new();
            let logs = scratch.folder("logs", 0o777);
            let launch = Launch::standalone(*name, 1).args(["--log-dir".to_owned(), logs]);
            let outcome = launch.worker([format!("error-file={text}"), "exit=9".to_owned()]).run();
            let why = if text == "{" { "it is not JSON: " } else { "it is JSON, but not an error report " };
            outcome.exits(name.code(9)).complains(&format!("error.json` is left out: {why}"));
            outcome.complains("rank 0 failed first: exit code 9").never_says("panicked");
        }
    }
}
