//! Options that name plug-ins. Only Python can load those, so that only the built-in ones work here.

use super::error::{CliError, SettingError};
use super::settings::{Setting, Settings};
use super::torchrun::{EVENT_LOG_HANDLER, LOGS_SPECS};
use crate::spec::EventLog;

/// Where torch's events go. torchrun notices an unknown handler only once it has an event.
///
/// # Errors
/// A handler that is not torchrun's own.
pub(super) fn resolve_events(settings: &Settings<'_>) -> Result<EventLog, CliError> {
    match settings.text(&EVENT_LOG_HANDLER)? {
        None => Ok(EventLog::Off),
        Some(Setting { origin, value }) => match value.as_str() {
            "null" | "dynamic_rendezvous" => Ok(EventLog::Off),
            "console" => Ok(EventLog::Console),
            _ => Err(SettingError::PythonPlugin { origin, value, built_in: &["null", "console"] }.into()),
        },
    }
}

/// Nobody else may decide where the logs go.
///
/// # Errors
/// `--logs-specs` was given: torchrun has none of its own.
pub(super) fn refuse_logs_specs(settings: &Settings<'_>) -> Result<(), CliError> {
    match settings.text(&LOGS_SPECS)? {
        None => Ok(()),
        Some(Setting { origin, value }) => {
            Err(SettingError::PythonPlugin { origin, value, built_in: &[] }.into())
        }
    }
}
