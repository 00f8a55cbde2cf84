//! A fake `libnvidia-ml.so.1`: exactly the functions that the launcher calls.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod layout;
mod links;
mod state;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong};
use std::sync::{Mutex, PoisonError};

use fake_machine::{Card, Lost, Machine, Mig, Vendor, announce, enter};
use layout::{Memory, MemoryV2, PciInfo};

const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const GPU_IS_LOST: c_int = 15;

#[used]
#[unsafe(link_section = ".init_array")]
static OPENED: extern "C" fn() = opened;

extern "C" fn opened() {
    announce("libnvidia-ml.so.1");
}

/// As the library's: opaque. Here the card's place in PCI order from 1, and 32 times the MIG device's number from 1.
type Device = usize;

const MIG: usize = 32;

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// What a function answers: nothing, or a code.
type Answer = Result<(), c_int>;

const fn code(answer: Answer) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// A function about the whole machine.
fn of_machine(function: &str, answer: impl FnOnce(&Machine) -> Answer) -> c_int {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(machine) = machine else { return UNINITIALIZED };
    match enter(&machine, function) {
        Some(fault) => fault,
        None => code(answer(&machine)),
    }
}

/// A card, or a MIG device on it.
struct About<'a> {
    machine: &'a Machine,
    position: usize,
    card: &'a Card,
    mig: Option<&'a Mig>,
}

