//! Connections to the other ranks. They detect a lost rank and explain a hanging
//! call; NCCL carries the calls themselves.
//!
//! A message is the header of a call. A question holds the hanging call of the sender; the answer holds the
//! other rank's call with that number, else its last call. A leave message counts the calls of its sender.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::Rank;

use crate::process_group::error::LossCause;
use crate::process_group::message::{Call, HEADER_LEN, Header, Operation};
use crate::process_group::poll::poll;
use crate::process_group::tcp::exchange::rank_from_index;

const QUESTION: u32 = 0;
const ANSWER: u32 = 1;
/// Messages of one rank that are read at a time.
const MAX_MESSAGES_PER_READ: usize = 16;

/// An event on the connection to another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PeerEvent {
    /// It asks for this rank's call at the place of this one.
    Question(Call),
    /// Its call at that place, else its last call; `None` if it has made none.
    Answer(Option<Call>),
    /// It left after this number of calls of the group.
    Left(u64),
    /// Its connection closed or failed.
    Lost(LossCause),
}

/// Connections by rank; `None` for this rank and for lost ones.
#[derive(Debug)]
pub(super) struct Peers {
    streams: Vec<Option<PeerStream>>,
}

#[derive(Debug)]
struct PeerStream {
    stream: TcpStream,
    message: [u8; HEADER_LEN],
    received_bytes: usize,
}

impl Peers {
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> Self {
        let peer = |stream| PeerStream { stream, message: [0; HEADER_LEN], received_bytes: 0 };
        Self { streams: streams.into_iter().map(|stream| stream.map(peer)).collect() }
    }

    /// Waits for a message, a write to `wakeup`, or the deadline.
    pub(super) fn wait(&self, wakeup: BorrowedFd<'_>, deadline: Instant) {
        let mut fds = vec![PollFd::new(wakeup, PollFlags::POLLIN)];
        fds.extend(
            self.streams.iter().flatten().map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN)),
        );
        // It fails for want of memory only; the caller polls again at once.
        drop(poll(&mut fds, deadline));
    }

    /// The events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<(Rank, PeerEvent)> {
        let mut all = Vec::new();
        for (index, place) in self.streams.iter_mut().enumerate() {
            let rank = rank_from_index(index);
            for _ in 0..MAX_MESSAGES_PER_READ {
                let Some(peer) = place else { break };
                let Some(event) = peer.read() else { break };
                // Nothing follows this event.
                if matches!(event, PeerEvent::Left(_) | PeerEvent::Lost(_)) {
                    *place = None;
                }
                all.push((rank, event));
            }
        }
        all
    }

    /// Asks all connected ranks for their call at the place of `call`; returns these ranks.
    pub(super) fn ask_for_calls(&mut self, call: Call) -> Vec<Rank> {
        let header = Header { call, step: QUESTION, length: 0, previous_call: None, latest_sequence: 0 };
        self.send_to_all(&header);
        let there = self.streams.iter().enumerate().filter(|(_, peer)| peer.is_some());
        there.map(|(index, _)| rank_from_index(index)).collect()
    }

    /// Answers the question of a rank.
    pub(super) fn answer(&mut self, rank: Rank, call: Option<Call>) {
        let header = Header {
            call: call.unwrap_or(Header::LEAVE.call),
            step: ANSWER,
            length: 0,
            previous_call: None,
            latest_sequence: 0,
        };
        if let Some(peer) = self.streams.get_mut(rank.index()).and_then(Option::as_mut) {
            peer.write(&header);
        }
    }

    /// Tells all ranks that this one leaves after `calls` calls of the group.
    pub(super) fn send_leave(&mut self, calls: u64) {
        let call = Call { sequence: calls, ..Header::LEAVE.call };
        self.send_to_all(&Header { call, ..Header::LEAVE });
    }

    fn send_to_all(&mut self, header: &Header) {
        self.streams.iter_mut().flatten().for_each(|peer| peer.write(header));
    }

    /// Closes all connections; the other ends detect it.
    pub(super) fn close(&mut self) {
        for peer in self.streams.drain(..).flatten() {
            // It fails only if the other end has closed already.
            drop(peer.stream.shutdown(Shutdown::Both));
        }
    }
}

