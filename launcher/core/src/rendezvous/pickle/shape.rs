//! The shape of a state: the five classes, their arguments, and the types of all fields. Checks the values of the stack
//! machine, and builds the state from them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_ADDR, MODULE, NODE_FIELDS, StateParseError, shortened, time};
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};

/// The only class names that a state's pickle may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PickleClass {
    State,
    Node,
    DateTime,
    TimeZone,
    TimeDelta,
}

impl PickleClass {
    pub(super) fn from_global(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            (MODULE, "_RendezvousState") => Some(Self::State),
            (MODULE, "_NodeDesc") => Some(Self::Node),
            ("datetime", "datetime") => Some(Self::DateTime),
            ("datetime", "timezone") => Some(Self::TimeZone),
            ("datetime", "timedelta") => Some(Self::TimeDelta),
            _ => None,
        }
    }
}

/// A value of the pickle: an immutable one, or the index of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum PickleValue<'a> {
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Class(PickleClass),
    /// `timedelta(0, 0, 0)`, the offset of UTC.
    NoTime,
    /// `timezone(timedelta(0, 0, 0))`, which is UTC.
    Utc,
    Time(Timestamp),
    Object(usize),
}

impl PickleValue<'_> {
    pub(super) fn index(self) -> Option<usize> {
        if let Self::Object(index) = self { Some(index) } else { None }
    }
}

/// An object of the pickle, which values refer to by index.
#[derive(Debug)]
pub(super) enum PickleObject<'a> {
    Tuple(Box<[PickleValue<'a>]>),
    Dict(Vec<(PickleValue<'a>, PickleValue<'a>)>),
    Set(Vec<PickleValue<'a>>),
    /// `None` until its fields are set.
    Node(Option<NodeFields<'a>>),
    /// `None` until its fields are set, in the order of [`STATE_FIELDS`](super::STATE_FIELDS).
    State(Option<Box<[PickleValue<'a>; 8]>>),
}

/// A node with a borrowed address, because many nodes may share one.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeFields<'a> {
    addr: &'a str,
    pid: i64,
    local_id: i64,
}

impl NodeFields<'_> {
    fn to_node(self) -> Node {
        Node { addr: self.addr.to_owned(), pid: self.pid, local_id: self.local_id }
    }
}

/// Whether Python could hash this value for a set or dict, among the values that a state has. A node needs its fields
/// for that.
pub(super) fn is_key(value: PickleValue<'_>, objects: &[PickleObject<'_>]) -> bool {
    matches!(value, PickleValue::Text(_)) || as_node_fields(value, objects).is_some()
}

fn as_node_fields<'a>(value: PickleValue<'a>, objects: &[PickleObject<'a>]) -> Option<NodeFields<'a>> {
    match objects.get(value.index()?)? {
        PickleObject::Node(desc) => *desc,
        _ => None,
    }
}

/// Runs the call of a class with arguments.
pub(super) fn call<'a>(
    class: PickleClass,
    arguments: &[PickleValue<'a>],
    offset: usize,
) -> Result<PickleValue<'a>, StateParseError> {
    match (class, arguments) {
        (PickleClass::TimeDelta, [PickleValue::Int(0), PickleValue::Int(0), PickleValue::Int(0)]) => {
            Ok(PickleValue::NoTime)
        }
        (PickleClass::TimeZone, [PickleValue::NoTime]) => Ok(PickleValue::Utc),
        (PickleClass::DateTime, [PickleValue::Bytes(bytes), PickleValue::Utc]) => {
            time::parse(bytes).map(PickleValue::Time).ok_or(StateParseError::Time { offset })
        }
        _ => Err(StateParseError::Misplaced { offset }),
    }
}

/// Returns exactly these fields in their order. As in Python, the last value of a repeated field counts.
pub(super) fn fields<'a, const N: usize>(
    pairs: &[(PickleValue<'a>, PickleValue<'a>)],
    names: &[&'static str; N],
) -> Result<[PickleValue<'a>; N], StateParseError> {
    let mut values = [None; N];
    for (key, value) in pairs {
        let PickleValue::Text(key) = key else {
            return Err(StateParseError::UnknownField { name: "?".to_owned() });
        };
        let index = names.iter().position(|name| name == key);
        let index = index.ok_or_else(|| StateParseError::UnknownField { name: shortened(key) })?;
        values[index] = Some(*value);
    }
    let mut all = [PickleValue::None; N];
    for ((slot, value), name) in all.iter_mut().zip(values).zip(names) {
        *slot = value.ok_or(StateParseError::MissingField { name })?;
    }
    Ok(all)
}

/// Builds a node from its fields.
pub(super) fn node<'a>(
    pairs: &[(PickleValue<'a>, PickleValue<'a>)],
) -> Result<NodeFields<'a>, StateParseError> {
    let [addr_name, pid_name, local_id_name] = NODE_FIELDS;
    match fields(pairs, &NODE_FIELDS)? {
        [PickleValue::Text(addr), PickleValue::Int(pid), PickleValue::Int(local_id)]
            if addr.len() <= MAX_ADDR =>
        {
            Ok(NodeFields { addr, pid, local_id })
        }
        [PickleValue::Text(addr), PickleValue::Int(_), _] if addr.len() <= MAX_ADDR => {
            Err(StateParseError::WrongField { name: local_id_name })
        }
        [PickleValue::Text(addr), ..] if addr.len() <= MAX_ADDR => {
            Err(StateParseError::WrongField { name: pid_name })
        }
        _ => Err(StateParseError::WrongField { name: addr_name }),
    }
}

