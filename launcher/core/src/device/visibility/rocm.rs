//! `ROCR_VISIBLE_DEVICES`, then `HIP_VISIBLE_DEVICES` or else `CUDA_VISIBLE_DEVICES` over what that left (ROCm).

use std::ffi::OsStr;

use super::{ChosenDevice, DeviceChoice, InheritedVariables, devices_of_kind, not_empty};
use crate::device::{DeviceType, Machine};

pub(super) fn read(machine: &Machine, inherited: &InheritedVariables) -> DeviceChoice {
    let mut visible = DeviceChoice::of(DeviceType::Rocm, devices_of_kind(machine, DeviceType::Rocm));
    if let Some(value) = &inherited.rocr {
        visible = apply_rocr_list(&visible.devices, value);
    }
    let hip = not_empty(inherited.hip.as_ref()).map(|value| ("HIP_VISIBLE_DEVICES", value));
    let cuda = not_empty(inherited.cuda.as_ref()).map(|value| ("CUDA_VISIBLE_DEVICES", value));
    if let Some((variable, value)) = hip.or(cuda) {
        let rocr_warnings = visible.warnings;
        visible = self::apply_hip_list(&visible.devices, variable, value);
        visible.warnings.splice(0..0, rocr_warnings);
    }
    visible
}

/// Reads the list as ROCr's parser does (`amd_filter_device.cpp`).
fn apply_rocr_list(devices: &[ChosenDevice], value: &OsStr) -> DeviceChoice {
    let text = value.to_string_lossy();
    let mut dropped = Vec::new();
    let mut named: Vec<ChosenDevice> = Vec::new();
    // It reads no more tokens than there are devices.
    let tokens: Vec<&str> = text.split(',').map(str::trim).collect();
    for (place, token) in tokens.iter().enumerate() {
        let upper = token.to_ascii_uppercase();
        let is_uuid = upper.starts_with('G');
        let found = if is_uuid { by_uuid(devices, &upper) } else { by_number(devices, &upper) };
        let why = match found {
            _ if place >= devices.len() => "is one more than there are devices",
            None => "names no device",
            Some(device) if named.iter().any(|other| other.position == device.position) => "is listed again",
            Some(device) => {
                named.push(device.clone().named(*token, is_uuid));
                continue;
            }
        };
        if !text.is_empty() && text.trim() != "-1" {
            dropped.push(format!("`{token}` {why}, which ends the list"));
        }
        break;
    }
    DeviceChoice::listed(DeviceType::Rocm, named, ("ROCR_VISIBLE_DEVICES", value), &dropped)
}

/// `GPU-` and up to 16 hex digits that fit one device.
fn by_uuid<'a>(devices: &'a [ChosenDevice], token: &str) -> Option<&'a ChosenDevice> {
    let fits = |device: &&ChosenDevice| {
        device.accelerator.uuid.as_ref().is_some_and(|uuid| uuid.to_ascii_uppercase().starts_with(token))
    };
    let mut fitting = devices.iter().filter(fits);
    let first = fitting.next().filter(|_| (5..=20).contains(&token.len()) && token.starts_with("GPU-"))?;
    fitting.next().is_none().then_some(first)
}

/// As `strtol` with base 0 reads it, to the end.
fn by_number<'a>(devices: &'a [ChosenDevice], token: &str) -> Option<&'a ChosenDevice> {
    let token = token.strip_prefix('+').unwrap_or(token);
    let (digits, radix) = match token.strip_prefix("0X") {
        Some(hex) => (hex, 16),
        None if token.len() > 1 && token.starts_with('0') => (&token[1..], 8),
        None => (token, 10),
    };
    // `from_str_radix` takes a sign of its own, which would be the second one.
    let number = u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
    devices.get(usize::try_from(number).ok()?)
}

/// Reads the list as HIP's parser does (`Device::init` of ROCclr).
fn apply_hip_list(devices: &[ChosenDevice], variable: &'static str, value: &OsStr) -> DeviceChoice {
    let text = value.to_string_lossy();
    let mut dropped = Vec::new();
    let mut named: Vec<ChosenDevice> = Vec::new();
    for entry in text.strip_suffix(',').unwrap_or(&text).split(',') {
        let is_uuid = entry.starts_with("GPU-");
        let found = if is_uuid {
            let is = |device: &&ChosenDevice| {
                device.accelerator.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(entry))
            };
            devices.iter().find(is)
        } else {
            let number = entry.parse::<usize>().ok().filter(|number| number.to_string() == entry);
            number.and_then(|number| devices.get(number))
        };
        match found {
            None => {
                if text != "-1" {
                    dropped.push(format!("`{entry}` names no device, which ends the list"));
                }
                break;
            }
            Some(device) if named.iter().any(|other| other.position == device.position) => {
                dropped.push(format!("`{entry}` is listed again and counts once"));
            }
            Some(device) => named.push(device.clone().named(entry, is_uuid)),
        }
    }
    DeviceChoice::listed(DeviceType::Rocm, named, (variable, value), &dropped)
}
