//! The guard's watchdog over the agent, in a job with other nodes that continue without a silent one.
//!
//! The agent ends its workers before other nodes declare its node dead (`rendezvous::thread::Fence`). It cannot do so
//! while it is itself stopped: by SIGSTOP, by a debugger, by a machine that swaps. The guard then kills the workers
//! in its place, and only them: a resumed agent finds them dead and takes part again. Guard and agent share the
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
use nix::unistd::Pid;

use crate::process::descendants::{FoundProcess, kill_below, living_below};

/// A running agent acts at the instant itself, and its kills need a moment to be seen. The other nodes wait for at
/// least another 100 ms (a twentieth of the shortest lease).
const MARGIN: Duration = Duration::from_millis(20);

/// The delay before the next try, if `/proc` cannot be read.
const AGAIN: Duration = Duration::from_millis(10);

/// Shared by guard and agent. Each is a [`Stamp`], or 0 for none.
#[derive(Debug)]
struct SharedDeadlines {
    /// The workers may live until then. The agent postpones it; the guard clears it when it has acted.
    kill_by: AtomicU64,
    /// The instant that the guard has acted on. The guard sets it; the agent clears it when it has read it.
    struck: AtomicU64,
}

/// Either end of the watch, guard's or agent's.
#[derive(Debug, Clone)]
pub struct Watchdog {
    words: &'static SharedDeadlines,
    /// The base of the instants in the shared words. After the fork it is the same for both processes.
    origin: Instant,
    /// Wakes the guard when there is an instant to wait for, and there was none.
    bell: Arc<EventFd>,
}

/// The guard's next action. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchdogAction {
    Nothing,
    At(Instant),
    /// To kill: this instant has passed.
    Now(Instant),
}

fn due(kill_by: Option<Instant>, now: Instant) -> WatchdogAction {
    match kill_by {
        None => WatchdogAction::Nothing,
        Some(kill_by) if kill_by + MARGIN <= now => WatchdogAction::Now(kill_by),
        Some(kill_by) => WatchdogAction::At(kill_by + MARGIN),
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
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), size_of::<SharedDeadlines>(), protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(Errno::last().into());
        }
        // SAFETY: the page is never unmapped, begins with zeros, is aligned for anything, and is used as atomics alone.
        let words = unsafe { &*page.cast::<SharedDeadlines>() };
        Ok(Self { words, origin: now, bell: Arc::new(bell) })
    }

    /// Agent's side: workers may live until `kill_by`. `None` without workers, or if no other node goes on without
    /// this one.
    pub fn expect(&self, kill_by: Option<Instant>) {
        let stamp = Stamp::of(kill_by, self.origin);
        if self.words.kill_by.swap(stamp.0, Ordering::SeqCst) == 0 && stamp.0 > 0 {
            // A count that is full wakes as well.
            let _ = self.bell.write(1);
        }
    }

    /// Agent's side: the instant that the guard has killed for since this was asked last.
    #[must_use]
    pub fn struck(&self) -> Option<Instant> {
        Stamp(self.words.struck.swap(0, Ordering::SeqCst)).instant(self.origin)
    }

    /// Guard's side: if the instant has passed, kills all processes below the agent. Returns the time to wait until;
    /// with `None`, until [`Self::as_fd`] is readable.
    #[must_use]
    pub(super) fn look(&self, agent: Pid, now: Instant) -> Option<Instant> {
        let _ = self.bell.read();
        match due(self.kill_by(), now) {
            WatchdogAction::Nothing => None,
            WatchdogAction::At(at) => Some(at),
            WatchdogAction::Now(kill_by) => match living_below(agent) {
                Ok(living) => {
                    self.strike(agent, kill_by, &living);
                    // Whatever the agent has put it off to since then rings the bell.
                    None
                }
                Err(_) => Some(now + AGAIN),
            },
        }
    }

    /// The instant that was named last and has not been acted on.
    pub(crate) fn kill_by(&self) -> Option<Instant> {
        Stamp(self.words.kill_by.load(Ordering::SeqCst)).instant(self.origin)
    }

    /// `living` was collected before the instant was taken, so it holds no process of a later round: a resumed agent
    /// postpones the instant before it starts workers.
    fn strike(&self, agent: Pid, kill_by: Instant, living: &[FoundProcess]) {
        let stamp = Stamp::of(Some(kill_by), self.origin).0;
        // Published before any of these deaths can be seen.
        if !living.is_empty() {
            self.words.struck.store(stamp, Ordering::SeqCst);
        }
        let words = &self.words;
        if words.kill_by.compare_exchange(stamp, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            let _ = words.struck.compare_exchange(stamp, 0, Ordering::SeqCst, Ordering::SeqCst);
            // The bell is silent where there was an instant before.
            let _ = self.bell.write(1);
            return;
        }
        kill_below(agent, living, &|| self.kill_by().is_none());
    }
}

