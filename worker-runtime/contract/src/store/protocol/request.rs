//! Requests: what a client asks, and its bytes.

use super::{Budget, Field, ProtocolError, ReplyKind, admit_count, put_element};

/// One request of a client. The handshake is none: see [`HANDSHAKE`](super::HANDSHAKE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Stores a value. No answer.
    Set {
        /// Where.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Stores `desired` if the present value is `expected`; answered with the value that is there then.
    CompareSet {
        /// Where.
        key: Vec<u8>,
        /// What must be there; empty also means "nothing".
        expected: Vec<u8>,
        /// What to store.
        desired: Vec<u8>,
    },
    /// Answered with the value; empty if there is none.
    Get {
        /// Where.
        key: Vec<u8>,
    },
    /// Adds to a number kept as decimal text; answered with the sum.
    Add {
        /// Where.
        key: Vec<u8>,
        /// How much.
        delta: i64,
    },
    /// Answered with whether all keys are there.
    Check {
        /// Which.
        keys: Vec<Vec<u8>>,
    },
    /// Answered once all keys have been there.
    Wait {
        /// Which.
        keys: Vec<Vec<u8>>,
    },
    /// Answered with the number of keys.
    GetNumKeys,
    /// Removes a key; answered with 1 if it was there, else 0.
    DeleteKey {
        /// Which.
        key: Vec<u8>,
    },
    /// Appends to a value, which begins empty. No answer.
    Append {
        /// Where.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Answered with one value for each key; empty for those that are not there.
    MultiGet {
        /// Which.
        keys: Vec<Vec<u8>>,
    },
    /// Stores several values. No answer.
    MultiSet {
        /// Where and what.
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Forgets what the connection waits for; answered always.
    CancelWait,
    /// Answered with the same nonce.
    Ping {
        /// Any number; torch sends its pid.
        nonce: u32,
    },
    /// Appends a value to a queue. No answer.
    QueuePush {
        /// Which queue.
        key: Vec<u8>,
        /// What.
        value: Vec<u8>,
    },
    /// Takes the first value of a queue.
    QueuePop {
        /// Which queue.
        key: Vec<u8>,
    },
    /// Answered with the number of values in a queue.
    QueueLen {
        /// Which queue.
        key: Vec<u8>,
    },
    /// Answered with all keys, in no order.
    ListKeys,
    /// Counts the client at a barrier; answered once `world_size` clients were counted.
    Barrier {
        /// Which barrier.
        key: Vec<u8>,
        /// How many clients open it.
        world_size: i64,
    },
}

impl Request {
    /// The request's name in torch's protocol.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Set { .. } => "SET",
            Self::CompareSet { .. } => "COMPARE_SET",
            Self::Get { .. } => "GET",
            Self::Add { .. } => "ADD",
            Self::Check { .. } => "CHECK",
            Self::Wait { .. } => "WAIT",
            Self::GetNumKeys => "GETNUMKEYS",
            Self::DeleteKey { .. } => "DELETE_KEY",
            Self::Append { .. } => "APPEND",
            Self::MultiGet { .. } => "MULTI_GET",
            Self::MultiSet { .. } => "MULTI_SET",
            Self::CancelWait => "CANCEL_WAIT",
            Self::Ping { .. } => "PING",
            Self::QueuePush { .. } => "QUEUE_PUSH",
            Self::QueuePop { .. } => "QUEUE_POP",
            Self::QueueLen { .. } => "QUEUE_LEN",
            Self::ListKeys => "LIST_KEYS",
            Self::Barrier { .. } => "BARRIER",
        }
    }

    /// The only or first key that the request names.
    #[must_use]
    pub fn first_key(&self) -> Option<&[u8]> {
        match self {
            Self::Set { key, .. }
            | Self::CompareSet { key, .. }
            | Self::Get { key }
            | Self::Add { key, .. }
            | Self::DeleteKey { key }
            | Self::Append { key, .. }
            | Self::QueuePush { key, .. }
            | Self::QueuePop { key }
            | Self::QueueLen { key }
            | Self::Barrier { key, .. } => Some(key),
            Self::Check { keys } | Self::Wait { keys } | Self::MultiGet { keys } => {
                keys.first().map(Vec::as_slice)
            }
            Self::MultiSet { pairs } => pairs.first().map(|(key, _)| key.as_slice()),
            Self::GetNumKeys | Self::CancelWait | Self::Ping { .. } | Self::ListKeys => None,
        }
    }

    /// What the answer looks like; `None` where the server gives none.
    #[must_use]
    pub fn reply_kind(&self) -> Option<ReplyKind> {
        match self {
            Self::Set { .. } | Self::Append { .. } | Self::MultiSet { .. } | Self::QueuePush { .. } => None,
            Self::CompareSet { .. } | Self::Get { .. } => Some(ReplyKind::Value),
            Self::Add { .. } | Self::GetNumKeys | Self::DeleteKey { .. } | Self::QueueLen { .. } => {
                Some(ReplyKind::Number)
            }
            Self::Check { .. } => Some(ReplyKind::Presence),
            Self::Wait { .. } | Self::CancelWait | Self::Barrier { .. } => Some(ReplyKind::Wait),
            Self::MultiGet { keys } => Some(ReplyKind::Values(keys.len())),
            Self::Ping { .. } => Some(ReplyKind::Pong),
            Self::QueuePop { .. } => Some(ReplyKind::Popped),
            Self::ListKeys => Some(ReplyKind::Keys),
        }
    }

    /// Appends the request's bytes to `out`.
    ///
    /// # Errors
    /// The request is above a limit that the server enforces; `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        let start = out.len();
        let result = self.encode_body(&mut Output { out, budget: Budget::REQUEST });
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn encode_body(&self, to: &mut Output<'_>) -> Result<(), ProtocolError> {
        match self {
            Self::Set { key, value } => to.code(code::SET).key(key)?.value(value),
            Self::CompareSet { key, expected, desired } => {
                to.code(code::COMPARE_SET).key(key)?.value(expected)?.value(desired)
            }
            Self::Get { key } => to.code(code::GET).key(key),
            Self::Add { key, delta } => to.code(code::ADD).key(key)?.bytes(&delta.to_le_bytes()),
            Self::Check { keys } => to.code(code::CHECK).keys(keys),
            Self::Wait { keys } => to.code(code::WAIT).keys(keys),
            Self::GetNumKeys => Ok(to.code(code::GET_NUM_KEYS)),
            Self::DeleteKey { key } => to.code(code::DELETE_KEY).key(key),
            Self::Append { key, value } => to.code(code::APPEND).key(key)?.value(value),
            Self::MultiGet { keys } => to.code(code::MULTI_GET).keys(keys),
            Self::MultiSet { pairs } => {
                pairs.iter().try_fold(to.code(code::MULTI_SET).count(pairs.len())?, |to, (key, value)| {
                    to.key(key)?.value(value)
                })
            }
            Self::CancelWait => Ok(to.code(code::CANCEL_WAIT)),
            Self::Ping { nonce } => to.code(code::PING).bytes(&nonce.to_le_bytes()),
            Self::QueuePush { key, value } => to.code(code::QUEUE_PUSH).key(key)?.value(value),
            Self::QueuePop { key } => to.code(code::QUEUE_POP).key(key),
            Self::QueueLen { key } => to.code(code::QUEUE_LEN).key(key),
            Self::ListKeys => Ok(to.code(code::LIST_KEYS)),
            Self::Barrier { key, world_size } => {
                to.code(code::BARRIER).key(key)?.bytes(&world_size.to_le_bytes())
            }
        }
        .map(|_| ())
    }
}

