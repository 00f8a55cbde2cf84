//! The rules of a rendezvous: which nodes take part, in which order, and the texts that agents write for each other in
//! the store. The crate `rankrun-host` owns the connections. It reads the shared state, asks `round` what follows, and
//! writes the answer back. A complete round goes to the agent.

pub mod descriptor;
pub mod failure_detector;
pub(crate) mod joined_round;
pub mod keys;
pub mod lease_deadlines;
pub mod lost_node_deadline;
pub(crate) mod membership;
pub mod message;
pub(crate) mod node_name;
pub mod note;
pub mod pickle;
pub mod ranks;
pub mod ranks_text;
pub mod roles;
pub mod round;
#[cfg(test)]
mod simulation;
pub mod state;
pub mod text;
pub mod torchrun_compat;

pub use joined_round::{Member, Round};
pub use membership::{LossRole, LostNode, MembershipChange};
pub use message::{
    RendezvousCommand, RendezvousEnd, RendezvousFailure, ShutdownKind, WaitReason, WaitStatus,
};
pub use node_name::NodeName;
pub use note::{FailureNote, PeerLoss, WorkerFailure};
