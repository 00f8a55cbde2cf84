//! The header of every message between two ranks, and the call that it describes. Pure.
//!
//! ```text
//!  0..4   magic    `RRg3`
//!  4      operation      5  data type      6  reduction      7  0
//!  8..12  root
//! 12..16  step     which exchange of the call
//! 16..24  sequence which call of the group
//! 24..32  count    elements of the call
//! 32..40  length   bytes that follow
//! 40..56  the previous call of the group: as 4..12 and count; zeros for none
//! 56..64  latest   number of calls of the group that the sender has made, with this one
//! ```
//! All numbers are little-endian. Both ends compute the header that they expect; a different header means
//! that the ranks make different calls.

use std::fmt;

use rankrun_contract::rank::Rank;

use super::element::{DataType, ReduceOp};

/// Length of a header in bytes.
pub(crate) const HEADER_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"RRg3";

/// An operation of a group, for messages and for comparison between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Connecting the ranks of a group.
    Join,
    /// `broadcast`.
    Broadcast,
    /// `all_reduce`.
    AllReduce,
    /// `all_gather`.
    AllGather,
    /// `reduce`.
    Reduce,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `scatter`.
    Scatter,
    /// `gather`.
    Gather,
    /// `send`.
    Send,
    /// `receive`.
    Receive,
    /// `barrier`.
    Barrier,
    /// `split`.
    Split,
    /// Leaving the group in good order.
    Leave,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Broadcast => "broadcast",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Barrier => "barrier",
            Self::Split => "split",
            Self::Leave => "leave",
        })
    }
}

/// The properties of a call on which all ranks must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The operation of the call.
    pub operation: Operation,
    /// The type of its elements.
    pub data_type: DataType,
    /// The reduce operation, for calls that reduce.
    pub reduce_op: Option<ReduceOp>,
    /// The root of a rooted call; the peer of a message.
    pub root: Option<Rank>,
    /// Number of elements; the total over all ranks if they differ.
    pub count: u64,
    /// Sequence number of the call within the group, from 1.
    pub sequence: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, `{}`", self.sequence, self.operation)?;
        if let Some(reduction) = self.reduce_op {
            write!(f, " ({reduction})")?;
        }
        if self.data_type != DataType::None && self.operation != Operation::Split {
            write!(f, " of {} {}", self.count, self.data_type)?;
        }
        match (self.operation, self.root) {
            (Operation::Send, Some(to)) => write!(f, " to rank {to}"),
            (Operation::Receive, Some(from)) => write!(f, " from rank {from}"),
            (_, Some(root)) => write!(f, " with root {root}"),
            (_, None) => Ok(()),
        }
    }
}

impl Call {
    /// Encodes the call as hexadecimal text.
    pub(crate) fn to_hex(self) -> String {
        let header = Header { call: self, step: 0, length: 0, previous_call: None, latest_sequence: 0 };
        header.encode().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Decodes the output of [`to_hex`](Self::to_hex); `None` for any other text.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; HEADER_LEN];
        let digits = text.as_bytes().as_chunks::<2>();
        if digits.0.len() != HEADER_LEN || !digits.1.is_empty() {
            return None;
        }
        for (byte, &[high, low]) in bytes.iter_mut().zip(digits.0) {
            let digit = |digit: u8| (digit as char).to_digit(16);
            *byte = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
        }
        let is_bare = |header: &Header| {
            (header.step, header.length, header.previous_call, header.latest_sequence) == (0, 0, None, 0)
        };
        Header::decode(&bytes).filter(is_bare).map(|header| header.call)
    }
}

/// The header that precedes the bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) call: Call,
    pub(crate) step: u32,
    pub(crate) length: u64,
    /// The sender's previous call of the whole group. It reveals a call that sent nothing to the receiver.
    pub(crate) previous_call: Option<Call>,
    /// Number of calls of the whole group that the sender has made, with this one. Messages between two ranks
    /// have a sequence of their own.
    pub(crate) latest_sequence: u64,
}

/// Encodes the absence of a root.
const NO_ROOT: u32 = u32::MAX;

impl Header {
    /// Announces that a rank closes its connections in good order.
    pub(crate) const LEAVE: Self = Self {
        call: Call {
            operation: Operation::Leave,
            data_type: DataType::None,
            reduce_op: None,
            root: None,
            count: 0,
            sequence: 0,
        },
        step: 0,
        length: 0,
        previous_call: None,
        latest_sequence: 0,
    };

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..12].copy_from_slice(&encode_call_kind(&self.call));
        bytes[12..16].copy_from_slice(&self.step.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.call.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.call.count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.length.to_le_bytes());
        if let Some(previous) = &self.previous_call {
            bytes[40..48].copy_from_slice(&encode_call_kind(previous));
            bytes[48..56].copy_from_slice(&previous.count.to_le_bytes());
        }
        bytes[56..].copy_from_slice(&self.latest_sequence.to_le_bytes());
        bytes
    }

    /// `None` for bytes that a rank of this version never sends.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        if bytes[..4] != MAGIC {
            return None;
        }
        let sequence = u64_at(bytes, 16);
        let call = decode_call_kind(bytes, 4, (u64_at(bytes, 24), sequence))?;
        let previous = match &bytes[40..56] {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => None,
            _ => Some(decode_call_kind(bytes, 40, (u64_at(bytes, 48), sequence.checked_sub(1)?))?),
        };
        let (length, latest) = (u64_at(bytes, 32), u64_at(bytes, 56));
        Some(Self { call, step: u32_at(bytes, 12), length, previous_call: previous, latest_sequence: latest })
    }
}

