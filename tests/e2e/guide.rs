//! The guide for training in Rust, `docs/rust-training.md`, followed to the letter.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Launch, Machine, Name, Outcome, Scratch, checkout, fixture};

const GUIDE_PATH: &str = "docs/rust-training.md";

/// The blocks of code of this language, in their order.
fn code_blocks(guide: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    let inside = |rest: &str| rest.split("\n```").next().map(|text| format!("{text}\n"));
    guide.split(&opening).skip(1).filter_map(inside).collect()
}

fn guide_text() -> String {
    fs::read_to_string(checkout().join(GUIDE_PATH)).expect("the guide is there")
}

/// Makes the crate beside a checkout, as the guide says, builds all of it, and gives the folder of its programs.
///
/// Its sources have the same path each time, and it shares the target folder of this test: most dependencies are there.
fn build_guide_crate(scratch: &Scratch) -> PathBuf {
    let guide = guide_text();
    let programs_folder = fixture("worker").parent().expect("a program is in a folder").to_owned();
    let target = programs_folder.parent().expect("Cargo's folder has one for each profile").to_owned();
    let sources = target.join("guide");
    // It may be there from a run before.
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources).expect("the target folder is writable");
    symlink(checkout(), sources.join("rankrun")).expect("the target folder takes a link");
    let (manifests, programs) = (code_blocks(&guide, "toml"), code_blocks(&guide, "rust"));
    let [manifest, more] = &manifests[..] else { panic!("the guide has two manifests: {manifests:?}") };
    let [main, gpu] = &programs[..] else { panic!("the guide has two programs: {programs:?}") };
    // The second one replaces the dependencies.
    let package = manifest.split("[dependencies]").next().expect("there is a package");
    let folder = sources.join("spiral");
    fs::create_dir_all(folder.join("src/bin")).expect("the target folder is writable");
    for (name, text) in
        [("Cargo.toml", &format!("{package}{more}")), ("src/main.rs", main), ("src/bin/gpu.rs", gpu)]
    {
        fs::write(folder.join(name), text).expect("the target folder is writable");
    }
    // What the workspace has already fetched.
    fs::copy(checkout().join("Cargo.lock"), folder.join("Cargo.lock"))
        .expect("the workspace has a lock file");
    // It is also made without what only the second manifest brings.
    for text in [manifest, &format!("{package}{more}")] {
        fs::write(folder.join("Cargo.toml"), text).expect("the target folder is writable");
        let bins: &[&str] = if text == manifest { &["--bin", "spiral"] } else { &["--bins"] };
        run_cargo_build(&folder, &target, bins);
    }
    fs::create_dir_all(scratch.path().join("spiral")).expect("the scratch folder is writable");
    programs_folder
}

#[expect(clippy::disallowed_methods, reason = "builds the guide's crate, as its reader does")]
fn run_cargo_build(folder: &Path, target: &Path, arguments: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline"]).args(arguments).current_dir(folder);
    // The profile is the workspace's, so that its dependencies fit.
    let debug = std::env::var("CARGO_PROFILE_DEV_DEBUG").unwrap_or_else(|_| "line-tables-only".to_owned());
    cargo.env("CARGO_TARGET_DIR", target).env("CARGO_PROFILE_DEV_DEBUG", debug);
    // `.ci/run` has clippy there.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let built = cargo.output();
    let built = built.expect("cargo starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

fn assert_finished(outcome: &Outcome) {
    outcome.expect_exit_code(0).expect_stdout("finished: a = 3.0000, b = -2.0000");
}

#[test]
fn guide_crate_trains_and_survives_a_worker_crash() {
    let scratch = Scratch::new();
    let programs = build_guide_crate(&scratch);
    // The checkpoints are here.
    let folder = scratch.path().join("spiral");
    let program = programs.join("spiral");
    let launch = |workers| {
        let launch = Launch::standalone(Name::Rankrun, workers).args(["--device-type", "cpu"]);
        launch.args(["--max-restarts", "1"]).args([&program]).cwd(&folder)
    };

    let outcome = launch(2).run();
    assert_finished(&outcome);
    outcome.expect_stdout("rank 1 of 2, restart 1").expect_stdout("resumed from step 120");
    let of_launcher = ["failed: killed by SIGABRT", "starting all workers again (restart 1 of 1)"];
    for line in of_launcher {
        assert!(guide_text().contains(line), "the guide tells what there is to see");
        outcome.expect_stderr(line);
    }
    // It is done: more workers have nothing left to do.
    let outcome = launch(3).run();
    assert_finished(&outcome);
    outcome.expect_stdout("resumed from step 200");
    // Alone, from the beginning: rank 1 is not there to die.
    fs::remove_dir_all(folder.join("checkpoints")).expect("the checkpoints are there");
    let outcome = launch(1).run();
    assert_finished(&outcome);
    outcome.expect_stdout("rank 0 of 1, restart 0");

    fs::remove_dir_all(folder.join("checkpoints")).expect("the checkpoints are there");
    let gpu = programs.join("gpu");
    let launch = Launch::new(Name::Rankrun).on(&Machine::gpus(2).computing()).cwd(&folder);
    let outcome = launch.args(["--nproc-per-node", "gpu", "--max-restarts", "1"]).args([&gpu]).run();
    assert_finished(&outcome);
    outcome.expect_stdout("rank 1 of 2 on cuda:1, restart 1").expect_stdout("resumed from step 120");
    for line in of_launcher {
        outcome.expect_stderr(line);
    }
    let cpu = Launch::standalone(Name::Rankrun, 1).args(["--device-type", "cpu"]).args([&gpu]).run();
    cpu.expect_exit_code(3).expect_stderr("this program needs a GPU").expect_absent("panicked");
}
