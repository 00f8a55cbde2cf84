//! The status of this node's workers for the control socket, as far as the agent knows it without a look at `/proc`.

use std::sync::PoisonError;
use std::time::Duration;

use rankrun_core::posix::Pid;

use rankrun_contract::rank::LocalRank;

use super::WorkerGroup;
use crate::agent::rendezvous_handle::program_name;
use crate::control::protocol::{JobStatus, RankState, TrainingStatus, WorkerStatus};
use crate::control::snapshot::JobSnapshot;
use crate::stacks::StackTarget;
use rankrun_core::agent::state::control::StateSummary;
use rankrun_core::device::ChosenDevice;
use rankrun_core::device::reading::ReadingTarget;
use rankrun_core::placement::{Placement, WorkerId};

/// The device of a worker, if it has counters of its own.
fn device_of(placement: &Placement) -> Option<ReadingTarget> {
    ReadingTarget::of(&placement.device.identity.as_ref()?.accelerator)
}

impl WorkerGroup {
    /// The status; `is_live` says which workers of this generation are not reaped.
    pub(in crate::agent) fn snapshot(
        &self,
        summary: &StateSummary,
        launcher: Pid,
        uptime: Duration,
        is_live: &dyn Fn(LocalRank) -> bool,
    ) -> JobSnapshot {
        let generation = self.generation;
        let workers: Vec<WorkerId> = self
            .placements
            .iter()
            .map(|placement| WorkerId { generation, local_rank: placement.local_rank })
            .collect();
        let round = self.round.as_ref();
        let status = JobStatus {
            job: self.job.0.clone(),
            run_id: self.spec.rendezvous.run_id().0.clone(),
            launcher_pid: launcher.as_raw(),
            program: program_name(&self.spec.entrypoint).to_string_lossy().into_owned(),
            state: summary.state,
            generation: u64::from(generation.0),
            restarts: summary.restarts.0,
            max_restarts: summary.max_restarts.0,
            nodes: round.map_or(0, |round| round.nodes.get()),
            world_size: round.map_or(0, |round| round.world_size.get()),
            uptime_seconds: uptime.as_secs_f64(),
            training: self.training_status(),
            ranks: self.placements.iter().map(|placement| self.rank_status(placement, is_live)).collect(),
        };
        JobSnapshot { status, outputs: self.logs.output_reader(&workers) }
    }

    fn training_status(&self) -> Option<TrainingStatus> {
        let status = *self.training.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        status.map(TrainingStatus::from)
    }

    /// The workers of this node, for their stacks.
    pub(in crate::agent) fn stack_targets(&self, is_live: &dyn Fn(LocalRank) -> bool) -> Vec<StackTarget> {
        let target = |placement: &Placement| StackTarget {
            rank: placement.rank.0,
            local_rank: placement.local_rank.0,
            pid: self.pids.get(&placement.local_rank).copied(),
            is_live: is_live(placement.local_rank),
            dump: self.dumps.get(&placement.local_rank).cloned(),
            names_tracer: self.spec.options.allow_ptrace,
            device_uuid: device_of(placement).map(|target| target.uuid),
        };
        self.placements.iter().map(target).collect()
    }

    fn rank_status(&self, placement: &Placement, is_live: &dyn Fn(LocalRank) -> bool) -> WorkerStatus {
        let pid = self.pids.get(&placement.local_rank);
        let state = match pid {
            None => RankState::NotStarted,
            Some(_) if is_live(placement.local_rank) => RankState::Unknown,
            Some(_) => RankState::Ended,
        };
        WorkerStatus {
            rank: placement.rank.0,
            local_rank: placement.local_rank.0,
            device: placement
                .device
                .identity
                .as_ref()
                .map_or_else(|| placement.device.to_string(), ChosenDevice::title),
            pid: pid.map(|pid| pid.as_raw()),
            state,
            cpu_seconds: None,
            memory_bytes: None,
            last_output_age_seconds: None,
        }
    }
}
