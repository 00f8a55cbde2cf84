//! Errors of a rendezvous that a user can meet, with at most one hint each. `task` and its parts create them; the
//! agent prints them.

use std::io;
use std::time::Duration;

use rankrun_contract::rank::NodeRank;

use super::address::AddressError;
use super::port_owner::PortOwner;
use super::unreached::UnreachedReason;
use crate::io_thread::IoThreadError;
use crate::process::process_limit_hint;
use crate::store::StoreError;
use crate::store::client::ClientError;
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::descriptor::Mismatch;
use rankrun_core::rendezvous::message::RendezvousFailure;
use rankrun_core::rendezvous::pickle::StateParseError;

impl From<RendezvousError> for RendezvousFailure {
    fn from(error: RendezvousError) -> Self {
        let hint = error.hint();
        Self::new(error, hint)
    }
}

/// Why a rendezvous failed.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// Too few nodes joined in time.
    #[error("only {here} of {needed} nodes came within {}{}", humantime::format_duration(*waited), describe_missing(missing))]
    TooFew {
        /// Number of nodes that joined.
        here: u32,
        /// Minimum number of nodes of the job.
        needed: u32,
        /// How long this node waited.
        waited: Duration,
        /// Names of the missing nodes, if they are known.
        missing: Vec<NodeName>,
    },
    /// The store at the endpoint cannot be reached.
    #[error("cannot reach the rendezvous store at `{endpoint}` within {}", humantime::format_duration(*waited))]
    Unreachable {
        /// Host and port of the store.
        endpoint: String,
        /// How long this node tried to connect.
        waited: Duration,
        /// Whether `--master-port` sets the endpoint's port.
        has_master_port: bool,
        /// Cause of the last failed try.
        source: Box<UnreachedReason>,
    },
    /// Another launcher on this machine hosts the store of this job.
    #[error(
        "another launcher{} already hosts this job on port {port}{}",
        if *has_node_rank { " with node rank 0" } else { "" },
        describe_owner(owner.as_ref(), node.as_deref())
    )]
    AlreadyHosted {
        /// Whether `--node-rank` decides which node hosts.
        has_node_rank: bool,
        /// TCP port of the store.
        port: u16,
        /// The process that listens on the port, if this user may see it.
        owner: Option<PortOwner>,
        /// The other launcher's node, if its store names it.
        node: Option<Box<NodeName>>,
    },
    /// The host of the endpoint has no address on this machine.
    #[error("cannot find the host `{host}`{} (tried for {})", naming_source(named_by.as_deref()), humantime::format_duration(*waited))]
    NoSuchHost {
        /// Host name from the endpoint.
        host: String,
        /// The option, variable or file key with the name.
        named_by: Option<String>,
        /// How long this node tried to resolve the name.
        waited: Duration,
        /// The resolver's last error.
        source: io::Error,
    },
    /// The store was reached earlier, and is now lost.
    #[error("the rendezvous store at `{endpoint}` is lost")]
    StoreLost {
        /// Host and port of the store.
        endpoint: String,
        /// Error of the last connection.
        source: ClientError,
    },
    /// The store repeatedly closes the connection on the same request.
    #[error(
        "the rendezvous store at `{endpoint}` refuses `{request}` of key `{key}`, which has {}",
        describe_value(value)
    )]
    Refused {
        /// Host and port of the store.
        endpoint: String,
        /// Name of the request in the store's protocol.
        request: &'static str,
        /// Key of the refused request.
        key: String,
        /// The key's value, safe for a terminal; empty if it has none.
        value: String,
        /// Whether no agent can have written the value.
        is_spoiled: bool,
    },
    /// The store at the endpoint is another one than before.
    #[error(
        "the rendezvous store at `{endpoint}` is another one now (`{found}`) than this node has joined (`{joined}`)"
    )]
    AnotherStore {
        /// Host and port of the store.
        endpoint: String,
        /// Identity of the store that this node joined.
        joined: String,
        /// Identity of the present store; empty if it has none.
        found: String,
    },
    /// The value of the state's key is not a state. No part of it was used.
    #[error("the value of `{key}` in the rendezvous store is not the state of a rendezvous")]
    NotAState {
        /// Key with the wrong value.
        key: String,
        /// Why the value is not a state.
        source: StateParseError,
    },
    /// This node has no address to publish.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The `MASTER_ADDR` for the workers is not an address of this machine.
    #[error("cannot find an address of this machine for `{host}`{}", naming_source(named_by.as_deref()))]
    MasterNotLocal {
        /// The host as the user gave it.
        host: String,
        /// The source of the host: an option, a variable, a key of a file.
        named_by: Option<String>,
        /// The error of the name resolver.
        source: io::Error,
    },
    /// The thread for sockets could not be started.
    #[error(transparent)]
    IoThread(#[from] IoThreadError),
    /// A system call failed: listening on a port, or listing the interfaces.
    #[error("cannot {what}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// Another rankrun agent has another version, or belongs to another job.
    #[error("this agent and the one on {node} are not of one job: {mismatch}")]
    Mismatch {
        /// Node of the other agent.
        node: Box<NodeName>,
        /// The setting that differs.
        mismatch: Mismatch,
    },
    /// Two agents of the job have the same node rank.
    #[error("node rank {node_rank} is given twice: to this agent on {ours}, and to the one on {theirs}")]
    SameNodeRank {
        /// The rank that both have.
        node_rank: NodeRank,
        /// Name of this node.
        ours: Box<NodeName>,
        /// Name of the other agent's node.
        theirs: Box<NodeName>,
    },
    /// A member of the round did not publish its part in time.
    #[error("no {what} from {} within {}", join_node_names(nodes), humantime::format_duration(*waited))]
    NoAnswer {
        /// What the member did not publish.
        what: &'static str,
        /// The members that did not publish it.
        nodes: Vec<NodeName>,
        /// How long this node waited.
        waited: Duration,
    },
    /// Some nodes have not reported success, and their liveness is unknown.
    #[error(
        "{left} of {nodes} nodes have not succeeded within {} of this one",
        humantime::format_duration(*waited)
    )]
    NotFinished {
        /// Number of nodes without success.
        left: usize,
        /// Number of nodes in the round.
        nodes: usize,
        /// How long this node waited after its own success.
        waited: Duration,
    },
    /// A member of the round published a malformed text.
    #[error("cannot read {what} that {node} has written")]
    Unreadable {
        /// The kind of text that is malformed.
        what: &'static str,
        /// Node that published the text.
        node: NodeName,
    },
    /// The members have more workers than there are ranks.
    #[error("the nodes have more than {} workers together", u32::MAX)]
    TooManyWorkers,
    /// A torchrun member cannot learn the new address of the workers' store.
    #[error(
        "the workers' store has moved from `{cached}` to `{now}`, and torchrun on {peer} cannot follow: it reads the address only once"
    )]
    MasterMoved {
        /// Name of the torchrun member.
        peer: Box<NodeName>,
        /// The store's address that this member has cached.
        cached: String,
        /// The address, or node, where the store must be now.
        now: String,
    },
    /// A torchrun rank 0 uses a store, and published its address only to other nodes, in an earlier round.
    #[error("torchrun on {node} is rank 0, and does not say where its workers' store is")]
    MasterUnknown {
        /// Name of the torchrun member.
        node: NodeName,
    },
    /// The old keys in a torchrun member's store cannot be deleted.
    #[error("cannot empty the workers' store at `{place}`")]
    NotEmptied {
        /// Address of that store.
        place: String,
        /// Error of the store's client.
        source: ClientError,
    },
    /// This node's store for the workers cannot be opened or emptied.
    #[error(transparent)]
    AgentStore(#[from] StoreError),
    /// No free port for the store of worker rank 0.
    #[error("cannot find a free port for the workers' store")]
    NoPort {
        /// Error of the system call.
        source: io::Error,
    },
}

