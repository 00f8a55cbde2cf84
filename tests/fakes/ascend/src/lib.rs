//! A fake `libascendcl.so`: which devices a process sees. It knows nothing of the launcher.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

use std::ffi::{c_char, c_int, c_uint};
use std::sync::LazyLock;

use fake_machine::{Machine, Vendor, announce, enter};

const INVALID_DEVICE: c_int = 107_001;

#[used]
#[unsafe(link_section = ".init_array")]
static OPENED: extern "C" fn() = opened;

extern "C" fn opened() {
    announce("libascendcl.so");
}

/// The machine and the numbers of the devices that the process sees, settled by the first call.
static VISIBLE: LazyLock<(Machine, Vec<usize>)> = LazyLock::new(|| {
    let machine = Machine::of_this_process();
    let devices =
        visible(machine.of(Vendor::Ascend).count(), variable("ASCEND_RT_VISIBLE_DEVICES").as_deref());
    (machine, devices)
});

#[expect(clippy::disallowed_methods, reason = "the runtime reads its variable in the process that opens it")]
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// By the rules of the *CANN documentation*, "`ASCEND_RT_VISIBLE_DEVICES`"; a list that does not ascend ends there.
fn visible(count: usize, list: Option<&str>) -> Vec<usize> {
    let Some(list) = list else { return (0..count).collect() };
    let end = list.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(list.len());
    let mut numbers: Vec<usize> = Vec::new();
    for entry in list[..end].split(',') {
        match entry.parse() {
            Ok(number) if number < count && numbers.last().is_none_or(|last| *last < number) => {
                numbers.push(number);
            }
            _ => break,
        }
    }
    numbers
}

#[unsafe(no_mangle)]
extern "C" fn aclInit(_configuration: *const c_char) -> c_int {
    enter(&VISIBLE.0, "aclInit").unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtGetDeviceCount(count: *mut c_uint) -> c_int {
    // SAFETY: the caller gives a place for one number.
    unsafe { count.write(c_uint::try_from(VISIBLE.1.len()).unwrap_or(0)) };
    0
}

/// The number of the device on the machine.
#[unsafe(no_mangle)]
unsafe extern "C" fn aclrtGetPhyDevIdByLogicDevId(logical: c_int, physical: *mut c_int) -> c_int {
    let number = usize::try_from(logical).ok().and_then(|logical| VISIBLE.1.get(logical));
    let Some(number) = number.and_then(|number| c_int::try_from(*number).ok()) else { return INVALID_DEVICE };
    // SAFETY: the caller gives a place for one number.
    unsafe { physical.write(number) };
    0
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn visible_devices_follow_ascend_rules() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(8, Some("1, 2,3")), [1]);
        assert_eq!(visible(8, Some("1,3,8")), [1, 3]);
        assert_eq!(visible(8, Some("3,1")), [3]);
    }
}
