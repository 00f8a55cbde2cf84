//! Programs as people write them, under our own name, under torchrun's, and under PyTorch's torchrun.

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Launch, Name, Outcome, Scratch, fixture, is_rankrun, is_soak};

/// The launchers that a program must not be able to tell apart. Under the name torchrun only with the big counts: what
/// a program finds there is what `tests/e2e/contract` compares.
fn names() -> Vec<Name> {
    let as_torchrun = is_soak().then_some(Name::Torchrun);
    [Name::Rankrun, Name::Reference].into_iter().chain(as_torchrun).collect()
}

/// A file beside this one.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pytorch/programs").join(name)
}

/// Two workers that have PyTorch, with one thread each.
fn two_workers(name: Name) -> Launch {
    Launch::standalone(name, 2).with_torch().env("OMP_NUM_THREADS", "1")
}

/// The script on two workers.
pub(crate) fn script(name: Name, script: &str) -> Launch {
    two_workers(name).args([source(script)])
}

/// Runs it under each name and gives the lines with that word, sorted: the same ones from every launcher.
#[track_caller]
pub(crate) fn assert_same_lines(key: &str, launch: impl Fn(Name) -> Launch) -> Vec<String> {
    let outcomes: Vec<Outcome> = names().into_iter().map(|name| launch(name).run()).collect();
    let output = |outcome: &Outcome| {
        let mut lines = outcome.expect_exit_code(0).lines_with(key);
        lines.sort();
        lines
    };
    for outcome in &outcomes {
        assert_eq!(output(outcome), output(&outcomes[0]), "the launchers differ\n{outcome}\n{}", outcomes[0]);
    }
    output(&outcomes[0])
}

/// The number that follows this word in a line.
#[track_caller]
pub(crate) fn number_after(line: &str, key: &str) -> f64 {
    let text = line.split(key).nth(1).and_then(|rest| rest.split(',').next());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number after `{key}` in `{line}`"))
}

