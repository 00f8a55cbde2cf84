//! The words of POSIX for processes: pids, signals and how a process ended. Plain data, no system call.

use std::fmt;
use std::io;
use std::str::FromStr;

/// The id of a process, as kill(2) takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(i32);

impl Pid {
    /// The process with this id.
    #[must_use]
    pub const fn from_raw(pid: i32) -> Self {
        Self(pid)
    }

    /// The number.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process, and no later owner of its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: Pid,
    /// The start time, in clock ticks since boot.
    pub started: u64,
}

/// The signals with their names and numbers: one table, in the order of the numbers.
macro_rules! signals {
    ($($name:ident = $number:literal,)*) => {
        /// A signal that has a name (signal(7)); real-time signals have none. Numbers as on x86-64 and ARM.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Signal {
            $($name = $number,)*
        }

        impl Signal {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$name),*];

            /// Such as `SIGTERM`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

signals! {
    SIGHUP = 1,
    SIGINT = 2,
    SIGQUIT = 3,
    SIGILL = 4,
    SIGTRAP = 5,
    SIGABRT = 6,
    SIGBUS = 7,
    SIGFPE = 8,
    SIGKILL = 9,
    SIGUSR1 = 10,
    SIGSEGV = 11,
    SIGUSR2 = 12,
    SIGPIPE = 13,
    SIGALRM = 14,
    SIGTERM = 15,
    SIGSTKFLT = 16,
    SIGCHLD = 17,
    SIGCONT = 18,
    SIGSTOP = 19,
    SIGTSTP = 20,
    SIGTTIN = 21,
    SIGTTOU = 22,
    SIGURG = 23,
    SIGXCPU = 24,
    SIGXFSZ = 25,
    SIGVTALRM = 26,
    SIGPROF = 27,
    SIGWINCH = 28,
    SIGIO = 29,
    SIGPWR = 30,
    SIGSYS = 31,
}

impl Signal {
    /// Whether it ends a process that does not handle it.
    #[must_use]
    pub const fn ends_by_default(self) -> bool {
        !matches!(
            self,
            Self::SIGCHLD
                | Self::SIGCONT
                | Self::SIGSTOP
                | Self::SIGTSTP
                | Self::SIGTTIN
                | Self::SIGTTOU
                | Self::SIGURG
                | Self::SIGWINCH
        )
    }
}

/// The number or name does not belong to a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a signal")]
pub struct NotASignal;

impl TryFrom<i32> for Signal {
    type Error = NotASignal;

    fn try_from(number: i32) -> Result<Self, NotASignal> {
        Self::ALL.into_iter().find(|signal| *signal as i32 == number).ok_or(NotASignal)
    }
}

/// By the name with `SIG`.
impl FromStr for Signal {
    type Err = NotASignal;

    fn from_str(name: &str) -> Result<Self, NotASignal> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name).ok_or(NotASignal)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `SIGTERM` for 15; `signal 42` for one without a name.
#[must_use]
pub fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// How a process ended, as wait(2) reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// A signal killed the process.
    Signal {
        /// The signal's number; real-time signals have no name.
        number: i32,
        /// Whether a core file was written.
        core_dumped: bool,
    },
}

impl Exit {
    /// Whether the process did its task: exit code 0.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, core_dumped } => {
                write!(f, "killed by {}", signal_name(number))?;
                if core_dumped { write!(f, ", core dumped") } else { Ok(()) }
            }
        }
    }
}

/// An error number of the kernel (errno(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// No descriptor or no memory is left to look at processes, so it is unknown which ones exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot look at processes")]
pub struct ProcessScanError(#[source] pub Errno);

impl From<ProcessScanError> for io::Error {
    fn from(ProcessScanError(Errno(number)): ProcessScanError) -> Self {
        Self::from_raw_os_error(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_is_displayed_in_words() {
        assert_eq!(Exit::Code(3).to_string(), "exit code 3");
        assert_eq!(Exit::Signal { number: 9, core_dumped: false }.to_string(), "killed by SIGKILL");
        assert_eq!(
            Exit::Signal { number: 40, core_dumped: true }.to_string(),
            "killed by signal 40, core dumped"
        );
    }

    #[test]
    fn signals_are_found_by_name_and_number() {
        for signal in Signal::ALL {
            assert_eq!(Signal::try_from(signal as i32), Ok(signal));
            assert_eq!(signal.as_str().parse(), Ok(signal));
        }
        assert_eq!((Signal::try_from(0), Signal::try_from(32)), (Err(NotASignal), Err(NotASignal)));
        assert_eq!(
            ("TERM".parse::<Signal>(), "SIGNAL".parse::<Signal>()),
            (Err(NotASignal), Err(NotASignal))
        );
    }
}
