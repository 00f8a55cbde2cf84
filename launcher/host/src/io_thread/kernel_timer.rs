//! A timer of the kernel for a task. A timer of the runtime wakes the thread twice for a deadline that is more than 64 ms
//! away: its wheel has coarse slots.
#![expect(unsafe_code, reason = "tokio asks its callers to keep a registered descriptor open")]

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer with a descriptor. It is not set at first.
#[derive(Debug)]
pub(crate) struct KernelTimer(AsyncFd<OwnedFd>);

impl KernelTimer {
    /// A timer on the calling task's runtime.
    ///
    /// # Errors
    /// Too few descriptors are left.
    pub(crate) fn new() -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: the descriptor is owned by the value that is registered, and nothing replaces it.
        Ok(Self(unsafe { AsyncFd::register(timer) }?))
    }

    /// Sets it to expire once, so much later.
    ///
    /// # Errors
    /// The kernel takes no time of this length.
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        let it_value = Timespec::try_from(after).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Returns when it has expired since it was set. May be dropped at any time.
    pub(crate) async fn expired(&self) {
        // Without the runtime's descriptors nothing else on its thread waits either.
        while let Ok(mut ready) = self.0.readable().await {
            if ready.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?)).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn timer_expires_once_for_each_time_it_is_set() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = KernelTimer::new().unwrap();
            for _ in 0..3 {
                timer.set(Duration::from_millis(1)).unwrap();
                timer.expired().await;
            }
            timeout(Duration::from_millis(20), timer.expired()).await.unwrap_err();
            timer.set(Duration::from_secs(3600)).unwrap();
            timer.set(Duration::from_millis(1)).unwrap();
            timer.expired().await;
        });
    }
}
