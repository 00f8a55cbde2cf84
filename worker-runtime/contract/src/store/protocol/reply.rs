//! Replies: what the server answers, to bytes and back.

use std::sync::Arc;

use super::{Budget, Field, Input, Key, ProtocolError, Value};

/// One answer of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A value (`GET`, `COMPARE_SET`); empty where there is none.
    Value(Value),
    /// One value for each key (`MULTI_GET`).
    Values(Vec<Value>),
    /// All keys (`LIST_KEYS`).
    Keys(Vec<Key>),
    /// A number (`ADD`, `GETNUMKEYS`, `DELETE_KEY`, `QUEUE_LEN`).
    Number(i64),
    /// The length of a queue before it was popped, and the value (`QUEUE_POP`); `None` if it was empty.
    Popped(Option<(i64, Value)>),
    /// Whether all keys are there (`CHECK`).
    AllPresent(bool),
    /// What was waited for is there (`WAIT`, `BARRIER`).
    Arrived,
    /// Nothing is waited for any more (`CANCEL_WAIT`).
    Cancelled,
    /// The nonce of the ping.
    Pong(u32),
}

/// What kind of answer a request has: a client must know it to read the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// [`Reply::Value`].
    Value,
    /// [`Reply::Values`], as many as keys were named.
    Values(usize),
    /// [`Reply::Keys`].
    Keys,
    /// [`Reply::Number`].
    Number,
    /// [`Reply::Popped`].
    Popped,
    /// [`Reply::AllPresent`].
    Presence,
    /// [`Reply::Arrived`] or [`Reply::Cancelled`]: one byte, which of them only its value says, since the
    /// answer of a wait may cross with its cancellation.
    Wait,
    /// [`Reply::Pong`].
    Pong,
}

