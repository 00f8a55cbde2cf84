//! The settings of a launch that decisions of [`super::state`] depend on, taken from the launch
//! specification. Pure.

use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize, NodeCount, RestartCount};

use crate::exit_code::SIGNAL_BASE;
use crate::posix::{Exit, Signal};
use crate::spec::options::IndependentOptions;
use crate::spec::restart::RestartPolicy;
use crate::spec::stop::{LeftoverPolicy, StopPolicy, TimeLimit};
use crate::spec::{CliFlavor, LaunchSpec, Unhealthy};

/// The settings of one launch, as the state needs them.
#[derive(Debug, Clone)]
pub struct JobRules {
    pub(super) cli_flavor: CliFlavor,
    pub(super) workers: LocalWorldSize,
    pub(super) max_restarts: RestartCount,
    pub(super) restart: RestartPolicy,
    pub(super) stop: StopPolicy,
    /// What becomes of processes that outlive the workers of a success.
    pub(super) leftovers: LeftoverPolicy,
    /// Limit on the run time of the whole job.
    pub(super) time_limit: Option<TimeLimit>,
    /// Time in which every worker must join the store.
    pub(super) start_timeout: Option<Duration>,
    /// Time without progress after which the workers have failed.
    pub(super) hang_timeout: Option<Duration>,
    /// How long a worker may be uninterruptible (state `D`), if watched.
    pub(super) dstate_timeout: Option<Duration>,
    pub(super) stop_signals: Vec<Signal>,
    /// SIGINT also ends a Python launcher if `--signals-to-handle` leaves it out. The launcher then raises an
    /// exception, and the workers get SIGTERM.
    pub(super) interrupt: Interrupt,
    /// What a device means that is found dead after a failure, if devices are checked.
    pub(super) unhealthy: Option<Unhealthy>,
    /// Options that need no other setting.
    pub(super) options: IndependentOptions,
    /// The external worker: the job waits for it, but never signals it.
    pub(super) external_worker: Option<LocalRank>,
    /// Other nodes may be in the job, and go on without this one.
    pub(super) may_have_peers: bool,
}

/// Whether SIGINT is among the signals to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    Listed,
    Unlisted,
}

impl JobRules {
    /// The rules of the launch that `spec` describes.
    #[must_use]
    pub fn of(spec: &LaunchSpec) -> Self {
        let has_devices = spec.devices.workers.iter().any(|worker| worker.identity.is_some());
        let listed = spec.signals.stop.contains(&Signal::SIGINT);
        Self {
            cli_flavor: spec.cli_flavor,
            workers: spec.workers,
            max_restarts: spec.max_restarts,
            restart: spec.restart.clone(),
            stop: spec.stop,
            leftovers: spec.leftovers,
            // A worker that is not told of its job joins no store.
            start_timeout: spec.start_timeout.filter(|_| spec.is_distributed()),
            time_limit: spec.time_limit,
            hang_timeout: spec.hang.timeout,
            dstate_timeout: spec.dstate_timeout,
            stop_signals: spec.signals.stop.clone(),
            interrupt: if listed { Interrupt::Listed } else { Interrupt::Unlisted },
            unhealthy: spec.device_check().filter(|_| has_devices),
            options: spec.options.clone(),
            external_worker: spec.external_worker,
            may_have_peers: spec.rendezvous.nodes().max > NodeCount::ONE,
        }
    }

    /// True if a worker ended by a stop signal, or with the code by which shells report it. SIGINT counts
    /// always.
    pub(super) fn is_exit_by_stop_signal(&self, exit: Exit) -> bool {
        let number = match exit {
            Exit::Signal { number, .. } => number,
            Exit::Code(code) => code.saturating_sub(i32::from(SIGNAL_BASE)),
        };
        Signal::try_from(number)
            .is_ok_and(|signal| signal == Signal::SIGINT || self.stop_signals.contains(&signal))
    }

    /// The signal for the workers when the launcher got `signal`.
    pub(super) fn worker_signal(&self, signal: Signal) -> Signal {
        match (signal, self.interrupt) {
            (Signal::SIGINT, Interrupt::Unlisted) => Signal::SIGTERM,
            _ => signal,
        }
    }
}
