//! The transport among several hosts: shared memory within each host, TCP between hosts.
//!
//! - `grid.rs` maps ranks to hosts; `ring.rs` is the schedule of large reductions around the hosts.
//! - `calls.rs` and `blocks.rs` are the calls of all with all: few bytes with few hops, many bytes over several streams. `rooted.rs` has the calls with a root. Messages between two ranks of a host go through its memory, all others over their connection.
//!
//! The ranks of its own host detect a lost rank through shared memory, the other hosts through the
//! connections. A rank that waits in one of the two also checks the other one, so that it learns at once of a
//! loss, or of a different call, elsewhere.

mod blocks;
mod calls;
mod grid;
mod ring;
mod rooted;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rankrun_contract::rank::Rank;

use super::buffer::Memory;
use super::collective::HostCollective;
use super::error::{GroupError, GroupFailure};
use super::message::Call;
use super::rendezvous::{self, Membership};
use super::shm::{self, Shm};
use super::tcp::exchange::{Exchange, Transfer};
use super::tcp::{Tcp, join};
use super::transport::{Step, Transport, TransportProbe};
use crate::store::TcpStore;
use grid::Grid;

/// How much earlier than the deadline a rank gives up a missing rank of its own host, which it can name. A
/// rank that waits for another host gives up after half of that, and one that waits for such a rank at the
/// deadline: the best informed rank reports first.
const LOCAL_LEAD_TIME: Duration = Duration::from_secs(2);

/// A rank of a group on several hosts.
#[derive(Debug)]
pub(crate) struct Mixed {
    grid: Arc<Grid>,
    /// The ranks of this host; `None` if there is only one.
    shm: Option<Shm>,
    tcp: Connections,
    world: u32,
}

/// Connects the ranks of all hosts. `store` has keys of this group only.
pub(crate) fn join(store: &TcpStore, membership: &Membership) -> Result<Mixed, GroupError> {
    let grid = Arc::new(Grid::new(&membership.hosts, membership.rank));
    let tcp = Connections(Arc::new(Mutex::new(Tcp::new(
        membership.rank,
        membership.world_size,
        join::join(store, membership)?,
    ))));
    let mut shm = match grid.local_ranks() {
        [_] => None,
        local => {
            let place = store.with_prefix(&format!("host {}", grid.host));
            let shared = shm::join(&place, &membership.for_subgroup(local, membership.join_deadline));
            // Ranks of other hosts do not read these keys.
            Some(shared.map_err(|error| {
                rendezvous::with_agreed_failure(store, membership, to_group_error(error, (local, membership)))
            })?)
        }
    };
    if let Some(shm) = &mut shm {
        let beside = shm.attach_to(grid.local_ranks(), Box::new(tcp.clone()));
        tcp.lock().set_probe(beside);
    }
    Ok(Mixed { grid, shm, tcp, world: membership.world_size.get() })
}

/// The connections to all ranks, also checked while a rank waits for its host.
#[derive(Debug, Clone)]
struct Connections(Arc<Mutex<Tcp>>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Tcp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TransportProbe for Connections {
    fn check(&mut self, step: &Step) -> Result<(), GroupFailure> {
        self.lock().read_messages(step)
    }
}

/// Converts an error among the ranks of one host to one of the group.
fn to_group_error(error: GroupError, (local, membership): (&[Rank], &Membership)) -> GroupError {
    match error {
        GroupError::Failed { operation, failure, .. } => GroupError::Failed {
            operation,
            failure: to_group_failure(failure, local),
            members: membership.members.clone(),
        },
        error => error,
    }
}

/// Converts a failure among the ranks of one host to ranks of the group.
fn to_group_failure(failure: GroupFailure, local: &[Rank]) -> GroupFailure {
    let name = |rank: Rank| local.get(rank.index()).copied().unwrap_or(rank);
    match failure {
        GroupFailure::Lost { rank, cause } => GroupFailure::Lost { rank: name(rank), cause },
        GroupFailure::Mismatch { rank, other_call, own_call } => {
            GroupFailure::Mismatch { rank: name(rank), other_call, own_call }
        }
        GroupFailure::Disagreed { rank, call, other_rank: other, other_call } => {
            GroupFailure::Disagreed { rank: name(rank), call, other_rank: name(other), other_call }
        }
        GroupFailure::RankFailed { rank, reason } => GroupFailure::RankFailed { rank: name(rank), reason },
    }
}

/// A call under way, with its number of steps between hosts.
#[derive(Debug, Clone, Copy)]
struct MixedCall<'a> {
    step: &'a Step,
    exchanges: u32,
}

