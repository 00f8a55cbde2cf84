//! Settings that cannot both be meant, and settings that refine nothing.
//!
//! What one person wrote side by side, on one command line or in one file, is refused: one of the two is a slip.
//! Where they come from different places nothing is said: a file or a variable holds for many jobs, and the limits of
//! a short trial may well make some of it idle.

use std::fmt::Display;
use std::time::Duration;

use super::error::{Clash, CliError, Expected, Origin, SettingError};
use super::settings::{Setting, Settings};
use super::values::time;

/// A variable may be there for all jobs of a user, whatever each of them says.
pub(super) fn without_effect(origin: Origin, missing: &'static str) -> Result<(), CliError> {
    match origin {
        Origin::Variable(_) => Ok(()),
        origin => Err(SettingError::WithoutEffect { origin, missing }.into()),
    }
}

/// Whether one person wrote the two at the same time.
pub(super) const fn are_side_by_side(one: &Origin, other: &Origin) -> bool {
    matches!((one, other), (Origin::Option(_), Origin::Option(_)) | (Origin::File(_), Origin::File(_)))
}

/// The error where two settings exclude each other and stand side by side.
pub(super) fn clash<T: Display, U: Display>(
    one: Setting<T>,
    other: Setting<U>,
    clash: Clash,
) -> Result<(), CliError> {
    if !are_side_by_side(&one.origin, &other.origin) {
        return Ok(());
    }
    let (value, other_value) = (one.value.to_string(), other.value.to_string());
    let (origin, other) = (one.origin, Box::new(other.origin));
    Err(SettingError::Clash { origin, value, other, other_value, clash }.into())
}

/// Limits of which one can never strike for the other, or strikes at once.
///
/// # Errors
/// Such a pair, and times that cannot be read.
pub(super) fn refuse_clashes(settings: &Settings<'_>) -> Result<(), CliError> {
    let limit = time(settings, &settings.args.time_limit, Expected::Time)?;
    let start = time(settings, &settings.args.start_timeout, Expected::Time)?;
    let delay = time(settings, &settings.args.restart_delay, Expected::TimeOrZero)?;
    let healthy = time(settings, &settings.args.restart_reset, Expected::Time)?;
    let window = time(settings, &settings.args.restart_window, Expected::Time)?;
    let leftover = time(settings, &settings.args.leftover_grace, Expected::TimeOrZero)?;
    must_be_below(leftover.as_ref(), limit.as_ref(), Clash::LeftoversAfterTheEnd)?;
    must_be_below(start.as_ref(), limit.as_ref(), Clash::StartAfterTheEnd)?;
    must_be_below(delay.as_ref(), limit.as_ref(), Clash::RestartAfterTheEnd)?;
    must_be_below(healthy.as_ref(), limit.as_ref(), Clash::NeverHealthy)?;
    must_be_below(window.as_ref(), limit.as_ref(), Clash::WindowIsTheJob)?;
    let is_whole_job = window.is_none() && healthy.is_none() && settings.find("progress-dir").is_some();
    match (settings.get(&settings.args.progress_restarts), settings.get(&settings.args.torchrun.max_restarts))
    {
        (Some(idle), Some(most)) if is_whole_job && idle.value > most.value && most.value > 0 => {
            clash(idle, most, Clash::BudgetFirst)
        }
        _ => Ok(()),
    }
}

fn must_be_below(
    one: Option<&Setting<Duration>>,
    other: Option<&Setting<Duration>>,
    why: Clash,
) -> Result<(), CliError> {
    match (one, other) {
        (Some(one), Some(other)) if one.value >= other.value => clash(shown(one), shown(other), why),
        _ => Ok(()),
    }
}

/// As people write times.
pub(super) fn shown(time: &Setting<Duration>) -> Setting<humantime::FormattedDuration> {
    Setting { origin: time.origin.clone(), value: humantime::format_duration(time.value) }
}
