//! Error reports of the workers that failed after the first one: one text for all equal reports. Pure.

use std::collections::BTreeSet;

use rankrun_contract::rank::Rank;
use rankrun_contract::report::ErrorReport;

use super::{MESSAGE_START, quoted_lines};

/// More texts than this are left out, and so is a longer text: the error file is kept then.
const MOST_TEXTS: usize = 4;
const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Numbers in a message are ignored up to this length, in bytes.
const LONGEST_LINE: usize = 512;

/// The texts that a report shows whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShownTexts {
    texts: BTreeSet<String>,
    shapes: BTreeSet<String>,
}

impl ShownTexts {
    /// Notes that the report shows this; `false` where it is too long to be shown whole.
    pub(crate) fn add(&mut self, report: &ErrorReport) -> bool {
        let text = report_text(report);
        let fits = text.len() <= MAX_TEXT_BYTES;
        if fits {
            self.texts.insert(text);
            self.shapes.insert(shape(report));
        }
        fits
    }

    /// Whether the report shows this text.
    #[must_use]
    pub(crate) fn has(&self, report: &ErrorReport) -> bool {
        self.texts.contains(&report_text(report))
    }
}

/// Reports of peers that are alike but for numbers in the message: each peer names its own ports and addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerReport {
    /// The workers that wrote it, lowest rank first.
    pub ranks: Vec<Rank>,
    /// The report of the first of them; `None` if it equals that of the first failure.
    pub report: Option<ErrorReport>,
    /// The messages that have other numbers than the report that is shown.
    pub messages: Vec<(Rank, String)>,
}

impl PeerReport {
    fn add(&mut self, rank: Rank, report: &ErrorReport, shown: &mut ShownTexts) {
        self.ranks.push(rank);
        // Of alike reports the message alone differs.
        if !shown.has(report) && shown.add(report) {
            self.messages.push((rank, report.message.clone()));
        }
    }
}

