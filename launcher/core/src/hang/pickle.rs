//! Reads a pickle without executing it: dictionaries, lists, tuples, texts, numbers, truth values and `None`, as serde's
//! data. PyTorch's flight recorder writes no more (protocol 2). Every opcode that would import or call something is an error.
//!
//! Values lie in one list and refer to each other by number, so a value that the pickle names often is kept once. The
//! number of values is limited, and so are depth and steps of a reader, since values may refer to each other in circles.
//!
//! Source: `torch/csrc/jit/serialization/pickler.cpp`, Python's `pickletools`.

use std::borrow::Cow;
use std::cell::Cell;

use serde::de::value::{Error as ShapeError, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// No pickle is longer, in bytes. With the stacks of 2,000 collectives one has about 2 MiB.
pub const MAX_PICKLE: usize = 16 << 20;
/// A pickle has no more values, and names no more of them at once.
const MAX_VALUES: usize = 1 << 21;
/// Lists and dictionaries inside each other. A trace has 5.
const MAX_DEPTH: usize = 32;
/// The values that a reader visits, each as often as it is named.
const MAX_STEPS: usize = 1 << 22;
/// No memo entry.
const EMPTY: u32 = u32::MAX;

/// Why a pickle cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PickleError {
    #[error("a pickle of {0} bytes is longer than {MAX_PICKLE} bytes")]
    TooLong(usize),
    #[error("the pickle ends at byte {0}, in the middle of a value")]
    Truncated(usize),
    #[error("the pickle has the opcode {name} at byte {at}, which data does not need")]
    Opcode { name: Cow<'static, str>, at: usize },
    #[error("the pickle has more than {MAX_VALUES} values")]
    TooManyValues,
    #[error("the opcode at byte {0} of the pickle has no fitting values before it")]
    Malformed(usize),
    #[error("the pickle does not have the expected values: {0}")]
    Shape(#[from] ShapeError),
}

/// The value of this pickle.
///
/// # Errors
/// The bytes are not a pickle of plain data, or its values have another form.
pub fn from_pickle<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PickleError> {
    if bytes.len() > MAX_PICKLE {
        return Err(PickleError::TooLong(bytes.len()));
    }
    let mut machine = Unpickler {
        bytes,
        at: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
    };
    let root = machine.run()?;
    let steps = Cell::new(MAX_STEPS);
    Ok(T::deserialize(ValueReader { values: &machine.values, steps: &steps, at: root, depth: MAX_DEPTH })?)
}

#[derive(Debug)]
enum Value<'a> {
    None,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A list or a tuple.
    List(Vec<u32>),
    /// Keys and values in turn.
    Dictionary(Vec<u32>),
}

/// The machine that a pickle is a program for, without the instructions that do something.
struct Unpickler<'a> {
    bytes: &'a [u8],
    /// The next byte.
    at: usize,
    values: Vec<Value<'a>>,
    /// Numbers of values.
    stack: Vec<u32>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<u32>,
}

