//! What of a launch the decisions of [`super::state`] depend on. Pure.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use rankrun_contract::rank::{LocalRank, LocalWorldSize, RestartCount};

use crate::exit_code::SIGNAL_BASE;
use crate::process::Exit;
use crate::spec::restart::RestartPolicy;
use crate::spec::stop::{GraceFor, TimeLimit};
use crate::spec::{LaunchSpec, Persona, Unhealthy};

/// The rules of one launch.
#[derive(Debug, Clone)]
pub struct Rules {
    pub(super) persona: Persona,
    pub(super) workers: LocalWorldSize,
    pub(super) max_restarts: RestartCount,
    /// When and after what there is a restart.
    pub(super) restart: RestartPolicy,
    /// From the signal to SIGKILL, where nothing is said for the cause of the stop.
    pub(super) grace: Duration,
    /// What is said for single causes.
    pub(super) grace_for: GraceFor,
    /// How long the whole job may take, where there is a limit.
    pub(super) time_limit: Option<TimeLimit>,
    /// Until when every worker has joined the store, where that is asked for.
    pub(super) start_timeout: Option<Duration>,
    /// How long a worker may sit in the kernel, where anybody cares.
    pub(super) stuck_limit: Option<Duration>,
    /// The signals that stop the job.
    pub(super) stop_signals: SigSet,
    /// SIGINT ends a Python launcher also where `--signals-to-handle` leaves it out, but then as an exception: the
    /// workers get SIGTERM.
    pub(super) interrupt: Interrupt,
    /// What a device means that is found dead after a failure, where somebody looks.
    pub(super) unhealthy: Option<Unhealthy>,
    /// Other nodes may take part: workers run in rounds.
    pub(super) has_rendezvous: bool,
    /// This worker is a person's: it is waited for, and never signalled.
    pub(super) left_out: Option<LocalRank>,
}

/// Whether SIGINT is one of the signals to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    Listed,
    Unlisted,
}

impl Rules {
    /// The rules of one launch.
    #[must_use]
    pub fn of(spec: &LaunchSpec) -> Self {
        let has_devices = spec.seats.iter().any(|seat| seat.device.card.is_some());
        let listed = spec.signals.stop.contains(&Signal::SIGINT);
        Self {
            persona: spec.persona,
            workers: spec.workers,
            max_restarts: spec.max_restarts,
            restart: spec.restart.clone(),
            grace: spec.stop.grace,
            grace_for: spec.stop.grace_for,
            start_timeout: spec.start_timeout,
            time_limit: spec.time_limit,
            stuck_limit: spec.stuck_limit,
            stop_signals: spec.signals.stop.iter().copied().collect(),
            interrupt: if listed { Interrupt::Listed } else { Interrupt::Unlisted },
            unhealthy: spec.device_check.filter(|_| has_devices).map(|check| check.unhealthy),
            has_rendezvous: spec.rendezvous.is_shared(),
            left_out: spec.left_out,
        }
    }

    /// Whether a worker ended by a signal that stops the job, or says so as shells do. SIGINT does, asked for or not.
    pub(super) fn is_of_a_stop_signal(&self, exit: Exit) -> bool {
        let number = match exit {
            Exit::Signal { number, .. } => number,
            Exit::Code(code) => code.saturating_sub(i32::from(SIGNAL_BASE)),
        };
        Signal::try_from(number)
            .is_ok_and(|signal| signal == Signal::SIGINT || self.stop_signals.contains(signal))
    }

    /// What the workers get when the launcher got `signal`.
    pub(super) fn for_workers(&self, signal: Signal) -> Signal {
        match (signal, self.interrupt) {
            (Signal::SIGINT, Interrupt::Unlisted) => Signal::SIGTERM,
            _ => signal,
        }
    }
}
