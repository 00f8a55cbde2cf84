//! The exception that a worker ended with: of its error file, else of the last traceback of Python in its last lines. Pure.

use rankrun_contract::report::ErrorReport;
use rankrun_contract::report::cut::cut_text;
use rankrun_core::stacks::Frame;

use crate::reporter::causes::{is_exception, without_rank};

/// An error of a program, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct WorkerException {
    /// Such as `ValueError` or `torch.OutOfMemoryError`; a Rust program gives none.
    pub kind: Option<String>,
    /// Its text; of the output only the first line. `None` if the exception has no text.
    pub message: Option<String>,
    /// The innermost call. Its function is empty where Python names none, as for a syntax error.
    pub frame: Option<Frame>,
}

/// A longer text is cut in a line.
const MAX_TEXT: usize = 120;

impl WorkerException {
    /// As in `ValueError in load_batch (data.py:17)`, with the text behind; `None` without a type or a frame.
    #[must_use]
    pub(crate) fn as_row(&self) -> Option<String> {
        let place = place_of(self.frame.as_ref()?);
        let text = self.message.as_deref().and_then(|message| message.lines().next()).unwrap_or_default();
        let text = if text.is_empty() { String::new() } else { format!(": {}", cut_text(text, MAX_TEXT)) };
        Some(format!("{}{place}{text}", self.kind.as_ref()?))
    }
}

/// As in ` in load_batch (data.py:17)`, or ` at data.py:17` outside of functions.
#[must_use]
pub(crate) fn place_of(frame: &Frame) -> String {
    match frame.function.as_str() {
        "" | "<module>" => format!(" at {}", frame.line_text()),
        _ => format!(" in {}", frame.title()),
    }
}

/// The error of an error file.
#[must_use]
pub(crate) fn exception_of_report(report: &ErrorReport) -> WorkerException {
    let frame = report.callstack.as_deref().and_then(innermost_frame);
    WorkerException { frame, ..exception_of_message(&report.message) }
}

/// `ValueError: no data`, or another text. Only a name with a capital letter is a type there: no traceback is around it.
#[must_use]
pub(crate) fn exception_of_message(message: &str) -> WorkerException {
    let has_capital = |kind: &str| kind.contains(|letter: char| letter.is_uppercase());
    match split_exception(message).filter(|(kind, _)| has_capital(kind)) {
        Some((kind, text)) => WorkerException {
            kind: Some(kind.to_owned()),
            message: Some(text.to_owned()).filter(|text| !text.is_empty()),
            frame: None,
        },
        None => WorkerException { message: Some(message.to_owned()), ..WorkerException::default() },
    }
}

/// The exception of the last traceback in a worker's last lines. Lines between its own are passed over: other threads and
/// standard output write beside it. Of an exception group it is the group. An exception that Python ignores or that ends a
/// thread alone does not count.
#[must_use]
pub(crate) fn exception_in_output(lines: &[String]) -> Option<WorkerException> {
    let (mut found, mut frame, mut was_indented) = (None, None, false);
    // The first lines of a long traceback may be cut off.
    let (mut is_inside, mut may_be_cut, mut is_passed_over) = (false, true, false);
    for line in lines.iter().map(|line| without_rank(line)).filter(|line| !line.trim().is_empty()) {
        let Some(line) = outside_of_groups(line) else { continue };
        let is_indented = line.starts_with([' ', '\t']);
        if line.ends_with("Traceback (most recent call last):") {
            (is_inside, may_be_cut, frame) = (!is_passed_over, false, None);
        } else if is_indented {
            let call = parse_frame(line).filter(|_| is_inside || may_be_cut);
            is_inside |= call.is_some();
            frame = call.or(frame);
        } else if is_inside
            && frame.is_some()
            && (was_indented || is_exception(line))
            && let Some((kind, text)) = split_exception(line)
        {
            let message = Some(text.to_owned()).filter(|text| !text.is_empty());
            found = Some(WorkerException { kind: Some(kind.to_owned()), message, frame: frame.take() });
            // What looks like a call may be part of the message.
            (is_inside, may_be_cut) = (false, false);
        }
        is_passed_over = line.starts_with("Exception ignored ") || line.starts_with("Exception in thread ");
        was_indented = is_indented;
    }
    found
}

/// The line without the mark of an exception group; `None` for a line of an exception in a group.
fn outside_of_groups(line: &str) -> Option<&str> {
    let inner = line.strip_prefix("  | ").or_else(|| line.strip_prefix("  + "));
    let is_deeper = |line: &str| line.starts_with("  ") && line.trim_start().starts_with(['|', '+']);
    inner.or_else(|| Some(line).filter(|line| !is_deeper(line)))
}

/// The last call that a traceback of Python lists.
fn innermost_frame(callstack: &str) -> Option<Frame> {
    callstack.lines().rev().find_map(|line| parse_frame(without_rank(line)))
}

/// `  File "data.py", line 17, in load_batch`.
fn parse_frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    let line = number.trim_end().parse().ok()?;
    Some(Frame { function: function.trim_end().to_owned(), file: file.to_owned(), line })
}

