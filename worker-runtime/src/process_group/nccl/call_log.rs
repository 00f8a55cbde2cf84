//! The calls of this rank, and which of them are not known to be done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cuda::{CudaMissing, Driver, Event, Query};
use crate::process_group::device::Stream;
use crate::process_group::message::Call;

/// Calls that are kept for questions of other ranks. NCCL's work queues are shorter, so that no
/// rank gets further ahead of another.
const REMEMBERED: usize = 1024;

/// Idle streams that keep their event.
const MOST_IDLE: usize = 16;

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
    made: VecDeque<Call>,
    streams: Vec<MarkedStream>,
    /// The call that the program is making now, and its deadline.
    inside: Option<(Call, Instant)>,
}

#[derive(Debug)]
struct MarkedStream {
    stream: Stream,
    event: Event,
    /// The call before the event, and its deadline.
    mark: Option<(Call, Instant)>,
    /// The first call after the event.
    behind: Option<Call>,
}

impl CallLog {
    pub(super) fn new(driver: &'static Driver, timeout: Duration) -> Self {
        Self { driver, timeout, made: VecDeque::new(), streams: Vec::new(), inside: None }
    }

    /// Notes the beginning of a call, which must be done by `deadline`.
    pub(super) fn begin(&mut self, call: Call, deadline: Instant, is_of_all: bool) {
        if is_of_all {
            if self.made.len() == REMEMBERED {
                self.made.pop_front();
            }
            self.made.push_back(call);
        }
        // Of a group of calls only the first is kept.
        self.inside.get_or_insert((call, deadline));
    }

    /// Notes that the current call is enqueued on `stream`.
    ///
    /// # Safety
    /// `stream` is a stream of the current context, and stays valid until the call is known to be done.
    #[expect(unsafe_code, reason = "marks the caller's stream")]
    pub(super) unsafe fn put_on(&mut self, stream: Stream) -> Result<(), CudaMissing> {
        let Some((call, deadline)) = self.inside.take() else { return Ok(()) };
        let at = match self.streams.iter().position(|entry| entry.stream == stream) {
            Some(at) => at,
            None => {
                if self.streams.len() >= MOST_IDLE {
                    self.streams.retain(|entry| entry.mark.is_some());
                }
                let event = self.driver.event()?;
                self.streams.push(MarkedStream { stream, event, mark: None, behind: None });
                self.streams.len() - 1
            }
        };
        let entry = &mut self.streams[at];
        if entry.mark.is_some() {
            entry.behind.get_or_insert(call);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { entry.event.record(stream.0) }?;
        entry.mark = Some((call, deadline));
        Ok(())
    }

    /// Notes that the current call failed before it was enqueued.
    pub(super) fn cancel_current(&mut self) {
        self.inside = None;
    }

    /// Updates which calls are done.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn look(&mut self, now: Instant) -> Result<(), CudaMissing> {
        let timeout = self.timeout;
        self.streams.iter_mut().try_for_each(|entry| entry.look(now + timeout))
    }

    /// Whether a call is not known to be done.
    pub(super) fn is_busy(&self) -> bool {
        self.inside.is_some() || self.streams.iter().any(|entry| entry.mark.is_some())
    }

    /// The call whose deadline passed first.
    pub(super) fn overdue(&self, now: Instant) -> Option<Call> {
        let marks = self.streams.iter().filter_map(|entry| entry.mark).chain(self.inside);
        let late = marks.filter(|(_, deadline)| *deadline <= now);
        late.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call)
    }

    /// Number of calls of the whole group so far.
    pub(super) fn count(&self) -> u64 {
        self.made.back().map_or(0, |call| call.sequence)
    }

    /// This rank's call with the sequence number of `call`, else its last call.
    pub(super) fn at(&self, call: &Call) -> Option<Call> {
        let same = self.made.iter().rev().find(|made| made.sequence == call.sequence);
        same.or(self.made.back()).copied()
    }

    /// The oldest call that is not known to be done, else the last call.
    pub(super) fn oldest(&self) -> Option<Call> {
        let marks = self.streams.iter().filter_map(|entry| entry.mark).chain(self.inside);
        let oldest = marks.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call);
        oldest.or(self.made.back().copied())
    }

    /// All work of `stream` is done; the stream may be destroyed.
    pub(super) fn forget_stream(&mut self, stream: Stream) {
        self.streams.retain(|entry| entry.stream != stream);
    }

    /// The streams may be destroyed: moves each event behind the last call of its stream.
    pub(super) fn mark_all_streams(&mut self) {
        for entry in &mut self.streams {
            let Some(call) = entry.behind.take() else { continue };
            // SAFETY: the promise of `put_on`: the stream is valid until now.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            let marked = unsafe { entry.event.record(entry.stream.0) };
            // A call without a mark counts as done; the next check reports a failed device.
            entry.mark = entry.mark.take().filter(|_| marked.is_ok()).map(|(_, deadline)| (call, deadline));
        }
    }

    /// Drops all events: the driver is not used again.
    pub(super) fn clear(&mut self) {
        self.streams.clear();
        self.inside = None;
    }
}

impl MarkedStream {
    fn look(&mut self, deadline: Instant) -> Result<(), CudaMissing> {
        if self.mark.is_none() || self.event.query()? == Query::Pending {
            return Ok(());
        }
        self.mark = None;
        if let Some(call) = self.behind.take() {
            // SAFETY: the promise of `put_on`: the stream is valid until the call is known to be done.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            unsafe { self.event.record(self.stream.0) }?;
            self.mark = Some((call, deadline));
        }
        Ok(())
    }
}