/// A function about one device.
fn of_device(function: &str, device: Device, answer: impl FnOnce(&About<'_>) -> Answer) -> c_int {
    of_machine(function, |machine| {
        let place = (device % MIG).checked_sub(1);
        let position = place.and_then(|place| machine.by_pci(Vendor::Nvidia).get(place).copied());
        let position = position.ok_or(INVALID_ARGUMENT)?;
        let card = &machine.cards[position];
        let mig = match (device / MIG).checked_sub(1) {
            None => None,
            Some(number) => Some(card.mig.get(number).ok_or(INVALID_ARGUMENT)?),
        };
        if card.lost.is_some() { Err(GPU_IS_LOST) } else { answer(&About { machine, position, card, mig }) }
    })
}

/// Writes an answer, where there is one.
///
/// # Safety
/// `place` is null, or may be written.
unsafe fn put<T>(place: *mut T, value: Option<T>) -> Answer {
    match value {
        _ if place.is_null() => Err(INVALID_ARGUMENT),
        None => Err(NOT_SUPPORTED),
        Some(value) => {
            // SAFETY: the caller says that it may be written.
            unsafe { place.write(value) };
            Ok(())
        }
    }
}

/// Writes a C string.
///
/// # Safety
/// `place` has room for `room` bytes.
unsafe fn put_text(place: *mut c_char, room: c_uint, text: &str) -> Answer {
    if usize::try_from(room).is_ok_and(|room| text.len() < room) {
        // SAFETY: there is room for the text and its end.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(place.cast(), text.len());
            place.add(text.len()).write(0);
        }
        Ok(())
    } else {
        Err(INSUFFICIENT_SIZE)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    let machine = Machine::of_this_process();
    if let Some(fault) = enter(&machine, "nvmlInit_v2") {
        return fault;
    }
    *MACHINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(machine);
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    of_machine("nvmlShutdown", |_| Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) -> c_int {
    // SAFETY: the caller gives `room` bytes.
    of_machine("nvmlSystemGetDriverVersion", |machine| unsafe { put_text(version, room, &machine.driver) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    // SAFETY: the caller gives a place for one number.
    of_machine("nvmlDeviceGetCount_v2", |machine| unsafe {
        put(count, c_uint::try_from(machine.of(Vendor::Nvidia).count()).ok())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> c_int {
    of_machine("nvmlDeviceGetHandleByIndex_v2", |machine| {
        let index = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let position = *machine.by_pci(Vendor::Nvidia).get(index).ok_or(INVALID_ARGUMENT)?;
        if machine.cards[position].lost == Some(Lost::Handle) {
            return Err(GPU_IS_LOST);
        }
        // SAFETY: the caller gives a place for one handle.
        unsafe { put(device, Some(index + 1)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> c_int {
    of_machine("nvmlDeviceGetHandleByUUID", |machine| {
        // SAFETY: the caller gives a C string.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
        let by_pci = machine.by_pci(Vendor::Nvidia);
        let index = by_pci.iter().position(|at| machine.cards[*at].uuid == uuid).ok_or(NOT_FOUND)?;
        if machine.cards[by_pci[index]].lost == Some(Lost::Handle) {
            return Err(GPU_IS_LOST);
        }
        // SAFETY: the caller gives a place for one handle.
        unsafe { put(device, Some(index + 1)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSerial(device: Device, serial: *mut c_char, room: c_uint) -> c_int {
    of_device("nvmlDeviceGetSerial", device, |about| {
        let text = about.card.serial.as_ref().ok_or(NOT_SUPPORTED)?;
        // SAFETY: the caller gives `room` bytes.
        unsafe { put_text(serial, room, text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(device: Device, name: *mut c_char, room: c_uint) -> c_int {
    of_device("nvmlDeviceGetName", device, |about| {
        let text = about.mig.map_or_else(
            || about.card.name.clone(),
            |mig| format!("{} MIG {}g", about.card.name, mig.memory >> 30),
        );
        // SAFETY: the caller gives `room` bytes.
        unsafe { put_text(name, room, &text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, room: c_uint) -> c_int {
    of_device("nvmlDeviceGetUUID", device, |about| {
        let text = about.mig.map_or(&about.card.uuid, |mig| &mig.uuid);
        // SAFETY: the caller gives `room` bytes.
        unsafe { put_text(uuid, room, text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, info: *mut PciInfo) -> c_int {
    of_device("nvmlDeviceGetPciInfo_v3", device, |about| {
        if about.mig.is_some() {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the caller gives a place for the structure.
        unsafe { put(info, Some(PciInfo::of(about.card.pci))) }
    })
}

fn memory(about: &About<'_>) -> (u64, u64) {
    match about.mig {
        Some(mig) => (mig.memory, 0),
        None => (about.card.memory, about.card.used),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, info: *mut Memory) -> c_int {
    of_device("nvmlDeviceGetMemoryInfo", device, |about| {
        let (total, used) = memory(about);
        // SAFETY: the caller gives a place for the structure.
        unsafe { put(info, Some(Memory { total, free: total - used, used })) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, info: *mut MemoryV2) -> c_int {
    of_device("nvmlDeviceGetMemoryInfo_v2", device, |about| {
        let (total, used) = memory(about);
        // SAFETY: the caller gives the structure with its version.
        let version = unsafe { (*info).version };
        let answer = MemoryV2 { version, total, reserved: 0, free: total - used, used };
        if version != MemoryV2::VERSION {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: it is the structure of this version.
        unsafe { put(info, Some(answer)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: Device,
    words: c_uint,
    set: *mut c_ulong,
    _scope: c_uint,
) -> c_int {
    of_device("nvmlDeviceGetMemoryAffinity", device, |about| {
        let node = about.card.numa.ok_or(NOT_SUPPORTED)?;
        for index in 0..words {
            let bit = if node / c_ulong::BITS == index { 1 << (node % c_ulong::BITS) } else { 0 };
            // SAFETY: the caller gives so many words.
            unsafe { set.add(index as usize).write(bit) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    of_device("nvmlDeviceGetMigMode", device, |about| {
        if about.mig.is_some() {
            return Err(NOT_SUPPORTED);
        }
        let on = about.card.mig_mode || !about.card.mig.is_empty();
        // Cards before Ampere know nothing of it.
        let mode = about.card.capability.is_some_and(|(major, _)| major >= 8).then_some(c_uint::from(on));
        // SAFETY: the caller gives places for two numbers.
        unsafe { put(current, mode).and_then(|()| put(pending, mode)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: *mut c_uint) -> c_int {
    // SAFETY: the caller gives a place for one number.
    of_device("nvmlDeviceGetMaxMigDeviceCount", device, |_| unsafe { put(count, Some(7)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: c_uint,
    mig: *mut Device,
) -> c_int {
    of_device("nvmlDeviceGetMigDeviceHandleByIndex", device, |about| {
        let index = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        about.card.mig.get(index).ok_or(NOT_FOUND)?;
        // SAFETY: the caller gives a place for one handle.
        unsafe { put(mig, Some(device + MIG * (index + 1))) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        4 => c"Insufficient Permissions",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        GPU_IS_LOST => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
