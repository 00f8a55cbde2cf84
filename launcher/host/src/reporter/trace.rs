//! The line format of the launcher's own log (`tracing` events).
#![expect(clippy::disallowed_methods, reason = "a log line says when it was written")]

use std::fmt;
use std::time::SystemTime;

use rankrun_core::posix::Pid;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use super::local_time::LocalTime;
use super::torch_log::{Level, LogLine, OWN_SOURCE};

/// The format of a log event: rankrun's or torchrun's.
#[derive(Debug, Clone, Copy)]
pub(super) enum TraceFormat {
    /// As all other messages under rankrun's own name.
    Own,
    /// As torchrun's, for the launcher that the user knows by this pid.
    Torch(Pid),
}

impl<S, N> FormatEvent<S, N> for TraceFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let Self::Torch(pid) = *self else { return writeln!(writer, "rankrun: {text}") };
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG | tracing::Level::TRACE => Level::Debug,
        };
        let stamp = LocalTime::of(SystemTime::now()).log_stamp();
        writeln!(writer, "{}", LogLine { level, source: OWN_SOURCE, text }.render(&stamp, pid))
    }
}
