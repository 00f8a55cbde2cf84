//! Requests: what a client asks, to bytes and back.

use super::{Budget, Field, HANDSHAKE, Input, MAX_KEYS, ProtocolError, ReplyKind, put_element};

/// One request of a client. The handshake is none: see [`HANDSHAKE`].
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

    /// Reads one request from the front of `bytes` (after the handshake), and how long it is; `None` while it
    /// is incomplete. A server uses [`RequestDecoder`], which does not begin anew with every piece.
    ///
    /// # Errors
    /// The bytes are no request, or one above the limits.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolError> {
        let mut decoder = RequestDecoder { greeting: None, partial: None };
        let (consumed, request) = decoder.decode(bytes)?;
        Ok(request.map(|request| (request, consumed)))
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

fn admit_count(count: u64) -> Result<usize, ProtocolError> {
    match usize::try_from(count) {
        Ok(admitted) if count <= MAX_KEYS => Ok(admitted),
        _ => Err(ProtocolError::TooManyKeys { count }),
    }
}

/// Reads the bytes of one connection, beginning with the handshake.
///
/// It keeps the elements of a request that is not complete yet: at most
/// [`MAX_REQUEST`](super::MAX_REQUEST) bytes in at most 2 × [`MAX_KEYS`] of them.
#[derive(Debug)]
pub struct RequestDecoder {
    /// How much of the handshake was seen; `None` once it is complete.
    greeting: Option<usize>,
    partial: Option<Partial>,
}

impl Default for RequestDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestDecoder {
    /// A decoder for a new connection.
    #[must_use]
    pub const fn new() -> Self {
        Self { greeting: Some(0), partial: None }
    }

    /// Reads from `bytes`, which must begin where the last call stopped, up to the end of the next request.
    ///
    /// Returns how many bytes were consumed, and the request if it is complete. Without one, the bytes left
    /// are one incomplete element and the call is repeated when more have come.
    ///
    /// # Errors
    /// A byte that cannot be part of a connection, as soon as it is seen.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), ProtocolError> {
        let mut input = Input::new(bytes);
        while let Some(position) = self.greeting {
            let Some(byte) = input.u8() else { return Ok((input.consumed, None)) };
            if byte != HANDSHAKE[position] {
                return Err(ProtocolError::Handshake { position, byte });
            }
            self.greeting = (position + 1 < HANDSHAKE.len()).then_some(position + 1);
        }
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => match input.u8() {
                Some(code) => Partial::new(code)?,
                None => return Ok((input.consumed, None)),
            },
        };
        let request = match partial.advance(&mut input)? {
            Some(tail) => Some(partial.assemble(tail)),
            None => {
                self.partial = Some(partial);
                None
            }
        };
        Ok((input.consumed, request))
    }
}

/// The layout of a request's body: elements, then a number.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Whether a count comes first and says how often `fields` come.
    counted: bool,
    fields: &'static [Field],
    tail: Tail,
}

#[derive(Debug, Clone, Copy)]
enum Tail {
    None,
    U32,
    I64,
}

impl Shape {
    const fn plain(fields: &'static [Field], tail: Tail) -> Self {
        Self { counted: false, fields, tail }
    }

    const fn counted(fields: &'static [Field]) -> Self {
        Self { counted: true, fields, tail: Tail::None }
    }

    const fn of(code: u8) -> Option<Self> {
        use Field::{Key, Value};
        Some(match code {
            code::SET | code::APPEND | code::QUEUE_PUSH => Self::plain(&[Key, Value], Tail::None),
            code::COMPARE_SET => Self::plain(&[Key, Value, Value], Tail::None),
            code::GET | code::DELETE_KEY | code::QUEUE_POP | code::QUEUE_LEN => {
                Self::plain(&[Key], Tail::None)
            }
            code::ADD | code::BARRIER => Self::plain(&[Key], Tail::I64),
            code::CHECK | code::WAIT | code::MULTI_GET => Self::counted(&[Key]),
            code::MULTI_SET => Self::counted(&[Key, Value]),
            code::GET_NUM_KEYS | code::CANCEL_WAIT | code::LIST_KEYS => Self::plain(&[], Tail::None),
            code::PING => Self::plain(&[], Tail::U32),
            _ => return None,
        })
    }
}

