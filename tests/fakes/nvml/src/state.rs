//! How a card is at this moment.

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::layout::{ProcessInfo, Utilization};
use crate::{Device, INSUFFICIENT_SIZE, NOT_SUPPORTED, of_device, put};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    of_device("nvmlDeviceGetCudaComputeCapability", device, |about| {
        let capability = about.card.capability;
        // SAFETY: the caller gives places for two numbers.
        unsafe {
            put(major, capability.map(|(major, _)| major.cast_signed()))?;
            put(minor, capability.map(|(_, minor)| minor.cast_signed()))
        }
    })
}

/// Functions of a device and a place for one number.
macro_rules! numbers {
    ($($function:ident: $number:ty = |$card:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(device: Device, place: *mut $number) -> c_int {
            of_device(stringify!($function), device, |about| {
                let $card = about.card;
                // SAFETY: the caller gives a place for one number.
                unsafe { put(place, $value) }
            })
        }
    )*};
}

numbers! {
    nvmlDeviceGetPowerUsage: c_uint = |card| card.power;
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |card| card.limit;
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint = |card| card.default_limit;
    nvmlDeviceGetUtilizationRates: Utilization =
        |card| card.utilisation.map(|gpu| Utilization { gpu, memory: 0 });
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |card| card.throttle;
    nvmlDeviceGetRetiredPagesPendingStatus: c_uint =
        |card| card.retired.map(|_| c_uint::from(card.retirement_pending));
}

/// Functions of a device, one of several places to measure, and a place for one number.
macro_rules! numbers_at {
    ($($function:ident = |$card:ident, $at:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(device: Device, $at: c_uint, place: *mut c_uint) -> c_int {
            of_device(stringify!($function), device, |about| {
                let $card = about.card;
                // SAFETY: the caller gives a place for one number.
                unsafe { put(place, $value) }
            })
        }
    )*};
}

numbers_at! {
    nvmlDeviceGetTemperature = |card, sensor| card.temperature.filter(|_| sensor == 0);
    nvmlDeviceGetTemperatureThreshold = |card, kind| card.slowdown.filter(|_| kind == 1);
    nvmlDeviceGetClockInfo = |card, clock| match clock {
        1 => card.clock,
        2 => card.memory_clock,
        _ => None,
    };
    nvmlDeviceGetMaxClockInfo = |card, clock| card.max_clock.filter(|_| clock == 1);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    kind: c_uint,
    _counter: c_uint,
    count: *mut c_ulonglong,
) -> c_int {
    // SAFETY: the caller gives a place for one number.
    of_device("nvmlDeviceGetTotalEccErrors", device, |about| unsafe {
        put(count, if kind == 1 { about.card.ecc } else { about.card.ecc_corrected })
    })
}

/// All of them have the cause 1, double bit errors.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRetiredPages(
    device: Device,
    cause: c_uint,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
) -> c_int {
    of_device("nvmlDeviceGetRetiredPages", device, |about| {
        let retired = about.card.retired.ok_or(NOT_SUPPORTED)?;
        let retired = if cause == 1 { retired } else { 0 };
        // SAFETY: the caller gives a place for one number, and writes to it the room that there is.
        let room = unsafe { count.replace(retired) };
        if retired > room { Err(INSUFFICIENT_SIZE) } else { Ok(()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: Device,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_int {
    of_device("nvmlDeviceGetRemappedRows", device, |about| {
        let waits = about.card.remapped.map(|_| c_uint::from(about.card.retirement_pending));
        // SAFETY: the caller gives places for four numbers.
        unsafe {
            put(corrected, about.card.remapped.map(|_| 0))?;
            put(uncorrected, about.card.remapped)?;
            put(pending, waits)?;
            put(failed, Some(0))
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    list: *mut ProcessInfo,
) -> c_int {
    of_device("nvmlDeviceGetComputeRunningProcesses_v3", device, |about| {
        let running = &about.card.processes;
        let number = c_uint::try_from(running.len()).map_err(|_| NOT_SUPPORTED)?;
        // SAFETY: the caller gives a place for one number, and writes to it the room that there is.
        let room = unsafe { count.replace(number) };
        if number > room {
            return Err(INSUFFICIENT_SIZE);
        }
        for (at, (pid, memory)) in running.iter().enumerate() {
            let none = c_uint::MAX;
            let info = ProcessInfo { pid: *pid, memory: *memory, gpu_instance: none, compute_instance: none };
            // SAFETY: there is room for so many.
            unsafe { list.add(at).write(info) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    _list: *mut ProcessInfo,
) -> c_int {
    // SAFETY: the caller gives a place for one number.
    of_device("nvmlDeviceGetGraphicsRunningProcesses_v3", device, |_| unsafe { put(count, Some(0)) })
}
