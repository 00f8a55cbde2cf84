//! The settings that the launch does not use, though they were given. Pure.

use std::ffi::OsString;

use rankrun_core::device::DeviceType;
use rankrun_core::notice::Notice;
use rankrun_core::spec::RendezvousSpec;
use rankrun_core::spec::setting::Setting;

use super::{SettingLine, SettingOrigin, SettingOrigins};
use crate::explain::nodes::nodes_of;

/// Options of the rendezvous that a store on a free port does not need.
const OF_RENDEZVOUS: [&str; 4] = ["rdzv-backend", "rdzv-endpoint", "rdzv-conf", "node-rank"];
const OF_SEVERAL_NODES: [&str; 3] = ["lease", "join-timeout", "last-call"];
const OF_ACCELERATORS: [&str; 4] =
    ["device-order", "device-visibility", "check-devices", "exclude-unhealthy"];

impl SettingOrigins<'_> {
    /// Marks the given settings that have no effect.
    pub(super) fn mark_without_effect(&self, settings: &mut [SettingLine]) {
        let has_idle_conf = self.has_idle_conf(settings);
        for line in settings.iter_mut().filter(|line| line.source != SettingOrigin::Default) {
            let is_idle = self.is_ignored(line)
                || self.is_idle(&line.name)
                || (line.name == "rdzv-conf" && has_idle_conf);
            line.has_effect = !is_idle;
        }
    }

    /// Whether the launch says that the value of this line has no effect.
    fn is_ignored(&self, line: &SettingLine) -> bool {
        let is_of_line = |given: &&Setting<OsString>| SettingOrigin::from(*given) == line.source;
        let of_line = self.origins.of_setting(&[&line.name]).into_iter().find(is_of_line);
        self.notices.iter().any(|notice| match notice {
            Notice::Ignored { origin, .. } => of_line.is_some_and(|given| given.origin == *origin),
            Notice::UnknownLogLevel { .. } => line.name == "verbose",
            _ => false,
        })
    }

    /// Whether this launch has no use for the option, whatever its value.
    fn is_idle(&self, name: &str) -> bool {
        let rendezvous = &self.spec.rendezvous;
        let is_standalone = matches!(rendezvous, RendezvousSpec::Standalone { .. });
        let has_last_call = matches!(rendezvous, RendezvousSpec::C10d { .. });
        let has_accelerators = self.spec.devices.workers.iter().any(|worker| worker.kind != DeviceType::Cpu);
        (is_standalone && OF_RENDEZVOUS.contains(&name))
            || (nodes_of(self.spec).is_none() && OF_SEVERAL_NODES.contains(&name))
            || (name == "last-call" && !has_last_call)
            || (!has_accelerators && OF_ACCELERATORS.contains(&name))
    }

    /// Whether every time of `--rdzv-conf` lost to an option.
    fn has_idle_conf(&self, settings: &[SettingLine]) -> bool {
        let conf = self.origins.of_setting(&["rdzv-conf"]).first().copied();
        let Some(conf) = conf.filter(|conf| !conf.value.is_empty()) else { return false };
        let text = conf.value.to_string_lossy();
        let mut keys = text.split(',').filter_map(|item| item.split('=').next()).map(str::trim);
        keys.all(|key| {
            let name = match key {
                "timeout" | "join_timeout" => "join-timeout",
                "last_call_timeout" => "last-call",
                _ => return false,
            };
            let line = settings.iter().find(|line| line.name == name);
            line.is_some_and(|line| line.source != SettingOrigin::from(conf))
        })
    }
}
