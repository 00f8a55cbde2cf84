//! The sentence for a verdict.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use rankrun_contract::rank::Rank;

use crate::hang::verdict::{Activity, Call, Desync, Hang, RankStatus, Straggler, Verdict, Wait};
use crate::plain::plain;
use crate::rank_names::rank_names;

/// No sentence names more collectives.
const MAX_WAITS: usize = 4;

/// What the verdict says, such as `ranks 0-2, 4-7 wait in all_reduce #4117; rank 3 has made no progress for 92 s`.
#[must_use]
pub fn sentence(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Progress => "the ranks make progress".to_owned(),
        Verdict::NotEnoughEvidence => "the ranks do not show whether they make progress".to_owned(),
        Verdict::Hang(hang) => hang_sentence(hang),
        Verdict::Desync(desync) => desync_sentence(desync),
        Verdict::Straggler(straggler) => straggler_sentence(straggler),
    }
}

/// The sentence behind the word for its kind: `hang: …`, `desync: …`.
#[must_use]
pub fn failure_sentence(verdict: &Verdict) -> String {
    let kind = if matches!(verdict, Verdict::Desync(_)) { "desync" } else { "hang" };
    format!("{kind}: {}", sentence(verdict))
}

fn hang_sentence(hang: &Hang) -> String {
    let silent = status_parts(&hang.silent, |status| match &status.activity {
        Activity::Finished => "exited with 0".to_owned(),
        Activity::Unknown => "shows nothing of its progress".to_owned(),
        Activity::NoCollective => "has called no collective yet".to_owned(),
        Activity::Unanswered => "does not answer".to_owned(),
        Activity::Step { section: Some(section), step } => {
            format!("has been in section {section} at step {step} for {}", seconds(status.since))
        }
        Activity::Step { section: None, step } => {
            format!("has made no progress for {} (step {step})", seconds(status.since))
        }
        Activity::Recorded => format!("has made no progress for {}", seconds(status.since)),
    });
    let no_rank = match (silent.is_empty(), hang.has_other_nodes) {
        (false, _) => None,
        (true, false) => Some("no rank is missing".to_owned()),
        (true, true) => Some("no rank of this node is missing".to_owned()),
    };
    wait_parts(&hang.waits).into_iter().chain(silent).chain(no_rank).collect::<Vec<_>>().join("; ")
}

fn desync_sentence(desync: &Desync) -> String {
    format!("{}; no progress for {}", calls_text(desync), seconds(desync.since))
}

/// Of a verdict whose times mean nothing: what ranks wait in or call, and which of them are missing.
#[must_use]
pub fn collectives_sentence(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Progress | Verdict::NotEnoughEvidence | Verdict::Straggler(_) => None,
        Verdict::Desync(desync) => Some(calls_text(desync)),
        Verdict::Hang(hang) => {
            let missing = hang.waits.first().map(|wait| &wait.missing).filter(|missing| !missing.is_empty());
            let missing = missing.map(|missing| join(missing, "has not called it"));
            // They stand behind the collective that they are missing in.
            let mut parts = wait_parts(&hang.waits);
            missing.into_iter().for_each(|text| parts.insert(1, text));
            (!parts.is_empty()).then(|| parts.join("; "))
        }
    }
}

fn calls_text(desync: &Desync) -> String {
    let has_one_name = desync.calls.windows(2).all(|pair| pair[0].collective.name == pair[1].collective.name);
    let call = |Call { ranks, collective, place }: &Call| {
        let elements = collective.elements.filter(|_| has_one_name);
        let elements = elements.map(|count| format!(" of {count} elements")).unwrap_or_default();
        let verb = if ranks.len() == 1 { "calls" } else { "call" };
        format!("{} {verb} {}{elements}{}", names(ranks), plain(&collective.name), line_text(place.as_ref()))
    };
    let calls: Vec<String> = desync.calls.iter().map(call).collect();
    let group = group_text(&desync.group);
    format!("{} as #{}{group}", calls.join(", "), desync.sequence)
}

fn straggler_sentence(straggler: &Straggler) -> String {
    let working = status_parts(&straggler.working, |status| match &status.activity {
        Activity::Step { section: Some(section), step } => {
            format!("has worked in section {section} at step {step} for {}", seconds(status.since))
        }
        Activity::Step { section: None, step } => format!("works at step {step}"),
        Activity::Recorded
        | Activity::NoCollective
        | Activity::Unanswered
        | Activity::Unknown
        | Activity::Finished => "works".to_owned(),
    });
    wait_parts(&straggler.waits).into_iter().chain(working).collect::<Vec<_>>().join("; ")
}

fn wait_parts(waits: &[Wait]) -> Vec<String> {
    let part = |wait: &Wait| {
        let verb = if wait.waiting.len() == 1 { "waits" } else { "wait" };
        let name = wait.name.as_ref().map_or_else(|| "collective".to_owned(), |name| plain(name));
        let group = group_text(&wait.group);
        let line = line_text(wait.place.as_ref());
        format!("{} {verb} in {name} #{}{group}{line}", names(&wait.waiting), wait.sequence)
    };
    let mut parts: Vec<String> = waits.iter().take(MAX_WAITS).map(part).collect();
    if waits.len() > MAX_WAITS {
        parts.push(format!("ranks wait in {} other collectives", waits.len() - MAX_WAITS));
    }
    parts
}

/// Ranks with the same text stand together.
fn status_parts(ranks: &[RankStatus], text: impl Fn(&RankStatus) -> String) -> Vec<String> {
    let mut parts: Vec<(BTreeSet<Rank>, String)> = Vec::new();
    for status in ranks {
        let place = status.place.as_ref().map(|place| format!(", {}", plain(place))).unwrap_or_default();
        let text = text(status) + &place;
        match parts.iter_mut().find(|(_, other)| *other == text) {
            Some((ranks, _)) => {
                ranks.insert(status.rank);
            }
            None => parts.push((BTreeSet::from([status.rank]), text)),
        }
    }
    parts.into_iter().map(|(ranks, text)| join(&ranks, &text)).collect()
}

/// The verbs of one rank, for several.
fn join(ranks: &BTreeSet<Rank>, text: &str) -> String {
    let singular = [
        ("works", "work"),
        ("has made", "have made"),
        ("has been", "have been"),
        ("has worked", "have worked"),
        ("has called", "have called"),
        ("has not called", "have not called"),
        ("does not", "do not"),
        ("shows nothing of its", "show nothing of their"),
    ];
    let plural = singular.iter().find_map(|(one, many)| Some(format!("{many}{}", text.strip_prefix(one)?)));
    let text = plural.filter(|_| ranks.len() > 1).unwrap_or_else(|| text.to_owned());
    format!("{} {text}", names(ranks))
}

fn names(ranks: &BTreeSet<Rank>) -> String {
    rank_names(ranks.iter().copied())
}

fn line_text(place: Option<&String>) -> String {
    place.map(|place| format!(" ({})", plain(place))).unwrap_or_default()
}

fn group_text(group: &str) -> String {
    let mut text = String::new();
    if !group.is_empty() {
        let _ = write!(text, " of group {}", plain(group));
    }
    text
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.1} s", time.as_secs_f64()),
        1..600 => format!("{} s", time.as_secs()),
        seconds => format!("{} min", seconds / 60),
    }
}

#[cfg(test)]
#[path = "sentence_tests.rs"]
mod tests;
