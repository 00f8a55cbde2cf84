//! The settings of the rendezvous and the store, and the source of each. Pure.

use std::time::Duration;

use rankrun_contract::env::{MASTER_ADDR, MASTER_PORT};

use super::{SettingLine, SettingOrigin, SettingOrigins, setting, time};
use crate::explain::nodes::{is_agreed_on, nodes_of};
use crate::explain::{LaunchValue, Pending, port};
use rankrun_core::spec::rendezvous::RoundTimes;
use rankrun_core::spec::{LaunchSpec, RendezvousSpec, StoreHost};

const WORKER_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

impl SettingOrigins<'_> {
    pub(super) fn address(&self) -> SettingOrigin {
        match &self.spec.rendezvous {
            RendezvousSpec::Static { .. } => self.static_endpoint_origin("master-addr"),
            RendezvousSpec::Standalone { local_addr: None, .. }
            | RendezvousSpec::C10d { local_addr: None, .. } => SettingOrigin::Default,
            RendezvousSpec::Standalone { .. } | RendezvousSpec::C10d { .. } => {
                self.origin_of(&["local-addr"], &[])
            }
        }
    }

    pub(super) fn port(&self) -> SettingOrigin {
        match &self.spec.rendezvous {
            RendezvousSpec::Static { .. } => self.static_endpoint_origin("master-port"),
            RendezvousSpec::Standalone { .. } | RendezvousSpec::C10d { .. } => SettingOrigin::Default,
        }
    }

    /// An endpoint sets both parts of a static rendezvous.
    fn static_endpoint_origin(&self, part: &str) -> SettingOrigin {
        match self.origins.of_setting(&["rdzv-endpoint"]) {
            Some(endpoint) => endpoint.into(),
            None => self.origin_of(&[part], &[]),
        }
    }

    pub(super) fn store_host(&self) -> SettingOrigin {
        match self.spec.rendezvous.store().host {
            StoreHost::Agent => SettingOrigin::Default,
            StoreHost::Worker => self.origin_of(&[], &[WORKER_STORE]),
        }
    }

    pub(super) fn store_settings(&self) -> [SettingLine; 4] {
        let (kind, origin) = match &self.spec.rendezvous {
            RendezvousSpec::Standalone { .. } => ("standalone", self.origin_of(&["standalone"], &[])),
            RendezvousSpec::C10d { .. } => ("c10d", self.origin_of(&["rdzv-backend"], &[])),
            RendezvousSpec::Static { .. } => ("static", self.static_endpoint_origin("master-port")),
        };
        let store = self.spec.rendezvous.store();
        let opened_by = match store.host {
            StoreHost::Agent => "agent",
            StoreHost::Worker => "rank 0",
        };
        let place = |name: &'static str, variable, value, source| {
            let is_agreed = is_agreed_on(self.spec, variable);
            SettingLine {
                name: name.into(),
                value: Some(if is_agreed { LaunchValue::AtLaunch(Pending::Agreed) } else { value }),
                source,
                overrides: Vec::new(),
            }
        };
        [
            setting("rendezvous", Some(kind.to_owned()), origin),
            place("master-addr", MASTER_ADDR, LaunchValue::Known(store.addr.into()), self.address()),
            place("master-port", MASTER_PORT, port(store.port), self.port()),
            setting("store", Some(opened_by.to_owned()), self.store_host()),
        ]
    }

    /// The rendezvous settings: nodes, time limits and network; a job of one node has fewer of them.
    pub(super) fn node_settings(&self) -> Vec<SettingLine> {
        let LaunchSpec { rendezvous, network, .. } = self.spec;
        let option = |name, value| setting(name, value, self.origin_of(&[name], &[]));
        let mut settings = vec![option("nnodes", Some(rendezvous.nodes().to_string()))];
        if let Some(nodes) = nodes_of(self.spec) {
            let usual = match rendezvous {
                RendezvousSpec::Static { .. } => RoundTimes::static_defaults(),
                _ => RoundTimes::default(),
            };
            let by_conf_too = |name, value: Option<Duration>, usual: Duration| {
                let by_conf = value.is_some_and(|value| value != usual);
                let source = match self.origin_of(&[name], &[]) {
                    SettingOrigin::Default if by_conf => self.origin_of(&["rdzv-conf"], &[]),
                    source => source,
                };
                setting(name, value.map(time), source)
            };
            let seconds = Duration::from_secs_f64;
            settings.extend([
                option("node-rank", nodes.node_rank.map(|rank| rank.to_string())),
                by_conf_too("join-timeout", Some(seconds(nodes.join_timeout_seconds)), usual.join),
                by_conf_too("last-call", nodes.last_call_seconds.map(seconds), usual.last_call),
                option("lease", Some(time(seconds(nodes.lease_seconds)))),
                option("local-addr", nodes.local_addr),
            ]);
        }
        let network = [
            ("iface", network.iface.clone()),
            ("port-range", network.ports.map(|ports| ports.to_string())),
            ("store-limit", network.store_limit.map(|size| size.to_string())),
        ];
        let given = network.into_iter().filter(|(_, value)| value.is_some());
        settings.extend(given.map(|(name, value)| option(name, value)));
        settings
    }
}
