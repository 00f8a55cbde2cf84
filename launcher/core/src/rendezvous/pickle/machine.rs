//! The stack machine that runs a pickle, limited to what a state needs. Pure.
//!
//! Shareable objects live in one list and are named by their index. So no value is copied deeply, and no function here
//! is recursive. The limits below bound the memory of the machine.

use super::shape::{PickleClass, PickleObject, PickleValue};
use super::{StateParseError, shape, shortened};
use crate::rendezvous::state::RendezvousState;

/// Maximum number of values on the stack. CPython writes a thousand elements at a time.
const MAX_STACK: usize = 1 << 18;
/// Maximum number of marks; a state nests three deep.
const MAX_MARKS: usize = 16;
/// Maximum number of objects and of memo entries. A node with its time takes four objects and six memo entries.
const MAX_OBJECTS: usize = 1 << 19;

/// The opcodes, by their names in Python's `pickletools`.
pub(super) mod opcode {
    pub(in super::super) const MARK: u8 = b'(';
    pub(in super::super) const STOP: u8 = b'.';
    pub(in super::super) const NONE: u8 = b'N';
    pub(in super::super) const NEWTRUE: u8 = 0x88;
    pub(in super::super) const NEWFALSE: u8 = 0x89;
    pub(in super::super) const BININT: u8 = b'J';
    pub(in super::super) const BININT1: u8 = b'K';
    pub(in super::super) const BININT2: u8 = b'M';
    pub(in super::super) const LONG1: u8 = 0x8a;
    pub(in super::super) const BINUNICODE: u8 = b'X';
    pub(in super::super) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(in super::super) const SHORT_BINBYTES: u8 = b'C';
    pub(in super::super) const EMPTY_DICT: u8 = b'}';
    pub(in super::super) const EMPTY_SET: u8 = 0x8f;
    pub(in super::super) const EMPTY_TUPLE: u8 = b')';
    pub(in super::super) const TUPLE: u8 = b't';
    pub(in super::super) const TUPLE1: u8 = 0x85;
    pub(in super::super) const TUPLE2: u8 = 0x86;
    pub(in super::super) const TUPLE3: u8 = 0x87;
    pub(in super::super) const SETITEM: u8 = b's';
    pub(in super::super) const SETITEMS: u8 = b'u';
    pub(in super::super) const ADDITEMS: u8 = 0x90;
    pub(in super::super) const MEMOIZE: u8 = 0x94;
    pub(in super::super) const BINGET: u8 = b'h';
    pub(in super::super) const LONG_BINGET: u8 = b'j';
    pub(in super::super) const STACK_GLOBAL: u8 = 0x93;
    pub(in super::super) const NEWOBJ: u8 = 0x81;
    pub(in super::super) const REDUCE: u8 = b'R';
    pub(in super::super) const BUILD: u8 = b'b';
    pub(in super::super) const PROTO: u8 = 0x80;
    pub(in super::super) const FRAME: u8 = 0x95;
}

/// Runs a pickle and returns its state.
///
/// # Errors
/// The pickle is not that of a state.
pub(super) fn load(pickle: &[u8]) -> Result<RendezvousState, StateParseError> {
    if !matches!(pickle, [opcode::PROTO, 2..=5, ..]) {
        return Err(StateParseError::NotAPickle);
    }
    let mut machine = StackMachine::new(pickle);
    while machine.step()? {}
    let ([top], []) = (&machine.stack[..], &machine.marks[..]) else { return Err(machine.misplaced()) };
    match top.index().and_then(|index| machine.objects.get(index)) {
        Some(PickleObject::State(Some(_))) if machine.at < pickle.len() => {
            Err(StateParseError::Trailing { offset: machine.at })
        }
        Some(PickleObject::State(Some(fields))) => shape::state(fields, &machine.objects),
        _ => Err(machine.misplaced()),
    }
}

struct StackMachine<'a> {
    pickle: &'a [u8],
    /// Offset of the next byte.
    at: usize,
    /// Offset of the instruction that runs now.
    offset: usize,
    stack: Vec<PickleValue<'a>>,
    /// Stack heights at the open marks.
    marks: Vec<usize>,
    memo: Vec<PickleValue<'a>>,
    objects: Vec<PickleObject<'a>>,
}

impl<'a> StackMachine<'a> {
    /// The machine starts after the two bytes of the protocol.
    fn new(pickle: &'a [u8]) -> Self {
        let (stack, marks, memo, objects) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { pickle, at: 2, offset: 0, stack, marks, memo, objects }
    }

