//! Errors of the device options on this machine, with their hints.

use rankrun_contract::rank::LocalRank;

use crate::device::affinity::AffinityError;
use crate::device::choice::{ChoiceError, ORDER_HINT};
use crate::device::cores::CoreError;
use crate::device::order::{DeviceOrder, OrderError};
use crate::device::selector::{SelectorError, display_value};
use crate::device::{ProbeProblem, ProbeProblemKind};
use crate::spec::setting::Origin;

/// Devices cannot be chosen, counted, shared or bound to as was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// `--devices` is not a list of devices.
    #[error("{origin} is `{}`: {error}", display_value(value))]
    Selector {
        /// Where it came from.
        origin: Origin,
        /// The list.
        value: String,
        /// What is wrong with it.
        error: SelectorError,
    },
    /// Any other, with a hint that fits how and where it was said.
    #[error("{error}")]
    Advised {
        /// What is wrong.
        error: Box<Self>,
        /// What to do.
        hint: String,
    },
    /// What was asked for is not there, or not clear.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// `--device-order`
    #[error("{origin} is `{}`: {error}", order.as_str())]
    Order {
        /// Where it came from.
        origin: Origin,
        /// Its value.
        order: DeviceOrder,
        /// Why the machine has no such order.
        error: OrderError,
    },
    /// A setting asks for devices that are not there, or not clear.
    #[error("{}{origin} is `{}`: {error}", torchs(*torch), display_value(value))]
    Setting {
        /// The setting that asks for devices or counts them.
        origin: Origin,
        /// Its value.
        value: String,
        /// What torch says then, under its name.
        torch: Option<&'static str>,
        /// Why not.
        error: Box<ChoiceError>,
    },
    /// Two settings exclude each other.
    #[error("{one} is `{value}`, and {other} is `{other_value}`")]
    Contradiction {
        /// The one.
        one: Origin,
        /// Its value.
        value: String,
        /// The other.
        other: Origin,
        /// Its value.
        other_value: String,
    },
    /// The devices are unknown, since a probe failed.
    #[error("the {} devices are not known: {}", trouble.kind, trouble)]
    Trouble {
        /// What went wrong.
        trouble: ProbeProblem,
    },
    /// Some devices would have several workers.
    #[error("{workers} workers and {}: {}", devices(there.len()), there.join(", "))]
    TooManyWorkers {
        /// Workers on this node.
        workers: u32,
        /// The chosen devices.
        there: Vec<String>,
    },
    /// Each task of a scheduler would start workers for every device.
    #[error(
        "`{variable}` says that {tasks} tasks run on this node, and each would start {workers} workers, one for each \
         device"
    )]
    SeveralLaunchers {
        /// What says so.
        variable: &'static str,
        /// Tasks on this node.
        tasks: u32,
        /// What each would start.
        workers: u32,
        /// The command that starts one launcher on each node.
        fix: String,
    },
    /// `--numa-binding` on a machine without accelerators.
    #[error("{origin} is `{value}`, and binding needs an accelerator, of which none is visible here")]
    NeedsAccelerator {
        /// Where it came from.
        origin: Origin,
        /// Its value.
        value: String,
    },
    /// `--virtual-local-rank` with fewer visible devices than workers.
    #[error("`{variable}` is `{value}`, which has no device for local rank {local_rank}")]
    TooFewDevices {
        /// The name of the inherited list.
        variable: &'static str,
        /// The value of the inherited list.
        value: String,
        /// The first worker without a device.
        local_rank: LocalRank,
    },
    /// `--numa-binding`
    #[error("{origin} is `{value}`, and local rank {local_rank} cannot be bound: {error}")]
    Binding {
        /// Where it came from.
        origin: Origin,
        /// Its value.
        value: String,
        /// The first worker that cannot.
        local_rank: LocalRank,
        /// Why.
        error: AffinityError,
    },
    /// `--bind-cores`
    #[error("{origin} is `{value}`, and {error}")]
    Cores {
        /// Where it came from.
        origin: Origin,
        /// Its value.
        value: String,
        /// Why not.
        error: CoreError,
    },
}

impl DeviceError {
    /// The same error with another hint.
    #[must_use]
    pub fn with_hint(self, hint: String) -> Self {
        match self {
            Self::Advised { error, .. } => Self::Advised { error, hint },
            error => Self::Advised { error: Box::new(error), hint },
        }
    }

    /// The one thing to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Advised { hint, .. } => hint.clone(),
            Self::Selector { error, .. } => error.hint(),
            Self::Choice(error) => choice_hint(error),
            Self::Setting { error, .. } => choice_hint(error),
            Self::Order { .. } => ORDER_HINT.to_owned(),
            Self::Contradiction { .. } => "drop one of them".to_owned(),
            Self::Trouble { trouble: ProbeProblem { what: ProbeProblemKind::Hung(_), .. } } => {
                "give it more time with `--probe-timeout SECONDS`, or do without it: `--nproc-per-node N` or \
                 `--device-type cpu`"
                    .to_owned()
            }
            Self::Trouble { .. } => "repair the driver, or do without its answer: `--nproc-per-node N` or \
                                     `--device-type cpu`"
                .to_owned(),
            Self::TooManyWorkers { .. } => {
                "start fewer with `--nproc-per-node`, let them share with `--oversubscribe`, or run them on the \
                 CPUs with `--device-type cpu`"
                    .to_owned()
            }
            Self::SeveralLaunchers { fix, .. } => format!(
                "start one launcher on each node (`{fix}`), or one worker in each task (`--nproc-per-node 1`)"
            ),
            Self::NeedsAccelerator { .. } => {
                "leave it out; `taskset` in front of the launcher binds the whole job".to_owned()
            }
            Self::TooFewDevices { .. } => {
                "list a device for each worker, or start fewer with `--nproc-per-node`".to_owned()
            }
            Self::Cores { error: CoreError::TooFew { .. }, .. } => {
                "name more cores, or start fewer workers with `--nproc-per-node`".to_owned()
            }
            Self::Cores { error: CoreError::Missing { .. }, .. } => {
                "`rankrun topo` shows the CPUs of this machine".to_owned()
            }
            Self::Cores { error: CoreError::Forbidden { .. }, .. } => {
                "name others, or let the launcher use it (`taskset`, the cpuset of its container)".to_owned()
            }
            Self::Binding { error: AffinityError::NoDevice { .. }, .. } => {
                "start one worker for each device, or run without binding".to_owned()
            }
            Self::Binding { error: AffinityError::NoCpus { .. }, .. } => {
                "let the launcher use more CPUs (`taskset`, the cpuset of its container), or run without binding"
                    .to_owned()
            }
            Self::Binding { value, .. } if value == "node" => {
                "run without binding; `taskset` in front of the launcher binds the whole job".to_owned()
            }
            Self::Binding { error: AffinityError::UnknownNode { .. }, .. } => {
                "run without binding; `rankrun topo` shows the CPUs and NUMA nodes that the kernel tells".to_owned()
            }
            Self::Binding { .. } => "take `--numa-binding node`, or run without binding".to_owned(),
        }
    }
}

fn choice_hint(error: &ChoiceError) -> String {
    error.hint().unwrap_or_else(|| "`rankrun devices` lists what is there".to_owned())
}

fn torchs(sentence: Option<&str>) -> String {
    sentence.map_or_else(String::new, |sentence| format!("{sentence} "))
}

fn devices(count: usize) -> String {
    if count == 1 { "1 device".to_owned() } else { format!("{count} devices") }
}
