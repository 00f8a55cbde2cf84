//! Keeps the connections of dropped groups until the program's result is known.
//!
//! A failing program drops its groups on its way out. If their connections closed then, the other ranks
//! would fail while this one still writes its error file, and the launcher, which takes the first worker to
//! end for the root cause, would blame them. [`run`](crate::run) therefore keeps them: after success the
//! other ranks get a leave message; after a failure the kernel closes the connections as the process ends.
//! That happens moments before the parent sees the exit, so that a quick rank may end first: its report
//! then names this rank as lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fork::ForkId;
use super::transport::Transport;

/// Connections of dropped groups; `None` outside of [`run`](crate::run).
static DROPPED_GROUPS: Mutex<Option<DroppedGroups>> = Mutex::new(None);

/// The kept connections and their owner.
struct DroppedGroups {
    groups: Vec<Box<dyn DroppedGroup>>,
    /// The process that dropped the groups. A forked child must not use their connections.
    owner: ForkId,
}

/// What remains of a dropped group. It either leaves, or closes when it is dropped.
pub(super) trait DroppedGroup: Send {
    /// Tells the other ranks that this rank makes no more calls.
    fn leave(&mut self);
}

impl DroppedGroup for Box<dyn Transport> {
    fn leave(&mut self) {
        Transport::leave(&mut **self);
    }
}

/// Keeps the connections of groups that are dropped from now on.
pub(crate) fn keep_dropped_groups() {
    *lock_kept_groups() = Some(DroppedGroups { groups: Vec::new(), owner: ForkId::current() });
}

/// After a successful program: leaves every kept group.
pub(crate) fn leave_and_stop_keeping() {
    let kept = lock_kept_groups().take();
    kept.into_iter().flat_map(|kept| kept.groups).for_each(|mut group| group.leave());
}

/// The program joins another group, so it has not failed: leaves every kept group.
pub(super) fn leave_kept_groups() {
    let groups = lock_kept_groups().as_mut().map(|kept| std::mem::take(&mut kept.groups));
    groups.into_iter().flatten().for_each(|mut group| group.leave());
}

/// Keeps a group that was dropped before it failed, or leaves it outside of `run`.
pub(super) fn keep_or_leave(mut group: Box<dyn DroppedGroup>) {
    let is_panicking = std::thread::panicking();
    match &mut *lock_kept_groups() {
        // Closed by the end of the process only.
        Some(_) if is_panicking => std::mem::forget(group),
        Some(kept) => kept.groups.push(group),
        // A panicking rank must not look as if it had left in good order.
        None if is_panicking => {}
        None => group.leave(),
    }
}

/// The kept connections of this process.
fn lock_kept_groups() -> MutexGuard<'static, Option<DroppedGroups>> {
    let mut kept = DROPPED_GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = kept.as_mut().filter(|kept| !kept.owner.is_current()) {
        kept.owner = ForkId::current();
        // Dropping a copy in the child would end the parent's connection.
        std::mem::take(&mut kept.groups).into_iter().for_each(std::mem::forget);
    }
    kept
}
