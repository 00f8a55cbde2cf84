//! A fake `libcuda.so.1`: which devices a process sees, and in which order. It knows nothing of the launcher.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod visible;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;

use fake_machine::{Machine, announce, enter};
use visible::{VisibleDevice, visible};

const INVALID_VALUE: c_int = 1;
const NOT_INITIALIZED: c_int = 3;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const UNKNOWN: c_int = 999;

#[used]
#[unsafe(link_section = ".init_array")]
static OPENED: extern "C" fn() = opened;

extern "C" fn opened() {
    announce("libcuda.so.1");
}

/// What the process sees, settled by `cuInit`.
struct Driver {
    machine: Machine,
    devices: Vec<VisibleDevice>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

#[expect(clippy::disallowed_methods, reason = "the driver reads its variables in the process that opens it")]
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    let machine = Machine::of_this_process();
    if let Some(code) = enter(&machine, "cuInit") {
        return code;
    }
    let (list, order) = (variable("CUDA_VISIBLE_DEVICES"), variable("CUDA_DEVICE_ORDER"));
    let devices = visible(&machine, list.as_deref(), order.as_deref());
    if flags != 0 {
        INVALID_VALUE
    } else if devices.is_empty() {
        NO_DEVICE
    } else if devices.iter().any(|device| machine.cards[device.card].lost.is_some()) {
        // A card that fell off the bus takes the whole process with it, unless it is hidden.
        UNKNOWN
    } else {
        let _ = DRIVER.set(Driver { machine, devices });
        0
    }
}

/// The answer of one function about one device.
fn device(function: &str, ordinal: c_int, write: impl FnOnce(&Driver, &VisibleDevice) -> c_int) -> c_int {
    let Some(driver) = DRIVER.get() else { return NOT_INITIALIZED };
    if let Some(code) = enter(&driver.machine, function) {
        return code;
    }
    match usize::try_from(ordinal).ok().and_then(|ordinal| driver.devices.get(ordinal)) {
        Some(device) => write(driver, device),
        None => INVALID_DEVICE,
    }
}

/// Writes a C string; the caller's room must be large enough for it.
///
/// # Safety
/// `to` has room for `room` bytes.
unsafe fn text(text: &str, to: *mut c_char, room: c_int) -> c_int {
    if usize::try_from(room).is_ok_and(|room| room > text.len()) {
        // SAFETY: there is room for the text and its end.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len());
            to.add(text.len()).write(0);
        }
        0
    } else {
        INVALID_VALUE
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    let machine = Machine::of_this_process();
    if let Some(code) = enter(&machine, "cuDriverGetVersion") {
        return code;
    }
    // SAFETY: the caller gives a place for one number.
    unsafe { version.write(machine.cuda.cast_signed()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    let Some(driver) = DRIVER.get() else { return NOT_INITIALIZED };
    if let Some(code) = enter(&driver.machine, "cuDeviceGetCount") {
        return code;
    }
    // SAFETY: the caller gives a place for one number.
    unsafe { count.write(c_int::try_from(driver.devices.len()).unwrap_or(0)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(handle: *mut c_int, ordinal: c_int) -> c_int {
    device("cuDeviceGet", ordinal, |_, _| {
        // SAFETY: the caller gives a place for one number.
        unsafe { handle.write(ordinal) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, room: c_int, handle: c_int) -> c_int {
    device("cuDeviceGetName", handle, |driver, device| {
        let card = &driver.machine.cards[device.card];
        let full = device.mig.map_or_else(|| card.name.clone(), |_| format!("{} MIG", card.name));
        // SAFETY: the caller gives `room` bytes.
        unsafe { text(&full, name, room) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(address: *mut c_char, room: c_int, handle: c_int) -> c_int {
    device("cuDeviceGetPCIBusId", handle, |driver, device| {
        // SAFETY: the caller gives `room` bytes.
        unsafe { text(&driver.machine.cards[device.card].pci.to_string(), address, room) }
    })
}

/// The UUID of the card.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], handle: c_int) -> c_int {
    device("cuDeviceGetUuid", handle, |driver, device| {
        // SAFETY: the caller gives a place for a UUID.
        unsafe { uuid.write(uuid_bytes(&driver.machine.cards[device.card].uuid)) };
        0
    })
}

/// The UUID of the MIG device, where it is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], handle: c_int) -> c_int {
    device("cuDeviceGetUuid_v2", handle, |driver, device| {
        let card = &driver.machine.cards[device.card];
        let text = device.mig.map_or(&card.uuid, |mig| &card.mig[mig].uuid);
        // SAFETY: the caller gives a place for a UUID.
        unsafe { uuid.write(uuid_bytes(text)) };
        0
    })
}

fn uuid_bytes(text: &str) -> [u8; 16] {
    let digits: Vec<char> = text[4..].chars().filter(char::is_ascii_hexdigit).collect();
    let byte = |at: usize| {
        let digit = |at: usize| digits.get(at).and_then(|digit| digit.to_digit(16)).unwrap_or(0);
        u8::try_from(digit(2 * at) * 16 + digit(2 * at + 1)).unwrap_or(0)
    };
    std::array::from_fn(byte)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, handle: c_int) -> c_int {
    device("cuDeviceGetAttribute", handle, |driver, device| {
        let card = &driver.machine.cards[device.card];
        let found = match attribute {
            33 => Some(card.pci.bus),
            34 => Some(card.pci.device),
            50 => Some(card.pci.domain),
            75 => card.capability.map(|(major, _)| major),
            76 => card.capability.map(|(_, minor)| minor),
            _ => None,
        };
        let Some(found) = found else { return INVALID_VALUE };
        // SAFETY: the caller gives a place for one number.
        unsafe { value.write(found.cast_signed()) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, handle: c_int) -> c_int {
    device("cuDeviceTotalMem_v2", handle, |driver, device| {
        let card = &driver.machine.cards[device.card];
        let memory = device.mig.map_or(card.memory, |mig| card.mig[mig].memory);
        // SAFETY: the caller gives a place for one number.
        unsafe { bytes.write(usize::try_from(memory).unwrap_or(usize::MAX)) };
        0
    })
}

const fn words(code: c_int) -> (&'static CStr, &'static CStr) {
    match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        NOT_INITIALIZED => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        803 => (
            c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            c"system has unsupported display driver / cuda driver combination",
        ),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(words(code).0.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: c_int, to: *mut *const c_char) -> c_int {
    // SAFETY: the caller gives a place for one pointer.
    unsafe { to.write(words(code).1.as_ptr()) };
    0
}
