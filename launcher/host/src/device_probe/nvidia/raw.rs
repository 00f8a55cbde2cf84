//! NVML functions that `nvml-wrapper` lacks, hides, or gets wrong: its remote device type of an `NVLink` never reaches
//! the caller. The signatures are those of its own bindings.
#![expect(unsafe_code, reason = "only the bindings have these functions")]

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try, nvml_try_count};

use rankrun_core::device::Memory;
use rankrun_core::device::reading::RemappedRows;

/// `nvmlDeviceGetMemoryInfo`, which drivers before R510 have alone.
pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the handle came from this library and lives; the structure is plain numbers, for which zero is a value,
    // and has the type that the binding asks for.
    let memory = unsafe {
        let mut memory = std::mem::zeroed();
        nvml_try(call(device.handle(), &raw mut memory))?;
        memory
    };
    Ok(Memory { total: memory.total, free: Some(memory.free) })
}

/// Calls `nvmlDeviceGetRemappedRows`; needs Ampere or newer.
pub(super) fn remapped_rows(device: &Device<'_>) -> Result<RemappedRows, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRemappedRows.as_ref())?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle came from this library and lives, and the four numbers live through the call.
    let code = unsafe {
        call(device.handle(), &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
    };
    nvml_try(code)?;
    let rows = u32::saturating_add(corrected, uncorrected);
    Ok(RemappedRows { rows, is_pending: pending != 0, has_failed: failed != 0 })
}

/// How many pages `nvmlDeviceGetRetiredPages` names for one cause (0: several single-bit errors, 1: a double-bit
/// error); the addresses are not asked for.
pub(super) fn retired_pages(device: &Device<'_>, cause: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRetiredPages.as_ref())?;
    let (mut count, mut address) = (0, 0);
    // SAFETY: the handle came from this library and lives; with a count of 0 the library writes the count alone, and
    // the place for addresses, which may not be null, has room for one all the same.
    let code = unsafe { call(device.handle(), cause, &raw mut count, &raw mut address) };
    nvml_try_count(code)?;
    Ok(count)
}

/// `nvmlDeviceGetNvLinkRemoteDeviceType`: 0 a GPU, 1 an NPU, 2 a switch, 255 unknown.
pub(super) fn remote_kind(device: &Device<'_>, link: u32) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = 255;
    // SAFETY: the handle came from this library and lives, and so does the number.
    nvml_try(unsafe { call(device.handle(), link, &raw mut kind) })?;
    Ok(kind)
}
