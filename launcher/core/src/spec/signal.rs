//! Signals as people write them. Pure.

use std::fmt;
use std::str::FromStr;

use crate::posix::Signal;
use serde::{Serialize, Serializer};

use super::setting::Expected;

/// A signal that a process can handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchableSignal(pub Signal);

const CATCHABLE: Expected = Expected::new("a signal that can be handled, such as `INT` or `USR1`", "INT");

impl FromStr for CatchableSignal {
    type Err = Expected;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_catchable = |signal: &Signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
        parse_signal(text).filter(is_catchable).map(Self).ok_or(CATCHABLE)
    }
}

impl fmt::Display for CatchableSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for CatchableSignal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A signal by its number or its name, with or without `SIG`.
#[must_use]
pub fn parse_signal(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).ok();
    }
    let name = text.to_ascii_uppercase();
    Signal::from_str(&name).or_else(|_| Signal::from_str(&format!("SIG{name}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_is_parsed_from_name_or_number() {
        for text in ["KILL", "SIGKILL", "kill", "9"] {
            assert_eq!(parse_signal(text), Some(Signal::SIGKILL), "`{text}`");
        }
        for text in ["", "0", "65", "SIG", "NONE", "-9"] {
            assert_eq!(parse_signal(text), None, "`{text}`");
        }
    }

    #[test]
    fn catchable_signal_is_neither_kill_nor_stop() {
        for (text, signal) in [("INT", Some(Signal::SIGINT)), ("KILL", None), ("19", None), ("soon", None)] {
            assert_eq!(text.parse::<CatchableSignal>().ok(), signal.map(CatchableSignal), "`{text}`");
        }
    }
}
