//! Options that name plug-ins. Only Python can load them, so that only the built-in ones work here.

use super::error::{CliError, SettingError};
use super::settings::{Setting, Settings};
use rankrun_core::spec::EventLog;

/// Where torch's events go. torchrun notices an unknown handler only once it has an event.
///
/// # Errors
/// A handler that is not torchrun's own.
pub(super) fn resolve_events(settings: &Settings<'_>) -> Result<EventLog, CliError> {
    match settings.get(&settings.args.torchrun.event_log_handler) {
        None => Ok(EventLog::Off),
        Some(Setting { origin, value }) => match value.as_str() {
            "null" | "dynamic_rendezvous" => Ok(EventLog::Off),
            "console" => Ok(EventLog::Console),
            _ => Err(SettingError::python_plugin(origin, &value, &["null", "console"]).into()),
        },
    }
}

/// No plug-in decides where the logs go.
///
/// # Errors
/// `--logs-specs` was given: torchrun has none of its own.
pub(super) fn refuse_logs_specs(settings: &Settings<'_>) -> Result<(), CliError> {
    match settings.get(&settings.args.torchrun.logs_specs) {
        None => Ok(()),
        Some(Setting { origin, value }) => Err(SettingError::python_plugin(origin, &value, &[]).into()),
    }
}
