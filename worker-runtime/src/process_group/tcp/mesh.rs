//! The connections to all other ranks, and one step of a call over all of them at once.
//!
//! The calling thread waits on all connections together and never blocks on one of them: two ranks that send
//! each other more than the kernel buffers do not deadlock, and the loss of any rank is detected while
//! waiting for another. Per step at most one message goes to a rank and one comes from it.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::poll::PollFd;
use rankrun_contract::rank::Rank;

use super::exchange::{Exchange, Swap, Transfer, rank_from_index};
use super::judge::{self, CallHistory};
use super::peer::{Peer, PeerFailure};
use super::progress::TransferProgress;
use super::wait_policy::{NextStep, TransferStatus, WaitPolicy};
use crate::clock;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::fork::ParentFds;
use crate::process_group::message::{Call, Header, Operation};
use crate::process_group::poll::poll;
use crate::process_group::transport::{Step, TransportProbe};

/// Time limit of the leave messages.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rank with a processor of its own polls before it sleeps: longer than a message takes
/// between hosts that are in the same call. A sleep and a wake-up take 10 µs at best, and whole scheduler
/// ticks if another program gets the processor.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Received bytes that are folded at once, while they are in the cache. A multiple of every element size.
const FOLD_PIECE_BYTES: usize = 128 * 1024;

/// Connections by rank; `None` for this rank.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    /// First field: dropped before the connections.
    _parent_fds: ParentFds,
    peers: Vec<Option<Peer>>,
    calls: CallHistory,
    /// Another part of the transport, to check while nothing arrives.
    probe: Option<Box<dyn TransportProbe>>,
    /// How long a rank polls after the latest arrival, before it sleeps.
    spin: Duration,
    /// Received bytes that are not folded yet.
    receive_buffer: Vec<u8>,
}

impl Mesh {
    /// Connections by rank, `None` at this rank.
    pub(crate) fn new(streams: Vec<Option<TcpStream>>) -> io::Result<Self> {
        let parent_fds = ParentFds::new(streams.iter().flatten());
        let peers = streams.into_iter().map(|stream| stream.map(Peer::new).transpose());
        let peers = peers.collect::<io::Result<_>>()?;
        Ok(Self { _parent_fds: parent_fds, peers, ..Self::default() })
    }

    /// Checks another part of the transport while this rank waits here.
    pub(crate) fn set_probe(&mut self, probe: Box<dyn TransportProbe>) {
        self.probe = Some(probe);
    }

    /// Polls for a while before sleeping; for ranks with a processor of their own only.
    pub(crate) fn with_spinning(self) -> Self {
        Self { spin: SPIN_TIME, ..self }
    }

    /// Notes that this rank makes the call.
    pub(crate) fn record_call(&mut self, call: Call) {
        self.calls.record(call);
    }

    /// Performs all transfers, one for each rank; the one of this rank is ignored.
    pub(crate) fn exchange(
        &mut self,
        step: &Exchange,
        transfers: Vec<Transfer<'_>>,
    ) -> Result<(), GroupFailure> {
        self.calls.record(step.call);
        let calls = &self.calls;
        let progress =
            transfers.into_iter().map(|transfer| TransferProgress::new((step, calls), transfer)).collect();
        self.run_transfers(step, progress)
    }

    /// Exchanges data with one other rank, which does the same.
    pub(crate) fn swap(&mut self, step: &Exchange, other: Rank, swap: Swap<'_>) -> Result<(), GroupFailure> {
        self.calls.record(step.call);
        let mut arrivals = std::mem::take(&mut self.receive_buffer);
        arrivals.resize(FOLD_PIECE_BYTES, 0);
        let calls = &self.calls;
        let nothing = || TransferProgress::new((step, calls), Transfer::default());
        let mut progress: Vec<_> = self.peers.iter().map(|_| nothing()).collect();
        progress[other.index()] = TransferProgress::swap((step, calls), swap, &mut arrivals);
        let result = self.run_transfers(step, progress);
        self.receive_buffer = arrivals;
        result
    }

    fn run_transfers(
        &mut self,
        step: &Exchange,
        mut progress: Vec<TransferProgress<'_>>,
    ) -> Result<(), GroupFailure> {
        let mut ready: Vec<usize> = (0..self.peers.len()).collect();
        let mut wait_policy = WaitPolicy::new(clock::now(), step.deadline, self.spin);
        let mut has_waited = false;
        loop {
            let is_quiet = ready.is_empty();
            let mut loss = self.advance(step, &mut progress, ready)?;
            if is_quiet && let Some(probe) = &mut self.probe {
                loss = probe.check(&step.as_step()).err();
            }
            if let Some(loss) = loss {
                if !has_waited {
                    // The rank was gone before this call.
                    return Err(loss);
                }
                // Data of the others may have arrived before the loss: the call succeeds if they have done
                // their parts.
                self.advance(step, &mut progress, 0..self.peers.len())?;
                wait_policy.record_loss(clock::now(), loss);
            }
            has_waited = true;
            let missing = self
                .peers
                .iter()
                .zip(&progress)
                .position(|(peer, transfer)| peer.is_some() && !transfer.is_done());
            let Some(missing) = missing else { return Ok(()) };
            ready = self.wait_for(missing, &mut wait_policy, (step, &progress))?;
        }
    }

