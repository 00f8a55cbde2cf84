//! Starts one worker: new session, parent-death signal, its CPUs, clean signal state, then `execve`.
//!
//! `clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD)`: the parent's memory is not copied, so the cost is the same for
//! a small and a large launcher; the parent is suspended until the child has called `execve` or failed, so the
//! child may write its failure straight into the parent's memory; and the pidfd names this child and no later
//! owner of its pid. Must be called on the agent's main thread: the parent-death signal fires when the *thread*
//! that forked ends (prctl(2)).
#![expect(unsafe_code, reason = "clone and the calls between it and execve have no safe wrapper")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::process::nix_pid;
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use rankrun_core::posix::Pid;

use crate::process::inherited::FileLimits;
use crate::process::signal::HandledSignals;
use rankrun_core::worker_command::WorkerCommand;

/// The worker's standard input, output and error; `None` inherits the launcher's.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stdio<'a> {
    /// The standard input of the worker; inherited if `None`.
    pub stdin: Option<BorrowedFd<'a>>,
    /// The standard output of the worker; inherited if `None`.
    pub stdout: Option<BorrowedFd<'a>>,
    /// The standard error of the worker; inherited if `None`.
    pub stderr: Option<BorrowedFd<'a>>,
}

/// Process state that the launcher changed for itself and restores in every worker.
#[derive(Debug, Clone)]
pub struct InheritedState {
    /// The signal mask that the launcher itself was started with.
    pub mask: SigSet,
    /// Back to default, also where the launcher was started with them ignored.
    pub handled: HandledSignals,
    /// The limits on open files, if they were changed.
    pub file_limits: Option<FileLimits>,
}

/// A started process, not yet reaped.
#[derive(Debug)]
pub struct Spawned {
    /// Its pid, also its process group and session.
    pub pid: Pid,
    /// A handle that no other process can take over; absent before Linux 5.2 and where it is refused.
    pub pidfd: Option<OwnedFd>,
}

/// Bytes of stack for the child between `clone` and `execve`.
const STACK_SIZE: usize = 64 * 1024;

/// Ignored signals that a Rust or Python parent would hand down (`restore_signals` of Python's `subprocess`).
const IGNORED_BY_RUNTIMES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Everything the child needs, prepared before `clone`: it may not allocate.
struct SpawnPlan {
    path: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    /// For descriptors 0, 1, 2: the descriptor to put there, or -1 to leave it.
    stdio: [RawFd; 3],
    mask: *const libc::sigset_t,
    reset: *const libc::c_int,
    reset_count: usize,
    file_limits: Option<libc::rlimit>,
    /// A bit for each CPU, in whole words as the kernel wants them; no words leave the mask as it is.
    cpus: *const libc::c_ulong,
    cpus_size: usize,
    names_tracer: bool,
    parent: libc::pid_t,
    /// The child's failure, written through the shared memory; 0 once `execve` succeeded.
    errno: libc::c_int,
}

/// Starts `command` in a session of its own.
///
/// # Errors
/// The kernel's refusal of `clone` or `execve`; then no process is left.
pub fn spawn(command: &WorkerCommand, stdio: Stdio<'_>, original: &InheritedState) -> io::Result<Spawned> {
    let argv = pointers(&command.argv);
    let envp = pointers(&command.envp);
    let mut reset: Vec<libc::c_int> = original.handled.iter().map(|signal| signal as libc::c_int).collect();
    reset.extend(IGNORED_BY_RUNTIMES);
    let cpus = command.cpus.as_deref().map(mask_of).unwrap_or_default();
    let raw = |fd: Option<BorrowedFd<'_>>| fd.map_or(-1, |fd| fd.as_raw_fd());
    let mut plan = SpawnPlan {
        path: command.path.as_ptr(),
        argv: argv.as_ptr(),
        envp: envp.as_ptr(),
        stdio: [raw(stdio.stdin), raw(stdio.stdout), raw(stdio.stderr)],
        mask: ptr::from_ref(original.mask.as_ref()),
        reset: reset.as_ptr(),
        reset_count: reset.len(),
        file_limits: original
            .file_limits
            .map(|limits| libc::rlimit { rlim_cur: limits.soft, rlim_max: limits.hard }),
        cpus: cpus.as_ptr(),
        cpus_size: size_of_val(cpus.as_slice()),
        names_tracer: command.names_tracer,
        parent: nix::unistd::getpid().as_raw(),
        errno: 0,
    };
    let (pid, pidfd) = clone_child(&mut plan)?;
    // SAFETY: the child wrote `errno` through `clone`'s shared memory before the parent went on (CLONE_VFORK).
    let failure = unsafe { ptr::read_volatile(&raw const plan.errno) };
    if failure == 0 {
        return Ok(Spawned { pid, pidfd });
    }
    // The child has called `_exit`, so this wait is short.
    while nix::sys::wait::waitpid(nix_pid(pid), None) == Err(Errno::EINTR) {}
    Err(io::Error::from_raw_os_error(failure))
}

