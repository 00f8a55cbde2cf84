//! A connection to every other rank, and one exchange of messages over all of them at once.
//!
//! The calling thread waits on all connections together and never blocks on one of them: two ranks that send
//! each other more than the kernel buffers cannot wait for each other, and the loss of any rank is seen while
//! waiting for another one. At most one message goes to a rank and one comes from it per exchange.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::poll::PollFd;
use rankrun_contract::rank::Rank;

use super::exchange::{Exchange, Swap, Transfer, rank_at};
use super::judge::{self, Calls};
use super::patience::{Next, Patience, Seen};
use super::peer::{Failure, Peer};
use super::progress::Progress;
use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::fork::Unshared;
use crate::process_group::message::{Call, Header, Operation};
use crate::process_group::poll::poll;
use crate::process_group::transport::{Outlook, Step};

/// How long the farewell may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rank with a processor of its own looks for news before it sleeps: longer than news take between hosts that are at the
/// same call. To sleep and wake takes some 10 µs at best, and whole ticks of the clock where another program has the processor then.
const SPIN: Duration = Duration::from_micros(200);

/// Bytes that have come and are folded at once: they are still in the processor's cache. A whole number of any elements.
const PIECE: usize = 128 * 1024;

/// Connections by rank; `None` for this rank.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    /// It goes before them.
    _unshared: Unshared,
    peers: Vec<Option<Peer>>,
    calls: Calls,
    /// What else is asked while nothing comes.
    outlook: Option<Box<dyn Outlook>>,
    /// How long a rank looks for news, after the last ones, before it sleeps.
    spin: Duration,
    /// For what has come and is to be folded.
    arrivals: Vec<u8>,
}

