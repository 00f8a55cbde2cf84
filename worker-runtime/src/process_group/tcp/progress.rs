//! How far one transfer with one rank has come. Pure.

use super::exchange::{Exchange, Swap, Transfer};
use super::judge::Calls;
use crate::process_group::message::{HEADER_LEN, Header};

/// What is to come from a rank.
enum Receive<'a> {
    Nothing,
    /// It comes where it shall be.
    Keep(&'a mut [u8]),
    /// It is folded into what goes to the rank, of which `folded` bytes are complete.
    Fold {
        swap: Swap<'a>,
        arrivals: &'a mut [u8],
        folded: usize,
    },
}

/// One transfer under way.
pub(super) struct Progress<'a> {
    head: [u8; HEADER_LEN],
    send: Option<&'a [u8]>,
    /// Sent so far, header included.
    sent: usize,
    receive: Receive<'a>,
    /// Received so far, header excluded.
    received: usize,
    /// Whether the header that is there belongs to this exchange.
    accepted: bool,
    /// Whether the rank was seen to be gone; until then it may have done its part.
    is_gone: bool,
}

impl<'a> Progress<'a> {
    pub(super) fn new(step: (&Exchange, &Calls), transfer: Transfer<'a>) -> Self {
        let Transfer { send, receive } = transfer;
        let head = head(step, send.map_or(0, <[u8]>::len));
        let receive = receive.map_or(Receive::Nothing, Receive::Keep);
        Self { head, send, sent: 0, receive, received: 0, accepted: false, is_gone: false }
    }

    /// `arrivals` is for what has come and is not folded yet.
    pub(super) fn swap(step: (&Exchange, &Calls), swap: Swap<'a>, arrivals: &'a mut [u8]) -> Self {
        if swap.data.is_empty() {
            // It is complete at once, although nothing has been said yet.
            return Self::new(step, Transfer { send: Some(&[]), receive: Some(&mut []) });
        }
        let head = head(step, swap.data.len());
        let receive = Receive::Fold { swap, arrivals, folded: 0 };
        Self { head, send: None, sent: 0, receive, received: 0, accepted: false, is_gone: false }
    }

    /// What goes to the rank. What it is folded into is complete only once all of it is gone.
    pub(super) fn to_send(&self) -> Option<&[u8]> {
        match &self.receive {
            Receive::Fold { swap, .. } => Some(swap.data),
            _ => self.send,
        }
    }

    /// What is still to be sent, of the header and of the message; `None` once all of it is gone.
    pub(super) fn unsent(&self) -> Option<[&[u8]; 2]> {
        let payload = self.to_send().filter(|_| self.wants_to_send())?;
        Some([&self.head[self.sent.min(HEADER_LEN)..], &payload[self.sent.saturating_sub(HEADER_LEN)..]])
    }