impl PeerStream {
    /// The next complete message.
    fn read(&mut self) -> Option<PeerEvent> {
        while self.received_bytes < HEADER_LEN {
            match self.stream.read(&mut self.message[self.received_bytes..]) {
                Ok(0) => return Some(PeerEvent::Lost(LossCause::Closed)),
                Ok(read) => self.received_bytes += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(PeerEvent::Lost(error.kind().into())),
            }
        }
        self.received_bytes = 0;
        Some(decode_event(&self.message))
    }

    /// Sends one message. It is far smaller than the kernel's buffer; if it does not fit, the other rank has
    /// not read for long and will not answer.
    fn write(&mut self, header: &Header) {
        drop(self.stream.write(&header.encode()));
    }
}

fn decode_event(message: &[u8; HEADER_LEN]) -> PeerEvent {
    match Header::decode(message) {
        Some(Header { call, step: ANSWER, .. }) => {
            PeerEvent::Answer((call.operation != Operation::Leave).then_some(call))
        }
        Some(Header { call, step: QUESTION, .. }) if call.operation == Operation::Leave => {
            PeerEvent::Left(call.sequence)
        }
        Some(Header { call, step: QUESTION, .. }) => PeerEvent::Question(call),
        _ => PeerEvent::Lost(LossCause::ConnectionFailed(ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::clock;
    use crate::process_group::element::DataType;

    fn connected_peers() -> (Peers, Peers) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        for stream in [&one, &other] {
            stream.set_nonblocking(true).unwrap();
        }
        (Peers::new(vec![None, Some(one)]), Peers::new(vec![Some(other), None]))
    }

    fn call(sequence: u64) -> Call {
        let (operation, data_type) = (Operation::AllReduce, DataType::F32);
        Call { operation, data_type, reduce_op: None, root: None, count: 4, sequence }
    }

    /// The next event of the only other rank.
    fn next_event(peers: &mut Peers) -> PeerEvent {
        let (wake_event, _other_end) = nix::unistd::pipe().unwrap();
        loop {
            if let Some((_, event)) = peers.take_events().pop() {
                return event;
            }
            peers.wait(wake_event.as_fd(), clock::after(std::time::Duration::from_secs(10)));
        }
    }

    #[test]
    fn question_gets_answer_with_and_without_call() {
        let (mut one, mut other) = connected_peers();
        assert_eq!(one.ask_for_calls(call(3)), [Rank(1)]);
        assert_eq!(next_event(&mut other), PeerEvent::Question(call(3)));
        other.answer(Rank(0), Some(call(2)));
        assert_eq!(next_event(&mut one), PeerEvent::Answer(Some(call(2))));
        other.answer(Rank(0), None);
        assert_eq!(next_event(&mut one), PeerEvent::Answer(None));
    }

    #[test]
    fn leave_message_is_not_a_loss() {
        let (mut one, mut other) = connected_peers();
        one.send_leave(7);
        one.close();
        assert_eq!(next_event(&mut other), PeerEvent::Left(7));
        assert!(other.take_events().is_empty(), "the end of the connection says nothing new");
    }

    #[test]
    fn connection_closed_or_invalid_message_reports_rank_lost() {
        let (mut one, mut other) = connected_peers();
        one.close();
        assert_eq!(next_event(&mut other), PeerEvent::Lost(LossCause::Closed));
        let (one, mut other) = connected_peers();
        (&one.streams[1].as_ref().unwrap().stream).write_all(&[7; HEADER_LEN]).unwrap();
        assert_eq!(
            next_event(&mut other),
            PeerEvent::Lost(LossCause::ConnectionFailed(ErrorKind::InvalidData))
        );
    }
}
