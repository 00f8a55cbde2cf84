//! Asks the kernel why it does not permit a look into a worker.
#![expect(unsafe_code, reason = "a ptrace call that a filter would refuse has no safe wrapper")]

use std::fs;
use std::io;
use std::ptr;

use rankrun_core::posix::Pid;
use rankrun_core::stacks::ptrace::PtraceFacts;

use crate::process::own_pid;

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
        is_filtered: is_filtered(),
        tracer: value(&worker, "TracerPid:").and_then(|pid| pid.parse().ok()).filter(|pid| *pid != 0),
    }
}

fn value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether a filter answers in the place of the kernel. For this process itself the kernel permits the read of memory,
/// and says that it is not a tracee (ESRCH).
fn is_filtered() -> bool {
    let (from, mut into) = ([7_u8], [0_u8]);
    let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 1 };
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: 1 };
    let own = own_pid().as_raw();
    // SAFETY: both buffers outlive the call, which reads one byte of this process into the other.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    // SAFETY: this process is not traced by itself, so the kernel does nothing.
    let traced = unsafe { libc::ptrace(libc::PTRACE_CONT, own, NOTHING, NOTHING) };
    let is_trace_refused = traced < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    read < 0 || is_trace_refused
}

const NOTHING: *mut libc::c_void = ptr::null_mut();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_proc() {
        let facts = ptrace_facts(own_pid());
        assert!(facts.tracer.is_none(), "{facts:?}");
        assert_eq!(facts.yama_mode.is_some(), fs::exists("/proc/sys/kernel/yama").unwrap());
        assert_eq!(value("CapEff:\t0000000000080000\nX:", "CapEff:"), Some("0000000000080000"));
        assert_eq!(value("Name:\tx\n", "CapEff:"), None);
    }
}
