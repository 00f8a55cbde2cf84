//! How ranks become a group: they find each other through the store, and choose what carries their calls.

use std::time::Duration;

use rankrun_contract::rank::WorldSize;

use super::cpu::CpuGroup;
use super::error::GroupError;
use super::tcp::Tcp;
use super::tcp::join::{self, Seat};
use super::tcp::mesh::Mesh;
use super::{Backend, GroupOptions, ProcessGroup, parting};
use crate::context::WorkerContext;
use crate::store::TcpStore;

/// How long the store may take to say who was lost first, before this rank's own word counts.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// The group of all ranks, as `options` want it.
pub(crate) fn meet(
    context: &WorkerContext,
    options: &GroupOptions,
) -> Result<Box<dyn ProcessGroup>, GroupError> {
    parting::go_on();
    let place = (context.rank(), context.world_size());
    if context.world_size() == WorldSize::ONE {
        let alone = Tcp::new(place.0, place.1, Mesh::new(vec![None])?);
        return Ok(Box::new(CpuGroup::new(place, (Backend::Tcp, Box::new(alone)), options.timeout, None)));
    }
    let seat = seat(context, options);
    let store = place_in(&context.store(options.timeout)?, &seat, &options.name)?;
    let tcp = Tcp::new(seat.rank, seat.world_size, join::join(&store, &seat)?);
    Ok(Box::new(CpuGroup::new(place, (Backend::Tcp, Box::new(tcp)), seat.timeout, Some(store))))
}

/// This worker's seat in the group of all ranks.
pub(super) fn seat(context: &WorkerContext, options: &GroupOptions) -> Seat {
    Seat {
        rank: context.rank(),
        world_size: context.world_size(),
        life: context.life(),
        run_id: context.run_id().to_string(),
        spans_nodes: context.spans_nodes(),
        timeout: options.timeout,
    }
}

/// The keys of this group alone.
pub(super) fn place_in(store: &TcpStore, seat: &Seat, name: &str) -> Result<TcpStore, GroupError> {
    let store = store.with_own_connection(VERDICT_TIMEOUT)?.with_timeout(seat.timeout);
    let store = store.with_prefix(&format!("rankrun/group/{name}/life {}", seat.life));
    // A name may be used again once its group is gone; nothing of the first use is in the second one.
    let turn = store.add(&format!("turn of {}", seat.rank), 1)?;
    Ok(store.with_prefix(&turn.to_string()))
}
