//! The power draw of chosen cards: one question for each, since a worker's stacks wait for the answer.

use crate::device_probe::nvidia::open_library;

/// The power draw of each card in milliwatts, in their order. `None` for a card that does not tell it.
///
/// # Errors
/// The reason why the library gives none, in words.
pub(crate) fn read_power(uuids: &[String]) -> Result<Vec<Option<u32>>, String> {
    let nvml = open_library()?;
    let power_of = |uuid: &String| nvml.device_by_uuid(uuid.as_str())?.power_usage();
    let power = uuids.iter().map(|uuid| power_of(uuid).ok()).collect();
    // As in `probe_nvml`.
    std::mem::forget(nvml);
    Ok(power)
}