/// Groups the error reports of the other workers. Texts in `shown` are not repeated; texts shown here are added to
/// it.
#[must_use]
pub(crate) fn group<'a>(
    peers: impl Iterator<Item = (Rank, &'a ErrorReport)>,
    shown: &mut ShownTexts,
) -> Vec<PeerReport> {
    let mut groups: Vec<(String, PeerReport)> = Vec::new();
    for (rank, report) in peers {
        let shape = shape(report);
        let group = || PeerReport { ranks: Vec::new(), report: None, messages: Vec::new() };
        if let Some((_, group)) = groups.iter_mut().find(|(of, _)| *of == shape) {
            group.add(rank, report, shown);
        } else if shown.shapes.contains(&shape) {
            let mut group = group();
            group.add(rank, report, shown);
            groups.push((shape, group));
        } else if groups.iter().filter(|(_, group)| group.report.is_some()).count() < MOST_TEXTS
            && shown.add(report)
        {
            groups.push((shape, PeerReport { ranks: vec![rank], report: Some(report.clone()), ..group() }));
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The text of a node without the first failure: the reports of its workers.
#[must_use]
pub(crate) fn render(peers: &[PeerReport]) -> String {
    format!("reports of this node's workers:\n{}", lines(peers).join("\n"))
}

pub(super) fn lines(peers: &[PeerReport]) -> Vec<String> {
    let mut lines = Vec::new();
    for PeerReport { ranks, report, messages } in peers {
        let ranks = super::ranks(ranks);
        match report {
            None if messages.is_empty() => lines.push(format!("  {ranks} reported the same as the first")),
            None => lines.push(format!("  {ranks} reported the same as the first but for numbers:")),
            Some(report) => {
                let alike = if messages.is_empty() { "" } else { ", alike but for numbers" };
                lines.push(format!("  what {ranks} reported{alike}:"));
                lines.extend(text_lines(report));
            }
        }
        lines.extend(messages.iter().flat_map(|(rank, text)| quoted_lines(&format!("rank {rank}: {text}"))));
    }
    lines
}

/// An error file as the failure report shows it.
pub(super) fn text_lines(report: &ErrorReport) -> Vec<String> {
    let message = &report.message;
    let start = if message.len() <= MAX_TEXT_BYTES { message.len() } else { MESSAGE_START };
    let start = &message[..message.floor_char_boundary(start)];
    let text = report.callstack.as_deref().filter(|text| text.contains(start));
    let mut lines = if text.is_none() { quoted_lines(message) } else { Vec::new() };
    lines.extend(quoted_lines(report.callstack.as_deref().unwrap_or_default()));
    lines
}

fn report_text(report: &ErrorReport) -> String {
    format!("{}\n{}", report.message, report.callstack.as_deref().unwrap_or_default())
}

/// The common part of equal reports: the call stack beside the message, and a message of one line without its
/// numbers.
fn shape(report: &ErrorReport) -> String {
    let (message, stack) = (&report.message, report.callstack.as_deref().unwrap_or_default());
    let is_line = message.len() <= LONGEST_LINE && !message.contains('\n');
    let common = if is_line { without_numbers(message) } else { message.clone() };
    format!("{common}\n{}", stack.replace(message.as_str(), ""))
}

fn without_numbers(text: &str) -> String {
    let mut rest = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if rest.ends_with('#') => {}
            '0'..='9' => rest.push('#'),
            character => rest.push(character),
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(message: &str) -> ErrorReport {
        ErrorReport { message: message.to_owned(), callstack: None, unix_seconds: None, lost_rank: None }
    }

    fn grouped(first: &str, peers: &[(u32, &str)]) -> (Vec<String>, ShownTexts) {
        let mut shown = ShownTexts::default();
        assert!(shown.add(&report(first)));
        let reports: Vec<_> = peers.iter().map(|(rank, text)| (Rank(*rank), report(text))).collect();
        let groups = group(reports.iter().map(|(rank, report)| (*rank, report)), &mut shown);
        (lines(&groups), shown)
    }

    #[test]
    fn reports_differing_in_numbers_are_grouped_with_messages() {
        let peers = [(0, "closed by [10.0.0.7]:41"), (2, "closed by [10.0.0.9]:42"), (3, "bad batch 9")];
        let (lines, shown) = grouped("bad batch 7", &peers);
        let expected = [
            "  what ranks 0, 2 reported, alike but for numbers:",
            "    | closed by [10.0.0.7]:41",
            "    | rank 2: closed by [10.0.0.9]:42",
            "  rank 3 reported the same as the first but for numbers:",
            "    | rank 3: bad batch 9",
        ];
        assert_eq!(lines, expected);
        assert!(shown.has(&report("bad batch 9")) && shown.has(&report("closed by [10.0.0.9]:42")));
        assert!(!shown.has(&report("bad batch 1")), "no line has its number");
    }

    #[test]
    fn report_texts_above_limits_are_not_shown() {
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        let peers = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, &*long), (7, "a")];
        let (lines, shown) = grouped("first", &peers);
        assert_eq!(lines.len(), 2 * MOST_TEXTS, "{lines:?}");
        assert!(lines[0].contains("ranks 1, 7 "), "{lines:?}");
        assert_eq!(["d", "e", &long].map(|text| shown.has(&report(text))), [true, false, false]);
        assert!(!ShownTexts::default().add(&report(&long)));
    }

    #[test]
    fn reports_from_different_code_lines_are_separate() {
        let at = |line: u32| {
            let callstack = Some(format!("Traceback:\n  line {line}\nValueError: x"));
            ErrorReport { callstack, ..report("ValueError: x") }
        };
        let mut shown = ShownTexts::default();
        assert!(shown.add(&at(6)));
        let groups = group([(Rank(1), &at(6)), (Rank(2), &at(7))].into_iter(), &mut shown);
        let lines = lines(&groups);
        assert_eq!(lines[0], "  rank 1 reported the same as the first");
        assert!(lines.contains(&"    |   line 7".to_owned()), "{lines:?}");
    }
}