/// Operation, type, reduce operation and root.
fn encode_call_kind(call: &Call) -> [u8; 8] {
    let root = call.root.map_or(NO_ROOT, |root| root.0).to_le_bytes();
    let reduction = call.reduce_op.map_or(0, reduce_op_code);
    let [a, b, c, d] = root;
    [operation_code(call.operation), data_type_code(call.data_type), reduction, 0, a, b, c, d]
}

fn decode_call_kind(bytes: &[u8; HEADER_LEN], at: usize, (count, sequence): (u64, u64)) -> Option<Call> {
    let root = u32_at(bytes, at + 4);
    let call = Call {
        operation: OPERATIONS.into_iter().find(|&known| operation_code(known) == bytes[at])?,
        data_type: DATA_TYPES.into_iter().find(|&known| data_type_code(known) == bytes[at + 1])?,
        reduce_op: match bytes[at + 2] {
            0 => None,
            code => Some(REDUCE_OPS.into_iter().find(|&known| reduce_op_code(known) == code)?),
        },
        root: (root != NO_ROOT).then_some(Rank(root)),
        count,
        sequence,
    };
    (bytes[at + 3] == 0).then_some(call)
}

const OPERATIONS: [Operation; 12] = [
    Operation::Broadcast,
    Operation::AllReduce,
    Operation::AllGather,
    Operation::Scatter,
    Operation::Gather,
    Operation::Barrier,
    Operation::Leave,
    Operation::Reduce,
    Operation::ReduceScatter,
    Operation::Send,
    Operation::Receive,
    Operation::Split,
];
const DATA_TYPES: [DataType; 8] = [
    DataType::None,
    DataType::F32,
    DataType::F64,
    DataType::I64,
    DataType::F16,
    DataType::Bf16,
    DataType::I32,
    DataType::U8,
];
const REDUCE_OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product];

fn operation_code(operation: Operation) -> u8 {
    match operation {
        Operation::Join => 0,
        Operation::Broadcast => 1,
        Operation::AllReduce => 2,
        Operation::AllGather => 3,
        Operation::Scatter => 4,
        Operation::Gather => 5,
        Operation::Barrier => 6,
        Operation::Leave => 7,
        Operation::Reduce => 8,
        Operation::ReduceScatter => 9,
        Operation::Send => 10,
        Operation::Receive => 11,
        Operation::Split => 12,
    }
}

fn data_type_code(data_type: DataType) -> u8 {
    match data_type {
        DataType::None => 0,
        DataType::F32 => 1,
        DataType::F64 => 2,
        DataType::I64 => 3,
        DataType::F16 => 4,
        DataType::Bf16 => 5,
        DataType::I32 => 6,
        DataType::U8 => 7,
    }
}

fn reduce_op_code(reduction: ReduceOp) -> u8 {
    match reduction {
        ReduceOp::Sum => 1,
        ReduceOp::Mean => 2,
        ReduceOp::Max => 3,
        ReduceOp::Min => 4,
        ReduceOp::Product => 5,
    }
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    proptest! {
        #[test]
        fn header_round_trips(
            operation in select(&OPERATIONS),
            data_type in select(&DATA_TYPES),
            reduction in proptest::option::of(select(&REDUCE_OPS)),
            root in proptest::option::of(0u32..u32::MAX),
            (count, sequence, step, length, latest) in any::<(u64, u64, u32, u64, u64)>(),
            has_previous in any::<bool>(),
        ) {
            let call = Call { operation, data_type, reduce_op: reduction, root: root.map(Rank), count, sequence };
            let previous = has_previous.then_some(Call { sequence: sequence.wrapping_sub(1), ..call });
            let header = Header { call, step, length, previous_call: previous.filter(|_| sequence > 0), latest_sequence: latest };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn call_hex_round_trips(
            operation in select(&OPERATIONS),
            root in proptest::option::of(0u32..u32::MAX),
            (count, sequence) in any::<(u64, u64)>(),
        ) {
            let (data_type, reduction) = (DataType::Bf16, Some(ReduceOp::Min));
            let call = Call { operation, data_type, reduce_op: reduction, root: root.map(Rank), count, sequence };
            let digits = call.to_hex();
            prop_assert_eq!(Call::from_hex(&digits), Some(call));
            prop_assert_eq!(Call::from_hex(&digits[1..]), None);
        }

        #[test]
        fn call_from_invalid_hex_is_none(text in "[0-9a-gé ]{0,90}") {
            prop_assert_eq!(Call::from_hex(&text), None);
        }

        #[test]
        fn header_decode_of_arbitrary_bytes_does_not_panic(start in any::<[u8; 32]>(), end in any::<[u8; 32]>(), small in any::<bool>()) {
            let mut bytes: [u8; HEADER_LEN] = [&start[..], &end].concat().try_into().unwrap();
            if small {
                bytes.iter_mut().for_each(|byte| *byte %= 8);
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[7], bytes[43]) = (0, 0);
            }
            prop_assert!(Header::decode(&bytes).is_none_or(|header| header.encode() == bytes));
        }
    }

    #[test]
    fn call_display_names_operation_count_and_root() {
        let call = Call {
            operation: Operation::AllReduce,
            data_type: DataType::F32,
            reduce_op: Some(ReduceOp::Sum),
            root: None,
            count: 10,
            sequence: 3,
        };
        assert_eq!(call.to_string(), "call 3, `all_reduce` (sum) of 10 f32");
        let call = Call { operation: Operation::Broadcast, reduce_op: None, root: Some(Rank(1)), ..call };
        assert_eq!(call.to_string(), "call 3, `broadcast` of 10 f32 with root 1");
        let call = Call { operation: Operation::Receive, ..call };
        assert_eq!(call.to_string(), "call 3, `receive` of 10 f32 from rank 1");
    }
}