impl Reply {
    /// Appends the answer's bytes to `out`, all at once. A server uses [`ReplyWriter`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        ReplyWriter::new(self.clone()).fill(out, usize::MAX);
    }

    /// What comes before the elements, but for the count of keys.
    fn put_head(&self, out: &mut Vec<u8>) {
        match self {
            Self::Value(_) | Self::Values(_) | Self::Keys(_) => {}
            Self::Number(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Popped(popped) => {
                let length = popped.as_ref().map_or(0, |(length, _)| *length);
                out.extend_from_slice(&length.to_le_bytes());
            }
            Self::AllPresent(true) | Self::Arrived => out.push(0),
            Self::AllPresent(false) | Self::Cancelled => out.push(1),
            Self::Pong(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        }
    }

    fn element(&self, index: usize) -> Option<&[u8]> {
        match self {
            Self::Value(value) | Self::Popped(Some((_, value))) => (index == 0).then_some(value.as_slice()),
            Self::Values(values) => values.get(index).map(|value| value.as_slice()),
            _ => None,
        }
    }
}

/// Encodes an answer in pieces, so that the bytes of a large one never exist all at once.
#[derive(Debug)]
pub struct ReplyWriter {
    reply: Reply,
    /// The keys that are not written yet. Each is let go of once it is written: to free millions at once takes long.
    keys: std::vec::IntoIter<Key>,
    head_done: bool,
    index: usize,
    /// How much of the element at `index` is written; `None` before its length.
    offset: Option<usize>,
}

impl ReplyWriter {
    /// A writer at the beginning of `reply`.
    #[must_use]
    pub fn new(mut reply: Reply) -> Self {
        let keys = if let Reply::Keys(keys) = &mut reply { std::mem::take(keys) } else { Vec::new() };
        Self { reply, keys: keys.into_iter(), head_done: false, index: 0, offset: None }
    }

    /// The keys that are not written yet.
    #[must_use]
    pub fn into_keys(self) -> std::vec::IntoIter<Key> {
        self.keys
    }

    fn element(&self) -> Option<&[u8]> {
        match &self.reply {
            Reply::Keys(_) => self.keys.as_slice().first().map(AsRef::as_ref),
            reply => reply.element(self.index),
        }
    }

    /// Appends bytes to `out` until it holds about `limit`, or the answer ends: then `true`.
    pub fn fill(&mut self, out: &mut Vec<u8>, limit: usize) -> bool {
        if !self.head_done {
            if let Reply::Keys(_) = &self.reply {
                out.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
            }
            self.reply.put_head(out);
            self.head_done = true;
        }
        while let Some(element) = self.element() {
            if out.len() >= limit {
                return false;
            }
            let start = self.offset.unwrap_or_else(|| {
                out.extend_from_slice(&(element.len() as u64).to_le_bytes());
                0
            });
            let end = start.saturating_add(limit.saturating_sub(out.len())).min(element.len());
            out.extend_from_slice(&element[start..end]);
            if end == element.len() {
                self.keys.next();
                self.index += 1;
                self.offset = None;
            } else {
                self.offset = Some(end);
            }
        }
        true
    }
}

/// Reads one answer of a known kind.
#[derive(Debug)]
pub struct ReplyDecoder {
    kind: ReplyKind,
    /// The number at the front, once it was read (`LIST_KEYS`, `QUEUE_POP`).
    head: Option<i64>,
    keys: Vec<Key>,
    values: Vec<Value>,
    budget: Budget,
}

impl ReplyDecoder {
    /// A decoder at the beginning of an answer.
    #[must_use]
    pub const fn new(kind: ReplyKind) -> Self {
        Self { kind, head: None, keys: Vec::new(), values: Vec::new(), budget: Budget::REPLY }
    }

    /// Reads from `bytes`, which must begin where the last call stopped.
    ///
    /// Returns how many bytes were consumed, and the answer if it is complete: the decoder is of no use
    /// then. Without one, the bytes left are one incomplete element and the call is repeated when more have
    /// come.
    ///
    /// # Errors
    /// The bytes cannot be an answer of this kind, or are one above the limits.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), ProtocolError> {
        let mut input = Input::new(bytes);
        let reply = match self.kind {
            ReplyKind::Value => self.one_value(&mut input)?.map(Reply::Value),
            ReplyKind::Values(count) => self.all_values(&mut input, count)?,
            ReplyKind::Keys => self.all_keys(&mut input)?,
            ReplyKind::Number => input.i64().map(Reply::Number),
            ReplyKind::Popped => self.popped(&mut input)?,
            ReplyKind::Presence => one_of(&mut input, Reply::AllPresent(true), Reply::AllPresent(false))?,
            ReplyKind::Wait => one_of(&mut input, Reply::Arrived, Reply::Cancelled)?,
            ReplyKind::Pong => input.u32().map(Reply::Pong),
        };
        Ok((input.consumed, reply))
    }

    fn one_value(&mut self, input: &mut Input<'_>) -> Result<Option<Value>, ProtocolError> {
        let element = input.element(Field::Value, &mut self.budget)?;
        Ok(element.map(|element| Arc::new(element.to_vec())))
    }

    fn all_values(&mut self, input: &mut Input<'_>, count: usize) -> Result<Option<Reply>, ProtocolError> {
        while self.values.len() < count {
            let Some(value) = self.one_value(input)? else { return Ok(None) };
            self.values.push(value);
        }
        Ok(Some(Reply::Values(std::mem::take(&mut self.values))))
    }

    fn all_keys(&mut self, input: &mut Input<'_>) -> Result<Option<Reply>, ProtocolError> {
        let Some(count) = self.length(input)? else { return Ok(None) };
        while (self.keys.len() as u64) < count.unsigned_abs() {
            let Some(key) = input.element(Field::Key, &mut self.budget)? else { return Ok(None) };
            self.keys.push(Key::from(key));
        }
        Ok(Some(Reply::Keys(std::mem::take(&mut self.keys))))
    }

    fn popped(&mut self, input: &mut Input<'_>) -> Result<Option<Reply>, ProtocolError> {
        match self.length(input)? {
            None => Ok(None),
            Some(0) => Ok(Some(Reply::Popped(None))),
            Some(length) => Ok(self.one_value(input)?.map(|value| Reply::Popped(Some((length, value))))),
        }
    }

    fn length(&mut self, input: &mut Input<'_>) -> Result<Option<i64>, ProtocolError> {
        if self.head.is_none() {
            self.head = input.i64();
        }
        match self.head {
            Some(number) if number < 0 => Err(ProtocolError::ImpossibleReply { number }),
            head => Ok(head),
        }
    }
}

fn one_of(input: &mut Input<'_>, zero: Reply, one: Reply) -> Result<Option<Reply>, ProtocolError> {
    match input.u8() {
        None => Ok(None),
        Some(0) => Ok(Some(zero)),
        Some(1) => Ok(Some(one)),
        Some(other) => Err(ProtocolError::ImpossibleReply { number: i64::from(other) }),
    }
}
