//! The state of one transfer with one rank. Pure.

use super::exchange::{Exchange, Swap, Transfer};
use super::judge::CallHistory;
use crate::process_group::message::{HEADER_LEN, Header};

/// The message from a rank.
enum Receive<'a> {
    Nothing,
    /// It is received into its final place.
    Keep(&'a mut [u8]),
    /// It is folded into the data that goes to the rank, of which `folded` bytes are complete.
    Fold {
        swap: Swap<'a>,
        arrivals: &'a mut [u8],
        folded: usize,
    },
}

pub(super) struct TransferProgress<'a> {
    header: [u8; HEADER_LEN],
    send: Option<&'a [u8]>,
    sent: usize,
    receive: Receive<'a>,
    received: usize,
    /// Whether the arrived header belongs to this step.
    is_accepted: bool,
    /// Whether the rank is lost; it may have done its part before.
    is_gone: bool,
}

impl<'a> TransferProgress<'a> {
    pub(super) fn new(step: (&Exchange, &CallHistory), transfer: Transfer<'a>) -> Self {
        let Transfer { send, receive } = transfer;
        let head = message_header(step, send.map_or(0, <[u8]>::len));
        let receive = receive.map_or(Receive::Nothing, Receive::Keep);
        Self { header: head, send, sent: 0, receive, received: 0, is_accepted: false, is_gone: false }
    }

    /// `arrivals` holds received bytes that are not folded yet.
    pub(super) fn swap(step: (&Exchange, &CallHistory), swap: Swap<'a>, arrivals: &'a mut [u8]) -> Self {
        if swap.data.is_empty() {
            // It would be complete before any message.
            return Self::new(step, Transfer { send: Some(&[]), receive: Some(&mut []) });
        }
        let head = message_header(step, swap.data.len());
        let receive = Receive::Fold { swap, arrivals, folded: 0 };
        Self { header: head, send: None, sent: 0, receive, received: 0, is_accepted: false, is_gone: false }
    }

    /// The data for the rank. Bytes are overwritten by the fold only after they were sent.
    pub(super) fn send_data(&self) -> Option<&[u8]> {
        match &self.receive {
            Receive::Fold { swap, .. } => Some(swap.data),
            _ => self.send,
        }
    }

    /// The unsent rest of header and message; `None` if all is sent.
    pub(super) fn unsent(&self) -> Option<[&[u8]; 2]> {
        let payload = self.send_data().filter(|_| self.wants_to_send())?;
        Some([&self.header[self.sent.min(HEADER_LEN)..], &payload[self.sent.saturating_sub(HEADER_LEN)..]])
    }

