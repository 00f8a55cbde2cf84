//! The current state of a card by NVML: heat, power, clocks, memory errors. `device::health` judges it.

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};

use crate::device_probe::nvidia::identity::CardQuery;
use crate::device_probe::nvidia::{processes, raw};
use rankrun_core::device::{DeviceState, Throttle};

/// NVML's two causes for which a page is retired.
const RETIREMENT_CAUSES: [u32; 2] = [0, 1];

/// Everything that NVML tells of it.
pub(super) fn probe_state(device: &Device<'_>, answers: &mut CardQuery) -> DeviceState {
    let capability = answers.optional(device.cuda_compute_capability());
    let rows = answers.optional(raw::remapped_rows(device));
    let pages = RETIREMENT_CAUSES.map(|cause| answers.optional(raw::retired_pages(device, cause)));
    let pages_pending = answers.optional(device.are_pages_pending_retired()).unwrap_or(false);
    DeviceState {
        compute_capability: capability
            .and_then(|version| Some((version.major.try_into().ok()?, version.minor.try_into().ok()?))),
        temperature: answers.optional(device.temperature(TemperatureSensor::Gpu)),
        slowdown_temperature: answers.optional(device.temperature_threshold(TemperatureThreshold::Slowdown)),
        power: answers.optional(device.power_usage()).map(u64::from),
        power_limit: answers.optional(device.enforced_power_limit()).map(u64::from),
        default_power_limit: answers.optional(device.power_management_limit_default()).map(u64::from),
        clock: answers.optional(device.clock_info(Clock::SM)),
        max_clock: answers.optional(device.max_clock_info(Clock::SM)),
        memory_clock: answers.optional(device.clock_info(Clock::Memory)),
        utilisation: answers.optional(device.utilization_rates()).map(|rates| rates.gpu),
        throttle: answers.optional(device.current_throttle_reasons()).map(throttles).unwrap_or_default(),
        uncorrected_ecc: answers
            .optional(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)),
        retired: sum_known(pages.into_iter().chain([rows.map(|rows| rows.rows)])),
        retirement_pending: pages_pending || rows.is_some_and(|rows| rows.is_pending),
        processes: processes::probe_processes(device, answers),
    }
}

/// The sum of the known counters; `None` if none is known.
fn sum_known(counts: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    counts.flatten().reduce(u32::saturating_add)
}

/// NVML's bits as our words, in the order of the bits.
fn throttles(reasons: ThrottleReasons) -> Vec<Throttle> {
    [
        (ThrottleReasons::GPU_IDLE, Throttle::Idle),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::ApplicationClocks),
        (ThrottleReasons::SW_POWER_CAP, Throttle::PowerCap),
        (ThrottleReasons::HW_SLOWDOWN, Throttle::HardwareSlowdown),
        (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::SoftwareThermal),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::HardwareThermal),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::DisplayClocks),
    ]
    .into_iter()
    .filter_map(|(bit, throttle)| reasons.contains(bit).then_some(throttle))
    .collect()
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::state::*;

    #[test]
    fn each_throttle_bit_maps_to_one_reason() {
        let table = [
            (0x1, Throttle::Idle),
            (0x2, Throttle::ApplicationClocks),
            (0x4, Throttle::PowerCap),
            (0x8, Throttle::HardwareSlowdown),
            (0x10, Throttle::SyncBoost),
            (0x20, Throttle::SoftwareThermal),
            (0x40, Throttle::HardwareThermal),
            (0x80, Throttle::PowerBrake),
            (0x100, Throttle::DisplayClocks),
        ];
        for (bit, throttle) in table {
            assert_eq!(throttles(ThrottleReasons::from_bits_truncate(bit)), [throttle]);
        }
        assert_eq!(throttles(ThrottleReasons::from_bits_truncate(0)), []);
        // A bit of a newer driver is unknown here, and does not disturb the known ones.
        assert_eq!(
            throttles(ThrottleReasons::from_bits_truncate(0x8000_0044)),
            [Throttle::PowerCap, Throttle::HardwareThermal]
        );
    }

    #[test]
    fn retired_pages_are_sum_of_known_counts() {
        assert_eq!(sum_known([None, None, None].into_iter()), None);
        assert_eq!(sum_known([Some(2), None, Some(3)].into_iter()), Some(5));
        assert_eq!(sum_known([Some(u32::MAX), Some(1)].into_iter()), Some(u32::MAX));
    }
}
