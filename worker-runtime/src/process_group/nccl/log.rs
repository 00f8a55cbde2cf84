//! What this rank has called, and which of it is not known to be done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cuda::{CudaMissing, Driver, Event, Query};
use crate::process_group::device::Stream;
use crate::process_group::message::Call;

/// So many calls are remembered for other ranks' questions. NCCL lets no rank get further ahead of another one: its work
/// queues are shorter.
const REMEMBERED: usize = 1024;

/// So many streams without work keep their events.
const MOST_IDLE: usize = 16;

/// The calls of a rank.
///
/// Calls are asynchronous, so that what is done is learnt from events on their streams. An event costs more than a small call;
/// therefore there is at most one under way per stream: the first call gets it, and the thread that watches gives the next
/// one to whatever came after.
#[derive(Debug)]
pub(super) struct Log {
    driver: &'static Driver,
    timeout: Duration,
    /// The last calls of the whole group.
    made: VecDeque<Call>,
    lanes: Vec<Lane>,
    /// The call with which the program is inside the library.
    inside: Option<(Call, Instant)>,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    event: Event,
    /// What the event marks, and when it must be done.
    mark: Option<(Call, Instant)>,
    /// The first call behind the mark.
    behind: Option<Call>,
}

impl Log {
    pub(super) fn new(driver: &'static Driver, timeout: Duration) -> Self {
        Self { driver, timeout, made: VecDeque::new(), lanes: Vec::new(), inside: None }
    }

    /// A call begins, and must be done by `deadline`.
    pub(super) fn begin(&mut self, call: Call, deadline: Instant, is_of_all: bool) {
        if is_of_all {
            if self.made.len() == REMEMBERED {
                self.made.pop_front();
            }
            self.made.push_back(call);
        }
        // Of calls that are made as one, the first.
        self.inside.get_or_insert((call, deadline));
    }

    /// The call that began last is on its stream.
    ///
    /// # Safety
    /// `stream` is a stream of the current context, and stays until the call is known to be done.
    #[expect(unsafe_code, reason = "marks the caller's stream")]
    pub(super) unsafe fn put_on(&mut self, stream: Stream) -> Result<(), CudaMissing> {
        let Some((call, deadline)) = self.inside.take() else { return Ok(()) };
        let at = match self.lanes.iter().position(|lane| lane.stream == stream) {
            Some(at) => at,
            None => {
                if self.lanes.len() >= MOST_IDLE {
                    self.lanes.retain(|lane| lane.mark.is_some());
                }
                let event = self.driver.event()?;
                self.lanes.push(Lane { stream, event, mark: None, behind: None });
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[at];
        if lane.mark.is_some() {
            lane.behind.get_or_insert(call);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { lane.event.record(stream.0) }?;
        lane.mark = Some((call, deadline));
        Ok(())
    }

    /// The program is out of the library, and nothing is on a stream.
    pub(super) fn give_up(&mut self) {
        self.inside = None;
    }

    /// Learns what is done by now.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn look(&mut self, now: Instant) -> Result<(), CudaMissing> {
        let timeout = self.timeout;
        self.lanes.iter_mut().try_for_each(|lane| lane.look(now + timeout))
    }

    /// Whether anything is not known to be done.
    pub(super) fn is_busy(&self) -> bool {
        self.inside.is_some() || self.lanes.iter().any(|lane| lane.mark.is_some())
    }

    /// The call whose deadline has passed first.
    pub(super) fn overdue(&self, now: Instant) -> Option<Call> {
        let marks = self.lanes.iter().filter_map(|lane| lane.mark).chain(self.inside);
        let late = marks.filter(|(_, deadline)| *deadline <= now);
        late.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call)
    }

    /// Calls of the whole group so far.
    pub(super) fn count(&self) -> u64 {
        self.made.back().map_or(0, |call| call.sequence)
    }

    /// What this rank calls at the place of `call`: that call, or the last one if it has not come so far.
    pub(super) fn at(&self, call: &Call) -> Option<Call> {
        let same = self.made.iter().rev().find(|made| made.sequence == call.sequence);
        same.or(self.made.back()).copied()
    }

    /// The call that is not known to be done for the longest time, or the last one.
    pub(super) fn oldest(&self) -> Option<Call> {
        let marks = self.lanes.iter().filter_map(|lane| lane.mark).chain(self.inside);
        let oldest = marks.min_by_key(|(_, deadline)| *deadline).map(|(call, _)| call);
        oldest.or(self.made.back().copied())
    }

    /// All is done that was put on `stream`, which may go away now.
    pub(super) fn forget(&mut self, stream: Stream) {
        self.lanes.retain(|lane| lane.stream != stream);
    }

    /// The streams may go away: whatever is behind a mark gets one now. An event that is marked again forgets its first place,
    /// which is before the second one.
    pub(super) fn let_go(&mut self) {
        for lane in &mut self.lanes {
            let Some(call) = lane.behind.take() else { continue };
            // SAFETY: who put the call there promised that the stream stays until now.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            let marked = unsafe { lane.event.record(lane.stream.0) };
            // What cannot be marked counts as done; a device that fails says so at the next look.
            lane.mark = lane.mark.take().filter(|_| marked.is_ok()).map(|(_, deadline)| (call, deadline));
        }
    }

    /// Nothing more is asked of the driver.
    pub(super) fn clear(&mut self) {
        self.lanes.clear();
        self.inside = None;
    }
}

impl Lane {
    fn look(&mut self, deadline: Instant) -> Result<(), CudaMissing> {
        if self.mark.is_none() || self.event.query()? == Query::Pending {
            return Ok(());
        }
        self.mark = None;
        if let Some(call) = self.behind.take() {
            // SAFETY: who put the call there promised that the stream stays until it is known to be done.
            #[expect(unsafe_code, reason = "marks the caller's stream")]
            unsafe { self.event.record(self.stream.0) }?;
            self.mark = Some((call, deadline));
        }
        Ok(())
    }
}
