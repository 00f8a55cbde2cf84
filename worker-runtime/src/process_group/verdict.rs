//! The one ending of a group on which all ranks agree.
//!
//! The first rank that notices writes it into the store before it closes its connections. Whoever notices
//! later, be it only through those closed connections, reads who was lost first, or which two calls differ.
//!
//! ```text
//! lost <rank>
//! mismatch <rank> <its call> <other rank> <the other's call, or ->
//! ```

use rankrun_contract::rank::{Rank, WorldSize};

use super::error::{Ending, LossCause};
use super::meet::Seat;
use super::message::Call;
use crate::report;
use crate::store::TcpStore;

/// The ending on which all ranks agree when the one at `seat` noticed `seen`.
pub(crate) fn agree(store: &TcpStore, seat: &Seat, seen: Ending) -> Ending {
    let ending = match store.compare_set("verdict", b"", render(&seen, seat.rank).as_bytes()) {
        Ok(said) => settle(seen, std::str::from_utf8(&said).unwrap_or_default(), seat.world_size),
        // Without the store this rank's own word is the best one.
        Err(_) => seen,
    };
    if let Ending::Lost { rank, .. } = &ending {
        report::note_loss(seat.members.in_job(*rank));
    }
    ending
}

/// What the store says of an ending.
fn render(ending: &Ending, me: Rank) -> String {
    let (rank, call, other, others) = match ending {
        Ending::Lost { rank, .. } => return format!("lost {rank}"),
        Ending::Mismatch { rank, theirs, ours } => (me, ours, *rank, theirs),
        Ending::Disagreed { rank, call, other, others } => (*rank, call, *other, others),
    };
    let others = others.as_ref().map_or_else(|| "-".to_owned(), |call| call.to_hex());
    format!("mismatch {rank} {} {other} {others}", call.to_hex())
}

/// The ending to report when `seen` was noticed here and the store says `verdict`.
fn settle(seen: Ending, verdict: &str, world_size: WorldSize) -> Ending {
    match (parse(verdict, world_size), &seen) {
        // What was noticed here says more than the store does.
        (Some(Ending::Lost { rank, .. }), Ending::Lost { rank: same, .. }) if rank == *same => seen,
        (Some(told), _) => told,
        (None, _) => seen,
    }
}

/// `None` for what no rank of a group of this size writes.
fn parse(verdict: &str, world_size: WorldSize) -> Option<Ending> {
    let rank = |text: &str| text.parse().ok().filter(|rank: &Rank| rank.0 < world_size.get());
    let mut words = verdict.split(' ');
    let ending = match words.next()? {
        "lost" => Ending::Lost { rank: rank(words.next()?)?, cause: LossCause::Reported },
        "mismatch" => Ending::Disagreed {
            rank: rank(words.next()?)?,
            call: Box::new(Call::from_hex(words.next()?)?),
            other: rank(words.next()?)?,
            others: match words.next()? {
                "-" => None,
                digits => Some(Box::new(Call::from_hex(digits)?)),
            },
        },
        _ => return None,
    };
    words.next().is_none().then_some(ending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::{DataType, Reduction};
    use crate::process_group::message::Operation;

    const ME: Rank = Rank(0);

    fn four() -> WorldSize {
        WorldSize::new(4).unwrap()
    }

    fn lost(rank: u32) -> Ending {
        Ending::Lost { rank: Rank(rank), cause: LossCause::Closed }
    }

    fn call(count: u64) -> Box<Call> {
        Box::new(Call {
            operation: Operation::Reduce,
            data_type: DataType::F16,
            reduction: Some(Reduction::Max),
            root: Some(Rank(2)),
            count,
            sequence: 7,
        })
    }

    #[test]
    fn the_first_one_to_notice_is_believed() {
        assert_eq!(render(&lost(2), ME), "lost 2");
        let reported = Ending::Lost { rank: Rank(1), cause: LossCause::Reported };
        assert_eq!(settle(lost(2), "lost 1", four()), reported);
    }

    #[test]
    fn every_rank_hears_both_calls_of_a_mismatch() {
        for others in [Some(call(4)), None] {
            let seen = Ending::Mismatch { rank: Rank(3), theirs: others.clone(), ours: call(5) };
            let verdict = render(&seen, Rank(1));
            let told = Ending::Disagreed { rank: Rank(1), call: call(5), other: Rank(3), others };
            assert_eq!(render(&told, ME), verdict);
            for seen in [seen, lost(1)] {
                assert_eq!(settle(seen, &verdict, four()), told);
            }
        }
        let told = Ending::Disagreed { rank: Rank(1), call: call(5), other: Rank(3), others: Some(call(4)) };
        assert_eq!(
            told.to_string(),
            "rank 1 makes call 7, `reduce` (max) of 5 f16 with root 2 \
             where rank 3 makes call 7, `reduce` (max) of 4 f16 with root 2"
        );
    }

    #[test]
    fn the_same_verdict_keeps_the_evidence() {
        assert_eq!(settle(lost(2), "lost 2", four()), lost(2));
    }

    #[test]
    fn a_strange_verdict_changes_nothing() {
        let digits = call(1).to_hex();
        let strange = [
            String::new(),
            "lost".to_owned(),
            "lost -1".to_owned(),
            "lost 4".to_owned(),
            "lost 1 2".to_owned(),
            "found 1".to_owned(),
            "mismatch 1 2".to_owned(),
            "mismatch 1 - 2 -".to_owned(),
            format!("mismatch 1 {digits} 4 -"),
            format!("mismatch 1 {digits} 2 {digits}0"),
            format!("mismatch 1 {digits} 2 - -"),
        ];
        for verdict in strange {
            assert_eq!(settle(lost(2), &verdict, four()), lost(2), "{verdict}");
        }
    }
}
