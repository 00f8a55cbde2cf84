//! A connection to every other rank, and one exchange of messages over all of them at once.
//!
//! The calling thread waits on all connections together and never blocks on one of them: two ranks that send
//! each other more than the kernel buffers cannot wait for each other, and the loss of any rank is seen while
//! waiting for another one. At most one message goes to a rank and one comes from it per exchange.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout};
use rankrun_contract::rank::Rank;

use super::judge::{self, Calls};
use super::peer::{Failure, Peer, Progress};
use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::fork::Unshared;
use crate::process_group::message::{Call, Header, Operation};
use crate::process_group::transport::{Outlook, Step};

/// How long the farewell may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rank waits for another one before it says for which call. Long enough that it is not said in a job that gets on, and
/// short to a person.
const NOTICE_AFTER: Duration = Duration::from_millis(100);

/// How long nothing comes before a rank asks what else may have happened.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a rank still waits for the parts of others when one is gone that has done its own. That one may have gone on to a call in
/// which the group ended: then this call is as good as complete, and what is missing is under way. Short against the second in which
/// every rank is to hear of a loss.
const GRACE: Duration = Duration::from_millis(200);

/// How long a rank with a processor of its own looks for news before it sleeps: longer than news take between hosts that are at the
/// same call. To sleep and wake takes some 10 µs at best, and whole ticks of the clock where another program has the processor then.
const SPIN: Duration = Duration::from_micros(200);

/// Bytes that have come and are folded at once: they are still in the processor's cache. A whole number of any elements.
const PIECE: usize = 128 * 1024;

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

impl Exchange {
    fn step(&self) -> Step {
        let Self { call, deadline, timeout, .. } = *self;
        Step { call, deadline, timeout }
    }
}

/// What goes to one rank and what comes from it.
#[derive(Default)]
pub(crate) struct Transfer<'a> {
    pub(crate) send: Option<&'a [u8]>,
    pub(crate) receive: Option<&'a mut [u8]>,
}

