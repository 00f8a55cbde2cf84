//! The hint of a failed job follows from how its worker ended and what it said.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;

use harness::{Launch, Name, Outcome, Scratch, is_rankrun, python};

/// The hint of a job with workers that run this line of a shell.
fn run_shell_for_hint(line: &str) -> (Outcome, String) {
    let outcome = Launch::standalone(Name::Rankrun, 1).shell(line).run();
    let hint = hint_of(&outcome);
    (outcome, hint)
}

#[track_caller]
fn hint_of(outcome: &Outcome) -> String {
    let text = outcome.stderr();
    let hints: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("hint: ")).collect();
    let [hint] = hints[..] else { panic!("not one hint\n{outcome}") };
    hint.to_owned()
}

#[test]
fn shell_command_not_found_is_named_in_hint() {
    let (outcome, hint) = run_shell_for_hint("no-such-trainer --lr 1");
    outcome.expect_exit_code(127);
    assert!(hint.contains("a shell did not find the command `no-such-trainer`"), "{hint}");
}

#[test]
fn exit_code_128_plus_signal_hint_names_signal() {
    let (outcome, hint) = run_shell_for_hint("sh -c 'kill -9 $$$$'; exit $$?");
    outcome.expect_exit_code(137);
    assert!(hint.contains("137 is 128 + 9 (SIGKILL): probably a command in it was killed"), "{hint}");
    let (outcome, hint) = run_shell_for_hint("exit 126");
    outcome.expect_exit_code(126);
    assert!(hint.contains("exit code 126 is most often a shell's `permission denied`"), "{hint}");
}

#[test]
fn native_crash_hint_names_faulthandler_and_core_file() {
    let (outcome, hint) = run_shell_for_hint("kill -SEGV $$$$");
    outcome.expect_exit_code(139);
    assert!(hint.contains("`PYTHONFAULTHANDLER=1`") && hint.contains("`ulimit -c unlimited`"), "{hint}");
    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHONFAULTHANDLER", "1");
    let hint = hint_of(&launch.shell("kill -SEGV $$$$").run());
    assert!(
        !hint.contains("PYTHONFAULTHANDLER") && hint.contains("core file"),
        "what is given is not advised: {hint}"
    );
}

#[test]
fn bus_error_hint_names_shared_memory() {
    let (outcome, hint) = run_shell_for_hint("kill -BUS $$$$");
    outcome.expect_exit_code(135);
    assert!(hint.contains("most often full shared memory") && hint.contains("`--shm-size`"), "{hint}");
}

#[test]
fn hints_are_given_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    for (line, hint) in [
        ("exit 127", "exit code 127 is a shell's `command not found`"),
        ("kill -SEGV $$$$", "it crashed in native code: `PYTHONFAULTHANDLER=1` makes Python print where"),
        ("echo 'ValueError: Address already in use' >&2; exit 3", "run with `--tee 3 --log-dir DIR`"),
    ] {
        let outcome = Launch::standalone(Name::Torchrun, 1).shell(line).run();
        outcome.expect_exit_code(1);
        let actual = hint_of(&outcome);
        assert!(actual.starts_with(hint), "{actual}");
    }
}

/// An environment of the test's Python without any package but this one.
fn create_python_environment(scratch: &Scratch, name: &str, package: &str) -> String {
    let real = fs::canonicalize(python()).expect("the Python of the tests is there");
    let folder = real.parent().expect("it is in a folder").display().to_string();
    let _ = scratch.folder(&format!("{name}/bin"), 0o755);
    let _ = scratch.file(&format!("{name}/pyvenv.cfg"), &format!("home = {folder}\n"), 0o644);
    let path = scratch.at(&format!("{name}/bin/python"));
    symlink(&real, &path).expect("a new link");
    let version = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let packages = format!("{name}/lib/{version}/site-packages/{package}");
    let _ = scratch.folder(&packages, 0o755);
    let _ = scratch.file(&format!("{packages}/__init__.py"), "print('imported')\n", 0o644);
    path
}

