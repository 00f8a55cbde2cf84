//! The fake driver, as cudarc calls it: what real devices refuse it refuses too, and what they compute it computes.

#![expect(unsafe_code, reason = "launches kernels, and hands wrong addresses to the driver")]
#![expect(clippy::disallowed_methods, reason = "the test starts itself again, with the fake as its driver")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::process::{Command, Output};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg, result,
};
use cudarc::nvrtc::{CompileError, compile_ptx};

/// Says to this program, started once more, what it is to do.
const ROLE: &str = "FAKE_GPU_TEST_ROLE";

const KERNELS: &str = r#"
// Adds `what` to each of `count` numbers.
extern "C" __global__ void add(float *to, float what, int count)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        to[at] += what;
    }
}

// Where each thread of a launch of three dimensions is.
extern "C" __global__ void places(unsigned *to)
{
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    atomicAdd(to + at, at);
}
"#;

/// This program with the fake as its driver, in a role.
fn play(role: &str, orders: &str) -> Output {
    let folder =
        std::env::temp_dir().join(format!("rankrun-fake-gpu-{}-{role}-{}", std::process::id(), orders.len()));
    std::fs::create_dir(&folder).unwrap();
    fake_gpu::install(&folder).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "main_of_the_started_process", "--nocapture", "--test-threads=1"]);
    again.env_clear().env(ROLE, role).env("LD_LIBRARY_PATH", &folder).env(fake_gpu::VARIABLE, orders);
    let output = again.output().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    output
}

#[track_caller]
fn plays(role: &str, orders: &str) {
    let Output { status, stdout, stderr } = play(role, orders);
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("1 passed"), "{role}: {status}: {stdout}{stderr}");
}

#[test]
fn main_of_the_started_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("kernels") => kernels(),
        Ok("errors") => errors(),
        Ok("memory") => memory(),
        Ok("contexts") => contexts(),
        Ok("overrun") => overrun(),
        _ => {}
    }
}

fn open(ordinal: usize) -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(ordinal).unwrap();
    let stream = context.new_stream().unwrap();
    (context, stream)
}

fn kernel(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    context.load_module(compile_ptx(KERNELS).unwrap()).unwrap().load_function(name).unwrap()
}

#[track_caller]
fn assert_is<T>(outcome: Result<T, DriverError>, expected: CUresult) {
    assert_eq!(outcome.err().map(|error| error.0), Some(expected));
}

fn kernels() {
    let (context, stream) = open(1);
    let add = kernel(&context, "add");
    let mut data = stream.clone_htod(&[1.0_f32; 2000]).unwrap();
    let (what, count) = (0.5_f32, 1999_i32);
    let mut launch = stream.launch_builder(&add);
    launch.arg(&mut data).arg(&what).arg(&count);
    // SAFETY: these are the arguments of the kernel.
    unsafe { launch.launch(LaunchConfig::for_num_elems(2000)) }.unwrap();
    let sums = stream.clone_dtoh(&data).unwrap();
    assert!(sums[..1999].iter().all(|sum| *sum == 1.5) && sums[1999] == 1.0);

    let places = kernel(&context, "places");
    let mut data = stream.alloc_zeros::<u32>(2 * 3 * 4 * 5 * 6 * 7).unwrap();
    let size = LaunchConfig { grid_dim: (2, 3, 4), block_dim: (5, 6, 7), shared_mem_bytes: 0 };
    // SAFETY: as above.
    unsafe { stream.launch_builder(&places).arg(&mut data).launch(size) }.unwrap();
    let expected: Vec<u32> = (0..2 * 3 * 4 * 5 * 6 * 7).collect();
    assert_eq!(stream.clone_dtoh(&data).unwrap(), expected);

    let log = match compile_ptx("extern \"C\" __global__ void wrong(int a)\n{\n    b = 1;\n}") {
        Err(CompileError::CompileError { log, .. }) => log.into_string().unwrap(),
        other => panic!("{other:?}"),
    };
    assert!(log.contains("default_program:3:") && log.contains("'b' undeclared"), "{log}");
}

