//! The calls of this rank, and which of them are not known to be done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cuda::{CudaMissing, Driver, Event, Query};
use crate::process_group::device::Stream;
use crate::process_group::message::Call;

/// Calls that are kept for questions of other ranks. NCCL's work queues are shorter, so that no
/// rank gets further ahead of another.
const MAX_LOGGED_CALLS: usize = 1024;

/// Idle streams that keep their event.
const MAX_IDLE_STREAMS: usize = 16;

/// The calls of a rank and their completion.
///
/// Calls are asynchronous; events on their streams tell which are done. An event costs more than a
/// small call, so each stream has at most one under way: the first call gets it, and the watching thread
/// moves it behind the calls that followed.
#[derive(Debug)]
pub(super) struct CallLog {
    driver: &'static Driver,
    timeout: Duration,
    /// The latest calls of the whole group, oldest first.
    latest_calls: VecDeque<Call>,
    streams: Vec<MarkedStream>,
    /// The call that the program is making now, and its deadline.
    current_call: Option<(Call, Instant)>,
}

#[derive(Debug)]
struct MarkedStream {
    stream: Stream,
    event: Event,
    /// The call before the event, and its deadline.
    marked_call: Option<(Call, Instant)>,
    /// The first call after the event.
    next_call: Option<Call>,
}

impl CallLog {
    pub(super) fn new(driver: &'static Driver, timeout: Duration) -> Self {
        Self { driver, timeout, latest_calls: VecDeque::new(), streams: Vec::new(), current_call: None }
    }

    /// Notes the beginning of a call, which must be done by `deadline`.
    pub(super) fn begin_call(&mut self, call: Call, deadline: Instant, is_collective: bool) {
        if is_collective {
            if self.latest_calls.len() == MAX_LOGGED_CALLS {
                self.latest_calls.pop_front();
            }
            self.latest_calls.push_back(call);
        }
        // Of a group of calls only the first is kept.
        self.current_call.get_or_insert((call, deadline));
    }

    /// Notes that the current call is enqueued on `stream`.
    ///
    /// # Safety
    /// `stream` is a stream of the current context, and stays valid until the call is known to be done.
    #[expect(unsafe_code, reason = "marks the caller's stream")]
    pub(super) unsafe fn record_stream(&mut self, stream: Stream) -> Result<(), CudaMissing> {
        let Some((call, deadline)) = self.current_call.take() else { return Ok(()) };
        let at = match self.streams.iter().position(|entry| entry.stream == stream) {
            Some(at) => at,
            None => {
                if self.streams.len() >= MAX_IDLE_STREAMS {
                    self.streams.retain(|entry| entry.marked_call.is_some());
                }
                let event = self.driver.event()?;
                self.streams.push(MarkedStream { stream, event, marked_call: None, next_call: None });
                self.streams.len() - 1
            }
        };
        let entry = &mut self.streams[at];
        if entry.marked_call.is_some() {
            entry.next_call.get_or_insert(call);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { entry.event.record(stream.0) }?;
        entry.marked_call = Some((call, deadline));
        Ok(())
    }

    /// Notes that the current call failed before it was enqueued.
    pub(super) fn cancel_current(&mut self) {
        self.current_call = None;
    }

    /// Updates which calls are done.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn update_done(&mut self, now: Instant) -> Result<(), CudaMissing> {
        let timeout = self.timeout;
        self.streams.iter_mut().try_for_each(|entry| entry.update_done(now + timeout))
    }

    /// Whether a call is not known to be done.
    pub(super) fn is_busy(&self) -> bool {
        self.current_call.is_some() || self.streams.iter().any(|entry| entry.marked_call.is_some())
    }

    /// The call whose deadline passed first.
    pub(super) fn overdue_call(&self, now: Instant) -> Option<Call> {
        let marks = self.streams.iter().filter_map(|entry| entry.marked_call).chain(self.current_call);
        let late = marks.filter(|(_, deadline)| *deadline <= now);
        late.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call)
    }

    /// Number of calls of the whole group so far.
    pub(super) fn call_count(&self) -> u64 {
        self.latest_calls.back().map_or(0, |call| call.sequence)
    }

    /// This rank's call with the sequence number of `call`, else its last call.
    pub(super) fn call_with_sequence_of(&self, call: &Call) -> Option<Call> {
        let same = self.latest_calls.iter().rev().find(|made| made.sequence == call.sequence);
        same.or(self.latest_calls.back()).copied()
    }

    /// The oldest call that is not known to be done, else the last call.
    pub(super) fn oldest_pending(&self) -> Option<Call> {
        let marks = self.streams.iter().filter_map(|entry| entry.marked_call).chain(self.current_call);
        let oldest = marks.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call);
        oldest.or(self.latest_calls.back().copied())
    }

    /// All work of `stream` is done; the stream may be destroyed.
    pub(super) fn forget_stream(&mut self, stream: Stream) {
        self.streams.retain(|entry| entry.stream != stream);
    }

    /// The streams may be destroyed: moves each event behind the last call of its stream.
    pub(super) fn mark_all_streams(&mut self) {
        for entry in &mut self.streams {
            let Some(call) = entry.next_call.take() else { continue };
            // SAFETY: the promise of `record_stream`: the stream is valid until now.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            let marked = unsafe { entry.event.record(entry.stream.0) };
            // A call without a mark counts as done; the next check reports a failed device.
            entry.marked_call =
                entry.marked_call.take().filter(|_| marked.is_ok()).map(|(_, deadline)| (call, deadline));
        }
    }

    /// Drops all events: the driver is not used again.
    pub(super) fn clear(&mut self) {
        self.streams.clear();
        self.current_call = None;
    }
}

impl MarkedStream {
    fn update_done(&mut self, deadline: Instant) -> Result<(), CudaMissing> {
        if self.marked_call.is_none() || self.event.query()? == Query::Pending {
            return Ok(());
        }
        self.marked_call = None;
        if let Some(call) = self.next_call.take() {
            // SAFETY: the promise of `record_stream`: the stream is valid until the call is known to be done.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            unsafe { self.event.record(self.stream.0) }?;
            self.marked_call = Some((call, deadline));
        }
        Ok(())
    }
}
