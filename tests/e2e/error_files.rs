//! Error files: the report shows them, then they are removed; what no report shows is kept and named. `rankrun gc` removes
//! the folders of dead jobs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use harness::{
    Launch, Name, Outcome, Scratch, can_use_namespaces, free_port, is_rankrun, is_soak, print_notice,
};
use nix::sys::signal::Signal;

/// As torch's `record` writes it.
fn error_report_json(message: &str) -> String {
    let stack = format!("Traceback (most recent call last):\\n  step()\\n{message}");
    let extra = format!(r#"{{"py_callstack": "{stack}", "timestamp": "1700000000"}}"#);
    format!(r#"{{"message": {{"message": "{message}", "extraInfo": {extra}}}}}"#)
}

/// Rank 1 fails with this error file; ranks 0 and 2 write their own when they are stopped for that.
#[track_caller]
fn run_failing_job(launch: Launch, [first, second, third]: [&str; 3]) -> Outcome {
    let write = |rank: u32, text: &str| format!("rank{rank}:error-file={text}");
    let steps = ["catch", "alive", "rank1:read"].map(str::to_owned).into_iter();
    let fails = [write(1, second), "rank1:exit=3".to_owned(), "signal".to_owned()];
    let other_steps = [write(0, first), write(2, third), "exit=1".to_owned()];
    let mut job =
        launch.stdin_open().args(["--stdin", "1"]).worker(steps.chain(fails).chain(other_steps)).start();
    job.wait_for_lines("alive rank=", 3);
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
fn error_files_shown_in_report_are_removed() {
    if !is_rankrun() {
        return;
    }
    let peers = ["lost [10.0.0.1]:40", "ValueError: bad batch", "lost [10.0.0.2]:41"].map(error_report_json);
    let outcome = run_failing_job(Launch::standalone(Name::Rankrun, 3), peers.each_ref().map(String::as_str));
    outcome
        .expect_exit_code(3)
        .expect_stderr("error: rank 1 failed first")
        .expect_stderr("    | ValueError: bad batch\n");
    outcome.expect_stderr("  what ranks 0, 2 reported, alike but for numbers:\n    | Traceback");
    outcome.expect_stderr("\n    | rank 2: lost [10.0.0.2]:41\n");
    outcome.expect_stderr("    | lost [10.0.0.1]:40\n");
    assert!(!outcome.stderr().contains("error.json"), "{outcome}");
    assert_eq!(fs::read_dir(outcome.temporary()).expect("it exists").count(), 0, "{outcome}");
}

#[test]
fn error_files_in_given_log_dir_are_kept_and_named() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--log-dir", &scratch.at("logs")]);
    let texts = ["a", "b", "c"].map(error_report_json);
    let outcome = run_failing_job(launch, texts.each_ref().map(String::as_str));
    outcome.expect_exit_code(3).expect_stderr("/attempt_0/1/error.json\n");
    assert_eq!(files_below(scratch.path()).len(), 3, "{outcome}");
}

#[test]
fn error_files_under_torchrun_name_are_kept() {
    let texts = ["a", "b", "c"].map(error_report_json);
    let launch = Launch::standalone(Name::Torchrun, 3).env("RANKRUN_STDIN", "1");
    let write = |rank: usize| format!("rank{rank}:error-file={}", texts[rank]);
    let outcome = launch.worker([write(0), write(1), write(2), "exit=1".to_owned()]).run();
    outcome.expect_exit_code(1);
    assert!(!files_below(&outcome.temporary()).is_empty(), "{outcome}");
}

/// No JSON, and a text that is too long for a report.
#[test]
fn error_files_missing_from_report_are_kept_and_named() {
    if !is_rankrun() {
        return;
    }
    let long = error_report_json(&"x".repeat(20_000));
    let outcome =
        run_failing_job(Launch::standalone(Name::Rankrun, 3), ["{", &long, &error_report_json("shown")]);
    let kept = files_below(&outcome.temporary());
    assert_eq!(kept.len(), 2, "{kept:?}\n{outcome}");
    let run = kept[0].ancestors().nth(3).expect("it is in the run's folder").display().to_string();
    outcome
        .expect_exit_code(3)
        .expect_stderr(&format!("error files that no report shows are kept in `{run}`"));
    // What is kept of the first failure is named on its card.
    outcome.expect_stderr(&format!("  log       {run}/attempt_0/1/error.json\n"));
}

/// As `@record` leaves it on a full file system.
#[test]
fn empty_error_file_is_removed() {
    if !is_rankrun() {
        return;
    }
    let outcome =
        run_failing_job(Launch::standalone(Name::Rankrun, 3), ["", &error_report_json("shown"), ""]);
    outcome.expect_exit_code(3);
    assert!(!outcome.stderr().contains("no report shows"), "{outcome}");
    assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
}

#[test]
fn error_files_of_earlier_restarts_are_removed_if_text_is_shown() {
    if !is_rankrun() {
        return;
    }
    let launch = |last: &str| {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--max-restarts", "2"]);
        let write = |attempt: &str, text: &str| format!("{attempt}:error-file={}", error_report_json(text));
        launch.worker([write("attempt<2", "bad batch 7"), write("attempt2", last), "exit=3".to_owned()]).run()
    };
    let outcome = launch("bad batch 7");
    outcome.expect_exit_code(3);
    assert!(!outcome.stderr().contains("no report shows"), "{outcome}");
    assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
    // Another number is another text.
    let outcome = launch("bad batch 8");
    outcome.expect_exit_code(3).expect_stderr("error files that no report shows are kept in `");
    assert_eq!(files_below(&outcome.temporary()).len(), 2, "{outcome}");
}

/// Rank 0 writes its error file when it is stopped for the failure on the other node.
#[test]
fn error_files_of_second_failing_node_are_shown_and_removed() {
    if !is_rankrun() {
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
    jobs.iter().for_each(|job| drop(job.wait_for_line("alive rank=")));
    jobs.iter_mut().for_each(|job| job.type_text("\n"));
    let outcomes = jobs.map(harness::Job::wait);
    let peer = outcomes.iter().find(|outcome| outcome.stdout().contains("alive rank=0")).expect("rank 0 ran");
    peer.expect_stderr("reports of this node's workers:\n  what rank 0 reported:\n    | lost 1\n");
    for outcome in &outcomes {
        assert_eq!(files_below(&outcome.temporary()), [] as [PathBuf; 0], "{outcome}");
    }
}

/// The reader of the report has gone: the files are all that is left of it.
#[test]
fn error_files_are_kept_if_report_reader_is_gone() {
    if !is_rankrun() {
        return;
    }
    // The reader ends at once; a write that fails says so.
    let closed_reader = "exec 3>&2; { (trap '' PIPE; while echo; do :; done) 2> /dev/null; \
                         \"$@\" 2>&1 >&3; echo status=$? >&3; } | :";
    let launch = Launch::standalone(Name::Rankrun, 1).under(["sh", "-c", closed_reader, "sh"]);
    let text = format!("error-file={}", error_report_json("bad batch"));
    let outcome = launch.worker([text, "exit=3".to_owned()]).run();
    outcome.expect_stderr("status=3\n");
    assert_eq!(files_below(&outcome.temporary()).len(), 1, "{outcome}");
}

fn should_skip() -> bool {
    !can_use_namespaces() || !is_rankrun()
}

/// A job with a killed agent leaves its folder.
#[track_caller]
fn run_job_with_killed_agent(launch: Launch) -> Outcome {
    let job = launch.worker(["alive", "forever"]).start();
    job.wait_for_line("alive rank=0");
    job.signal_to(job.only_child_of(job.pid()), Signal::SIGKILL);
    job.wait()
}

/// `gc` looks at every process of the user and at `/dev/shm`: it must not meet what other tests leave there.
fn launch_in_container(launch: Launch, script: &str) -> Launch {
    let script = format!("mount -t tmpfs tmpfs /dev/shm || exit 97; {script}");
    let spaces = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    launch.under(spaces.into_iter().chain(["sh", "-c", &script, "sh"]))
}

fn run_gc(temporary: &Path, args: &[&str]) -> Outcome {
    let launch = Launch::new(Name::Rankrun).env("TMPDIR", temporary).args(["gc"]).args(args.iter().copied());
    launch_in_container(launch, "exec \"$@\"").run()
}

/// A place for the folders of one test, which other tests do not share.
const JOBS_FOLDER: &str = "place";

#[test]
fn gc_removes_folder_of_dead_job_and_keeps_live_ones() {
    if should_skip() {
        return;
    }
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let place = PathBuf::from(scratch.folder(JOBS_FOLDER, 0o777));
    let launch = || Launch::standalone(Name::Rankrun, 1).env("TMPDIR", &place);
    // A pid means nothing here: its pids are those of another namespace.
    let container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let live =
        [launch(), launch().under(container)].map(|launch| launch.worker(["alive", "forever"]).start());
    live.iter().for_each(|job| drop(job.wait_for_line("alive rank=0")));
    let live_folders: Vec<_> =
        fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path()).collect();
    drop(run_job_with_killed_agent(launch()));
    let all = || fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path());
    let dead = all().find(|path| !live_folders.contains(path)).expect("the killed job leaves its folder");
    let kept = elsewhere.file("kept", "", 0o644);
    symlink(elsewhere.path(), dead.join("link")).expect("the folder is ours");
    // Names of others: torch's own, a link, and a file.
    fs::create_dir(place.join("torchelastic_abcdefgh")).expect("the place is ours");
    symlink(&live_folders[0], place.join("torchelastic_rankrun_link1234")).expect("the place is ours");
    fs::write(place.join("torchelastic_rankrun_file1234"), "").expect("the place is ours");
    run_gc(&place, &["--dry-run"])
        .expect_exit_code(0)
        .expect_stdout(&format!("a dead job                {}\n", dead.display()));
    assert!(dead.exists());
    let outcome = run_gc(&place, &["--json"]);
    outcome
        .expect_exit_code(0)
        .expect_stdout("\"kind\": \"error_files\"")
        .expect_stdout("\"fate\": \"removed\"");
    assert!(outcome.stdout().contains(&dead.display().to_string()), "{outcome}");
    assert!(!dead.exists() && Path::new(&kept).exists() && live_folders.iter().all(|path| path.is_dir()));
    assert_eq!(all().count(), live_folders.len() + 3, "{:?}", all().collect::<Vec<_>>());
}

/// With a log folder of the user's, the channels of the workers' progress have a folder of their own.
#[test]
fn gc_removes_progress_folder_of_dead_job() {
    if should_skip() {
        return;
    }
    let scratch = Scratch::new();
    let (place, logs) = (PathBuf::from(scratch.folder(JOBS_FOLDER, 0o777)), scratch.folder("logs", 0o777));
    let launch = Launch::standalone(Name::Rankrun, 1).env("TMPDIR", &place).args(["--log-dir", &logs]);
    drop(run_job_with_killed_agent(launch));
    let all = || fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path());
    let left: Vec<_> = all().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    run_gc(&place, &[]).expect_exit_code(0);
    assert_eq!(all().count(), 0, "{left:?}");
}

