//! A fake `libamdhip64.so`: which devices a process sees, and in which order. It knows nothing of the launcher.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod visible;

use std::ffi::{c_char, c_int};
use std::sync::LazyLock;

use fake_machine::{Machine, announce, enter};
use visible::{Variables, visible};

const INVALID_VALUE: c_int = 1;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;

#[used]
#[unsafe(link_section = ".init_array")]
static OPENED: extern "C" fn() = opened;

extern "C" fn opened() {
    announce("libamdhip64.so");
}

/// The machine and what the process sees of it, settled by the first call.
static VISIBLE: LazyLock<(Machine, Vec<usize>)> = LazyLock::new(|| {
    let machine = Machine::of_this_process();
    let [rocr, hip, cuda] =
        ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"].map(variable);
    let variables = Variables { rocr: rocr.as_deref(), hip: hip.as_deref(), cuda: cuda.as_deref() };
    let devices = visible(&machine, variables);
    (machine, devices)
});

#[expect(clippy::disallowed_methods, reason = "the runtime reads its variables in the process that opens it")]
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> c_int {
    let (machine, nodes) = &*VISIBLE;
    if let Some(code) = enter(machine, "hipGetDeviceCount") {
        return code;
    }
    // SAFETY: the caller gives a place for one number.
    unsafe { count.write(c_int::try_from(nodes.len()).unwrap_or(0)) };
    if nodes.is_empty() { NO_DEVICE } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetPCIBusId(address: *mut c_char, room: c_int, device: c_int) -> c_int {
    let (machine, nodes) = &*VISIBLE;
    let Some(position) = usize::try_from(device).ok().and_then(|device| nodes.get(device)) else {
        return INVALID_DEVICE;
    };
    let text = machine.cards[*position].pci.to_string();
    if usize::try_from(room).is_ok_and(|room| room > text.len()) {
        // SAFETY: the caller gives `room` bytes, and the text with its end is not longer.
        unsafe {
            text.as_ptr().copy_to_nonoverlapping(address.cast(), text.len());
            address.add(text.len()).write(0);
        }
        0
    } else {
        INVALID_VALUE
    }
}
