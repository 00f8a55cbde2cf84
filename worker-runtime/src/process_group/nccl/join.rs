//! Connects the ranks to one communicator: through the store, within a deadline, with an
//! error that names a missing rank.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use nix::sys::eventfd::EventFd;
use rankrun_contract::rank::Rank;

use super::call_log::CallLog;
use super::communicator::Communicator;
use super::group::Link;
use super::library::{Nccl, NcclError, NcclId};
use super::other_ranks::{CallMessage, OtherRanks};
use super::symbols::ID_LEN;
use super::watch::{Diagnosis, Watch, Watcher};
use crate::process_group::error::{GroupError, GroupFailure, LossCause};
use crate::process_group::message::Operation;
use crate::process_group::rendezvous::Membership;
use crate::process_group::{tcp, verdict};
use crate::store::{StoreError, TcpStore};
use crate::{clock, cuda};

/// Store key of the communicator's id, written by rank 0.
const ID_KEY: &str = "nccl/id";
/// Pause between two checks of the other ranks while NCCL connects.
const CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(2);

/// Makes the communicator of all ranks of a group and starts its watch. Without a store the rank is alone.
pub(super) fn connect_group(
    nccl: &Nccl,
    membership: &Membership,
    store: Option<&TcpStore>,
) -> Result<Link, GroupError> {
    let Some(store) = store else {
        let place = (membership.rank, membership.world_size);
        let communicator = Communicator::init(nccl, &nccl.unique_id()?, place, membership.timeout)?;
        return start_watch(communicator, membership, (OtherRanks::new(vec![None]), None));
    };
    if membership.rank == Rank(0) {
        store.set(ID_KEY, &nccl.unique_id()?.0)?;
    }
    let mut other_ranks = OtherRanks::new(tcp::join::connect(store, membership)?);
    match connect(nccl, store, membership, &mut other_ranks) {
        Ok(communicator) => start_watch(communicator, membership, (other_ranks, Some(store.clone()))),
        // Other ranks take closed connections for a loss, so the verdict is written first.
        Err(JoinFailure::GroupFailure(observed)) => {
            let (operation, members) = (Operation::Join, membership.members.clone());
            Err(GroupError::Failed {
                operation,
                failure: verdict::agree_on_failure(store, membership, observed),
                members,
            })
        }
        Err(JoinFailure::Nccl(error)) => {
            verdict::agree_on_failure(store, membership, rank_failure(membership.rank, &error));
            Err(error.into())
        }
        Err(JoinFailure::Other(error)) => Err(error),
    }
}

/// Why there is no communicator.
enum JoinFailure {
    GroupFailure(GroupFailure),
    Nccl(NcclError),
    Other(GroupError),
}

impl From<NcclError> for JoinFailure {
    fn from(error: NcclError) -> Self {
        Self::Nccl(error)
    }
}

impl From<StoreError> for JoinFailure {
    fn from(error: StoreError) -> Self {
        Self::Other(GroupError::Store(error))
    }
}

fn rank_failure(rank: Rank, error: &NcclError) -> GroupFailure {
    GroupFailure::RankFailed { rank, reason: error.to_string() }
}

fn arrival_key(rank: Rank) -> String {
    format!("nccl/arrived/{rank}")
}

/// Connects all ranks by NCCL, while it checks that they all arrive.
fn connect(
    nccl: &Nccl,
    store: &TcpStore,
    membership: &Membership,
    other_ranks: &mut OtherRanks,
) -> Result<Communicator, JoinFailure> {
    const FUNCTION: &str = "ncclCommInitRankConfig";
    let deadline = membership.join_deadline;
    let id = store.get(ID_KEY)?;
    let id: [u8; ID_LEN] = id
        .try_into()
        .map_err(|value: Vec<u8>| JoinFailure::Other(GroupError::unexpected_entry(ID_KEY, &value)))?;
    store.set(&arrival_key(membership.rank), b"1")?;
    let place = (membership.rank, membership.world_size);
    let communicator = Communicator::begin_init(nccl, &NcclId(id), place, clock::until(deadline))?;
    let wake_event = EventFd::new().map_err(|error| JoinFailure::Other(GroupError::Socket(error.into())))?;
    loop {
        // Read before the messages: a rank that is connected may leave at once.
        let is_settled = communicator.core().is_settled(FUNCTION);
        for (rank, message) in other_ranks.receive_messages() {
            // A rank that is connected already asks about a hanging call: this rank has made none.
            if let CallMessage::Question(_) = message {
                other_ranks.peers.answer(rank, None);
            }
        }
        if let Ok(true) = is_settled {
            return Ok(communicator);
        }
        if let Some((rank, cause)) = other_ranks.lost_ranks.first() {
            return Err(JoinFailure::GroupFailure(GroupFailure::Lost { rank: *rank, cause: cause.clone() }));
        }
        is_settled?;
        if clock::until(deadline).is_zero() {
            communicator.abort();
            return Err(JoinFailure::GroupFailure(timeout_failure(store, membership)?));
        }
        other_ranks.peers.wait(wake_event.as_fd(), clock::after(CHECK_INTERVAL).min(deadline));
    }
}

/// The failure after the deadline: the first rank that has not arrived, else NCCL's timeout.
fn timeout_failure(store: &TcpStore, membership: &Membership) -> Result<GroupFailure, JoinFailure> {
    for rank in (0..membership.world_size.get()).map(Rank) {
        if !store.check(&[&arrival_key(rank)])? {
            return Ok(GroupFailure::Lost { rank, cause: LossCause::Timeout(membership.timeout) });
        }
    }
    let (function, timeout) = ("ncclCommInitRankConfig", membership.timeout);
    Ok(rank_failure(membership.rank, &NcclError::Timeout { function, timeout }))
}

/// Starts the thread that watches the communicator.
fn start_watch(
    communicator: Communicator,
    membership: &Membership,
    (other_ranks, store): (OtherRanks, Option<TcpStore>),
) -> Result<Link, GroupError> {
    let driver = cuda::driver()?;
    let context = driver.current_context()?;
    let core = Arc::clone(communicator.core());
    let log = CallLog::new(driver, membership.timeout);
    let watch = Watch::new(membership.clone(), core, log).map_err(std::io::Error::from)?;
    let watch = Arc::new(watch);
    let watcher = Watcher { watch: Arc::clone(&watch), other_ranks, store, diagnosis: Diagnosis::None };
    let named = thread::Builder::new().name("nccl watch".to_owned());
    named.spawn(move || {
        // A context that was current a moment ago can be made current here.
        drop(driver.enter(context));
        driver.relax_captures();
        watcher.run();
    })?;
    Ok(Link { communicator, watch, has_left: false })
}