impl MixedCall<'_> {
    fn call(&self) -> Call {
        self.step.call
    }

    /// The next step between hosts.
    fn next_exchange(&mut self) -> Exchange {
        let Step { call, deadline, timeout } = with_earlier_deadline(self.step, lead_time(self.step) / 2);
        let number = self.exchanges;
        self.exchanges += 1;
        Exchange { call, number, deadline, timeout }
    }
}

impl Mixed {
    /// Runs a step among the ranks of this host, if there are several.
    fn run_on_host(
        &mut self,
        mixed_call: &MixedCall<'_>,
        then: impl FnOnce(&mut Shm, &Step) -> Result<(), GroupFailure>,
    ) -> Result<(), GroupFailure> {
        let Some(shm) = &mut self.shm else { return Ok(()) };
        let lead = lead_time(mixed_call.step);
        shm.set_remote_wait_extra(lead);
        then(shm, &with_earlier_deadline(mixed_call.step, lead))
    }

    /// Exchanges messages with ranks of other hosts.
    fn exchange_between_hosts<'a>(
        &mut self,
        mixed_call: &mut MixedCall<'_>,
        transfer: impl FnMut(Rank) -> Transfer<'a>,
    ) -> Result<(), GroupFailure> {
        let exchange = mixed_call.next_exchange();
        self.run_between_hosts(|tcp| tcp.exchange(&exchange, transfer))
    }

    /// Runs a step over TCP, and publishes to the ranks of this host that this one waits for others.
    fn run_between_hosts(
        &mut self,
        then: impl FnOnce(&mut Tcp) -> Result<(), GroupFailure>,
    ) -> Result<(), GroupFailure> {
        if let Some(shm) = &self.shm {
            shm.set_waiting_remotely(true);
        }
        then(&mut self.tcp.lock())?;
        // Not after a failure: this rank reports that to the others itself.
        if let Some(shm) = &self.shm {
            shm.set_waiting_remotely(false);
        }
        Ok(())
    }
}

fn lead_time(step: &Step) -> Duration {
    LOCAL_LEAD_TIME.min(step.timeout / 4)
}

fn with_earlier_deadline(step: &Step, lead: Duration) -> Step {
    Step { deadline: step.deadline.checked_sub(lead).unwrap_or(step.deadline), ..*step }
}

impl Transport for Mixed {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), GroupFailure> {
        self.tcp.lock().record_call(step.call);
        let course = MixedCall { step, exchanges: 0 };
        match work {
            HostCollective::Barrier => self.barrier(course),
            HostCollective::Broadcast { data, root } => self.broadcast(course, data, root),
            HostCollective::AllReduce { data, op } => self.all_reduce(course, data, op),
            HostCollective::ReduceScatter { input, output, op } => {
                self.reduce_scatter(course, (input, output), op)
            }
            HostCollective::AllGather { input, output } => self.all_gather(course, input, output),
            HostCollective::Reduce { data, op, root } => self.reduce(course, data, (op, root)),
            HostCollective::Gather { input, output, counts, root } => {
                self.gather(course, (input, output), (counts, root))
            }
            HostCollective::Scatter { input, output, counts, root } => {
                self.scatter(course, (input, output), (counts, root))
            }
            HostCollective::Send { data, to } => self.send(course, data, to),
            HostCollective::Receive { data, from } => self.receive(course, data, from),
        }
    }

    fn allocate(&mut self, bytes: usize) -> Option<Memory> {
        self.shm.as_mut()?.allocate(bytes)
    }

    fn leave(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.leave();
        }
        self.tcp.lock().leave();
    }

    fn close(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.close();
        }
        self.tcp.lock().close();
    }
}