/// Where a request's bytes go, with the limits that they have to keep.
struct Output<'a> {
    out: &'a mut Vec<u8>,
    budget: Budget,
}

impl Output<'_> {
    fn code(&mut self, code: u8) -> &mut Self {
        self.out.push(code);
        self
    }

    #[expect(clippy::unnecessary_wraps, reason = "the last step of a chain whose other steps can fail")]
    fn bytes(&mut self, bytes: &[u8]) -> Result<&mut Self, ProtocolError> {
        self.out.extend_from_slice(bytes);
        Ok(self)
    }

    fn element(&mut self, field: Field, element: &[u8]) -> Result<&mut Self, ProtocolError> {
        let length = element.len() as u64;
        self.budget.admit(field, length)?;
        self.budget.used += length;
        put_element(self.out, element);
        Ok(self)
    }

    fn key(&mut self, key: &[u8]) -> Result<&mut Self, ProtocolError> {
        self.element(Field::Key, key)
    }

    fn value(&mut self, value: &[u8]) -> Result<&mut Self, ProtocolError> {
        self.element(Field::Value, value)
    }

    fn count(&mut self, count: usize) -> Result<&mut Self, ProtocolError> {
        let count = admit_count(count as u64)?;
        self.bytes(&(count as u64).to_le_bytes())
    }

    fn keys(&mut self, keys: &[Vec<u8>]) -> Result<&mut Self, ProtocolError> {
        keys.iter().try_fold(self.count(keys.len())?, |to, key| to.key(key))
    }
}

/// The codes of the requests.
pub(super) mod code {
    pub(in super::super) const SET: u8 = 1;
    pub(in super::super) const COMPARE_SET: u8 = 2;
    pub(in super::super) const GET: u8 = 3;
    pub(in super::super) const ADD: u8 = 4;
    pub(in super::super) const CHECK: u8 = 5;
    pub(in super::super) const WAIT: u8 = 6;
    pub(in super::super) const GET_NUM_KEYS: u8 = 7;
    pub(in super::super) const DELETE_KEY: u8 = 8;
    pub(in super::super) const APPEND: u8 = 9;
    pub(in super::super) const MULTI_GET: u8 = 10;
    pub(in super::super) const MULTI_SET: u8 = 11;
    pub(in super::super) const CANCEL_WAIT: u8 = 12;
    pub(in super::super) const PING: u8 = 13;
    pub(in super::super) const QUEUE_PUSH: u8 = 14;
    pub(in super::super) const QUEUE_POP: u8 = 15;
    pub(in super::super) const QUEUE_LEN: u8 = 16;
    pub(in super::super) const LIST_KEYS: u8 = 17;
    pub(in super::super) const BARRIER: u8 = 18;
}
