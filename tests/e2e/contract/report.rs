//! torchrun's report of a failed job, without what differs from run to run.

use std::path::Path;

use harness::Outcome;

/// How wide a rule is at most.
const MAX_RULE_WIDTH: usize = 60;

/// The lines of the report on standard error, rules shortened to three characters; empty if there is none.
///
/// # Panics
/// When the rules are not as wide as torchrun makes them.
#[track_caller]
pub(super) fn report_lines(outcome: &Outcome) -> Vec<String> {
    let text = outcome.stderr();
    let lines: Vec<&str> = text.lines().collect();
    let ends = |line: &&str| is_rule(line, '=');
    let Some(first) = lines.iter().position(&ends) else { return Vec::new() };
    let last = lines.iter().rposition(ends).unwrap_or(first);
    let lines = &lines[first..=last];
    let longest = lines.iter().filter(|line| !is_any_rule(line)).map(|line| line.chars().count()).max();
    for rule in lines.iter().filter(|line| is_any_rule(line)) {
        assert_eq!(
            Some(rule.len()),
            longest.map(|length| length.min(MAX_RULE_WIDTH)),
            "the width of a rule\n{outcome}"
        );
    }
    lines.iter().map(|line| normalize_line(line)).collect()
}

fn is_rule(line: &str, letter: char) -> bool {
    line.len() >= 10 && line.chars().all(|found| found == letter)
}

fn is_any_rule(line: &str) -> bool {
    is_rule(line, '=') || is_rule(line, '-')
}

/// The line without its time, host, pid and folder.
fn normalize_line(line: &str) -> String {
    if is_any_rule(line) {
        return line[..3].to_owned();
    }
    for (field, mask) in [("  time      : ", "TIME"), ("  host      : ", "HOST")] {
        if let Some(value) = line.strip_prefix(field) {
            assert!(!value.is_empty(), "{field} is empty");
            return format!("{field}{mask}");
        }
    }
    let field = "  error_file: ";
    match line.strip_prefix(field) {
        Some("<N/A>") | None => mask_pid(line),
        Some(path) => format!("{field}{}", path_below_run(path)),
    }
}

/// `attempt_0/1/error.json`.
pub(super) fn path_below_run(path: &str) -> String {
    let names: Vec<_> = Path::new(path).iter().map(|name| name.to_string_lossy()).collect();
    names[names.len().saturating_sub(3)..].join("/")
}

/// `(pid: 123)` and `by PID 123` without the number.
fn mask_pid(line: &str) -> String {
    let mut text = line.to_owned();
    for before in ["(pid: ", " by PID "] {
        if let Some((start, rest)) = text.split_once(before) {
            let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
            text = format!("{start}{before}PID{rest}");
        }
    }
    text
}

/// The report of one failed worker, for comparison: its blocks but the rules, title and heading.
pub(super) fn failure_lines(exit: &str, traceback: &str, rank: usize) -> Vec<String> {
    vec![
        "  time      : TIME".to_owned(),
        "  host      : HOST".to_owned(),
        format!("  rank      : {rank} (local_rank: {rank})"),
        format!("  exitcode  : {exit}"),
        "  error_file: <N/A>".to_owned(),
        format!("  traceback : {traceback}"),
    ]
}

/// What stands for the traceback of a worker that left no error file.
pub(super) const NO_TRACEBACK: &str =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
