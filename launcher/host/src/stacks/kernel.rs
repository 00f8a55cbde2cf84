//! What `/proc` shows of the threads of a process, without any privilege: their state and CPU time, and where it may be
//! seen the system call or the kernel's function in which each waits.

use std::fs;
use std::io;

use rankrun_core::posix::Pid;
use rankrun_core::stacks::KernelThread;

use crate::process::proc::ProcessStat;

/// A worker with more threads is shown with these.
const MAX_THREADS: usize = 256;

/// The threads, the main one first.
///
/// # Errors
/// `/proc` does not show the process.
pub(super) fn threads_of(pid: Pid) -> io::Result<Vec<KernelThread>> {
    let mut threads = Vec::new();
    for id in thread_ids(pid)? {
        threads.extend(thread(pid, id));
    }
    Ok(threads)
}

/// The ids of the threads, in ascending order.
pub(super) fn thread_ids(pid: Pid) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?.take(MAX_THREADS);
    let mut ids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The main thread has the id of the process, also where ids have begun again at small numbers.
    ids.sort_unstable_by_key(|id| (*id != pid.as_raw(), *id));
    Ok(ids)
}

/// `None` if it has ended.
fn thread(pid: Pid, id: i32) -> Option<KernelThread> {
    let read = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/task/{id}/{file}")).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    let stat = ProcessStat::parse(&fs::read(format!("/proc/{pid}/task/{id}/stat")).ok()?);
    let ticks = stat.own_cpu_ticks();
    Some(KernelThread {
        id,
        name: stat.name().unwrap_or_default().to_owned(),
        state: stat.state().unwrap_or_default().to_owned(),
        // `0` for a thread that runs, or where it may not be seen.
        wait_channel: read("wchan").filter(|name| !name.is_empty() && name != "0"),
        system_call: read("syscall").and_then(|text| system_call(&text)),
        cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        native: Vec::new(),
    })
}

/// The system call of `/proc/PID/task/TID/syscall`: `running`, `-1 SP PC` outside of one, or its number first.
fn system_call(text: &str) -> Option<String> {
    let number: i64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    let name = name_of_call(number);
    (number >= 0).then(|| name.map_or_else(|| format!("system call {number}"), str::to_owned))
}

/// The calls in which workers wait.
fn name_of_call(number: i64) -> Option<&'static str> {
    Some(match number {
        libc::SYS_futex => "futex",
        libc::SYS_read => "read",
        libc::SYS_readv => "readv",
        libc::SYS_pread64 => "pread64",
        libc::SYS_write => "write",
        libc::SYS_writev => "writev",
        libc::SYS_pwrite64 => "pwrite64",
        libc::SYS_openat => "openat",
        libc::SYS_close => "close",
        libc::SYS_fsync => "fsync",
        libc::SYS_fdatasync => "fdatasync",
        libc::SYS_flock => "flock",
        libc::SYS_fcntl => "fcntl",
        libc::SYS_ioctl => "ioctl",
        libc::SYS_ppoll => "ppoll",
        libc::SYS_pselect6 => "pselect6",
        libc::SYS_epoll_pwait => "epoll_pwait",
        libc::SYS_recvfrom => "recvfrom",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_sendto => "sendto",
        libc::SYS_sendmsg => "sendmsg",
        libc::SYS_accept => "accept",
        libc::SYS_accept4 => "accept4",
        libc::SYS_connect => "connect",
        libc::SYS_nanosleep => "nanosleep",
        libc::SYS_clock_nanosleep => "clock_nanosleep",
        libc::SYS_restart_syscall => "restart_syscall",
        libc::SYS_wait4 => "wait4",
        libc::SYS_waitid => "waitid",
        libc::SYS_rt_sigtimedwait => "rt_sigtimedwait",
        libc::SYS_rt_sigsuspend => "rt_sigsuspend",
        libc::SYS_sched_yield => "sched_yield",
        libc::SYS_mmap => "mmap",
        libc::SYS_munmap => "munmap",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => "poll",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => "select",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => "epoll_wait",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => "open",
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause => "pause",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::own_pid;

    #[test]
    fn system_call_is_named_by_its_number() {
        let futex = format!("{} 0x7f 0x0", libc::SYS_futex);
        assert_eq!(system_call(&futex).as_deref(), Some("futex"));
        assert_eq!(system_call("99999 0x0").as_deref(), Some("system call 99999"));
        for none in ["running", "-1 0x7f 0x7f", "", "x"] {
            assert_eq!(system_call(none), None, "{none}");
        }
    }

    #[test]
    fn threads_of_process_begin_with_its_main_thread() {
        let threads = threads_of(own_pid()).unwrap();
        assert_eq!(threads[0].id, own_pid().as_raw());
        assert!(threads.iter().all(|thread| !thread.state.is_empty()), "{threads:?}");
        assert!(threads_of(Pid::from_raw(i32::MAX)).is_err());
    }
}