/// A request whose code is known.
#[derive(Debug)]
struct Partial {
    code: u8,
    shape: Shape,
    /// How many elements there will be; `None` until the count was read.
    expected: Option<usize>,
    elements: Vec<Vec<u8>>,
    budget: Budget,
}

impl Partial {
    fn new(code: u8) -> Result<Self, ProtocolError> {
        let shape = Shape::of(code).ok_or(ProtocolError::UnknownCode { code })?;
        let expected = (!shape.counted).then_some(shape.fields.len());
        Ok(Self { code, shape, expected, elements: Vec::new(), budget: Budget::REQUEST })
    }

    /// Reads what is there; the number at the end once everything is (0 where the request has none).
    fn advance(&mut self, input: &mut Input<'_>) -> Result<Option<i64>, ProtocolError> {
        let expected = match self.expected {
            Some(expected) => expected,
            None => {
                let Some(count) = input.u64() else { return Ok(None) };
                *self.expected.insert(admit_count(count)? * self.shape.fields.len())
            }
        };
        while self.elements.len() < expected {
            let field = self.shape.fields[self.elements.len() % self.shape.fields.len()];
            let Some(element) = input.element(field, &mut self.budget)? else { return Ok(None) };
            self.elements.push(element.to_vec());
        }
        Ok(match self.shape.tail {
            Tail::None => Some(0),
            Tail::U32 => input.u32().map(i64::from),
            Tail::I64 => input.i64(),
        })
    }

    fn assemble(self, tail: i64) -> Request {
        if self.shape.counted {
            return Self::assemble_counted(self.code, self.elements);
        }
        let mut elements = self.elements.into_iter();
        let mut next = || elements.next().unwrap_or_default();
        match self.code {
            code::SET => Request::Set { key: next(), value: next() },
            code::COMPARE_SET => Request::CompareSet { key: next(), expected: next(), desired: next() },
            code::GET => Request::Get { key: next() },
            code::ADD => Request::Add { key: next(), delta: tail },
            code::GET_NUM_KEYS => Request::GetNumKeys,
            code::DELETE_KEY => Request::DeleteKey { key: next() },
            code::APPEND => Request::Append { key: next(), value: next() },
            code::CANCEL_WAIT => Request::CancelWait,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "read as a u32")]
            code::PING => Request::Ping { nonce: tail as u32 },
            code::QUEUE_PUSH => Request::QueuePush { key: next(), value: next() },
            code::QUEUE_POP => Request::QueuePop { key: next() },
            code::QUEUE_LEN => Request::QueueLen { key: next() },
            code::LIST_KEYS => Request::ListKeys,
            _ => Request::Barrier { key: next(), world_size: tail },
        }
    }

    fn assemble_counted(code: u8, elements: Vec<Vec<u8>>) -> Request {
        match code {
            code::CHECK => Request::Check { keys: elements },
            code::WAIT => Request::Wait { keys: elements },
            code::MULTI_GET => Request::MultiGet { keys: elements },
            _ => {
                let mut elements = elements.into_iter();
                let pairs = std::iter::from_fn(|| Some((elements.next()?, elements.next()?))).collect();
                Request::MultiSet { pairs }
            }
        }
    }
}

/// The codes of the requests.
mod code {
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_SET: u8 = 2;
    pub(super) const GET: u8 = 3;
    pub(super) const ADD: u8 = 4;
    pub(super) const CHECK: u8 = 5;
    pub(super) const WAIT: u8 = 6;
    pub(super) const GET_NUM_KEYS: u8 = 7;
    pub(super) const DELETE_KEY: u8 = 8;
    pub(super) const APPEND: u8 = 9;
    pub(super) const MULTI_GET: u8 = 10;
    pub(super) const MULTI_SET: u8 = 11;
    pub(super) const CANCEL_WAIT: u8 = 12;
    pub(super) const PING: u8 = 13;
    pub(super) const QUEUE_PUSH: u8 = 14;
    pub(super) const QUEUE_POP: u8 = 15;
    pub(super) const QUEUE_LEN: u8 = 16;
    pub(super) const LIST_KEYS: u8 = 17;
    pub(super) const BARRIER: u8 = 18;
}
