//! The one ending of a group on which all ranks agree.
//!
//! The first rank that notices writes it into the store before it closes its connections. Whoever notices
//! later, be it only through those closed connections, reads who was lost first.

use rankrun_contract::rank::Rank;

use super::error::{Ending, LossCause};
use crate::report;
use crate::store::TcpStore;

/// The ending on which all ranks agree when this one noticed `seen`.
pub(crate) fn agree(store: &TcpStore, seen: Ending, me: Rank) -> Ending {
    let ending = match store.compare_set("verdict", b"", render(&seen, me).as_bytes()) {
        Ok(said) => settle(seen, &String::from_utf8_lossy(&said), me),
        // Without the store this rank's own word is the best one.
        Err(_) => seen,
    };
    if let Ending::Lost { rank, .. } = &ending {
        report::note_loss(*rank);
    }
    ending
}

/// What the store says of an ending.
fn render(ending: &Ending, me: Rank) -> String {
    match ending {
        Ending::Lost { rank, .. } => format!("lost {rank}"),
        Ending::Mismatch { rank, .. } => format!("mismatch {me} {rank}"),
        Ending::Disagreed { rank, other } => format!("mismatch {rank} {other}"),
        Ending::Failed { rank, reason } => format!("failed {rank} {reason}"),
    }
}

/// The ending to report when `seen` was noticed here and the store says `verdict`.
fn settle(seen: Ending, verdict: &str, me: Rank) -> Ending {
    let own = render(&seen, me);
    let words: Vec<&str> = verdict.split(' ').collect();
    match words[..] {
        // What was noticed here says more than the store does.
        _ if verdict == own || matches!(seen, Ending::Mismatch { .. }) => seen,
        ["lost", rank] => match rank.parse() {
            Ok(rank) => Ending::Lost { rank, cause: LossCause::Reported },
            Err(_) => seen,
        },
        ["mismatch", rank, other] => match (rank.parse(), other.parse()) {
            (Ok(rank), Ok(other)) => Ending::Disagreed { rank, other },
            _ => seen,
        },
        ["failed", rank, ..] => match rank.parse() {
            Ok(rank) => Ending::Failed { rank, reason: words[2..].join(" ") },
            Err(_) => seen,
        },
        _ => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Rank = Rank(0);

    fn lost(rank: u32) -> Ending {
        Ending::Lost { rank: Rank(rank), cause: LossCause::Closed }
    }

    #[test]
    fn the_first_one_to_notice_is_believed() {
        assert_eq!(render(&lost(2), ME), "lost 2");
        let reported = Ending::Lost { rank: Rank(1), cause: LossCause::Reported };
        assert_eq!(settle(lost(2), "lost 1", ME), reported);
        let disagreed = Ending::Disagreed { rank: Rank(1), other: Rank(3) };
        assert_eq!(render(&disagreed, ME), "mismatch 1 3");
        assert_eq!(settle(lost(2), "mismatch 1 3", ME), disagreed);
    }

    #[test]
    fn what_failed_on_another_rank_is_told_in_its_words() {
        let failed = Ending::Failed { rank: Rank(1), reason: "no such device".to_owned() };
        assert_eq!(settle(lost(1), &render(&failed, Rank(1)), ME), failed);
    }

    #[test]
    fn the_same_verdict_keeps_the_evidence() {
        assert_eq!(settle(lost(2), "lost 2", ME), lost(2));
    }

    #[test]
    fn a_strange_verdict_changes_nothing() {
        for verdict in
            ["", "lost", "lost -1", "lost 1 2", "mismatch 1", "mismatch a b", "found 1", "failed", "failed x"]
        {
            assert_eq!(settle(lost(2), verdict, ME), lost(2), "{verdict}");
        }
    }
}
