//! The agent's end of the rendezvous: a handle that never blocks, and the thread behind it, which owns every connection
//! to other agents, but the one that only gives signs of life.

mod attempt;
mod book;
mod connect;
mod driver;
mod fence;
mod first;
mod hosted;
mod inbox;
mod joining;
mod member;
mod parting;
mod plan;
mod pulse;
mod refusals;
#[cfg(test)]
mod tests;
mod turns;
mod unreached;
pub(crate) mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalWorldSize, RestartCount};

use crate::error::LaunchError;
use crate::process::watchdog::Watchdog;
use crate::rendezvous::{RendezvousCommand, RendezvousEvent, ShutdownKind};
use crate::spec::RendezvousSpec;
use crate::spec::rendezvous::NetworkSpec;

use driver::Driver;
pub use fence::Fence;
use fence::{Fencepost, Heard};
use inbox::{Command, Mailbox, channels};
use plan::Plan;

/// Without an answer of the store for so long, whoever leaves goes without a word: its connections end with it, which says
/// enough.
const HASTE: Duration = Duration::from_millis(500);

/// What a rendezvous is told at its start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How the workers find each other; not [`RendezvousSpec::Standalone`], and static with more than one node.
    pub spec: RendezvousSpec,
    /// How this node is reached, and where it may listen.
    pub network: NetworkSpec,
    /// `--role`
    pub role: String,
    /// Workers of this node in the first round.
    pub workers: LocalWorldSize,
    /// What the workers run, by its name: the same on all nodes of a job ([`crate::rendezvous::descriptor::display_entrypoint`]).
    pub entrypoint: String,
    /// This launcher's version.
    pub version: String,
    /// `--max-restarts`
    pub max_restarts: RestartCount,
}

/// The rendezvous, as the agent has it. Nothing but [`Self::open`] and [`Self::end`] waits for anything.
#[derive(Debug)]
pub struct Rendezvous {
    mailbox: Mailbox,
    fencepost: Fencepost,
    heard: Heard,
    /// Whether the store is this node's own, which others have to hear from before it goes.
    is_host: bool,
    ended: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Opens the store where this node hosts it, and starts the thread that reaches it. No wish is made yet.
    ///
    /// The thread inherits the caller's signal mask.
    ///
    /// # Errors
    /// The store, or an address for this node, cannot be had.
    pub fn open(setup: Setup) -> Result<Self, LaunchError> {
        Self::open_with(setup, |_| {})
    }

    /// The same with other limits.
    fn open_with(setup: Setup, limits: impl FnOnce(&mut Plan)) -> Result<Self, LaunchError> {
        let failed = |source: io::Error| LaunchError::Setup { what: "start the rendezvous", source };
        let (mailbox, outlet) = channels().map_err(failed)?;
        let mut driver = Driver::open(setup, outlet)?;
        limits(&mut driver.plan);
        let (fencepost, heard) = (driver.fencepost.clone(), driver.heard.clone());
        let is_host = driver.store.is_some();
        let (over, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("rendezvous".to_owned())
            .spawn(move || {
                driver.run();
                // Whoever does not wait for the end need not be told.
                let _ = over.send(());
            })
            .map_err(failed)?;
        Ok(Self { mailbox, fencepost, heard, is_host, ended, thread: Some(thread) })
    }

    /// Tells the thread what the agent wants. It is obeyed in order, within milliseconds.
    pub fn wish(&self, wish: RendezvousCommand) {
        self.mailbox.send(Command::Wish(wish));
    }

    /// The next news, if there are any; [`Self::as_fd`] is readable as long as there are.
    #[must_use]
    pub fn receive(&self) -> Option<RendezvousEvent> {
        self.mailbox.receive()
    }

    /// The round trip to the store, as the newest connection has measured it.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.heard.round_trip()
    }

    /// Until when the others do not take this node for dead, where they might and would go on without it. It says nothing
    /// of whether workers run.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fencepost.get()
    }

    /// Workers may run, and that one ends them at the end of the fence if this process cannot; or none do.
    pub fn watched_by(&self, watch: Option<Watchdog>) {
        self.fencepost.watched_by(watch);
    }

    /// Says how this node goes, keeps the stores that it hosts for the others for a while, and ends the thread. Returns
    /// within `limit`, and where this node leaves a store that does not answer, sooner: a user waits for that.
    pub fn end(mut self, parting: ShutdownKind, limit: Duration) {
        #[expect(clippy::disallowed_methods, reason = "the handle's own limit")]
        let until = Instant::now() + limit;
        let haste = HASTE.max(self.heard.round_trip() * 2);
        let haste = (matches!(parting, ShutdownKind::Leave { .. }) && !self.is_host).then_some(haste);
        // Where no store has ever heard of us there is nobody to tell.
        let is_unknown = matches!(parting, ShutdownKind::Leave { .. }) && !self.fencepost.is_known();
        let wait_until = if is_unknown { until - limit } else { until };
        self.mailbox.send(Command::End { parting, until });
        // A thread that is late is left behind: the process ends, and takes it along.
        if self.ends_by(wait_until, haste)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }

    /// Waits for the end of the thread, with `haste` only as long as the store goes on to answer it; whether it has ended.
    #[expect(clippy::disallowed_methods, reason = "the handle's own limit")]
    fn ends_by(&self, until: Instant, haste: Option<Duration>) -> bool {
        let asked = Instant::now();
        loop {
            let until = haste.map_or(until, |haste| until.min(self.heard.last().max(asked) + haste));
            let left = until.saturating_duration_since(Instant::now());
            match self.ended.recv_timeout(left) {
                Ok(()) => return true,
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Rendezvous {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }
}
