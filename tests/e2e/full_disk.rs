//! A log folder on a disk without room.

use harness::{Launch, Name, Outcome, Scratch, namespaces, only_ours};

/// `$1` becomes a disk of 1 MiB that the job alone sees.
const SMALL_DISK: &str = "mount -t tmpfs -o size=1m none \"$1\" && shift && exec \"$@\"";

/// A disk with room for so many files: its own folder, the run's, the attempt's, the worker's and two logs.
const FEW_FILES: &str = "mount -t tmpfs -o size=64m,nr_inodes=6 none \"$1\" && shift && exec \"$@\"";

/// The worker writes 3 MB and ends with 3.
fn on_disk(name: Name, disk: &str, option: &str) -> Option<(Outcome, String)> {
    let line = "head -c 3000000 /dev/zero | tr '\\0' '\\n'; exit 3";
    with_line_on_disk(name, disk, [option, "3"], line)
}

fn with_line_on_disk(name: Name, disk: &str, options: [&str; 2], line: &str) -> Option<(Outcome, String)> {
    if !namespaces() {
        return None;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("small", 0o755);
    let spaces = ["unshare", "--mount", "--propagation", "private", "sh", "-c", disk, "sh", &folder];
    let launch = Launch::standalone(name, 1).under(spaces).args(options).args(["--log-dir", &folder]);
    Some((launch.shell(line).run(), folder))
}

#[test]
fn redirected_worker_on_a_full_disk_names_the_log_folder() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let Some((outcome, folder)) = on_disk(*name, SMALL_DISK, "--redirects") else { return };
        outcome.exits(name.code(3)).complains(&format!(
            "cause     probably a full disk: the log folder `{folder}` has no space left (0 B free of 1.0 MiB)"
        ));
        outcome.complains("hint: free space there, or choose another folder with `--log-dir`");
        outcome.never_says("errors.record");
    }
}

#[test]
fn log_folder_without_free_inodes_is_named_too() {
    if !only_ours() {
        return;
    }
    let Some((outcome, folder)) = on_disk(Name::Rankrun, FEW_FILES, "--redirects") else { return };
    let words =
        format!("disk      the log folder `{folder}` has no room for another file (0 inodes free of ");
    outcome.exits(3).complains(&words);
}

#[test]
fn tee_on_a_full_disk_says_where_to_and_what_to_do() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let Some((outcome, folder)) = on_disk(*name, SMALL_DISK, "--tee") else { return };
        outcome.exits(name.code(3));
        let line = outcome.lines_with("stdout.log`, it ends here: ").remove(0);
        assert!(line.contains("No space left on device"), "{line}");
        assert!(line.contains("0 B free of 1.0 MiB") && line.contains("`--log-dir`"), "{line}");
        outcome.complains(&format!(
            "disk      the log folder `{folder}` has no space left (0 B free of 1.0 MiB)"
        ));
    }
}

#[test]
fn full_disk_beside_another_python_error_is_no_cause() {
    if !only_ours() {
        return;
    }
    for (error, is_cause) in [
        ("ValueError: own error unrelated", false),
        ("OSError: [Errno 28] No space left on device", true),
        ("OSError: [Errno 28] write failed", true),
    ] {
        let line = format!("head -c 3000000 /dev/zero 2>/dev/null; echo '{error}' >&2; exit 1");
        let options = ["--redirects", "1"];
        let Some((outcome, folder)) = with_line_on_disk(Name::Rankrun, SMALL_DISK, options, &line) else {
            return;
        };
        outcome.exits(1).complains(&format!("the log folder `{folder}` has no space left"));
        if is_cause {
            outcome.complains("cause     a full disk: ").complains("hint: free space there");
        } else {
            outcome.complains("disk      the log folder").never_says("cause     ").never_says("hint: ");
        }
    }
}

#[test]
fn log_folder_with_room_is_not_mentioned() {
    if only_ours() {
        let scratch = Scratch::new();
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--redirects", "3"]);
        let outcome = launch.args(["--log-dir", &scratch.at("logs")]).worker(["exit=3"]).run();
        outcome.exits(3).never_says("full disk").never_says("no space left");
    }
}
