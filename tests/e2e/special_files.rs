//! FIFOs and devices in the place of files that the launcher reads or writes: refused, and never waited for.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::time::Duration;

use harness::{Launch, Name, Outcome, Scratch, is_rankrun};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// A launch that waits for a FIFO is ended long before the harness gives up.
const LIMIT: Duration = Duration::from_secs(30);

fn make_fifo(scratch: &Scratch, name: &str) -> String {
    let path = scratch.at(name);
    mkfifo(path.as_str(), Mode::S_IRWXU).expect("the scratch folder takes a FIFO");
    path
}

fn make_link(scratch: &Scratch, name: &str, target: &str) -> String {
    let path = scratch.at(name);
    symlink(target, &path).expect("the scratch folder takes a link");
    path
}

/// The FIFO, open for both directions: `open` would not wait for it.
fn open_fifo(path: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).custom_flags(nonblock_flag()).open(path);
    options.expect("the FIFO opens")
}

fn nonblock_flag() -> i32 {
    nix::fcntl::OFlag::O_NONBLOCK.bits()
}

#[test]
fn config_fifo_or_device_is_refused_at_once() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let pipe = make_fifo(&scratch, "fifo");
    for (path, kind) in [
        (pipe.clone(), "a FIFO (a pipe)"),
        (make_link(&scratch, "to-fifo", &pipe), "a FIFO (a pipe)"),
        ("/dev/zero".to_owned(), "a device"),
        (make_link(&scratch, "to-zero", "/dev/zero"), "a device"),
        ("/dev/tty".to_owned(), "a device"),
        (scratch.folder("folder", 0o755), "a folder"),
    ] {
        for name in Name::for_shared_behaviour() {
            let launch = Launch::standalone(*name, 1).env("RANKRUN_CONFIG", &*path).limit(LIMIT);
            let outcome = launch.worker(["print=started"]).run();
            outcome.expect_exit_code(1).expect_absent("started");
            let message =
                format!("the configuration file `{path}` cannot be read: {kind} is not a regular file");
            outcome.expect_stderr(&message).expect_stderr("hint: ");
        }
    }
}

/// Standard input is the workers' too.
#[test]
fn config_from_stdin_must_be_regular_file() {
    if !is_rankrun() {
        return;
    }
    let with = |launch: Launch| launch.args(["--config", "/dev/stdin"]).limit(LIMIT);
    let outcome = with(Launch::standalone(Name::Rankrun, 1).stdin_open()).worker(["print=started"]).run();
    outcome
        .expect_exit_code(1)
        .expect_absent("started")
        .expect_stderr("a FIFO (a pipe) is not a regular file");
    outcome
        .expect_stderr("hint: write it into a file, and name that: a pipe may be the input of the workers");
    let file = Launch::new(Name::Rankrun).stdin("[launch]\nnproc-per-node = 2\n");
    with(file.args(["--standalone"]))
        .worker(["alive"])
        .run()
        .expect_exit_code(0)
        .expect_stdout("alive rank=1");
}

/// A job that fails under this parent's error file.
fn run_failing_job(name: Name, path: &str) -> Outcome {
    let launch = Launch::standalone(name, 1).env("TORCHELASTIC_ERROR_FILE", path).limit(LIMIT);
    let file = r#"error-file={"message": {"message": "m", "extraInfo": {"timestamp": "5"}}}"#;
    let outcome = launch.worker([file, "exit=9"]).run();
    outcome.expect_exit_code(name.code(9)).expect_stderr("rank 0");
    outcome
}

