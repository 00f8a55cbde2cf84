//! Ranks as threads of one process: a group for tests of programs.
//!
//! It is stricter than the other backends: every collective call waits for all ranks, also for those that
//! need nothing from each other, and [`send`](super::Group::send) waits until the previous message between
//! the same two ranks was received. A wrong order of calls therefore fails in every run.

mod hub;

use std::sync::Arc;
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use self::hub::{Deposit, Hub};
use super::collective::HostCollective;
use super::cpu::CpuGroup;
use super::element::DataType;
use super::error::{GroupError, GroupFailure};
use super::group::Group;
use super::members::Members;
use super::rendezvous::{Coordinator, GroupBacking, Membership};
use super::transport::{Step, Transport};
use super::{Backend, layout, reduce};
use crate::clock;

/// Default time limit of a call: longer than a passing test takes, and bearable in a failing one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A job in one process, with a thread for each rank: tests a program without a launcher.
///
/// ```
/// use rankrun_worker::{Group, GroupError, ThreadGroup, ReduceOp};
///
/// /// The step under test: its gradient is the mean of all ranks' gradients.
/// fn step(group: &mut Group, weight: &mut f32, example: f32) -> Result<(), GroupError> {
///     let mut gradient = [*weight - example];
///     group.all_reduce(&mut gradient, ReduceOp::Mean)?;
///     *weight -= gradient[0];
///     Ok(())
/// }
///
/// let examples = [1.0, 2.0, 6.0];
/// let weights: Vec<f32> = std::thread::scope(|scope| {
///     let ranks: Vec<_> = ThreadGroup::world(3)
///         .into_iter()
///         .zip(examples)
///         .map(|(mut group, example)| {
///             scope.spawn(move || {
///                 let mut weight = 0.0;
///                 step(&mut group, &mut weight, example).expect("the step succeeds");
///                 weight
///             })
///         })
///         .collect();
///     ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
/// });
/// assert_eq!(weights, [3.0; 3]);
/// ```
///
/// A rank that panics is lost, like one that crashes; one that drops its group has left. The
/// others learn of both at once.
#[derive(Debug)]
pub struct ThreadGroup;

impl ThreadGroup {
    /// The groups of all ranks in rank order, one for each thread. A call waits up to
    /// a minute for the other ranks.
    ///
    /// # Panics
    /// If there is no rank.
    #[must_use]
    pub fn world(ranks: u32) -> Vec<Group> {
        Self::world_with_timeout(ranks, TIMEOUT)
    }

    /// As [`world`](Self::world), with a given time limit of calls.
    ///
    /// # Panics
    /// If there is no rank.
    #[must_use]
    pub fn world_with_timeout(ranks: u32, timeout: Duration) -> Vec<Group> {
        let world_size = WorldSize::new(ranks).expect("a world has a rank");
        let hub = Arc::new(Hub::new(world_size));
        let group = |rank| {
            let membership = Membership {
                rank: Rank(rank),
                world_size,
                members: Members::all(),
                hosts: vec![0; ranks as usize].into(),
                generation: 0,
                run_id: String::new(),
                interface: None,
                timeout,
                join_deadline: clock::after(timeout),
            };
            let backing = connect(&hub, &membership);
            Group::new(Box::new(CpuGroup::new(membership, backing)))
        };
        (0..ranks).map(group).collect()
    }
}

fn connect(hub: &Arc<Hub>, membership: &Membership) -> GroupBacking {
    let transport = Box::new(ThreadTransport { rank: membership.rank, hub: Arc::clone(hub) });
    GroupBacking {
        backend: Backend::Memory,
        transport,
        coordinator: Box::new(HubCoordinator { hub: Arc::clone(hub) }),
    }
}

/// Threads agree on failures by themselves, since they share the hub.
#[derive(Debug)]
struct HubCoordinator {
    hub: Arc<Hub>,
}

impl Coordinator for HubCoordinator {
    fn agree_on_failure(&self, _: &Membership, observed: GroupFailure) -> GroupFailure {
        observed
    }

    fn connect_subgroup(&self, membership: &Membership, name: &str) -> Result<GroupBacking, GroupError> {
        Ok(connect(&self.hub.subgroup_hub(name, membership.world_size), membership))
    }
}

/// The transport of one rank.
#[derive(Debug)]
struct ThreadTransport {
    rank: Rank,
    hub: Arc<Hub>,
}

impl Transport for ThreadTransport {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), GroupFailure> {
        match work {
            HostCollective::Send { data, to } => self.hub.send(step, (self.rank, to), data.to_vec()),
            HostCollective::Receive { data, from } => {
                let message = self.hub.receive(step, (from, self.rank))?;
                data.copy_from_slice(&message);
                Ok(())
            }
            work => {
                let all = self.hub.exchange(step, self.rank, rank_input(&work, self.rank))?;
                write_result(work, &all, self.rank, step.call.data_type);
                Ok(())
            }
        }
    }

    fn is_in_process(&self) -> bool {
        true
    }

    fn leave(&mut self) {
        self.hub.mark_left(self.rank);
    }

    fn close(&mut self) {
        self.hub.mark_lost(self.rank);
    }
}

/// The data that a rank provides to a call of all ranks.
fn rank_input(work: &HostCollective<'_>, me: Rank) -> Deposit {
    match work {
        HostCollective::AllReduce { data, .. } | HostCollective::Reduce { data, .. } => data.to_vec(),
        HostCollective::Broadcast { data, root } if *root == me => data.to_vec(),
        HostCollective::ReduceScatter { input, .. }
        | HostCollective::AllGather { input, .. }
        | HostCollective::Gather { input, .. }
        | HostCollective::Scatter { input: Some(input), .. } => input.to_vec(),
        _ => Vec::new(),
    }
}

/// Computes a rank's result from the data of all ranks.
fn write_result(work: HostCollective<'_>, all: &[Deposit], me: Rank, data_type: DataType) {
    let ranks = u32::try_from(all.len()).ok();
    let reduce = |op, output: &mut [u8], part: usize| {
        let sources: Vec<&[u8]> =
            all.iter().map(|data| &data[part * output.len()..][..output.len()]).collect();
        reduce::reduce_into((data_type, op), output, &sources, ranks);
    };
    match work {
        HostCollective::Broadcast { data, root } => {
            if root != me {
                data.copy_from_slice(&all[root.index()]);
            }
        }
        HostCollective::AllReduce { data, op } => reduce(op, data, 0),
        HostCollective::Reduce { data, op, root } => {
            if root == me {
                reduce(op, data, 0);
            }
        }
        HostCollective::ReduceScatter { output, op, .. } => reduce(op, output, me.index()),
        HostCollective::AllGather { output, .. } | HostCollective::Gather { output: Some(output), .. } => {
            output.copy_from_slice(&all.concat());
        }
        HostCollective::Scatter { output, counts, root, .. } => {
            let lengths = counts.iter().map(|count| count * data_type.size());
            output.copy_from_slice(layout::split_by_lengths(&all[root.index()], lengths)[me.index()]);
        }
        HostCollective::Barrier
        | HostCollective::Gather { output: None, .. }
        | HostCollective::Send { .. }
        | HostCollective::Receive { .. } => {}
    }
}
