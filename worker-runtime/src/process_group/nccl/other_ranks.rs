//! The state of the other ranks: lost, left, or still here.

use std::net::TcpStream;

use rankrun_contract::rank::Rank;

use super::peers::{PeerEvent, Peers};
use crate::process_group::error::LossCause;
use crate::process_group::message::Call;

/// The other ranks of a group and their connections.
#[derive(Debug)]
pub(super) struct OtherRanks {
    pub(super) peers: Peers,
    /// Lost ranks, in the order of detection.
    pub(super) lost_ranks: Vec<(Rank, LossCause)>,
    /// Ranks that have left, with their number of calls.
    pub(super) departed_ranks: Vec<(Rank, u64)>,
}

/// A message about a hanging call.
pub(super) enum CallMessage {
    /// Another rank asks for this rank's call at the place of `call`.
    Question(Call),
    /// Its call at the same place as this rank's, else its last call.
    Answer(Option<Call>),
}

impl OtherRanks {
    /// The ranks at the other ends of these connections, by rank.
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> Self {
        Self { peers: Peers::new(streams), lost_ranks: Vec::new(), departed_ranks: Vec::new() }
    }

    /// Reads all messages. Returns those about calls; losses and leaves are kept here.
    pub(super) fn receive_messages(&mut self) -> Vec<(Rank, CallMessage)> {
        let mut about_calls = Vec::new();
        for (rank, event) in self.peers.take_events() {
            match event {
                PeerEvent::Question(call) => about_calls.push((rank, CallMessage::Question(call))),
                PeerEvent::Answer(call) => about_calls.push((rank, CallMessage::Answer(call))),
                PeerEvent::Left(calls) => self.departed_ranks.push((rank, calls)),
                PeerEvent::Lost(cause) => self.lost_ranks.push((rank, cause)),
            }
        }
        about_calls
    }
}