/// Two ranks send each other as much, and each folds what comes into what it has sent.
pub(crate) struct Swap<'a> {
    pub(crate) data: &'a mut [u8],
    /// Folds what has come, a piece of whole elements, into its place in the data.
    pub(crate) fold: &'a dyn Fn(&mut [u8], &[u8]),
}

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
        let mut notice_at = Some(clock::after(NOTICE_AFTER).min(step.deadline));
        let mut has_waited = false;
        let mut ended: Option<(Ending, Instant)> = None;
        let (mut moved, mut spins_until) = (0, clock::after(self.spin));
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
                ended.get_or_insert_with(|| (loss, clock::after(GRACE).min(step.deadline)));
            }
            has_waited = true;
            let missing = self.peers.iter().zip(&all).position(|(peer, it)| peer.is_some() && !it.is_done());
            let Some(missing) = missing else { return Ok(()) };
            if let Some((ending, until)) = &ended
                && (clock::until(*until).is_zero() || all.iter().any(Progress::is_hopeless))
            {
                return Err(ending.clone());
            }
            if clock::until(step.deadline).is_zero() {
                // A rank that sends nothing is missed before one that only takes nothing.
                let silent = all.iter().position(Progress::wants_to_receive).unwrap_or(missing);
                let cause = LossCause::Timeout(step.timeout);
                return Err(Ending::Lost { rank: rank_at(silent), cause });
            }
            if notice_at.is_some_and(|at| clock::until(at).is_zero()) {
                notice_at = None;
                self.give_notice(step.call, &all);
            }
            if !self.spin.is_zero() {
                let now = all.iter().map(Progress::moved).sum();
                if moved != now {
                    (moved, spins_until) = (now, clock::after(self.spin));
                }
                if !clock::until(spins_until).is_zero() {
                    std::hint::spin_loop();
                    ready = (0..self.peers.len()).collect();
                    continue;
                }
            }
            let gives_up = ended.as_ref().map_or(step.deadline, |&(_, until)| until);
            let until = notice_at.unwrap_or(step.deadline).min(gives_up);
            let look_at = self.outlook.as_ref().map(|_| clock::after(LOOK_EVERY));
            let news = self.wait(&all, look_at.map_or(until, |at| at.min(until)));
            ready = news.map_err(|error| Failure::from(error).of(missing))?;
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::process_group::element::DataType;
    use crate::process_group::message::HEADER_LEN;

    fn call(operation: Operation, root: u32) -> Call {
        let root = Some(Rank(root));
        Call { operation, data_type: DataType::U8, reduction: None, root, count: 4, sequence: 1 }
    }

    /// Rank 0, which receives four bytes in this call, and the other end of its connection.
    fn waiting(call: Call, other: impl FnOnce(&mut TcpStream)) -> (Result<(), Ending>, [u8; 4]) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut mesh = Mesh::new(vec![None, Some(listener.accept().unwrap().0)]).unwrap();
        let timeout = Duration::from_secs(60);
        let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
        let mut data = [0; 4];
        let ended = std::thread::scope(|scope| {
            let transfers = vec![Transfer::default(), Transfer { send: None, receive: Some(&mut data) }];
            let waits = scope.spawn(move || {
                let ended = mesh.exchange(&step, transfers);
                mesh.close();
                ended
            });
            other(&mut stream);
            waits.join().unwrap()
        });
        (ended, data)
    }

    fn notice_of(stream: &mut TcpStream) -> Call {
        let mut bytes = [0; HEADER_LEN];
        stream.read_exact(&mut bytes).unwrap();
        let header = Header::decode(&bytes).unwrap();
        assert_eq!((header.step, header.length), (judge::NOTICE, 0));
        header.call
    }

    #[test]
    fn a_rank_says_for_which_call_it_waits_and_is_served_in_the_end() {
        for operation in [Operation::Broadcast, Operation::Send] {
            let call = call(operation, if operation == Operation::Send { 0 } else { 1 });
            let (ended, data) = waiting(call, |stream| {
                let said = notice_of(stream);
                let expected = if operation == Operation::Send { Operation::Receive } else { operation };
                assert_eq!((said.operation, said.root), (expected, Some(Rank(1))));
                let header = Header { call, step: 0, length: 4, previous: None, latest: 0 };
                stream.write_all(&[&header.encode()[..], b"data"].concat()).unwrap();
            });
            assert_eq!((ended, &data), (Ok(()), b"data"));
        }
    }

    #[test]
    fn two_ranks_that_both_only_receive_find_out() {
        let (ours, theirs) = (call(Operation::Reduce, 0), call(Operation::Reduce, 1));
        let (ended, _) = waiting(ours, |stream| {
            stream.write_all(&judge::notice(theirs, &Calls::default()).encode()).unwrap();
            // It stays open until the other end has made up its mind.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        let (theirs, ours) = (Some(Box::new(theirs)), Box::new(ours));
        assert_eq!(ended, Err(Ending::Mismatch { rank: Rank(1), theirs, ours }));
    }

    /// Two ranks that are connected.
    fn pair() -> [Mesh; 2] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        [Mesh::new(vec![None, Some(stream)]).unwrap(), Mesh::new(vec![Some(other), None]).unwrap()]
    }

    #[test]
    fn what_two_ranks_swap_is_what_each_had_before_it_was_folded() {
        // Nothing, less than a piece, and more than the kernel takes at once.
        for length in [0, 5, PIECE, 100 * PIECE + 3] {
            let timeout = Duration::from_secs(60);
            let call = call(Operation::AllReduce, 0);
            let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
            let swapped = |(mut mesh, rank): (Mesh, u32)| {
                let mut data: Vec<u8> = (0..length).map(|at| (at % 100) as u8 + rank as u8).collect();
                let fold = |own: &mut [u8], theirs: &[u8]| {
                    own.iter_mut().zip(theirs).for_each(|(own, other)| *own += other);
                };
                let swap = Swap { data: &mut data, fold: &fold };
                mesh.swap(&step, Rank(1 - rank), swap).map(|()| (mesh, data))
            };
            let ends = std::thread::scope(|scope| {
                let ends = pair().into_iter().zip(0..).map(|end| scope.spawn(|| swapped(end)));
                let ends: Vec<_> = ends.collect();
                ends.into_iter().map(|end| end.join().unwrap().unwrap().1).collect::<Vec<_>>()
            });
            let sums: Vec<u8> = (0..length).map(|at| 2 * (at % 100) as u8 + 1).collect();
            assert!(ends.iter().all(|end| *end == sums), "{length}");
        }
    }

    /// Sends a header when it is looked at, so when nothing has come for a while.
    #[derive(Debug)]
    struct Late(TcpStream, Vec<u8>);

    impl Outlook for Late {
        fn look(&mut self, _: &Step) -> Result<(), Ending> {
            self.0.write_all(&std::mem::take(&mut self.1)).unwrap();
            Ok(())
        }
    }

    /// Rank 0 in a barrier of three, in which rank 1 has done its part and gone on to a call in which the group ended. Rank 2 may come
    /// once rank 0 waits for nothing else.
    fn left_in_a_barrier(comes: bool) -> Result<(), Ending> {
        let [(one, mut other), (two, third)] = [(); 2].map(|()| {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (listener.accept().unwrap().0, stream)
        });
        let call = Call { root: None, count: 0, ..call(Operation::Barrier, 0) };
        let header = Header { call, step: 0, length: 0, previous: None, latest: 1 };
        let next = Header { call: Call { sequence: 2, ..call }, previous: Some(call), latest: 2, ..header };
        other.write_all(&[header.encode(), next.encode()].concat()).unwrap();
        other.shutdown(std::net::Shutdown::Both).unwrap();
        let mut mesh = Mesh::new(vec![None, Some(one), Some(two)]).unwrap();
        let part = if comes { header.encode().to_vec() } else { Vec::new() };
        mesh.look_at(Box::new(Late(third, part)));
        let timeout = Duration::from_secs(60);
        let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
        mesh.exchange(&step, (0..3).map(|_| Transfer { send: Some(&[]), receive: Some(&mut []) }).collect())
    }

    #[test]
    fn a_complete_call_is_good_although_the_group_has_ended_in_the_next_one() {
        let ended = left_in_a_barrier(true);
        assert_eq!(ended, Ok(()));
    }

    #[test]
    fn a_rank_that_has_done_its_part_is_lost_all_the_same_where_another_one_does_not_come() {
        let deadline = clock::after(Duration::from_secs(30));
        let ended = left_in_a_barrier(false);
        assert!(matches!(ended, Err(Ending::Lost { rank: Rank(1), .. })), "{ended:?}");
        assert!(!clock::until(deadline).is_zero(), "it does not wait for the deadline of the call");
    }

    #[test]
    fn a_rank_that_ends_in_the_middle_of_a_swap_is_lost() {
        let [mut mesh, other] = pair();
        let timeout = Duration::from_secs(60);
        let call = call(Operation::AllReduce, 0);
        let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
        let mut stream = other.peers.into_iter().flatten().next().unwrap().into_stream();
        let header = Header { call, step: 0, length: 2 * PIECE as u64, previous: None, latest: 0 };
        stream.write_all(&[&header.encode()[..], &[1; 100]].concat()).unwrap();
        drop(stream);
        let mut data = vec![0; 2 * PIECE];
        let ended = mesh.swap(&step, Rank(1), Swap { data: &mut data, fold: &|_, _| () });
        assert!(matches!(ended, Err(Ending::Lost { rank: Rank(1), .. })), "{ended:?}");
    }

    #[test]
    fn what_is_no_header_is_an_error() {
        let (ended, _) = waiting(call(Operation::Broadcast, 1), |stream| {
            stream.write_all(&[b'x'; HEADER_LEN]).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
        });
        assert!(matches!(ended, Err(Ending::Mismatch { rank: Rank(1), theirs: None, .. })), "{ended:?}");
    }
}
