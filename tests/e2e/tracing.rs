//! The trace of `docs/dev/tracing.md` is that of its command.

use std::fs;

use harness::{Launch, Name, Scratch, checkout, is_rankrun};

/// The text of the only block in this language.
fn code_block<'a>(document: &'a str, language: &str) -> &'a str {
    let opening = format!("```{language}\n");
    let (_, rest) = document.split_once(&opening).expect("the document has such a block");
    rest.split_once("```").expect("the block ends").0
}

/// The line without what differs from run to run: times, pids, ports.
fn without_numbers(line: &str) -> String {
    let pieces = line.split(|character: char| character.is_ascii_digit());
    pieces.filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join("0")
}

#[test]
fn documented_trace_shows_inputs_and_actions_with_times() {
    if !is_rankrun() {
        return;
    }
    let path = checkout().join("docs/dev/tracing.md");
    let document = fs::read_to_string(path).expect("the document is there");
    let scratch = Scratch::new();
    let script = scratch.file("train.sh", code_block(&document, "sh"), 0o600);
    let (command, lines) =
        code_block(&document, "console").split_once('\n').expect("a command and its output");
    let arguments = command.strip_prefix("$ rankrun ").expect("the command is ours").split(' ');
    let arguments = arguments.map(|argument| if argument == "train.sh" { script.as_str() } else { argument });
    let outcome = Launch::new(Name::Rankrun).args(arguments).run();
    outcome.expect_exit_code(0);
    let stderr = outcome.stderr();
    let mut shown = stderr.lines().map(without_numbers);
    for line in lines.lines() {
        let wanted = without_numbers(line);
        assert!(shown.any(|line| line == wanted), "not shown, or not in this order: {line}\n{outcome}");
    }
    let quiet = Launch::new(Name::Rankrun).args(["-v", "--no-python", "true"]).run();
    quiet.expect_exit_code(0).expect_absent("input Ready").expect_absent("action Start");
}
