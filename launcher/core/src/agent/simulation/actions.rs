//! Performs the machine's actions on the virtual node, as the agent's loop does on a real one.

use std::time::Duration;

use crate::posix::{Pid, Signal};
use rankrun_contract::rank::{Generation, LocalRank};

use super::super::tests::launcher_error;
use super::groups::GroupMember;
use super::mutants::Machine;
use super::node::Leftover;
use super::oracle::Question;
use super::others::PeerEvent;
use super::setup::millis;
use super::world::World;
use crate::agent::leftovers::LeftoverStep;
use crate::agent::message::{Action, Input, NotJoined, SweepResult};
use crate::job_event::UninterruptibleWorker;
use crate::job_event::activity::LastOutput;
use crate::job_event::activity::RunState;
use crate::job_event::rank_table::{JoinState, ProcessState, RankRow, RankTable};
use crate::spec::stop::StopReason;

/// How long the other nodes need something of this node.
const PEER_WAIT: Duration = Duration::from_secs(4);

impl<M: Machine> World<'_, M> {
    pub(super) fn perform(&mut self, action: &Action) {
        if let Some(answer) = self.answer_alone(action) {
            return self.queue.push_front(answer);
        }
        match action {
            Action::Start { generation, .. } => self.start(*generation),
            Action::Signal { generation, local_ranks, signal } => {
                self.signal((*generation, local_ranks), *signal);
            }
            Action::SignalGroups { generation, local_ranks, signal } => {
                let empty = self.node.signal_groups((*generation, local_ranks), *signal, self.now);
                self.queue.push_front(Input::GroupsSignalled { generation: *generation, empty });
            }
            Action::ProbeDState { generation, local_ranks } => self.probe_dstate(*generation, local_ranks),
            Action::ProbeJoined { generation, local_ranks } => self.probe_joined(*generation, local_ranks),
            Action::CollectRanks { generation, reason, .. } => self.collect_ranks(*generation, *reason),
            Action::ProbeDevices { .. } => self.ask(Question::Devices),
            Action::ReassignDevices { .. } => self.ask(Question::NewDevices),
            Action::ProbeProgress { .. } => self.ask(Question::Progress),
            Action::Join { .. } => {
                self.rendezvous.join();
                if self.setup.meets {
                    self.apply_remote_event(PeerEvent::Completes);
                }
            }
            Action::TellSuccess => {
                self.rendezvous.succeed();
                if self.setup.meets {
                    self.apply_remote_event(PeerEvent::AllSucceed);
                }
            }
            Action::FindLostNode => self.ask(Question::LostNode),
            // `handle_with_sweep` has answered it.
            Action::KillLeftovers { .. } => self.node.kill_group_members(self.now),
            Action::TellFailure { .. }
            | Action::TellStop { .. }
            | Action::ForwardSignal { .. }
            | Action::ReleaseExternalWorker { .. }
            | Action::Emit(_)
            | Action::Notify(_)
            | Action::Suspend { .. }
            | Action::Resume { .. }
            | Action::ReportOutcome
            | Action::Exit { .. } => {}
            Action::Finish(_) if self.setup.others => {
                self.queue.push_back(Input::PeersNotified { until: self.now + PEER_WAIT });
            }
            Action::Finish(_) => {}
            Action::DrainOutput if self.setup.is_output_read => self.queue.push_back(Input::OutputDrained),
            Action::DrainOutput => {}
            Action::WriteParentFile if self.setup.is_parent_file_quick => {
                self.queue.push_back(Input::ParentFileWritten);
            }
            Action::WriteParentFile => {}
            Action::SweepLeftovers { step } => self.sweep(*step),
            Action::KillSuspended => {
                let ended = self.node.kill_all(self.now);
                self.push_exits(ended);
            }
        }
    }

    fn signal(&mut self, (generation, local_ranks): (Generation, &[LocalRank]), signal: Signal) {
        let alone = self.node.signal((generation, local_ranks), signal, self.now, self.setup);
        if !alone.is_empty() {
            self.queue.push_front(Input::Signalled { generation, alone, wrappers: Vec::new() });
        }
    }

    fn probe_dstate(&mut self, generation: Generation, local_ranks: &[LocalRank]) {
        let workers = self.node.launched_workers(generation);
        let workers = workers
            .filter(|process| process.is_uninterruptible() && local_ranks.contains(&process.local_rank));
        let uninterruptible = workers
            .map(|process| UninterruptibleWorker { local_rank: process.local_rank, pid: process.pid })
            .collect();
        self.queue.push_back(Input::DStateProbed { generation, at: self.wall_clock(), uninterruptible });
    }

    fn sweep(&mut self, step: LeftoverStep) {
        if let (None, Some(reaction)) = (&self.node.leftover, self.setup.leftover) {
            self.node.leftover = Some(Leftover::new(reaction));
        }
        let signal = match step {
            LeftoverStep::Ask { .. } => Some(Signal::SIGTERM),
            LeftoverStep::Kill { .. } | LeftoverStep::KillAgain => Some(Signal::SIGKILL),
            LeftoverStep::Wait | LeftoverStep::Announce { .. } | LeftoverStep::GiveUp => None,
        };
        let is_left = self.node.signal_leftover(signal, self.now);
        let result = if is_left { SweepResult::Remaining } else { SweepResult::Empty };
        self.queue.push_back(Input::LeftoversSwept { result });
    }

    /// The answer of the rendezvous in a job of one node.
    fn answer_alone(&mut self, action: &Action) -> Option<Input> {
        if self.setup.others { None } else { self.rendezvous.answer_alone(action) }
    }

    fn ask(&mut self, question: Question) {
        self.unanswered = Some(question);
        if self.setup.prompt {
            self.answer_question(false, Some(self.setup.workers));
        }
    }

    fn probe_joined(&mut self, generation: Generation, local_ranks: &[LocalRank]) {
        let age = self.oracle.current.began.map_or(Duration::ZERO, |began| self.now - began);
        let has_joined =
            |rank: LocalRank| self.setup.joins[rank.0 as usize].is_some_and(|at| millis(at) <= age);
        let asked = self
            .node
            .launched_workers(generation)
            .filter(|process| local_ranks.contains(&process.local_rank));
        let missing = asked.filter(|process| !has_joined(process.local_rank));
        let missing =
            missing.map(|process| NotJoined { local_rank: process.local_rank, pid: process.pid }).collect();
        self.queue.push_back(Input::JoinedProbed { generation, at: self.wall_clock(), missing });
    }

    fn collect_ranks(&mut self, generation: Generation, reason: StopReason) {
        let rows = self
            .node
            .launched_workers(generation)
            .map(|process| missing_rank((process.local_rank, process.pid)));
        let table = RankTable { reason, rows: rows.collect() };
        self.queue.push_back(Input::RanksCollected { generation, table });
    }

    fn start(&mut self, generation: Generation) {
        let first_missing = self.first_missing(generation);
        let external_worker = self.setup.external_worker.map(LocalRank);
        for local_rank in (0..first_missing.0).map(LocalRank).filter(|rank| Some(*rank) != external_worker) {
            self.node.spawn(generation, local_rank, false);
            let reaction = self.setup.group_members[local_rank.0 as usize];
            self.node
                .group_members
                .extend(reaction.map(|reaction| GroupMember::new(generation, local_rank, reaction)));
        }
        if self.setup.fails_to_start(generation) {
            // The loop answers a start before it looks for other inputs.
            self.queue.push_front(Input::StartFailed {
                generation,
                failed: first_missing,
                error: launcher_error(),
            });
            self.oracle.current.start_pending = true;
        }
    }
}

/// A rank that has not joined the store: a table with this row is shown.
pub(super) fn missing_rank((local_rank, pid): (LocalRank, Pid)) -> RankRow {
    RankRow {
        local_rank,
        pid: Some(pid),
        process: ProcessState::Alive(RunState::Waiting),
        joined: JoinState::NotJoined,
        cpu_time: None,
        output: LastOutput::Empty,
    }
}
