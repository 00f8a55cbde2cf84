//! A machine with NVIDIA's GPUs that is not there: one file that is `libcuda.so.1`, `libnvrtc.so` and `libnccl.so.2`, for programs
//! that open these by name. It computes what real devices would; it tells nothing of their speed, and finds no races between
//! streams, since work is done when it is put on one.
//!
//! # How to use it
//! With this package as a dev-dependency: [`install`] it into a folder, and start the program with this folder as
//! `LD_LIBRARY_PATH` and with `FAKE_GPU=devices=2`. A program that looks for NCCL elsewhere first (`RANKRUN_NCCL`) must not.
//! Under the launcher, which itself opens NVML, `harness::Machine::gpus(2).computing()` does both:
//!
//! - **Devices** are numbers below `devices`; `CUDA_VISIBLE_DEVICES` chooses by number. Their memory is the process's own and
//!   begins as NaN. Contexts, streams, events, memory and functions are looked up in tables: what is unknown, freed or another
//!   device's is an error as CUDA has it, and a kernel that writes behind its memory ends the process when that is freed.
//! - **Kernels** are compiled by `cc` as C11 with CUDA's names for the index of a thread; so they must be written in what C and CUDA
//!   C++ have in common, each as `extern "C" __global__ void`. The threads of a launch run one after another: there is no
//!   shared memory, no `__syncthreads`, and of the atomics only `atomicAdd`. Arguments are numbers and pointers of any type.
//! - **NCCL** works among processes and threads of one machine, each rank on a device of its own. A call returns when all ranks
//!   have made it, or with an error once its communicator is aborted; nothing is left behind by ranks that are killed.
//!
//! Without the word `devices` there is one device that checks nothing: any address is its memory, any number a stream, and
//! the calls of a world of more than one rank exchange nothing. That is for tests of the watchdog over these calls.
//!
//! # What goes wrong on request
//! The variable `FAKE_GPU` has words of the form `what=value` with blanks between them, read at each call:
//!
//! ```text
//! devices=2                a machine with so many devices, see above
//! memory=1000000           bytes of each device; a gibibyte without it
//! pools=0                  devices have no memory pools, so that memory is not allocated in the order of a stream
//! host=a                   ranks with another name are on another machine, and may use a device of the same number
//! version=21700            what ncclGetVersion says
//! fail=ncclAllReduce:6     this function returns this code; `:6:3`: from its third call on
//! hang=ncclAllReduce       this function returns only when the communicator is aborted
//! freeze=ncclCommAbort     this function never returns
//! async=6                  ncclCommGetAsyncError reports this once a collective call was made
//! late=1                   asynchronous copies between host and device are done when the program waits for their stream:
//!                          until then NaN is at the host, and the source at the host must stay unchanged
//! stuck=1                  work on streams is not done before the communicator is aborted
//! slow=2                   communicators and calls are in progress for so many looks
//! busy=1                   calls are in progress for ever
//! absent=1                 ranks that never come: a communicator stays in progress
//! together=1               ranks of other processes count as having come
//! nodevice=1               the driver shows no device
//! ```
//!
//! `fail` is for functions of the driver and of NVRTC too.
#![expect(unsafe_code, reason = "a C library writes through its callers' pointers")]

mod compile;
mod device;
mod driver;
mod exchange;
mod faults;
mod late;
mod launch;
mod memory;
mod nccl;
mod nvrtc;
mod reduce;
mod stream;
mod wire;
mod world;

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The variable that says what there is, and what goes wrong.
pub const VARIABLE: &str = "FAKE_GPU";

/// The names under which programs open the library.
pub const NAMES: [&str; 5] = ["libcuda.so.1", "libcuda.so", "libnvrtc.so", "libnccl.so.2", "libnccl.so"];

/// Links the library into a folder under each of [`NAMES`]. For tests that Cargo has started: it lies beside these.
///
/// # Errors
/// The folder takes no link, or there is no such library.
pub fn install(folder: &Path) -> io::Result<()> {
    let library = std::env::current_exe()?.with_file_name("libfake_gpu.so").canonicalize()?;
    NAMES.iter().try_for_each(|name| symlink(&library, folder.join(name)))
}
