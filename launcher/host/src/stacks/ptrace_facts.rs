//! Asks the kernel why it does not permit a look into a worker.

use std::fs;

use rankrun_core::posix::Pid;
use rankrun_core::stacks::ptrace::PtraceFacts;

/// The bit of `CAP_SYS_PTRACE` (capabilities(7)).
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What is known after a refusal.
pub(super) fn ptrace_facts(pid: Pid) -> PtraceFacts {
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let worker = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let capabilities = value(&own, "CapEff:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    PtraceFacts {
        yama_mode: yama.ok().and_then(|mode| mode.trim().parse().ok()),
        has_capability: capabilities.is_some_and(|mask| mask & CAP_SYS_PTRACE != 0),
        // A call that the filter may kill for would tell more.
        is_filtered: value(&own, "Seccomp:") == Some("2"),
        tracer: value(&worker, "TracerPid:").and_then(|pid| pid.parse().ok()).filter(|pid| *pid != 0),
    }
}

fn value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::own_pid;

    #[test]
    fn facts_are_read_from_proc() {
        let facts = ptrace_facts(own_pid());
        assert!(facts.tracer.is_none(), "{facts:?}");
        assert_eq!(facts.yama_mode.is_some(), fs::exists("/proc/sys/kernel/yama").unwrap());
        assert_eq!(value("CapEff:\t0000000000080000\nX:", "CapEff:"), Some("0000000000080000"));
        assert_eq!(value("Name:\tx\n", "CapEff:"), None);
    }
}
