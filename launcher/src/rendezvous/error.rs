//! Why a rendezvous fails: what a user can meet, with one hint each.

use std::io;
use std::time::Duration;

use rankrun_contract::rank::NodeRank;

use super::NodeName;
use super::address::AddressError;
use super::descriptor::Mismatch;
use super::pickle::NotAState;
use super::port_owner::PortOwner;
use super::unreached::Unreached;
use crate::error::which_names;
use crate::store::StoreError;
use crate::store::client::ClientError;

/// Why a rendezvous fails.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Not enough nodes came.
    #[error("only {here} of {needed} nodes came within {}{}", humantime::format_duration(*waited), missing_words(missing))]
    TooFew {
        /// How many came.
        here: u32,
        /// How many are needed at least.
        needed: u32,
        /// How long was waited.
        waited: Duration,
        /// Who is missing, where it is known.
        missing: Vec<NodeName>,
    },
    /// The store at the endpoint cannot be reached.
    #[error("cannot reach the rendezvous store at `{endpoint}` within {}", humantime::format_duration(*waited))]
    Unreachable {
        /// Host and port.
        endpoint: String,
        /// How long it was tried.
        waited: Duration,
        /// `--master-port` names its port.
        has_master_port: bool,
        /// What the last try gave.
        source: Box<Unreached>,
    },
    /// Another launcher of this machine hosts the store of this job.
    #[error(
        "another launcher{} already hosts this job on port {port}{}",
        if *has_node_rank { " with node rank 0" } else { "" },
        owner_words(owner.as_ref(), node.as_deref())
    )]
    AlreadyHosted {
        /// `--node-rank` says who hosts.
        has_node_rank: bool,
        /// The store's port.
        port: u16,
        /// The process that listens there, where this user may see it.
        owner: Option<PortOwner>,
        /// Its node, where it tells it.
        node: Option<Box<NodeName>>,
    },
    /// The endpoint's name means nothing here.
    #[error("cannot find the host `{host}`{} (tried for {})", which_names(named_by.as_deref()), humantime::format_duration(*waited))]
    NoSuchHost {
        /// The name.
        host: String,
        /// What names it: an option, a variable, a key of a file.
        named_by: Option<String>,
        /// How long it was tried.
        waited: Duration,
        /// The resolver's last answer.
        source: io::Error,
    },
    /// The store was there and is not any more.
    #[error("the rendezvous store at `{endpoint}` is lost")]
    StoreLost {
        /// Host and port.
        endpoint: String,
        /// What the connection gave.
        source: ClientError,
    },
    /// The store closes the connection on one of our requests, again and again.
    #[error(
        "the rendezvous store at `{endpoint}` refuses `{request}` of key `{key}`, which has {}",
        value_words(value)
    )]
    Refused {
        /// Host and port.
        endpoint: String,
        /// The request, as the store's protocol names it.
        request: &'static str,
        /// Its key.
        key: String,
        /// The key's value, fit for a terminal; empty where there is none.
        value: String,
        /// Whether the value is not one that an agent writes.
        is_spoiled: bool,
    },
    /// There is a store at the endpoint, but not the one that this node was connected to.
    #[error(
        "the rendezvous store at `{endpoint}` is another one now (`{found}`) than this node has joined (`{joined}`)"
    )]
    AnotherStore {
        /// Host and port.
        endpoint: String,
        /// The identity of the store at the beginning.
        joined: String,
        /// And now; empty where nobody has given it one.
        found: String,
    },
    /// What stands where the shared state should be is something else. Nothing of it was obeyed.
    #[error("the value of `{key}` in the rendezvous store is not the state of a rendezvous")]
    NotAState {
        /// The key.
        key: String,
        /// What is wrong with it.
        source: NotAState,
    },
    /// This node has no address to tell.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The machine does not let us listen, or look at its interfaces.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's refusal.
        source: io::Error,
    },
    /// Another rankrun agent is of another job, or of another version.
    #[error("this agent and the one on {node} are not of one job: {mismatch}")]
    Mismatch {
        /// Its node.
        node: Box<NodeName>,
        /// What differs.
        mismatch: Mismatch,
    },
    /// Two agents of one job have the same node rank.
    #[error("node rank {node_rank} is given twice: to this agent on {ours}, and to the one on {theirs}")]
    SameNodeRank {
        /// The rank.
        node_rank: NodeRank,
        /// This node.
        ours: Box<NodeName>,
        /// The other agent's.
        theirs: Box<NodeName>,
    },
    /// A member of the round does not do its part.
    #[error("no {what} from {} within {}", names(nodes), humantime::format_duration(*waited))]
    NoAnswer {
        /// What is missing.
        what: &'static str,
        /// Who has not given it.
        nodes: Vec<NodeName>,
        /// How long was waited.
        waited: Duration,
    },
    /// Nodes of which nobody knows whether they live have not ended.
    #[error(
        "{left} of {nodes} nodes have not succeeded within {} of this one",
        humantime::format_duration(*waited)
    )]
    NotFinished {
        /// How many.
        left: usize,
        /// Of how many.
        nodes: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// A member of the round has written something that no agent writes.
    #[error("cannot read {what} that {node} has written")]
    Unreadable {
        /// What it is.
        what: &'static str,
        /// Whose.
        node: NodeName,
    },
    /// More workers than there are ranks.
    #[error("the nodes have more than {} workers together", u32::MAX)]
    TooManyWorkers,
    /// A torchrun member cannot learn where the workers meet now.
    #[error(
        "the workers' store has moved from `{believed}` to `{now}`, and torchrun on {peer} cannot follow: it reads the address only once"
    )]
    MasterMoved {
        /// The torchrun member.
        peer: Box<NodeName>,
        /// Where it believes that the store is.
        believed: String,
        /// The place, or node, where it has to be now.
        now: String,
    },
    /// A torchrun rank 0 uses a store that it has told only to others.
    #[error("torchrun on {node} is rank 0, and does not say where its workers' store is")]
    MasterUnknown {
        /// The torchrun member.
        node: NodeName,
    },
    /// The old keys in a torchrun member's store cannot be removed.
    #[error("cannot empty the workers' store at `{place}`")]
    NotEmptied {
        /// Where it is.
        place: String,
        /// Why.
        source: ClientError,
    },
    /// The workers' store at this node cannot be opened or emptied.
    #[error(transparent)]
    AgentStore(#[from] StoreError),
    /// No port is free for a store of worker rank 0.
    #[error("cannot find a free port for the workers' store")]
    NoPort {
        /// The kernel's refusal.
        source: io::Error,
    },
}

