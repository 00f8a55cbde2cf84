//! Requests read from the bytes of a connection.

use super::request::{Request, code};
use super::{Budget, Field, HANDSHAKE, Input, ProtocolError, admit_count};

/// What an element costs beside its bytes.
const ELEMENT: usize = size_of::<Vec<u8>>();

/// Reads the bytes of one connection, beginning with the handshake.
///
/// It keeps the elements of a request that is not complete yet: at most
/// [`MAX_REQUEST`](super::MAX_REQUEST) bytes in at most 2 × [`MAX_KEYS`](super::MAX_KEYS) of them.
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

    /// What is kept of a request that is not complete yet, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let of = |partial: &Partial| partial.budget.used + (partial.elements.capacity() * ELEMENT) as u64;
        self.partial.as_ref().map_or(0, of)
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
    is_counted: bool,
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
        Self { is_counted: false, fields, tail }
    }

    const fn counted(fields: &'static [Field]) -> Self {
        Self { is_counted: true, fields, tail: Tail::None }
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
        let expected = (!shape.is_counted).then_some(shape.fields.len());
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
        if self.shape.is_counted {
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