    pub(super) fn add_sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Notes that the arrived header belongs to this step: its message follows.
    pub(super) fn accept(&mut self) {
        self.is_accepted = true;
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// Notes received bytes of the message.
    pub(super) fn add_received(&mut self, bytes: usize) {
        self.received += bytes;
        self.fold();
    }

    /// Notes that the message is complete.
    pub(super) fn finish_message(&mut self) {
        self.is_accepted = false;
        self.receive = Receive::Nothing;
    }

    /// Notes whether the rank is lost.
    pub(super) fn set_gone(&mut self, is_gone: bool) {
        self.is_gone = is_gone;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Length of the expected message.
    pub(super) fn expected_len(&self) -> Option<u64> {
        match &self.receive {
            Receive::Nothing => None,
            Receive::Keep(payload) => Some(payload.len() as u64),
            Receive::Fold { swap, .. } => Some(swap.data.len() as u64),
        }
    }

    /// The place for the next bytes of the message; empty if there is no room.
    pub(super) fn receive_space(&mut self) -> &mut [u8] {
        match &mut self.receive {
            Receive::Nothing => &mut [],
            Receive::Keep(payload) => &mut payload[self.received..],
            Receive::Fold { swap, arrivals, folded } => {
                let piece = arrivals.len().min(swap.data.len() - *folded);
                &mut arrivals[self.received - *folded..piece]
            }
        }
    }

    pub(super) fn has_receive_space(&self) -> bool {
        match &self.receive {
            Receive::Nothing => false,
            Receive::Keep(payload) => self.received < payload.len(),
            Receive::Fold { swap, arrivals, folded } => {
                self.received - folded < arrivals.len().min(swap.data.len() - folded)
            }
        }
    }

    /// Folds the received piece, if it is complete and its place was sent; returns whether it did.
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
        self.send_data().is_some_and(|payload| self.sent < HEADER_LEN + payload.len())
    }

    pub(super) fn wants_to_receive(&self) -> bool {
        match &self.receive {
            Receive::Nothing => false,
            Receive::Keep(payload) => !self.is_accepted || self.received < payload.len(),
            Receive::Fold { swap, folded, .. } => !self.is_accepted || *folded < swap.data.len(),
        }
    }

    /// Whether nothing is sent to the rank and nothing has arrived.
    pub(super) fn is_only_waiting(&self) -> bool {
        self.send.is_none() && matches!(self.receive, Receive::Keep(_)) && !self.is_accepted
    }

    pub(super) fn is_done(&self) -> bool {
        !self.wants_to_send() && !self.wants_to_receive()
    }

    /// Whether the rank is lost and has not done its part.
    pub(super) fn cannot_complete(&self) -> bool {
        self.is_gone && !self.is_done()
    }

    pub(super) fn transferred_bytes(&self) -> usize {
        self.sent + self.received
    }
}

/// The header of a message.
fn message_header((step, calls): (&Exchange, &CallHistory), length: usize) -> [u8; HEADER_LEN] {
    let (previous, latest) = (calls.previous_call(step.call), calls.latest_sequence());
    Header {
        call: step.call,
        step: step.number,
        length: length as u64,
        previous_call: previous,
        latest_sequence: latest,
    }
    .encode()
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
            reduce_op: None,
            root: None,
            count: 6,
            sequence: 1,
        };
        let deadline: Instant = clock::after(Duration::from_secs(60));
        Exchange { call, number: 0, deadline, timeout: Duration::from_secs(60) }
    }

    fn add(own: &mut [u8], received: &[u8]) {
        own.iter_mut().zip(received).for_each(|(own, other)| *own += other);
    }

    /// Receives as much of the message as there is room for; returns the length.
    fn receive(progress: &mut TransferProgress<'_>, bytes: &[u8]) -> usize {
        let room = progress.receive_space();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        progress.add_received(length);
        length
    }

    #[test]
    fn received_bytes_are_folded_only_into_sent_data() {
        let (mut data, mut arrivals) = ([1, 2, 3, 4, 5, 6], [0; 4]);
        let step = exchange();
        let swap = Swap { data: &mut data, fold: &add };
        let mut progress = TransferProgress::swap((&step, &CallHistory::default()), swap, &mut arrivals);
        progress.accept();
        assert_eq!(receive(&mut progress, &[10; 6]), 4);
        assert!(!progress.has_receive_space(), "nothing is sent, so nothing is folded");
        progress.add_sent(HEADER_LEN + 3);
        assert!(!progress.fold());
        assert_eq!(progress.unsent(), Some([&[][..], &[4, 5, 6]]));
        progress.add_sent(1);
        assert!(progress.fold() && progress.has_receive_space());
        assert_eq!(progress.unsent(), Some([&[][..], &[5, 6]]));
        assert_eq!(receive(&mut progress, &[10; 2]), 2);
        assert!(!progress.is_done());
        progress.add_sent(2);
        assert!(progress.fold() && progress.is_done());
        assert_eq!(progress.transferred_bytes(), HEADER_LEN + 12);
        assert_eq!(data, [11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn empty_message_is_still_awaited() {
        let step = exchange();
        let transfer = Transfer { send: None, receive: Some(&mut []) };
        let mut progress = TransferProgress::new((&step, &CallHistory::default()), transfer);
        assert!(progress.wants_to_receive() && progress.is_only_waiting());
        progress.set_gone(true);
        assert!(progress.cannot_complete());
        progress.accept();
        assert!(progress.is_done() && !progress.cannot_complete());
    }
}
