//! Joins the ranks of a group: they find each other through the store and choose a backend.
//!
//! Each rank publishes a [record](super::plan) under the group's keys and reads the records of all others.
//! The members of a [sub-group](super::Group::split) know each other already and publish none. Connections
//! are made by the transports (`shm`, `tcp`, `mixed`, `nccl`).

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rankrun_contract::rank::{Rank, WorldSize};

use super::cpu::CpuGroup;
use super::error::{GroupError, GroupFailure, LossCause};
use super::members::Members;
use super::message::Operation;
use super::plan::{self, BackendChoice, BackendPlan, RankRecord};
use super::tcp::mesh::Mesh;
use super::tcp::{Tcp, join};
use super::transport::Transport;
use super::{Backend, GroupOptions, ProcessGroup, dropped_groups, host, mixed, shm, verdict};
use crate::clock;
use crate::context::WorkerContext;
use crate::store::{StoreError, TcpStore};

/// How long the store may take to answer which failure came first, before this rank reports its own.
pub(crate) const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// What one rank knows about its group.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) rank: Rank,
    pub(crate) world_size: WorldSize,
    /// Maps ranks of the group to ranks of the job.
    pub(crate) members: Members,
    /// The host of each rank, numbered from 0 in the order of their first ranks.
    pub(crate) hosts: Arc<[u32]>,
    /// Generation of the workers; entries of earlier generations are under other keys.
    pub(crate) generation: u32,
    pub(crate) run_id: String,
    /// The named network interface for other hosts.
    pub(crate) interface: Option<Arc<str>>,
    pub(crate) timeout: Duration,
    /// The group must be complete by then.
    pub(crate) join_deadline: Instant,
}

impl Membership {
    /// Whether some ranks reach each other only through the network.
    pub(crate) fn spans_hosts(&self) -> bool {
        plan::spans_hosts(&self.hosts)
    }

    /// Membership in the sub-group of these members, which include this rank.
    pub(crate) fn for_subgroup(&self, members: &[Rank], join_by: Instant) -> Self {
        let rank = (0..).zip(members).find(|&(_, &member)| member == self.rank);
        let world_size = u32::try_from(members.len()).ok().and_then(WorldSize::new);
        Self {
            rank: rank.map_or(Rank(0), |(rank, _)| Rank(rank)),
            world_size: world_size.unwrap_or(WorldSize::ONE),
            members: self.members.subset(members),
            hosts: plan::subset_hosts(&self.hosts, members),
            join_deadline: join_by,
            ..self.clone()
        }
    }
}

/// Agrees on failures and connects sub-groups. It outlives the transport.
pub(crate) trait Coordinator: Debug + Send {
    /// The failure on which all ranks agree, after this rank has `seen` one.
    fn agree_on_failure(&self, membership: &Membership, observed: GroupFailure) -> GroupFailure;

    /// Connects the ranks of a sub-group. No other sub-group of this coordinator has the same `name`.
    ///
    /// # Errors
    /// A rank is missing: it is named.
    fn connect_subgroup(&self, membership: &Membership, name: &str) -> Result<GroupBacking, GroupError>;
}

/// The parts from which a group of connected ranks is made.
#[derive(Debug)]
pub(crate) struct GroupBacking {
    pub(crate) backend: Backend,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) coordinator: Box<dyn Coordinator>,
}

/// Joins the group of all ranks with these options.
pub(crate) fn join_group(
    context: &WorkerContext,
    options: &GroupOptions,
) -> Result<Box<dyn ProcessGroup>, GroupError> {
    let choice = options.backend.or(context.backend()).unwrap_or_default();
    #[cfg(feature = "nccl")]
    if choice == BackendChoice::Nccl {
        return Ok(Box::new(super::nccl::NcclGroup::join(context, options, None)?));
    }
    let (membership, store) = resolve_membership(context, options, choice)?;
    let backing = match store {
        None => SingleRank { choice }.connect(&membership)?,
        Some(store) => StoreCoordinator { store, choice }.connect(&membership)?,
    };
    Ok(Box::new(CpuGroup::new(membership, backing)))
}

/// Exchanges records with all other ranks. Returns this rank's membership and the group's keys in the store.
/// A world of one needs no store.
pub(crate) fn resolve_membership(
    context: &WorkerContext,
    options: &GroupOptions,
    choice: BackendChoice,
) -> Result<(Membership, Option<TcpStore>), GroupError> {
    dropped_groups::leave_kept_groups();
    let mut membership = Membership {
        rank: context.rank(),
        world_size: context.world_size(),
        members: Members::all(),
        hosts: Arc::new([0]),
        generation: context.generation(),
        run_id: context.run_id().to_string(),
        interface: context.interface(),
        timeout: options.timeout,
        join_deadline: clock::after(options.timeout),
    };
    if membership.world_size == WorldSize::ONE {
        return Ok((membership, None));
    }
    let store = group_store(&context.store(options.timeout)?, &membership, &options.name)?;
    let host = host::worker_host_id(context, choice)
        .map_err(GroupError::Host)
        .map_err(|error| with_agreed_failure(&store, &membership, error))?;
    let own = RankRecord::Current { choice, host };
    let plan = exchange_records(&store, &membership, &own)?;
    membership.hosts = Arc::clone(&plan.hosts);
    Ok((membership, Some(store)))
}

/// The store, limited to the keys of this group.
pub(super) fn group_store(
    store: &TcpStore,
    membership: &Membership,
    name: &str,
) -> Result<TcpStore, GroupError> {
    let store = store.with_own_connection(VERDICT_TIMEOUT)?.with_timeout(membership.timeout);
    let store = store.with_prefix(&format!("rankrun/group/{name}/life {}", membership.generation));
    // A name may be used again after its group has ended; each use has a counter value of its own.
    let use_number = store.add(&format!("turn of {}", membership.rank), 1)?;
    Ok(store.with_prefix(&use_number.to_string()))
}

