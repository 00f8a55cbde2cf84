//! Why a call hangs: what the ranks call at its place. Pure.

use std::time::Duration;

use rankrun_contract::rank::Rank;

use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, Operation};

/// What another rank said when it was asked about a call that hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing: it is stopped, or so busy that it might as well be.
    Silence,
    /// It has made no call yet, or this is its last one, or its call at the place in question.
    Calls(Option<Call>),
}

/// How the group ends because `ours` is not done after `timeout`.
pub(super) fn explain(me: Rank, ours: Call, timeout: Duration, answers: &[(Rank, Answer)]) -> Ending {
    let late = |rank| Ending::Lost { rank, cause: LossCause::Timeout(timeout) };
    // Between two ranks there is only the other one.
    if let (Operation::Send | Operation::Receive, Some(other)) = (ours.operation, ours.root)
        && other != me
    {
        return late(other);
    }
    let is_behind = |answer: &Answer| match answer {
        Answer::Silence | Answer::Calls(None) => true,
        Answer::Calls(Some(theirs)) => theirs.sequence < ours.sequence,
    };
    if let Some((rank, _)) = answers.iter().find(|(_, answer)| is_behind(answer)) {
        return late(*rank);
    }
    for (rank, answer) in answers {
        if let Answer::Calls(Some(theirs)) = answer
            && theirs.sequence == ours.sequence
            && *theirs != ours
        {
            let (theirs, ours) = (Some(Box::new(*theirs)), Box::new(ours));
            return Ending::Mismatch { rank: *rank, theirs, ours };
        }
    }
    let reason = format!("{ours} is not done within {timeout:?}, although all ranks have made it");
    Ending::Failed { rank: me, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::DataType;

    const TIMEOUT: Duration = Duration::from_secs(9);

    fn call(sequence: u64) -> Call {
        let (operation, data_type) = (Operation::AllReduce, DataType::F32);
        Call { operation, data_type, reduction: None, root: None, count: 4, sequence }
    }

    fn explained(answers: &[(u32, Answer)]) -> Ending {
        let answers: Vec<_> = answers.iter().map(|(rank, answer)| (Rank(*rank), *answer)).collect();
        explain(Rank(0), call(5), TIMEOUT, &answers)
    }

    #[test]
    fn a_rank_that_has_not_come_so_far_is_missing() {
        let late = |rank| Ending::Lost { rank: Rank(rank), cause: LossCause::Timeout(TIMEOUT) };
        let there = Answer::Calls(Some(call(5)));
        assert_eq!(explained(&[(1, there), (2, Answer::Calls(Some(call(4))))]), late(2));
        assert_eq!(explained(&[(1, Answer::Calls(None)), (2, there)]), late(1));
        assert_eq!(explained(&[(1, there), (2, Answer::Silence)]), late(2));
    }

    #[test]
    fn a_rank_that_calls_something_else_is_named_with_both_calls() {
        let other = Call { count: 8, ..call(5) };
        let ending = explained(&[(1, Answer::Calls(Some(call(5)))), (2, Answer::Calls(Some(other)))]);
        let (theirs, ours) = (Some(Box::new(other)), Box::new(call(5)));
        assert_eq!(ending, Ending::Mismatch { rank: Rank(2), theirs, ours });
    }

    #[test]
    fn nobody_is_blamed_where_all_have_come() {
        let ending = explained(&[(1, Answer::Calls(Some(call(5))))]);
        assert!(matches!(ending, Ending::Failed { rank: Rank(0), .. }), "{ending:?}");
    }

    #[test]
    fn the_other_end_of_a_transfer_is_missing() {
        let ours = Call { operation: Operation::Receive, root: Some(Rank(2)), ..call(1) };
        let ending = explain(Rank(0), ours, TIMEOUT, &[(Rank(1), Answer::Silence)]);
        assert_eq!(ending, Ending::Lost { rank: Rank(2), cause: LossCause::Timeout(TIMEOUT) });
    }
}
