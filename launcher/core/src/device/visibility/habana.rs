//! `HABANA_VISIBLE_MODULES` (Gaudi).
//!
//! Left open by the vendor and decided here: an empty value counts as unset; an entry that is not a module is dropped
//! and the driver reads the next one; a repeated one counts once; a list that does not ascend is used unchanged, with a
//! warning, since no document promises an order.

use std::ffi::OsString;

use super::{ChosenDevice, DeviceChoice, IndexOrder, InheritedVariables, devices_of_kind, not_empty};
use crate::device::choice::ChoiceWarning;
use crate::device::{DeviceType, Machine};

const VARIABLE: &str = "HABANA_VISIBLE_MODULES";

pub(super) fn read(machine: &Machine, inherited: &InheritedVariables, counting: IndexOrder) -> DeviceChoice {
    let mut devices = devices_of_kind(machine, DeviceType::Hpu);
    let numbered = devices.iter().all(|device| device.accelerator.module_id.is_some());
    let mut visible = match not_empty(inherited.habana.as_ref()) {
        Some(value) => listed(&devices, value),
        None => {
            if counting.is_runtime_order() {
                // The vendor's PyTorch bridge gives a process the module of its local rank.
                devices.sort_by_key(|device| device.accelerator.module_id);
            }
            DeviceChoice::of(DeviceType::Hpu, devices)
        }
    };
    let counts_modules = visible.variable.is_some() || counting.is_runtime_order();
    if !numbered && counts_modules && visible.devices.len() > 1 {
        visible.order_unknown = Some("the driver does not tell the modules' numbers".to_owned());
    }
    visible
}

/// Where the driver does not tell the modules' numbers, they are taken to be the devices'.
fn listed(devices: &[ChosenDevice], value: &OsString) -> DeviceChoice {
    let module = |device: &ChosenDevice| device.accelerator.module_id.unwrap_or(device.accelerator.index);
    let text = value.to_string_lossy();
    let mut dropped = Vec::new();
    let mut named: Vec<ChosenDevice> = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let number = entry.parse::<u32>().ok();
        match devices.iter().find(|device| Some(module(device)) == number) {
            None => dropped.push(format!("there is no module `{entry}`")),
            Some(device) if named.iter().any(|other| other.position == device.position) => {
                dropped.push(format!("`{entry}` is listed again and counts once"));
            }
            Some(device) => named.push(device.clone().named(entry, false)),
        }
    }
    let ascending = named.is_sorted_by_key(module);
    let mut visible = DeviceChoice::listed(DeviceType::Hpu, named, (VARIABLE, value), &dropped);
    if !ascending {
        let reason = "the vendor promises no order of the modules in it";
        visible.warnings.push(ChoiceWarning::NoOrder {
            variable: VARIABLE,
            value: value.clone(),
            because: reason,
        });
    }
    visible
}
