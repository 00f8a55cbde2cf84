//! The rules of a rendezvous: which nodes take part, in which order, and what the agents write for each other. The
//! connections are in the crate `rankrun-host`.

pub mod descriptor;
pub mod failure_detector;
pub(crate) mod joined_round;
pub mod keys;
pub mod lease_deadlines;
pub mod lost_node_deadline;
pub mod membership;
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
