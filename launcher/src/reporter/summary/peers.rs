//! What the workers reported that did not fail first: one text for all reports that are alike. Pure.

use std::collections::BTreeSet;

use rankrun_contract::rank::Rank;
use rankrun_contract::report::ErrorReport;

use super::{MESSAGE_START, quoted};

/// More texts than this are left out, and so is a longer text: the error file is kept then.
const MOST_TEXTS: usize = 4;
const LONGEST: usize = 16 * 1024;

/// The texts that a report shows as they are. Texts that differ in numbers alone count as one: peers that fail of the same
/// cause name their own ranks, ports and addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShownTexts(BTreeSet<String>);

impl ShownTexts {
    /// Notes that the report shows this; `false` where it is too long to be shown as it is.
    pub fn add(&mut self, report: &ErrorReport) -> bool {
        let text = text_of(report);
        let fits = text.len() <= LONGEST;
        if fits {
            self.0.insert(shape(&text));
        }
        fits
    }

    /// Whether the report shows this text.
    #[must_use]
    pub fn has(&self, report: &ErrorReport) -> bool {
        let text = text_of(report);
        text.len() <= LONGEST && self.0.contains(&shape(&text))
    }
}

/// Reports of peers that are alike but for numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerReport {
    /// The workers that wrote it, lowest rank first.
    pub ranks: Vec<Rank>,
    /// What the first of them wrote; nothing where the worker that failed first wrote the same.
    pub report: Option<ErrorReport>,
}

/// The reports of the peers of a worker whose own report is among `shown`; adds what is shown of them.
#[must_use]
pub fn group<'a>(
    peers: impl Iterator<Item = (Rank, &'a ErrorReport)>,
    shown: &mut ShownTexts,
) -> Vec<PeerReport> {
    let mut groups: Vec<(String, PeerReport)> = Vec::new();
    for (rank, report) in peers {
        let shape = shape(&text_of(report));
        if let Some((_, group)) = groups.iter_mut().find(|(of, _)| *of == shape) {
            group.ranks.push(rank);
        } else if shown.has(report) {
            groups.push((shape, PeerReport { ranks: vec![rank], report: None }));
        } else if groups.iter().filter(|(_, group)| group.report.is_some()).count() < MOST_TEXTS
            && shown.add(report)
        {
            groups.push((shape, PeerReport { ranks: vec![rank], report: Some(report.clone()) }));
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// What a node says whose workers did not fail first.
#[must_use]
pub fn render(peers: &[PeerReport]) -> String {
    format!("reports of this node's workers:\n{}", lines(peers).join("\n"))
}

/// The lines about them.
pub(super) fn lines(peers: &[PeerReport]) -> Vec<String> {
    let mut lines = Vec::new();
    for PeerReport { ranks, report } in peers {
        let (ranks, count) = (super::ranks(ranks), ranks.len());
        match report {
            None => lines.push(format!("  {ranks} reported the same as the first")),
            Some(report) => {
                let alike = if count > 1 { ", alike but for numbers" } else { "" };
                lines.push(format!("  what {ranks} reported{alike}:"));
                lines.extend(text_lines(report));
            }
        }
    }
    lines
}

/// A report as the card shows it.
pub(super) fn text_lines(report: &ErrorReport) -> Vec<String> {
    let start = &report.message[..report.message.floor_char_boundary(MESSAGE_START)];
    let text = report.callstack.as_deref().filter(|text| text.contains(start));
    let mut lines = if text.is_none() { quoted(&report.message) } else { Vec::new() };
    lines.extend(quoted(report.callstack.as_deref().unwrap_or_default()));
    lines
}

fn text_of(report: &ErrorReport) -> String {
    format!("{}\n{}", report.message, report.callstack.as_deref().unwrap_or_default())
}

/// The text without its numbers.
fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            character => shape.push(character),
        }
    }
    shape
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
    fn reports_that_differ_in_numbers_are_told_once() {
        let peers = [(0, "closed by [10.0.0.7]:41"), (2, "closed by [10.0.0.9]:42"), (3, "bad batch 9")];
        let (lines, shown) = grouped("bad batch 7", &peers);
        let expected = [
            "  what ranks 0, 2 reported, alike but for numbers:",
            "    | closed by [10.0.0.7]:41",
            "  rank 3 reported the same as the first",
        ];
        assert_eq!(lines, expected);
        assert!(shown.has(&report("bad batch 1")) && shown.has(&report("closed by [1.1.1.1]:1")));
        assert!(!shown.has(&report("bad patch 1")));
    }

    #[test]
    fn texts_beyond_the_limits_are_not_shown() {
        let long = "x".repeat(LONGEST + 1);
        let peers = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, &*long), (7, "a")];
        let (lines, shown) = grouped("first", &peers);
        assert_eq!(lines.len(), 2 * MOST_TEXTS, "{lines:?}");
        assert!(lines[0].contains("ranks 1, 7 "), "{lines:?}");
        assert_eq!(["d", "e", &long].map(|text| shown.has(&report(text))), [true, false, false]);
        assert!(!ShownTexts::default().add(&report(&long)));
    }
}
