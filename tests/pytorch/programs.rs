//! Programs as people write them, under our own name, under torchrun's, and under PyTorch's torchrun.

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Launch, Name, Outcome, Scratch, fixture, only_ours, soak};

/// The launchers that a program must not be able to tell apart. Under the name torchrun only with the big counts: what
/// a program finds there is what `tests/e2e/contract` compares.
fn names() -> Vec<Name> {
    let as_torchrun = soak().then_some(Name::Torchrun);
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
pub(crate) fn told_alike(word: &str, launch: impl Fn(Name) -> Launch) -> Vec<String> {
    let outcomes: Vec<Outcome> = names().into_iter().map(|name| launch(name).run()).collect();
    let told = |outcome: &Outcome| {
        let mut lines = outcome.exits(0).lines_with(word);
        lines.sort();
        lines
    };
    for outcome in &outcomes {
        assert_eq!(told(outcome), told(&outcomes[0]), "the launchers differ\n{outcome}\n{}", outcomes[0]);
    }
    told(&outcomes[0])
}

/// The number that follows this word in a line.
#[track_caller]
pub(crate) fn number_after(line: &str, word: &str) -> f64 {
    let text = line.split(word).nth(1).and_then(|rest| rest.split(',').next());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number after `{word}` in `{line}`"))
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
fn a_recorded_exception_is_kept_and_told() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let logs = scratch.at("logs");
        // The workers' own output goes to files: what stderr has, the launcher says.
        let launch = two_workers(*name).args(["--log-dir", &logs, "--redirects", "3"]);
        let outcome = launch.args([source("recorded.py")]).args(["raise"]).run();
        outcome.exits(1).complains("in train_step").complains("RuntimeError: the loss is nan at step 3");
        let [(rank, text)] = &error_files(&logs)[..] else { panic!("not one error file\n{outcome}") };
        assert_eq!(rank, "1");
        assert!(
            text.contains(r#"{"message": {"message": "RuntimeError: the loss is nan at step 3""#),
            "{text}"
        );
    }
}

#[test]
fn a_crash_is_the_cause_and_its_victim_is_not() {
    for name in Name::both() {
        let outcome = script(*name, "recorded.py").args(["segfault"]).run();
        // 128 + 11 is rank 1's end; rank 0 fails with 1, or is stopped.
        outcome
            .exits(name.code(139))
            .complains("SIGSEGV")
            .complains("Fatal Python error: Segmentation fault");
    }
}

#[test]
fn data_loaders_that_fork_read_all_of_the_data() {
    for name in Name::both() {
        // 1 + 2 + … + 32, once by rank 0 and twice by rank 1.
        script(*name, "loader.py").run().exits(0).says("total 1584.0\n");
    }
}

#[test]
fn of_data_loaders_nothing_is_left_after_a_failure() {
    for name in Name::both() {
        let outcome = script(*name, "loader.py").args(["fail"]).run();
        outcome.exits(name.code(137)).complains("SIGKILL");
        let readers = outcome.out_lines().into_iter().filter(|line| line.starts_with("reader pid=")).count();
        assert_eq!(readers, 4, "not every reader was there\n{outcome}");
    }
}

#[test]
fn the_agents_store_serves_what_is_beside_process_groups() {
    let told = told_alike("fact ", |name| script(name, "agent_store.py"));
    assert_eq!(told.len(), 2 * 7 + 1, "the script stopped early: {told:#?}");
    let both_came = "gathered: [b'from 0', b'from 1']";
    assert_eq!(told.iter().filter(|line| line.ends_with(both_came)).count(), 2, "{told:#?}");
    assert!(told.iter().any(|line| line.contains("missing_ranks=[rank 1]")), "{told:#?}");
}

#[test]
fn rust_and_python_ranks_meet_on_one_store() {
    for name in Name::both() {
        let (rust, script) = (fixture("worker"), source("beside_rust.py"));
        let line = format!(
            "case $$RANK in 0|2) exec {} beside-torch;; *) exec $$PYTHON_EXEC {};; esac",
            rust.display(),
            script.display()
        );
        let launch = Launch::standalone(*name, 4).with_torch().env("OMP_NUM_THREADS", "1");
        agreed(&launch.shell(&line).run().exits(0).lines_with("agreed "));
    }
}

/// Four ranks say so, with the same values.
#[track_caller]
fn agreed(lines: &[String]) {
    let told = |line: &String| line.split_once("winner=").map(|(_, told)| told.to_owned());
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(
        told(&lines[0]).is_some() && lines.iter().all(|line| told(line) == told(&lines[0])),
        "{lines:#?}"
    );
}

#[test]
fn a_sharded_checkpoint_carries_training_over_a_restart() {
    for name in [Name::Rankrun, Name::Torchrun].into_iter().take(if soak() { 2 } else { 1 }) {
        if !only_ours() {
            return;
        }
        let scratch = Scratch::new();
        let launch = two_workers(name).args(["--max-restarts", "1"]).args([source("sharded_checkpoint.py")]);
        let outcome = launch.args([&scratch.at("state"), "7"]).run();
        outcome.exits(0).says("restart 0, from step 0").says("restart 1, from step 5");
        let lines = outcome.lines_with("ended with loss ");
        let [line] = &lines[..] else { panic!("one rank reports\n{outcome}") };
        let (sharded, alone) = (number_after(line, "loss "), number_after(line, "alone "));
        // Sums over two ranks are rounded otherwise.
        assert!((sharded - alone).abs() < 1e-5, "{line}");
    }
}

#[test]
fn packages_start_as_under_python_itself() {
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
        let told = told_alike("told ", |name| {
            let launch = Launch::standalone(name, 1).with_torch().cwd(scratch.path());
            launch.args(entrypoint).args(["--epochs", "3"])
        });
        assert_eq!(told.len(), 1, "{entrypoint:?}: {told:?}");
        assert!(told[0].contains("['--epochs', '3']"), "{entrypoint:?}: {told:?}");
    }
}

#[test]
fn a_shell_script_gets_what_torchrun_gives_it() {
    let told = told_alike("told ", |name| {
        let program = source("wrapper.sh").into_os_string();
        two_workers(name).args(["--no-python".into(), program]).args([
            "--device=${local_rank}",
            "two words",
            "*",
        ])
    });
    let python = "told python 1 of 2: ['--device=1', 'two words', '*'] in rank1";
    assert_eq!(told.len(), 6, "{told:#?}");
    assert!(told.iter().any(|line| line == python), "{told:#?}");
}

#[test]
fn a_shell_scripts_failure_is_its_programs_and_ends_the_others_programs() {
    for name in Name::both() {
        let program = source("wrapper.sh").into_os_string();
        let launch = two_workers(*name).args(["--no-python".into(), program]);
        let outcome = launch.args(["fail"]).run();
        outcome.exits(name.code(5)).never_says("done");
    }
}