fn errors() {
    assert_is(CudaContext::new(2), CUresult::CUDA_ERROR_INVALID_DEVICE);
    let ((one, on_one), (other, on_other)) = (open(0), open(1));
    let add = kernel(&one, "add");
    let (what, count) = (1.0_f32, 1_i32);
    let mut own = on_one.clone_htod(&[1.0_f32]).unwrap();
    let mut foreign = on_other.clone_htod(&[1.0_f32]).unwrap();
    let launch = |stream: &CudaStream, data: &mut cudarc::driver::CudaSlice<f32>, size: LaunchConfig| {
        // SAFETY: the arguments are those of the kernel, and wrong sizes and devices are refused before it runs.
        unsafe { stream.launch_builder(&add).arg(data).arg(&what).arg(&count).launch(size) }
    };
    let size = LaunchConfig::for_num_elems(1);
    assert_is(launch(&on_one, &mut foreign, size), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_is(launch(&on_other, &mut foreign, size), CUresult::CUDA_ERROR_INVALID_HANDLE);
    for (grid_dim, block_dim, shared_mem_bytes) in [
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (32, 33, 1), 0),
        ((1, 65_536, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 1, 1), 1 << 20),
    ] {
        let size = LaunchConfig { grid_dim, block_dim, shared_mem_bytes };
        assert_is(launch(&on_one, &mut own, size), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let module = one.load_module(compile_ptx(KERNELS).unwrap()).unwrap();
    assert_is(module.load_function("nothing"), CUresult::CUDA_ERROR_NOT_FOUND);
    assert_is(one.load_module("no ptx".into()), CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(on_one.clone_dtoh(&own).unwrap(), [1.0]);

    // Streams wait for events of any device; events are recorded on streams of their own.
    on_one.join(&on_other).unwrap();
    let event = other.new_event(None).unwrap();
    other.bind_to_thread().unwrap();
    // SAFETY: both are there.
    let recorded = unsafe { result::event::record(event.cu_event(), on_one.cu_stream()) };
    assert_is(recorded, CUresult::CUDA_ERROR_INVALID_HANDLE);
}

fn memory() {
    let ((one, on_one), (other, on_other)) = (open(0), open(1));
    // SAFETY: its numbers are only looked at.
    let fresh = unsafe { on_one.alloc::<f32>(3) }.unwrap();
    assert!(on_one.clone_dtoh(&fresh).unwrap().iter().all(|number| number.is_nan()));
    let address = fresh.device_ptr(&on_one).0;
    let read = |address: u64, bytes: usize| {
        one.bind_to_thread().unwrap();
        // SAFETY: what is not the device's is refused.
        unsafe { result::memcpy_dtoh_sync(&mut vec![0_u8; bytes], address) }
    };
    assert_is(read(address, 13), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_is(read(address + 12, 1), CUresult::CUDA_ERROR_INVALID_VALUE);
    read(address + 8, 4).unwrap();
    drop(fresh);
    assert_is(read(address, 1), CUresult::CUDA_ERROR_INVALID_VALUE);

    // From device to device, and by a pinned copy on the host.
    let source = on_one.clone_htod(&[1_u32, 2, 3]).unwrap();
    let mut copy = on_other.alloc_zeros::<u32>(3).unwrap();
    on_other.memcpy_dtod(&source, &mut copy).unwrap();
    // SAFETY: it is filled before it is read.
    let mut pinned = unsafe { other.alloc_pinned::<u32>(3) }.unwrap();
    on_other.memcpy_dtoh(&copy, &mut pinned).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [1, 2, 3]);
    let (free, total) = one.mem_get_info().unwrap();
    assert_eq!((total - free, total), (12, 1000));
    assert_is(on_one.alloc_zeros::<u8>(989), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    if one.has_async_alloc() {
        assert_eq!(on_one.null::<u8>().unwrap().len(), 0);
    }
}

/// With the last owner of a context all that is in it is gone.
fn contexts() {
    result::init().unwrap();
    let device = result::device::get(0).unwrap();
    // SAFETY: only the driver gets the address.
    unsafe {
        assert_is(result::malloc_sync(4), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        let context = result::primary_ctx::retain(device).unwrap();
        result::ctx::set_current(context).unwrap();
        let address = result::malloc_sync(4).unwrap();
        result::primary_ctx::retain(device).unwrap();
        result::primary_ctx::release(device).unwrap();
        result::memset_d8_sync(address, 0, 4).unwrap();
        result::primary_ctx::release(device).unwrap();
        assert_is(result::memset_d8_sync(address, 0, 4), CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        assert_is(result::ctx::set_current(context), CUresult::CUDA_ERROR_INVALID_CONTEXT);
        result::primary_ctx::retain(device).unwrap();
        assert_is(result::memset_d8_sync(address, 0, 4), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

/// A kernel that writes one number too many.
fn overrun() {
    let (context, stream) = open(0);
    let add = kernel(&context, "add");
    let mut data = stream.alloc_zeros::<f32>(4).unwrap();
    let (what, count) = (1.0_f32, 5_i32);
    let mut launch = stream.launch_builder(&add);
    launch.arg(&mut data).arg(&what).arg(&count);
    // SAFETY: the fake has room behind the memory.
    unsafe { launch.launch(LaunchConfig::for_num_elems(5)) }.unwrap();
    drop(data);
}

#[test]
fn kernels_are_compiled_and_run_for_every_thread() {
    plays("kernels", "devices=2");
}

#[test]
fn invalid_launches_are_refused_like_on_real_devices() {
    plays("errors", "devices=2");
}

#[test]
fn memory_belongs_to_devices() {
    plays("memory", "devices=2 memory=1000");
    plays("memory", "devices=2 memory=1000 pools=0");
}

#[test]
fn context_lives_while_retained() {
    plays("contexts", "devices=1");
}

#[test]
fn kernel_write_out_of_bounds_ends_process() {
    let Output { status, stderr, .. } = play("overrun", "devices=1");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && stderr.contains("something was written behind 16 bytes"), "{stderr}");
}