    /// So many more bytes are sent.
    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// The header that is there belongs to this exchange: its message comes next.
    pub(super) fn accept(&mut self) {
        self.accepted = true;
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// So many more bytes of the message have come into its room.
    pub(super) fn note_received(&mut self, bytes: usize) {
        self.received += bytes;
        self.fold();
    }

    /// All of the message has come: nothing more is to come from the rank.
    pub(super) fn end_message(&mut self) {
        self.accepted = false;
        self.receive = Receive::Nothing;
    }

    /// Whether the rank is seen to be gone.
    pub(super) fn set_gone(&mut self, is_gone: bool) {
        self.is_gone = is_gone;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Bytes that are expected.
    pub(super) fn expected(&self) -> Option<u64> {
        match &self.receive {
            Receive::Nothing => None,
            Receive::Keep(payload) => Some(payload.len() as u64),
            Receive::Fold { swap, .. } => Some(swap.data.len() as u64),
        }
    }

    /// Where the next bytes of the message come; empty while there is no room.
    pub(super) fn room(&mut self) -> &mut [u8] {
        match &mut self.receive {
            Receive::Nothing => &mut [],
            Receive::Keep(payload) => &mut payload[self.received..],
            Receive::Fold { swap, arrivals, folded } => {
                let piece = arrivals.len().min(swap.data.len() - *folded);
                &mut arrivals[self.received - *folded..piece]
            }
        }
    }

    pub(super) fn has_room(&self) -> bool {
        match &self.receive {
            Receive::Nothing => false,
            Receive::Keep(payload) => self.received < payload.len(),
            Receive::Fold { swap, arrivals, folded } => {
                self.received - folded < arrivals.len().min(swap.data.len() - folded)
            }
        }
    }

    /// Folds the piece that has come, if it is whole and what it is folded into has been sent; whether it did.
    pub(super) fn fold(&mut self) -> bool {
        let Receive::Fold { swap, arrivals, folded } = &mut self.receive else { return false };
        let piece = arrivals.len().min(swap.data.len() - *folded);
        let end = *folded + piece;
        if piece == 0 || self.received < end || self.sent < HEADER_LEN + end {
            return false;
        }
        (swap.fold)(&mut swap.data[*folded..end], &arrivals[..piece]);
        *folded = end;
        true
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.to_send().is_some_and(|payload| self.sent < HEADER_LEN + payload.len())
    }

    pub(super) fn wants_to_receive(&self) -> bool {
        match &self.receive {
            Receive::Nothing => false,
            Receive::Keep(payload) => !self.accepted || self.received < payload.len(),
            Receive::Fold { swap, folded, .. } => !self.accepted || *folded < swap.data.len(),
        }
    }

    /// Whether nothing goes to the rank, and nothing has come.
    pub(super) fn only_waits(&self) -> bool {
        self.send.is_none() && matches!(self.receive, Receive::Keep(_)) && !self.accepted
    }

    pub(super) fn is_done(&self) -> bool {
        !self.wants_to_send() && !self.wants_to_receive()
    }

    /// Whether the rank is gone and has not done its part.
    pub(super) fn is_hopeless(&self) -> bool {
        self.is_gone && !self.is_done()
    }

    /// Bytes that have come and gone.
    pub(super) fn moved(&self) -> usize {
        self.sent + self.received
    }
}

/// The header of a message.
fn head((step, calls): (&Exchange, &Calls), length: usize) -> [u8; HEADER_LEN] {
    let (previous, latest) = (calls.before(step.call), calls.latest());
    Header { call: step.call, step: step.number, length: length as u64, previous, latest }.encode()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock;
    use crate::process_group::element::DataType;
    use crate::process_group::message::{Call, Operation};

    fn exchange() -> Exchange {
        let data_type = DataType::U8;
        let call = Call {
            operation: Operation::AllReduce,
            data_type,
            reduction: None,
            root: None,
            count: 6,
            sequence: 1,
        };
        let deadline: Instant = clock::after(Duration::from_secs(60));
        Exchange { call, number: 0, deadline, timeout: Duration::from_secs(60) }
    }

    fn add(own: &mut [u8], theirs: &[u8]) {
        own.iter_mut().zip(theirs).for_each(|(own, other)| *own += other);
    }

    /// As much of the message as there is room for; how much that is.
    fn receive(progress: &mut Progress<'_>, bytes: &[u8]) -> usize {
        let room = progress.room();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        progress.note_received(length);
        length
    }

    #[test]
    fn what_has_come_is_folded_only_into_what_is_sent() {
        let (mut data, mut arrivals) = ([1, 2, 3, 4, 5, 6], [0; 4]);
        let step = exchange();
        let swap = Swap { data: &mut data, fold: &add };
        let mut progress = Progress::swap((&step, &Calls::default()), swap, &mut arrivals);
        progress.accept();
        assert_eq!(receive(&mut progress, &[10; 6]), 4);
        assert!(!progress.has_room(), "nothing is sent, so nothing is folded");
        progress.note_sent(HEADER_LEN + 3);
        assert!(!progress.fold());
        assert_eq!(progress.unsent(), Some([&[][..], &[4, 5, 6]]));
        progress.note_sent(1);
        assert!(progress.fold() && progress.has_room());
        assert_eq!(progress.unsent(), Some([&[][..], &[5, 6]]));
        assert_eq!(receive(&mut progress, &[10; 2]), 2);
        assert!(!progress.is_done());
        progress.note_sent(2);
        assert!(progress.fold() && progress.is_done());
        assert_eq!(progress.moved(), HEADER_LEN + 12);
        assert_eq!(data, [11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn a_message_without_bytes_is_awaited_all_the_same() {
        let step = exchange();
        let transfer = Transfer { send: None, receive: Some(&mut []) };
        let mut progress = Progress::new((&step, &Calls::default()), transfer);
        assert!(progress.wants_to_receive() && progress.only_waits());
        progress.set_gone(true);
        assert!(progress.is_hopeless());
        progress.accept();
        assert!(progress.is_done() && !progress.is_hopeless());
    }
}
