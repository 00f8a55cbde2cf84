//! How ranks become a group: they find each other through the store, and choose what carries their calls.
//!
//! Each rank publishes a [record](super::plan) in the group's place in the store and reads those of all others. A
//! [sub-group](super::Group::split) needs none: its members know each other.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{Rank, WorldSize};

use super::cpu::CpuGroup;
use super::error::{Ending, GroupError, LossCause};
use super::members::Members;
use super::message::Operation;
use super::plan::{self, Plan, Record, Wish};
use super::tcp::mesh::Mesh;
use super::tcp::{Tcp, join};
use super::transport::Transport;
use super::{Backend, GroupOptions, ProcessGroup, host, mixed, parting, shm, verdict};
use crate::clock;
use crate::context::WorkerContext;
use crate::store::{StoreError, TcpStore};

/// How long the store may take to say who was lost first, before this rank's own word counts.
pub(crate) const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// The place of this rank in a group.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    /// Within the group.
    pub(crate) rank: Rank,
    pub(crate) world_size: WorldSize,
    /// Who the ranks of the group are in the job.
    pub(crate) members: Members,
    /// The host of each rank, numbered from 0 in the order of their first ranks.
    pub(crate) hosts: Arc<[u32]>,
    /// Which life of the workers this is, so that no entry of an earlier one is taken for ours.
    pub(crate) life: u32,
    pub(crate) run_id: String,
    /// The network interface for other hosts, where one is named.
    pub(crate) interface: Option<Arc<str>>,
    /// How long each call may take.
    pub(crate) timeout: Duration,
    /// By then the group is complete.
    pub(crate) join_by: Instant,
}

impl Seat {
    /// Whether some ranks reach each other through the network only.
    pub(crate) fn spans_hosts(&self) -> bool {
        plan::spans_hosts(&self.hosts)
    }

    /// The place in a sub-group of these members, of which this rank is one.
    pub(crate) fn within(&self, members: &[Rank], join_by: Instant) -> Self {
        let rank = (0..).zip(members).find(|&(_, &member)| member == self.rank);
        let world_size = u32::try_from(members.len()).ok().and_then(WorldSize::new);
        Self {
            rank: rank.map_or(Rank(0), |(rank, _)| Rank(rank)),
            world_size: world_size.unwrap_or(WorldSize::ONE),
            members: self.members.subset(members),
            hosts: plan::hosts_of(&self.hosts, members),
            join_by,
            ..self.clone()
        }
    }
}

/// Where the ranks of a group met. It outlives what carries their calls.
pub(crate) trait Meeting: Debug + Send {
    /// The ending on which all ranks agree, when the one at `seat` has `seen` one.
    fn agree(&self, seat: &Seat, seen: Ending) -> Ending;

    /// Connects the ranks of a sub-group, of which `seat` is this rank's; `name` is that of no other one of this meeting.
    ///
    /// # Errors
    /// A rank is missing: it is named.
    fn subgroup(&self, seat: &Seat, name: &str) -> Result<Connected, GroupError>;
}

/// A group whose ranks have found each other.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) backend: Backend,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) meeting: Box<dyn Meeting>,
}

/// The group of all ranks, as `options` want it.
pub(crate) fn meet(
    context: &WorkerContext,
    options: &GroupOptions,
) -> Result<Box<dyn ProcessGroup>, GroupError> {
    let wish = options.backend.or(context.backend()).unwrap_or_default();
    #[cfg(feature = "nccl")]
    if wish == Wish::Nccl {
        return Ok(Box::new(super::nccl::NcclGroup::join(context, options, None)?));
    }
    let (seat, store) = enter(context, options, wish)?;
    let connected = match store {
        None => Alone { wish }.connect(&seat)?,
        Some(store) => Met { store, wish }.connect(&seat)?,
    };
    Ok(Box::new(CpuGroup::new(seat, connected)))
}

/// Meets the other ranks in the store, which all want the same: this rank's place, and that of the group in the store. A world of
/// one needs no store.
pub(crate) fn enter(
    context: &WorkerContext,
    options: &GroupOptions,
    wish: Wish,
) -> Result<(Seat, Option<TcpStore>), GroupError> {
    parting::go_on();
    let mut seat = Seat {
        rank: context.rank(),
        world_size: context.world_size(),
        members: Members::all(),
        hosts: Arc::new([0]),
        life: context.life(),
        run_id: context.run_id().to_string(),
        interface: context.interface(),
        timeout: options.timeout,
        join_by: clock::after(options.timeout),
    };
    if seat.world_size == WorldSize::ONE {
        return Ok((seat, None));
    }
    let store = place_in(&context.store(options.timeout)?, &seat, &options.name)?;
    let host =
        host::of(context, wish).map_err(GroupError::Host).map_err(|error| agreed(&store, &seat, error))?;
    let own = Record::Current { wish, host };
    let plan = introduce(&store, &seat, &own)?;
    seat.hosts = Arc::clone(&plan.hosts);
    Ok((seat, Some(store)))
}

