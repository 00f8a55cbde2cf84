//! How long the job may take: `--time-limit`, and `--warn-signal` before its end.

use std::ffi::OsStr;
use std::time::Duration;

use super::contradiction::{refuse_pair, shown};
use super::error::{CliError, Expected, Problem, SettingError};
use super::option::FromText;
use super::settings::{Setting, Settings};
use super::values::{parse_time, time};
use rankrun_core::notice::Notice;
use rankrun_core::posix::Signal;
use rankrun_core::spec::signal::parse_signal;
use rankrun_core::spec::stop::{EarlyWarning, TimeLimit};
use rankrun_core::spec::{HangTimes, RendezvousSpec, StoreHost};

const WARN_SIGNAL: Expected = Expected::new(
    "SIGNAL or SIGNAL@TIME such as `USR1@60`, with a signal that can be handled and a time above 0",
    "USR1@60",
);

/// As with Slurm's `--signal`.
const DEFAULT_WARNING: Duration = Duration::from_secs(60);
const WARNED_AT_START: Problem = Problem {
    text: "the workers would be warned at their start",
    hint: "warn less long before the end, as in `USR1@10`",
};

/// How long the workers may take to join the store, which must be ours: another store does not report joins.
pub(super) fn resolve_start_timeout(
    settings: &Settings<'_>,
    rendezvous: &RendezvousSpec,
) -> Result<Option<Duration>, CliError> {
    let Some(Setting { origin, value }) = time(settings, &settings.args.start_timeout) else {
        return Ok(None);
    };
    if rendezvous.nodes().allows_many() {
        let problem = "needs the launcher's own store, and of several nodes only one has it";
        let hint = "leave it out: PyTorch's own time-outs still end a start that hangs";
        return Err(SettingError::of_origin(origin, problem, hint).into());
    }
    if rendezvous.store().host == StoreHost::Worker {
        let problem = "needs the launcher's own store, and rank 0 is to open it";
        let hint = "unset `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`, or leave out the limit";
        return Err(SettingError::of_origin(origin, problem, hint).into());
    }
    Ok(Some(value))
}

/// How long the workers may show no progress.
pub(super) fn resolve_hang_times(settings: &Settings<'_>) -> HangTimes {
    HangTimes {
        timeout: time(settings, &settings.args.hang_timeout).map(|limit| limit.value),
        first_step: time(settings, &settings.args.first_step_timeout).map(|limit| limit.value),
    }
}

/// The time limit of the whole job.
pub(super) fn resolve_time_limit(
    settings: &Settings<'_>,
    notices: &mut Vec<Notice>,
) -> Result<Option<TimeLimit>, CliError> {
    let warning = settings.get(&settings.args.warn_signal);
    let Some(limit) = time(settings, &settings.args.time_limit) else {
        return match warning {
            None => Ok(None),
            Some(Setting { origin, .. }) => {
                let problem = "warns of a time limit, and there is none";
                let hint = "give the limit too, as in `--time-limit 2h`";
                Err(SettingError::of_origin(origin, problem, hint).into())
            }
        };
    };
    let Some(Setting { origin, value: warning }) = warning else {
        return Ok(Some(TimeLimit { limit: limit.value, warning: None }));
    };
    if warning.before >= limit.value {
        let text = settings.find("warn-signal").map(|written| written.value).unwrap_or_default();
        let value = text.to_string_lossy().into_owned();
        let said = Setting { origin: origin.clone(), value: &value };
        refuse_pair(said, shown(&limit), WARNED_AT_START)?;
        notices.push(Notice::WarnedAtStart { origin, value, limit: limit.value });
    }
    Ok(Some(TimeLimit { limit: limit.value, warning: Some(warning) }))
}

impl FromText for EarlyWarning {
    fn from_text(text: &OsStr) -> Option<Self> {
        text.to_str().and_then(parse_warning)
    }

    fn expected() -> Option<Expected> {
        Some(WARN_SIGNAL)
    }
}

/// `USR1`, `SIGUSR1@120`, `TERM@5m`.
fn parse_warning(text: &str) -> Option<EarlyWarning> {
    let (name, before) = match text.split_once('@') {
        Some((name, before)) => (name, parse_time(before).filter(|before| !before.is_zero())?),
        None => (text, DEFAULT_WARNING),
    };
    let is_catchable = |signal: &Signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
    let signal = parse_signal(name).filter(is_catchable)?;
    Some(EarlyWarning { signal, before })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn limit(
        words: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(Option<TimeLimit>, Vec<String>), String> {
        let argv: Vec<OsString> = words.iter().chain(&["--no-python", "true"]).map(OsString::from).collect();
        let mut environment = environment.to_vec();
        environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
        let facts = FakeWorld::default().program("/usr/bin/true").facts(&environment);
        match interpret(&argv, &facts) {
            Ok(Command::Launch(launch)) => {
                Ok((launch.spec.time_limit, launch.notices.iter().map(ToString::to_string).collect()))
            }
            Ok(_) => panic!("{words:?} is not a launch"),
            Err(error) => Err(error.render()),
        }
    }

    #[test]
    fn warn_signal_is_parsed_as_signal_and_time() {
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
            ("usr1@5", warning(Signal::SIGUSR1, 5)),
            ("NONE@60", None),
        ] {
            assert_eq!(parse_warning(text), expected, "`{text}`");
        }
    }

    #[test]
    fn time_limit_is_rankrun_option_and_shared_variable() {
        let two_hours = TimeLimit { limit: Duration::from_secs(7200), warning: None };
        assert_eq!(limit(&["rankrun", "--time-limit", "2h"], &[]), Ok((Some(two_hours), vec![])));
        assert_eq!(limit(&["rankrun"], &[]), Ok((None, vec![])));
        assert_eq!(limit(&["torchrun"], &[("RANKRUN_TIME_LIMIT", "2h")]), Ok((Some(two_hours), vec![])));
        assert!(limit(&["torchrun", "--time-limit", "2h"], &[]).is_err(), "torchrun has no such option");
    }

    #[test]
    fn invalid_limit_error_names_value() {
        for (words, parts) in [
            (&["rankrun", "--time-limit", "soon"][..], ["`--time-limit` is `soon`", "1h30m"]),
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
    fn start_timeout_requires_launcher_store() {
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
    fn warning_longer_than_time_limit_is_reported() {
        let both = limit(&["rankrun", "--time-limit=30", "--warn-signal=USR1@1m"], &[]).unwrap_err();
        let text = "`--warn-signal` is `USR1@1m`, and `--time-limit` is `30s`: the workers would be warned at their start";
        assert!(both.contains(text), "one person wrote both: {both}");
        assert!(limit(&["rankrun", "--time-limit=60", "--warn-signal=USR1"], &[]).is_err());
        let for_all = [("RANKRUN_WARN_SIGNAL", "USR1@1m")];
        let (found, said) = limit(&["rankrun", "--time-limit=30"], &for_all).unwrap();
        assert_eq!(found.unwrap().warning.unwrap().before, Duration::from_secs(60));
        assert_eq!(
            said,
            [
                "`RANKRUN_WARN_SIGNAL` is `USR1@1m`, and the time limit is 30s: the workers get the signal at the start"
            ]
        );
    }
}
