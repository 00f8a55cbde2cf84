//! The settings of the rendezvous and the store, and the source of each. Pure.

use std::time::Duration;

use rankrun_contract::env::{MASTER_ADDR, MASTER_PORT};

use super::{Places, SettingLine, SettingOrigin, SettingOrigins, known, setting, time};
use crate::explain::nodes::{is_agreed_on, nodes_of};
use crate::explain::{LaunchValue, Pending, port};
use rankrun_core::spec::rendezvous::POD_INDEX;
use rankrun_core::spec::{CliFlavor, LaunchSpec, RendezvousSpec, StoreHost};

const WORKER_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

impl SettingOrigins<'_> {
    pub(super) fn address(&self) -> Places {
        let (local_addr, lost) = match &self.spec.rendezvous {
            RendezvousSpec::Static { .. } => return self.static_endpoint("master-addr"),
            RendezvousSpec::Standalone { local_addr, .. } => {
                (local_addr, &["master-addr", "rdzv-endpoint"][..])
            }
            RendezvousSpec::C10d { local_addr, .. } => (local_addr, &["master-addr"][..]),
        };
        // An empty one is none.
        self.places(if local_addr.is_some() { &["local-addr"] } else { &[] }, lost)
    }

    pub(super) fn port(&self) -> Places {
        match &self.spec.rendezvous {
            RendezvousSpec::Static { .. } => self.static_endpoint("master-port"),
            RendezvousSpec::Standalone { .. } => self.places(&[], &["master-port", "rdzv-endpoint"]),
            RendezvousSpec::C10d { .. } => self.places(&[], &["master-port"]),
        }
    }

    /// An endpoint sets both parts of a static rendezvous; an empty one is none.
    fn static_endpoint(&self, part: &str) -> Places {
        match self.origins.of_setting(&["rdzv-endpoint"]).first() {
            Some(endpoint) if !endpoint.value.is_empty() => self.places(&["rdzv-endpoint"], &[part]),
            _ => self.places(&[part], &["rdzv-endpoint"]),
        }
    }

    pub(super) fn store_host(&self) -> Places {
        match self.spec.rendezvous.store().host {
            StoreHost::Agent => self.places(&[], &[]),
            StoreHost::Worker => self.variable_of(&[WORKER_STORE]),
        }
    }

    pub(super) fn store_settings(&self) -> [SettingLine; 4] {
        let is_standalone =
            self.origins.of_setting(&["standalone"]).first().is_some_and(|on| on.value == "yes");
        let (kind, places) = match &self.spec.rendezvous {
            RendezvousSpec::Standalone { .. } if is_standalone => {
                ("standalone", self.places(&["standalone"], &["rdzv-backend"]))
            }
            RendezvousSpec::Standalone { .. } => ("standalone", self.places(&[], &[])),
            RendezvousSpec::C10d { .. } => ("c10d", self.places(&["rdzv-backend"], &[])),
            RendezvousSpec::Static { .. } => ("static", self.static_endpoint("master-port")),
        };
        let store = self.spec.rendezvous.store();
        let opened_by = match store.host {
            StoreHost::Agent => "agent",
            StoreHost::Worker => "rank 0",
        };
        let agreed = |variable, value| match is_agreed_on(self.spec, variable) {
            true => Some(LaunchValue::AtLaunch(Pending::Agreed)),
            false => Some(value),
        };
        let address = agreed(MASTER_ADDR, LaunchValue::Known(store.addr.into()));
        [
            setting("rendezvous", known(kind), places),
            setting("master-addr", address, self.address()),
            setting("master-port", agreed(MASTER_PORT, port(store.port)), self.port()),
            setting("store", known(opened_by), self.store_host()),
        ]
    }

    /// The rendezvous settings: nodes, time limits and network; a job of one node has fewer of them.
    pub(super) fn node_settings(&self) -> Vec<SettingLine> {
        let LaunchSpec { rendezvous, network, .. } = self.spec;
        let mut settings = vec![self.option("nnodes", Some(rendezvous.nodes().to_string()))];
        if let Some(nodes) = nodes_of(self.spec) {
            let seconds = |seconds| time(Duration::from_secs_f64(seconds));
            let join =
                if matches!(rendezvous, RendezvousSpec::Static { .. }) { "timeout" } else { "join_timeout" };
            let last_call = nodes.last_call_seconds.map(seconds);
            settings.extend([
                self.node_rank(nodes.node_rank),
                self.time_by_conf_too("join-timeout", join, Some(seconds(nodes.join_timeout_seconds))),
                self.time_by_conf_too("last-call", "last_call_timeout", last_call),
                self.option("lease", Some(seconds(nodes.lease_seconds))),
                self.option("local-addr", None),
            ]);
        }
        settings.extend([
            self.option("iface", None),
            self.option("port-range", network.ports.map(|ports| ports.to_string())),
            self.option("store-limit", network.store_limit.map(|size| size.to_string())),
        ]);
        settings
    }

    /// The node rank; in a static job of several nodes it may be the index of a pod.
    fn node_rank(&self, rank: Option<u32>) -> SettingLine {
        let line = self.option("node-rank", rank.map(|rank| rank.to_string()));
        let (spec, is_static) = (self.spec, matches!(self.spec.rendezvous, RendezvousSpec::Static { .. }));
        match spec.cli_flavor {
            CliFlavor::Rankrun if is_static && spec.rendezvous.is_shared() => {
                self.with_variable(line, POD_INDEX)
            }
            _ => line,
        }
    }

    /// Where the rank of this node was set.
    pub(super) fn group_rank(&self) -> SettingOrigin {
        self.node_rank(None).source
    }

    /// A time that a key of `--rdzv-conf` says too.
    fn time_by_conf_too(&self, name: &'static str, key: &str, value: Option<String>) -> SettingLine {
        let of_conf = self.origins.of_setting(&["rdzv-conf"]);
        let conf = of_conf.first().map(|conf| conf.value.to_string_lossy()).unwrap_or_default();
        let has_key = conf.split(',').any(|item| item.split('=').next().map(str::trim) == Some(key));
        let names = [name, "rdzv-conf"];
        self.line(name, value, if has_key { &names } else { &names[..1] }, &[])
    }
}
