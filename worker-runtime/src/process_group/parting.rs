//! What becomes of the connections of a group that its program has dropped.
//!
//! A program that fails drops its groups on its way out. If their connections closed then, the other ranks
//! would fail of it while this one still writes its error file, and the launcher, which takes the first
//! worker that ends for the root cause, would blame them. So [`run`](crate::run) has them kept until it is
//! known how the program ends: a farewell follows success; after a failure the kernel closes them as the
//! process ends. It does so moments before the parent can see that end, in which a quick rank may overtake:
//! what it reports then names this one as lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fork::Process;
use super::transport::Transport;

/// The connections of the dropped groups; `None` while no program is under way in [`run`](crate::run).
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// What is kept.
struct Kept {
    groups: Vec<Box<dyn Part>>,
    /// The process that dropped them. A forked child has no part in what becomes of them.
    owner: Process,
}

/// What is left of a group that was dropped. It is told to leave, or closed by being dropped.
pub(super) trait Part: Send {
    /// Tells the other ranks that this one needs nothing more from them.
    fn leave(&mut self);
}

impl Part for Box<dyn Transport> {
    fn leave(&mut self) {
        Transport::leave(&mut **self);
    }
}

/// From now on the connections of dropped groups are kept.
pub(crate) fn begin() {
    *kept() = Some(Kept { groups: Vec::new(), owner: Process::this() });
}

/// The program came to its end in good order: the other ranks hear it of all groups.
pub(crate) fn finish() {
    let kept = kept().take();
    kept.into_iter().flat_map(|kept| kept.groups).for_each(|mut group| group.leave());
}

/// The program goes on and begins something new, so what it dropped was dropped in good order.
pub(super) fn go_on() {
    let groups = kept().as_mut().map(|kept| std::mem::take(&mut kept.groups));
    groups.into_iter().flatten().for_each(|mut group| group.leave());
}

/// Takes the connections of a group that is dropped before its ending.
pub(super) fn take(mut group: Box<dyn Part>) {
    let is_panicking = std::thread::panicking();
    match &mut *kept() {
        // Only the end of the process closes these.
        Some(_) if is_panicking => std::mem::forget(group),
        Some(kept) => kept.groups.push(group),
        // A rank that panics did not come to its end in good order, and the others should not think so.
        None if is_panicking => {}
        None => group.leave(),
    }
}

/// What this process keeps.
fn kept() -> MutexGuard<'static, Option<Kept>> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = kept.as_mut().filter(|kept| !kept.owner.is_this()) {
        kept.owner = Process::this();
        // What ends a connection of its own accord must not do so here.
        std::mem::take(&mut kept.groups).into_iter().for_each(std::mem::forget);
    }
    kept
}
