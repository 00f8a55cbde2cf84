//! Bidirectional controls in what workers write about their failures: shown as escapes, never obeyed by a terminal.

use std::fs;

use harness::{Launch, Name, Outcome, Scratch, is_rankrun};

/// U+202A–202E and U+2066–2069.
const CONTROLS: [char; 9] = [
    '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}',
    '\u{2069}',
];

/// A text with every control in it: one between every two words.
fn text_with_controls() -> String {
    CONTROLS.iter().map(|control| format!("is{control}admin ")).collect()
}

/// A worker that fails with the text as its message and in its call stack.
fn run_failing_worker(launch: Launch) -> Outcome {
    let text = text_with_controls();
    let file = serde_json::json!({"message": {
        "message": format!("m {text}"),
        "extraInfo": {"py_callstack": format!("call stack\nm {text}"), "timestamp": "5"},
    }});
    let outcome = launch.worker([format!("error-file={file}"), "exit=9".to_owned()]).run();
    assert_eq!(outcome.status.code().map(|code| code != 0), Some(true), "{outcome}");
    outcome
}

#[track_caller]
fn assert_controls_escaped(outcome: &Outcome, text: &str) {
    for control in CONTROLS {
        assert!(!text.contains(control), "{:?} reached the terminal\n{outcome}", control.escape_unicode());
        let escape = format!("is{}admin", control.escape_unicode());
        assert!(text.contains(&escape), "no `{escape}`\n{outcome}");
    }
}

#[test]
fn bidi_controls_of_a_report_are_shown_as_escapes() {
    let outcome = run_failing_worker(Launch::standalone(Name::Rankrun, 1));
    assert_controls_escaped(&outcome, &outcome.stderr());
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        // Both streams are the terminal.
        let outcome = run_failing_worker(Launch::standalone(*name, 1).terminal());
        assert_controls_escaped(&outcome, &outcome.stdout());
    }
}

#[test]
fn torchrun_report_into_a_pipe_keeps_every_byte() {
    if !is_rankrun() {
        return;
    }
    let outcome = run_failing_worker(Launch::standalone(Name::Torchrun, 1));
    outcome.expect_stderr(&format!("traceback : call stack\n  m {}", text_with_controls()));
}

#[test]
fn error_file_of_the_parent_keeps_bidi_controls() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        run_failing_worker(Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", &*path));
        let kept: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("it was written")).expect("JSON");
        assert_eq!(kept["message"]["message"], format!("m {}", text_with_controls()), "{kept}");
    }
}

/// What was in the parent's error file before is told too.
#[test]
fn bidi_controls_of_a_replaced_error_file_are_shown_as_escapes() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let old = format!("old {}\x1b[31m\nnext line", text_with_controls());
        let path = scratch.file("parent.json", &old, 0o644);
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", &*path).terminal();
        let outcome = launch.worker([r#"error-file={"message": "m"}"#, "exit=9"]).run();
        outcome.expect_exit_code(name.code(9));
        assert_controls_escaped(&outcome, &outcome.stdout());
        outcome.expect_stdout("next line");
    }
    let scratch = Scratch::new();
    let path = scratch.file("parent.json", &format!("old {}\x1b[31m", text_with_controls()), 0o644);
    let launch = Launch::standalone(Name::Rankrun, 1).env("TORCHELASTIC_ERROR_FILE", &*path);
    let outcome = launch.worker([r#"error-file={"message": "m"}"#, "exit=9"]).run();
    assert_controls_escaped(&outcome, &outcome.stderr());
    assert!(!outcome.stderr().contains('\x1b'), "an escape sequence reached the terminal\n{outcome}");
}

/// The last lines in the failure report; the worker's own stream is a file here.
#[test]
fn bidi_controls_of_last_lines_are_shown_as_escapes() {
    for name in Name::for_shared_behaviour().iter().filter(|_| is_rankrun()) {
        let scratch = Scratch::new();
        let options = ["--redirects", "3", "--log-dir", &scratch.at("logs")];
        let launch = Launch::standalone(*name, 1).args(options);
        let outcome = launch.worker([format!("print={}", text_with_controls()), "exit=9".to_owned()]).run();
        outcome.expect_exit_code(name.code(9));
        assert_controls_escaped(&outcome, &outcome.stderr());
    }
}
