//! A connection to every other rank, and one exchange of messages over all of them at once.
//!
//! The calling thread waits on all connections together and never blocks on one of them: two ranks that send
//! each other more than the kernel buffers cannot wait for each other, and the loss of any rank is seen while
//! waiting for another one. At most one message goes to a rank and one comes from it per exchange.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use rankrun_contract::rank::Rank;

use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, HEADER_LEN, Header, Operation};

/// How long the farewell may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// One exchange of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) call: Call,
    /// Which one of the call, from 0.
    pub(crate) number: u32,
    pub(crate) deadline: Instant,
    /// What the deadline was made of, for the message.
    pub(crate) timeout: Duration,
}

/// What goes to one rank and what comes from it.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    pub(crate) send: Option<&'a [u8]>,
    pub(crate) receive: Option<&'a mut [u8]>,
}

/// Connections by rank; `None` for this rank.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    peers: Vec<Option<Peer>>,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// The header that comes next, as far as it arrived. It stays here if it belongs to a later exchange.
    header: [u8; HEADER_LEN],
    arrived: usize,
    left: bool,
}

/// One transfer under way.
struct Progress<'a> {
    head: [u8; HEADER_LEN],
    send: Option<&'a [u8]>,
    /// Sent so far, header included.
    sent: usize,
    receive: Option<&'a mut [u8]>,
    /// Received so far, header excluded.
    received: usize,
    /// Whether the header that is there belongs to this exchange.
    accepted: bool,
}

impl Mesh {
    /// Connections by rank, `None` at this rank.
    pub(crate) fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        let peers = streams.into_iter().map(|stream| stream.map(Peer::new).transpose());
        Ok(Self { peers: peers.collect::<io::Result<_>>()? })
    }

    /// The connections by rank, without what of a message has arrived on them.
    #[cfg(feature = "nccl")]
    pub(crate) fn into_streams(self) -> Vec<Option<TcpStream>> {
        self.peers.into_iter().map(|peer| peer.map(|peer| peer.stream)).collect()
    }

    /// Performs all transfers, one for each rank (that of this rank is ignored).
    pub(crate) fn exchange(&mut self, step: &Exchange, transfers: Vec<Transfer<'_>>) -> Result<(), Ending> {
        let mut all: Vec<_> = transfers.into_iter().map(|it| Progress::new(step, it)).collect();
        let mut ready: Vec<usize> = (0..self.peers.len()).collect();
        loop {
            for &rank in &ready {
                if let Some(peer) = &mut self.peers[rank] {
                    peer.advance(step, &mut all[rank]).map_err(|failure| failure.of(rank, step))?;
                }
            }
            let missing = self.peers.iter().zip(&all).position(|(peer, it)| peer.is_some() && !it.is_done());
            let Some(missing) = missing else { return Ok(()) };
            if clock::until(step.deadline).is_zero() {
                // A rank that sends nothing is missed before one that only takes nothing.
                let silent = all.iter().position(Progress::wants_to_receive).unwrap_or(missing);
                let cause = LossCause::Timeout(step.timeout);
                return Err(Ending::Lost { rank: rank_at(silent), cause });
            }
            ready = self.wait(&all, step.deadline).map_err(|error| Failure::from(error).of(missing, step))?;
        }
    }

    /// The ranks with news; none if the deadline passed first.
    fn wait(&self, all: &[Progress<'_>], deadline: Instant) -> io::Result<Vec<usize>> {
        let (mut ranks, mut fds) = (Vec::new(), Vec::new());
        for (rank, (peer, progress)) in self.peers.iter().zip(all).enumerate() {
            let Some(peer) = peer else { continue };
            let events = peer.events(progress);
            if !events.is_empty() {
                ranks.push(rank);
                fds.push(PollFd::new(peer.stream.as_fd(), events));
            }
        }
        poll(&mut fds, deadline)?;
        let news = |fd: &PollFd<'_>| fd.revents().is_none_or(|events| !events.is_empty());
        Ok(ranks.into_iter().zip(&fds).filter(|(_, fd)| news(fd)).map(|(rank, _)| rank).collect())
    }

    /// Tells all ranks that this one needs nothing more from them.
    pub(crate) fn leave(&mut self) {
        let deadline = clock::after(LEAVE_TIMEOUT);
        for peer in self.peers.iter_mut().flatten().filter(|peer| !peer.left) {
            peer.say_farewell(deadline);
        }
    }

    /// Closes all connections; the other ends notice.
    pub(crate) fn close(&mut self) {
        for peer in self.peers.iter().flatten() {
            // It fails only where nobody is connected any more.
            drop(peer.stream.shutdown(Shutdown::Both));
        }
    }
}

/// Why the connection to one rank is of no further use.
enum Failure {
    Lost(LossCause),
    Mismatch(Option<Header>),
}