#[test]
fn parent_error_file_fifo_or_device_is_refused_at_once() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let pipe = make_fifo(&scratch, "fifo");
        for (path, kind) in [
            (pipe.clone(), "a FIFO (a pipe)"),
            (make_link(&scratch, "to-fifo", &pipe), "a FIFO (a pipe)"),
            ("/dev/zero".to_owned(), "a device"),
            ("/dev/full".to_owned(), "a device"),
            (scratch.folder("folder", 0o755), "a folder"),
        ] {
            let outcome = run_failing_job(*name, &path);
            let lines = outcome.lines_with(&format!("`{path}`"));
            assert_eq!(lines.len(), 1, "one line says it\n{outcome}");
            assert!(lines[0].contains(&format!("{kind} is not a regular file")), "{outcome}");
        }
        // A reader makes it no file.
        let mut reader = open_fifo(&pipe);
        run_failing_job(*name, &pipe).expect_stderr("is not a regular file");
        let mut text = String::new();
        let _ = reader.read_to_string(&mut text);
        assert_eq!(text, "", "the FIFO was written");
    }
}

/// What the launcher writes to anyhow, and the way to throw it away.
#[test]
fn parent_error_file_may_be_own_output_or_null() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        run_failing_job(*name, "/dev/null").expect_absent("error file that");
        run_failing_job(*name, "/dev/stdout").expect_stdout("errorCode").expect_absent("error file that");
    }
}

#[test]
fn launcher_failure_with_fifo_parent_error_file_is_reported() {
    let scratch = Scratch::new();
    let pipe = make_fifo(&scratch, "fifo");
    for options in [["--no-python", "/nonexistent/program"], ["--nproc-per-node", "0"]] {
        let launch = Launch::new(Name::Rankrun).env("TORCHELASTIC_ERROR_FILE", &*pipe).limit(LIMIT);
        let outcome = launch.args(options).args(["x"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("error: ")
            .expect_stderr("a FIFO (a pipe) is not a regular file");
    }
}

/// A worker may put anything in the place of its own files.
#[test]
fn worker_error_file_fifo_or_device_is_ignored() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        for (line, cause) in [
            ("mkfifo \"$TORCHELASTIC_ERROR_FILE\"", "a FIFO (a pipe) is not a regular file"),
            // A reader has it open, so that an `open` would not wait.
            (
                "mkfifo \"$TORCHELASTIC_ERROR_FILE\"; sleep 1000 <>\"$TORCHELASTIC_ERROR_FILE\" >&0 &",
                "a FIFO (a pipe) is not a regular file",
            ),
            ("ln -s /dev/zero \"$TORCHELASTIC_ERROR_FILE\"", "Too many levels of symbolic links"),
            ("mkdir \"$TORCHELASTIC_ERROR_FILE\"", "a folder is not a regular file"),
        ] {
            let line = format!("rm -f \"$TORCHELASTIC_ERROR_FILE\"; {line}; exit 3");
            // torchrun replaces `$` in arguments.
            let line = line.replace('$', "$$").replace("; ;", ";").replace("&; ", "& ");
            let launch = Launch::standalone(*name, 1).limit(LIMIT).shell(&line);
            launch.run().expect_exit_code(name.code(3)).expect_stderr(cause).expect_stderr("exit code 3");
        }
    }
}

#[test]
fn worker_log_file_fifo_does_not_block_report() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let logs = scratch.at("logs");
        let line = format!(
            "for log in $$(find {logs} -name 'std*.log'); do rm -f $$log; mkfifo $$log; done; exit 3"
        );
        let options = ["--redirects", "3", "--log-dir", &logs];
        let launch = Launch::standalone(*name, 1).args(options).limit(LIMIT).shell(&line);
        let outcome = launch.run();
        outcome.expect_exit_code(name.code(3)).expect_stderr("exit code 3");
        let mut folders = vec![std::path::PathBuf::from(&logs)];
        let mut pipes = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("the log folder stays").flatten() {
                let kind = entry.file_type().expect("it is there");
                pipes += usize::from(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
                folders.extend(kind.is_dir().then(|| entry.path()));
            }
        }
        assert_eq!(pipes, 2, "the worker has replaced both\n{outcome}");
    }
}