    /// Runs one instruction; returns whether there are more.
    fn step(&mut self) -> Result<bool, StateParseError> {
        self.offset = self.at;
        let [code] = self.array()?;
        match code {
            opcode::STOP => return Ok(false),
            opcode::FRAME => self.frame()?,
            opcode::MARK => self.mark()?,
            opcode::NONE => self.push(PickleValue::None)?,
            opcode::NEWTRUE => self.push(PickleValue::Bool(true))?,
            opcode::NEWFALSE => self.push(PickleValue::Bool(false))?,
            opcode::BININT => self.push_array(|bytes| i32::from_le_bytes(bytes).into())?,
            opcode::BININT1 => self.push_array(|[byte]| byte.into())?,
            opcode::BININT2 => self.push_array(|bytes| u16::from_le_bytes(bytes).into())?,
            opcode::LONG1 => self.push_long()?,
            opcode::SHORT_BINUNICODE => {
                let [length] = self.array()?;
                self.push_text(length.into())?;
            }
            opcode::BINUNICODE => {
                let length = u32::from_le_bytes(self.array()?);
                self.push_text(length as usize)?;
            }
            opcode::SHORT_BINBYTES => {
                let [length] = self.array()?;
                let bytes = self.take(length.into())?;
                self.push(PickleValue::Bytes(bytes))?;
            }
            opcode::EMPTY_DICT => self.push_object(PickleObject::Dict(Vec::new()))?,
            opcode::EMPTY_SET => self.push_object(PickleObject::Set(Vec::new()))?,
            opcode::EMPTY_TUPLE => self.push_tuple(0)?,
            opcode::TUPLE1 => self.push_tuple(1)?,
            opcode::TUPLE2 => self.push_tuple(2)?,
            opcode::TUPLE3 => self.push_tuple(3)?,
            opcode::TUPLE => {
                let count = self.above_mark()?;
                self.push_tuple(count)?;
            }
            opcode::SETITEM => self.set_items(2)?,
            opcode::SETITEMS => {
                let count = self.above_mark()?;
                self.set_items(count)?;
            }
            opcode::ADDITEMS => self.add_items()?,
            opcode::MEMOIZE => self.memoize()?,
            opcode::BINGET => {
                let [index] = self.array()?;
                self.get(index.into())?;
            }
            opcode::LONG_BINGET => {
                let index = u32::from_le_bytes(self.array()?);
                self.get(index as usize)?;
            }
            opcode::STACK_GLOBAL => self.push_global()?,
            opcode::NEWOBJ => self.new_object()?,
            opcode::REDUCE => self.call()?,
            opcode::BUILD => self.build()?,
            opcode => return Err(StateParseError::Opcode { opcode, offset: self.offset }),
        }
        Ok(true)
    }

