//! What is known of the other ranks: who is gone, and who has left.

use std::net::TcpStream;

use rankrun_contract::rank::Rank;

use super::peers::{News, Peers};
use crate::process_group::error::LossCause;
use crate::process_group::message::Call;

/// The other ranks of a group.
#[derive(Debug)]
pub(super) struct Others {
    pub(super) peers: Peers,
    /// Ranks that are gone, in the order in which it was noticed.
    pub(super) lost: Vec<(Rank, LossCause)>,
    /// Ranks that have left, after so many calls.
    pub(super) left: Vec<(Rank, u64)>,
}

/// What another rank says about a call that hangs.
pub(super) enum Said {
    /// Here: what does this rank call at the place of this one?
    Asked(Call),
    /// At this rank: what the other one calls there, or its last call.
    Answered(Option<Call>),
}

impl Others {
    /// Those behind these connections, by rank.
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> Self {
        Self { peers: Peers::new(streams), lost: Vec::new(), left: Vec::new() }
    }

    /// Takes in what has arrived; what is about calls is the caller's.
    pub(super) fn hear(&mut self) -> Vec<(Rank, Said)> {
        let mut about_calls = Vec::new();
        for (rank, news) in self.peers.news() {
            match news {
                News::Asked(call) => about_calls.push((rank, Said::Asked(call))),
                News::Answered(call) => about_calls.push((rank, Said::Answered(call))),
                News::Left(calls) => self.left.push((rank, calls)),
                News::Lost(cause) => self.lost.push((rank, cause)),
            }
        }
        about_calls
    }
}