fn owner_words(owner: Option<&PortOwner>, node: Option<&NodeName>) -> String {
    let words = [owner.map(ToString::to_string), node.map(|node| format!("on {node}"))];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

fn value_words(value: &str) -> String {
    if value.is_empty() { "no value".to_owned() } else { format!("the value `{value}`") }
}

fn missing_words(missing: &[NodeName]) -> String {
    if missing.is_empty() { String::new() } else { format!(": {} missing", names(missing)) }
}

fn names(nodes: &[NodeName]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl RendezvousError {
    /// One thing to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::TooFew { .. } => {
                "start the launcher on every node with the same `--rdzv-id` and endpoint; `--join-timeout TIME` waits longer (for torchrun's name: `--rdzv-conf join_timeout=SECONDS`)"
            }
            Self::Unreachable { source, has_master_port, .. } => source.hint(*has_master_port),
            Self::AlreadyHosted { has_node_rank: true, .. } => {
                "give every node a `--node-rank` of its own; a launcher that was left behind is ended with `kill`"
            }
            Self::AlreadyHosted { .. } => {
                "let one node host (`--rdzv-conf is_host=1`), or end the launcher that was left behind"
            }
            Self::NoSuchHost { .. } => "give an address there, or a name that this machine knows",
            Self::Refused { is_spoiled: true, .. } => {
                "something else writes to this key: give the job another `--rdzv-id` or another endpoint"
            }
            Self::Refused { .. } => {
                "the store may be full: the launcher on its node says so; `--store-limit SIZE` there raises the limit"
            }
            Self::AnotherStore { .. } => {
                "the node that hosts the store was started anew; start the job again on all nodes"
            }
            Self::NotAState { .. } => {
                "something else writes to this store: give the job another `--rdzv-id` or another endpoint"
            }
            Self::Address(error) => error.hint(),
            Self::System { .. } => return None,
            Self::StoreLost { .. } => "the node that hosts the store has gone; start the job again",
            Self::Mismatch { mismatch, .. } => mismatch.hint(),
            Self::SameNodeRank { .. } => "give every node a `--node-rank` of its own",
            Self::NoAnswer { .. } => "is the launcher still running there? Its own messages say more",
            Self::NotFinished { .. } => {
                "beside torchrun with given ranks nobody hears of a failure elsewhere: look at the other nodes"
            }
            Self::Unreadable { .. } => {
                "does another program write to the same store, or another version of the launcher?"
            }
            Self::TooManyWorkers => "start fewer workers on each node",
            Self::MasterMoved { .. } | Self::MasterUnknown { .. } => {
                "start the job again; run rankrun on every node: its agents read the address in every round"
            }
            Self::NotEmptied { .. } => "can this node reach that address?",
            Self::AgentStore(error) => return error.hint(),
            Self::NoPort { .. } => "give more ports with `--port-range`",
        })
    }
}