impl<'a> Unpickler<'a> {
    fn run(&mut self) -> Result<u32, PickleError> {
        loop {
            let start = self.at;
            let opcode = self.byte()?;
            let done = match opcode {
                b'.' => return self.stack.pop().ok_or(PickleError::Malformed(start)),
                0x80 => self.byte().map(drop),
                b'(' => self.push_mark(),
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Bool(true)),
                0x89 => self.push(Value::Bool(false)),
                b'K' | b'M' | b'J' | b'G' | 0x8a => self.push_number(opcode),
                b'X' => self.push_text(),
                b'}' => self.push(Value::Dictionary(Vec::new())),
                b']' | b')' => self.push(Value::List(Vec::new())),
                b't' | 0x85..=0x87 => self.push_tuple(opcode),
                b'a' | b's' | b'e' | b'u' => self.extend(opcode),
                b'q' | b'r' | b'h' | b'j' => self.use_memo(opcode),
                _ => Err(PickleError::Opcode { name: opcode_name(opcode), at: start }),
            };
            done.map_err(|error| match error {
                PickleError::Malformed(_) => PickleError::Malformed(start),
                other => other,
            })?;
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let taken = self.at.checked_add(length).and_then(|end| self.bytes.get(self.at..end));
        self.at = self.at.saturating_add(taken.map_or(0, <[u8]>::len));
        taken.ok_or(PickleError::Truncated(self.bytes.len()))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| PickleError::Truncated(self.at))
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array().map(|[byte]| byte)
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), PickleError> {
        let number = u32::try_from(self.values.len()).map_err(|_| PickleError::TooManyValues)?;
        self.values.push(value);
        self.push_known(number)
    }

    fn push_known(&mut self, number: u32) -> Result<(), PickleError> {
        self.stack.push(number);
        let is_within = self.values.len() <= MAX_VALUES && self.stack.len() <= MAX_VALUES;
        is_within.then_some(()).ok_or(PickleError::TooManyValues)
    }

    fn push_mark(&mut self) -> Result<(), PickleError> {
        self.marks.push(self.stack.len());
        (self.marks.len() <= MAX_VALUES).then_some(()).ok_or(PickleError::TooManyValues)
    }

    fn push_number(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b'K' => Value::Integer(self.byte()?.into()),
            b'M' => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            _ => {
                let length = usize::from(self.byte()?);
                Value::Integer(long(self.take(length)?).ok_or(PickleError::Malformed(self.at))?)
            }
        };
        self.push(value)
    }

    fn push_text(&mut self) -> Result<(), PickleError> {
        let length = u32::from_le_bytes(self.array()?);
        let text = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        self.push(Value::Text(String::from_utf8_lossy(text)))
    }

    fn push_tuple(&mut self, opcode: u8) -> Result<(), PickleError> {
        let height = match opcode {
            b't' => self.marks.pop(),
            _ => self.stack.len().checked_sub(usize::from(opcode - 0x84)),
        };
        let items = self.split_off(height)?;
        self.push(Value::List(items))
    }

    /// The values above this height.
    fn split_off(&mut self, height: Option<usize>) -> Result<Vec<u32>, PickleError> {
        let height = height.filter(|height| *height <= self.stack.len() && self.marks.last() <= Some(height));
        Ok(self.stack.split_off(height.ok_or(PickleError::Malformed(self.at))?))
    }

    /// Puts values into the list or dictionary below them.
    fn extend(&mut self, opcode: u8) -> Result<(), PickleError> {
        let height = match opcode {
            b'a' => self.stack.len().checked_sub(1),
            b's' => self.stack.len().checked_sub(2),
            _ => self.marks.pop(),
        };
        // The target is above the mark before, too.
        let height = height.filter(|height| self.marks.last() < Some(height));
        let items = self.split_off(height)?;
        let target = self.stack.last().and_then(|number| self.values.get_mut(usize::try_from(*number).ok()?));
        match (target, opcode) {
            (Some(Value::List(list)), b'a' | b'e') => list.extend(items),
            (Some(Value::Dictionary(pairs)), b's' | b'u') if items.len().is_multiple_of(2) => {
                pairs.extend(items)
            }
            _ => return Err(PickleError::Malformed(self.at)),
        }
        Ok(())
    }

    fn use_memo(&mut self, opcode: u8) -> Result<(), PickleError> {
        let place = match opcode {
            b'q' | b'h' => self.byte()?.into(),
            _ => u32::from_le_bytes(self.array()?),
        };
        let malformed = PickleError::Malformed(self.at);
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if matches!(opcode, b'h' | b'j') {
            let found = self.memo.get(place).copied().filter(|number| *number != EMPTY);
            return self.push_known(found.ok_or(malformed)?);
        }
        if place >= MAX_VALUES {
            return Err(PickleError::TooManyValues);
        }
        if self.memo.len() <= place {
            self.memo.resize(place + 1, EMPTY);
        }
        self.memo[place] = *self.stack.last().ok_or(malformed)?;
        Ok(())
    }
}

/// A number in two's complement, with the last byte first in value.
fn long(bytes: &[u8]) -> Option<i64> {
    let Some(last) = bytes.last() else { return Some(0) };
    let mut full = [if last & 0x80 == 0 { 0 } else { 0xff }; 8];
    full.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(full))
}

/// As `pickletools` names it.
fn opcode_name(opcode: u8) -> Cow<'static, str> {
    Cow::Borrowed(match opcode {
        b'c' => "GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x81 => "NEWOBJ",
        0x82..=0x84 => "EXT",
        0x92 => "NEWOBJ_EX",
        0x93 => "STACK_GLOBAL",
        other => return Cow::Owned(format!("0x{other:02x}")),
    })
}

/// One value, for serde.
#[derive(Clone, Copy)]
struct ValueReader<'h, 'a> {
    values: &'h [Value<'a>],
    /// How many values may still be visited.
    steps: &'h Cell<usize>,
    at: u32,
    /// How much deeper the values may be.
    depth: usize,
}

impl<'h, 'a> ValueReader<'h, 'a> {
    fn inner(&self, numbers: &'h [u32]) -> Result<impl Iterator<Item = Self> + use<'h, 'a>, ShapeError> {
        let deep = || ShapeError::custom(format_args!("more than {MAX_DEPTH} lists inside each other"));
        let reader = Self { depth: self.depth.checked_sub(1).ok_or_else(deep)?, ..*self };
        Ok(numbers.iter().map(move |at| Self { at: *at, ..reader }))
    }
}

impl<'de> Deserializer<'de> for ValueReader<'_, '_> {
    type Error = ShapeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        let value = usize::try_from(self.at).ok().and_then(|at| self.values.get(at));
        // A text is copied each time that it is named.
        let cost = if let Some(Value::Text(text)) = value { 1 + text.len() / 16 } else { 1 };
        let left = self.steps.get().checked_sub(cost);
        self.steps.set(left.ok_or_else(|| ShapeError::custom("too many references to values"))?);
        match value.ok_or_else(|| ShapeError::custom("a reference to no value"))? {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => SeqDeserializer::new(self.inner(items)?).deserialize_any(visitor),
            Value::Dictionary(items) => {
                let (keys, values) = (self.inner(items)?.step_by(2), self.inner(items)?.skip(1).step_by(2));
                MapDeserializer::new(keys.zip(values)).deserialize_any(visitor)
            }
        }
    }

    /// Without a look at the value: nothing that is not read costs a step for each of its parts.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        let is_none =
            usize::try_from(self.at).is_ok_and(|at| matches!(self.values.get(at), Some(Value::None)));
        if is_none { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}

impl<'de> IntoDeserializer<'de, ShapeError> for ValueReader<'_, '_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
#[path = "pickle_tests.rs"]
mod tests;
