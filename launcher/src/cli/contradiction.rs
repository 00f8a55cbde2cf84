//! Settings that cannot both be meant, and settings that refine nothing.
//!
//! What one person wrote side by side, on one command line or in one file, is refused: one of the two is a slip.
//! Where they come from different places nothing is said: a file or a variable holds for many jobs, and the limits of
//! a short trial may well make some of it idle.

use std::fmt::Display;
use std::time::Duration;

use super::error::{CliError, Origin, Problem, SettingError};
use super::settings::{Setting, Settings};
use super::values::time;

/// A variable may be there for all jobs of a user, whatever each of them says.
pub(super) fn without_effect(origin: Origin, missing: &'static str) -> Result<(), CliError> {
    match origin {
        Origin::Variable(_) => Ok(()),
        origin => {
            let hint = format!("add {missing}, or leave it out");
            Err(SettingError::of_origin(origin, format!("is given, but {missing} is not"), hint).into())
        }
    }
}

/// The same for a setting that the 0 of another one makes idle.
pub(super) fn idle_beside_zero(origin: Origin, zero: &Origin) -> Result<(), CliError> {
    if matches!(origin, Origin::Variable(_)) {
        return Ok(());
    }
    let zero = if are_side_by_side(&origin, zero) { beside(zero) } else { zero.to_string() };
    let hint = format!("give {zero} a value above 0, or leave {} out", beside(&origin));
    Err(SettingError::of_origin(origin, format!("is given, but {zero} is `0`"), hint).into())
}

/// Whether one person wrote the two at the same time.
pub(super) const fn are_side_by_side(one: &Origin, other: &Origin) -> bool {
    matches!((one, other), (Origin::Option(_), Origin::Option(_)) | (Origin::File(_), Origin::File(_)))
}

/// The error where two settings exclude each other and stand side by side.
pub(super) fn refuse_pair<T: Display, U: Display>(
    one: Setting<T>,
    other: Setting<U>,
    problem: Problem,
) -> Result<(), CliError> {
    if !are_side_by_side(&one.origin, &other.origin) {
        return Ok(());
    }
    let text = format!("and {} is `{}`: {}", beside(&other.origin), other.value, problem.text);
    Err(SettingError::of_value(one.origin, one.value, text, problem.hint).into())
}

/// The file is already named.
pub(super) fn beside(origin: &Origin) -> String {
    match origin {
        Origin::File(place) => format!("`{}` in line {}", place.key, place.line),
        origin => origin.to_string(),
    }
}

const SHORTER: &str = "make it shorter than the time limit";
const NO_START: Problem = Problem { text: "the job would be over before", hint: SHORTER };
const NO_RESTART: Problem = Problem { text: "the job would be over before the first restart", hint: SHORTER };
const NO_LEFTOVER_GRACE: Problem =
    Problem { text: "the job would be over before the leftover processes are stopped", hint: SHORTER };
const NO_RESET: Problem = Problem { text: "no worker can run for so long", hint: SHORTER };
const WINDOW_IS_JOB: Problem = Problem {
    text: "the window would be the whole job",
    hint: "leave the window out, or make it shorter than the time limit",
};
const BUDGET_FIRST: Problem = Problem {
    text: "all restarts would be used up before",
    hint: "allow fewer restarts without progress than restarts",
};

/// Limits of which one can never strike for the other, or strikes at once.
///
/// # Errors
/// Such a pair, and times that cannot be read.
pub(super) fn refuse_contradicting_times(settings: &Settings<'_>) -> Result<(), CliError> {
    let limit = time(settings, &settings.args.time_limit);
    let start = time(settings, &settings.args.start_timeout);
    let delay = time(settings, &settings.args.restart_delay);
    let healthy = time(settings, &settings.args.restart_reset);
    let window = time(settings, &settings.args.restart_window);
    let leftover = time(settings, &settings.args.leftover_grace);
    must_be_below(leftover.as_ref(), limit.as_ref(), NO_LEFTOVER_GRACE)?;
    must_be_below(start.as_ref(), limit.as_ref(), NO_START)?;
    must_be_below(delay.as_ref(), limit.as_ref(), NO_RESTART)?;
    must_be_below(healthy.as_ref(), limit.as_ref(), NO_RESET)?;
    must_be_below(window.as_ref(), limit.as_ref(), WINDOW_IS_JOB)?;
    let is_whole_job = window.is_none() && healthy.is_none();
    match (settings.get(&settings.args.progress_restarts), settings.get(&settings.args.torchrun.max_restarts))
    {
        (Some(idle), Some(most)) if is_whole_job && idle.value > most.value && most.value > 0 => {
            refuse_pair(idle, most, BUDGET_FIRST)
        }
        _ => Ok(()),
    }
}

fn must_be_below(
    one: Option<&Setting<Duration>>,
    other: Option<&Setting<Duration>>,
    problem: Problem,
) -> Result<(), CliError> {
    match (one, other) {
        (Some(one), Some(other)) if one.value >= other.value => {
            refuse_pair(shown(one), shown(other), problem)
        }
        _ => Ok(()),
    }
}

/// As people write times.
pub(super) fn shown(time: &Setting<Duration>) -> Setting<humantime::FormattedDuration> {
    Setting { origin: time.origin.clone(), value: humantime::format_duration(time.value) }
}