fn describe_owner(owner: Option<&PortOwner>, node: Option<&NodeName>) -> String {
    let words = [owner.map(ToString::to_string), node.map(|node| format!("on {node}"))];
    let words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

fn naming_source(what: Option<&str>) -> String {
    what.map_or_else(String::new, |what| format!(", which {what} names"))
}

fn describe_value(value: &str) -> String {
    if value.is_empty() { "no value".to_owned() } else { format!("the value `{value}`") }
}

fn describe_missing(missing: &[NodeName]) -> String {
    if missing.is_empty() { String::new() } else { format!(": {} missing", join_node_names(missing)) }
}

fn join_node_names(nodes: &[NodeName]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl RendezvousError {
    /// One action by which the user resolves the error.
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
            Self::MasterNotLocal { .. } => {
                "name this machine, or leave the option out: one node needs no address"
            }
            Self::IoThread(error) => return error.hint(),
            Self::System { source, .. } => return process_limit_hint(source),
            Self::StoreLost { .. } => "the node that hosts the store has gone; start the job again",
            Self::Mismatch { mismatch, .. } => mismatch.hint(),
            Self::SameNodeRank { .. } => "give every node a `--node-rank` of its own",
            Self::NoAnswer { .. } => "is the launcher still running there? Its own messages say more",
            Self::NotFinished { .. } => {
                "with given ranks beside torchrun a node learns of no failure elsewhere: check the output of the other nodes"
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
