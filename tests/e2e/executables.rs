//! What may be an entrypoint under our own name.

use harness::{Launch, Name, Scratch, fixture};

#[test]
fn executable_runs_without_no_python_option() {
    let launch = Launch::standalone(Name::Rankrun, 2).args([fixture("worker")]);
    let outcome = launch.args(["print=rank {rank}"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
}

#[test]
fn script_with_shebang_is_executed() {
    let scratch = Scratch::new();
    let script = scratch.file("train", "#!/bin/sh\necho rank $RANK \"$@\"\n", 0o755);
    let outcome = Launch::standalone(Name::Rankrun, 1).args([script.as_str(), "--lr", "1"]).run();
    outcome.expect_exit_code(0).expect_stdout("rank 0 --lr 1\n");
}

#[test]
fn executable_py_file_runs_with_python() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "#!/bin/false\n", 0o755);
    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", "/bin/echo");
    let outcome = launch.args([script.as_str()]).run();
    outcome.expect_exit_code(0).expect_stdout(&format!("-u {script}\n"));
}

#[test]
fn executable_under_torchrun_name_runs_with_python() {
    let scratch = Scratch::new();
    let script = scratch.file("train", "#!/bin/false\n", 0o755);
    let launch = Launch::standalone(Name::Torchrun, 1).env("PYTHON_EXEC", "/bin/echo");
    let outcome = launch.args([script.as_str()]).run();
    outcome.expect_exit_code(0).expect_stdout(&format!("-u {script}\n"));
}

#[test]
fn path_is_never_a_subcommand() {
    let scratch = Scratch::new();
    // The name of a verb, but written as a path.
    let _ = scratch.file("run", "#!/bin/sh\necho it ran\n", 0o755);
    let launch = Launch::new(Name::Rankrun).cwd(scratch.path());
    launch.args(["./run"]).run().expect_exit_code(0).expect_stdout("it ran\n");
}

/// A folder with a `python` that names itself.
fn create_fake_python(scratch: &Scratch, folder: &str) -> String {
    let path = scratch.folder(folder, 0o755);
    let _ = scratch.file(&format!("{folder}/python"), &format!("#!/bin/sh\necho {folder} \"$@\"\n"), 0o755);
    path
}

#[test]
fn python_is_found_in_path() {
    let scratch = Scratch::new();
    let path = format!("{}:/usr/bin:/bin", create_fake_python(&scratch, "first"));
    let script = scratch.file("x.py", "", 0o644);
    let outcome = Launch::standalone(Name::Rankrun, 1).env("PATH", path).args([script.as_str()]).run();
    outcome.expect_exit_code(0).expect_stdout(&format!("first -u {script}\n"));
}

#[test]
fn python_beside_launcher_is_preferred_to_path() {
    let scratch = Scratch::new();
    let venv = create_fake_python(&scratch, "venv");
    let path = format!("{}:/usr/bin:/bin", create_fake_python(&scratch, "other"));
    std::os::unix::fs::symlink(fixture("launcher-under-test"), format!("{venv}/rankrun"))
        .expect("a new link");
    let script = scratch.file("x.py", "", 0o644);
    // `env` starts its first argument, the venv's link, with the harness's own as an argument of no use.
    let line = ["sh", "-c", "shift; exec \"$@\"", "sh"];
    let launch = Launch::new(Name::Rankrun).under(line).env("PATH", path);
    let outcome = launch.args([format!("{venv}/rankrun"), "--standalone".into(), script.clone()]).run();
    outcome.expect_exit_code(0).expect_stdout(&format!("venv -u {script}\n"));
    // They disagree: one line says which was taken.
    outcome.expect_stderr(&format!("{venv}/python"));
}

#[test]
fn missing_python_is_named() {
    let scratch = Scratch::new();
    let script = scratch.file("x.py", "", 0o644);
    let empty = scratch.folder("empty", 0o755);
    let launch = Launch::standalone(Name::Rankrun, 1).env("PATH", empty);
    launch
        .args([script.as_str()])
        .run()
        .expect_exit_code(1)
        .expect_stderr("error:")
        .expect_stderr("python")
        .expect_stderr("hint:");

    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", "/nonexistent/python");
    launch
        .args([script])
        .run()
        .expect_exit_code(1)
        .expect_stderr("error:")
        .expect_stderr("/nonexistent/python");
}
