//! The connection to one rank: what is said over it, and what comes.

use std::io::{self, Cursor, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags};
use rustix::net::RecvFlags;

use super::exchange::{Exchange, rank_at};
use super::judge::{self, Calls, Judgement, Mismatch, Situation};
use super::progress::Progress;
use crate::clock;
use crate::process_group::error::{Ending, LossCause};
use crate::process_group::message::{Call, HEADER_LEN, Header, Operation};
use crate::process_group::poll::poll;

/// Most bytes of a message that are taken in before it is to be received: the longest message of a call that ranks of other hosts
/// send while this one waits for its own.
const MAX_AHEAD: usize = 16 * 1024 * 1024;

/// Bytes of them that are read at once.
const PIECE: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    /// The header that comes next, as far as it arrived. It stays here if it belongs to a later exchange.
    header: [u8; HEADER_LEN],
    arrived: usize,
    /// How its message begins, as far as that was taken in before it is to be received.
    ahead: Cursor<Vec<u8>>,
    left: bool,
    /// Whether it has left behind what is not to be received yet.
    leaves: bool,
    /// Headers without a message that go before everything else, of which some bytes may be gone already.
    to_say: Vec<u8>,
    /// Messages that went to it by `send`.
    sends: u64,
}

/// Why the connection to one rank is of no further use.
pub(super) enum Failure {
    Lost(LossCause),
    Mismatch { theirs: Option<Call>, ours: Call },
}

impl Failure {
    pub(super) fn of(self, rank: usize) -> Ending {
        let rank = rank_at(rank);
        match self {
            Self::Lost(cause) => Ending::Lost { rank, cause },
            Self::Mismatch { theirs, ours } => {
                Ending::Mismatch { rank, theirs: theirs.map(Box::new), ours: Box::new(ours) }
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind().into())
    }
}

impl From<Mismatch> for Failure {
    fn from(Mismatch { theirs, ours }: Mismatch) -> Self {
        Self::Mismatch { theirs: Some(theirs), ours }
    }
}

impl Peer {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let header = [0; HEADER_LEN];
        let (ahead, to_say) = (Cursor::default(), Vec::new());
        Ok(Self { stream, header, arrived: 0, ahead, left: false, leaves: false, to_say, sends: 0 })
    }

    #[cfg(test)]
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What must happen on the connection before anything more can be done.
    pub(super) fn events(&self, progress: &Progress<'_>) -> PollFlags {
        let mut events = PollFlags::empty();
        if progress.is_gone() {
            return events;
        }
        // A whole header that does not belong to this exchange is kept for a later one.
        let reads = if progress.is_accepted() { progress.has_room() } else { self.arrived < HEADER_LEN };
        events.set(PollFlags::POLLIN, !self.left && reads);
        events.set(closed(), !self.left && !self.leaves && !reads);
        events.set(PollFlags::POLLOUT, progress.wants_to_send() || !self.to_say.is_empty());
        events
    }

    /// Sends and receives what is possible without waiting.
    pub(super) fn advance(
        &mut self,
        step: (&Exchange, &Calls),
        progress: &mut Progress<'_>,
    ) -> Result<(), Failure> {
        let result = self.go_on(step, progress);
        progress.set_gone(matches!(result, Err(Failure::Lost(_))));
        result
    }

    fn go_on(&mut self, step: (&Exchange, &Calls), progress: &mut Progress<'_>) -> Result<(), Failure> {
        if progress.to_send().is_some() && step.0.call.operation == Operation::Send {
            self.sends = step.0.call.sequence;
        }
        if !self.left {
            self.receive(step, progress)?;
        }
        if self.left && !progress.is_done() {
            return Err(Failure::Lost(LossCause::Left));
        }
        self.send(progress)?;
        // What has come before this rank's own was sent had to wait.
        if progress.fold() && !self.left { self.receive(step, progress) } else { Ok(()) }
    }

