//! `rankrun devices` and `rankrun topo`: the machine, looked at before and during a run.
//!
//! | file | what it does |
//! |---|---|
//! | `picture` | machine, variables and driver → everything that is told (pure) |
//! | `words` | what is found, in words (pure) |
//! | `page` | lines of named cells (pure) |
//! | `devices` | picture → page (pure) |
//! | `topo` | machine → matrix and page (pure) |
//! | `json` | both for programs (pure) |
//! | `frame` | a page drawn over the one before (pure) |
//! | `watch`, `terminal` | the loop of `--watch`, and the terminal that it uses |
//!
//! What a vendor's library does to whoever asks it happens in the probes, which are children; here it is only told.

mod devices;
mod frame;
mod json;
mod page;
mod picture;
mod terminal;
mod topo;
mod watch;
mod words;

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use rustix::process::getuid;

use crate::cli::{Inspect, Manner};
use crate::device::visibility::Inherited;
use crate::device::{Ask, DeviceType, Machine};
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::explain::Style;
use crate::facts::{Facts, StandardStream, short_hostname};
use picture::{Context, CudaOrder, Picture};
use watch::Subject;

/// How long a vendor's library may take. Without the persistence daemon NVIDIA's driver initialises each card anew,
/// which takes seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than anybody waits, and short enough to be added to any instant.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// The variable of a launch's `--probe-timeout`, which holds here too.
const LIMIT_VARIABLE: &str = "RANKRUN_PROBE_TIMEOUT";

/// What `devices` asks for.
const EVERYTHING: Ask = Ask { state: true, links: true, cpus: true };

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Standard output is a file or a pipe.
    #[error("`--watch` needs a terminal, and standard output is none")]
    NoTerminal,
    /// The terminal cannot move its cursor.
    #[error("`--watch` needs a terminal whose cursor can be moved, and `TERM` says that this one's cannot")]
    NoCursor,
    /// The terminal or the signals are refused.
    #[error("cannot watch the devices")]
    Terminal(#[source] io::Error),
}

impl InspectError {
    /// One thing to do about it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoTerminal => Some("for programs there is `rankrun devices --json`, once for each picture"),
            Self::NoCursor => Some("call `rankrun devices` again and again, or set `TERM`"),
            Self::Terminal(_) => None,
        }
    }
}

/// What to print, and how to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// On standard output.
    pub text: Vec<u8>,
    /// 1 where nothing could be told because a library hangs, fails or crashes.
    pub status: ExitStatus,
}

/// Looks, and says what is there. `style` is for a terminal's text; `can_draw` says whether its cursor moves.
///
/// # Errors
/// It was asked to watch where that cannot be done.
pub fn inspect(question: Inspect, facts: &Facts, style: Style, can_draw: bool) -> Result<Told, InspectError> {
    match question {
        Inspect::Devices { kind, manner: Manner::Watch(every) } => {
            if !facts.world().is_terminal(StandardStream::Output) {
                return Err(InspectError::NoTerminal);
            }
            if !can_draw {
                return Err(InspectError::NoCursor);
            }
            let status =
                watch::watch(Subject { kind, every }, facts, style).map_err(InspectError::Terminal)?;
            Ok(Told { text: Vec::new(), status })
        }
        Inspect::Devices { kind, manner } => Ok(tell_devices(kind, manner, facts, style)),
        Inspect::Topo { manner } => Ok(tell_topology(manner, facts, style)),
    }
}

/// How long a vendor's library may take; what is no time in the variable is as if it were not there.
fn limit(facts: &Facts) -> Duration {
    let seconds: Option<f64> =
        facts.variable(LIMIT_VARIABLE).and_then(OsStr::to_str).and_then(|text| text.trim().parse().ok());
    let limit = seconds
        .filter(|seconds| *seconds > 0.0)
        .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_LIMIT).min(LONGEST_LIMIT));
    limit.unwrap_or(LIMIT)
}

fn tell_devices(kind: Option<DeviceType>, manner: Manner, facts: &Facts, style: Style) -> Told {
    let answer = OnceCell::new();
    let cuda_order = || answer.get_or_init(|| facts.world().cuda_order(limit(facts))).clone();
    let picture = take(facts, kind, &cuda_order);
    let text = match manner {
        Manner::Json => json::devices(&picture),
        Manner::Text | Manner::Watch(_) => devices::page(&picture, kind).render(style).into_bytes(),
    };
    Told { text, status: status(picture.is_blind()) }
}

fn tell_topology(manner: Manner, facts: &Facts, style: Style) -> Told {
    let ask = Ask { state: false, links: true, cpus: true };
    let machine = facts.world().discover(ask, limit(facts));
    let host = short_hostname();
    let text = match manner {
        Manner::Json => json::topology(&machine, &host),
        Manner::Text | Manner::Watch(_) => {
            topo::page(&machine, &host, &facts.world().affinity()).render(style).into_bytes()
        }
    };
    let is_blind = machine.accelerators.is_empty() && machine.troubles.iter().any(words::is_serious);
    Told { text, status: status(is_blind) }
}

const fn status(is_blind: bool) -> ExitStatus {
    if is_blind { ExitStatus::Code(LAUNCHER_FAILED) } else { ExitStatus::SUCCESS }
}

/// One fresh look at everything.
fn take(facts: &Facts, kind: Option<DeviceType>, cuda_order: CudaOrder<'_>) -> Picture {
    picture_of(facts.world().discover(EVERYTHING, limit(facts)), facts, kind, cuda_order)
}

fn picture_of(
    machine: Machine,
    facts: &Facts,
    kind: Option<DeviceType>,
    cuda_order: CudaOrder<'_>,
) -> Picture {
    let context = Context {
        host: &short_hostname(),
        inherited: &Inherited::of(|name| facts.variable(name)),
        affinity: &facts.world().affinity(),
        own_uid: getuid().as_raw(),
        cuda_order,
    };
    Picture::of(machine, kind, &context)
}

#[cfg(test)]
mod example;
#[cfg(test)]
mod tests;
