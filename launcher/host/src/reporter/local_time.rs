//! Local time of this machine in torchrun's format. jiff knows `TZ` and the zone files.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Year, month, day and time of day in the local time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime(DateTime);

impl LocalTime {
    /// The local time at that moment; the start of 1970 for times outside of the calendar.
    #[must_use]
    pub fn of(at: SystemTime) -> Self {
        Self(TimeZone::system().to_datetime(Timestamp::try_from(at).unwrap_or_default()))
    }

    /// As torch's log lines begin: `1121 19:11:52.657000`.
    #[must_use]
    pub(crate) fn log_stamp(&self) -> String {
        self.0.strftime("%m%d %H:%M:%S%.3f000").to_string()
    }
}

/// As in torchrun's failure report: `2026-11-20_22:02:16`.
impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.strftime("%Y-%m-%d_%H:%M:%S").fmt(f)
    }
}

/// A fixed time for the tests of rendered texts: 2026-11-20, 22:02:16.657.
#[cfg(test)]
pub(crate) const EXAMPLE: LocalTime = LocalTime(DateTime::constant(2026, 11, 20, 22, 2, 16, 657_000_000));

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn local_time_has_torchrun_format() {
        assert_eq!(EXAMPLE.to_string(), "2026-11-20_22:02:16");
        assert_eq!(EXAMPLE.log_stamp(), "1120 22:02:16.657000");
        let whole = LocalTime(DateTime::constant(2026, 1, 2, 3, 4, 5, 0));
        assert_eq!(whole.log_stamp(), "0102 03:04:05.000000");
    }

    #[test]
    fn local_time_accepts_far_future() {
        for seconds in [0, 1_700_000_000, u64::from(u32::MAX), i64::MAX as u64] {
            let Some(at) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { continue };
            assert!(LocalTime::of(at).to_string().len() >= 19);
        }
    }
}
