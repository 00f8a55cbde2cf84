//! How long the job may take: `--time-limit`, and `--warn-signal` before its end.

use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::error::{CliError, Expected, SettingError};
use super::notice::Notice;
use super::python_text::parse_float;
use super::resolve::refused;
use super::run::{START_TIMEOUT, TIME_LIMIT, WARN_SIGNAL};
use super::settings::{Setting, Settings};
use crate::spec::{EarlyWarning, RendezvousSpec, StoreHost, TimeLimit};

/// Longer than any job, and short enough to be added to any instant.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// As with Slurm's `--signal`.
const DEFAULT_WARNING: Duration = Duration::from_secs(60);
/// humantime knows months and years; `5M` is more likely a slip for minutes.
const TOO_LONG_UNITS: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

/// How long the workers may take to join the store, which must be ours: nobody else tells us who has.
pub(super) fn resolve_start_timeout(
    settings: &Settings<'_>,
    rendezvous: &RendezvousSpec,
) -> Result<Option<Duration>, CliError> {
    let Some(Setting { origin, value }) = settings.float(&START_TIMEOUT)? else { return Ok(None) };
    if value.is_nan() || value <= 0.0 {
        return Err(refused(origin, value, Expected::Interval));
    }
    if rendezvous.store().host == StoreHost::Worker {
        return Err(SettingError::JoinsUnseen { origin }.into());
    }
    Ok(Some(Duration::try_from_secs_f64(value).unwrap_or(LONGEST).min(LONGEST)))
}

/// The time limit of the whole job.
pub(super) fn resolve_time_limit(
    settings: &Settings<'_>,
    notices: &mut Vec<Notice>,
) -> Result<Option<TimeLimit>, CliError> {
    let warning = settings.text(&WARN_SIGNAL)?;
    let Some(Setting { origin, value }) = settings.text(&TIME_LIMIT)? else {
        return match warning {
            None => Ok(None),
            Some(Setting { origin, .. }) => Err(SettingError::NoTimeLimit { origin }.into()),
        };
    };
    let Some(limit) = parse_duration(&value) else {
        return Err(refused(origin, value, Expected::TimeLimit));
    };
    let Some(Setting { origin, value }) = warning else {
        return Ok(Some(TimeLimit { limit, warning: None }));
    };
    let Some(warning) = parse_warning(&value) else {
        return Err(refused(origin, value, Expected::WarnSignal));
    };
    if warning.before >= limit {
        notices.push(Notice::WarnedAtStart { origin, value, limit });
    }
    Ok(Some(TimeLimit { limit, warning: Some(warning) }))
}

/// `USR1`, `SIGUSR1@120`, `TERM@5m`.
fn parse_warning(text: &str) -> Option<EarlyWarning> {
    let (name, before) = match text.split_once('@') {
        Some((name, before)) => (name, parse_duration(before)?),
        None => (text, DEFAULT_WARNING),
    };
    let name = if name.starts_with("SIG") { name.to_owned() } else { format!("SIG{name}") };
    let signal = Signal::from_str(&name).ok()?;
    // Nobody is warned by what nobody can handle.
    (!matches!(signal, Signal::SIGKILL | Signal::SIGSTOP)).then_some(EarlyWarning { signal, before })
}

