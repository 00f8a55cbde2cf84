//! The shape of a state: the five classes, their arguments, and the types of all fields. Checks the values of the stack
//! machine, and builds the state from them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{MAX_ADDR, MODULE, NODE_FIELDS, NotAState, shortened, time};
use crate::rendezvous::state::{Node, State, Timestamp};

/// The only class names that a state's pickle may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    State,
    Node,
    DateTime,
    TimeZone,
    TimeDelta,
}

impl Class {
    pub(super) fn named(module: &str, name: &str) -> Option<Self> {
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
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Class(Class),
    /// `timedelta(0, 0, 0)`, the offset of UTC.
    NoTime,
    /// `timezone(timedelta(0, 0, 0))`, which is UTC.
    Utc,
    Time(Timestamp),
    Object(usize),
}

impl Value<'_> {
    pub(super) fn index(self) -> Option<usize> {
        if let Self::Object(index) = self { Some(index) } else { None }
    }
}

/// An object of the pickle, which values refer to by index.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Box<[Value<'a>]>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Set(Vec<Value<'a>>),
    /// `None` until its fields are set.
    Node(Option<Desc<'a>>),
    /// `None` until its fields are set, in the order of [`STATE_FIELDS`](super::STATE_FIELDS).
    State(Option<Box<[Value<'a>; 8]>>),
}

/// A node with a borrowed address, because many nodes may share one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Desc<'a> {
    addr: &'a str,
    pid: i64,
    local_id: i64,
}

impl Desc<'_> {
    fn to_node(self) -> Node {
        Node { addr: self.addr.to_owned(), pid: self.pid, local_id: self.local_id }
    }
}

/// Whether Python could hash this value for a set or dict, among the values that a state has. A node needs its fields
/// for that.
pub(super) fn is_key(value: Value<'_>, objects: &[Object<'_>]) -> bool {
    matches!(value, Value::Text(_)) || desc(value, objects).is_some()
}

fn desc<'a>(value: Value<'a>, objects: &[Object<'a>]) -> Option<Desc<'a>> {
    match objects.get(value.index()?)? {
        Object::Node(desc) => *desc,
        _ => None,
    }
}

/// Runs the call of a class with arguments.
pub(super) fn call<'a>(class: Class, arguments: &[Value<'a>], offset: usize) -> Result<Value<'a>, NotAState> {
    match (class, arguments) {
        (Class::TimeDelta, [Value::Int(0), Value::Int(0), Value::Int(0)]) => Ok(Value::NoTime),
        (Class::TimeZone, [Value::NoTime]) => Ok(Value::Utc),
        (Class::DateTime, [Value::Bytes(bytes), Value::Utc]) => {
            time::parse(bytes).map(Value::Time).ok_or(NotAState::Time { offset })
        }
        _ => Err(NotAState::Misplaced { offset }),
    }
}

/// Returns exactly these fields in their order. As in Python, the last value of a repeated field counts.
pub(super) fn fields<'a, const N: usize>(
    pairs: &[(Value<'a>, Value<'a>)],
    names: &[&'static str; N],
) -> Result<[Value<'a>; N], NotAState> {
    let mut values = [None; N];
    for (key, value) in pairs {
        let Value::Text(key) = key else { return Err(NotAState::UnknownField { name: "?".to_owned() }) };
        let index = names.iter().position(|name| name == key);
        let index = index.ok_or_else(|| NotAState::UnknownField { name: shortened(key) })?;
        values[index] = Some(*value);
    }
    let mut all = [Value::None; N];
    for ((slot, value), name) in all.iter_mut().zip(values).zip(names) {
        *slot = value.ok_or(NotAState::MissingField { name })?;
    }
    Ok(all)
}

/// Builds a node from its fields.
pub(super) fn node<'a>(pairs: &[(Value<'a>, Value<'a>)]) -> Result<Desc<'a>, NotAState> {
    let [addr_name, pid_name, local_id_name] = NODE_FIELDS;
    match fields(pairs, &NODE_FIELDS)? {
        [Value::Text(addr), Value::Int(pid), Value::Int(local_id)] if addr.len() <= MAX_ADDR => {
            Ok(Desc { addr, pid, local_id })
        }
        [Value::Text(addr), Value::Int(_), _] if addr.len() <= MAX_ADDR => {
            Err(NotAState::WrongField { name: local_id_name })
        }
        [Value::Text(addr), ..] if addr.len() <= MAX_ADDR => Err(NotAState::WrongField { name: pid_name }),
        _ => Err(NotAState::WrongField { name: addr_name }),
    }
}

/// Builds the state from its fields.
pub(super) fn state(fields: &[Value<'_>; 8], objects: &[Object<'_>]) -> Result<State, NotAState> {
    let [round, complete, deadline, closed, participants, wait_list, redundancy_list, last_heartbeats] =
        super::STATE_FIELDS.map(|name| move || NotAState::WrongField { name });
    let ranks = pairs(fields[4], objects, rank).ok_or_else(participants)?;
    let times: Option<BTreeMap<Node, Timestamp>> =
        pairs(fields[7], objects, moment).map(|pairs| pairs.into_iter().collect());
    Ok(State {
        round: rank(fields[0]).and_then(|number| u64::try_from(number).ok()).ok_or_else(round)?,
        complete: truth(fields[1]).ok_or_else(complete)?,
        deadline: match fields[2] {
            Value::None => None,
            value => Some(moment(value).ok_or_else(deadline)?),
        },
        closed: truth(fields[3]).ok_or_else(closed)?,
        participants: ranks.into_iter().collect(),
        wait_list: nodes(fields[5], objects).ok_or_else(wait_list)?,
        redundancy_list: nodes(fields[6], objects).ok_or_else(redundancy_list)?,
        last_heartbeats: times.ok_or_else(last_heartbeats)?,
    })
}

fn rank(value: Value<'_>) -> Option<i64> {
    if let Value::Int(number) = value { Some(number) } else { None }
}

fn truth(value: Value<'_>) -> Option<bool> {
    if let Value::Bool(truth) = value { Some(truth) } else { None }
}

fn moment(value: Value<'_>) -> Option<Timestamp> {
    if let Value::Time(time) = value { Some(time) } else { None }
}

fn nodes(value: Value<'_>, objects: &[Object<'_>]) -> Option<BTreeSet<Node>> {
    let Object::Set(items) = objects.get(value.index()?)? else { return None };
    items.iter().map(|item| desc(*item, objects).map(Desc::to_node)).collect()
}

/// The nodes of a dict with their values, in the dict's order.
fn pairs<T>(
    value: Value<'_>,
    objects: &[Object<'_>],
    read: fn(Value<'_>) -> Option<T>,
) -> Option<Vec<(Node, T)>> {
    let Object::Dict(pairs) = objects.get(value.index()?)? else { return None };
    pairs.iter().map(|(key, value)| Some((desc(*key, objects)?.to_node(), read(*value)?))).collect()
}
