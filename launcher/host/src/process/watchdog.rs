//! The guard's watchdog over the agent, in a job with other nodes that continue without a silent one.
//!
//! The agent ends its workers before other nodes declare its node dead (`rendezvous::task::LeaseDeadlines`). It cannot
//! do so while it is itself stopped: by SIGSTOP, by a debugger, by a machine that swaps. The guard then kills the
//! workers in its place, and only them: a resumed agent finds them dead and takes part again. Guard and agent share the
//! deadline and the answer in two words of memory, so a heartbeat costs no system call.
#![expect(unsafe_code, reason = "memory that outlives a fork is not to be had from nix as we build it")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use rankrun_core::posix::Pid;

use crate::process::descendants::{FoundProcess, kill_descendants_of, live_descendants};

/// A running agent acts at the instant itself, and its kills need a moment to be seen. The other nodes wait for at
/// least another 100 ms (a twentieth of the shortest lease).
const KILL_MARGIN: Duration = Duration::from_millis(20);

/// The delay before the next try, if `/proc` cannot be read.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Shared by guard and agent. Each is a [`Stamp`], or 0 for none.
#[derive(Debug)]
struct SharedDeadlines {
    /// The workers may live until then. The agent postpones it; the guard clears it when it has acted.
    kill_by: AtomicU64,
    /// The instant that the guard has acted on. The guard sets it; the agent clears it when it has read it.
    killed_for: AtomicU64,
}

/// Either end of the watch, guard's or agent's.
#[derive(Debug, Clone)]
pub struct Watchdog {
    deadlines: &'static SharedDeadlines,
    /// The base of the instants in the shared words. After the fork it is the same for both processes.
    origin: Instant,
    /// Wakes the guard when there is an instant to wait for, and there was none.
    wake_event: Arc<EventFd>,
}

/// The guard's next action. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchdogAction {
    Wait,
    KillAt(Instant),
    /// To kill: this instant has passed.
    KillNow(Instant),
}

fn next_action(kill_by: Option<Instant>, now: Instant) -> WatchdogAction {
    match kill_by {
        None => WatchdogAction::Wait,
        Some(kill_by) if kill_by + KILL_MARGIN <= now => WatchdogAction::KillNow(kill_by),
        Some(kill_by) => WatchdogAction::KillAt(kill_by + KILL_MARGIN),
    }
}

/// An instant as a word: nanoseconds, and never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    fn of(at: Option<Instant>, origin: Instant) -> Self {
        let nanos = |at: Instant| at.saturating_duration_since(origin).as_nanos();
        Self(at.map_or(0, |at| u64::try_from(nanos(at)).unwrap_or(u64::MAX).max(1)))
    }

    fn instant(self, origin: Instant) -> Option<Instant> {
        (self.0 > 0).then(|| origin + Duration::from_nanos(self.0))
    }
}

impl Watchdog {
    /// Before the fork, at this instant. The page is never given back.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(now: Instant) -> io::Result<Self> {
        let wake_event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), size_of::<SharedDeadlines>(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(Errno::last().into());
        }
        // SAFETY: the page is never unmapped, begins with zeros, is aligned for anything, and is used as atomics alone.
        let deadlines = unsafe { &*page.cast::<SharedDeadlines>() };
        Ok(Self { deadlines, origin: now, wake_event: Arc::new(wake_event) })
    }

    /// Agent's side: workers may live until `kill_by`. `None` without workers, or if no other node continues without
    /// this one.
    pub(crate) fn set_kill_deadline(&self, kill_by: Option<Instant>) {
        let stamp = Stamp::of(kill_by, self.origin);
        if self.deadlines.kill_by.swap(stamp.0, Ordering::SeqCst) == 0 && stamp.0 > 0 {
            // A count that is full wakes as well.
            let _ = self.wake_event.write(1);
        }
    }

    /// Agent's side: the instant that the guard has killed for since this was asked last.
    #[must_use]
    pub(crate) fn take_killed_deadline(&self) -> Option<Instant> {
        Stamp(self.deadlines.killed_for.swap(0, Ordering::SeqCst)).instant(self.origin)
    }

    /// Guard's side: if the instant has passed, kills all processes below the agent. Returns the time to wait until;
    /// with `None`, until [`Self::as_fd`] is readable.
    #[must_use]
    pub(super) fn kill_if_overdue(&self, agent: Pid, now: Instant) -> Option<Instant> {
        let _ = self.wake_event.read();
        match next_action(self.kill_by(), now) {
            WatchdogAction::Wait => None,
            WatchdogAction::KillAt(at) => Some(at),
            WatchdogAction::KillNow(kill_by) => match live_descendants(agent) {
                Ok(processes) => {
                    self.kill_unless_postponed(agent, kill_by, &processes);
                    // If the agent has postponed it since then, it writes to `wake_event`.
                    None
                }
                Err(_) => Some(now + RETRY_DELAY),
            },
        }
    }

    /// The instant that was named last and has not been acted on.
    pub(crate) fn kill_by(&self) -> Option<Instant> {
        Stamp(self.deadlines.kill_by.load(Ordering::SeqCst)).instant(self.origin)
    }

    /// `processes` was collected before the instant was taken, so it holds no process of a later round: a resumed agent
    /// postpones the instant before it starts workers.
    fn kill_unless_postponed(&self, agent: Pid, kill_by: Instant, processes: &[FoundProcess]) {
        let stamp = Stamp::of(Some(kill_by), self.origin).0;
        // Published before any of these deaths can be seen.
        if !processes.is_empty() {
            self.deadlines.killed_for.store(stamp, Ordering::SeqCst);
        }
        let deadlines = &self.deadlines;
        if deadlines.kill_by.compare_exchange(stamp, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            let _ = deadlines.killed_for.compare_exchange(stamp, 0, Ordering::SeqCst, Ordering::SeqCst);
            // The agent's write does not wake the guard if an instant was set before.
            let _ = self.wake_event.write(1);
            return;
        }
        kill_descendants_of(agent, processes, &|| self.kill_by().is_none());
    }
}