/// The keys of this group alone.
pub(super) fn place_in(store: &TcpStore, seat: &Seat, name: &str) -> Result<TcpStore, GroupError> {
    let store = store.with_own_connection(VERDICT_TIMEOUT)?.with_timeout(seat.timeout);
    let store = store.with_prefix(&format!("rankrun/group/{name}/life {}", seat.life));
    // A name may be used again once its group is gone; nothing of the first use is in the second one.
    let turn = store.add(&format!("turn of {}", seat.rank), 1)?;
    Ok(store.with_prefix(&turn.to_string()))
}

/// Says to all ranks what this one wants and where it is, and hears it of them.
fn introduce(store: &TcpStore, seat: &Seat, own: &Record) -> Result<Plan, GroupError> {
    store.set(&record_key(seat.rank.0), own.render().as_bytes())?;
    let keys: Vec<String> = (0..seat.world_size.get()).map(record_key).collect();
    await_ranks(store, seat, &keys).map_err(|error| agreed(store, seat, error))?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let records = keys
        .iter()
        .zip(store.multi_get(&keys)?)
        .map(|(key, value)| Record::parse(&value).ok_or_else(|| GroupError::strange_entry(key, &value)));
    Ok(plan::choose(&records.collect::<Result<Vec<_>, _>>()?)?)
}

fn record_key(rank: u32) -> String {
    format!("record/{rank}")
}

/// Waits for the keys, of which each rank sets one, in the order of the ranks.
pub(crate) fn await_ranks(store: &TcpStore, seat: &Seat, keys: &[String]) -> Result<(), GroupError> {
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    match store.wait(&all, clock::until(seat.join_by)) {
        Err(StoreError::WaitTimeout { .. }) => {}
        result => return Ok(result?),
    }
    for (key, rank) in all.into_iter().zip(0..) {
        if !store.check(&[key])? {
            return Err(lost(seat, Rank(rank), LossCause::Timeout(seat.timeout)));
        }
    }
    Ok(())
}

/// A rank without which this one cannot join, as this one sees it.
pub(crate) fn lost(seat: &Seat, rank: Rank, cause: LossCause) -> GroupError {
    let members = seat.members.clone();
    GroupError::Ended { operation: Operation::Join, ending: Ending::Lost { rank, cause }, members }
}

/// The same error with the ending on which all ranks agree. Only then may this rank do what others take for a loss, such as
/// closing its connections.
pub(crate) fn agreed(store: &TcpStore, seat: &Seat, error: GroupError) -> GroupError {
    match error {
        GroupError::Ended { operation, ending, members } => {
            GroupError::Ended { operation, ending: verdict::agree(store, seat, ending), members }
        }
        GroupError::Socket(_)
        | GroupError::FewDescriptors { .. }
        | GroupError::Host(_)
        | GroupError::SharedMemory(_) => {
            // The others, which miss this rank, hear why. What it says itself has a hint.
            let reason = with_causes(&error);
            verdict::agree(store, seat, Ending::Failed { rank: seat.rank, reason });
            error
        }
        error => error,
    }
}

fn with_causes(error: &GroupError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

/// A meeting in the store.
#[derive(Debug)]
struct Met {
    /// What lies there is of this group alone.
    store: TcpStore,
    wish: Wish,
}

impl Met {
    fn connect(self, seat: &Seat) -> Result<Connected, GroupError> {
        let backend = Plan { wish: self.wish, hosts: Arc::clone(&seat.hosts) }.backend();
        let transport: Box<dyn Transport> = match backend {
            Backend::Shm => Box::new(shm::join(&self.store, seat)?),
            Backend::Mixed => Box::new(mixed::join(&self.store, seat)?),
            Backend::Tcp => Box::new(Tcp::new(seat.rank, seat.world_size, join::join(&self.store, seat)?)),
            backend => return Err(GroupError::NoBackend { backend }),
        };
        Ok(Connected { backend, transport, meeting: Box::new(self) })
    }
}

impl Meeting for Met {
    fn agree(&self, seat: &Seat, seen: Ending) -> Ending {
        verdict::agree(&self.store, seat, seen)
    }

    fn subgroup(&self, seat: &Seat, name: &str) -> Result<Connected, GroupError> {
        if seat.world_size == WorldSize::ONE {
            return Alone { wish: self.wish }.connect(seat);
        }
        // What waits there holds up nothing of this group.
        let store = self.store.with_own_connection(VERDICT_TIMEOUT)?.with_prefix(name);
        Self { store, wish: self.wish }.connect(seat)
    }
}

/// A rank that needs nobody, and no store.
#[derive(Debug)]
struct Alone {
    wish: Wish,
}

impl Alone {
    fn connect(self, seat: &Seat) -> Result<Connected, GroupError> {
        match self.wish {
            Wish::Nccl => Err(GroupError::NoBackend { backend: Backend::Nccl }),
            Wish::Auto | Wish::Shm | Wish::Tcp => {
                let transport = Box::new(Tcp::new(seat.rank, seat.world_size, Mesh::new(vec![None])?));
                Ok(Connected { backend: Backend::Memory, transport, meeting: Box::new(self) })
            }
        }
    }
}

impl Meeting for Alone {
    fn agree(&self, _: &Seat, seen: Ending) -> Ending {
        seen
    }

    fn subgroup(&self, seat: &Seat, _: &str) -> Result<Connected, GroupError> {
        Self { wish: self.wish }.connect(seat)
    }
}