    fn send(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        if !self.flush()? {
            return Ok(());
        }
        while let Some([head, body]) = progress.unsent() {
            match written(self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]))? {
                Some(written) => progress.note_sent(written),
                None => break,
            }
        }
        Ok(())
    }

    /// Has a header go out before the next message.
    pub(super) fn say(&mut self, header: Header) {
        if !self.left {
            self.to_say.extend_from_slice(&header.encode());
        }
    }

    /// Tells the rank that it is waited for, unless it has yet to take what was said before.
    pub(super) fn notify(&mut self, header: Header) {
        if self.to_say.is_empty() {
            self.say(header);
        }
    }

    /// Sends what is to be said; whether all of it is gone.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.to_say.is_empty() {
            match written(self.stream.write(&self.to_say))? {
                Some(written) => drop(self.to_say.drain(..written)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Waits until all is said. Without a farewell the others take this rank for lost, which is true enough.
    pub(super) fn say_all(&mut self, deadline: Instant) {
        while let Ok(false) = self.flush() {
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            if !matches!(poll(&mut fds, deadline), Ok(1..)) {
                return;
            }
        }
    }

    pub(super) fn close(&self) {
        // It fails only where nobody is connected any more.
        drop(self.stream.shutdown(Shutdown::Both));
    }

    fn receive(&mut self, step: (&Exchange, &Calls), progress: &mut Progress<'_>) -> Result<(), Failure> {
        loop {
            if !progress.is_accepted() && self.arrived == HEADER_LEN {
                match self.judge(step, progress)? {
                    Judgement::Now => progress.accept(),
                    Judgement::Later if step.0.number == judge::BETWEEN => {
                        self.read_ahead()?;
                        return self.look_behind();
                    }
                    Judgement::Later => return self.look_behind(),
                    Judgement::Nothing => self.arrived = 0,
                    Judgement::Left => {
                        self.left = true;
                        return Ok(());
                    }
                }
            }
            if progress.is_accepted() && !progress.wants_to_receive() {
                self.arrived = 0;
                self.ahead = Cursor::default();
                progress.end_message();
                // What follows, be it the end, is looked at only while this exchange waits for others: a
                // complete message is good although its rank may be gone.
                return Ok(());
            }
            let has_ahead = self.has_ahead();
            let target =
                if progress.is_accepted() { progress.room() } else { &mut self.header[self.arrived..] };
            if target.is_empty() {
                return Ok(());
            }
            let read = if has_ahead { self.ahead.read(target) } else { self.stream.read(target) };
            match read {
                Ok(0) => return Err(Failure::Lost(LossCause::Closed)),
                Ok(read) if progress.is_accepted() => progress.note_received(read),
                Ok(read) => self.arrived += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether there is more of what was read ahead.
    fn has_ahead(&self) -> bool {
        self.ahead.position() < self.ahead.get_ref().len() as u64
    }

    /// Whether a header is there whose message is not to be received yet.
    pub(super) fn keeps(&self) -> bool {
        self.arrived == HEADER_LEN
    }

    /// Takes in what is there of the message that is not to be received yet: as long as the kernel has no room for all of it, the end
    /// of its rank does not arrive.
    fn read_ahead(&mut self) -> Result<(), Failure> {
        let length = Header::decode(&self.header).map_or(0, |header| header.length);
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_AHEAD);
        let ahead = self.ahead.get_mut();
        while ahead.len() < most {
            let start = ahead.len();
            ahead.resize(most.min(start + PIECE), 0);
            let read = self.stream.read(&mut ahead[start..]);
            ahead.truncate(start + read.as_ref().map_or(0, |&read| read));
            match read {
                Ok(0) => return Err(Failure::Lost(LossCause::Closed)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether the rank is gone behind a message that is not to be received yet.
    fn look_behind(&mut self) -> Result<(), Failure> {
        let mut fds = [PollFd::new(self.stream.as_fd(), closed())];
        if self.leaves || poll(&mut fds, clock::after(Duration::ZERO))? == 0 {
            return Ok(());
        }
        // All that it has ever sent is there, and no more than the kernel keeps for a connection.
        let unread = rustix::io::ioctl_fionread(&self.stream).map_err(io::Error::from)?;
        let mut bytes = vec![0; usize::try_from(unread).unwrap_or(0)];
        let (peeked, _) =
            rustix::net::recv(&self.stream, &mut bytes, RecvFlags::PEEK).map_err(io::Error::from)?;
        self.leaves = bytes[..peeked].ends_with(&Header::LEAVE.encode());
        if self.leaves { Ok(()) } else { Err(Failure::Lost(LossCause::Closed)) }
    }

    /// What the header that is there means.
    fn judge(
        &self,
        (step, calls): (&Exchange, &Calls),
        progress: &Progress<'_>,
    ) -> Result<Judgement, Failure> {
        let Some(header) = Header::decode(&self.header) else {
            return Err(Failure::Mismatch { theirs: None, ours: step.call });
        };
        let situation = Situation {
            call: step.call,
            number: step.number,
            expected: progress.expected(),
            sends: self.sends,
            calls,
        };
        Ok(judge::judge(header, &situation)?)
    }
}

/// The other end sends no more, whatever is still to be read (poll(2)).
fn closed() -> PollFlags {
    PollFlags::from_bits_retain(libc::POLLRDHUP)
}

/// How many bytes were written; `None` if there is no room now.
fn written(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(ErrorKind::BrokenPipe.into()),
        Ok(written) => Ok(Some(written)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(error) => Err(error),
    }
}
