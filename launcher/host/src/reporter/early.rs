//! The other ranks in a failure report, and whether one that finished early is the probable cause. Pure.
//!
//! A rank that exits with 0 leaves its peers in a collective without a partner. They fail, and the first of them looks like
//! the cause. An early success alone proves nothing: ranks may have different amounts of work, and any of them may fail of
//! its own. So it is named as the cause only where the failed worker itself reports that it lost a peer.

use std::time::Duration;

use rankrun_contract::rank::Rank;

use crate::reporter::summary::{FailureReport, OtherEnd};
use rankrun_core::job_event::{FailureKind, lost_peer_phrase};
use rankrun_core::rank_names::rank_names;

/// A worker that exited with 0 before the first failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EarlyRank {
    /// The rank of the worker that finished.
    pub rank: Rank,
    /// The time between its exit and the first failure.
    pub before: Duration,
}

/// Texts of NCCL, PyTorch's store and the Rust runtime about a peer that does not join or does not answer.
const MISSING_PEER: [&str; 5] = [
    "Watchdog caught collective operation timeout",
    "Connection was likely closed",
    "waiting for clients",
    "DistStoreError: wait timeout after ",
    "which exited: its connection closed",
];

/// The sentence about the early success that probably caused the failure.
#[must_use]
pub(crate) fn probable_cause(failure: &FailureReport) -> Option<String> {
    if !matches!(failure.kind, FailureKind::Ended | FailureKind::EndedByStop) {
        return None;
    }
    let me = failure.rank;
    if let Some(lost) = failure.report.as_ref().and_then(|report| report.lost_rank) {
        let is_lost = |end: &&OtherEnd| end.rank == lost && end.exit.is_success();
        let same_moment = || failure.other_ends.iter().find(is_lost).map(|_| Duration::ZERO);
        let early = failure.early.iter().find(|early| early.rank == lost).map(|early| early.before);
        let before = seconds_before(early.or_else(same_moment)?);
        return Some(format!(
            "rank {lost} had exited with 0, {before}; rank {me} reports that it lost rank {lost}"
        ));
    }
    let phrase = peer_loss_phrase(failure)?;
    let names = early_names(&failure.early)?;
    Some(format!("{names}; rank {me} reports a lost peer (`{phrase}`)"))
}

/// The ranks that the hint is about.
#[must_use]
pub(crate) fn early_ranks(failure: &FailureReport) -> String {
    let lost = failure.report.as_ref().and_then(|report| report.lost_rank);
    let all = failure.early.iter().map(|early| early.rank);
    lost.map_or_else(|| rank_names(all), |lost| rank_names([lost]))
}

fn peer_loss_phrase(failure: &FailureReport) -> Option<&'static str> {
    let report = failure.report.iter();
    let reported = report.flat_map(|report| [Some(&report.message), report.callstack.as_ref()]).flatten();
    let texts: Vec<&String> = failure.tail.iter().chain(reported).collect();
    let missing = || MISSING_PEER.into_iter().find(|phrase| texts.iter().any(|text| text.contains(phrase)));
    texts.iter().find_map(|text| lost_peer_phrase(text)).or_else(missing)
}

/// `rank 1 had exited with 0, 1.2 s before`
fn early_names(early: &[EarlyRank]) -> Option<String> {
    let names = rank_names(early.iter().map(|early| early.rank));
    Some(format!("{names} had exited with 0, {}", early_range_text(early)?))
}

/// `1.2 s before`, or from the last to the first.
fn early_range_text(early: &[EarlyRank]) -> Option<String> {
    let (first, last) =
        (early.iter().map(|early| early.before).max()?, early.iter().map(|early| early.before).min()?);
    let (first, last) = (seconds_before(first), format!("{:.1}", last.as_secs_f64()));
    Some(if first.starts_with(&format!("{last} ")) { first } else { format!("{last} to {first}") })
}

fn seconds_before(before: Duration) -> String {
    format!("{:.1} s before", before.as_secs_f64())
}

