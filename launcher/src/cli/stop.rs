//! How long workers, and what they leave behind, may take to end: `--grace`, its overrides for single causes in a
//! configuration file, and `--leftover-grace`.

use std::time::Duration;

use super::contradiction::{idle_beside_zero, without_effect};
use super::error::{CliError, Expected, Origin};
use super::option::LaunchOption;
use super::python_text::{parse_float, parse_int};
use super::resolve::refused;
use super::settings::{Setting, Settings, WrittenOption};
use super::values::{TIME_OR_ZERO, parse_time, time};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::stop::{GraceCause, GraceFor, LeftoverPolicy, StopPolicy};

const SECONDS: Expected = Expected::new("a number of seconds from 0 up", "30");

const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Long enough for uploads at the end of a run.
const DEFAULT_LEFTOVER_GRACE: Duration = Duration::from_secs(30);
/// torch's default for `--shutdown-timeout`.
const SHUTDOWN_TIMEOUT_VARIABLE: &str = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";

/// The grace, and the graces of single causes. They stand in a file only, and count no more where the command line or a
/// variable says how long every stop may take.
pub(super) fn resolve_stop(settings: &Settings<'_>) -> Result<StopPolicy, CliError> {
    let said = said_grace(settings)?;
    let grace_for = resolve_grace_for(settings)?;
    let grace_for = match &said {
        Some(said) if !said.is_of_file() => GraceFor::default(),
        _ => grace_for,
    };
    let grace = match said {
        Some(said) => said.value,
        None => torchs_default(settings)?.unwrap_or(DEFAULT_GRACE),
    };
    Ok(StopPolicy { grace, grace_for })
}

/// The last of `--shutdown-timeout` and `--grace`, then our variable, then torchrun's, then the file.
fn said_grace(settings: &Settings<'_>) -> Result<Option<Setting<Duration>>, CliError> {
    let is_typed = |written: &&WrittenOption| matches!(written.setting.origin, Origin::Option(_));
    let typed = settings.given.iter().filter(is_typed).map(|written| written.option.long_name());
    let last = typed.into_iter().find(|option| ["grace", "shutdown-timeout"].contains(option));
    let ours = time(settings, &settings.args.grace);
    let torch = match settings.get(&settings.args.torchrun.shutdown_timeout) {
        None => None,
        Some(Setting { origin, value }) => match parse_time(&value.to_string()) {
            Some(grace) => Some(Setting { origin, value: grace }),
            None => return Err(refused(origin, value, SECONDS)),
        },
    };
    Ok(match last {
        Some("shutdown-timeout") => torch,
        // A variable counts before a file, whichever of the two options it is.
        None if ours.as_ref().is_some_and(Setting::is_of_file) => match torch {
            Some(torch) if !torch.is_of_file() => Some(torch),
            _ => ours,
        },
        _ => ours.or(torch),
    })
}

fn torchs_default(settings: &Settings<'_>) -> Result<Option<Duration>, CliError> {
    let Some(text) = settings.facts.variable(SHUTDOWN_TIMEOUT_VARIABLE) else { return Ok(None) };
    let number = text.to_str().filter(|text| parse_int(text).is_some());
    match number.and_then(parse_float).and_then(|seconds| parse_time(&seconds.to_string())) {
        Some(grace) => Ok(Some(grace)),
        None => {
            let origin = Origin::Variable(SHUTDOWN_TIMEOUT_VARIABLE.to_owned());
            Err(refused(origin, text.to_string_lossy(), SECONDS))
        }
    }
}

fn resolve_grace_for(settings: &Settings<'_>) -> Result<GraceFor, CliError> {
    let mut grace_for = GraceFor::default();
    for (cause, Setting { origin, value }) in settings.config.graces() {
        let Some(grace) = parse_time(value) else {
            return Err(refused(origin.clone(), value, TIME_OR_ZERO));
        };
        refuse_without_cause(settings, *cause, origin)?;
        grace_for.set(*cause, grace);
    }
    Ok(grace_for)
}

/// A limit that is not set stops no worker.
fn refuse_without_cause(settings: &Settings<'_>, cause: GraceCause, origin: &Origin) -> Result<(), CliError> {
    let needs = |option, missing| match settings.find(option) {
        Some(_) => Ok(()),
        None => without_effect(origin.clone(), missing),
    };
    match cause {
        GraceCause::Signal | GraceCause::Failure => Ok(()),
        GraceCause::TimeLimit => needs("time-limit", "`--time-limit`"),
        GraceCause::StartTimeout => needs("start-timeout", "`--start-timeout`"),
        GraceCause::Restart => match settings.get(&settings.args.torchrun.max_restarts) {
            None => without_effect(origin.clone(), "`--max-restarts`"),
            Some(most) if most.value == 0 && most.is_of_file() => {
                idle_beside_zero(origin.clone(), &most.origin)
            }
            Some(_) => Ok(()),
        },
    }
}

/// Under the name torchrun processes that outlive the workers are left alone, unless our variable or a file says how long.
pub(super) fn resolve_leftovers(settings: &Settings<'_>) -> Result<LeftoverPolicy, CliError> {
    match (time(settings, &settings.args.leftover_grace), settings.cli_flavor) {
        (Some(Setting { value: grace, .. }), _) => Ok(LeftoverPolicy::End { grace }),
        (None, CliFlavor::Rankrun) => Ok(LeftoverPolicy::End { grace: DEFAULT_LEFTOVER_GRACE }),
        (None, CliFlavor::Torchrun) => Ok(LeftoverPolicy::Keep),
    }
}
