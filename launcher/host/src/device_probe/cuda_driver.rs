//! The CUDA driver: the only source for its own order of devices, and the second source where there is no NVML.
//!
//! Its library is found and loaded by cudarc. The functions are taken from it by name, with plain numbers as return
//! types: a function that an older driver lacks is then an error and not a panic, and an error code that is newer
//! than the bindings is a number and not an enum value that does not exist.
#![expect(unsafe_code, reason = "calls into the driver's library")]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic;
use std::ptr;

use cudarc::driver::sys::{culib, is_culib_present};
use uuid::Uuid;

use rankrun_core::device::{CudaDevice, CudaOrder};

/// More devices than any machine has; a higher count is not a valid answer.
const MAX_DEVICES: c_int = 256;

/// Bytes for a name or an address, with the NUL.
const TEXT: usize = 256;

/// The driver's devices, in the order of its ordinals under this process's own environment.
///
/// Nothing is set here: the driver reads `CUDA_DEVICE_ORDER` and `CUDA_VISIBLE_DEVICES` when it initialises, and the
/// parent of the probe has set them.
///
/// # Errors
/// The driver's error text, or ours if there is no driver.
pub(crate) fn cuda_devices_in_order() -> CudaOrder {
    catch_panic(|| {
        // SAFETY: a driver's library may be loaded in any process; its constructors affect this probe alone.
        if !unsafe { is_culib_present() } {
            return Err("there is no CUDA driver: the loader finds no `libcuda.so.1`".to_owned());
        }
        let driver = CudaDriver::load()?;
        driver.init()?;
        (0..driver.count()?).map(|ordinal| driver.device(ordinal)).collect()
    })
}

/// The functions that are called. `CUdevice` and `CUresult` are C ints.
struct CudaDriver {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    /// `_v2` gives the UUID of a MIG device where there is one; drivers before R470 have only the older one.
    uuid: unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int,
    pci: Option<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>,
    error: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
}

impl CudaDriver {
    fn load() -> Result<Self, String> {
        // SAFETY: each type is that of the driver's header for this name, with ints for its enums.
        unsafe {
            Ok(Self {
                init: function("cuInit")?,
                count: function("cuDeviceGetCount")?,
                get: function("cuDeviceGet")?,
                name: function("cuDeviceGetName")?,
                uuid: function("cuDeviceGetUuid_v2").or_else(|_| function("cuDeviceGetUuid"))?,
                pci: function("cuDeviceGetPCIBusId").ok(),
                error: function("cuGetErrorString").ok(),
            })
        }
    }

    fn init(&self) -> Result<(), String> {
        // SAFETY: the flags must be 0.
        self.check_cuda_result("cuInit", unsafe { (self.init)(0) })
    }

    fn count(&self) -> Result<c_int, String> {
        let mut count = 0;
        // SAFETY: the number lives through the call.
        self.check_cuda_result("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        match count {
            0..=MAX_DEVICES => Ok(count),
            _ => Err(format!("`cuDeviceGetCount` counts `{count}` devices")),
        }
    }

    fn device(&self, ordinal: c_int) -> Result<CudaDevice, String> {
        let mut device = 0;
        // SAFETY: the number lives through the call.
        self.check_cuda_result("cuDeviceGet", unsafe { (self.get)(&raw mut device, ordinal) })?;
        let mut uuid = [0; 16];
        // SAFETY: a UUID is 16 bytes, and they live through the call.
        self.check_cuda_result("cuDeviceGetUuid", unsafe { (self.uuid)(&raw mut uuid, device) })?;
        let name = self.text("cuDeviceGetName", self.name, device)?;
        let pci = self.pci.and_then(|pci| self.text("cuDeviceGetPCIBusId", pci, device).ok()?.parse().ok());
        Ok(CudaDevice { uuid: uuid_text(uuid, &name), pci, name })
    }

    fn text(
        &self,
        what: &str,
        call: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
        device: c_int,
    ) -> Result<String, String> {
        let mut bytes = [0_u8; TEXT];
        // SAFETY: `call` gets one byte less than the buffer has.
        let code = unsafe { call(bytes.as_mut_ptr().cast(), TEXT as c_int - 1, device) };
        self.check_cuda_result(what, code)?;
        let text = CStr::from_bytes_until_nul(&bytes).map_err(|_| format!("`{what}` gives no text"))?;
        Ok(text.to_string_lossy().chars().filter(|c| !c.is_control()).collect())
    }

    fn check_cuda_result(&self, function: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let message = self.error.and_then(|error| {
            let mut text = ptr::null();
            // SAFETY: the pointer lives through the call, and the driver sets it to a constant text of its own.
            unsafe {
                (error(code, &raw mut text) == 0 && !text.is_null())
                    .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        });
        Err(match message {
            Some(message) => format!("`{function}`: {message} (error {code})"),
            None => format!("`{function}`: error {code}"),
        })
    }
}

/// The function `name` of the driver's library.
///
/// # Safety
/// `F` must be the function pointer type that the library has under this name.
unsafe fn function<F: Copy>(name: &str) -> Result<F, String> {
    // SAFETY: the library stays loaded for the rest of the process; the type is the caller's promise.
    let found = unsafe { culib().get::<F>(name.as_bytes()) };
    found.map(|found| *found).map_err(|_| format!("the CUDA driver has no `{name}`"))
}

/// The UUID as `nvidia-smi -L` writes it. Its bytes do not distinguish a card from a MIG device, so the name decides:
/// a MIG device is `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn uuid_text(bytes: [u8; 16], name: &str) -> String {
    let prefix = if name.split(' ').any(|word| word == "MIG") { "MIG" } else { "GPU" };
    format!("{prefix}-{}", Uuid::from_bytes(bytes).hyphenated())
}

/// Runs it; a panic becomes its words and is not printed. cudarc panics where a library vanishes between two looks.
fn catch_panic<T>(run: impl FnOnce() -> Result<T, String> + panic::UnwindSafe) -> Result<T, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let outcome = panic::catch_unwind(run);
    panic::set_hook(hook);
    outcome.unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(|s| &**s));
    message.unwrap_or("the CUDA driver's library could not be used").to_owned()
}

#[cfg(test)]
mod tests {
    use crate::device_probe::cuda_driver::*;

    const BYTES: [u8; 16] =
        [0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 0x41, 0x06, 0xc1, 0x2f, 0x20, 0xbd, 0x9f, 0xae, 0xd9, 0xf6];

    #[test]
    fn gpu_uuid_is_formatted_like_nvidia_smi() {
        assert_eq!(uuid_text(BYTES, "NVIDIA H100"), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
    }

    #[test]
    fn mig_device_name_gives_mig_uuid_prefix() {
        let name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
        assert_eq!(uuid_text(BYTES, name), "MIG-8932f937-d72c-4106-c12f-20bd9faed9f6");
        assert_eq!(uuid_text(BYTES, "NVIDIA MIGHTY"), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
    }

    #[test]
    fn panic_becomes_error_with_its_message() {
        assert_eq!(catch_panic(|| Ok(3)), Ok(3));
        assert_eq!(
            catch_panic::<()>(|| panic!("Missing symbol cuInit")),
            Err("Missing symbol cuInit".to_owned())
        );
        let name = "cuInit";
        assert_eq!(
            catch_panic::<()>(|| panic!("Missing symbol {name}")),
            Err("Missing symbol cuInit".to_owned())
        );
    }
}
