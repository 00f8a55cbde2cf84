//! Explains a call that hangs by the calls of the other ranks. Pure.

use std::time::Duration;

use rankrun_contract::rank::Rank;

use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, Operation};

/// The answer of another rank to the question about a hanging call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// No answer: the rank is stopped or too busy.
    Silence,
    /// Its call with that sequence number, else its last call; `None` if it has made no call.
    Calls(Option<Call>),
}

/// The failure of the group because the call `ours` is not done after `timeout`.
pub(super) fn explain_hang(
    me: Rank,
    own_call: Call,
    timeout: Duration,
    answers: &[(Rank, Answer)],
) -> GroupFailure {
    let late = |rank| GroupFailure::Lost { rank, cause: LossCause::Timeout(timeout) };
    // Only the peer of a message can delay it.
    if let (Operation::Send | Operation::Receive, Some(other)) = (own_call.operation, own_call.root)
        && other != me
    {
        return late(other);
    }
    let is_behind = |answer: &Answer| match answer {
        Answer::Silence | Answer::Calls(None) => true,
        Answer::Calls(Some(other_call)) => other_call.sequence < own_call.sequence,
    };
    if let Some((rank, _)) = answers.iter().find(|(_, answer)| is_behind(answer)) {
        return late(*rank);
    }
    for (rank, answer) in answers {
        if let Answer::Calls(Some(other_call)) = answer
            && other_call.sequence == own_call.sequence
            && *other_call != own_call
        {
            let (other_call, own_call) = (Some(Box::new(*other_call)), Box::new(own_call));
            return GroupFailure::Mismatch { rank: *rank, other_call, own_call };
        }
    }
    let reason = format!("{own_call} is not done within {timeout:?}, although every rank has made this call");
    GroupFailure::RankFailed { rank: me, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::DataType;

    const TIMEOUT: Duration = Duration::from_secs(9);

    fn call(sequence: u64) -> Call {
        let (operation, data_type) = (Operation::AllReduce, DataType::F32);
        Call { operation, data_type, reduce_op: None, root: None, count: 4, sequence }
    }

    fn explained(answers: &[(u32, Answer)]) -> GroupFailure {
        let answers: Vec<_> = answers.iter().map(|(rank, answer)| (Rank(*rank), *answer)).collect();
        explain_hang(Rank(0), call(5), TIMEOUT, &answers)
    }

    #[test]
    fn rank_behind_or_silent_is_reported_lost() {
        let late = |rank| GroupFailure::Lost { rank: Rank(rank), cause: LossCause::Timeout(TIMEOUT) };
        let there = Answer::Calls(Some(call(5)));
        assert_eq!(explained(&[(1, there), (2, Answer::Calls(Some(call(4))))]), late(2));
        assert_eq!(explained(&[(1, Answer::Calls(None)), (2, there)]), late(1));
        assert_eq!(explained(&[(1, there), (2, Answer::Silence)]), late(2));
    }

    #[test]
    fn rank_with_different_call_is_reported_as_mismatch() {
        let other = Call { count: 8, ..call(5) };
        let failure = explained(&[(1, Answer::Calls(Some(call(5)))), (2, Answer::Calls(Some(other)))]);
        let (other_call, own_call) = (Some(Box::new(other)), Box::new(call(5)));
        assert_eq!(failure, GroupFailure::Mismatch { rank: Rank(2), other_call, own_call });
    }

    #[test]
    fn call_hanging_on_all_ranks_reports_own_rank_failed() {
        let failure = explained(&[(1, Answer::Calls(Some(call(5))))]);
        assert!(matches!(failure, GroupFailure::RankFailed { rank: Rank(0), .. }), "{failure:?}");
    }

    #[test]
    fn hanging_receive_reports_peer_lost() {
        let own_call = Call { operation: Operation::Receive, root: Some(Rank(2)), ..call(1) };
        let failure = explain_hang(Rank(0), own_call, TIMEOUT, &[(Rank(1), Answer::Silence)]);
        assert_eq!(failure, GroupFailure::Lost { rank: Rank(2), cause: LossCause::Timeout(TIMEOUT) });
    }
}
