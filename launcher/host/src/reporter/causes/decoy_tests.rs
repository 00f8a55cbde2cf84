//! Decoys: text that looks like a cause and is none. It gets no hint, or a guess.

use super::*;

/// What a decoy may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    Nothing,
    /// A hint that begins with `perhaps`.
    Guess,
    /// The hint of this row, which reads no text.
    Row(&'static str),
}
use Gets::{Guess, Nothing, Row};

const TRACEBACK: &str = "Traceback (most recent call last):";
const FRAME: &str = "  File \"train.py\", line 4, in <module>";
const LIBRARY: &str =
    "ImportError: libfoo.so: cannot open shared object file: No such file or directory: skipping fast path";

#[track_caller]
fn expect_hint(exit: Exit, tail: &[&str], expected: Gets) {
    let python = Program::Python { python: Path::new("/venv/bin/python") };
    for program in [python, Program::Other { path: Path::new("./run") }] {
        let found = of_program(exit, tail, program, &Fake::default());
        let got = match &found {
            None => Nothing,
            Some((_, hint)) if hint.starts_with("perhaps ") => Guess,
            Some((row, _)) => Row(row),
        };
        assert_eq!(got, expected, "{exit:?} {tail:?}: {found:?}");
    }
}

#[test]
fn survived_problem_is_not_the_cause() {
    for survived in [
        "WARN: Address already in use (port 8000), retrying on 8001",
        "[Errno 98] Address already in use",
        LIBRARY,
        "./a: /lib/libc.so.6: version `GLIBC_2.34' not found, falling back",
        "RuntimeError: unable to write to file </torch_123>: No space left on device, retry",
        "ModuleNotFoundError: No module named 'apex'",
        "/venv/bin/python: No module named apex",
        "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. ",
        GLOO,
    ] {
        for error in ["ValueError: bad shape", "KeyError: 'loss'", "KeyError"] {
            expect_hint(Exit::Code(1), &[survived, TRACEBACK, FRAME, error], Nothing);
            expect_hint(Exit::Code(1), &[TRACEBACK, FRAME, survived, TRACEBACK, FRAME, error], Nothing);
            expect_hint(Exit::Code(1), &[survived, error], Nothing);
            expect_hint(
                Exit::Code(1),
                &[survived, "[rank0]: Traceback (most recent call last):", error],
                Nothing,
            );
        }
        expect_hint(Exit::Code(1), &[survived, TRACEBACK, FRAME, "torchx.Diverged: loss is nan"], Nothing);
        let far = [survived, "step 1", "step 2", "step 3"];
        expect_hint(Exit::Code(3), &far, Nothing);
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGKILL] {
            expect_hint(killed(number), &[survived], Nothing);
        }
        expect_hint(killed(libc::SIGSEGV), &[survived], Row("signal"));
        expect_hint(killed(libc::SIGBUS), &[survived], Row("bus error"));
    }
}

#[test]
fn optional_missing_module_is_not_the_cause() {
    let module = "ModuleNotFoundError: No module named 'apex'";
    expect_hint(Exit::Code(3), &[module, "fell back"], Nothing);
    let tail = [TRACEBACK, FRAME, module, "fell back"];
    let (_, hint) = hint_of(Exit::Code(3), &tail, &Fake::default()).unwrap();
    assert!(hint.starts_with("perhaps "), "Python itself would end with 1: {hint}");
}

#[test]
fn error_before_last_line_gives_only_guess() {
    for line in ["bind: Address already in use", "./a: /lib/libc.so.6: version `GLIBC_2.34' not found"] {
        expect_hint(Exit::Code(2), &[line, "falling back", "giving up"], Guess);
    }
    expect_hint(killed(libc::SIGABRT), &["[Errno 98] Address already in use"], Guess);
}

#[test]
fn similar_text_of_other_errors_is_not_the_cause() {
    for line in [
        "RuntimeError: address already in use in cache: port 22 of table",
        "RuntimeError: port of the table: row 7 is already in use",
        "RuntimeError: invalid device ordinal in the config",
        "OSError: [Errno 28] No space left on device: '/data/torch_1'",
    ] {
        expect_hint(Exit::Code(1), &[TRACEBACK, FRAME, line], Nothing);
        expect_hint(Exit::Code(1), &[line], Nothing);
    }
}

#[test]
fn program_error_is_not_taken_for_shell_error() {
    let row = Row("exit code of a shell");
    for line in [
        "mkdir: /data: Permission denied",
        "cp: cannot open 'x y': Permission denied",
        "open /etc/x: Permission denied",
    ] {
        expect_hint(Exit::Code(126), &[line], row);
    }
    for line in [
        "GET http://x/y: not found",
        "key: not found",
        "lookup db: host: not found",
        "cat: x: No such file or directory",
    ] {
        expect_hint(Exit::Code(127), &[line], row);
    }
}

#[test]
fn terminate_before_more_output_is_not_abort_at_exit() {
    expect_hint(killed(libc::SIGABRT), &[TERMINATE, "caught, again", "assertion `x > 0` failed"], Nothing);
    for after in ["Fatal Python error: Aborted", "./run.sh: line 3: 70 Aborted (core dumped) python train.py"]
    {
        expect_hint(killed(libc::SIGABRT), &[TERMINATE, "", after], Row("abort at exit"));
    }
}
