//! What may be an entrypoint under our own name.

use harness::{Launch, Name, Scratch, fixture};

#[test]
fn an_executable_needs_no_option() {
    let launch = Launch::standalone(Name::Rankrun, 2).args([fixture("worker")]);
    let outcome = launch.args(["print=rank {rank}"]).run();
    outcome.exits(0);
    assert_eq!(outcome.lines_with("rank ").len(), 2, "{outcome}");
}

#[test]
fn a_script_with_an_interpreter_line_is_executed() {
    let scratch = Scratch::new();
    let script = scratch.file("train", "#!/bin/sh\necho rank $RANK \"$@\"\n", 0o755);
    let outcome = Launch::standalone(Name::Rankrun, 1).args([script.as_str(), "--lr", "1"]).run();
    outcome.exits(0).says("rank 0 --lr 1\n");
}

#[test]
fn a_python_file_is_pythons_even_when_it_is_executable() {
    let scratch = Scratch::new();
    let script = scratch.file("train.py", "#!/bin/false\n", 0o755);
    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", "/bin/echo");
    let outcome = launch.args([script.as_str()]).run();
    outcome.exits(0).says(&format!("-u {script}\n"));
}

#[test]
fn under_torchruns_name_an_executable_is_pythons() {
    let scratch = Scratch::new();
    let script = scratch.file("train", "#!/bin/false\n", 0o755);
    let launch = Launch::standalone(Name::Torchrun, 1).env("PYTHON_EXEC", "/bin/echo");
    let outcome = launch.args([script.as_str()]).run();
    outcome.exits(0).says(&format!("-u {script}\n"));
}

#[test]
fn a_path_is_never_a_verb() {
    let scratch = Scratch::new();
    // The name of a verb, but written as a path.
    let _ = scratch.file("run", "#!/bin/sh\necho it ran\n", 0o755);
    let launch = Launch::new(Name::Rankrun).cwd(scratch.path());
    launch.args(["./run"]).run().exits(0).says("it ran\n");
}

/// A folder with a `python` that names itself.
fn a_python(scratch: &Scratch, folder: &str) -> String {
    let path = scratch.folder(folder, 0o755);
    let _ = scratch.file(&format!("{folder}/python"), &format!("#!/bin/sh\necho {folder} \"$@\"\n"), 0o755);
    path
}

#[test]
fn python_is_the_one_of_the_path() {
    let scratch = Scratch::new();
    let path = format!("{}:/usr/bin:/bin", a_python(&scratch, "first"));
    let script = scratch.file("x.py", "", 0o644);
    let outcome = Launch::standalone(Name::Rankrun, 1).env("PATH", path).args([script.as_str()]).run();
    outcome.exits(0).says(&format!("first -u {script}\n"));
}

#[test]
fn python_beside_us_wins_over_the_path() {
    let scratch = Scratch::new();
    let venv = a_python(&scratch, "venv");
    let path = format!("{}:/usr/bin:/bin", a_python(&scratch, "other"));
    std::os::unix::fs::symlink(fixture("launcher-under-test"), format!("{venv}/rankrun"))
        .expect("a new link");
    let script = scratch.file("x.py", "", 0o644);
    // `env` starts its first argument, the venv's link, with the harness's own as an argument of no use.
    let line = ["sh", "-c", "shift; exec \"$@\"", "sh"];
    let launch = Launch::new(Name::Rankrun).under(line).env("PATH", path);
    let outcome = launch.args([format!("{venv}/rankrun"), "--standalone".into(), script.clone()]).run();
    outcome.exits(0).says(&format!("venv -u {script}\n"));
    // They disagree: one line says which was taken.
    outcome.complains(&format!("{venv}/python"));
}

#[test]
fn a_missing_python_is_named() {
    let scratch = Scratch::new();
    let script = scratch.file("x.py", "", 0o644);
    let empty = scratch.folder("empty", 0o755);
    let launch = Launch::standalone(Name::Rankrun, 1).env("PATH", empty);
    launch.args([script.as_str()]).run().exits(1).complains("error:").complains("python").complains("hint:");

    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", "/nonexistent/python");
    launch.args([script]).run().exits(1).complains("error:").complains("/nonexistent/python");
}