/// The error files below a log folder, with what they say, by rank.
fn error_files(logs: &str) -> Vec<(String, String)> {
    let below = |folder: PathBuf| {
        let entries = fs::read_dir(&folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>()
    };
    let ranks = below(logs.into()).into_iter().flat_map(|run| below(run.join("attempt_0")));
    let mut found: Vec<_> = ranks
        .filter_map(|rank| {
            let text = fs::read_to_string(rank.join("error.json")).ok()?;
            Some((rank.file_name()?.to_str()?.to_owned(), text))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn recorded_exception_is_kept_and_reported() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let logs = scratch.at("logs");
        // The workers' own output goes to files: what stderr has, the launcher says.
        let launch = two_workers(*name).args(["--log-dir", &logs, "--redirects", "3"]);
        let outcome = launch.args([source("recorded.py")]).args(["raise"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("in train_step")
            .expect_stderr("RuntimeError: the loss is nan at step 3");
        let [(rank, text)] = &error_files(&logs)[..] else { panic!("not one error file\n{outcome}") };
        assert_eq!(rank, "1");
        assert!(
            text.contains(r#"{"message": {"message": "RuntimeError: the loss is nan at step 3""#),
            "{text}"
        );
    }
}

#[test]
fn crash_is_cause_instead_of_peer_failure() {
    for name in Name::both() {
        let outcome = script(*name, "recorded.py").args(["segfault"]).run();
        // 128 + 11 is rank 1's end; rank 0 fails with 1, or is stopped.
        outcome
            .expect_exit_code(name.code(139))
            .expect_stderr("SIGSEGV")
            .expect_stderr("Fatal Python error: Segmentation fault");
    }
}

#[test]
fn forking_data_loaders_read_all_data() {
    for name in Name::for_shared_behaviour() {
        // 1 + 2 + … + 32, once by rank 0 and twice by rank 1.
        script(*name, "loader.py").run().expect_exit_code(0).expect_stdout("total 1584.0\n");
    }
}

#[test]
fn data_loader_processes_end_after_failure() {
    for name in Name::both() {
        let outcome = script(*name, "loader.py").args(["fail"]).run();
        outcome.expect_exit_code(name.code(137)).expect_stderr("SIGKILL");
        let readers =
            outcome.stdout_lines().into_iter().filter(|line| line.starts_with("reader pid=")).count();
        assert_eq!(readers, 4, "not every reader was there\n{outcome}");
    }
}

#[test]
fn agent_store_serves_requests_beside_process_groups() {
    let output = assert_same_lines("fact ", |name| script(name, "agent_store.py"));
    assert_eq!(output.len(), 2 * 7 + 1, "the script stopped early: {output:#?}");
    let both_came = "gathered: [b'from 0', b'from 1']";
    assert_eq!(output.iter().filter(|line| line.ends_with(both_came)).count(), 2, "{output:#?}");
    assert!(output.iter().any(|line| line.contains("missing_ranks=[rank 1]")), "{output:#?}");
}

#[test]
fn rust_and_python_ranks_share_store() {
    for name in Name::for_shared_behaviour() {
        let (rust, script) = (fixture("worker"), source("beside_rust.py"));
        let line = format!(
            "case $$RANK in 0|2) exec {} beside-torch;; *) exec $$PYTHON_EXEC {};; esac",
            rust.display(),
            script.display()
        );
        let launch = Launch::standalone(*name, 4).with_torch().env("OMP_NUM_THREADS", "1");
        assert_agreed(&launch.shell(&line).run().expect_exit_code(0).lines_with("agreed "));
    }
}

/// Four ranks say so, with the same values.
#[track_caller]
fn assert_agreed(lines: &[String]) {
    let output = |line: &String| line.split_once("winner=").map(|(_, winner)| winner.to_owned());
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(
        output(&lines[0]).is_some() && lines.iter().all(|line| output(line) == output(&lines[0])),
        "{lines:#?}"
    );
}

#[test]
fn sharded_checkpoint_resumes_training_after_restart() {
    for name in [Name::Rankrun, Name::Torchrun].into_iter().take(if is_soak() { 2 } else { 1 }) {
        if !is_rankrun() {
            return;
        }
        let scratch = Scratch::new();
        let launch = two_workers(name).args(["--max-restarts", "1"]).args([source("sharded_checkpoint.py")]);
        let outcome = launch.args([&scratch.at("state"), "7"]).run();
        outcome
            .expect_exit_code(0)
            .expect_stdout("restart 0, from step 0")
            .expect_stdout("restart 1, from step 5");
        let lines = outcome.lines_with("ended with loss ");
        let [line] = &lines[..] else { panic!("one rank reports\n{outcome}") };
        let (sharded, alone) = (number_after(line, "loss "), number_after(line, "alone "));
        // Sums over two ranks are rounded otherwise.
        assert!((sharded - alone).abs() < 1e-5, "{line}");
    }
}

#[test]
fn packages_start_as_under_python() {
    let scratch = Scratch::new();
    let says = "import os, sys\n\
                told = [__name__, __package__, __spec__.name, sys.argv[1:], os.path.basename(sys.argv[0])]\n\
                print('told', told, sys.path[0], flush=True)\n";
    let relative = format!("from . import helper\nassert helper.HELPS\n{says}");
    for folder in ["plain", "spaced", "spaced/inner", "app"] {
        let _ = scratch.folder(folder, 0o755);
    }
    let files = [
        ("plain/__init__.py", ""),
        ("plain/helper.py", "HELPS = True"),
        ("plain/__main__.py", &relative),
        // A namespace package: no `__init__.py`, here or above.
        ("spaced/inner/helper.py", "HELPS = True"),
        ("spaced/inner/__main__.py", &relative),
        ("app/__main__.py", says),
    ];
    for (path, text) in files {
        let _ = scratch.file(path, text, 0o644);
    }
    for entrypoint in [&["-m", "plain"][..], &["-m", "spaced.inner"], &["app"]] {
        let output = assert_same_lines("told ", |name| {
            let launch = Launch::standalone(name, 1).with_torch().cwd(scratch.path());
            launch.args(entrypoint).args(["--epochs", "3"])
        });
        assert_eq!(output.len(), 1, "{entrypoint:?}: {output:?}");
        assert!(output[0].contains("['--epochs', '3']"), "{entrypoint:?}: {output:?}");
    }
}

#[test]
fn shell_script_gets_torchrun_environment() {
    let output = assert_same_lines("told ", |name| {
        let program = source("wrapper.sh").into_os_string();
        two_workers(name).args(["--no-python".into(), program]).args([
            "--device=${local_rank}",
            "two words",
            "*",
        ])
    });
    let python = "told python 1 of 2: ['--device=1', 'two words', '*'] in rank1";
    assert_eq!(output.len(), 6, "{output:#?}");
    assert!(output.iter().any(|line| line == python), "{output:#?}");
}

#[test]
fn shell_script_failure_ends_all_programs() {
    for name in Name::both() {
        let program = source("wrapper.sh").into_os_string();
        let launch = two_workers(*name).args(["--no-python".into(), program]);
        let outcome = launch.args(["fail"]).run();
        outcome.expect_exit_code(name.code(5)).expect_absent("done");
    }
}
