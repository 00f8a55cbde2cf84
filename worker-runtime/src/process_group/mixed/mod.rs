//! Calls among ranks on several hosts: through shared memory within each host, over TCP between hosts.
//!
//! - `grid.rs` says who is where, and who speaks with whom; `ring.rs` is the way of large reductions around the hosts.
//! - `calls.rs` and `blocks.rs` are the calls of all with all: little at a time with few hops, much at a time over several streams.
//!   `rooted.rs` has those in which one rank gives to all or takes from all. Messages between two ranks of a host go through its
//!   memory, all others over the connection that these two have.
//!
//! A rank that is gone is seen by its own host through shared memory, by the others through the connections. Whoever waits in one of
//! the two looks at the other one, too: so it hears at once of a rank that is lost, or makes another call, elsewhere.

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
use super::error::{Ending, GroupError};
use super::meet::{self, Seat};
use super::message::Call;
use super::shm::{self, Shm};
use super::tcp::exchange::{Exchange, Transfer};
use super::tcp::{Tcp, join};
use super::transport::{Outlook, Step, Transport};
use crate::store::TcpStore;
use grid::Grid;

/// How much sooner a rank gives up one of its own host that has not come: it knows whom it misses. Half of that later whoever
/// waits for another host gives up, and at the deadline who waits for one that waits there: each knows better than the next.
const LEAD: Duration = Duration::from_secs(2);

/// A rank of a group on several hosts.
#[derive(Debug)]
pub(crate) struct Mixed {
    grid: Arc<Grid>,
    /// The ranks of this host; `None` where this is the only one.
    shm: Option<Shm>,
    tcp: Connections,
    world: u32,
}

/// Connects the ranks of all hosts. `store` is seen by this group only.
pub(crate) fn join(store: &TcpStore, seat: &Seat) -> Result<Mixed, GroupError> {
    let grid = Arc::new(Grid::new(&seat.hosts, seat.rank));
    let tcp =
        Connections(Arc::new(Mutex::new(Tcp::new(seat.rank, seat.world_size, join::join(store, seat)?))));
    let mut shm = match grid.local() {
        [_] => None,
        local => {
            let place = store.with_prefix(&format!("host {}", grid.host));
            let shared = shm::join(&place, &seat.within(local, seat.join_by));
            // Ranks of other hosts know nothing of that place.
            Some(shared.map_err(|error| meet::agreed(store, seat, in_group(error, (local, seat))))?)
        }
    };
    if let Some(shm) = &mut shm {
        let beside = shm.open_to(grid.local(), Box::new(tcp.clone()));
        tcp.lock().look_at(beside);
    }
    Ok(Mixed { grid, shm, tcp, world: seat.world_size.get() })
}

/// The connections to all ranks: they are also looked at while a rank waits for those of its host.
#[derive(Debug, Clone)]
struct Connections(Arc<Mutex<Tcp>>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Tcp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlook for Connections {
    fn look(&mut self, step: &Step) -> Result<(), Ending> {
        self.lock().listen(step)
    }
}

/// An error of the ranks of one host, told as one of the group.
fn in_group(error: GroupError, (local, seat): (&[Rank], &Seat)) -> GroupError {
    match error {
        GroupError::Ended { operation, ending, .. } => {
            GroupError::Ended { operation, ending: of_group(ending, local), members: seat.members.clone() }
        }
        error => error,
    }
}

/// An ending among the ranks of one host, told in ranks of the group.
fn of_group(ending: Ending, local: &[Rank]) -> Ending {
    let name = |rank: Rank| local.get(rank.index()).copied().unwrap_or(rank);
    match ending {
        Ending::Lost { rank, cause } => Ending::Lost { rank: name(rank), cause },
        Ending::Mismatch { rank, theirs, ours } => Ending::Mismatch { rank: name(rank), theirs, ours },
        Ending::Disagreed { rank, call, other, others } => {
            Ending::Disagreed { rank: name(rank), call, other: name(other), others }
        }
        Ending::Failed { rank, reason } => Ending::Failed { rank: name(rank), reason },
    }
}

/// One call under way, and how many exchanges between hosts it has had.
#[derive(Debug, Clone, Copy)]
struct Course<'a> {
    step: &'a Step,
    exchanges: u32,
}

impl Course<'_> {
    fn call(&self) -> Call {
        self.step.call
    }

    /// The next exchange between hosts.
    fn next_exchange(&mut self) -> Exchange {
        let Step { call, deadline, timeout } = sooner(self.step, lead(self.step) / 2);
        let number = self.exchanges;
        self.exchanges += 1;
        Exchange { call, number, deadline, timeout }
    }
}

impl Mixed {
    /// Does something among the ranks of this host, if there are several.
    fn on_host(
        &mut self,
        course: &Course<'_>,
        then: impl FnOnce(&mut Shm, &Step) -> Result<(), Ending>,
    ) -> Result<(), Ending> {
        let Some(shm) = &mut self.shm else { return Ok(()) };
        let lead = lead(course.step);
        shm.set_patience(lead);
        then(shm, &sooner(course.step, lead))
    }

    /// Has messages go to, and come from, ranks of other hosts.
    fn between_hosts<'a>(
        &mut self,
        course: &mut Course<'_>,
        transfer: impl FnMut(Rank) -> Transfer<'a>,
    ) -> Result<(), Ending> {
        let exchange = course.next_exchange();
        self.away(|tcp| tcp.exchange(&exchange, transfer))
    }

    /// Does something over TCP, while the ranks of this host know that this one waits for others.
    fn away(&mut self, then: impl FnOnce(&mut Tcp) -> Result<(), Ending>) -> Result<(), Ending> {
        if let Some(shm) = &self.shm {
            shm.set_away(true);
        }
        then(&mut self.tcp.lock())?;
        // Not after an ending: of that the others hear from this rank.
        if let Some(shm) = &self.shm {
            shm.set_away(false);
        }
        Ok(())
    }
}

fn lead(step: &Step) -> Duration {
    LEAD.min(step.timeout / 4)
}

fn sooner(step: &Step, lead: Duration) -> Step {
    Step { deadline: step.deadline.checked_sub(lead).unwrap_or(step.deadline), ..*step }
}

impl Transport for Mixed {
    fn run(&mut self, step: &Step, work: HostCollective<'_>) -> Result<(), Ending> {
        self.tcp.lock().note(step.call);
        let course = Course { step, exchanges: 0 };
        match work {
            HostCollective::Barrier => self.barrier(course),
            HostCollective::Broadcast { data, root } => self.broadcast(course, data, root),
            HostCollective::AllReduce { data, how } => self.all_reduce(course, data, how),
            HostCollective::ReduceScatter { input, output, how } => {
                self.reduce_scatter(course, (input, output), how)
            }
            HostCollective::AllGather { input, output } => self.all_gather(course, input, output),
            HostCollective::Reduce { data, how, root } => self.reduce(course, data, (how, root)),
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
