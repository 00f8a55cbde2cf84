//! The connection to one rank: its unsent and unread messages.

use std::io::{self, Cursor, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags};
use rustix::net::RecvFlags;

use super::exchange::{Exchange, rank_from_index};
use super::judge::{self, CallHistory, HeaderVerdict, Mismatch, Situation};
use super::progress::TransferProgress;
use crate::clock;
use crate::process_group::error::{GroupFailure, LossCause};
use crate::process_group::message::{Call, HEADER_LEN, Header, Operation};
use crate::process_group::poll::poll;

/// Bytes of an early message that are read at most: the longest message of a call that ranks of other hosts
/// may send while this one waits for its own host.
const MAX_EARLY_BYTES: usize = 16 * 1024 * 1024;

/// Bytes that are read ahead at once.
const EARLY_PIECE_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Peer {
    stream: TcpStream,
    /// The next header, as far as it has arrived. It stays here if it belongs to a later step.
    header: [u8; HEADER_LEN],
    header_bytes: usize,
    /// The beginning of its message, if it was read before its step.
    early_message: Cursor<Vec<u8>>,
    has_left: bool,
    /// Whether a leave message lies behind an early message.
    has_pending_leave: bool,
    /// Headers without a message, which are sent before all else; partly sent ones keep their rest.
    queued_headers: Vec<u8>,
    /// Number of messages sent by `send`.
    sent_messages: u64,
}

/// Why the connection to one rank is of no further use.
pub(super) enum PeerFailure {
    Lost(LossCause),
    Mismatch { other_call: Option<Call>, own_call: Call },
}

impl PeerFailure {
    pub(super) fn into_group_failure(self, rank: usize) -> GroupFailure {
        let rank = rank_from_index(rank);
        match self {
            Self::Lost(cause) => GroupFailure::Lost { rank, cause },
            Self::Mismatch { other_call, own_call } => GroupFailure::Mismatch {
                rank,
                other_call: other_call.map(Box::new),
                own_call: Box::new(own_call),
            },
        }
    }
}

impl From<io::Error> for PeerFailure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind().into())
    }
}

impl From<Mismatch> for PeerFailure {
    fn from(Mismatch { other_call, own_call }: Mismatch) -> Self {
        Self::Mismatch { other_call: Some(other_call), own_call }
    }
}

