//! The launcher's own voice: what it says to people on standard error, and how errors look.

use std::error::Error;

use crate::reporter::console::{Console, Stream};
use crate::spec::Persona;

/// Speaks through the console under the name that we go by.
#[derive(Debug, Clone)]
pub struct Voice {
    console: Console,
    name: &'static str,
    style: Style,
}

/// Whether colours help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Coloured,
}

impl Voice {
    /// A voice on `console`; `no_color` is the user's `NO_COLOR` (no-color.org).
    #[must_use]
    pub fn new(console: Console, persona: Persona, no_color: bool) -> Self {
        let coloured = console.output(Stream::Stderr).is_terminal() && !no_color;
        Self {
            console,
            name: match persona {
                Persona::Rankrun => "rankrun",
                Persona::Torchrun => "torchrun",
            },
            style: if coloured { Style::Coloured } else { Style::Plain },
        }
    }

    /// The console it speaks through.
    #[must_use]
    pub const fn console(&self) -> &Console {
        &self.console
    }

    /// One line while the job runs.
    pub fn say(&self, line: &str) {
        self.write(&format!("{}: {line}", self.name));
    }

    /// What failed, the causes below it, and one hint.
    pub fn error(&self, error: &dyn Error, hint: Option<&str>) {
        let mut text = self.heading(&error.to_string());
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!("\n  caused by: {error}"));
            cause = error.source();
        }
        self.with_hint(text, hint);
    }

    /// A whole report whose first line is the fact, and one hint.
    pub fn failure(&self, report: &str, hint: Option<&str>) {
        self.with_hint(self.heading(report.trim_end()), hint);
    }

    fn heading(&self, text: &str) -> String {
        match self.style {
            Style::Plain => format!("error: {text}"),
            Style::Coloured => format!("\x1b[1;31merror:\x1b[0m {text}"),
        }
    }

    fn with_hint(&self, mut text: String, hint: Option<&str>) {
        if let Some(hint) = hint {
            let label = match self.style {
                Style::Plain => "hint:",
                Style::Coloured => "\x1b[1;36mhint:\x1b[0m",
            };
            text.push_str(&format!("\n\n{label} {hint}"));
        }
        self.write(&text);
    }

    /// One message, so that no worker's line comes between its lines.
    fn write(&self, text: &str) {
        self.console.message(Stream::Stderr, text.as_bytes());
    }
}