impl Mesh {
    /// Connections by rank, `None` at this rank.
    pub(crate) fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        let unshared = Unshared::new(streams.iter().flatten());
        let peers = streams.into_iter().map(|stream| stream.map(Peer::new).transpose());
        let peers = peers.collect::<io::Result<_>>()?;
        Ok(Self { _unshared: unshared, peers, ..Self::default() })
    }

    /// Has this rank look there, too, while it waits.
    pub(crate) fn look_at(&mut self, outlook: Box<dyn Outlook>) {
        self.outlook = Some(outlook);
    }

    /// Has this rank look for news a while before it sleeps: only where no other one needs its processor.
    pub(crate) fn spinning(self) -> Self {
        Self { spin: SPIN, ..self }
    }

    /// This rank makes the call.
    pub(crate) fn note(&mut self, call: Call) {
        self.calls.note(call);
    }

    /// Performs all transfers, one for each rank (that of this rank is ignored).
    pub(crate) fn exchange(&mut self, step: &Exchange, transfers: Vec<Transfer<'_>>) -> Result<(), Ending> {
        self.calls.note(step.call);
        let calls = &self.calls;
        let all = transfers.into_iter().map(|it| Progress::new((step, calls), it)).collect();
        self.carry(step, all)
    }

    /// Swaps data with one other rank, which does the same.
    pub(crate) fn swap(&mut self, step: &Exchange, other: Rank, swap: Swap<'_>) -> Result<(), Ending> {
        self.calls.note(step.call);
        let mut arrivals = std::mem::take(&mut self.arrivals);
        arrivals.resize(PIECE, 0);
        let calls = &self.calls;
        let nothing = || Progress::new((step, calls), Transfer::default());
        let mut all: Vec<_> = self.peers.iter().map(|_| nothing()).collect();
        all[other.index()] = Progress::swap((step, calls), swap, &mut arrivals);
        let result = self.carry(step, all);
        self.arrivals = arrivals;
        result
    }

    fn carry(&mut self, step: &Exchange, mut all: Vec<Progress<'_>>) -> Result<(), Ending> {
        let mut ready: Vec<usize> = (0..self.peers.len()).collect();
        let mut patience = Patience::new(clock::now(), step.deadline, self.spin);
        let mut has_waited = false;
        loop {
            let is_quiet = ready.is_empty();
            let mut loss = self.advance(step, &mut all, ready)?;
            if is_quiet && let Some(outlook) = &mut self.outlook {
                loss = outlook.look(&step.step()).err();
            }
            if let Some(loss) = loss {
                if !has_waited {
                    // It was gone before this call.
                    return Err(loss);
                }
                // The others may have been quicker than its end: this call is good if they have done their parts.
                self.advance(step, &mut all, 0..self.peers.len())?;
                patience.lose(clock::now(), loss);
            }
            has_waited = true;
            let missing = self.peers.iter().zip(&all).position(|(peer, it)| peer.is_some() && !it.is_done());
            let Some(missing) = missing else { return Ok(()) };
            ready = self.wait_for(missing, &mut patience, (step, &all))?;
        }
    }

    /// Waits for news as long as there is patience for it; the ranks that may have some, or none.
    fn wait_for(
        &mut self,
        missing: usize,
        patience: &mut Patience,
        (step, all): (&Exchange, &[Progress<'_>]),
    ) -> Result<Vec<usize>, Ending> {
        let seen = Seen {
            moved: all.iter().map(Progress::moved).sum(),
            is_hopeless: all.iter().any(Progress::is_hopeless),
            has_outlook: self.outlook.is_some(),
        };
        loop {
            match patience.next(clock::now(), seen) {
                Next::End(ending) => return Err(ending),
                Next::TimeOut => {
                    // A rank that sends nothing is missed before one that only takes nothing.
                    let silent = all.iter().position(Progress::wants_to_receive).unwrap_or(missing);
                    let cause = LossCause::Timeout(step.timeout);
                    return Err(Ending::Lost { rank: rank_at(silent), cause });
                }
                Next::GiveNotice => self.give_notice(step.call, all),
                Next::Spin => {
                    std::hint::spin_loop();
                    return Ok((0..self.peers.len()).collect());
                }
                Next::Sleep { until } => {
                    let news = self.wait(all, until);
                    return news.map_err(|error| Failure::from(error).of(missing));
                }
            }
        }
    }

    /// Hears what the others have said so far to this rank, which waits for something else in this call.
    pub(crate) fn listen(&mut self, &Step { call, deadline, timeout }: &Step) -> Result<(), Ending> {
        let step = Exchange { call, number: judge::BETWEEN, deadline, timeout };
        let calls = &self.calls;
        let nothing = |_: &_| Progress::new((&step, calls), Transfer::default());
        let mut all: Vec<_> = self.peers.iter().map(nothing).collect();
        // It fails for want of memory, and it may be there later.
        let mut ready = self.wait(&all, clock::after(Duration::ZERO)).unwrap_or_default();
        let keeps = |rank: &usize| self.peers[*rank].as_ref().is_some_and(Peer::keeps);
        ready.extend((0..self.peers.len()).filter(keeps));
        self.advance(&step, &mut all, ready)?.map_or(Ok(()), Err)
    }

    /// Sends and receives what is possible without waiting with these ranks; the loss of one of them, which may have done its
    /// part before. Another call than ours is an error at once.
    fn advance(
        &mut self,
        step: &Exchange,
        all: &mut [Progress<'_>],
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<Option<Ending>, Ending> {
        let mut loss = None;
        for rank in ranks {
            let Some(peer) = &mut self.peers[rank] else { continue };
            match peer.advance((step, &self.calls), &mut all[rank]).map_err(|failure| failure.of(rank)) {
                Err(ending @ Ending::Lost { .. }) => drop(loss.get_or_insert(ending)),
                result => result?,
            }
        }
        Ok(loss)
    }

    /// Tells those from which something is to come, and which hear nothing of this call otherwise, that they are waited for.
    fn give_notice(&mut self, call: Call, all: &[Progress<'_>]) {
        for ((peer, progress), rank) in self.peers.iter_mut().zip(all).zip(0..) {
            let Some(peer) = peer.as_mut().filter(|_| progress.only_waits()) else { continue };
            let call = match call.operation {
                Operation::Send => Call { operation: Operation::Receive, root: Some(Rank(rank)), ..call },
                _ => call,
            };
            peer.notify(judge::notice(call, &self.calls));
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
                fds.push(PollFd::new(peer.as_fd(), events));
            }
        }
        poll(&mut fds, deadline)?;
        let news = |fd: &PollFd<'_>| fd.revents().is_none_or(|events| !events.is_empty());
        Ok(ranks.into_iter().zip(&fds).filter(|(_, fd)| news(fd)).map(|(rank, _)| rank).collect())
    }

    /// Tells all ranks that this one needs nothing more from them.
    pub(crate) fn leave(&mut self) {
        let deadline = clock::after(LEAVE_TIMEOUT);
        for peer in self.peers.iter_mut().flatten() {
            peer.say(Header::LEAVE);
            peer.say_all(deadline);
        }
    }

    /// Closes all connections; the other ends notice.
    pub(crate) fn close(&mut self) {
        self.peers.iter().flatten().for_each(Peer::close);
    }
}

#[cfg(test)]
mod tests;