/// Builds the state from its fields.
pub(super) fn state(
    fields: &[PickleValue<'_>; 8],
    objects: &[PickleObject<'_>],
) -> Result<RendezvousState, StateParseError> {
    let [round, complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats] =
        super::STATE_FIELDS.map(|name| move || StateParseError::WrongField { name });
    let ranks = pairs(fields[4], objects, parse_rank).ok_or_else(participants)?;
    let times: Option<BTreeMap<Node, Timestamp>> =
        pairs(fields[7], objects, parse_deadline).map(|pairs| pairs.into_iter().collect());
    Ok(RendezvousState {
        round: parse_rank(fields[0]).and_then(|number| u64::try_from(number).ok()).ok_or_else(round)?,
        complete: parse_bool(fields[1]).ok_or_else(complete)?,
        deadline: match fields[2] {
            PickleValue::None => None,
            value => Some(parse_deadline(value).ok_or_else(deadline)?),
        },
        closed: parse_bool(fields[3]).ok_or_else(closed)?,
        participants: ranks.into_iter().collect(),
        wait_list: nodes(fields[5], objects).ok_or_else(wait_list)?,
        redundancy_list: nodes(fields[6], objects).ok_or_else(redundancy_list)?,
        last_heartbeats: times.ok_or_else(last_heartbeats)?,
    })
}

fn parse_rank(value: PickleValue<'_>) -> Option<i64> {
    if let PickleValue::Int(number) = value { Some(number) } else { None }
}

fn parse_bool(value: PickleValue<'_>) -> Option<bool> {
    if let PickleValue::Bool(truth) = value { Some(truth) } else { None }
}

fn parse_deadline(value: PickleValue<'_>) -> Option<Timestamp> {
    if let PickleValue::Time(time) = value { Some(time) } else { None }
}

fn nodes(value: PickleValue<'_>, objects: &[PickleObject<'_>]) -> Option<BTreeSet<Node>> {
    let PickleObject::Set(items) = objects.get(value.index()?)? else { return None };
    items.iter().map(|item| as_node_fields(*item, objects).map(NodeFields::to_node)).collect()
}

/// The nodes of a dict with their values, in the dict's order.
fn pairs<T>(
    value: PickleValue<'_>,
    objects: &[PickleObject<'_>],
    read: fn(PickleValue<'_>) -> Option<T>,
) -> Option<Vec<(Node, T)>> {
    let PickleObject::Dict(pairs) = objects.get(value.index()?)? else { return None };
    pairs.iter().map(|(key, value)| Some((as_node_fields(*key, objects)?.to_node(), read(*value)?))).collect()
}