impl Peer {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let header = [0; HEADER_LEN];
        let (ahead, queued_headers) = (Cursor::default(), Vec::new());
        Ok(Self {
            stream,
            header,
            header_bytes: 0,
            early_message: ahead,
            has_left: false,
            has_pending_leave: false,
            queued_headers,
            sent_messages: 0,
        })
    }

    #[cfg(test)]
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The events for which the connection must be polled.
    pub(super) fn events(&self, progress: &TransferProgress<'_>) -> PollFlags {
        let mut events = PollFlags::empty();
        if progress.is_gone() {
            return events;
        }
        // A complete header of a later step is kept for that step.
        let reads = if progress.is_accepted() {
            progress.has_receive_space()
        } else {
            self.header_bytes < HEADER_LEN
        };
        events.set(PollFlags::POLLIN, !self.has_left && reads);
        events.set(hangup_flag(), !self.has_left && !self.has_pending_leave && !reads);
        events.set(PollFlags::POLLOUT, progress.wants_to_send() || !self.queued_headers.is_empty());
        events
    }

    /// Sends and receives without waiting.
    pub(super) fn advance(
        &mut self,
        step: (&Exchange, &CallHistory),
        progress: &mut TransferProgress<'_>,
    ) -> Result<(), PeerFailure> {
        let result = self.transfer(step, progress);
        progress.set_gone(matches!(result, Err(PeerFailure::Lost(_))));
        result
    }

    fn transfer(
        &mut self,
        step: (&Exchange, &CallHistory),
        progress: &mut TransferProgress<'_>,
    ) -> Result<(), PeerFailure> {
        if progress.send_data().is_some() && step.0.call.operation == Operation::Send {
            self.sent_messages = step.0.call.sequence;
        }
        if !self.has_left {
            self.receive(step, progress)?;
        }
        if self.has_left && !progress.is_done() {
            return Err(PeerFailure::Lost(LossCause::Left));
        }
        self.send(progress)?;
        // Data that arrived before this rank's own was sent could not be folded.
        if progress.fold() && !self.has_left { self.receive(step, progress) } else { Ok(()) }
    }

    fn send(&mut self, progress: &mut TransferProgress<'_>) -> Result<(), PeerFailure> {
        if !self.flush()? {
            return Ok(());
        }
        while let Some([head, body]) = progress.unsent() {
            match written_bytes(self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]))? {
                Some(written) => progress.add_sent(written),
                None => break,
            }
        }
        Ok(())
    }

    /// Queues a header before the next message.
    pub(super) fn queue_header(&mut self, header: Header) {
        if !self.has_left {
            self.queued_headers.extend_from_slice(&header.encode());
        }
    }

    /// Queues a notice, unless an earlier header is not sent yet.
    pub(super) fn queue_notice(&mut self, header: Header) {
        if self.queued_headers.is_empty() {
            self.queue_header(header);
        }
    }

    /// Sends the queued headers; returns whether all are sent.
    fn flush(&mut self) -> io::Result<bool> {
        while !self.queued_headers.is_empty() {
            match written_bytes(self.stream.write(&self.queued_headers))? {
                Some(written) => drop(self.queued_headers.drain(..written)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Sends all queued headers. If that fails, the others take this rank for lost, which is accurate enough.
    pub(super) fn flush_until(&mut self, deadline: Instant) {
        while let Ok(false) = self.flush() {
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            if !matches!(poll(&mut fds, deadline), Ok(1..)) {
                return;
            }
        }
    }

    pub(super) fn close(&self) {
        // It fails only if the other end has closed already.
        drop(self.stream.shutdown(Shutdown::Both));
    }

    fn receive(
        &mut self,
        step: (&Exchange, &CallHistory),
        progress: &mut TransferProgress<'_>,
    ) -> Result<(), PeerFailure> {
        loop {
            if !progress.is_accepted() && self.header_bytes == HEADER_LEN {
                match self.judge_header(step, progress)? {
                    HeaderVerdict::Now => progress.accept(),
                    HeaderVerdict::Later if step.0.number == judge::BETWEEN_STEPS => {
                        self.read_early_message()?;
                        return self.check_alive();
                    }
                    HeaderVerdict::Later => return self.check_alive(),
                    HeaderVerdict::Nothing => self.header_bytes = 0,
                    HeaderVerdict::Left => {
                        self.has_left = true;
                        return Ok(());
                    }
                }
            }
            if progress.is_accepted() && !progress.wants_to_receive() {
                self.header_bytes = 0;
                self.early_message = Cursor::default();
                progress.finish_message();
                // The rest of the stream, its end included, is read only while this step waits for others: a
                // complete message counts although its rank may be gone.
                return Ok(());
            }
            let has_ahead = self.has_early_bytes();
            let target = if progress.is_accepted() {
                progress.receive_space()
            } else {
                &mut self.header[self.header_bytes..]
            };
            if target.is_empty() {
                return Ok(());
            }
            let read = if has_ahead { self.early_message.read(target) } else { self.stream.read(target) };
            match read {
                Ok(0) => return Err(PeerFailure::Lost(LossCause::Closed)),
                Ok(read) if progress.is_accepted() => progress.add_received(read),
                Ok(read) => self.header_bytes += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether bytes that were read ahead remain.
    fn has_early_bytes(&self) -> bool {
        self.early_message.position() < self.early_message.get_ref().len() as u64
    }

    /// Whether a header of a later step is kept.
    pub(super) fn has_complete_header(&self) -> bool {
        self.header_bytes == HEADER_LEN
    }

    /// Reads available bytes of an early message: the end of the connection arrives only
    /// once the kernel's buffer has room.
    fn read_early_message(&mut self) -> Result<(), PeerFailure> {
        let length = Header::decode(&self.header).map_or(0, |header| header.length);
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_EARLY_BYTES);
        let ahead = self.early_message.get_mut();
        while ahead.len() < most {
            let start = ahead.len();
            ahead.resize(most.min(start + EARLY_PIECE_BYTES), 0);
            let read = self.stream.read(&mut ahead[start..]);
            ahead.truncate(start + read.as_ref().map_or(0, |&read| read));
            match read {
                Ok(0) => return Err(PeerFailure::Lost(LossCause::Closed)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether the rank is gone, behind an early message.
    fn check_alive(&mut self) -> Result<(), PeerFailure> {
        let mut fds = [PollFd::new(self.stream.as_fd(), hangup_flag())];
        if self.has_pending_leave || poll(&mut fds, clock::after(Duration::ZERO))? == 0 {
            return Ok(());
        }
        // All its bytes have arrived, and the kernel buffers a limited number.
        let unread = rustix::io::ioctl_fionread(&self.stream).map_err(io::Error::from)?;
        let mut bytes = vec![0; usize::try_from(unread).unwrap_or(0)];
        let (peeked, _) =
            rustix::net::recv(&self.stream, &mut bytes, RecvFlags::PEEK).map_err(io::Error::from)?;
        self.has_pending_leave = bytes[..peeked].ends_with(&Header::LEAVE.encode());
        if self.has_pending_leave { Ok(()) } else { Err(PeerFailure::Lost(LossCause::Closed)) }
    }

    /// Classifies the kept header.
    fn judge_header(
        &self,
        (step, calls): (&Exchange, &CallHistory),
        progress: &TransferProgress<'_>,
    ) -> Result<HeaderVerdict, PeerFailure> {
        let Some(header) = Header::decode(&self.header) else {
            return Err(PeerFailure::Mismatch { other_call: None, own_call: step.call });
        };
        let situation = Situation {
            call: step.call,
            step: step.number,
            expected_len: progress.expected_len(),
            sent_messages: self.sent_messages,
            calls,
        };
        Ok(judge::judge_header(header, &situation)?)
    }
}

/// The other end sends no more; bytes may remain to be read (poll(2)).
fn hangup_flag() -> PollFlags {
    PollFlags::from_bits_retain(libc::POLLRDHUP)
}

/// The number of written bytes; `None` if the buffer is full.
fn written_bytes(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(ErrorKind::BrokenPipe.into()),
        Ok(written) => Ok(Some(written)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(error) => Err(error),
    }
}
