//! A log folder on a disk without room.

use harness::{Launch, Name, Outcome, Scratch, can_use_namespaces, is_rankrun};

/// `$1` becomes a disk of 1 MiB that the job alone sees.
const SMALL_DISK: &str = "mount -t tmpfs -o size=1m none \"$1\" && shift && exec \"$@\"";

/// A disk with room for so many files: its own folder, the run's, the attempt's, the worker's and two logs.
const FEW_FILES: &str = "mount -t tmpfs -o size=64m,nr_inodes=6 none \"$1\" && shift && exec \"$@\"";

/// The worker writes 3 MB and ends with 3.
fn run_on_disk(name: Name, disk: &str, option: &str) -> Option<(Outcome, String)> {
    let line = "head -c 3000000 /dev/zero | tr '\\0' '\\n'; exit 3";
    run_shell_on_disk(name, disk, [option, "3"], line)
}

fn run_shell_on_disk(name: Name, disk: &str, options: [&str; 2], line: &str) -> Option<(Outcome, String)> {
    if !can_use_namespaces() {
        return None;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("small", 0o755);
    let spaces = ["unshare", "--mount", "--propagation", "private", "sh", "-c", disk, "sh", &folder];
    let launch = Launch::standalone(name, 1).under(spaces).args(options).args(["--log-dir", &folder]);
    Some((launch.shell(line).run(), folder))
}

#[test]
fn redirected_output_on_full_disk_names_log_dir() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let Some((outcome, folder)) = run_on_disk(*name, SMALL_DISK, "--redirects") else { return };
        outcome.expect_exit_code(name.code(3)).expect_stderr(&format!(
            "cause     probably a full disk: the log folder `{folder}` has no space left (0 B free of 1.0 MiB)"
        ));
        outcome.expect_stderr("hint: free space there, or choose another folder with `--log-dir`");
        outcome.expect_absent("errors.record");
    }
}

#[test]
fn log_dir_without_free_inodes_is_named() {
    if !is_rankrun() {
        return;
    }
    let Some((outcome, folder)) = run_on_disk(Name::Rankrun, FEW_FILES, "--redirects") else { return };
    let message =
        format!("disk      the log folder `{folder}` has no room for another file (0 inodes free of ");
    outcome.expect_exit_code(3).expect_stderr(&message);
}

#[test]
fn tee_on_full_disk_names_log_file_and_hint() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let Some((outcome, folder)) = run_on_disk(*name, SMALL_DISK, "--tee") else { return };
        outcome.expect_exit_code(name.code(3));
        let line = outcome.lines_with("stdout.log`, it ends here: ").remove(0);
        assert!(line.contains("No space left on device"), "{line}");
        assert!(line.contains("0 B free of 1.0 MiB") && line.contains("`--log-dir`"), "{line}");
        outcome.expect_stderr(&format!(
            "disk      the log folder `{folder}` has no space left (0 B free of 1.0 MiB)"
        ));
    }
}

#[test]
fn full_disk_is_cause_only_for_disk_errors() {
    if !is_rankrun() {
        return;
    }
    for (error, is_cause) in [
        ("ValueError: own error unrelated", false),
        ("OSError: [Errno 28] No space left on device", true),
        ("OSError: [Errno 28] write failed", true),
    ] {
        let line = format!("head -c 3000000 /dev/zero 2>/dev/null; echo '{error}' >&2; exit 1");
        let options = ["--redirects", "1"];
        let Some((outcome, folder)) = run_shell_on_disk(Name::Rankrun, SMALL_DISK, options, &line) else {
            return;
        };
        outcome.expect_exit_code(1).expect_stderr(&format!("the log folder `{folder}` has no space left"));
        if is_cause {
            outcome.expect_stderr("cause     a full disk: ").expect_stderr("hint: free space there");
        } else {
            outcome
                .expect_stderr("disk      the log folder")
                .expect_absent("cause     ")
                .expect_absent("hint: ");
        }
    }
}

#[test]
fn log_dir_with_free_space_is_not_mentioned() {
    if is_rankrun() {
        let scratch = Scratch::new();
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--redirects", "3"]);
        let outcome = launch.args(["--log-dir", &scratch.at("logs")]).worker(["exit=3"]).run();
        outcome.expect_exit_code(3).expect_absent("full disk").expect_absent("no space left");
    }
}
