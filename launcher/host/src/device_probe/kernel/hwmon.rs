//! The state of a card as its driver shows it by the kernel's own interface for sensors (Linux
//! `Documentation/hwmon/sysfs-interface.rst`, and amdgpu's additions).

use rankrun_core::device::DeviceState;

use crate::device_probe::kernel::tree::Tree;

/// The sensor values of the PCI device in `folder`.
pub(super) fn read_sensors(tree: &Tree<'_>, folder: &str) -> DeviceState {
    let sensors = tree.numbered(&format!("{folder}/hwmon"), "hwmon").unwrap_or_default();
    let sensors = sensors.first().map(|number| format!("{folder}/hwmon/hwmon{number}"));
    let sensor = |name: &str| -> Option<u64> { tree.number(&format!("{}/{name}", sensors.as_ref()?)) };
    // Millidegrees, microwatts and hertz.
    let degrees = |name| sensor(name).and_then(|value| u32::try_from(value / 1000).ok());
    let milliwatts = |name| sensor(name).map(|value| value / 1000);
    let megahertz = |name| sensor(name).and_then(|value| u32::try_from(value / 1_000_000).ok());
    DeviceState {
        temperature: degrees("temp1_input"),
        slowdown_temperature: degrees("temp1_crit"),
        power: milliwatts("power1_average").or_else(|| milliwatts("power1_input")),
        power_limit: milliwatts("power1_cap").or_else(|| milliwatts("power1_max")),
        default_power_limit: milliwatts("power1_cap_default"),
        clock: megahertz("freq1_input"),
        memory_clock: megahertz("freq2_input"),
        utilisation: tree.number(&format!("{folder}/gpu_busy_percent")).filter(|busy| *busy <= 100),
        uncorrected_ecc: uncorrected_ecc_errors(tree, folder),
        ..DeviceState::default()
    }
}

/// The memory controller's errors: `ue: 0` and `ce: 0` on two lines.
fn uncorrected_ecc_errors(tree: &Tree<'_>, folder: &str) -> Option<u64> {
    let text = tree.text(&format!("{folder}/ras/umc_err_count"))?;
    text.lines().find_map(|line| line.strip_prefix("ue:"))?.trim().parse().ok()
}
