//! Writes a state like CPython's pickler, instruction by instruction. Pure.
//!
//! The pickler numbers every object when it is written, and writes that number when it meets the object again. This
//! writer does so for the objects that torch's states share: classes, field names, nodes and the time zone.

use std::collections::HashMap;

use super::machine::opcode;
use super::{MODULE, NODE_FIELDS, STATE_FIELDS, time};
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};

/// CPython writes this many elements at a time.
const BATCH: usize = 1000;

/// Returns the pickle of a state.
pub(super) fn dump(state: &RendezvousState) -> Vec<u8> {
    let mut writer = PickleWriter::default();
    writer.state(state);
    let body = writer.body;
    let mut pickle = vec![opcode::PROTO, 4, opcode::FRAME];
    pickle.extend_from_slice(&(body.len() as u64).to_le_bytes());
    pickle.extend_from_slice(&body);
    pickle
}

#[derive(Default)]
struct PickleWriter<'a> {
    body: Vec<u8>,
    /// Number of memo entries so far.
    memo_len: u32,
    /// Field names and modules. They are few, so a linear search is faster than hashing.
    texts: Vec<(&'static str, u32)>,
    classes: Vec<(&'static str, u32)>,
    nodes: HashMap<&'a Node, u32>,
    utc: Option<u32>,
}

impl<'a> PickleWriter<'a> {
    fn put(&mut self, code: u8) {
        self.body.push(code);
    }

    fn memoize(&mut self) -> u32 {
        self.put(opcode::MEMOIZE);
        self.memo_len += 1;
        self.memo_len - 1
    }

    fn write_get(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(number) => self.body.extend_from_slice(&[opcode::BINGET, number]),
            Err(_) => {
                self.put(opcode::LONG_BINGET);
                self.body.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    /// Writes a text in full; returns its memo index.
    fn text(&mut self, text: &str) -> u32 {
        match u8::try_from(text.len()) {
            Ok(length) => self.body.extend_from_slice(&[opcode::SHORT_BINUNICODE, length]),
            Err(_) => {
                // A text of 4 GiB exceeds every limit of the store, so the cut is never visible.
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.put(opcode::BINUNICODE);
                self.body.extend_from_slice(&length.to_le_bytes());
            }
        }
        self.body.extend_from_slice(text.as_bytes());
        self.memoize()
    }

    /// Writes a text in full only the first time.
    fn name(&mut self, name: &'static str) {
        match find(&self.texts, name) {
            Some(number) => self.write_get(number),
            None => {
                let number = self.text(name);
                self.texts.push((name, number));
            }
        }
    }

    fn class(&mut self, module: &'static str, name: &'static str) {
        if let Some(number) = find(&self.classes, name) {
            return self.write_get(number);
        }
        self.name(module);
        self.text(name);
        self.put(opcode::STACK_GLOBAL);
        let number = self.memoize();
        self.classes.push((name, number));
    }

    fn write_bool(&mut self, truth: bool) {
        self.put(if truth { opcode::NEWTRUE } else { opcode::NEWFALSE });
    }

    fn int(&mut self, number: i64) {
        if let Ok(byte) = u8::try_from(number) {
            self.body.extend_from_slice(&[opcode::BININT1, byte]);
        } else if let Ok(short) = u16::try_from(number) {
            self.put(opcode::BININT2);
            self.body.extend_from_slice(&short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.put(opcode::BININT);
            self.body.extend_from_slice(&int.to_le_bytes());
        } else {
            self.long(number);
        }
    }

    /// Uses the fewest bytes that keep the sign.
    fn long(&mut self, number: i64) {
        let bytes = number.to_le_bytes();
        let needed = |length: &u8| {
            let unused = 64 - 8 * u32::from(*length);
            number << unused >> unused == number
        };
        let length = (1..8).find(needed).unwrap_or(8);
        self.body.extend_from_slice(&[opcode::LONG1, length]);
        self.body.extend_from_slice(&bytes[..length.into()]);
    }

    fn state(&mut self, state: &'a RendezvousState) {
        let [round, complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats] =
            STATE_FIELDS;
        self.object("_RendezvousState");
        self.name(round);
        self.int(i64::try_from(state.round).unwrap_or(i64::MAX));
        self.name(complete);
        self.write_bool(state.complete);
        self.name(deadline);
        match state.deadline {
            Some(time) => self.time(time),
            None => self.put(opcode::NONE),
        }
        self.name(closed);
        self.write_bool(state.closed);
        self.name(participants);
        let ranks: Vec<_> = state.participants.iter().collect();
        self.dict(&ranks, |writer, (node, rank)| {
            writer.node(node);
            writer.int(*rank);
        });
        self.name(wait_list);
        self.set(state.wait_list.iter());
        self.name(redundancy_list);
        self.set(state.redundancy_list.iter());
        self.name(last_heartbeats);
        let times: Vec<_> = state.last_heartbeats.iter().collect();
        self.dict(&times, |writer, (node, time)| {
            writer.node(node);
            writer.time(**time);
        });
        self.put(opcode::SETITEMS);
        self.put(opcode::BUILD);
        self.put(opcode::STOP);
    }

    /// Writes an object without fields, and the start of its fields; returns its memo index.
    fn object(&mut self, class: &'static str) -> u32 {
        self.class(MODULE, class);
        self.put(opcode::EMPTY_TUPLE);
        self.put(opcode::NEWOBJ);
        let number = self.memoize();
        self.put(opcode::EMPTY_DICT);
        self.memoize();
        self.put(opcode::MARK);
        number
    }

    fn node(&mut self, node: &'a Node) {
        if let Some(number) = self.nodes.get(node) {
            return self.write_get(*number);
        }
        let [addr, pid, local_id] = NODE_FIELDS;
        let number = self.object("_NodeDesc");
        self.name(addr);
        self.text(&node.addr);
        self.name(pid);
        self.int(node.pid);
        self.name(local_id);
        self.int(node.local_id);
        self.put(opcode::SETITEMS);
        self.put(opcode::BUILD);
        self.nodes.insert(node, number);
    }

    fn dict<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.put(opcode::EMPTY_DICT);
        self.memoize();
        if let [item] = items {
            put(self, item);
            return self.put(opcode::SETITEM);
        }
        for batch in items.chunks(BATCH) {
            self.put(opcode::MARK);
            batch.iter().for_each(|item| put(self, item));
            self.put(opcode::SETITEMS);
        }
    }

    fn set(&mut self, nodes: impl Iterator<Item = &'a Node>) {
        self.put(opcode::EMPTY_SET);
        self.memoize();
        let nodes: Vec<_> = nodes.collect();
        for batch in nodes.chunks(BATCH) {
            self.put(opcode::MARK);
            batch.iter().for_each(|node| self.node(node));
            self.put(opcode::ADDITEMS);
        }
    }

    fn time(&mut self, time: Timestamp) {
        self.class("datetime", "datetime");
        let bytes = time::render(time);
        self.body.extend_from_slice(&[opcode::SHORT_BINBYTES, 10]);
        self.body.extend_from_slice(&bytes);
        self.memoize();
        self.utc();
        self.call(opcode::TUPLE2);
    }

    fn utc(&mut self) {
        if let Some(number) = self.utc {
            return self.write_get(number);
        }
        self.class("datetime", "timezone");
        self.class("datetime", "timedelta");
        (0..3).for_each(|_| self.int(0));
        self.call(opcode::TUPLE3);
        self.utc = Some(self.call(opcode::TUPLE1));
    }

    /// Calls the class below the arguments, which the opcode `tuple` packs.
    fn call(&mut self, tuple: u8) -> u32 {
        self.put(tuple);
        self.memoize();
        self.put(opcode::REDUCE);
        self.memoize()
    }
}

fn find(remembered: &[(&str, u32)], name: &str) -> Option<u32> {
    remembered.iter().find(|(other, _)| *other == name).map(|(_, number)| *number)
}
