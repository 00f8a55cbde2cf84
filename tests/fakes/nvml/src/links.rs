//! How the cards are linked.

use std::ffi::{c_int, c_uint, c_ulonglong};

use fake_machine::{Path, Pci};

use crate::layout::{FieldValue, PciInfo};
use crate::{About, Device, INVALID_ARGUMENT, NOT_SUPPORTED, of_device, put};

/// Where a link leads: to the card at this position, or to a switch.
fn link(about: &About<'_>, number: c_uint) -> Result<Option<usize>, c_int> {
    if about.card.nvlinks.is_empty() {
        return Err(NOT_SUPPORTED);
    }
    let ends = about.card.nvlinks.iter().flat_map(|links| (0..links.count).map(|_| links.to));
    let index = usize::try_from(number).map_err(|_| INVALID_ARGUMENT)?;
    ends.into_iter().nth(index).ok_or(INVALID_ARGUMENT)
}

fn is_down(about: &About<'_>, number: c_uint) -> bool {
    about.card.nvlinks_down.contains(&number)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(device: Device, number: c_uint, active: *mut c_uint) -> c_int {
    of_device("nvmlDeviceGetNvLinkState", device, |about| {
        link(about, number)?;
        // SAFETY: the caller gives a place for one number.
        unsafe { put(active, Some((!is_down(about, number)).into())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: Device,
    number: c_uint,
    info: *mut PciInfo,
) -> c_int {
    of_device("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, |about| {
        // A switch has an address that no card has.
        let switch = Pci { domain: 0, bus: 0xf0, device: 0, function: 0 };
        let remote = link(about, number)?.map_or(switch, |card| about.machine.cards[card].pci);
        // SAFETY: the caller gives a place for the structure.
        unsafe { put(info, Some(PciInfo::of(remote))) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: Device,
    number: c_uint,
    kind: *mut c_uint,
) -> c_int {
    of_device("nvmlDeviceGetNvLinkRemoteDeviceType", device, |about| {
        let found = if link(about, number)?.is_some() { 0 } else { 2 };
        // SAFETY: the caller gives a place for one number.
        unsafe { put(kind, Some(found)) }
    })
}

/// Its counters are numbered: replay, recovery, flow control, data.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: Device,
    number: c_uint,
    counter: c_uint,
    count: *mut c_ulonglong,
) -> c_int {
    of_device("nvmlDeviceGetNvLinkErrorCounter", device, |about| {
        link(about, number)?;
        let at = [2, 3, 0, 1].get(counter as usize).ok_or(INVALID_ARGUMENT)?;
        let errors = about.card.nvlink_errors.iter().find(|(link, _)| *link == number);
        let errors = errors.map_or(0, |(_, errors)| errors[*at]);
        // SAFETY: the caller gives a place for one number.
        unsafe { put(count, (!is_down(about, number)).then_some(errors)) }
    })
}

/// The numbers of the fields that count all links together, in the order of the card's errors.
const TOTALS: [c_uint; 4] = [38, 45, 52, 59];
/// The type of a value: `unsigned long long`.
const OF_TYPE_U64: c_uint = 3;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: c_int,
    values: *mut FieldValue,
) -> c_int {
    of_device("nvmlDeviceGetFieldValues", device, |about| {
        for at in 0..usize::try_from(count).map_err(|_| INVALID_ARGUMENT)? {
            // SAFETY: the caller gives so many structures.
            let value = unsafe { &mut *values.add(at) };
            let total = TOTALS.iter().position(|field| *field == value.field);
            value.answer = if total.is_some() { 0 } else { NOT_SUPPORTED };
            value.value_type = OF_TYPE_U64;
            let up = about.card.nvlink_errors.iter().filter(|(link, _)| !is_down(about, *link));
            value.value = total.map_or(0, |total| up.map(|(_, errors)| errors[total]).sum());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    device: Device,
    other: Device,
    level: *mut c_uint,
) -> c_int {
    let function = "nvmlDeviceGetTopologyCommonAncestor";
    let mut second = None;
    let answer = of_device(function, other, |about| {
        second = Some(about.position);
        Ok(())
    });
    let Some(second) = second else { return answer };
    of_device(function, device, |about| {
        let found = match about.machine.path(about.position, second) {
            Path::Pix => 10,
            Path::Pxb => 20,
            Path::Phb => 30,
            Path::Node => 40,
            Path::Sys => 50,
        };
        // SAFETY: the caller gives a place for one number.
        unsafe { put(level, Some(found)) }
    })
}
