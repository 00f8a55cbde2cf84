//! `ASCEND_RT_VISIBLE_DEVICES` (CANN).
//!
//! Left open by the vendor and decided here: an empty list names nothing, as `vLLM` reads it; today's CANN supports
//! ascending lists only, so that the list ends before the first id that is not above the one before it.

use std::ffi::OsString;

use super::{ChosenDevice, DeviceChoice, InheritedVariables, devices_of_kind};
use crate::device::{DeviceType, Machine};

const VARIABLE: &str = "ASCEND_RT_VISIBLE_DEVICES";

pub(super) fn read(machine: &Machine, inherited: &InheritedVariables) -> DeviceChoice {
    let devices = devices_of_kind(machine, DeviceType::Npu);
    match &inherited.ascend {
        None => DeviceChoice::of(DeviceType::Npu, devices),
        Some(value) => listed(&devices, value),
    }
}

fn listed(devices: &[ChosenDevice], value: &OsString) -> DeviceChoice {
    let text = value.to_string_lossy();
    let mut dropped = Vec::new();
    let end = text.find(|character: char| !character.is_ascii_digit() && character != ',');
    if let Some(end) = end.filter(|end| *end > 0) {
        dropped
            .push(format!("the list ends before `{}`, which is neither a digit nor a comma", &text[end..]));
    }
    let mut named: Vec<ChosenDevice> = Vec::new();
    for entry in text[..end.unwrap_or(text.len())].split(',') {
        let number = entry.parse::<u32>().ok();
        let Some(device) = devices.iter().find(|device| Some(device.accelerator.index) == number) else {
            if !entry.is_empty() {
                dropped.push(format!("there is no NPU `{entry}`, which ends the list"));
            }
            break;
        };
        // The entries behind it would be promised to a worker that does not get them.
        if let Some(last) = named.last().filter(|last| last.accelerator.index >= device.accelerator.index) {
            let last = last.accelerator.index;
            dropped.push(format!("`{entry}` is not above `{last}`, and the list must ascend: it ends there"));
            break;
        }
        named.push(device.clone().named(entry, false));
    }
    DeviceChoice::listed(DeviceType::Npu, named, (VARIABLE, value), &dropped)
}
