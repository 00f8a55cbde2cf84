//! Connections to the other ranks, by which their loss is noticed and a hung call explained: the calls themselves are NCCL's.
//!
//! A message is the header of a call. As a question it is the call that hangs here; the answer is what the other rank calls at
//! its place, or its last call if it has not come so far. A farewell counts the calls that a rank has made.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};
use rankrun_contract::rank::Rank;

use crate::process_group::error::LossCause;
use crate::process_group::message::{Call, HEADER_LEN, Header, Operation};
use crate::process_group::poll::poll;
use crate::process_group::tcp::exchange::rank_at;

const QUESTION: u32 = 0;
const ANSWER: u32 = 1;
/// Most messages of one rank that are read at a time.
const MOST_AT_ONCE: usize = 16;

/// What was heard of another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// It asks what this rank calls at the place of this call.
    Asked(Call),
    /// What it calls there, or its last call; `None` if it has made none.
    Answered(Option<Call>),
    /// It has left after so many calls of the group.
    Left(u64),
    /// It is gone.
    Lost(LossCause),
}

/// Connections by rank; `None` for this rank, and for those that are gone.
#[derive(Debug)]
pub(super) struct Peers {
    all: Vec<Option<Peer>>,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    message: [u8; HEADER_LEN],
    arrived: usize,
}

impl Peers {
    pub(super) fn new(streams: Vec<Option<TcpStream>>) -> Self {
        let peer = |stream| Peer { stream, message: [0; HEADER_LEN], arrived: 0 };
        Self { all: streams.into_iter().map(|stream| stream.map(peer)).collect() }
    }

    /// Waits for news, a ring of `bell`, or the deadline.
    pub(super) fn wait(&self, bell: BorrowedFd<'_>, deadline: Instant) {
        let mut fds = vec![PollFd::new(bell, PollFlags::POLLIN)];
        fds.extend(self.all.iter().flatten().map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN)));
        // It fails only for want of memory, and then the next look comes at once.
        drop(poll(&mut fds, deadline));
    }

    /// What has arrived.
    pub(super) fn news(&mut self) -> Vec<(Rank, News)> {
        let mut all = Vec::new();
        for (index, place) in self.all.iter_mut().enumerate() {
            let rank = rank_at(index);
            for _ in 0..MOST_AT_ONCE {
                let Some(peer) = place else { break };
                let Some(news) = peer.read() else { break };
                // After this nothing more comes.
                if matches!(news, News::Left(_) | News::Lost(_)) {
                    *place = None;
                }
                all.push((rank, news));
            }
        }
        all
    }

    /// Asks all others what they call at the place of `call`; the ranks that were asked.
    pub(super) fn ask(&mut self, call: Call) -> Vec<Rank> {
        let header = Header { call, step: QUESTION, length: 0, previous: None, latest: 0 };
        self.tell_all(&header);
        let there = self.all.iter().enumerate().filter(|(_, peer)| peer.is_some());
        there.map(|(index, _)| rank_at(index)).collect()
    }

    /// Answers a question.
    pub(super) fn answer(&mut self, rank: Rank, call: Option<Call>) {
        let header = Header {
            call: call.unwrap_or(Header::LEAVE.call),
            step: ANSWER,
            length: 0,
            previous: None,
            latest: 0,
        };
        if let Some(peer) = self.all.get_mut(rank.index()).and_then(Option::as_mut) {
            peer.write(&header);
        }
    }

    /// Says that this rank has left after `calls` calls of the group.
    pub(super) fn say_farewell(&mut self, calls: u64) {
        let call = Call { sequence: calls, ..Header::LEAVE.call };
        self.tell_all(&Header { call, ..Header::LEAVE });
    }

    fn tell_all(&mut self, header: &Header) {
        self.all.iter_mut().flatten().for_each(|peer| peer.write(header));
    }

    /// Closes all connections; the other ends notice.
    pub(super) fn close(&mut self) {
        for peer in self.all.drain(..).flatten() {
            // It fails only where nobody is connected any more.
            drop(peer.stream.shutdown(Shutdown::Both));
        }
    }
}

impl Peer {
    /// The next message, once it is complete.
    fn read(&mut self) -> Option<News> {
        while self.arrived < HEADER_LEN {
            match self.stream.read(&mut self.message[self.arrived..]) {
                Ok(0) => return Some(News::Lost(LossCause::Closed)),
                Ok(read) => self.arrived += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Some(News::Lost(error.kind().into())),
            }
        }
        self.arrived = 0;
        Some(meaning(&self.message))
    }

    /// A message is far smaller than what the kernel buffers. Where it does not fit, the rank has not read for long; it will
    /// not answer, which says as much.
    fn write(&mut self, header: &Header) {
        drop(self.stream.write(&header.encode()));
    }
}

fn meaning(message: &[u8; HEADER_LEN]) -> News {
    match Header::decode(message) {
        Some(Header { call, step: ANSWER, .. }) => {
            News::Answered((call.operation != Operation::Leave).then_some(call))
        }
        Some(Header { call, step: QUESTION, .. }) if call.operation == Operation::Leave => {
            News::Left(call.sequence)
        }
        Some(Header { call, step: QUESTION, .. }) => News::Asked(call),
        _ => News::Lost(LossCause::Failed(ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::clock;
    use crate::process_group::element::DataType;

    fn pair() -> (Peers, Peers) {
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
        Call { operation, data_type, reduction: None, root: None, count: 4, sequence }
    }

    /// The next news of the only other rank.
    fn next(peers: &mut Peers) -> News {
        let (bell, _other_end) = nix::unistd::pipe().unwrap();
        loop {
            if let Some((_, news)) = peers.news().pop() {
                return news;
            }
            peers.wait(bell.as_fd(), clock::after(std::time::Duration::from_secs(10)));
        }
    }

    #[test]
    fn a_question_and_its_answers() {
        let (mut one, mut other) = pair();
        assert_eq!(one.ask(call(3)), [Rank(1)]);
        assert_eq!(next(&mut other), News::Asked(call(3)));
        other.answer(Rank(0), Some(call(2)));
        assert_eq!(next(&mut one), News::Answered(Some(call(2))));
        other.answer(Rank(0), None);
        assert_eq!(next(&mut one), News::Answered(None));
    }

    #[test]
    fn a_farewell_is_no_loss() {
        let (mut one, mut other) = pair();
        one.say_farewell(7);
        one.close();
        assert_eq!(next(&mut other), News::Left(7));
        assert!(other.news().is_empty(), "the end of the connection says nothing new");
    }

    #[test]
    fn a_closed_connection_and_garbage_are_losses() {
        let (mut one, mut other) = pair();
        one.close();
        assert_eq!(next(&mut other), News::Lost(LossCause::Closed));
        let (one, mut other) = pair();
        (&one.all[1].as_ref().unwrap().stream).write_all(&[7; HEADER_LEN]).unwrap();
        assert_eq!(next(&mut other), News::Lost(LossCause::Failed(ErrorKind::InvalidData)));
    }
}
