//! The other ranks' end of the handover: receives the segment from rank 0 and checks all that arrives.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

use super::{
    ADDRESS_KEY, ANSWER, ANSWER_LEN, FAILURE_PREFIX, MAX_REASON_BYTES, OTHER_USER, OTHER_VERSION, TOKEN_LEN,
    WELCOME, greeting_message, is_same_user, read_u32, send_no_sigpipe,
};
use crate::process_group::error::{GroupError, LossCause};
use crate::process_group::rendezvous::{Membership, lost_rank_error};
use crate::process_group::shm::error::SegmentError;
use crate::process_group::shm::map::Map;
use crate::process_group::shm::segment::{LAYOUT_VERSION, Segment};
use crate::process_group::transport::Step;
use crate::process_group::unidentified::Retry;
use crate::store::{StoreError, TcpStore};
use crate::{clock, socket};

/// The segment from rank 0, and the connection that brought it.
pub(super) struct SegmentClient {
    pub(super) stream: UnixStream,
    pub(super) segment: Segment,
}

impl SegmentClient {
    /// Receives the segment from rank 0.
    pub(super) fn connect(
        store: &TcpStore,
        membership: &Membership,
        step: &Step,
    ) -> Result<Self, GroupError> {
        let timed_out = || lost_rank_error(membership, Rank(0), LossCause::Timeout(step.timeout));
        match store.wait(&[ADDRESS_KEY], clock::until(step.deadline)) {
            Err(StoreError::WaitTimeout { .. }) => return Err(timed_out()),
            result => result?,
        }
        let value = store.get(ADDRESS_KEY)?;
        let value = String::from_utf8_lossy(&value).into_owned();
        if let Some(text) = value.strip_prefix(FAILURE_PREFIX) {
            let reason = text.chars().filter(|letter| !letter.is_control()).take(MAX_REASON_BYTES).collect();
            return Err(SegmentError::NotMade { reason }.into());
        }
        let Some((name, token)) = value.split_once(' ').filter(|(_, token)| token.len() == TOKEN_LEN) else {
            return Err(GroupError::unexpected_entry(ADDRESS_KEY, value.as_bytes()));
        };
        let failed = |error: io::Error| match error.kind() {
            _ if socket::is_own_shortage(&error) => SegmentError::from(error).into(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => timed_out(),
            kind => lost_rank_error(membership, Rank(0), kind.into()),
        };
        let (mut retry, mut closed) = (Retry::new(clock::now()), None);
        loop {
            // If rank 0 is gone, the error of the first connection explains it.
            let backing = connect(name, step.deadline);
            let stream = backing.map_err(|error| failed(closed.map_or(error, io::Error::from)))?;
            if !is_same_user(&stream) {
                return Err(SegmentError::OtherUser { rank: Rank(0) }.into());
            }
            let sent = send_no_sigpipe(&stream, &greeting_message(token.as_bytes(), membership));
            match sent.and_then(|()| receive_answer(&stream, step.deadline)) {
                Ok((answer, file)) => {
                    let segment = open_segment(&answer, file, membership)?;
                    return Ok(Self { stream, segment });
                }
                Err(error) if is_peer_closed(&error) => match retry.next_attempt_at(clock::now()) {
                    Some(next) if next < step.deadline => {
                        closed.get_or_insert(error.kind());
                        std::thread::sleep(clock::until(next));
                    }
                    _ => return Err(failed(error)),
                },
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// Whether rank 0 has closed the connection: it may have dropped it in a flood, without reading it.
fn is_peer_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Connects to the abstract socket `name`. Reads and writes on it end at the deadline.
fn connect(name: &str, deadline: Instant) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let remaining = clock::until(deadline).max(Duration::from_millis(1));
    // Connecting blocks too, if the queue of the listener is full.
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(remaining))?;
    }
    let address = SocketAddrUnix::new_abstract_name(format!("rankrun {name}").as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// Receives the answer of rank 0 and the file descriptor with it.
fn receive_answer(stream: &UnixStream, deadline: Instant) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut answer, mut file) = (Vec::new(), None);
    while answer.len() < ANSWER_LEN {
        let mut bytes = [0; ANSWER_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let missing = ANSWER_LEN - answer.len();
        let mut buffers = [IoSliceMut::new(&mut bytes[..missing])];
        let received = rustix::net::recvmsg(stream, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Ok(received) if received.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(received) => received,
            Err(rustix::io::Errno::INTR) if !clock::until(deadline).is_zero() => continue,
            Err(error) => return Err(error.into()),
        };
        // The kernel drops a descriptor if this process can open no more.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(rustix::io::Errno::MFILE.into());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                file = files.next();
            }
        }
        answer.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((answer, file))
}

/// Checks the answer of rank 0 and maps the segment.
fn open_segment(
    answer: &[u8],
    file: Option<OwnedFd>,
    membership: &Membership,
) -> Result<Segment, SegmentError> {
    if answer[..ANSWER.len()] != *ANSWER {
        return Err(SegmentError::Strange);
    }
    let [code, version] = [0, 4].map(|at| read_u32(answer, ANSWER.len() + at));
    let arena = u64::from_le_bytes(std::array::from_fn(|index| answer[ANSWER.len() + 8 + index]));
    match (code, file) {
        (OTHER_VERSION, _) => {
            Err(SegmentError::OtherVersion { rank: Rank(0), version, own_version: LAYOUT_VERSION })
        }
        (OTHER_USER, _) => Err(SegmentError::OtherUser { rank: Rank(0) }),
        (WELCOME, Some(file)) => Segment::open(file, Map::new(membership.world_size, arena)?),
        _ => Err(SegmentError::Strange),
    }
}
