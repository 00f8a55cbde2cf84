//! A fake `libze_loader.so.1`: which devices a process sees, and in which order. It knows nothing of the launcher.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod visible;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::LazyLock;

use fake_machine::{Machine, announce, enter};
use visible::{Variables, VisibleDevice, visible};

const INVALID_ARGUMENT: c_int = 0x7800_0004;

#[used]
#[unsafe(link_section = ".init_array")]
static OPENED: extern "C" fn() = opened;

extern "C" fn opened() {
    announce("libze_loader.so.1");
}

/// The machine and what the process sees of it, settled by the first call.
static VISIBLE: LazyLock<(Machine, Vec<VisibleDevice>)> = LazyLock::new(|| {
    let machine = Machine::of_this_process();
    let [mask, hierarchy, pci_order] =
        ["ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"].map(variable);
    let variables =
        Variables { mask: mask.as_deref(), hierarchy: hierarchy.as_deref(), pci_order: pci_order.as_deref() };
    let devices = visible(&machine, variables);
    (machine, devices)
});

#[expect(clippy::disallowed_methods, reason = "the driver reads its variables in the process that opens it")]
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
extern "C" fn zeInit(_flags: c_uint) -> c_int {
    enter(&VISIBLE.0, "zeInit").unwrap_or(0)
}

/// Writes how many there are, or as many handles as there is room for.
///
/// # Safety
/// `count` may be read and written, and `handles` is null or has room for that many.
unsafe fn list(total: usize, count: *mut c_uint, handles: *mut usize) -> c_int {
    // SAFETY: as above.
    let room = unsafe { count.replace(c_uint::try_from(total).unwrap_or(0)) } as usize;
    if !handles.is_null() {
        for number in 0..room.min(total) {
            // SAFETY: there is room.
            unsafe { handles.add(number).write(number + 1) };
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDriverGet(count: *mut c_uint, handles: *mut usize) -> c_int {
    // SAFETY: the caller gives both places.
    unsafe { list(1, count, handles) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGet(_driver: usize, count: *mut c_uint, handles: *mut usize) -> c_int {
    // SAFETY: the caller gives both places.
    unsafe { list(VISIBLE.1.len(), count, handles) }
}

/// The beginning of `ze_pci_ext_properties_t`.
#[repr(C)]
struct PciProperties {
    kind: c_uint,
    next: *mut c_void,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    function: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeDevicePciGetPropertiesExt(device: usize, properties: *mut PciProperties) -> c_int {
    let Some(listed) = VISIBLE.1.get(device.wrapping_sub(1)) else { return INVALID_ARGUMENT };
    let pci = VISIBLE.0.cards[listed.card].pci;
    // SAFETY: the caller gives the structure.
    unsafe {
        (*properties).domain = pci.domain;
        (*properties).bus = pci.bus;
        (*properties).device = pci.device;
        (*properties).function = pci.function;
    }
    0
}

/// The beginning of `ze_device_properties_t`.
#[repr(C)]
struct DeviceProperties {
    kind: c_uint,
    next: *mut c_void,
    class: c_uint,
    vendor: c_uint,
    device: c_uint,
    flags: c_uint,
    subdevice: c_uint,
}

/// A tile says its number on the card.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeDeviceGetProperties(device: usize, properties: *mut DeviceProperties) -> c_int {
    let Some(listed) = VISIBLE.1.get(device.wrapping_sub(1)) else { return INVALID_ARGUMENT };
    // SAFETY: the caller gives the structure.
    unsafe { (*properties).subdevice = listed.tile.unwrap_or(0) };
    0
}
