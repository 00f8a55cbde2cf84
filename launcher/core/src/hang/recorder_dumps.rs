//! The dump files of PyTorch's flight recorder: the variables that name them, and what they tell after a failure.
//!
//! The watchdog of an NCCL process group writes one for each rank when a collective times out; gloo writes none. PyTorch 2.15
//! warns of the names that older versions have for the variables, so the hook of Python workers sets those for older versions alone.
//!
//! Source: `torch/csrc/distributed/c10d/FlightRecorder.hpp` of 2.15, `ProcessGroupNCCL.hpp` of 2.4.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;

use crate::device::DeviceType;
use crate::hang::evidence::{Groups, RankEvidence};
use crate::hang::verdict::{Hang, Limits, Verdict, judge};
use crate::spec::{LaunchSpec, LogDir};

/// The rank follows. `torchfrtrace --prefix` takes it.
const STEM: &str = "flight_recorder_rank_";

/// The stem of the files, the size of the recorder, whether it writes on a timeout, and whether it looks up stack traces.
pub const DUMP_STEM: &str = "TORCH_FR_DUMP_TEMP_FILE";
pub const BUFFER_SIZE: &str = "TORCH_FR_BUFFER_SIZE";
pub const DUMP_ON_TIMEOUT: &str = "TORCH_FR_DUMP_ON_TIMEOUT";
pub const STACK_TRACE: &str = "TORCH_INCLUDE_STACK_TRACE";
/// The names of the same before PyTorch 2.15.
const OLD_NAMES: [(&str, &str); 3] = [
    (DUMP_STEM, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    (BUFFER_SIZE, "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    (DUMP_ON_TIMEOUT, "TORCH_NCCL_DUMP_ON_TIMEOUT"),
];
/// As PyTorch 2.15 has it by itself; the recorder of older versions is off.
const DEFAULT_SIZE: &str = "2000";

/// The path of this rank's file in the folder of its generation.
#[must_use]
pub fn dump_path(attempt: &Path, rank: Rank) -> PathBuf {
    attempt.join(format!("{STEM}{rank}"))
}

/// What the recorder of a worker finds in its environment, where the user has not set it; `attempt` is the folder of its
/// generation.
///
/// With `--hang-timeout` the recorder is on. Stack traces would need the lock of the interpreter, which a worker that hangs
/// may hold. Dump files are only where their folder stays after the job.
#[must_use]
pub fn recorder_variables(
    spec: &LaunchSpec,
    device: DeviceType,
    attempt: Option<&Path>,
    environment: &[(OsString, OsString)],
) -> Vec<(&'static str, OsString)> {
    if !spec.has_hooks() {
        return Vec::new();
    }
    let has_watchdog = device != DeviceType::Cpu;
    let stays = matches!(spec.logs.dir, LogDir::At(_) | LogDir::Temporary(_));
    let stem = attempt.filter(|_| has_watchdog && stays).map(|folder| folder.join(STEM).into_os_string());
    let mut variables: Vec<(&'static str, OsString)> =
        stem.map(|stem| (DUMP_STEM, stem)).into_iter().collect();
    if spec.asks_flight_recorders() {
        variables.push((BUFFER_SIZE, DEFAULT_SIZE.into()));
    }
    if spec.asks_flight_recorders() && has_watchdog {
        variables.extend([(DUMP_ON_TIMEOUT, "1".into()), (STACK_TRACE, "0".into())]);
    }
    variables.retain(|(name, _)| !is_set(name, environment));
    variables
}

fn is_set(name: &str, environment: &[(OsString, OsString)]) -> bool {
    let old_name = OLD_NAMES.iter().find(|(known, _)| *known == name).map(|(_, old)| *old);
    let names = [Some(name), old_name];
    environment.iter().any(|(set, _)| names.iter().flatten().any(|name| set == OsStr::new(name)))
}

/// What ranks waited in when their recorders wrote these dumps. Nothing is known of a rank without one, so it is not said to be
/// missing. `None` if no rank waited.
#[must_use]
pub fn judge_dumps(
    dumps: impl IntoIterator<Item = (Rank, Groups)>,
    has_other_nodes: bool,
    now: Instant,
) -> Option<Verdict> {
    let ranks = dumps.into_iter().map(|(rank, groups)| {
        let mut evidence = RankEvidence::new(rank, now);
        evidence.record_groups(groups, now);
        evidence
    });
    // They are over: no rank makes progress, however young a dump is.
    let limits = Limits { hang_timeout: Some(Duration::ZERO), first_step: Duration::ZERO, has_other_nodes };
    match judge(&ranks.collect::<Vec<_>>(), now, &limits) {
        // The time since the last progress of a rank is not in a dump.
        Verdict::Hang(hang) => Some(Verdict::Hang(Hang { silent: Vec::new(), ..hang })),
        Verdict::Desync(desync) => Some(Verdict::Desync(desync)),
        Verdict::Progress | Verdict::NotEnoughEvidence | Verdict::Straggler(_) => None,
    }
}

#[cfg(test)]
#[path = "recorder_dumps_tests.rs"]
mod tests;