    fn misplaced(&self) -> StateParseError {
        StateParseError::Misplaced { offset: self.offset }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], StateParseError> {
        let bytes = self.pickle[self.at..].get(..length);
        self.at += length;
        bytes.ok_or(StateParseError::Truncated { offset: self.pickle.len() })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateParseError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Frames only help file readers. The machine checks that a frame is complete.
    fn frame(&mut self) -> Result<(), StateParseError> {
        let length = u64::from_le_bytes(self.array()?);
        if length > (self.pickle.len() - self.at) as u64 {
            return Err(StateParseError::Truncated { offset: self.pickle.len() });
        }
        Ok(())
    }

    fn mark(&mut self) -> Result<(), StateParseError> {
        if self.marks.len() >= MAX_MARKS {
            return Err(StateParseError::TooMany { what: "nested lists" });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Removes the last mark; returns the number of values above it.
    fn above_mark(&mut self) -> Result<usize, StateParseError> {
        let height = self.marks.pop().ok_or(self.misplaced())?;
        self.stack.len().checked_sub(height).ok_or(self.misplaced())
    }

    fn push(&mut self, value: PickleValue<'a>) -> Result<(), StateParseError> {
        if self.stack.len() >= MAX_STACK {
            return Err(StateParseError::TooMany { what: "values" });
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_array<const N: usize>(&mut self, number: fn([u8; N]) -> i64) -> Result<(), StateParseError> {
        let bytes = self.array()?;
        self.push(PickleValue::Int(number(bytes)))
    }

    /// CPython uses this form for numbers above 32 bits.
    fn push_long(&mut self) -> Result<(), StateParseError> {
        let [length] = self.array()?;
        let bytes = self.take(length.into())?;
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut number = if is_negative { [0xff; 8] } else { [0; 8] };
        number.get_mut(..bytes.len()).ok_or(self.misplaced())?.copy_from_slice(bytes);
        self.push(PickleValue::Int(i64::from_le_bytes(number)))
    }

    fn push_text(&mut self, length: usize) -> Result<(), StateParseError> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| self.misplaced())?;
        self.push(PickleValue::Text(text))
    }

    fn push_object(&mut self, object: PickleObject<'a>) -> Result<(), StateParseError> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(StateParseError::TooMany { what: "objects" });
        }
        self.push(PickleValue::Object(self.objects.len()))?;
        self.objects.push(object);
        Ok(())
    }

    /// Number of values above the last mark, or on the whole stack.
    fn reachable(&self) -> usize {
        self.stack.len() - self.marks.last().copied().unwrap_or(0).min(self.stack.len())
    }

    fn pop(&mut self) -> Result<PickleValue<'a>, StateParseError> {
        match self.stack.pop() {
            Some(value) if self.marks.last().is_none_or(|mark| *mark <= self.stack.len()) => Ok(value),
            _ => Err(self.misplaced()),
        }
    }

    fn push_tuple(&mut self, count: usize) -> Result<(), StateParseError> {
        // The constructors of a state have at most three arguments.
        if count > 3 || count > self.reachable() {
            return Err(self.misplaced());
        }
        let items = self.stack.drain(self.stack.len() - count..).collect();
        self.push_object(PickleObject::Tuple(items))
    }

    /// Stack index of the topmost `count` values, and the index of the object below them.
    fn split_below_top(&self, count: usize) -> Result<(usize, usize), StateParseError> {
        if count >= self.reachable() {
            return Err(self.misplaced());
        }
        let start = self.stack.len() - count;
        let object = self.stack[start - 1].index().ok_or(self.misplaced())?;
        Ok((start, object))
    }

    fn set_items(&mut self, count: usize) -> Result<(), StateParseError> {
        let misplaced = self.misplaced();
        let (start, object) = self.split_below_top(count)?;
        let (items, rest) = self.stack[start..].as_chunks::<2>();
        if !rest.is_empty() || !items.iter().all(|[key, _]| shape::is_key(*key, &self.objects)) {
            return Err(misplaced);
        }
        let Some(PickleObject::Dict(pairs)) = self.objects.get_mut(object) else { return Err(misplaced) };
        pairs.extend(items.iter().map(|[key, value]| (*key, *value)));
        let is_full = pairs.len() > super::MAX_NODES;
        self.stack.truncate(start);
        if is_full { Err(StateParseError::TooMany { what: "nodes" }) } else { Ok(()) }
    }

    fn add_items(&mut self) -> Result<(), StateParseError> {
        let misplaced = self.misplaced();
        let count = self.above_mark()?;
        let (start, object) = self.split_below_top(count)?;
        let items = &self.stack[start..];
        if !items.iter().all(|item| shape::is_key(*item, &self.objects)) {
            return Err(misplaced);
        }
        let Some(PickleObject::Set(elements)) = self.objects.get_mut(object) else { return Err(misplaced) };
        elements.extend(items);
        let is_full = elements.len() > super::MAX_NODES;
        self.stack.truncate(start);
        if is_full { Err(StateParseError::TooMany { what: "nodes" }) } else { Ok(()) }
    }

    fn memoize(&mut self) -> Result<(), StateParseError> {
        if self.memo.len() >= 2 * MAX_OBJECTS {
            return Err(StateParseError::TooMany { what: "remembered values" });
        }
        let top = *self.stack.last().ok_or(self.misplaced())?;
        self.memo.push(top);
        Ok(())
    }

    fn get(&mut self, index: usize) -> Result<(), StateParseError> {
        let value = *self.memo.get(index).ok_or(self.misplaced())?;
        self.push(value)
    }

    fn push_global(&mut self) -> Result<(), StateParseError> {
        let (name, module) = (self.pop()?, self.pop()?);
        let (PickleValue::Text(module), PickleValue::Text(name)) = (module, name) else {
            return Err(self.misplaced());
        };
        let class = PickleClass::from_global(module, name).ok_or_else(|| StateParseError::Global {
            name: format!("{}.{}", shortened(module), shortened(name)),
            offset: self.offset,
        })?;
        self.push(PickleValue::Class(class))
    }

    /// The class, and the arguments of its call.
    fn class_and_arguments(&mut self) -> Result<(PickleClass, &[PickleValue<'a>]), StateParseError> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        let misplaced = self.misplaced();
        match (class, arguments.index().and_then(|index| self.objects.get(index))) {
            (PickleValue::Class(class), Some(PickleObject::Tuple(items))) => Ok((class, items)),
            _ => Err(misplaced),
        }
    }

    fn new_object(&mut self) -> Result<(), StateParseError> {
        let object = match self.class_and_arguments()? {
            (PickleClass::State, []) => PickleObject::State(None),
            (PickleClass::Node, []) => PickleObject::Node(None),
            _ => return Err(self.misplaced()),
        };
        self.push_object(object)
    }

    fn call(&mut self) -> Result<(), StateParseError> {
        let offset = self.offset;
        let (class, arguments) = self.class_and_arguments()?;
        let value = shape::call(class, arguments, offset)?;
        self.push(value)
    }

    fn build(&mut self) -> Result<(), StateParseError> {
        let misplaced = self.misplaced();
        let (fields, object) = (self.pop()?, self.stack.last().and_then(|value| value.index()));
        let (Some(fields), Some(object)) = (fields.index(), object) else { return Err(misplaced) };
        let built = match (self.objects.get(object), self.objects.get(fields)) {
            (Some(PickleObject::State(None)), Some(PickleObject::Dict(pairs))) => {
                PickleObject::State(Some(Box::new(shape::fields(pairs, &super::STATE_FIELDS)?)))
            }
            (Some(PickleObject::Node(None)), Some(PickleObject::Dict(pairs))) => {
                PickleObject::Node(Some(shape::node(pairs)?))
            }
            _ => return Err(misplaced),
        };
        self.objects[object] = built;
        Ok(())
    }
}
