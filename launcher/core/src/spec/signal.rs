//! Signals as people write them. Pure.

use std::fmt;
use std::str::FromStr;

use crate::posix::Signal;
use serde::{Serialize, Serializer};

use super::setting::{Expected, Origin};

/// A signal that ends a program by default, or that the program can handle to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal(pub Signal);

const STOP_SIGNAL: Expected =
    Expected::new("a signal that can stop a worker, such as `INT` or `USR1`", "INT")
        .advised(advise_stop_signal);

/// The reason why a signal stops no worker, as a hint.
fn advise_stop_signal(_origin: &Origin, text: &str) -> Option<String> {
    let Some(signal) = parse_signal(text) else {
        let name = text.to_ascii_uppercase();
        let is_real_time = name.trim_start_matches("SIG").starts_with("RT")
            || name.parse::<i32>().is_ok_and(|number| (32..=64).contains(&number));
        return is_real_time.then(|| {
            "real-time signals are not supported: USR1 and USR2 are free for the program, too".to_owned()
        });
    };
    Some(match signal {
        Signal::SIGKILL => {
            "a program cannot handle KILL; `--grace 0` kills at once, and KILL follows any other signal after the \
             grace"
                .to_owned()
        }
        Signal::SIGCHLD | Signal::SIGCONT | Signal::SIGURG | Signal::SIGWINCH => {
            format!("{signal} ends no program that does not handle it: take one such as INT or USR1")
        }
        _ => format!("{signal} halts a program, which KILL ends after the grace: take one such as INT or USR1"),
    })
}

impl FromStr for StopSignal {
    type Err = Expected;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_signal(text)
            .filter(|signal| signal.ends_by_default() && *signal != Signal::SIGKILL)
            .map(Self)
            .ok_or(STOP_SIGNAL)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for StopSignal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Names of signals that have another one too.
const ALIASES: [(&str, Signal); 3] =
    [("SIGCLD", Signal::SIGCHLD), ("SIGIOT", Signal::SIGABRT), ("SIGPOLL", Signal::SIGIO)];

/// A signal by its name, `SIG` included, as the kernel's headers and Python have it.
#[must_use]
pub fn signal_of_name(name: &str) -> Option<Signal> {
    let alias = || ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, signal)| *signal);
    Signal::from_str(name).ok().or_else(alias)
}

/// A signal by its number or its name, with or without `SIG`.
#[must_use]
pub fn parse_signal(text: &str) -> Option<Signal> {
    if let Ok(number) = text.parse::<i32>() {
        return Signal::try_from(number).ok();
    }
    let name = text.to_ascii_uppercase();
    signal_of_name(&name).or_else(|| signal_of_name(&format!("SIG{name}")))
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
    fn signal_has_its_other_names() {
        for (name, signal) in [("IOT", Signal::SIGABRT), ("SIGPOLL", Signal::SIGIO), ("cld", Signal::SIGCHLD)]
        {
            assert_eq!(parse_signal(name), Some(signal));
        }
    }

    #[test]
    fn stop_signal_is_one_that_can_end_a_program() {
        let origin = Origin::Option("stop-signal");
        for text in ["INT", "usr1", "SIGHUP", "15", "IOT", "POLL", "PWR"] {
            assert!(text.parse::<StopSignal>().is_ok(), "{text}");
        }
        for (text, hint) in [
            ("KILL", "`--grace 0` kills at once"),
            ("9", "`--grace 0`"),
            ("STOP", "SIGSTOP halts a program"),
            ("TSTP", "halts"),
            ("TTIN", "halts"),
            ("TTOU", "halts"),
            ("CLD", "SIGCHLD ends no program"),
            ("CONT", "ends no program"),
            ("URG", "ends no program"),
            ("WINCH", "ends no program"),
            ("SIGRTMIN", "real-time"),
            ("RTMIN+3", "real-time"),
            ("34", "real-time"),
        ] {
            let expected = text.parse::<StopSignal>().unwrap_err();
            let advice = (expected.advice)(&origin, text).unwrap();
            assert!(advice.contains(hint), "{text}: {advice}");
        }
        assert_eq!("soon".parse::<StopSignal>().ok(), None);
        assert_eq!((STOP_SIGNAL.advice)(&origin, "soon"), None);
    }
}
