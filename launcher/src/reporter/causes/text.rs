//! Finds words and sentences in a worker's output. Pure.

use super::Clues;

/// A longer name is cut in a hint, in characters.
const LONGEST: usize = 200;

impl<'a> Clues<'a> {
    /// Every line that the worker left, its report's first.
    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = &'a str> {
        let message = self.message.unwrap_or_default().lines();
        message.chain(self.tail.iter().map(String::as_str))
    }

    /// Whether a line has one of these texts.
    pub(super) fn says(&self, texts: &[&str]) -> bool {
        self.lines().any(|line| texts.iter().any(|text| line.contains(text)))
    }

    /// The last line of which the function makes something.
    pub(super) fn last_line<T>(&self, find: impl Fn(&'a str) -> Option<T>) -> Option<T> {
        self.lines().rev().find_map(find)
    }

    /// The error that Python ended with: the report's, else the last line that begins with the name of an exception.
    pub(super) fn python_error(&self) -> Option<&'a str> {
        let reported = self.message.and_then(|message| message.lines().find(|line| !line.trim().is_empty()));
        reported.or_else(|| self.tail.iter().rev().map(String::as_str).find(|line| is_exception(line)))
    }
}

/// Whether a line is the last one of a traceback: `torch.distributed.DistNetworkError: …`.
fn is_exception(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let last = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(is_name) && ["Error", "Exception", "Exit"].iter().any(|end| last.ends_with(end))
}

/// The text between two others: the shortest, from the first place where it begins.
pub(super) fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    let (text, _) = rest.split_once(after)?;
    Some(text)
}

/// A name that a worker wrote, for a hint.
pub(super) fn shown(name: &str) -> String {
    let end = name.char_indices().nth(LONGEST).map_or(name.len(), |(at, _)| at);
    let dots = if end < name.len() { "…" } else { "" };
    format!("{}{dots}", &name[..end])
}
