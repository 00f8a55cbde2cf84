//! Decides what the header of another rank means during a call of this rank. Pure.
//!
//! A rank that waits for another one, and sends it nothing in this call, sends it a *notice* after a
//! while: the call for which it waits. Otherwise two ranks that make different calls and both only
//! receive would wait for each other.

use std::collections::VecDeque;

use crate::process_group::message::{Call, Header, Operation};

/// The step number of a notice; no call has as many steps.
pub(super) const NOTICE_STEP: u32 = u32::MAX;

/// The step number of a rank that is in a call, but in none of its steps.
pub(super) const BETWEEN_STEPS: u32 = u32::MAX;

/// What to do with a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderVerdict {
    /// Receive its message now.
    Now,
    /// Receive its message in a later step.
    Later,
    /// Ignore it: it has no message and nothing new.
    Nothing,
    /// The rank has left.
    Left,
}

/// Two ranks have made different calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) other_call: Call,
    pub(super) own_call: Call,
}

/// The state of this rank with respect to one other rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) call: Call,
    /// Step of the call, from 0, or [`BETWEEN_STEPS`] two steps.
    pub(super) step: u32,
    /// Length of the expected message from the other rank.
    pub(super) expected_len: Option<u64>,
    /// Number of messages sent to it by `send`, with that of this call.
    pub(super) sent_messages: u64,
    pub(super) calls: &'a CallHistory,
}

/// The notice of a waiting rank. A `receive` keeps its name, although the transport calls it `send`.
pub(super) fn notice_header(call: Call, calls: &CallHistory) -> Header {
    Header {
        call,
        step: NOTICE_STEP,
        length: 0,
        previous_call: calls.previous_call(call),
        latest_sequence: calls.latest_sequence(),
    }
}

pub(super) fn judge_header(header: Header, situation: &Situation<'_>) -> Result<HeaderVerdict, Mismatch> {
    let Situation { call, step: number, expected_len: expected, calls, .. } = *situation;
    if header == Header::LEAVE {
        return Ok(HeaderVerdict::Left);
    }
    if let Some(other_call) = header.previous_call
        && let Some(own_call) = calls.call_with_sequence_of(other_call)
        && own_call != other_call
    {
        return Err(Mismatch { other_call, own_call });
    }
    if header.step == NOTICE_STEP {
        return judge_notice(&header, situation);
    }
    match expected {
        Some(length) if (header.call, header.step, header.length) == (call, number, length) => {
            Ok(HeaderVerdict::Now)
        }
        // A message by `send` stays until it is received, before the next call of all ranks.
        None if header.call.operation == Operation::Send && !is_ahead_of_sender(call, &header) => {
            Ok(HeaderVerdict::Later)
        }
        None if is_collective(header.call) && header.call.sequence > calls.latest_sequence() => {
            Ok(HeaderVerdict::Later)
        }
        None if header.call == call && (number == BETWEEN_STEPS || header.step > number) => {
            Ok(HeaderVerdict::Later)
        }
        _ => Err(calls.find_mismatch(call, &header)),
    }
}

/// The other rank waits for this one's part of a call.
fn judge_notice(notice: &Header, situation: &Situation<'_>) -> Result<HeaderVerdict, Mismatch> {
    let Situation { call, expected_len: expected, sent_messages: sends, calls, .. } = *situation;
    let other_call = notice.call;
    let is_future = match other_call.operation {
        Operation::Receive => other_call.sequence > sends,
        _ => other_call.sequence > calls.latest_sequence(),
    };
    let own_call = match calls.call_with_sequence_of(other_call) {
        // This rank has made that call, and it was a different one.
        Some(own_call) if own_call != other_call => own_call,
        // The rank that must make it first waits, directly or through others, for the rank that waits for it.
        // A message must be sent before the next call of all ranks.
        None if is_future && (expected.is_some() || is_ahead_of_sender(call, notice)) => {
            return Err(calls.find_mismatch(call, notice));
        }
        _ => return Ok(HeaderVerdict::Nothing),
    };
    Err(Mismatch { other_call, own_call })
}

/// The latest calls of the whole group that this rank has made. A rank that only sends may be far ahead of
/// the others, and learns late that one of them has made a different call.
#[derive(Debug, Default)]
pub(super) struct CallHistory(VecDeque<Call>);

