//! The timers of PyTorch's `FileTimerClient`: a program sets one before a part that may hang, and releases it behind the
//! part. A timer that expires ends its process by the signal that the timer names (contract 3.10).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::posix::{Pid, Signal};

/// A line is written at once, so it has at most `PIPE_BUF` bytes.
pub const MAX_REQUEST: usize = 4096;
/// Timers at one time. A worker has a few, and a program that sets more does not release them.
const MAX_TIMERS: usize = 10_000;

/// Why a line is not a request.
#[derive(Debug, thiserror::Error)]
pub enum TimerError {
    #[error("it is longer than {MAX_REQUEST} bytes")]
    TooLong,
    #[error("it is not a timer in JSON")]
    Json(#[from] serde_json::Error),
    #[error("there are {MAX_TIMERS} timers already")]
    TooMany,
}

#[derive(Deserialize)]
struct Request {
    pid: i32,
    scope_id: String,
    /// Seconds since 1970; a negative one releases the timer.
    expiration_time: f64,
    signal: i32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct FileTimer {
    expires: Duration,
    signal: i32,
}

/// All timers that are set, by pid and scope.
#[derive(Debug, Default)]
pub struct FileTimers(BTreeMap<(i32, String), FileTimer>);

impl FileTimers {
    /// Sets or releases a timer by one line.
    ///
    /// # Errors
    /// The line is not a request, or there are too many timers.
    pub fn record(&mut self, line: &[u8]) -> Result<(), TimerError> {
        if line.len() > MAX_REQUEST {
            return Err(TimerError::TooLong);
        }
        let Request { pid, scope_id, expiration_time, signal } = serde_json::from_slice(line)?;
        let key = (pid, scope_id);
        // A time that no clock shows never comes.
        let Ok(expires) = Duration::try_from_secs_f64(expiration_time) else {
            self.0.remove(&key);
            return Ok(());
        };
        if self.0.len() >= MAX_TIMERS && !self.0.contains_key(&key) {
            return Err(TimerError::TooMany);
        }
        self.0.insert(key, FileTimer { expires, signal });
        Ok(())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The processes with an expired timer, each with the signal of its first one that has a signal. Their timers are
    /// removed.
    pub fn take_expired(&mut self, now: SystemTime) -> Vec<(Pid, Signal)> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut first: BTreeMap<i32, FileTimer> = BTreeMap::new();
        for ((pid, _), timer) in self.0.iter().filter(|(_, timer)| timer.expires <= now && timer.signal > 0) {
            let earliest = first.entry(*pid).or_insert(*timer);
            if timer.expires < earliest.expires {
                *earliest = *timer;
            }
        }
        self.0.retain(|(pid, _), timer| timer.expires > now && !first.contains_key(pid));
        let signalled = first.into_iter().filter(|(pid, _)| *pid > 1);
        signalled
            .filter_map(|(pid, timer)| Some((Pid::from_raw(pid), Signal::try_from(timer.signal).ok()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: i32, scope: &str, expires: f64, signal: i32) -> Vec<u8> {
        format!(
            r#"{{"version": 1, "pid": {pid}, "scope_id": "{scope}", "expiration_time": {expires}, "signal": {signal}}}"#
        )
        .into_bytes()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn expired_timer_gives_signal_of_earliest_once() {
        let mut timers = FileTimers::default();
        for request in
            [line(7, "a", 20.5, 9), line(7, "b", 10.0, 15), line(7, "c", 5.0, 0), line(8, "a", 99.0, 9)]
        {
            timers.record(&request).unwrap();
        }
        assert_eq!(timers.take_expired(at(9)), []);
        assert_eq!(timers.take_expired(at(30)), [(Pid::from_raw(7), Signal::SIGTERM)]);
        assert_eq!(timers.take_expired(at(30)), []);
        assert_eq!(timers.0.len(), 1);
    }

    #[test]
    fn negative_time_releases_timer() {
        let mut timers = FileTimers::default();
        timers.record(&line(7, "a", 10.0, 9)).unwrap();
        timers.record(&line(7, "a", -1.0, 0)).unwrap();
        assert_eq!(timers.take_expired(at(30)), []);
    }

    #[test]
    fn garbage_is_an_error_and_no_pid_reaches_a_group() {
        let mut timers = FileTimers::default();
        for text in [b"".as_slice(), b"{}", b"[1]", b"\xff", &[b'x'; MAX_REQUEST + 1]] {
            assert!(timers.record(text).is_err());
        }
        for pid in [0, 1, -1, -7] {
            timers.record(&line(pid, "a", 1.0, 9)).unwrap();
        }
        timers.record(&line(7, "a", 1.0, 4_000)).unwrap();
        assert_eq!(timers.take_expired(at(30)), []);
        for scope in 0..MAX_TIMERS {
            timers.record(&line(7, &scope.to_string(), 1.0, 9)).unwrap();
        }
        assert!(matches!(timers.record(&line(7, "one more", 1.0, 9)), Err(TimerError::TooMany)));
    }
}