    /// Waits for events as the policy permits; returns the ranks that may have some.
    fn wait_for(
        &mut self,
        missing: usize,
        wait_policy: &mut WaitPolicy,
        (step, progress): (&Exchange, &[TransferProgress<'_>]),
    ) -> Result<Vec<usize>, GroupFailure> {
        let status = TransferStatus {
            transferred_bytes: progress.iter().map(TransferProgress::transferred_bytes).sum(),
            cannot_complete: progress.iter().any(TransferProgress::cannot_complete),
            has_probe: self.probe.is_some(),
        };
        loop {
            match wait_policy.next_step(clock::now(), status) {
                NextStep::End(failure) => return Err(failure),
                NextStep::TimeOut => {
                    // A rank that sends nothing is named before one that only does not read.
                    let silent =
                        progress.iter().position(TransferProgress::wants_to_receive).unwrap_or(missing);
                    let cause = LossCause::Timeout(step.timeout);
                    return Err(GroupFailure::Lost { rank: rank_from_index(silent), cause });
                }
                NextStep::GiveNotice => self.send_notices(step.call, progress),
                NextStep::Spin => {
                    std::hint::spin_loop();
                    return Ok((0..self.peers.len()).collect());
                }
                NextStep::Sleep { until } => {
                    let ready = self.poll_peers(progress, until);
                    return ready.map_err(|error| PeerFailure::from(error).into_group_failure(missing));
                }
            }
        }
    }

    /// Reads the messages of the other ranks, while this rank waits in another part of the transport.
    pub(crate) fn read_messages(
        &mut self,
        &Step { call, deadline, timeout }: &Step,
    ) -> Result<(), GroupFailure> {
        let step = Exchange { call, number: judge::BETWEEN_STEPS, deadline, timeout };
        let calls = &self.calls;
        let nothing = |_: &_| TransferProgress::new((&step, calls), Transfer::default());
        let mut all: Vec<_> = self.peers.iter().map(nothing).collect();
        // It fails for want of memory only; the next call tries again.
        let mut ready = self.poll_peers(&all, clock::after(Duration::ZERO)).unwrap_or_default();
        let keeps = |rank: &usize| self.peers[*rank].as_ref().is_some_and(Peer::has_complete_header);
        ready.extend((0..self.peers.len()).filter(keeps));
        self.advance(&step, &mut all, ready)?.map_or(Ok(()), Err)
    }

    /// Sends and receives without waiting, with these ranks. Returns the loss of one of them, which may have
    /// done its part before. A different call is an error at once.
    fn advance(
        &mut self,
        step: &Exchange,
        all: &mut [TransferProgress<'_>],
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<Option<GroupFailure>, GroupFailure> {
        let mut loss = None;
        for rank in ranks {
            let Some(peer) = &mut self.peers[rank] else { continue };
            match peer
                .advance((step, &self.calls), &mut all[rank])
                .map_err(|failure| failure.into_group_failure(rank))
            {
                Err(failure @ GroupFailure::Lost { .. }) => drop(loss.get_or_insert(failure)),
                result => result?,
            }
        }
        Ok(loss)
    }

    /// Sends a notice to ranks from which this one waits for a message, and which
    /// hear nothing of this call otherwise.
    fn send_notices(&mut self, call: Call, all: &[TransferProgress<'_>]) {
        for ((peer, progress), rank) in self.peers.iter_mut().zip(all).zip(0..) {
            let Some(peer) = peer.as_mut().filter(|_| progress.is_only_waiting()) else { continue };
            let call = match call.operation {
                Operation::Send => Call { operation: Operation::Receive, root: Some(Rank(rank)), ..call },
                _ => call,
            };
            peer.queue_notice(judge::notice_header(call, &self.calls));
        }
    }

    /// The ranks with events; none after the deadline.
    fn poll_peers(&self, transfers: &[TransferProgress<'_>], deadline: Instant) -> io::Result<Vec<usize>> {
        let (mut ranks, mut fds) = (Vec::new(), Vec::new());
        for (rank, (peer, progress)) in self.peers.iter().zip(transfers).enumerate() {
            let Some(peer) = peer else { continue };
            let events = peer.events(progress);
            if !events.is_empty() {
                ranks.push(rank);
                fds.push(PollFd::new(peer.as_fd(), events));
            }
        }
        poll(&mut fds, deadline)?;
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_none_or(|events| !events.is_empty());
        Ok(ranks.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd)).map(|(rank, _)| rank).collect())
    }

    /// Tells all ranks that this one makes no more calls.
    pub(crate) fn leave(&mut self) {
        let deadline = clock::after(LEAVE_TIMEOUT);
        for peer in self.peers.iter_mut().flatten() {
            peer.queue_header(Header::LEAVE);
            peer.flush_until(deadline);
        }
    }

    /// Closes all connections; the other ends detect it.
    pub(crate) fn close(&mut self) {
        self.peers.iter().flatten().for_each(Peer::close);
    }
}

#[cfg(test)]
mod tests;