impl CallHistory {
    /// Number of kept calls.
    const MAX_CALLS: usize = 256;

    pub(super) fn record(&mut self, call: Call) {
        if !is_collective(call) || call.sequence <= self.latest_sequence() {
            return;
        }
        if self.0.len() == Self::MAX_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    /// The number of the latest call.
    pub(super) fn latest_sequence(&self) -> u64 {
        self.0.back().map_or(0, |call| call.sequence)
    }

    /// The call before this one.
    pub(super) fn previous_call(&self, call: Call) -> Option<Call> {
        if !is_collective(call) {
            return None;
        }
        self.0.iter().rev().copied().find(|earlier| earlier.sequence + 1 == call.sequence)
    }

    /// The first two calls in which this rank, which makes `call`, and the sender of the header
    /// differ. If only one of them is in a call of the whole group, the other has yet to make that
    /// call, and perhaps an earlier one first.
    fn find_mismatch(&self, call: Call, header: &Header) -> Mismatch {
        let is_next = |own_call: &Call| own_call.sequence.checked_sub(1) == Some(header.latest_sequence);
        let (other_call, own_call) = match (is_collective(header.call), is_collective(call)) {
            (true, false) => {
                (header.previous_call.filter(|previous| previous.sequence > self.latest_sequence()), None)
            }
            (false, true) => (None, self.0.iter().copied().find(is_next)),
            _ => (None, self.call_with_sequence_of(header.call)),
        };
        Mismatch { other_call: other_call.unwrap_or(header.call), own_call: own_call.unwrap_or(call) }
    }

    /// This rank's call with the sequence number of `theirs`.
    fn call_with_sequence_of(&self, other_call: Call) -> Option<Call> {
        if !is_collective(other_call) {
            return None;
        }
        self.0.iter().rev().copied().find(|own_call| own_call.sequence == other_call.sequence)
    }
}

/// Whether this rank is in a call of all ranks that the sender of the header had not made.
fn is_ahead_of_sender(call: Call, header: &Header) -> bool {
    is_collective(call) && header.latest_sequence < call.sequence
}

/// Calls between two ranks have sequences of their own.
fn is_collective(call: Call) -> bool {
    !matches!(call.operation, Operation::Send | Operation::Receive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::element::DataType;
    use rankrun_contract::rank::Rank;

    fn call(operation: Operation, sequence: u64) -> Call {
        let root = (operation != Operation::Barrier).then_some(Rank(0));
        Call { operation, data_type: DataType::U8, reduce_op: None, root, count: 4, sequence }
    }

    fn header(operation: Operation, sequence: u64, step: u32) -> Header {
        Header {
            call: call(operation, sequence),
            step,
            length: 4,
            previous_call: None,
            latest_sequence: sequence.max(3),
        }
    }

    /// Third call of the group, a broadcast, after two barriers.
    fn in_third_call<R>(expected: Option<u64>, then: impl FnOnce(&Situation<'_>) -> R) -> R {
        let mut calls = CallHistory::default();
        let own = call(Operation::Broadcast, 3);
        for call in [call(Operation::Barrier, 1), call(Operation::Barrier, 2), own] {
            calls.record(call);
        }
        then(&Situation { call: own, step: 1, expected_len: expected, sent_messages: 5, calls: &calls })
    }

    #[test]
    fn header_expected_is_judged_now() {
        let verdict =
            in_third_call(Some(4), |situation| judge_header(header(Operation::Broadcast, 3, 1), situation));
        assert_eq!(verdict, Ok(HeaderVerdict::Now));
    }

    #[test]
    fn header_of_later_step_is_judged_later() {
        for header in [
            header(Operation::Gather, 4, 0),
            header(Operation::Broadcast, 3, 2),
            header(Operation::Send, 1, 0),
            header(Operation::Send, 9, 0),
        ] {
            assert_eq!(
                in_third_call(None, |situation| judge_header(header, situation)),
                Ok(HeaderVerdict::Later),
                "{header:?}"
            );
        }
    }

    #[test]
    fn header_of_different_call_is_mismatch_with_same_sequence() {
        for (header, expected, beside) in [
            (header(Operation::Gather, 3, 0), None, 3),
            (header(Operation::Gather, 3, 0), Some(4), 3),
            (header(Operation::Gather, 2, 0), None, 2),
            (header(Operation::Send, 2, 0), Some(4), 3),
            (header(Operation::Gather, 4, 0), Some(4), 3),
            (Header { length: 5, ..header(Operation::Broadcast, 3, 1) }, Some(4), 3),
        ] {
            let mismatch = in_third_call(expected, |situation| judge_header(header, situation)).unwrap_err();
            assert_eq!(
                (mismatch.other_call, mismatch.own_call.sequence),
                (header.call, beside),
                "{header:?}"
            );
        }
    }

    #[test]
    fn header_ahead_with_different_previous_call_is_mismatch() {
        let ahead = |previous| Header { previous_call: Some(previous), ..header(Operation::Barrier, 4, 0) };
        for expected in [None, Some(4)] {
            let other_call = call(Operation::Gather, 3);
            let mismatch =
                in_third_call(expected, |situation| judge_header(ahead(other_call), situation)).unwrap_err();
            assert_eq!((mismatch.other_call, mismatch.own_call), (other_call, call(Operation::Broadcast, 3)));
        }
        let same = ahead(call(Operation::Broadcast, 3));
        assert_eq!(in_third_call(None, |situation| judge_header(same, situation)), Ok(HeaderVerdict::Later));
    }

    #[test]
    fn notice_of_different_call_is_mismatch() {
        let judge = |operation, sequence, expected| {
            let header = Header {
                latest_sequence: 3,
                ..notice_header(call(operation, sequence), &CallHistory::default())
            };
            in_third_call(expected, |situation| judge_header(header, situation))
                .map_err(|mismatch| mismatch.own_call.sequence)
        };
        for expected in [None, Some(4)] {
            assert_eq!(judge(Operation::Broadcast, 3, expected), Ok(HeaderVerdict::Nothing));
            assert_eq!(judge(Operation::Gather, 3, expected), Err(3));
            assert_eq!(judge(Operation::Gather, 1, expected), Err(1));
            // It was sent.
            assert_eq!(judge(Operation::Receive, 5, expected), Ok(HeaderVerdict::Nothing));
        }
        // It may still be sent, unless this rank waits itself.
        for waited_for in [Operation::Receive, Operation::Gather] {
            assert_eq!(judge(waited_for, 6, None), Ok(HeaderVerdict::Nothing));
            assert_eq!(judge(waited_for, 6, Some(4)), Err(3));
        }
    }

    #[test]
    fn message_sent_before_missing_collective_is_mismatch() {
        let waits = notice_header(call(Operation::Receive, 6), &CallHistory::default());
        for header in [header(Operation::Send, 9, 0), waits] {
            let judged = |latest| {
                in_third_call(None, |situation| {
                    judge_header(Header { latest_sequence: latest, ..header }, situation)
                })
            };
            assert!(judged(3).is_ok(), "{header:?}");
            // The second call is the first one that the other rank has not made.
            for (latest, expected) in [(2, 3), (1, 2)] {
                let mismatch = judged(latest).unwrap_err();
                assert_eq!((mismatch.other_call, mismatch.own_call.sequence), (header.call, expected));
            }
        }
        // It was sent.
        let header = notice_header(call(Operation::Receive, 5), &CallHistory::default());
        assert_eq!(
            in_third_call(None, |situation| judge_header(header, situation)),
            Ok(HeaderVerdict::Nothing)
        );
    }

    #[test]
    fn header_between_exchanges_is_judged_later() {
        let between = |header| {
            in_third_call(None, |situation| {
                judge_header(header, &Situation { step: BETWEEN_STEPS, ..*situation })
            })
        };
        assert_eq!(between(header(Operation::Broadcast, 3, 0)), Ok(HeaderVerdict::Later));
        assert_eq!(between(header(Operation::Gather, 3, 0)).unwrap_err().own_call.sequence, 3);
    }

    #[test]
    fn call_history_keeps_only_latest_calls() {
        let mut calls = CallHistory::default();
        (1..=1000).for_each(|sequence| calls.record(call(Operation::Barrier, sequence)));
        assert_eq!((calls.0.len(), calls.latest_sequence()), (CallHistory::MAX_CALLS, 1000));
        assert_eq!(calls.call_with_sequence_of(call(Operation::Gather, 1)), None);
    }
}