fn pointers(strings: &[std::ffi::CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// The CPUs as the kernel's mask: as long as the highest one needs, whatever glibc's `cpu_set_t` has room for.
fn mask_of(cpus: &[u32]) -> Vec<libc::c_ulong> {
    let mut mask = Vec::new();
    for &cpu in cpus {
        let (index, bit) = ((cpu / libc::c_ulong::BITS) as usize, cpu % libc::c_ulong::BITS);
        if mask.len() <= index {
            mask.resize(index + 1, 0);
        }
        mask[index] |= 1 << bit;
    }
    mask
}

fn clone_child(plan: &mut SpawnPlan) -> io::Result<(Pid, Option<OwnedFd>)> {
    let mut stack = vec![0_u128; STACK_SIZE / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: `child` takes a `Plan` and keeps to async-signal-safe calls; the stack is 16-byte aligned, grows
    // downwards from `top`, and outlives the child's use of this memory since CLONE_VFORK suspends us until then.
    let pid = unsafe { libc::clone(child, top, flags, ptr::from_mut(plan).cast(), &raw mut pidfd) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for us, close-on-exec.
    let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
    Ok((Pid::from_raw(pid), pidfd))
}

extern "C" fn child(plan: *mut c_void) -> libc::c_int {
    let plan = plan.cast::<SpawnPlan>();
    // SAFETY: the parent passes a `Plan` that lives until it continues, and is suspended meanwhile. Only
    // async-signal-safe functions are called.
    unsafe {
        (*plan).errno = become_worker(&*plan);
        libc::_exit(127)
    }
}

/// Returns only on failure, with the `errno`.
///
/// # Safety
/// Only in a child made by `clone`, before `execve`.
unsafe fn become_worker(plan: &SpawnPlan) -> libc::c_int {
    // SAFETY: async-signal-safe calls on a plan with pointers that the parent keeps alive.
    unsafe {
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return errno();
        }
        // The parent may have died before the prctl: then nothing would ever kill us.
        if libc::getppid() != plan.parent {
            return libc::ESRCH;
        }
        // It survives the exec. A kernel without Yama refuses it, and needs none.
        if plan.names_tracer {
            libc::prctl(libc::PR_SET_PTRACER, plan.parent as libc::c_ulong, 0, 0, 0);
        }
        if plan.cpus_size > 0 && libc::syscall(libc::SYS_sched_setaffinity, 0, plan.cpus_size, plan.cpus) < 0
        {
            return errno();
        }
        for (target, &source) in plan.stdio.iter().enumerate() {
            if source >= 0 && libc::dup2(source, target as RawFd) < 0 {
                return errno();
            }
        }
        if let Some(limits) = &plan.file_limits
            && libc::setrlimit(libc::RLIMIT_NOFILE, limits) < 0
        {
            return errno();
        }
        for at in 0..plan.reset_count {
            libc::signal(*plan.reset.add(at), libc::SIG_DFL);
        }
        libc::sigprocmask(libc::SIG_SETMASK, plan.mask, ptr::null_mut());
        libc::execve(plan.path, plan.argv, plan.envp);
        errno()
    }
}

/// # Safety
/// None beyond the call itself: reads the calling thread's `errno`.
unsafe fn errno() -> libc::c_int {
    // SAFETY: glibc returns a valid pointer to the thread's errno.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;
    use crate::system::System;
    use rankrun_core::facts::World;
    use rankrun_core::spec::{CliFlavor, SignalSpec};

    #[test]
    fn cpu_mask_is_as_long_as_its_highest_cpu() {
        assert_eq!(mask_of(&[0, 2, 63]), [1 | 4 | 1 << 63]);
        assert_eq!(mask_of(&[64, 1300]).len(), 1300 / 64 + 1);
        assert_eq!(mask_of(&[64])[1], 1);
        assert!(mask_of(&[]).is_empty());
    }

    /// The kernel's reason for refusing these CPUs to a child.
    fn bound_to(cpus: Option<Vec<u32>>) -> io::Result<String> {
        let argv = [c"grep", c"Cpus_allowed_list", c"/proc/self/status"].map(ToOwned::to_owned).to_vec();
        let command =
            WorkerCommand { path: c"/bin/grep".to_owned(), argv, envp: Vec::new(), cpus, names_tracer: true };
        let original = InheritedState {
            mask: SigSet::empty(),
            handled: HandledSignals::of(&SignalSpec::torchrun(), CliFlavor::Rankrun),
            file_limits: None,
        };
        let (read, write) = nix::unistd::pipe()?;
        let stdio = Stdio { stdout: Some(write.as_fd()), ..Stdio::default() };
        let spawned = spawn(&command, stdio, &original)?;
        drop(write);
        let mut output = String::new();
        File::from(read).read_to_string(&mut output)?;
        // Another test may reap every child of this process.
        let _ = nix::sys::wait::waitpid(nix_pid(spawned.pid), None);
        Ok(output.trim().trim_start_matches("Cpus_allowed_list:").trim().to_owned())
    }

    #[test]
    fn child_is_bound_to_cpus_before_exec() {
        let own = System::SILENT.allowed_cpus();
        let last = *own.last().unwrap();
        assert_eq!(bound_to(Some(vec![last])).unwrap(), last.to_string());
        assert_eq!(bound_to(None).unwrap(), rankrun_core::device::affinity::format_ranges(&own));
        // A CPU that is not there.
        let error = bound_to(Some(vec![8190])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
