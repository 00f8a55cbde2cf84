//! Which signals the launcher handles, and how it blocks and reads them.
#![expect(unsafe_code, reason = "nix cannot ask for a signal's disposition without setting one")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, raise, sigprocmask};

use crate::process::{nix_signal, signal_set};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::getpid;
use rankrun_core::posix::Signal;

use rankrun_core::spec::{CliFlavor, SignalSpec};

/// The signals that the launcher takes: some stop the job, some only go on to the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandledSignals {
    stop: Vec<Signal>,
    forward: Vec<Signal>,
}

impl HandledSignals {
    /// The signals of the options, and SIGINT, which always ends a Python launcher. Under our own name, signals that
    /// are ignored at the start stay ignored (`nohup`, a shell's background job); torchrun installs its handlers over
    /// them.
    #[must_use]
    pub fn of(spec: &SignalSpec, cli_flavor: CliFlavor) -> Self {
        let taken = |signal: &Signal| cli_flavor == CliFlavor::Torchrun || !is_ignored(*signal);
        let mut stop: Vec<Signal> = spec.stop.iter().copied().filter(taken).collect();
        if !spec.stop.contains(&Signal::SIGINT) {
            stop.extend(Some(Signal::SIGINT).filter(taken));
        }
        Self { stop, forward: spec.forward.iter().copied().filter(taken).collect() }
    }

    /// The signals that stop a launch before its command line is parsed: torchrun's defaults.
    fn before_cli_parse() -> Self {
        Self::of(&SignalSpec::torchrun(), CliFlavor::Rankrun)
    }

    /// All that there are: for a child that is to have none of them ignored.
    #[must_use]
    pub fn every() -> Self {
        Self { stop: Signal::ALL.to_vec(), forward: Vec::new() }
    }

    /// Iterates over the signals that the launcher handles.
    pub fn iter(&self) -> impl Iterator<Item = Signal> {
        self.stop.iter().chain(&self.forward).copied()
    }

    /// Whether the launcher handles the signal of this number.
    #[must_use]
    pub fn contains(&self, number: i32) -> bool {
        self.iter().any(|signal| signal as i32 == number)
    }

    /// Whether this one stops the job.
    #[must_use]
    pub fn is_stop_signal(&self, number: i32) -> bool {
        self.stop.iter().any(|signal| *signal as i32 == number)
    }
}

/// Whether we were started with it ignored.
pub fn is_ignored(signal: Signal) -> bool {
    let mut current = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null action sigaction only writes the current one, and on success all of it.
    unsafe {
        libc::sigaction(signal as libc::c_int, ptr::null(), current.as_mut_ptr()) == 0
            && current.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// The launcher's signals, blocked and readable through a descriptor.
#[derive(Debug)]
pub struct SignalInbox {
    fd: SignalFd,
}

/// Puts SIGCHLD back to its default and blocks the handled signals, SIGCHLD, SIGWINCH, and SIGTTOU (the agent writes to
/// the terminal from a process group of its own, which `stty tostop` would stop). Returns the mask that was in force
/// before.
///
/// # Errors
/// The kernel's refusal.
pub fn block(handled: &HandledSignals) -> io::Result<SigSet> {
    reset_sigchld_action()?;
    let mut blocked = inbox_signal_set(handled);
    blocked.add(nix_signal(Signal::SIGTTOU));
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut before))?;
    Ok(before)
}

/// Ignores SIGXFSZ. Beyond the limit on file sizes (`ulimit -f`) a write then fails, as on a full disk, and the
/// launcher can report it. Workers get the default back.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler of this process runs.
    let _ = unsafe { nix::sys::signal::signal(nix::sys::signal::Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Blocks the signals that would stop a launch, if the calling process is PID 1 of a container. Returns the previous
/// mask, or `None` if nothing was blocked.
///
/// The kernel drops an unhandled signal to PID 1 and keeps a blocked one until it is read: by the wait for the
/// devices (`SignalInbox::open_for_early_signals`), or else by the guard.
#[must_use]
pub fn block_stop_signals_at_start() -> Option<SigSet> {
    if getpid().as_raw() != 1 {
        return None;
    }
    let mut before = SigSet::empty();
    let kept = signal_set(HandledSignals::before_cli_parse().iter());
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&kept), Some(&mut before)).ok()?;
    Some(before)
}