/// Root may remove anything, and does not.
#[test]
fn gc_keeps_folder_of_other_users_dead_job() {
    if should_skip() {
        return;
    }
    let scratch = Scratch::new();
    let place = PathBuf::from(scratch.folder(JOBS_FOLDER, 0o777));
    drop(run_job_with_killed_agent(Launch::standalone(Name::Rankrun, 1).env("TMPDIR", &place).user(65_534)));
    let folder =
        || fs::read_dir(&place).expect("it exists").map(|entry| entry.expect("listed").path()).next();
    let dead = folder().expect("the killed job leaves its folder");
    assert!(!run_gc(&place, &[]).stdout().contains(&dead.display().to_string()));
    assert_eq!(folder(), Some(dead));
}

/// A worker ends with 4 if its folder is gone.
const CHECK_FOLDER_SCRIPT: &str =
    "for i in 1 2 3 4 5; do [ -d $${TORCHELASTIC_ERROR_FILE%/*} ] || exit 4; sleep 0.01; done";

#[test]
fn gc_keeps_folder_of_job_that_is_starting() {
    if should_skip() {
        return;
    }
    let rounds = if is_soak() { 400 } else { 20 };
    let scratch = Scratch::new();
    let place = PathBuf::from(scratch.folder(JOBS_FOLDER, 0o777));
    let collector = "while [ -d \"$TMPDIR/go-on\" ]; do \"$@\" gc --json; done";
    fs::create_dir(place.join("go-on")).expect("the place is ours");
    let collecting = launch_in_container(Launch::new(Name::Rankrun).env("TMPDIR", &place), collector).start();
    collecting.wait_for_line("processes");
    for round in 0..rounds {
        let launch = Launch::standalone(Name::Rankrun, 2).env("TMPDIR", &place);
        let outcome = launch.shell(CHECK_FOLDER_SCRIPT).run();
        assert_eq!(outcome.status.code(), Some(0), "in round {round}\n{outcome}");
    }
    fs::remove_dir(place.join("go-on")).expect("the place is ours");
    let outcome = collecting.wait();
    outcome.expect_exit_code(0);
    assert!(!outcome.stdout().contains("failed"), "{outcome}");
    if is_soak() {
        print_notice(&format!(
            "{rounds} of {rounds} jobs kept their folder beside a `gc` that runs again and again"
        ));
    }
}

#[test]
fn invalid_error_file_is_named_and_exit_code_is_kept() {
    // PyTorch's torchrun ends with a traceback of its own, and without a report.
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        for text in ["[1,2]", r#"{"a":1}"#, "null", r#""a text""#, r#"{"message":5}"#, "{"] {
            let scratch = Scratch::new();
            let logs = scratch.folder("logs", 0o777);
            let launch = Launch::standalone(*name, 1).args(["--log-dir".to_owned(), logs]);
            let outcome = launch.worker([format!("error-file={text}"), "exit=9".to_owned()]).run();
            let why = if text == "{" { "it is not JSON: " } else { "it is JSON, but not an error report " };
            outcome.expect_exit_code(name.code(9)).expect_stderr(&format!("error.json` is left out: {why}"));
            outcome.expect_stderr("rank 0 failed first: exit code 9").expect_absent("panicked");
        }
    }
}
