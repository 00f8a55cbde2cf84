//! Causes from PyTorch's messages about an abort, missing GPUs and shared memory. Pure.

use super::text::shown;
use super::{Clues, Program, Surroundings};
use rankrun_core::posix::Exit;

/// The exit code that a shell makes of an abort.
const ABORT_CODE: i32 = 128 + libc::SIGABRT;

/// A thread of gloo that wants Python while Python ends calls `std::terminate`.
pub(super) fn abort_at_exit(clues: &Clues<'_>, _: &dyn Surroundings) -> Option<String> {
    let aborted = match clues.exit {
        Exit::Signal { number, .. } => number == libc::SIGABRT,
        Exit::Code(code) => code == ABORT_CODE,
    };
    if !aborted || !ends_with_terminate(clues) {
        return None;
    }
    let destroy = "`torch.distributed.destroy_process_group()`";
    Some(match (clues.python_error(), clues.program) {
        (Some(error), _) => format!(
            "`{}` came first; a thread of PyTorch then probably aborted the end of Python: call {destroy} in a `finally`",
            shown(error)
        ),
        (None, Program::Python { .. }) => format!(
            "probably a thread of PyTorch was still at work when the script had ended: call `torch.distributed.barrier()` and \
             {destroy} at the end of the script"
        ),
        (None, Program::Other { .. }) => format!(
            "where it runs PyTorch, call {destroy} at the end of the script; in a C++ program probably a `std::thread` was \
             not joined"
        ),
    })
}

/// Whether the message of `std::terminate` is the last one. Python's stack and a shell's `Aborted` may follow.
fn ends_with_terminate(clues: &Clues<'_>) -> bool {
    let is_terminate = |line: &str| line.contains("terminate called without an active exception");
    let lines: Vec<&str> =
        clues.tail.iter().map(String::as_str).filter(|line| !line.trim().is_empty()).collect();
    let Some(at) = lines.iter().rposition(|line| is_terminate(line)) else { return false };
    lines.get(at + 1).is_none_or(|next| next.contains("Aborted"))
}

/// NCCL, or another part of PyTorch, that finds no GPU.
pub(super) fn missing_gpu(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let error = clues.python_error()?;
    let says = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
    if says(&["doesn't have NCCL built in"]) {
        return Some(
            "this PyTorch was built without NCCL: take the backend `gloo`, or install PyTorch with CUDA"
                .to_owned(),
        );
    }
    let nccl = says(&["only supported with GPUs, no GPUs found", "nccl2 requires at least one CUDA device"]);
    if nccl || says(&["No CUDA GPUs are available", "Found no NVIDIA driver on your system"]) {
        if let Some(value) = hides_gpus(surroundings) {
            return Some(format!(
                "`CUDA_VISIBLE_DEVICES={}` hides every GPU: unset it, or work on the CPUs (backend `gloo`)",
                shown(&value)
            ));
        }
        return Some(if nccl {
            "NCCL needs a GPU for each worker: without GPUs take the backend `gloo`; `rankrun devices` shows what this \
             machine has"
                .to_owned()
        } else {
            "PyTorch finds no GPU here: `rankrun devices` shows what this machine has; on the CPUs leave out `.cuda()` \
             and `cuda:`"
                .to_owned()
        });
    }
    if says(&["Torch not compiled with CUDA enabled"]) {
        return Some(
            "this PyTorch was built for CPUs alone: install PyTorch with CUDA, or leave out `.cuda()`"
                .to_owned(),
        );
    }
    let is_of_device = |(before, _): (&str, &str)| {
        ["CUDA error", "hipError", "HIP error"].iter().any(|name| before.contains(name))
    };
    error.split_once("invalid device ordinal").is_some_and(is_of_device).then(|| {
        "the script took the number of a GPU that its worker does not see: `LOCAL_RANK` counts them; \
         `--nproc-per-node gpu` starts no more workers than GPUs"
            .to_owned()
    })
}

fn hides_gpus(surroundings: &dyn Surroundings) -> Option<String> {
    let value = surroundings.variable("CUDA_VISIBLE_DEVICES")?;
    let is_none = value.trim().is_empty() || value.starts_with('-') || value == "NoDevFiles";
    is_none.then_some(value)
}

/// A process of a data loader that ended: PyTorch reports only its signal.
pub(super) fn data_loader(clues: &Clues<'_>, _: &dyn Surroundings) -> Option<String> {
    let error = clues.python_error().filter(|error| error.contains("DataLoader worker"))?;
    if error.contains("is killed by signal: Killed") {
        return Some(
            "a process of the data loader was killed, most often for want of memory (see `dmesg`): fewer `num_workers` or \
             smaller batches take less"
                .to_owned(),
        );
    }
    let crashed =
        error.contains("is killed by signal: Segmentation fault") || error.contains("exited unexpectedly");
    crashed.then(|| {
        "a process of the data loader ended, probably by a crash: `num_workers=0` runs it in the rank itself, where its \
         error is shown"
            .to_owned()
    })
}

const MORE_SHARED_MEMORY: &str =
    "a container gets more with `--shm-size`; a `DataLoader` needs none with `num_workers=0`";

/// `/dev/shm` was perhaps full, as a data loader reports it.
pub(super) fn shared_memory(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let of_loader = ["out of shared memory", "is killed by signal: Bus error"];
    let is_full = |line: &str| line.contains("</torch_") && line.contains("No space left on device");
    (clues.output_contains(&of_loader) || clues.lines().any(is_full)).then(|| {
        let size = size_of_shared_memory(surroundings);
        format!("the shared memory may have been full ({size}): {MORE_SHARED_MEMORY}")
    })
}

/// A page that `/dev/shm` has no room for ends in SIGBUS.
pub(super) fn bus_error(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    matches!(clues.exit, Exit::Signal { number: libc::SIGBUS, .. }).then(|| {
        let size = size_of_shared_memory(surroundings);
        format!("a bus error is most often full shared memory ({size}): {MORE_SHARED_MEMORY}")
    })
}

fn size_of_shared_memory(surroundings: &dyn Surroundings) -> String {
    match surroundings.shared_memory() {
        Some(bytes) => format!("`/dev/shm` has {} MiB", bytes >> 20),
        None => "see `df -h /dev/shm`".to_owned(),
    }
}
