//! `--log-dir`, `-r`, `-t`: files and prefixes as torchrun makes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use harness::{Launch, Name, Scratch};

/// A launch of two workers that logs below the scratch folder.
fn launch_with_log_dir(name: Name, scratch: &Scratch, options: &[&str]) -> Launch {
    Launch::standalone(name, 2).args(["--log-dir", &scratch.at("logs")]).args(options.iter().copied())
}

/// The folder of the only attempt.
#[track_caller]
fn attempt_folder(scratch: &Scratch) -> PathBuf {
    let runs: Vec<_> = fs::read_dir(scratch.at("logs")).expect("the log folder exists").collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.into_iter().next().and_then(Result::ok).expect("it can be listed").path().join("attempt_0")
}

#[track_caller]
fn read_bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn redirected_streams_are_in_log_tree_and_not_on_console() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let launch = launch_with_log_dir(*name, &scratch, &["-r", "3"]);
        let outcome = launch.worker(["print=out of {rank}", "eprint=err of {rank}"]).run();
        outcome.expect_exit_code(0).expect_absent("out of").expect_absent("err of");
        for rank in 0..2 {
            let folder = attempt_folder(&scratch).join(rank.to_string());
            assert_eq!(read_bytes(&folder.join("stdout.log")), format!("out of {rank}\n").into_bytes());
            assert_eq!(read_bytes(&folder.join("stderr.log")), format!("err of {rank}\n").into_bytes());
        }
    }
}

#[test]
fn log_tree_is_named_after_run_id() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let port = harness::free_port().to_string();
        let options =
            ["--log-dir", &scratch.at("logs"), "--rdzv-id", "night-7", "--master-port", &port, "-r", "3"];
        Launch::new(*name).args(options).worker(["print=x"]).run().expect_exit_code(0);
        let run = attempt_folder(&scratch).parent().expect("an attempt is in a run").to_owned();
        let file_name = run.file_name().and_then(|name| name.to_str()).expect("a plain name");
        let random = file_name.strip_prefix("night-7_").unwrap_or_else(|| panic!("{file_name}"));
        assert_eq!(random.len(), 8, "{file_name}");
        assert_eq!(fs::metadata(&run).expect("it exists").permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn every_rank_has_folder_without_redirect() {
    for name in Name::both() {
        let scratch = Scratch::new();
        // torch opens the error file without making its folder.
        let launch = launch_with_log_dir(*name, &scratch, &[]);
        launch
            .worker(["rank1:error-file={}", "rank1:exit=9", "forever"])
            .run()
            .expect_exit_code(name.code(9));
        assert_eq!(read_bytes(&attempt_folder(&scratch).join("1/error.json")), b"{}");
    }
}

#[test]
fn log_files_keep_every_byte() {
    for name in Name::both() {
        let scratch = Scratch::new();
        launch_with_log_dir(*name, &scratch, &["-t", "3"]).worker(["bytes"]).run().expect_exit_code(0);
        assert_eq!(read_bytes(&attempt_folder(&scratch).join("1/stdout.log")), b"a\xffb\rc\r\nlast");
    }
}

#[test]
fn redirect_map_selects_ranks_and_streams() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let launch = launch_with_log_dir(*name, &scratch, &["-r", "0:1,1:2"]);
        let outcome = launch.worker(["print=out of {rank}", "eprint=err of {rank}"]).run();
        outcome
            .expect_exit_code(0)
            .expect_stdout("out of 1")
            .expect_stderr("err of 0")
            .expect_absent("out of 0")
            .expect_absent("err of 1");
        let folder = attempt_folder(&scratch);
        let exists = |file: &str| folder.join(file).exists();
        assert!(exists("0/stdout.log") && !exists("0/stderr.log"));
        assert!(!exists("1/stdout.log") && exists("1/stderr.log"));
    }
}

#[test]
fn teed_lines_have_role_and_rank_prefix() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let launch = launch_with_log_dir(*name, &scratch, &["-t", "3", "--role", "trn"]);
        let outcome = launch.worker(["print=out of {rank}", "eprint=err of {rank}"]).run();
        outcome.expect_exit_code(0).expect_stdout("[trn0]:out of 0\n").expect_stdout("[trn1]:out of 1\n");
        outcome.expect_stderr("[trn0]:err of 0\n").expect_stderr("[trn1]:err of 1\n");
        assert_eq!(read_bytes(&attempt_folder(&scratch).join("1/stdout.log")), b"out of 1\n");
    }
}

#[test]
fn redirect_with_tee_acts_as_tee() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let outcome = launch_with_log_dir(*name, &scratch, &["-r", "1", "-t", "1"])
            .worker(["print=out of {rank}"])
            .run();
        outcome.expect_exit_code(0).expect_stdout("[default1]:out of 1\n");
    }
}

#[test]
fn log_dir_dev_null_under_torchrun_name_redirects_nothing() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--log-dir", "/dev/null", "-r", "3"]);
        let outcome = launch.worker(["print=hello"]).run();
        outcome.expect_exit_code(0);
        match name {
            // The folder is where the streams go.
            Name::Rankrun => outcome.expect_absent("hello"),
            Name::Torchrun | Name::Reference => outcome.expect_stdout("hello\n"),
        };
    }
}

#[test]
fn killed_worker_output_is_complete_in_log_file() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let steps = ["rank0:flood=2000", "rank0:die=SIGKILL", "forever"];
        launch_with_log_dir(*name, &scratch, &["-t", "1"])
            .worker(steps)
            .run()
            .expect_exit_code(name.code(137));
        let log = read_bytes(&attempt_folder(&scratch).join("0/stdout.log"));
        assert_eq!(log.iter().filter(|byte| **byte == b'\n').count(), 2000);
    }
}

#[test]
fn log_dir_removed_while_job_runs_is_made_again() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let logs = scratch.at("logs");
        let script = format!("[ $$TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; rm -rf '{logs}'; exit 3");
        let launch = launch_with_log_dir(*name, &scratch, &["--max-restarts", "1", "--tee", "3"]);
        launch.shell(&script).run().expect_exit_code(0);
        assert!(Path::new(&logs).is_dir());
    }
}