/// As [`block`], after [`block_stop_signals_at_start`]: signals blocked there without a handler here get their previous
/// state.
///
/// # Errors
/// The kernel's refusal.
pub fn block_after(kept: Option<SigSet>, handled: &HandledSignals) -> io::Result<SigSet> {
    let before = block(handled)?;
    let Some(original) = kept else { return Ok(before) };
    let handlers = HandledSignals::before_cli_parse();
    let unhandled = signal_set(
        handlers
            .iter()
            .filter(|signal| !handled.contains(*signal as i32) && !original.contains(nix_signal(*signal))),
    );
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&unhandled), None)?;
    Ok(original)
}

/// Restores the default action of SIGCHLD. The parent may have it ignored (`trap '' CHLD`): then the kernel reaps our
/// children without a report.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn reset_sigchld_action() -> io::Result<()> {
    // SAFETY: the default action is not a handler.
    unsafe { nix::sys::signal::signal(nix::sys::signal::Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

fn inbox_signal_set(handled: &HandledSignals) -> SigSet {
    signal_set(handled.iter().chain([Signal::SIGCHLD, Signal::SIGWINCH]))
}

impl SignalInbox {
    /// Opens the inbox of the calling process; [`block`] was called before.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open(handled: &HandledSignals) -> io::Result<Self> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { fd: SignalFd::with_flags(&inbox_signal_set(handled), flags)? })
    }

    /// Opens the signals that [`block_stop_signals_at_start`] keeps; `None` where the calling process is not PID 1.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open_for_early_signals() -> io::Result<Option<Self>> {
        if getpid().as_raw() != 1 {
            return Ok(None);
        }
        Self::open(&HandledSignals::before_cli_parse()).map(Some)
    }

    /// The next pending signal's number, `None` when there is none.
    ///
    /// # Errors
    /// The kernel's refusal to read.
    pub fn next(&self) -> io::Result<Option<i32>> {
        Ok(self.next_from()?.map(|(number, _)| number))
    }

    /// The next pending signal's number, and its sender.
    ///
    /// # Errors
    /// The kernel's refusal to read.
    pub(super) fn next_from(&self) -> io::Result<Option<(i32, SignalSender)>> {
        let Some(info) = self.fd.read_signal()? else { return Ok(None) };
        let is_of_a_process = info.ssi_code <= libc::SI_USER && info.ssi_pid != 0;
        let sender = if is_of_a_process { SignalSender::Process(info.ssi_pid) } else { SignalSender::Other };
        Ok(i32::try_from(info.ssi_signo).ok().map(|number| (number, sender)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalSender {
    Process(u32),
    /// The kernel, as for a key on the terminal, or a process outside of this pid namespace.
    Other,
}

impl SignalSender {
    /// Whether this, a moment later, is the same request by another way: `timeout` signals us and then its whole
    /// process group, and a wrapper passes on the Ctrl-C that we got ourselves.
    pub(super) fn is_duplicate_of(self, first: Self) -> bool {
        match (first, self) {
            (Self::Process(first), Self::Process(second)) => first == second,
            (Self::Other, Self::Other) => false,
            (Self::Process(_), Self::Other) | (Self::Other, Self::Process(_)) => true,
        }
    }
}

impl AsFd for SignalInbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Stops the calling process as an unhandled SIGTSTP would have (Ctrl-Z), and returns once it is continued.
///
/// # Errors
/// The kernel's refusal.
pub fn stop_self() -> io::Result<()> {
    raise_with_default_action(Signal::SIGTSTP as i32);
    let only = signal_set([Signal::SIGTSTP]);
    Ok(sigprocmask(SigmaskHow::SIG_BLOCK, Some(&only), None)?)
}

/// Ends the calling process as an unhandled `number` would have; returns where the kernel does not allow it.
pub fn raise_with_default_action(number: i32) {
    let Ok(signal) = Signal::try_from(number) else { return };
    // SAFETY: the default action is not a handler of this process.
    let _ = unsafe { nix::sys::signal::signal(nix_signal(signal), SigHandler::SigDfl) };
    let only = signal_set([signal]);
    let _ = raise(nix_signal(signal));
    // Blocked until now: it is delivered before this call returns.
    let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None);
}
