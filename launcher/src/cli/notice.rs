//! What is worth one line before the workers start, although the launch goes on.

use std::fmt;
use std::path::PathBuf;

use super::error::Origin;
use super::python::PythonSource;
use crate::spec::Persona;

/// One thing to say once at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The places where one expects Python name different ones.
    Python {
        /// The one that runs the workers.
        taken: PathBuf,
        /// Why this one.
        source: PythonSource,
        /// The others, with their places.
        others: Vec<(PythonSource, PathBuf)>,
    },
    /// More than one worker and no `OMP_NUM_THREADS`: each worker gets 1.
    SingleOmpThread {
        /// The name we go by: torchrun has a sentence for it that people search for.
        persona: Persona,
    },
    /// Something was said that has no effect here.
    Ignored {
        /// What was said.
        origin: Origin,
        /// Why it has no effect.
        because: IgnoredBecause,
    },
    /// An empty `--rdzv-id`: torch makes one up.
    MadeUpRunId {
        /// The one.
        run_id: String,
    },
    /// A `LOGLEVEL` that is none.
    UnknownLogLevel {
        /// Its value.
        value: String,
    },
}

/// Why a setting has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredBecause {
    /// `--standalone` overrides it.
    Standalone,
    /// Without `--master-port` a job of one node is as with `--standalone`.
    ImplicitStandalone,
    /// `--master-addr` says it when there is a `--master-port`.
    FixedPort,
    /// `--log-dir /dev/null` makes no files.
    NoLogTree,
    /// torch has a watchdog for it, and it is not supported yet.
    NotSupported,
}

impl fmt::Display for IgnoredBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standalone => "`--standalone` chooses for itself",
            Self::ImplicitStandalone => "one node without `--master-port` is as with `--standalone`",
            Self::FixedPort => "with `--master-port` the workers are told `--master-addr`",
            Self::NoLogTree => "`--log-dir /dev/null` makes no files",
            Self::NotSupported => "it is not supported yet",
        })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Python { taken, source, others } => {
                write!(f, "the workers run `{}`, {source}, not ", taken.display())?;
                for (at, (source, path)) in others.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", nor " };
                    write!(f, "{comma}`{}`, {source}", path.display())?;
                }
                Ok(())
            }
            Self::SingleOmpThread { persona: Persona::Rankrun } => {
                f.write_str("each worker gets `OMP_NUM_THREADS=1`; set the variable for more threads")
            }
            Self::SingleOmpThread { persona: Persona::Torchrun } => f.write_str(
                "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid \
                 your system being overloaded, please further tune the variable for optimal performance in \
                 your application as needed",
            ),
            Self::Ignored { origin, because } => write!(f, "{origin} has no effect: {because}"),
            Self::MadeUpRunId { run_id } => write!(f, "the run id is empty, so it is `{run_id}`"),
            Self::UnknownLogLevel { value } => {
                write!(f, "`LOGLEVEL` is `{value}`, which is no level; warnings and errors are shown")
            }
        }
    }
}
