//! Opens what this node hosts, before the task runs.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the pure parts")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::io_thread::IoThread;
use crate::rendezvous::address::{self, Interface, is_confined};
use crate::rendezvous::assign_ranks::SharedAddressCache;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::host::{self, AllowedClients};
use crate::rendezvous::training_store::TrainingStore;

use super::Setup;
use super::channel::{EventSender, TaskCommand};
use super::connection::ConnectionState;
use super::hosted;
use super::lease::{LeaseState, StoreContact};
use super::peer_directory::PeerDirectory;
use super::phase::Phase;
use super::plan::Plan;
use super::rendezvous_task::{Participation, RendezvousTask};
use super::static_start::StaticProgress;

impl RendezvousTask {
    /// Opens what this node hosts.
    ///
    /// # Errors
    /// The store's port cannot be bound, or `--iface` does not exist.
    pub(super) fn open(
        setup: Setup,
        commands: UnboundedReceiver<TaskCommand>,
        events: EventSender,
        io_thread: &IoThread,
    ) -> Result<Self, RendezvousError> {
        let (mut plan, is_host) = Plan::of(setup);
        let may_host = host::may_host(&plan.endpoint, is_host);
        let clients = allowed_clients(&plan, may_host)?;
        let open =
            || io_thread.block_on(host::open_store(&plan.endpoint, is_host, (clients, plan.network.ports)));
        let failed = |error| hosted::explain_port_in_use(error, &plan, io_thread);
        let store = if may_host { open().map_err(failed)?.map(Arc::new) } else { None };
        if let (Some(store), Some(limit)) = (&store, plan.network.store_limit) {
            store.limit(limit)?;
        }
        let training_store = match &mut plan.static_job {
            Some(job) => {
                if let Some(store) = &store {
                    job.master.port = store.local_addr().port();
                }
                TrainingStore::shared(store.clone(), &job.run_id, job.master.clone())
            }
            None => TrainingStore::unopened(plan.training_store_host, &plan.network),
        };
        let now = Instant::now();
        Ok(Self {
            peers: PeerDirectory::new(&plan.times),
            connection: ConnectionState::new(now, plan.times.lease),
            lease: LeaseState::default(),
            contact: StoreContact::new(now),
            heartbeats: None,
            own_heartbeat: None,
            plan,
            events,
            commands,
            store,
            has_departures: true,
            departed: BTreeSet::new(),
            static_progress: StaticProgress::NotStarted,
            training_store: Arc::new(tokio::sync::Mutex::new(training_store)),
            address_cache: SharedAddressCache::default(),
            backend: None,
            previous_connection: None,
            me: None,
            interface: None,
            phase: Phase::Idle,
            participation: Participation::Active,
            shutdown: None,
            next_read: now,
            next_tick: now,
            reads_heartbeats: true,
        })
    }
}

/// The clients that may reach the rendezvous store, if this node hosts it. Agents of this machine alone, if the job has
/// one node, or if the endpoint and the options for this node's address are loopback addresses. One address, with
/// `--iface`.
fn allowed_clients(plan: &Plan, may_host: bool) -> Result<AllowedClients, RendezvousError> {
    let iface = plan.network.iface.as_deref();
    let known = if iface.is_some() { interfaces()? } else { Vec::new() };
    let is_confined = is_confined(plan.local_addr.as_deref(), iface, &known)?;
    let stays_here =
        plan.is_alone() || plan.is_on_this_machine() || (is_confined && plan.endpoint.is_loopback());
    if stays_here {
        return Ok(AllowedClients::ThisMachine);
    }
    // If another node hosts, no name is looked up.
    let Some(name) = iface.filter(|_| may_host) else { return Ok(AllowedClients::AnyMachine) };
    let meant = host::endpoint_addresses(&plan.endpoint);
    // The workers of a static job on this machine look for the store at the endpoint.
    let needs_endpoint = plan.static_job.is_some();
    Ok(address::listen_addresses(&known, name, &meant, needs_endpoint)
        .map_or(AllowedClients::AnyMachine, AllowedClients::At))
}

/// The network interfaces of this machine.
pub(super) fn interfaces() -> Result<Vec<Interface>, RendezvousError> {
    let failed = |source| RendezvousError::System { what: "list the network interfaces", source };
    address::interfaces().map_err(failed)
}
