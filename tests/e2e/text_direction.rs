//! Bidirectional controls in what workers write about their failures: shown as escapes, never obeyed by a terminal.

use std::fs;

use harness::{Launch, Name, Outcome, Scratch, only_ours};

/// U+202A–202E and U+2066–2069.
const CONTROLS: [char; 9] = [
    '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}',
    '\u{2069}',
];

/// A text with every control in it: one between every two words.
fn text() -> String {
    CONTROLS.iter().map(|control| format!("is{control}admin ")).collect()
}

/// A worker that fails with the text as its message and in its call stack.
fn failing(launch: Launch) -> Outcome {
    let text = text();
    let file = serde_json::json!({"message": {
        "message": format!("m {text}"),
        "extraInfo": {"py_callstack": format!("call stack\nm {text}"), "timestamp": "5"},
    }});
    let outcome = launch.worker([format!("error-file={file}"), "exit=9".to_owned()]).run();
    assert_eq!(outcome.status.code().map(|code| code != 0), Some(true), "{outcome}");
    outcome
}

#[track_caller]
fn shows_escapes(outcome: &Outcome, said: &str) {
    for control in CONTROLS {
        assert!(!said.contains(control), "{:?} reached the terminal\n{outcome}", control.escape_unicode());
        let escape = format!("is{}admin", control.escape_unicode());
        assert!(said.contains(&escape), "no `{escape}`\n{outcome}");
    }
}

#[test]
fn bidi_controls_of_a_report_are_shown_as_escapes() {
    let outcome = failing(Launch::standalone(Name::Rankrun, 1));
    shows_escapes(&outcome, &outcome.err());
    for name in Name::both().iter().filter(|_| only_ours()) {
        // Both streams are the terminal.
        let outcome = failing(Launch::standalone(*name, 1).terminal());
        shows_escapes(&outcome, &outcome.out());
    }
}

#[test]
fn torchrun_report_into_a_pipe_keeps_every_byte() {
    if !only_ours() {
        return;
    }
    let outcome = failing(Launch::standalone(Name::Torchrun, 1));
    outcome.complains(&format!("traceback : call stack\n  m {}", text()));
}

#[test]
fn error_file_of_the_parent_keeps_bidi_controls() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let path = scratch.at("parent.json");
        failing(Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", &*path));
        let kept: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("it was written")).expect("JSON");
        assert_eq!(kept["message"]["message"], format!("m {}", text()), "{kept}");
    }
}

/// What was in the parent's error file before is told too.
#[test]
fn bidi_controls_of_a_replaced_error_file_are_shown_as_escapes() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let scratch = Scratch::new();
        let old = format!("old {}\x1b[31m\nnext line", text());
        let path = scratch.file("parent.json", &old, 0o644);
        let launch = Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", &*path).terminal();
        let outcome = launch.worker([r#"error-file={"message": "m"}"#, "exit=9"]).run();
        outcome.exits(name.code(9));
        shows_escapes(&outcome, &outcome.out());
        outcome.says("next line");
    }
    let scratch = Scratch::new();
    let path = scratch.file("parent.json", &format!("old {}\x1b[31m", text()), 0o644);
    let launch = Launch::standalone(Name::Rankrun, 1).env("TORCHELASTIC_ERROR_FILE", &*path);
    let outcome = launch.worker([r#"error-file={"message": "m"}"#, "exit=9"]).run();
    shows_escapes(&outcome, &outcome.err());
    assert!(!outcome.err().contains('\x1b'), "an escape sequence reached the terminal\n{outcome}");
}

/// The last lines in the card; the worker's own stream is a file here.
#[test]
fn bidi_controls_of_last_lines_are_shown_as_escapes() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let scratch = Scratch::new();
        let options = ["--redirects", "3", "--log-dir", &scratch.at("logs")];
        let launch = Launch::standalone(*name, 1).args(options);
        let outcome = launch.worker([format!("print={}", text()), "exit=9".to_owned()]).run();
        outcome.exits(name.code(9));
        shows_escapes(&outcome, &outcome.err());
    }
}
