//! Finds words and sentences in a worker's output. Pure.

use super::Clues;

/// A longer name is cut in a hint, in characters.
/// The ends of the names of exceptions.
const EXCEPTION_ENDS: [&str; 5] = ["Error", "Exception", "Exit", "Interrupt", "BrokenProcessPool"];
const MAX_NAME_CHARS: usize = 200;

impl<'a> Clues<'a> {
    /// Every line of these clues, the report's first.
    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = &'a str> {
        let message = self.message.unwrap_or_default().lines();
        message.chain(self.tail.iter().map(|line| without_rank(line)))
    }

    /// Whether a line has one of these texts.
    pub(super) fn output_contains(&self, texts: &[&str]) -> bool {
        self.lines().any(|line| texts.iter().any(|text| line.contains(text)))
    }

    /// The last line of which the function makes something.
    pub(super) fn last_line<T>(&self, find: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        self.lines().rev().find_map(find)
    }

    /// The error that Python ended with: the report's, else the one that the text ends with.
    pub(super) fn python_error(&self) -> Option<&'a str> {
        let reported = self.message.and_then(|message| message.lines().find(|line| !line.trim().is_empty()));
        let printed = || self.final_error().filter(|error| error.is_of_python);
        reported.or_else(|| Some(without_rank(&self.tail[printed()?.line])))
    }

    /// The line of the final error: that of the last traceback, else the last line that is not empty.
    pub(super) fn final_error(&self) -> Option<FinalError> {
        let (mut of_traceback, mut is_inside, mut before) = (None, false, "");
        for (index, line) in self.tail.iter().map(|line| without_rank(line)).enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            if line.ends_with("Traceback (most recent call last):") {
                is_inside = true;
            } else if !is_indented(line) {
                // The first line of a long traceback may be cut off.
                if is_inside || (is_indented(before) && is_exception(line)) {
                    of_traceback = Some(index);
                }
                is_inside = false;
            }
            before = line;
        }
        let last = self.tail.iter().rposition(|line| !line.trim().is_empty())?;
        Some(match of_traceback {
            Some(line) => FinalError { line, is_of_python: true },
            None => FinalError { line: last, is_of_python: is_exception(without_rank(&self.tail[last])) },
        })
    }
}

/// The line of the output that is most likely the cause.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinalError {
    /// Its index among the last lines.
    pub(super) line: usize,
    /// Whether it is an exception of Python.
    pub(super) is_of_python: bool,
}

fn is_indented(line: &str) -> bool {
    line.starts_with([' ', '\t'])
}

/// PyTorch puts `[rank0]: ` before each line of a traceback.
pub(crate) fn without_rank(line: &str) -> &str {
    let rest = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    rest.filter(|(rank, _)| rank.bytes().all(|byte| byte.is_ascii_digit())).map_or(line, |(_, rest)| rest)
}

/// Whether a line is the last one of a traceback: `torch.distributed.DistNetworkError: …`.
pub(crate) fn is_exception(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let last = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(is_name) && EXCEPTION_ENDS.iter().any(|end| last.ends_with(end))
}

/// The text between two others: the shortest, from the first place where it begins.
pub(super) fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    let (text, _) = rest.split_once(after)?;
    Some(text)
}

/// A name that a worker wrote, for a hint.
pub(super) fn shown(name: &str) -> String {
    let end = name.char_indices().nth(MAX_NAME_CHARS).map_or(name.len(), |(at, _)| at);
    let dots = if end < name.len() { "…" } else { "" };
    format!("{}{dots}", &name[..end])
}