/// Publishes the record of this rank, reads those of all ranks, and draws the conclusion.
fn exchange_records(
    store: &TcpStore,
    membership: &Membership,
    own: &RankRecord,
) -> Result<BackendPlan, GroupError> {
    store.set(&record_key(membership.rank.0), own.render().as_bytes())?;
    let keys: Vec<String> = (0..membership.world_size.get()).map(record_key).collect();
    wait_for_rank_keys(store, membership, &keys)
        .map_err(|error| with_agreed_failure(store, membership, error))?;
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let records = keys.iter().zip(store.multi_get(&keys)?).map(|(key, value)| {
        RankRecord::parse(&value).ok_or_else(|| GroupError::unexpected_entry(key, &value))
    });
    Ok(plan::plan_backend(&records.collect::<Result<Vec<_>, _>>()?)?)
}

fn record_key(rank: u32) -> String {
    format!("record/{rank}")
}

/// Waits for these keys, of which each rank sets one, in rank order.
pub(crate) fn wait_for_rank_keys(
    store: &TcpStore,
    membership: &Membership,
    keys: &[String],
) -> Result<(), GroupError> {
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    match store.wait(&all, clock::until(membership.join_deadline)) {
        Err(StoreError::WaitTimeout { .. }) => {}
        result => return Ok(result?),
    }
    for (key, rank) in all.into_iter().zip(0..) {
        if !store.check(&[key])? {
            return Err(lost_rank_error(membership, Rank(rank), LossCause::Timeout(membership.timeout)));
        }
    }
    Ok(())
}

/// The error for a missing rank.
pub(crate) fn lost_rank_error(membership: &Membership, rank: Rank, cause: LossCause) -> GroupError {
    let members = membership.members.clone();
    GroupError::Failed { operation: Operation::Join, failure: GroupFailure::Lost { rank, cause }, members }
}

/// Replaces the failure by the one on which all ranks agree. Only afterwards may this rank do what other
/// ranks take for a loss, such as closing its connections.
pub(crate) fn with_agreed_failure(
    store: &TcpStore,
    membership: &Membership,
    error: GroupError,
) -> GroupError {
    match error {
        GroupError::Failed { operation, failure, members } => GroupError::Failed {
            operation,
            failure: verdict::agree_on_failure(store, membership, failure),
            members,
        },
        GroupError::Socket(_)
        | GroupError::FewDescriptors { .. }
        | GroupError::Host(_)
        | GroupError::SharedMemory(_) => {
            // The other ranks, which miss this one, report the reason. This rank's own error has the hint.
            let reason = error_chain(&error);
            verdict::agree_on_failure(
                store,
                membership,
                GroupFailure::RankFailed { rank: membership.rank, reason },
            );
            error
        }
        error => error,
    }
}

fn error_chain(error: &GroupError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[derive(Debug)]
struct StoreCoordinator {
    /// Its keys belong to this group alone.
    store: TcpStore,
    choice: BackendChoice,
}

impl StoreCoordinator {
    fn connect(self, membership: &Membership) -> Result<GroupBacking, GroupError> {
        let backend = BackendPlan { choice: self.choice, hosts: Arc::clone(&membership.hosts) }.backend();
        let transport: Box<dyn Transport> = match backend {
            Backend::Shm => Box::new(shm::join(&self.store, membership)?),
            Backend::Mixed => Box::new(mixed::join(&self.store, membership)?),
            Backend::Tcp => Box::new(Tcp::new(
                membership.rank,
                membership.world_size,
                join::join(&self.store, membership)?,
            )),
            backend => return Err(GroupError::NoBackend { backend }),
        };
        Ok(GroupBacking { backend, transport, coordinator: Box::new(self) })
    }
}

impl Coordinator for StoreCoordinator {
    fn agree_on_failure(&self, membership: &Membership, observed: GroupFailure) -> GroupFailure {
        verdict::agree_on_failure(&self.store, membership, observed)
    }

    fn connect_subgroup(&self, membership: &Membership, name: &str) -> Result<GroupBacking, GroupError> {
        if membership.world_size == WorldSize::ONE {
            return SingleRank { choice: self.choice }.connect(membership);
        }
        // A wait on a connection of its own does not delay this group.
        let store = self.store.with_own_connection(VERDICT_TIMEOUT)?.with_prefix(name);
        Self { store, choice: self.choice }.connect(membership)
    }
}

/// A group of one rank: needs no store.
#[derive(Debug)]
struct SingleRank {
    choice: BackendChoice,
}

impl SingleRank {
    fn connect(self, membership: &Membership) -> Result<GroupBacking, GroupError> {
        match self.choice {
            BackendChoice::Nccl => Err(GroupError::NoBackend { backend: Backend::Nccl }),
            BackendChoice::Auto | BackendChoice::Shm | BackendChoice::Tcp => {
                let transport =
                    Box::new(Tcp::new(membership.rank, membership.world_size, Mesh::new(vec![None])?));
                Ok(GroupBacking { backend: Backend::Memory, transport, coordinator: Box::new(self) })
            }
        }
    }
}

impl Coordinator for SingleRank {
    fn agree_on_failure(&self, _: &Membership, observed: GroupFailure) -> GroupFailure {
        observed
    }

    fn connect_subgroup(&self, membership: &Membership, _: &str) -> Result<GroupBacking, GroupError> {
        Self { choice: self.choice }.connect(membership)
    }
}
