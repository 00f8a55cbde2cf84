//! Writes the launcher's messages to standard error through the console, as rankrun's or torchrun's lines. It words
//! nothing but errors: the texts come from the modules beside it.
#![expect(clippy::disallowed_methods, reason = "a log line says when it was written")]

use std::borrow::Cow;
use std::error::Error;
use std::time::SystemTime;

use rankrun_core::posix::Pid;
use rankrun_core::spec::output_stream::OutputStream;

use crate::console::Console;
use crate::reporter::file_limit::{cause_in_words, hint_of};
use crate::reporter::job_event_text;
use crate::reporter::local_time::LocalTime;
use crate::reporter::rank_table;
use crate::reporter::torch_log::{self, EventSubject, Level, LogLine};
use rankrun_core::job_event::JobEvent;
use rankrun_core::notice::Notice;
use rankrun_core::plain::{plain, with_bidi_escaped};
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::Verbosity;

/// Writes the lines of the launcher itself to the console, in the style of `rankrun` or of `torchrun`.
#[derive(Debug, Clone)]
pub struct UserLog {
    console: Console,
    log_style: LogStyle,
    color_mode: ColorMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStyle {
    Rankrun,
    /// torchrun's log lines, with the pid of the process that the user started.
    Torch {
        pid: Pid,
        verbosity: Verbosity,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColorMode {
    Plain,
    Coloured,
}

impl UserLog {
    /// The log on `console` for the launcher that the user knows by `pid`; `no_color` is the user's `NO_COLOR`
    /// (no-color.org).
    #[must_use]
    pub fn new(
        console: Console,
        (cli_flavor, verbosity): (CliFlavor, Verbosity),
        pid: Pid,
        no_color: bool,
    ) -> Self {
        let coloured = console.output(OutputStream::Stderr).is_terminal() && !no_color;
        Self {
            console,
            log_style: match cli_flavor {
                CliFlavor::Rankrun => LogStyle::Rankrun,
                CliFlavor::Torchrun => LogStyle::Torch { pid, verbosity },
            },
            color_mode: if coloured { ColorMode::Coloured } else { ColorMode::Plain },
        }
    }

    /// The console that the messages are written to.
    #[must_use]
    pub const fn console(&self) -> &Console {
        &self.console
    }

    /// One line while the job runs.
    pub(crate) fn print_line(&self, line: &str) {
        match self.log_style {
            LogStyle::Rankrun => self.write(&format!("rankrun: {line}")),
            LogStyle::Torch { .. } => {
                self.log(&[LogLine::of_ours(Level::Warning, line.to_owned())]);
            }
        }
    }

    /// Writes a notice before the start of the workers.
    pub fn notice(&self, notice: &Notice) {
        match self.log_style {
            LogStyle::Rankrun => self.print_line(&notice.to_string()),
            LogStyle::Torch { .. } => self.log(&[torch_log::of_notice(notice)]),
        }
    }

    /// Writes the lines of one event of the job.
    pub fn event(&self, event: &JobEvent, group: EventSubject<'_>) {
        match self.log_style {
            LogStyle::Rankrun => {
                let text = if let JobEvent::RankTable(table) = event {
                    let setting = rank_table::TableSetting::of(group.round, self.columns());
                    Some(rank_table::render(table, &setting))
                } else {
                    job_event_text::render(event, group.spec, group.round)
                };
                if let Some(text) = text {
                    self.print_line(&text);
                }
            }
            LogStyle::Torch { .. } => self.log(&torch_log::lines_of(event, group)),
        }
    }

    /// The width of the terminal, if there is one with a known size.
    fn columns(&self) -> Option<usize> {
        let output = self.console.output(OutputStream::Stderr);
        let size = output.size().filter(|size| size.ws_col > 0)?;
        Some(usize::from(size.ws_col))
    }

    /// Warns that another program's file was replaced, and shows its previous contents.
    pub fn replaced(&self, path: &str, contents: &str) {
        match self.log_style {
            LogStyle::Rankrun => {
                let contents: Vec<String> = contents.lines().map(plain).collect();
                let contents = contents.join("\n");
                self.print_line(&format!("`{path}` was there already and is replaced; it said: {contents}"))
            }
            LogStyle::Torch { .. } => {
                self.log(&[torch_log::replaced(path, &self.color_for_terminal(contents))])
            }
        }
    }

    /// torchrun's log lines, together; under our own name nothing.
    pub fn log(&self, lines: &[LogLine]) {
        let LogStyle::Torch { pid, verbosity } = self.log_style else { return };
        let shown: Vec<&LogLine> = lines.iter().filter(|line| line.is_shown(verbosity)).collect();
        if !shown.is_empty() {
            let stamp = LocalTime::of(SystemTime::now()).log_stamp();
            let text: Vec<String> = shown.iter().map(|line| line.render(&stamp, pid)).collect();
            self.write(&text.join("\n"));
        }
    }

    /// Writes an error, the causes below it, and one hint.
    pub fn error(&self, error: &dyn Error, hint: Option<&str>) {
        let mut text = self.heading(&error.to_string());
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!("\n  caused by: {}", cause_in_words(error)));
            cause = error.source();
        }
        self.with_hint(text, hint_of(error, hint).as_deref());
    }

    /// Writes a whole report with the fact as its first line, and one hint.
    pub fn failure(&self, report: &str, hint: Option<&str>) {
        self.with_hint(self.heading(report.trim_end()), hint);
    }

    /// torchrun's report of a failure, with texts of the workers: to the byte, except for control characters.
    pub(crate) fn torch_report(&self, report: &str) {
        self.print(&self.color_for_terminal(report));
    }

    /// Bidirectional controls as escapes where a terminal shows the text.
    fn color_for_terminal<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.console.output(OutputStream::Stderr).is_terminal() {
            Cow::Owned(with_bidi_escaped(text))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Writes a text with a form of its own, in whole lines.
    pub fn print(&self, text: &str) {
        self.console.report(OutputStream::Stderr, text.as_bytes());
    }

    fn heading(&self, text: &str) -> String {
        match self.color_mode {
            ColorMode::Plain => format!("error: {text}"),
            ColorMode::Coloured => format!("\x1b[1;31merror:\x1b[0m {text}"),
        }
    }

    fn with_hint(&self, mut text: String, hint: Option<&str>) {
        if let Some(hint) = hint {
            let label = match self.color_mode {
                ColorMode::Plain => "hint:",
                ColorMode::Coloured => "\x1b[1;36mhint:\x1b[0m",
            };
            text.push_str(&format!("\n\n{label} {hint}"));
        }
        self.console.report(OutputStream::Stderr, text.as_bytes());
    }

    /// One message, so that no worker's line comes between its lines.
    fn write(&self, text: &str) {
        self.console.message(OutputStream::Stderr, text.as_bytes());
    }
}
