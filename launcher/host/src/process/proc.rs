//! Reads facts of one process from `/proc` (proc(5)).
//!
//! Every answer may be old when it is read, and a pid may have another owner by then. Before it acts on a pid, a
//! caller compares the start time again, with a pidfd in hand (`signal_if_same_start`).

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rankrun_core::posix::Errno;
use rankrun_core::posix::ProcessScanError;

use crate::process::{kill, own_pid, parent_pid};
use rankrun_core::posix::Signal;

use rankrun_core::posix::Pid;

/// After any other refusal of the kernel the process counts as absent.
pub(super) fn absent_if_not_found<T>(result: io::Result<T>) -> Result<Option<T>, ProcessScanError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => Err(ProcessScanError(Errno(errno))),
            _ => Ok(None),
        },
    }
}

/// A longer command line is cut.
const MAX_COMMAND_LEN: usize = 120;

/// Whether `/proc` exists and shows our own pid namespace; without it only the workers themselves can be ended.
#[must_use]
pub fn can_scan_processes() -> bool {
    fs::read_link("/proc/self").ok().as_deref() == Some(Path::new(&own_pid().to_string()))
}

/// Whether there is a `/proc` at all; a mounted one may still be of another pid namespace.
#[must_use]
pub fn proc_is_mounted() -> bool {
    Path::new("/proc/mounts").symlink_metadata().is_ok()
}

/// Whether `ancestor` is above this process; true where `/proc` does not tell.
#[must_use]
pub fn descends_from(ancestor: u32) -> bool {
    let Ok(ancestor) = i32::try_from(ancestor) else { return false };
    let (ancestor, mut above) = (Pid::from_raw(ancestor), parent_pid());
    while above.as_raw() > 0 && above != ancestor {
        match ProcessStat::of(above) {
            // The first process of a pid namespace has the parent 0.
            Ok(Some(stat)) => above = stat.parent().unwrap_or(Pid::from_raw(0)),
            Ok(None) | Err(ProcessScanError(_)) => return true,
        }
    }
    above == ancestor
}

pub(super) fn parse_pid(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

/// A handle of the process `parent` that is readable at its end; `None` if it is not the parent of `child`, as where the
/// pids are those of another namespace.
#[must_use]
pub fn open_parent(parent: Pid, child: Pid) -> Option<OwnedFd> {
    use rustix::process::{PidfdFlags, pidfd_open};
    let handle = pidfd_open(rustix::process::Pid::from_raw(parent.as_raw())?, PidfdFlags::empty()).ok()?;
    // Afterwards: the pid was not another process's meanwhile.
    (parent_of(child) == Some(parent)).then_some(handle)
}

/// The parent of a process, if `/proc` shows it.
#[must_use]
pub fn parent_of(child: Pid) -> Option<Pid> {
    ProcessStat::of(child).ok()??.parent()
}

/// The text of `/proc/PID/stat`, of one process.
pub(crate) struct ProcessStat(String);

impl ProcessStat {
    /// `None` if there is no such process.
    pub(super) fn of(pid: Pid) -> Result<Option<Self>, ProcessScanError> {
        let raw = absent_if_not_found(fs::read(format!("/proc/{pid}/stat")))?;
        Ok(raw.map(|raw| Self::parse(&raw)))
    }

    /// The text of a `stat` file, also that of a thread. A name may hold any bytes (PR_SET_NAME).
    pub(crate) fn parse(raw: &[u8]) -> Self {
        Self(String::from_utf8_lossy(raw).into_owned())
    }

    /// The program's name, cut to 15 bytes.
    pub(crate) fn name(&self) -> Option<&str> {
        let (before, _) = self.0.rsplit_once(')')?;
        before.split_once('(').map(|(_, name)| name)
    }

    pub(super) fn parent(&self) -> Option<Pid> {
        self.field(4).and_then(parse_pid)
    }

    /// The process group, by the pid of its first process.
    pub(super) fn process_group(&self) -> Option<Pid> {
        self.field(5).and_then(parse_pid)
    }

    /// The start time of the process, in clock ticks since boot.
    pub(super) fn start_ticks(&self) -> Option<u64> {
        self.field(22)?.parse().ok()
    }

    /// Its state, such as `S` or `D`.
    pub(crate) fn state(&self) -> Option<&str> {
        self.field(3)
    }

    /// User and system time, its own and that of its reaped children, in clock ticks.
    pub(super) fn cpu_ticks(&self) -> u64 {
        (14..=17).filter_map(|number| self.field(number)?.parse::<u64>().ok()).sum()
    }

    /// User and system time of its own, in clock ticks.
    pub(crate) fn own_cpu_ticks(&self) -> u64 {
        (14..=15).filter_map(|number| self.field(number)?.parse::<u64>().ok()).sum()
    }

    /// Its resident memory, in pages.
    pub(super) fn resident_pages(&self) -> u64 {
        self.field(24).and_then(|pages| pages.parse().ok()).unwrap_or_default()
    }

    /// Whether the process has a controlling terminal.
    pub(super) fn has_terminal(&self) -> bool {
        self.field(7).is_some_and(|terminal| terminal != "0")
    }

    /// Whether it has ended, and only its parent has not asked how.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.field(3), Some("Z" | "X"))
    }

    /// Whether it is in uninterruptible sleep.
    pub(super) fn is_in_dstate(&self) -> bool {
        self.field(3) == Some("D")
    }

    /// Counted from 1 as in proc(5). The second, the name, may hold any character, so count from its last `)`.
    fn field(&self, number: usize) -> Option<&str> {
        let (_, after_name) = self.0.rsplit_once(')')?;
        after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }
}

