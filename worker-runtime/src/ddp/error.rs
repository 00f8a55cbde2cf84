//! Why data-parallel training cannot go on.

use rankrun_contract::rank::{Rank, WorldSize};

use super::agreement::Difference;
use crate::diagnostic::{Details, Diagnostic};
use crate::process_group::{DataType, GroupError};

/// A failed call of [`Ddp`](super::Ddp). Parameters go by their names.
#[derive(Debug, thiserror::Error)]
pub enum DdpError {
    /// The group failed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Nothing to train.
    #[error("the model has no parameters, so there are no gradients to exchange")]
    NoParameters,
    /// Messages could not tell two parameters apart.
    #[error("parameters {first} and {second} of the model have the same name, `{name}`")]
    SameName {
        /// The name.
        name: String,
        /// The index of one.
        first: usize,
        /// The index of the other.
        second: usize,
    },
    /// Integers have no gradients.
    #[error("{}parameter `{parameter}` is of type {data_type}, which has no gradients", Details(self))]
    NotFloat {
        /// The parameter.
        parameter: String,
        /// Its type.
        data_type: DataType,
    },
    /// No memory holds them.
    #[error("the gradients up to that of `{parameter}` have more bytes than memory can have")]
    TooLarge {
        /// The parameter.
        parameter: String,
    },
    /// Ranks have different models or options. Every rank has the same error.
    #[error("{}the ranks do not train the same model: {}", Details(self), .0)]
    Differ(Box<Difference>),
    /// What a rank said of its model is none.
    #[error("rank {rank} says of its model what this version cannot read")]
    Unreadable {
        /// The rank.
        rank: Rank,
    },
    /// An index beyond the model.
    #[error("there is no parameter {index}: the model has {parameters}")]
    NoSuchParameter {
        /// The index.
        index: usize,
        /// How many there are.
        parameters: usize,
    },
    /// A gradient of another type than its parameter.
    #[error("`{parameter}` is of type {expected}, and its gradient was taken for {given}")]
    WrongType {
        /// The parameter.
        parameter: String,
        /// Its type.
        expected: DataType,
        /// What it was taken for.
        given: DataType,
    },
    /// A slice of another length than its parameter.
    #[error("`{parameter}` has {expected} elements, but was given {given}")]
    WrongLength {
        /// The parameter.
        parameter: String,
        /// How many it has.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// Memory of a device of another length than its parameter.
    #[error("`{parameter}` has {expected} bytes, but was given memory of {given}")]
    WrongBytes {
        /// The parameter.
        parameter: String,
        /// How many it has.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// Two groups of one training, of which each has other ranks.
    #[error(
        "{}this is rank {} of {} between hosts and rank {} of {} between devices",
        Details(self), host.0, host.1, device.0, device.1
    )]
    OtherRanks {
        /// Its rank and the number of ranks in the group between hosts.
        host: (Rank, WorldSize),
        /// Its rank and the number of ranks in the group between devices.
        device: (Rank, WorldSize),
    },
    /// More parameters, or fewer, than the model has.
    #[error("the model has {expected} parameters{}, but {given} were given", of_type(*.data_type))]
    WrongCount {
        /// Their type, where only those of one were to be given.
        data_type: Option<DataType>,
        /// How many the model has.
        expected: usize,
        /// How many there are.
        given: usize,
    },
    /// A gradient was said to be ready twice in one pass, or written after it was ready.
    #[error("{}the gradient of `{parameter}` is ready already in this pass", Details(self))]
    Twice {
        /// The parameter.
        parameter: String,
    },
    /// The pass has left out a parameter. Nothing is lost: it can still be made ready.
    #[error("{}there is no gradient of `{parameter}`{}", Details(self), nor_of(*.others))]
    Missing {
        /// The first parameter without one, in the order of the model.
        parameter: String,
        /// How many there are beside it.
        others: usize,
    },
    /// What passes before have added up would be written over.
    #[error(
        "{}the gradient of `{parameter}` holds that of the passes before, and would be written over",
        Details(self)
    )]
    Kept {
        /// The parameter.
        parameter: String,
    },
    /// A pass of which gradients stay here has none to give.
    #[error("{}`finish` was called within `no_sync`, where nothing is exchanged", Details(self))]
    NoSync,
    /// The memory of the gradients is in use.
    #[error(
        "`broadcast` was called while gradients are being gathered; it belongs before the first, or after `finish`"
    )]
    UnderWay,
    /// A call before this one failed, and took gradients with it.
    #[error("the exchange of gradients has ended with an earlier error")]
    Ended,
}

impl Diagnostic for DdpError {
    fn hint(&self) -> Option<&str> {
        Self::hint(self)
    }
}

fn of_type(data_type: Option<DataType>) -> String {
    data_type.map_or_else(String::new, |data_type| format!(" of type {data_type}"))
}

fn nor_of(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => ", nor of another one".to_owned(),
        others => format!(", nor of {others} others"),
    }
}

impl DdpError {
    /// What to do about it, where something is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Group(error) => error.hint(),
            Self::NotFloat { .. } => Some("leave it out: `Queue::broadcast` carries what is not trained"),
            Self::Differ(_) => {
                Some("build the same model on every rank, from the same code and the same options")
            }
            Self::OtherRanks { .. } => Some("join both groups with the same context, or split both alike"),
            Self::Twice { .. } => {
                Some("add up what belongs to one gradient first; end each pass with `finish` or `no_sync`")
            }
            Self::Missing { .. } => {
                Some("make every gradient ready, or set `find_unused` where a pass may leave some out")
            }
            Self::Kept { .. } => Some("add to `gradient_mut` instead, in every pass after the first"),
            Self::NoSync => Some("call it after the last pass, outside of `no_sync`"),
            _ => None,
        }
    }
}