impl AsFd for Watchdog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
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

    fn rings(watch: &Watchdog) -> bool {
        let mut inputs = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut inputs, PollTimeout::ZERO).unwrap() > 0
    }

    const NOBODY: Pid = Pid::from_raw(i32::MAX);

    #[test]
    fn it_is_due_a_margin_after_the_instant_that_the_agent_has_named_last() {
        let (_, at) = watch();
        assert_eq!(due(None, at(1_000)), WatchdogAction::Nothing);
        assert_eq!(due(Some(at(100)), at(119)), WatchdogAction::At(at(120)), "the agent comes first");
        assert_eq!(due(Some(at(100)), at(120)), WatchdogAction::Now(at(100)));
    }

    #[test]
    fn the_guard_is_woken_only_where_it_waited_for_nothing() {
        let (watch, at) = watch();
        assert_eq!(watch.look(NOBODY, at(0)), None);
        watch.expect(None);
        assert!(!rings(&watch));
        watch.expect(Some(at(100)));
        assert!(rings(&watch));
        assert_eq!(watch.look(NOBODY, at(0)), Some(at(120)));
        watch.expect(Some(at(200)));
        assert!(!rings(&watch), "it looks again in any case");
        assert_eq!(watch.look(NOBODY, at(120)), Some(at(220)));
        watch.expect(None);
        assert_eq!(watch.look(NOBODY, at(300)), None);
    }

    #[test]
    fn where_nobody_lives_nothing_is_said_and_the_next_instant_counts() {
        let (watch, at) = watch();
        watch.expect(Some(at(100)));
        assert_eq!(watch.look(NOBODY, at(120)), None);
        assert_eq!(watch.struck(), None);
        watch.expect(Some(at(200)));
        assert!(rings(&watch));
        assert_eq!(watch.look(NOBODY, at(120)), Some(at(220)));
    }

    #[test]
    fn who_is_put_off_meanwhile_is_spared() {
        let (watch, at) = watch();
        let living = [FoundProcess::of(nix::unistd::getpid()).unwrap()];
        watch.expect(Some(at(200)));
        // This process would be killed here.
        watch.strike(NOBODY, at(100), &living);
        assert_eq!(watch.struck(), None);
        assert!(rings(&watch));
        assert_eq!(watch.look(NOBODY, at(120)), Some(at(220)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a family to be killed")]
    fn whoever_lives_below_the_agent_is_killed_and_it_learns_for_what() {
        let (watch, at) = watch();
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let shell = Pid::from_raw(child.id().try_into().unwrap());
        while living_below(shell).unwrap().is_empty() {
            std::thread::yield_now();
        }
        watch.expect(Some(at(100)));
        assert_eq!(watch.look(shell, at(120)), None);
        // The agent itself, here the shell, lives, and sees that its child was killed.
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!((watch.struck(), watch.struck()), (Some(at(100)), None));
        assert_eq!(watch.look(shell, at(500)), None, "once");
    }
}
