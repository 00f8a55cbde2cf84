//! How the ranks become one communicator: through the store, with a deadline, and with the name of whoever is missing.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use nix::sys::eventfd::EventFd;
use rankrun_contract::rank::Rank;

use super::calls::{Nccl, NcclError, NcclId};
use super::communicator::Communicator;
use super::group::Link;
use super::log::Log;
use super::others::{Others, Said};
use super::symbols::ID_LEN;
use super::watch::{Trouble, Watch, Watcher};
use crate::process_group::error::{Ending, GroupError, LossCause};
use crate::process_group::meet::Seat;
use crate::process_group::message::Operation;
use crate::process_group::{tcp, verdict};
use crate::store::{StoreError, TcpStore};
use crate::{clock, cuda};

/// Where rank 0 leaves the id of the communicator.
const ID: &str = "nccl/id";
/// Between two looks at the other ranks while NCCL connects.
const LOOK: std::time::Duration = std::time::Duration::from_millis(2);

/// The communicator of all ranks of a group, watched over. Without a store the rank is alone.
pub(super) fn join(nccl: &Nccl, seat: &Seat, store: Option<&TcpStore>) -> Result<Link, GroupError> {
    let Some(store) = store else {
        let place = (seat.rank, seat.world_size);
        let communicator = Communicator::init(nccl, &nccl.unique_id()?, place, seat.timeout)?;
        return watched(communicator, seat, (Others::new(vec![None]), None));
    };
    if seat.rank == Rank(0) {
        store.set(ID, &nccl.unique_id()?.0)?;
    }
    let mut others = Others::new(tcp::join::connect(store, seat)?);
    match connect(nccl, store, seat, &mut others) {
        Ok(communicator) => watched(communicator, seat, (others, Some(store.clone()))),
        // The connections are closed, which others take for a loss, only when the verdict is written.
        Err(Failure::Ending(seen)) => {
            let (operation, members) = (Operation::Join, seat.members.clone());
            Err(GroupError::Ended { operation, ending: verdict::agree(store, seat, seen), members })
        }
        Err(Failure::Nccl(error)) => {
            verdict::agree(store, seat, failed(seat.rank, &error));
            Err(error.into())
        }
        Err(Failure::Other(error)) => Err(error),
    }
}

/// Why there is no communicator.
enum Failure {
    Ending(Ending),
    Nccl(NcclError),
    Other(GroupError),
}

impl From<NcclError> for Failure {
    fn from(error: NcclError) -> Self {
        Self::Nccl(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Other(GroupError::Store(error))
    }
}

fn failed(rank: Rank, error: &NcclError) -> Ending {
    Ending::Failed { rank, reason: error.to_string() }
}

fn arrival(rank: Rank) -> String {
    format!("nccl/arrived/{rank}")
}

/// Connects all ranks by NCCL, while watching whether they all are there.
fn connect(nccl: &Nccl, store: &TcpStore, seat: &Seat, others: &mut Others) -> Result<Communicator, Failure> {
    const FUNCTION: &str = "ncclCommInitRankConfig";
    let deadline = seat.join_by;
    let id = store.get(ID)?;
    let id: [u8; ID_LEN] =
        id.try_into().map_err(|value: Vec<u8>| Failure::Other(GroupError::strange_entry(ID, &value)))?;
    store.set(&arrival(seat.rank), b"1")?;
    let place = (seat.rank, seat.world_size);
    let communicator = Communicator::begin(nccl, &NcclId(id), place, clock::until(deadline))?;
    let bell = EventFd::new().map_err(|error| Failure::Other(GroupError::Socket(error.into())))?;
    loop {
        // Asked before the others are heard: who is through may leave at once.
        let settled = communicator.core().is_settled(FUNCTION);
        for (rank, said) in others.hear() {
            // Somebody who is through and hangs already: we have made no call.
            if let Said::Asked(_) = said {
                others.peers.answer(rank, None);
            }
        }
        if let Ok(true) = settled {
            return Ok(communicator);
        }
        if let Some((rank, cause)) = others.lost.first() {
            return Err(Failure::Ending(Ending::Lost { rank: *rank, cause: cause.clone() }));
        }
        settled?;
        if clock::until(deadline).is_zero() {
            communicator.abort();
            return Err(Failure::Ending(late(store, seat)?));
        }
        others.peers.wait(bell.as_fd(), clock::after(LOOK).min(deadline));
    }
}

/// Who is missing when the time is over.
fn late(store: &TcpStore, seat: &Seat) -> Result<Ending, Failure> {
    for rank in (0..seat.world_size.get()).map(Rank) {
        if !store.check(&[&arrival(rank)])? {
            return Ok(Ending::Lost { rank, cause: LossCause::Timeout(seat.timeout) });
        }
    }
    let (function, timeout) = ("ncclCommInitRankConfig", seat.timeout);
    Ok(failed(seat.rank, &NcclError::Timeout { function, timeout }))
}

/// Starts the watch.
fn watched(
    communicator: Communicator,
    seat: &Seat,
    (others, store): (Others, Option<TcpStore>),
) -> Result<Link, GroupError> {
    let driver = cuda::driver()?;
    let context = driver.current_context()?;
    let core = Arc::clone(communicator.core());
    let log = Log::new(driver, seat.timeout);
    let watch = Watch::new(seat.clone(), core, log).map_err(std::io::Error::from)?;
    let watch = Arc::new(watch);
    let watcher = Watcher { watch: Arc::clone(&watch), others, store, trouble: Trouble::None };
    let named = thread::Builder::new().name("nccl watch".to_owned());
    named.spawn(move || {
        // A context that was current a moment ago can be made so here.
        drop(driver.enter(context));
        driver.relax_captures();
        watcher.run();
    })?;
    Ok(Link { communicator, watch, is_parted: false })
}
