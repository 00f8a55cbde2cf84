//! Ranks as threads of one process: a group for tests of programs that use one.
//!
//! Stricter than the other backends: every collective call waits for all ranks, also those that need nothing from each other,
//! and [`send`](super::Group::send) waits until the message before, between the same two ranks, was received. What is wrong then
//! shows in every run.

mod hub;

use std::sync::Arc;
use std::time::Duration;

use rankrun_contract::rank::{Rank, WorldSize};

use self::hub::{Deposit, Hub};
use super::collective::HostCollective;
use super::cpu::CpuGroup;
use super::element::DataType;
use super::error::{Ending, GroupError};
use super::group::Group;
use super::meet::{Connected, Meeting, Seat};
use super::members::Members;
use super::transport::{Step, Transport};
use super::{Backend, layout, reduce};
use crate::clock;

/// How long a call waits, unless said: longer than a test that passes, shorter than one's patience with one that does not.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A job in one process, each rank of which is a thread: to test a program without a launcher.
///
/// ```
/// use rankrun_worker::{Group, GroupError, MemoryGroup, Reduction};
///
/// /// The step under test: its gradient is the mean of all ranks' gradients.
/// fn step(group: &mut Group, weight: &mut f32, example: f32) -> Result<(), GroupError> {
///     let mut gradient = [*weight - example];
///     group.all_reduce(&mut gradient, Reduction::Mean)?;
///     *weight -= gradient[0];
///     Ok(())
/// }
///
/// let examples = [1.0, 2.0, 6.0];
/// let weights: Vec<f32> = std::thread::scope(|scope| {
///     let ranks: Vec<_> = MemoryGroup::world(3)
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
/// A rank that panics is lost, as one that crashes; one that drops its group has left. Both are known to the others at once.
#[derive(Debug)]
pub struct MemoryGroup;

impl MemoryGroup {
    /// The groups of all ranks, in rank order: one for each thread. A call waits for the other ranks for a minute.
    ///
    /// # Panics
    /// If there is no rank.
    #[must_use]
    pub fn world(ranks: u32) -> Vec<Group> {
        Self::world_with(ranks, TIMEOUT)
    }

    /// As [`world`](Self::world), with another time that a call may take.
    ///
    /// # Panics
    /// If there is no rank.
    #[must_use]
    pub fn world_with(ranks: u32, timeout: Duration) -> Vec<Group> {
        let world_size = WorldSize::new(ranks).expect("a world has a rank");
        let hub = Arc::new(Hub::new(world_size));
        let group = |rank| {
            let seat = Seat {
                rank: Rank(rank),
                world_size,
                members: Members::all(),
                hosts: vec![0; ranks as usize].into(),
                life: 0,
                run_id: String::new(),
                interface: None,
                timeout,
                join_by: clock::after(timeout),
            };
            let connected = connect(&hub, &seat);
            Group::new(Box::new(CpuGroup::new(seat, connected)))
        };
        (0..ranks).map(group).collect()
    }
}

fn connect(hub: &Arc<Hub>, seat: &Seat) -> Connected {
    let transport = Box::new(Thread { rank: seat.rank, hub: Arc::clone(hub) });
    Connected { backend: Backend::Memory, transport, meeting: Box::new(Room { hub: Arc::clone(hub) }) }
}

/// Where threads meet: they agree on endings by themselves, since they share the hub.
#[derive(Debug)]
struct Room {
    hub: Arc<Hub>,
}

impl Meeting for Room {
    fn agree(&self, _: &Seat, seen: Ending) -> Ending {
        seen
    }

    fn subgroup(&self, seat: &Seat, name: &str) -> Result<Connected, GroupError> {
        Ok(connect(&self.hub.within(name, seat.world_size), seat))
    }
}

/// One rank.
#[derive(Debug)]
struct Thread {
    rank: Rank,
    hub: Arc<Hub>,
}

impl Transport for Thread {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), Ending> {
        match work {
            HostCollective::Send { data, to } => self.hub.send(step, (self.rank, to), data.to_vec()),
            HostCollective::Receive { data, from } => {
                let message = self.hub.receive(step, (from, self.rank))?;
                data.copy_from_slice(&message);
                Ok(())
            }
            work => {
                let all = self.hub.meet(step, self.rank, given(&work, self.rank))?;
                take(work, &all, self.rank, step.call.data_type);
                Ok(())
            }
        }
    }

    fn is_among_threads(&self) -> bool {
        true
    }

    fn leave(&mut self) {
        self.hub.leave(self.rank);
    }

    fn close(&mut self) {
        self.hub.lose(self.rank);
    }
}

/// What a rank gives to a call of all.
fn given(work: &HostCollective<'_>, me: Rank) -> Deposit {
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

/// What a rank takes from a call to which all ranks have given.
fn take(work: HostCollective<'_>, all: &[Deposit], me: Rank, data_type: DataType) {
    let ranks = u32::try_from(all.len()).ok();
    let reduce = |how, output: &mut [u8], part: usize| {
        let sources: Vec<&[u8]> =
            all.iter().map(|data| &data[part * output.len()..][..output.len()]).collect();
        reduce::reduce_into((data_type, how), output, &sources, ranks);
    };
    match work {
        HostCollective::Broadcast { data, root } => {
            if root != me {
                data.copy_from_slice(&all[root.index()]);
            }
        }
        HostCollective::AllReduce { data, how } => reduce(how, data, 0),
        HostCollective::Reduce { data, how, root } => {
            if root == me {
                reduce(how, data, 0);
            }
        }
        HostCollective::ReduceScatter { output, how, .. } => reduce(how, output, me.index()),
        HostCollective::AllGather { output, .. } | HostCollective::Gather { output: Some(output), .. } => {
            output.copy_from_slice(&all.concat());
        }
        HostCollective::Scatter { output, counts, root, .. } => {
            let lengths = counts.iter().map(|count| count * data_type.size());
            output.copy_from_slice(layout::split(&all[root.index()], lengths)[me.index()]);
        }
        HostCollective::Barrier
        | HostCollective::Gather { output: None, .. }
        | HostCollective::Send { .. }
        | HostCollective::Receive { .. } => {}
    }
}