/// A time above zero: seconds, numbers with units, or as Slurm writes it.
fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let seconds = || parse_float(text).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let duration = seconds().or_else(|| parse_slurm(text)).or_else(|| parse_units(text))?;
    (!duration.is_zero()).then_some(duration.min(LONGEST))
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
    use std::ffi::OsString;

    use proptest::prelude::*;

    use super::*;
    use crate::cli::{Command, interpret};
    use crate::facts::fake::FakeWorld;

    fn limit(
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(Option<TimeLimit>, Vec<String>), String> {
        let argv: Vec<OsString> = words.iter().chain(&["--no-python", "true"]).map(OsString::from).collect();
        let mut environment = environment.to_vec();
        environment.push(("PATH", "/usr/bin"));
        let facts = FakeWorld::new().program("/usr/bin/true").facts(&environment);
        match interpret(&argv, &facts) {
            Ok(Command::Launch(launch)) => {
                Ok((launch.spec.time_limit, launch.notices.iter().map(ToString::to_string).collect()))
            }
            Ok(_) => panic!("{words:?} is no launch"),
            Err(error) => Err(error.render()),
        }
    }

    #[test]
    fn a_time_is_written_as_people_and_slurm_write_it() {
        for (text, seconds) in [
            ("90", 90.0),
            (" 1.5 ", 1.5),
            ("90s", 90.0),
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
            ("1e300", LONGEST.as_secs_f64()),
            ("4294967295-23:59:59", LONGEST.as_secs_f64()),
        ] {
            let expected = (text != "1e300").then(|| Duration::from_secs_f64(seconds));
            assert_eq!(parse_duration(text), expected, "`{text}`");
        }
        for text in [
            "",
            "0",
            "0s",
            "00:00:00",
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
            assert_eq!(parse_duration(text), None, "`{text}`");
        }
    }

    proptest! {
        #[test]
        fn slurms_clock_is_read_back(days in 0u64..1000, hours in 0u64..24, minutes in 0u64..60, seconds in 1u64..60) {
            let total = Duration::from_secs(((days * 24 + hours) * 60 + minutes) * 60 + seconds);
            let text = format!("{days}-{hours:02}:{minutes:02}:{seconds:02}");
            prop_assert_eq!(parse_duration(&text), Some(total));
            let text = format!("{}:{minutes:02}:{seconds:02}", days * 24 + hours);
            prop_assert_eq!(parse_duration(&text), Some(total));
        }

        #[test]
        fn any_text_is_a_time_above_zero_or_none(text in "[0-9.:smhdMy e-]{0,12}|\\PC{0,12}") {
            prop_assert!(parse_duration(&text).is_none_or(|time| !time.is_zero() && time <= LONGEST));
        }
    }

    #[test]
    fn the_warning_is_a_signal_and_a_time() {
        let warning = |signal, seconds| Some(EarlyWarning { signal, before: Duration::from_secs(seconds) });
        for (text, expected) in [
            ("USR1", warning(Signal::SIGUSR1, 60)),
            ("SIGUSR2@120", warning(Signal::SIGUSR2, 120)),
            ("TERM@5m", warning(Signal::SIGTERM, 300)),
            ("KILL@5", None),
            ("STOP", None),
            ("USR1@", None),
            ("USR1@0", None),
            ("@60", None),
            ("usr1", None),
            ("NONE@60", None),
        ] {
            assert_eq!(parse_warning(text), expected, "`{text}`");
        }
    }

    #[test]
    fn a_limit_is_an_option_under_our_name_and_a_variable_under_both() {
        let two_hours = TimeLimit { limit: Duration::from_secs(7200), warning: None };
        assert_eq!(limit(&["rankrun", "--time-limit", "2h"], &[]), Ok((Some(two_hours), vec![])));
        assert_eq!(limit(&["rankrun"], &[]), Ok((None, vec![])));
        assert_eq!(limit(&["torchrun"], &[("RANKRUN_TIME_LIMIT", "2h")]), Ok((Some(two_hours), vec![])));
        assert!(limit(&["torchrun", "--time-limit", "2h"], &[]).is_err(), "torchrun has no such option");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_value() {
        for (words, parts) in [
            (&["rankrun", "--time-limit", "soon"][..], ["`--time-limit` is `soon`", "2h"]),
            (&["rankrun", "--time-limit", "0"], ["`--time-limit` is `0`", "above 0"]),
            (&["rankrun", "--time-limit=1", "--warn-signal=KILL"], ["`--warn-signal` is `KILL`", "USR1@60"]),
            (&["rankrun", "--warn-signal", "USR1@60"], ["`--warn-signal`", "--time-limit 2h"]),
        ] {
            let said = limit(words, &[]).expect_err("it is refused");
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
        assert!(limit(&["torchrun"], &[("RANKRUN_WARN_SIGNAL", "USR1")]).is_err());
    }

    #[test]
    fn a_start_limit_needs_our_store() {
        let said = |words: &[&str], environment: &[(&str, &str)]| limit(words, environment).err();
        assert_eq!(said(&["rankrun", "--start-timeout", "1.5"], &[]), None);
        let unseen = said(
            &["torchrun"],
            &[("RANKRUN_START_TIMEOUT", "5"), ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")],
        );
        assert!(unseen.is_some_and(|said| said.contains("`RANKRUN_START_TIMEOUT`") && said.contains("hint")));
        for value in ["0", "-1", "nan"] {
            assert!(said(&["rankrun", &format!("--start-timeout={value}")], &[]).is_some(), "{value}");
        }
    }

    #[test]
    fn a_warning_longer_than_the_limit_is_said() {
        let (found, said) = limit(&["rankrun", "--time-limit=30", "--warn-signal=USR1@1m"], &[]).unwrap();
        assert_eq!(found.unwrap().warning.unwrap().before, Duration::from_secs(60));
        assert_eq!(
            said,
            [
                "`--warn-signal` is `USR1@1m`, and the time limit is 30s: the workers get the signal at the start"
            ]
        );
    }
}