/// How all other ranks of the node ended; equal ends together.
#[must_use]
pub(crate) fn other_ends_text(failure: &FailureReport) -> String {
    let mut groups: Vec<(String, Vec<Rank>)> = Vec::new();
    if let Some(before) = early_range_text(&failure.early) {
        groups
            .push((format!("exit code 0, {before}"), failure.early.iter().map(|early| early.rank).collect()));
    }
    for other in &failure.other_ends {
        let end = other.exit.to_string();
        match groups.iter_mut().find(|(known, _)| *known == end) {
            Some((_, ranks)) => ranks.push(other.rank),
            None => groups.push((end, vec![other.rank])),
        }
    }
    let texts: Vec<String> =
        groups.into_iter().map(|(end, ranks)| format!("{}: {end}", rank_names(ranks))).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use rankrun_contract::report::ErrorReport;

    use super::*;
    use crate::reporter::summary::tests::example_failure;
    use rankrun_core::posix::Exit;

    fn early(ranks: &[(u32, u64)]) -> Vec<EarlyRank> {
        let before = Duration::from_millis;
        ranks.iter().map(|(rank, millis)| EarlyRank { rank: Rank(*rank), before: before(*millis) }).collect()
    }

    fn reports(message: &str, lost: Option<u32>) -> Option<ErrorReport> {
        let lost_rank = lost.map(Rank);
        Some(ErrorReport { message: message.to_owned(), callstack: None, unix_seconds: None, lost_rank })
    }

    /// The report of rank 0, which ended with a code.
    fn of_rank_0(early_ranks: &[(u32, u64)], last_line: &str) -> FailureReport {
        let tail = vec![last_line.to_owned()];
        FailureReport {
            rank: Rank(0),
            exit: Exit::Code(1),
            early: early(early_ranks),
            tail,
            ..example_failure()
        }
    }

    #[test]
    fn early_success_is_probable_cause_of_lost_peer() {
        let gloo =
            "RuntimeError: [/x/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:44682.";
        let one = of_rank_0(&[(1, 1_240)], gloo);
        let cause = "rank 1 had exited with 0, 1.2 s before; rank 0 reports a lost peer (`Connection closed by peer`)";
        assert_eq!(probable_cause(&one).as_deref(), Some(cause));
        let three = probable_cause(&of_rank_0(&[(1, 3_000), (2, 2_000), (3, 1_000)], gloo)).unwrap();
        assert!(three.starts_with("ranks 1-3 had exited with 0, 1.0 to 3.0 s before; "), "{three}");
        assert_eq!(probable_cause(&of_rank_0(&[], gloo)), None, "no rank had finished");
        let nccl =
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting";
        assert!(probable_cause(&of_rank_0(&[(1, 0)], nccl)).is_some());
        let before_init =
            "torch.distributed.DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/1";
        assert!(probable_cause(&of_rank_0(&[(1, 0)], before_init)).is_some());
    }

    #[test]
    fn early_success_is_not_cause_of_other_named_reason() {
        for line in
            ["ValueError: bad batch", "ConnectionResetError: [Errno 104] Connection reset by peer", ""]
        {
            assert_eq!(probable_cause(&of_rank_0(&[(1, 10)], line)), None, "{line}");
        }
        let dstate = FailureKind::Uninterruptible { blocked_for: Duration::from_secs(2) };
        let failure = FailureReport { kind: dstate, ..of_rank_0(&[(1, 10)], "Connection closed by peer") };
        assert_eq!(probable_cause(&failure), None);
    }

    #[test]
    fn reported_lost_rank_selects_probable_cause() {
        let with = |report| FailureReport { report, ..of_rank_0(&[(1, 1_000), (2, 500)], "") };
        let cause = "rank 2 had exited with 0, 0.5 s before; rank 0 reports that it lost rank 2";
        assert_eq!(probable_cause(&with(reports("lost rank 2", Some(2)))).as_deref(), Some(cause));
        assert_eq!(probable_cause(&with(reports("lost rank 3", Some(3)))), None, "rank 3 had not finished");
        let exit = Exit::Code(0);
        let seen_later = FailureReport {
            early: Vec::new(),
            other_ends: vec![OtherEnd { rank: Rank(2), exit }],
            ..with(reports("lost rank 2", Some(2)))
        };
        assert!(probable_cause(&seen_later).unwrap().starts_with("rank 2 had exited with 0, 0.0 s before; "));
    }

    #[test]
    fn other_ranks_with_equal_exit_are_listed_together() {
        let stopped = Exit::Signal { number: libc::SIGTERM, core_dumped: false };
        let mut failure = of_rank_0(&[(1, 1_240)], "");
        failure.other_ends = (2..40).map(|rank| OtherEnd { rank: Rank(rank), exit: stopped }).collect();
        failure.other_ends.insert(5, OtherEnd { rank: Rank(40), exit: Exit::Code(7) });
        let text = "rank 1: exit code 0, 1.2 s before; ranks 2-39: killed by SIGTERM; rank 40: exit code 7";
        assert_eq!(other_ends_text(&failure), text);
    }
}
