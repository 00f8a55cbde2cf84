//! Values as people write them, wherever an option asks for one: times.

use std::ffi::OsStr;
use std::time::Duration;

use super::error::{Expected, hint_for_time};
use super::option::{FromText, OptionValue};
use super::python_text::parse_float;
use super::settings::{Setting, Settings};
use rankrun_core::spec::MAX_DURATION;

pub(super) const TIME_OR_ZERO: Expected =
    Expected::new("a time such as `90` (seconds), `1.5s`, `5m`, `1h30m` or `1-12:00:00`", "1h30m")
        .advised(hint_for_time);
const TIME: Expected =
    Expected::new("a time above 0 such as `90` (seconds), `1.5s`, `5m`, `1h30m` or `1-12:00:00`", "1h30m")
        .advised(hint_for_time);

/// humantime knows months and years; `5M` is more likely a slip for minutes.
const TOO_LONG_UNITS: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

/// A time; it may be zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(Duration);

/// A time above zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct PositiveTime(Duration);

impl FromText for Time {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_time).map(Self)
    }

    fn expected() -> Option<Expected> {
        Some(TIME_OR_ZERO)
    }
}

impl FromText for PositiveTime {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_time).filter(|time| !time.is_zero()).map(Self)
    }

    fn expected() -> Option<Expected> {
        Some(TIME)
    }
}

impl From<Time> for Duration {
    fn from(Time(time): Time) -> Self {
        time
    }
}

impl From<PositiveTime> for Duration {
    fn from(PositiveTime(time): PositiveTime) -> Self {
        time
    }
}

/// The time that an option says.
pub(super) fn time(
    settings: &Settings<'_>,
    value: &Option<OptionValue<impl FromText + Into<Duration>>>,
) -> Option<Setting<Duration>> {
    let Setting { origin, value } = settings.get(value)?;
    Some(Setting { origin, value: value.into() })
}

/// Seconds, numbers with units, or as Slurm writes it.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    let seconds = |text: &str| {
        let seconds = parse_float(text).filter(|seconds| seconds.is_finite() && *seconds >= 0.0)?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DURATION))
    };
    let text = text.trim();
    let time = seconds(text).or_else(|| seconds(text.strip_suffix('s')?));
    let time = time.or_else(|| parse_slurm(text)).or_else(|| parse_units(text))?;
    Some(time.min(MAX_DURATION))
}

/// `[DAYS-]HOURS:MINUTES:SECONDS`, `MINUTES:SECONDS`, `DAYS-HOURS[:MINUTES]`. A bare number, which is minutes there,
/// is none of these.
fn parse_slurm(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(digits(days)?), clock),
        None => (None, text),
    };
    let parts: Vec<u64> = clock.split(':').map(digits).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match (days, parts.as_slice()) {
        (_, &[hours, minutes, seconds]) => (hours, minutes, seconds),
        (Some(_), &[hours, minutes]) => (hours, minutes, 0),
        (Some(_), &[hours]) => (hours, 0, 0),
        (None, &[minutes, seconds]) => (0, minutes, seconds),
        _ => return None,
    };
    let leads = |value: u64, below: u64, first: bool| first || value < below;
    let no_days = days.is_none();
    let is_clock = leads(hours, 24, no_days)
        && leads(minutes, 60, no_days && parts.len() == 2)
        && leads(seconds, 60, false);
    is_clock.then(|| Duration::from_secs(((days.unwrap_or(0) * 24 + hours) * 60 + minutes) * 60 + seconds))
}

/// Small enough to be multiplied.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<u32>().ok().filter(|_| is_number).map(u64::from)
}

/// `2h`, `1h30m`, `90 s`.
fn parse_units(text: &str) -> Option<Duration> {
    let mut units = text.split(|letter: char| !letter.is_alphabetic());
    if units.any(|unit| TOO_LONG_UNITS.contains(&unit)) {
        return None;
    }
    humantime::parse_duration(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn time_accepts_unit_and_slurm_formats() {
        for (text, seconds) in [
            ("90", 90.0),
            (" 1.5 ", 1.5),
            ("0", 0.0),
            ("00:00:00", 0.0),
            ("90s", 90.0),
            ("1.5s", 1.5),
            ("5m", 300.0),
            ("2h", 7200.0),
            ("1h30m", 5400.0),
            ("1h 30min", 5400.0),
            ("1500ms", 1.5),
            ("2days", 172_800.0),
            ("02:30:00", 9000.0),
            ("100:00:00", 360_000.0),
            ("90:00", 5400.0),
            ("1-12:00:00", 129_600.0),
            ("1-12:30", 131_400.0),
            ("1-0", 86_400.0),
            ("1e300", MAX_DURATION.as_secs_f64()),
            ("4294967295-23:59:59", MAX_DURATION.as_secs_f64()),
        ] {
            assert_eq!(parse_time(text), Some(Duration::from_secs_f64(seconds)), "`{text}`");
        }
        for text in [
            "",
            "-1",
            "nan",
            "inf",
            "soon",
            "5M",
            "1y",
            "1 month",
            "1:60",
            "1-24",
            "1-",
            "-1:00:00",
            "1:2:3:4",
            "+1:00",
            "1-2-3",
            "99999999999-0",
        ] {
            assert_eq!(parse_time(text), None, "`{text}`");
        }
    }

    proptest! {
        #[test]
        fn slurm_time_format_round_trips(days in 0u64..1000, hours in 0u64..24, minutes in 0u64..60, seconds in 0u64..60) {
            let total = Duration::from_secs(((days * 24 + hours) * 60 + minutes) * 60 + seconds);
            let text = format!("{days}-{hours:02}:{minutes:02}:{seconds:02}");
            prop_assert_eq!(parse_time(&text), Some(total));
            let text = format!("{}:{minutes:02}:{seconds:02}", days * 24 + hours);
            prop_assert_eq!(parse_time(&text), Some(total));
        }

        #[test]
        fn parsed_time_is_within_limit(text in "[0-9.:smhdMy e-]{0,12}|\\PC{0,12}") {
            prop_assert!(parse_time(&text).is_none_or(|time| time <= MAX_DURATION));
        }
    }
}
