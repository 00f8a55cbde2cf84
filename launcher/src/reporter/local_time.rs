//! Local time of this machine in torchrun's format. Data comes from `localtime_r(3)`.
#![expect(unsafe_code, reason = "the C library is asked, which knows `TZ` and the zone files")]

use std::fmt;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Year, month, day and time of day in the local time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    year: i64,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
    millisecond: u16,
}

impl LocalTime {
    /// The local time at that moment; the start of 1970 for times outside of the calendar.
    #[must_use]
    pub fn of(at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        broken_down(since).or_else(|| broken_down(Duration::ZERO)).unwrap_or(Self {
            year: 1970,
            month: 1,
            day: 1,
            hour: 0,
            minute: 0,
            second: 0,
            millisecond: 0,
        })
    }

    /// As torch's log lines begin: `1121 19:11:52.657000`.
    #[must_use]
    pub fn log_stamp(&self) -> String {
        let Self { month, day, hour, minute, second, millisecond, .. } = self;
        format!("{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}000")
    }
}

/// As in torchrun's failure report: `2026-11-20_22:02:16`.
impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second, .. } = self;
        write!(f, "{year:04}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02}")
    }
}

fn broken_down(since: Duration) -> Option<LocalTime> {
    let seconds = libc::time_t::try_from(since.as_secs()).ok()?;
    let mut parts = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call. It reads the environment (`TZ`) once, and no thread changes the
    // environment.
    if unsafe { libc::localtime_r(&raw const seconds, parts.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: it was filled in.
    let parts = unsafe { parts.assume_init() };
    Some(LocalTime {
        year: i64::from(parts.tm_year) + 1900,
        month: u8::try_from(parts.tm_mon + 1).ok()?,
        day: u8::try_from(parts.tm_mday).ok()?,
        hour: u8::try_from(parts.tm_hour).ok()?,
        minute: u8::try_from(parts.tm_min).ok()?,
        second: u8::try_from(parts.tm_sec).ok()?,
        millisecond: u16::try_from(since.subsec_millis()).ok()?,
    })
}

/// A fixed time for the tests of rendered texts: 2026-11-20, 22:02:16.657.
#[cfg(test)]
pub(crate) const EXAMPLE: LocalTime =
    LocalTime { year: 2026, month: 11, day: 20, hour: 22, minute: 2, second: 16, millisecond: 657 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_has_torchrun_format() {
        assert_eq!(EXAMPLE.to_string(), "2026-11-20_22:02:16");
        assert_eq!(EXAMPLE.log_stamp(), "1120 22:02:16.657000");
    }

    #[test]
    fn local_time_accepts_far_future() {
        for seconds in [0, 1_700_000_000, u64::from(u32::MAX), i64::MAX as u64] {
            let Some(at) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { continue };
            assert!(LocalTime::of(at).to_string().len() >= 19);
        }
    }
}