impl AsFd for Watchdog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn watch() -> (Watchdog, impl Fn(u64) -> Instant) {
        #[expect(clippy::disallowed_methods, reason = "a test's clock starts somewhere")]
        let origin = Instant::now();
        (Watchdog::open(origin).unwrap(), move |millis| origin + Duration::from_millis(millis))
    }

    fn is_guard_woken(watch: &Watchdog) -> bool {
        let mut inputs = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut inputs, PollTimeout::ZERO).unwrap() > 0
    }

    const NO_SUCH_PID: Pid = Pid::from_raw(i32::MAX);

    #[test]
    fn watchdog_is_due_one_margin_after_kill_deadline() {
        let (_, at) = watch();
        assert_eq!(next_action(None, at(1_000)), WatchdogAction::Wait);
        assert_eq!(
            next_action(Some(at(100)), at(119)),
            WatchdogAction::KillAt(at(120)),
            "the agent comes first"
        );
        assert_eq!(next_action(Some(at(100)), at(120)), WatchdogAction::KillNow(at(100)));
    }

    #[test]
    fn guard_is_woken_only_if_it_had_no_deadline() {
        let (watch, at) = watch();
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(0)), None);
        watch.set_kill_deadline(None);
        assert!(!is_guard_woken(&watch));
        watch.set_kill_deadline(Some(at(100)));
        assert!(is_guard_woken(&watch));
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(0)), Some(at(120)));
        watch.set_kill_deadline(Some(at(200)));
        assert!(!is_guard_woken(&watch), "it looks again in any case");
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(120)), Some(at(220)));
        watch.set_kill_deadline(None);
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(300)), None);
    }

    #[test]
    fn without_descendants_watchdog_reports_nothing_and_rearms() {
        let (watch, at) = watch();
        watch.set_kill_deadline(Some(at(100)));
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(120)), None);
        assert_eq!(watch.take_killed_deadline(), None);
        watch.set_kill_deadline(Some(at(200)));
        assert!(is_guard_woken(&watch));
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(120)), Some(at(220)));
    }

    #[test]
    fn deadline_moved_before_kill_spares_processes() {
        let (watch, at) = watch();
        let processes = [FoundProcess::of(crate::process::own_pid()).unwrap()];
        watch.set_kill_deadline(Some(at(200)));
        // This process would be killed here.
        watch.kill_unless_postponed(NO_SUCH_PID, at(100), &processes);
        assert_eq!(watch.take_killed_deadline(), None);
        assert!(is_guard_woken(&watch));
        assert_eq!(watch.kill_if_overdue(NO_SUCH_PID, at(120)), Some(at(220)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a family to be killed")]
    fn agent_descendants_are_killed_and_deadline_is_reported() {
        let (watch, at) = watch();
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let shell = Pid::from_raw(child.id().try_into().unwrap());
        while live_descendants(shell).unwrap().is_empty() {
            std::thread::yield_now();
        }
        watch.set_kill_deadline(Some(at(100)));
        assert_eq!(watch.kill_if_overdue(shell, at(120)), None);
        // The agent itself, here the shell, lives, and sees that its child was killed.
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!((watch.take_killed_deadline(), watch.take_killed_deadline()), (Some(at(100)), None));
        assert_eq!(watch.kill_if_overdue(shell, at(500)), None, "once");
    }
}