impl Failure {
    fn of(self, rank: usize, step: &Exchange) -> Ending {
        let rank = rank_at(rank);
        match self {
            Self::Lost(cause) => Ending::Lost { rank, cause },
            Self::Mismatch(theirs) => {
                let theirs = theirs.map(|header| Box::new(header.call));
                Ending::Mismatch { rank, theirs, ours: Box::new(step.call) }
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind().into())
    }
}

impl Peer {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, header: [0; HEADER_LEN], arrived: 0, left: false })
    }

    /// What must happen on the connection before anything more can be done.
    fn events(&self, progress: &Progress<'_>) -> PollFlags {
        let mut events = PollFlags::empty();
        // A whole header that does not belong to this exchange is kept for a later one.
        let reads = if progress.accepted { progress.wants_to_receive() } else { self.arrived < HEADER_LEN };
        events.set(PollFlags::POLLIN, !self.left && reads);
        events.set(PollFlags::POLLOUT, progress.wants_to_send());
        events
    }

    /// Sends and receives what is possible without waiting.
    fn advance(&mut self, step: &Exchange, progress: &mut Progress<'_>) -> Result<(), Failure> {
        if !self.left {
            self.receive(step, progress)?;
        }
        if self.left && !progress.is_done() {
            return Err(Failure::Lost(LossCause::Left));
        }
        self.send(progress)
    }

    fn send(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        while let Some(payload) = progress.send.filter(|_| progress.wants_to_send()) {
            let head = &progress.head[progress.sent.min(HEADER_LEN)..];
            let body = &payload[progress.sent.saturating_sub(HEADER_LEN)..];
            match self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Err(Failure::Lost(LossCause::Closed)),
                Ok(written) => progress.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, step: &Exchange, progress: &mut Progress<'_>) -> Result<(), Failure> {
        loop {
            if !progress.accepted && self.arrived == HEADER_LEN {
                match self.judge_header(step, progress)? {
                    Judgement::Now => progress.accepted = true,
                    Judgement::Later => return Ok(()),
                    Judgement::Left => {
                        self.left = true;
                        return Ok(());
                    }
                }
            }
            if progress.accepted && !progress.wants_to_receive() {
                self.arrived = 0;
                progress.accepted = false;
                progress.receive = None;
                // What follows, be it the end, is looked at only while this exchange waits for others: a
                // complete message is good although its rank may be gone.
                return Ok(());
            }
            let target = match &mut progress.receive {
                Some(payload) if progress.accepted => &mut payload[progress.received..],
                _ => &mut self.header[self.arrived..],
            };
            match self.stream.read(target) {
                Ok(0) => return Err(Failure::Lost(LossCause::Closed)),
                Ok(read) if progress.accepted => progress.received += read,
                Ok(read) => self.arrived += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn judge_header(&self, step: &Exchange, progress: &Progress<'_>) -> Result<Judgement, Failure> {
        let header = Header::decode(&self.header).ok_or(Failure::Mismatch(None))?;
        let length = progress.receive.as_ref().map(|payload| payload.len() as u64);
        let expected = |length| Header { call: step.call, step: step.number, length };
        let is_ahead = (header.call.sequence, header.step) > (step.call.sequence, step.number);
        match length {
            _ if header == Header::LEAVE => Ok(Judgement::Left),
            Some(length) if header == expected(length) => Ok(Judgement::Now),
            // What one rank sends to another lies there until it is received.
            None if is_ahead || header.call.operation == Operation::Send => Ok(Judgement::Later),
            _ => Err(Failure::Mismatch(Some(header))),
        }
    }

    fn say_farewell(&mut self, deadline: Instant) {
        let bytes = Header::LEAVE.encode();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return,
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
                    // Without a farewell the others take this rank for lost, which is true enough.
                    if !matches!(poll(&mut fds, deadline), Ok(1..)) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

/// What to do with a header.
enum Judgement {
    Now,
    Later,
    Left,
}

impl<'a> Progress<'a> {
    fn new(step: &Exchange, transfer: Transfer<'a>) -> Self {
        let length = transfer.send.map_or(0, |payload| payload.len() as u64);
        let head = Header { call: step.call, step: step.number, length }.encode();
        let Transfer { send, receive } = transfer;
        Self { head, send, sent: 0, receive, received: 0, accepted: false }
    }

    fn wants_to_send(&self) -> bool {
        self.send.is_some_and(|payload| self.sent < HEADER_LEN + payload.len())
    }

    fn wants_to_receive(&self) -> bool {
        self.receive.as_ref().is_some_and(|payload| !self.accepted || self.received < payload.len())
    }

    fn is_done(&self) -> bool {
        !self.wants_to_send() && !self.wants_to_receive()
    }
}

/// Waits for news until the deadline; how many have some.
pub(crate) fn poll(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<i32> {
    loop {
        let remaining = clock::until(deadline);
        // Rounded up: a timeout of zero milliseconds would spin through the last one.
        let milliseconds = remaining.as_nanos().div_ceil(1_000_000);
        let timeout = i32::try_from(milliseconds).unwrap_or(i32::MAX);
        match nix::poll::poll(fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if !remaining.is_zero() => {}
            Ok(ready) => return Ok(ready),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn rank_at(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}
