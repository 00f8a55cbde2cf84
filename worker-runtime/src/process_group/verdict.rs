//! The one failure of a group on which all ranks agree.
//!
//! The first rank that detects a failure writes it into the store before it closes its connections. A
//! rank that detects one later, perhaps only through the closed connections, reads which rank was lost
//! first, or which two calls differ.
//!
//! ```text
//! lost <rank>
//! mismatch <rank> <its call> <other rank> <the other call, or ->
//! failed <rank> <its error>
//! ```

use rankrun_contract::rank::{Rank, WorldSize};

use super::error::{GroupFailure, LossCause};
use super::message::Call;
use super::rendezvous::Membership;
use crate::report;
use crate::store::TcpStore;

/// Characters of an error message that are read at most.
const MAX_REASON_CHARS: usize = 2000;

/// The failure on which all ranks agree, after this rank has `seen` one.
pub(crate) fn agree_on_failure(
    store: &TcpStore,
    membership: &Membership,
    local_failure: GroupFailure,
) -> GroupFailure {
    let failure =
        match store.compare_set("verdict", b"", render_verdict(&local_failure, membership.rank).as_bytes()) {
            Ok(stored) => resolve_failure(
                local_failure,
                std::str::from_utf8(&stored).unwrap_or_default(),
                membership.world_size,
            ),
            // Without the store this rank's own failure is the best one known.
            Err(_) => local_failure,
        };
    if let GroupFailure::Lost { rank, .. } = &failure {
        report::set_lost_rank(membership.members.global_rank(*rank));
    }
    failure
}

/// The text for the store.
fn render_verdict(failure: &GroupFailure, me: Rank) -> String {
    let (rank, call, other, other_call) = match failure {
        GroupFailure::Lost { rank, .. } => return format!("lost {rank}"),
        GroupFailure::RankFailed { rank, reason } => return format!("failed {rank} {reason}"),
        GroupFailure::Mismatch { rank, other_call, own_call } => (me, own_call, *rank, other_call),
        GroupFailure::Disagreed { rank, call, other_rank: other, other_call } => {
            (*rank, call, *other, other_call)
        }
    };
    let other_call = other_call.as_ref().map_or_else(|| "-".to_owned(), |call| call.to_hex());
    format!("mismatch {rank} {} {other} {other_call}", call.to_hex())
}

/// The failure to report if this rank has `seen` one and the store holds `verdict`.
fn resolve_failure(local_failure: GroupFailure, verdict: &str, world_size: WorldSize) -> GroupFailure {
    match (parse_verdict(verdict, world_size), &local_failure) {
        // The local observation has more detail than the store.
        (Some(GroupFailure::Lost { rank, .. }), GroupFailure::Lost { rank: same, .. }) if rank == *same => {
            local_failure
        }
        (Some(agreed), _) => agreed,
        (None, _) => local_failure,
    }
}

/// `None` for text that a rank of a group of this size never writes.
fn parse_verdict(verdict: &str, world_size: WorldSize) -> Option<GroupFailure> {
    let rank = |text: &str| text.parse().ok().filter(|rank: &Rank| rank.0 < world_size.get());
    let mut fields = verdict.split(' ');
    let failure = match fields.next()? {
        "lost" => GroupFailure::Lost { rank: rank(fields.next()?)?, cause: LossCause::Reported },
        "mismatch" => GroupFailure::Disagreed {
            rank: rank(fields.next()?)?,
            call: Box::new(Call::from_hex(fields.next()?)?),
            other_rank: rank(fields.next()?)?,
            other_call: match fields.next()? {
                "-" => None,
                digits => Some(Box::new(Call::from_hex(digits)?)),
            },
        },
        "failed" => {
            let rank = rank(fields.next()?)?;
            let reason: String =
                fields.collect::<Vec<_>>().join(" ").chars().take(MAX_REASON_CHARS).collect();
            return (!reason.is_empty()).then_some(GroupFailure::RankFailed { rank, reason });
        }
        _ => return None,
    };
    fields.next().is_none().then_some(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::{DataType, ReduceOp};
    use crate::process_group::message::Operation;

    const ME: Rank = Rank(0);

    fn four_ranks() -> WorldSize {
        WorldSize::new(4).unwrap()
    }

    fn lost_rank(rank: u32) -> GroupFailure {
        GroupFailure::Lost { rank: Rank(rank), cause: LossCause::Closed }
    }

    fn call(count: u64) -> Box<Call> {
        Box::new(Call {
            operation: Operation::Reduce,
            data_type: DataType::F16,
            reduce_op: Some(ReduceOp::Max),
            root: Some(Rank(2)),
            count,
            sequence: 7,
        })
    }

    #[test]
    fn stored_verdict_overrides_local_failure() {
        assert_eq!(render_verdict(&lost_rank(2), ME), "lost 2");
        let reported = GroupFailure::Lost { rank: Rank(1), cause: LossCause::Reported };
        assert_eq!(resolve_failure(lost_rank(2), "lost 1", four_ranks()), reported);
    }

    #[test]
    fn mismatch_verdict_names_both_calls_on_all_ranks() {
        for other_call in [Some(call(4)), None] {
            let observed =
                GroupFailure::Mismatch { rank: Rank(3), other_call: other_call.clone(), own_call: call(5) };
            let verdict = render_verdict(&observed, Rank(1));
            let expected =
                GroupFailure::Disagreed { rank: Rank(1), call: call(5), other_rank: Rank(3), other_call };
            assert_eq!(render_verdict(&expected, ME), verdict);
            for observed in [observed, lost_rank(1)] {
                assert_eq!(resolve_failure(observed, &verdict, four_ranks()), expected);
            }
        }
        let expected = GroupFailure::Disagreed {
            rank: Rank(1),
            call: call(5),
            other_rank: Rank(3),
            other_call: Some(call(4)),
        };
        assert_eq!(
            expected.to_string(),
            "rank 1 makes call 7, `reduce` (max) of 5 f16 with root 2 \
             where rank 3 makes call 7, `reduce` (max) of 4 f16 with root 2"
        );
    }

    #[test]
    fn rank_failure_verdict_keeps_its_error_text() {
        let failed = GroupFailure::RankFailed { rank: Rank(1), reason: "no such device".to_owned() };
        assert_eq!(resolve_failure(lost_rank(1), &render_verdict(&failed, Rank(1)), four_ranks()), failed);
    }

    #[test]
    fn same_lost_rank_keeps_local_cause() {
        assert_eq!(resolve_failure(lost_rank(2), "lost 2", four_ranks()), lost_rank(2));
    }

    #[test]
    fn invalid_verdict_keeps_local_failure() {
        let digits = call(1).to_hex();
        let strange = [
            String::new(),
            "lost".to_owned(),
            "lost -1".to_owned(),
            "lost 4".to_owned(),
            "lost 1 2".to_owned(),
            "found 1".to_owned(),
            "mismatch 1 2".to_owned(),
            "failed".to_owned(),
            "failed 1".to_owned(),
            "failed 4 words".to_owned(),
            "mismatch 1 - 2 -".to_owned(),
            format!("mismatch 1 {digits} 4 -"),
            format!("mismatch 1 {digits} 2 {digits}0"),
            format!("mismatch 1 {digits} 2 - -"),
        ];
        for verdict in strange {
            assert_eq!(resolve_failure(lost_rank(2), &verdict, four_ranks()), lost_rank(2), "{verdict}");
        }
    }
}