/// The name of an exception and its text.
fn split_exception(line: &str) -> Option<(&str, &str)> {
    let (kind, text) = line.split_once(':').unwrap_or((line, ""));
    let is_name = |part: &str| {
        part.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
            && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
            || part == "<locals>"
    };
    let is_text = text.is_empty() || text.starts_with([' ', '\n']);
    (is_text && kind.trim_end().split('.').all(is_name)).then(|| (kind.trim_end(), text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_output(text: &str) -> Option<WorkerException> {
        exception_in_output(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    fn exception(kind: &str, message: Option<&str>, frame: Option<(&str, u32, &str)>) -> WorkerException {
        WorkerException {
            kind: Some(kind.to_owned()),
            message: message.map(str::to_owned),
            frame: frame.map(|(file, line, function)| Frame {
                function: function.to_owned(),
                file: file.to_owned(),
                line,
            }),
        }
    }

    const TRACEBACK: &str = "\
step 9
Traceback (most recent call last):
  File \"/job/train.py\", line 40, in <module>
    main()
    ~~~~^^
  File \"/job/data.py\", line 17, in load_batch
    raise ValueError(\"no data\")
ValueError: no data
";

    #[test]
    fn traceback_in_output_gives_exception_and_innermost_frame() {
        let expected = exception("ValueError", Some("no data"), Some(("/job/data.py", 17, "load_batch")));
        assert_eq!(in_output(TRACEBACK), Some(expected.clone()));
        let of_rank = TRACEBACK.lines().map(|line| format!("[rank1]: {line}\n")).collect::<String>();
        assert_eq!(in_output(&of_rank), Some(expected.clone()));
        let beside = TRACEBACK.replace("    main()\n", "    main()\nepoch 3\n") + "[W119] process group\n";
        assert_eq!(in_output(&beside), Some(expected.clone()));
        let cut = TRACEBACK.split_once("    main()\n").unwrap().1;
        assert_eq!(in_output(cut), Some(expected));
    }

    #[test]
    fn last_of_chained_tracebacks_is_the_exception() {
        let text = format!(
            "{TRACEBACK}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most \
             recent call last):\n  File \"/job/train.py\", line 44, in <module>\n    stop()\nmine.Stopped\n"
        );
        let expected = exception("mine.Stopped", None, Some(("/job/train.py", 44, "<module>")));
        assert_eq!(in_output(&text), Some(expected));
    }

    #[test]
    fn syntax_error_has_a_frame_without_function() {
        let text = "  File \"/job/a b.py\", line 3\n    def (\n        ^\nSyntaxError: invalid syntax\n";
        let expected = exception("SyntaxError", Some("invalid syntax"), Some(("/job/a b.py", 3, "")));
        assert_eq!(in_output(text), Some(expected));
    }

    #[test]
    fn exception_group_is_the_group_itself() {
        let text = "  + Exception Group Traceback (most recent call last):\n  |   File \"/job/train.py\", line 9, in <module>\n  \
                    |     main()\n  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | \
                    Traceback (most recent call last):\n    |   File \"/job/data.py\", line 3, in load\n    | ValueError: a\n    \
                    +------------------------------------\nINFO: bye\n";
        let expected = exception(
            "ExceptionGroup",
            Some("two (2 sub-exceptions)"),
            Some(("/job/train.py", 9, "<module>")),
        );
        assert_eq!(in_output(text), Some(expected));
    }

    #[test]
    fn ignored_exception_and_that_of_a_thread_do_not_replace_the_cause() {
        let expected = in_output(TRACEBACK);
        for before in
            ["Exception ignored in: <function A.__del__ at 0x7f>", "Exception in thread Thread-1 (run):"]
        {
            let other = "Traceback (most recent call last):\n  File \"/job/a.py\", line 2, in other\nAttributeError: x\n";
            assert_eq!(in_output(&format!("{TRACEBACK}{before}\n{other}")), expected);
        }
    }

    #[test]
    fn message_of_several_lines_forges_no_other_exception() {
        let text = TRACEBACK.to_owned() + "Status: 7\n  File \"/etc/passwd\", line 3, in evil\nKeyError: x\n";
        assert_eq!(in_output(&text), in_output(TRACEBACK));
    }

    #[test]
    fn class_in_a_function_is_a_type() {
        let text = TRACEBACK.replace("ValueError: no data", "mine.f.<locals>.MyError: no data");
        assert_eq!(in_output(&text).unwrap().kind.as_deref(), Some("mine.f.<locals>.MyError"));
    }

    #[test]
    fn output_without_traceback_has_no_exception() {
        for text in ["", "ValueError: only said\n", "  indented\nstatus: fine\n", "a\n  File \"x\"\nb: c\n"] {
            assert_eq!(in_output(text), None, "{text:?}");
        }
    }

    #[test]
    fn error_file_gives_exception_or_text_alone() {
        let report = |message: &str, callstack: &str| ErrorReport {
            message: message.to_owned(),
            callstack: Some(callstack.to_owned()),
            unix_seconds: None,
            lost_rank: None,
        };
        let expected = exception("ValueError", Some("no data"), Some(("/job/data.py", 17, "load_batch")));
        assert_eq!(exception_of_report(&report("ValueError: no data", TRACEBACK)), expected);
        for text in ["cannot read `x`: No such file", "timeout: no answer"] {
            let of_rust = exception_of_report(&report(text, "caused by: y"));
            let expected = WorkerException { message: Some(text.to_owned()), ..WorkerException::default() };
            assert_eq!(of_rust, expected);
        }
        assert_eq!(exception_of_message("KeyError"), exception("KeyError", None, None));
    }
}
