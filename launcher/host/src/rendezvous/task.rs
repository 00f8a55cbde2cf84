//! The agent's end of the rendezvous: a handle that never waits. Behind it a task on a thread of its own owns every
//! connection to other agents.

mod assigning;
mod attempt;
mod channel;
mod connection;
mod evidence_exchange;
mod heartbeat;
mod hosted;
mod joining;
mod lease;
mod leaving;
mod member;
mod opening;
mod peer_directory;
mod phase;
mod plan;
mod quiet;
mod refusals;
mod rendezvous_task;
mod static_start;
mod store_access;
#[cfg(test)]
mod tests;
mod unreached;
pub(crate) mod watch;
mod write_tickets;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rankrun_contract::rank::{LocalWorldSize, RestartCount};

use crate::io_thread::IoThread;
use crate::process::watchdog::Watchdog;
use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::error::RendezvousError;
use crate::store::StoreServer;
use rankrun_core::rendezvous::lease_deadlines::LeaseDeadlines;
use rankrun_core::rendezvous::{RendezvousCommand, ShutdownKind};
use rankrun_core::spec::RendezvousSpec;
use rankrun_core::spec::rendezvous::NetworkSpec;

use channel::{AgentChannel, TaskCommand, channels};
use lease::{LeaseState, StoreContact};
use plan::Plan;
use rendezvous_task::RendezvousTask;

/// A node that leaves a store without an answer for so long publishes nothing: the end of its connections says enough.
const MIN_LEAVE_PATIENCE: Duration = Duration::from_millis(500);

/// The settings of a rendezvous.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How the nodes find each other; not [`RendezvousSpec::Standalone`], and static with more than one node.
    pub spec: RendezvousSpec,
    /// How this node is reached, and where it may listen.
    pub network: NetworkSpec,
    /// `--role`
    pub role: String,
    /// Workers of this node in the first round.
    pub workers: LocalWorldSize,
    /// Name of the workers' program: the same on all nodes of a job
    /// ([`rankrun_core::rendezvous::descriptor::display_entrypoint`]).
    pub entrypoint: String,
    /// This launcher's version.
    pub version: String,
    /// `--max-restarts`
    pub max_restarts: RestartCount,
}

/// The rendezvous, as the agent has it. Only [`Self::open`] and [`Self::end`] wait.
#[derive(Debug)]
pub struct NetworkRendezvous {
    /// Ends before the stores: its tasks still use them.
    io_thread: IoThread,
    channel: AgentChannel,
    lease: LeaseState,
    contact: StoreContact,
    /// The rendezvous store, if this node hosts it. The others must read how this node leaves before it ends.
    store: Option<Arc<StoreServer>>,
    task_ended: mpsc::Receiver<()>,
}

impl NetworkRendezvous {
    /// Opens the store if this node hosts it, and starts the task that reaches it. It takes part from the first
    /// [`RendezvousCommand::Join`] on.
    ///
    /// The thread inherits the caller's signal mask.
    ///
    /// # Errors
    /// The store, or an address for this node, cannot be had.
    pub fn open(setup: Setup) -> Result<Self, RendezvousError> {
        Self::open_with(setup, |_| {})
    }

    /// The same with other limits.
    fn open_with(setup: Setup, limits: impl FnOnce(&mut Plan)) -> Result<Self, RendezvousError> {
        let failed = |source: io::Error| RendezvousError::System { what: "start the rendezvous", source };
        let (channel, commands, events) = channels().map_err(failed)?;
        let io_thread = IoThread::start("rankrun-io")?;
        let mut task = RendezvousTask::open(setup, commands, events, &io_thread)?;
        limits(&mut task.plan);
        let (lease, contact, store) = (task.lease.clone(), task.contact.clone(), task.store.clone());
        let (ended, task_ended) = mpsc::channel();
        io_thread.spawn(async move {
            task.run().await;
            // The handle may be gone.
            let _ = ended.send(());
        });
        Ok(Self { io_thread, channel, lease, contact, store, task_ended })
    }

    /// Sends a command. It is handled in order, within milliseconds.
    pub fn send_command(&self, command: RendezvousCommand) {
        self.channel.send(TaskCommand::Command(command));
    }

    /// The next event, if there is one; [`Self::as_fd`] is readable as long as there is.
    #[must_use]
    pub fn receive(&self) -> Option<RendezvousEvent> {
        self.channel.receive()
    }

    /// The round trip to the store, as the newest connection has measured it.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.contact.round_trip()
    }

    /// Until when the others take this node for alive, if they might go on without it. Workers need not run.
    #[must_use]
    pub fn lease_deadlines(&self) -> Option<LeaseDeadlines> {
        self.lease.deadlines()
    }

    /// Workers may run, and the watchdog ends them at the end of the lease if this process cannot. `None`: no workers
    /// run.
    pub(crate) fn set_watchdog(&self, watchdog: Option<Watchdog>) {
        self.lease.set_watchdog(watchdog);
    }

    /// Publishes how this node leaves, keeps the stores that it hosts for the others for a while, and ends the task.
    /// Returns within `limit`. A node that leaves a store without answers returns sooner: a user waits for that.
    pub fn end(self, kind: ShutdownKind, limit: Duration) {
        // No worker is left, and the lease is not extended any more.
        self.set_watchdog(None);
        #[expect(clippy::disallowed_methods, reason = "the handle's own limit")]
        let until = Instant::now() + limit;
        let leaves = matches!(kind, ShutdownKind::Leave { .. });
        let patience = MIN_LEAVE_PATIENCE.max(self.contact.round_trip() * 2);
        let patience = (leaves && self.store.is_none()).then_some(patience);
        // A node that no store knows has nothing to publish.
        let is_unknown = leaves && !self.lease.is_known();
        let wait_until = if is_unknown { until - limit } else { until };
        self.channel.send(TaskCommand::ShutDown { kind, until });
        self.wait_for_end(wait_until, patience);
        // The thread ends with this, and drops a task that is late.
        drop(self.io_thread);
    }

    /// Waits for the end of the task; with `patience` only as long as the store answers.
    #[expect(clippy::disallowed_methods, reason = "the handle's own limit")]
    fn wait_for_end(&self, until: Instant, patience: Option<Duration>) {
        let asked = Instant::now();
        loop {
            let last_answer = self.contact.last_answer().max(asked);
            let until = patience.map_or(until, |patience| until.min(last_answer + patience));
            let left = until.saturating_duration_since(Instant::now());
            match self.task_ended.recv_timeout(left) {
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Ok(()) | Err(_) => return,
            }
        }
    }
}

impl AsFd for NetworkRendezvous {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
