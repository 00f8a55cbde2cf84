//! The settings of the devices, and the source of each. Pure.

use super::{SettingLine, SettingOrigin, SettingOrigins, known, time, yes_or_no};
use rankrun_core::device::choice::number;
use rankrun_core::device::{DeviceType, Visibility};
use rankrun_core::spec::{LaunchSpec, Unhealthy};

/// The options that make the launcher write a vendor's variable.
pub(super) const DEVICE_OPTIONS: [&str; 5] =
    ["devices", "device-order", "device-type", "device-visibility", "virtual-local-rank"];

/// Whether a vendor's variable controls which devices a process sees.
pub(super) fn is_device_variable(name: &str) -> bool {
    let vendors = ["CUDA_", "HIP_", "ROCR_", "GPU_DEVICE_", "ZE_", "HABANA_", "HLS_", "ASCEND_"];
    vendors.iter().any(|prefix| name.starts_with(prefix))
}

impl SettingOrigins<'_> {
    /// The requested devices; the chosen ones are shown at each rank.
    pub(super) fn device_settings(&self) -> Vec<SettingLine> {
        let LaunchSpec { devices, device_request: request, .. } = self.spec;
        let identities = devices.workers.iter().filter_map(|worker| worker.identity.as_ref());
        let cards: Vec<String> = identities.map(|device| number(&device.accelerator)).collect();
        let cards = Some(cards.join(",")).filter(|cards| !cards.is_empty() && request.devices.is_none());
        let mut list = self.option("devices", cards);
        if list.source == SettingOrigin::Default {
            list.source = self.variable_of(&self.visibility_variables()).0;
        }
        let kind = devices.workers.first().map(|worker| worker.kind.to_string());
        let is_own = devices.visibility == Visibility::Own;
        let visible = Some(if is_own { "own" } else { "all" }.to_owned());
        let names: [&str; 2] = match request.visibility {
            Some(_) => ["device-visibility", "virtual-local-rank"],
            None => ["virtual-local-rank", "device-visibility"],
        };
        let visibility = self.line("device-visibility", visible, &names[..1], &names[1..]);
        let second = SettingLine {
            name: "virtual-local-rank".into(),
            value: known(yes_or_no(is_own)),
            ..visibility.clone()
        };
        let second = Some(second).filter(|second| self.is_given(&second.name));
        let check = self.spec.device_check().map(|check| match check {
            Unhealthy::Refuse => "refuse".to_owned(),
            Unhealthy::Exclude => "exclude".to_owned(),
        });
        let check = match request.check.as_ref().map(|check| check.value) {
            Some(Unhealthy::Exclude) => {
                self.line("check-devices", check, &["exclude-unhealthy"], &["check-devices"])
            }
            _ => self.option("check-devices", check),
        };
        let mut settings = vec![list, self.option("device-type", kind), self.option("device-order", None)];
        settings.extend([visibility].into_iter().chain(second));
        settings.extend([check, self.option("numa-binding", None), self.option("bind-cores", None)]);
        settings.push(self.option("probe-timeout", Some(time(request.probe_timeout))));
        settings
    }

    /// The visibility variables for a job like this one.
    fn visibility_variables(&self) -> Vec<&'static str> {
        match self.spec.devices.workers.first().map(|worker| worker.kind) {
            Some(DeviceType::Cuda) => vec!["CUDA_VISIBLE_DEVICES"],
            Some(DeviceType::Rocm) => {
                vec!["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
            }
            Some(DeviceType::Xpu) => vec!["ZE_AFFINITY_MASK"],
            Some(DeviceType::Hpu) => vec!["HABANA_VISIBLE_MODULES"],
            Some(DeviceType::Npu) => vec!["ASCEND_RT_VISIBLE_DEVICES"],
            Some(DeviceType::Mps | DeviceType::Cpu) | None => Vec::new(),
        }
    }
}