#[test]
fn missing_module_hint_names_interpreter_that_has_it() {
    let scratch = Scratch::new();
    let (used, other) = (
        create_python_environment(&scratch, "used", "a"),
        create_python_environment(&scratch, "other", "model_kit"),
    );
    let script = scratch.file("train.py", "import model_kit\n", 0o644);
    let launch = || {
        let path = format!("{}:/usr/bin:/bin", scratch.at("used/bin"));
        Launch::standalone(Name::Rankrun, 1).env("PATH", path).args([&script])
    };
    let outcome = launch().env("CONDA_PREFIX", scratch.at("other")).run();
    outcome.expect_exit_code(1).expect_stderr("ModuleNotFoundError");
    let hint = hint_of(&outcome);
    assert!(hint.starts_with(&format!("`{used}` has no module `model_kit`, but `{other}` has it")), "{hint}");
    // The advice works.
    assert!(hint.contains(&format!("set `PYTHON_EXEC={other}`")), "{hint}");
    launch().env("PYTHON_EXEC", &other).run().expect_exit_code(0).expect_stdout("imported\n");
    // No interpreter has the module.
    let hint = hint_of(&launch().run());
    assert!(hint.contains(&format!("`{used} -m pip install model_kit`")), "{hint}");
}

#[test]
fn module_in_working_folder_hint_names_pythonpath() {
    let scratch = Scratch::new();
    let _ = scratch.folder("scripts", 0o755);
    let _ = scratch.file("scripts/train.py", "import helpers\n", 0o644);
    let _ = scratch.file("helpers.py", "print('imported')\n", 0o644);
    let launch = || {
        let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", python());
        launch.cwd(scratch.path()).args(["scripts/train.py"])
    };
    let hint = hint_of(&launch().run());
    assert!(
        hint.contains("`helpers.py` is in the working folder") && hint.contains("`PYTHONPATH=.`"),
        "{hint}"
    );
    launch().env("PYTHONPATH", ".").run().expect_exit_code(0).expect_stdout("imported\n");
}

#[test]
fn port_in_use_hint_names_listening_process() {
    let scratch = Scratch::new();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = socket.local_addr().expect("it has an address").port();
    let program = "import asyncio, sys\n\
                   asyncio.run(asyncio.start_server(print, '127.0.0.1', int(sys.argv[1])))\n";
    let script = scratch.file("serve.py", program, 0o644);
    let launch = Launch::standalone(Name::Rankrun, 1).env("PYTHON_EXEC", python());
    let outcome = launch.args([script, port.to_string()]).run();
    let hint = hint_of(&outcome);
    let expected = format!("port {port} is taken by pid {} (`", std::process::id());
    assert!(hint.starts_with(&expected), "{hint}");
}

#[test]
fn missing_module_hint_reads_error_file_and_redirected_output() {
    let scratch = Scratch::new();
    let error = "ModuleNotFoundError: No module named 'model_kit'";
    let quoted = error.replace('\'', r"\u0027");
    let file = format!(r#"{{"message": {{"message": "{quoted}", "extraInfo": {{"timestamp": "1"}}}}}}"#);
    let written = format!("printf '%s' '{file}' > \"$$TORCHELASTIC_ERROR_FILE\"; exit 1");
    let printed = format!("echo \"{error}\" >&2; exit 1");
    for (line, options) in
        [(&written, &[][..]), (&printed, &["--redirects", "3", "--log-dir", &scratch.at("logs")])]
    {
        let launch = Launch::standalone(Name::Rankrun, 1).args(options.iter().copied());
        let hint = hint_of(&launch.shell(line).run());
        assert!(hint.starts_with("the Python that it started has no module `model_kit`"), "{hint}");
    }
}

#[test]
fn worker_printed_hint_suppresses_launcher_hint() {
    let line = "echo 'error: port 5: Address already in use' >&2; echo 'hint: take another port' >&2; exit 1";
    let outcome = Launch::standalone(Name::Rankrun, 1).shell(line).run();
    outcome.expect_exit_code(1).expect_absent("ss -ltnp");
}