/// The environment with which a process was started; empty where we may not see it, and for an instant within
/// `execve`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessEnvironment(Vec<u8>);

impl ProcessEnvironment {
    pub(super) fn of(pid: Pid) -> Result<Self, ProcessScanError> {
        Ok(Self(absent_if_not_found(fs::read(format!("/proc/{pid}/environ")))?.unwrap_or_default()))
    }

    /// The first value of that name.
    pub(super) fn value(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// The command line of a process, in one line; its name in brackets if it has no arguments, as `ps` does.
pub(super) fn displayed_command(pid: Pid) -> String {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let args: Vec<_> = raw.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()).collect();
    if args.is_empty() {
        let stat = ProcessStat::of(pid).ok().flatten();
        return stat
            .as_ref()
            .and_then(ProcessStat::name)
            .map_or_else(String::new, |name| format!("[{name}]"));
    }
    let line = String::from_utf8_lossy(&args.join(&b' ')).into_owned();
    match line.char_indices().nth(MAX_COMMAND_LEN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Signals the process that had this pid and this start time, and no later owner of the pid: the pidfd holds on to a
/// process, and only if that one still has the start time is it the one that was meant. Gone meanwhile is as good as
/// signalled.
pub(super) fn signal_if_same_start((pid, started): (Pid, u64), signal: Signal) {
    use rustix::process::{PidfdFlags, Signal as Raw, pidfd_open, pidfd_send_signal};
    let handle = rustix::process::Pid::from_raw(pid.as_raw()).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let is_the_same =
        ProcessStat::of(pid).is_ok_and(|stat| stat.and_then(|stat| stat.start_ticks()) == Some(started));
    let (Some(handle), Some(raw), true) = (handle, Raw::from_named_raw(signal as i32), is_the_same) else {
        return;
    };
    // Before Linux 5.3, refused, or without a descriptor: the instant between look and kill is left to chance.
    if let Err(errno) = handle.and_then(|pidfd| pidfd_send_signal(&pidfd, raw))
        && errno != rustix::io::Errno::SRCH
    {
        let _ = kill(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(text: &str) -> ProcessStat {
        ProcessStat(text.to_owned())
    }

    #[test]
    fn stat_fields_are_parsed_after_any_process_name() {
        let odd = stat("12 (a) R 3 (b) D 7 12 12 34816 0");
        assert_eq!((odd.parent(), odd.name()), (Some(Pid::from_raw(7)), Some("a) R 3 (b")));
        assert!(odd.is_in_dstate() && odd.has_terminal() && !odd.has_ended());
        let plain = stat("12 (a) Z 7 12 12 0 0");
        assert!(plain.has_ended() && !plain.has_terminal());
        assert_eq!(
            (stat("garbage").parent(), stat("garbage").name(), stat("").start_ticks()),
            (None, None, None)
        );
    }

    #[test]
    fn lack_of_descriptors_or_memory_does_not_mean_process_gone() {
        let read_error = |errno: i32| absent_if_not_found::<()>(Err(io::Error::from_raw_os_error(errno)));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(read_error(errno), Err(ProcessScanError(Errno(errno))));
        }
        for errno in [libc::ENOENT, libc::ESRCH, libc::EACCES] {
            assert_eq!(read_error(errno), Ok(None));
        }
    }

    #[test]
    fn environment_variable_is_found_by_whole_name() {
        let environment = ProcessEnvironment(b"XRANKRUN_KEEP=0\0RANKRUN_KEEPS=2\0RANKRUN_KEEP=1\0".to_vec());
        assert_eq!(environment.value("RANKRUN_KEEP"), Some(b"1".as_slice()));
        assert_eq!(environment.value("KEEP"), None);
        assert_eq!(ProcessEnvironment::default().value("KEEP"), None);
    }
}
