//! NCCL on a real GPU, in a world of one: operations and types, errors, aborts, deadlines,
//! and the cost of a call.
//!
//! Without a GPU or NCCL it says so and passes; with `RANKRUN_TEST_GPU=1` that is a failure. It ignores its
//! arguments, so `cargo test` runs it like any other test.

#![expect(unsafe_code, reason = "device memory is raw memory")]
#![expect(clippy::print_stdout, reason = "a program that reports")]
#![expect(clippy::disallowed_methods, reason = "it measures, and looks whether it must not be skipped")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use rankrun_worker::cuda::cuda_context;
use rankrun_worker::process_group::nccl::{Communicator, Nccl, NcclCalls, NcclError, NcclGroup};
use rankrun_worker::process_group::{
    Collective, DataType, DeviceCollective, DeviceMemory, Element, GroupFailure, ProcessGroup, Stream, bf16,
    f16,
};
use rankrun_worker::{GroupError, GroupOptions, Rank, ReduceOp, WorkerContext, WorldSize};

const TIMEOUT: Duration = Duration::from_secs(60);
const ALONE: (Rank, WorldSize) = (Rank(0), WorldSize::ONE);

fn main() {
    // Tools that ask for a list of tests get an empty one.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let gpu = cuda_context(0).map_err(|error| format!("{error}; {}", error.hint()));
    let nccl = Nccl::load(None).map_err(|error| format!("{error}; {}", error.hint()));
    let (gpu, nccl) = match (gpu, nccl) {
        (Ok(gpu), Ok(nccl)) => (gpu, nccl),
        (gpu, nccl) => {
            let why: Vec<_> = [gpu.err(), nccl.err()].into_iter().flatten().collect();
            println!("SKIPPED: NCCL on a GPU: {}", why.join("\nand "));
            assert!(std::env::var_os("RANKRUN_TEST_GPU").is_none(), "RANKRUN_TEST_GPU wants it run");
            return;
        }
    };
    println!("{nccl:?} on {}", gpu.name().unwrap());
    let stream = gpu.new_stream().unwrap();
    operations(&stream);
    wrong_calls(&nccl, &stream);
    two_ranks_on_one_device(&nccl);
    a_rank_that_never_comes(&nccl);
    ends(&nccl, &stream);
    cost(&nccl, &stream);
    println!("all of NCCL on a GPU: ok");
}

fn join() -> NcclGroup {
    let options = GroupOptions { timeout: TIMEOUT, ..GroupOptions::default() };
    NcclGroup::join(&WorkerContext::single_process(), &options, None).unwrap()
}

fn raw(stream: &CudaStream) -> Stream {
    Stream(stream.cu_stream().cast::<c_void>())
}

/// Device memory with values.
struct Values {
    slice: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

impl Values {
    fn new<T: Element>(stream: &Arc<CudaStream>, values: &[T]) -> Self {
        let slice = stream.clone_htod(bytemuck::cast_slice::<T, u8>(values)).unwrap();
        Self { slice, stream: Arc::clone(stream) }
    }

    fn zeros(stream: &Arc<CudaStream>, bytes: usize) -> Self {
        Self { slice: stream.alloc_zeros(bytes).unwrap(), stream: Arc::clone(stream) }
    }

    fn memory(&mut self) -> DeviceMemory {
        let bytes = self.slice.len();
        let (address, _sync) = self.slice.device_ptr_mut(&self.stream);
        DeviceMemory { address, bytes }
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = self.stream.clone_dtoh(&self.slice).unwrap();
        // Until then the copy may be under way.
        self.stream.synchronize().unwrap();
        bytes
    }
}

fn operations(stream: &Arc<CudaStream>) {
    let start = Instant::now();
    let mut group = join();
    println!("init: {:.1?}", start.elapsed());
    let short = [1.5_f32, -2.0, 0.0, f32::INFINITY, 65504.0];
    every_operation(&mut group, stream, &short.map(f16::from_f32));
    every_operation(&mut group, stream, &short.map(bf16::from_f32));
    every_operation(&mut group, stream, &short);
    every_operation(&mut group, stream, &[1.5_f64, f64::MIN, f64::MAX, -0.0, 3.0]);
    every_operation(&mut group, stream, &[1_i32, i32::MIN, i32::MAX, 0, -7]);
    every_operation(&mut group, stream, &[1_i64, i64::MIN, i64::MAX, 0, -7]);
    every_operation(&mut group, stream, &[1_u8, 255, 0, 128, 7]);
    group.run(DataType::None, Collective::Barrier).unwrap();
    let start = Instant::now();
    group.leave();
    drop(group);
    println!("leave: {:.1?}", start.elapsed());
}

fn every_operation<T: Element>(group: &mut NcclGroup, stream: &Arc<CudaStream>, values: &[T]) {
    let (kind, root, counts) = (T::DATA_TYPE, Rank(0), [values.len()]);
    let expected: &[u8] = bytemuck::cast_slice(values);
    let put = |group: &mut NcclGroup, works: &[(DataType, DeviceCollective<'_>)]| {
        // SAFETY: the memory lives until `wait` has returned, and no other code uses it.
        unsafe { group.run_grouped(works, raw(stream)).and_then(|()| group.synchronize(raw(stream))) }
            .unwrap();
    };
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min] {
        let mut data = Values::new(stream, values);
        put(group, &[(kind, Collective::AllReduce { data: data.memory(), op })]);
        put(group, &[(kind, Collective::Reduce { data: data.memory(), op, root })]);
        let mut output = Values::zeros(stream, expected.len());
        let (input, output_memory) = (data.memory(), output.memory());
        put(group, &[(kind, Collective::ReduceScatter { input, output: output_memory, op })]);
        assert_eq!((data.bytes(), output.bytes()), (expected.to_vec(), expected.to_vec()), "{kind} {op}");
    }
    let mut data = Values::new(stream, values);
    let input = data.memory();
    put(group, &[(kind, Collective::Broadcast { data: input, root })]);
    let mut arrives = |works: &dyn Fn(DeviceMemory) -> Vec<(DataType, DeviceCollective<'static>)>| {
        let mut output = Values::zeros(stream, expected.len());
        put(group, &works(output.memory()));
        assert_eq!(output.bytes(), expected, "{kind}");
    };
    arrives(&|output| vec![(kind, Collective::AllGather { input, output })]);
    arrives(&|data| {
        vec![
            (kind, Collective::Send { data: input, to: root }),
            (kind, Collective::Receive { data, from: root }),
        ]
    });
    let mut output = Values::zeros(stream, expected.len());
    let memory = output.memory();
    put(group, &[(kind, Collective::Gather { input, output: Some(memory), counts: &counts, root })]);
    assert_eq!(output.bytes(), expected, "{kind}");
    let mut output = Values::zeros(stream, expected.len());
    let memory = output.memory();
    put(group, &[(kind, Collective::Scatter { input: Some(input), output: memory, counts: &counts, root })]);
    assert_eq!(output.bytes(), expected, "{kind}");
    println!("{kind}: every operation");
}

fn wrong_calls(nccl: &Nccl, stream: &Arc<CudaStream>) {
    let communicator = Communicator::init(nccl, &nccl.unique_id().unwrap(), ALONE, TIMEOUT).unwrap();
    let mut data = Values::zeros(stream, 16);
    let memory = data.memory();
    // SAFETY: NCCL looks at the root before it looks at the memory, which is there anyway.
    let call =
        |calls: &NcclCalls<'_>| unsafe { calls.broadcast(DataType::F32, memory, Rank(7), raw(stream)) };
    let error = communicator.call(call).unwrap_err();
    println!("a root that is not there: {error}");
    assert!(matches!(error, NcclError::Call { function: "ncclBroadcast", .. }), "{error}");
    let mut group = join();
    let work = Collective::Broadcast { data: memory, root: Rank(7) };
    // SAFETY: as above.
    let error = unsafe { group.run_on_device(DataType::F32, work, raw(stream)) }.unwrap_err();
    assert!(matches!(error, GroupError::NoSuchRank { .. }), "{error}");
}

fn two_ranks_on_one_device(nccl: &Nccl) {
    let (id, world) = (nccl.unique_id().unwrap(), WorldSize::new(2).unwrap());
    let errors = std::thread::scope(|scope| {
        let init = |rank| {
            move || {
                cuda_context(0).unwrap();
                Communicator::init(nccl, &id, (Rank(rank), world), TIMEOUT).unwrap_err()
            }
        };
        let ranks = [scope.spawn(init(0)), scope.spawn(init(1))];
        ranks.map(|rank| rank.join().unwrap())
    });
    println!("two ranks on one device: {}", errors[0]);
}

fn a_rank_that_never_comes(nccl: &Nccl) {
    let (id, world, timeout) =
        (nccl.unique_id().unwrap(), WorldSize::new(2).unwrap(), Duration::from_secs(2));
    let start = Instant::now();
    let error = Communicator::init(nccl, &id, (Rank(0), world), timeout).unwrap_err();
    println!("a rank that never comes: {error}, after {:.1?}", start.elapsed());
    assert!(matches!(error, NcclError::Timeout { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(8));
}

/// Aborts and drops, with work under way, from this and from another thread.
fn ends(nccl: &Nccl, stream: &Arc<CudaStream>) {
    let mut data = Values::zeros(stream, 256 << 20);
    let mut other = Values::zeros(stream, 256 << 20);
    let (from, to) = (data.memory(), other.memory());
    for by_another_thread in [false, true] {
        let communicator = Communicator::init(nccl, &nccl.unique_id().unwrap(), ALONE, TIMEOUT).unwrap();
        // SAFETY: both live until the stream is done, at the end of this function.
        let call = |calls: &NcclCalls<'_>| unsafe {
            calls.all_reduce((DataType::F32, ReduceOp::Sum), from, to, raw(stream))
        };
        (0..20).for_each(|_| communicator.call(call).unwrap());
        let start = Instant::now();
        if by_another_thread {
            std::thread::scope(|scope| scope.spawn(|| communicator.abort()).join()).unwrap();
        } else {
            communicator.abort();
        }
        println!("abort with work under way: {:.1?}", start.elapsed());
        let error = communicator.call(call).unwrap_err();
        assert!(matches!(error, NcclError::Aborted { .. }), "{error}");
    }
    stream.synchronize().unwrap();
    let mut group = join();
    group.communicator().unwrap().abort();
    let work = Collective::AllReduce { data: from, op: ReduceOp::Sum };
    // SAFETY: as above.
    let error = unsafe { group.run_on_device(DataType::F32, work, raw(stream)) }.unwrap_err();
    println!("a call after an abort: {error}");
    let GroupError::Failed { failure: GroupFailure::RankFailed { .. }, .. } = error else {
        panic!("{error}")
    };
    stream.synchronize().unwrap();
}

type AllReduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;

/// What a call costs beside NCCL's own `ncclAllReduce` of `f32`, in the same process and taking turns.
fn cost(nccl: &Nccl, stream: &Arc<CudaStream>) {
    // SAFETY: it is loaded already, and this is the function's type in `nccl.h`.
    let library = unsafe { libloading::Library::new(nccl.path()) }.unwrap();
    // SAFETY: as above.
    let bare: AllReduce = *unsafe { library.get("ncclAllReduce") }.unwrap();
    let mut group = join();
    println!("\none all_reduce (sum, f32), microseconds: until it is on the stream, and until it is done");
    println!("{:>10} {:>9} {:>9} {:>7}   {:>9} {:>9} {:>7}", "bytes", "raw", "ours", "", "raw", "ours", "");
    for bytes in [4 << 10, 256 << 10, 4 << 20, 64 << 20, 512 << 20] {
        let (mut from, mut to) = (Values::zeros(stream, bytes), Values::zeros(stream, bytes));
        let (from, to) = (from.memory(), to.memory());
        let communicator = group.communicator().unwrap();
        let calls = if bytes > 1 << 20 { 200 } else { 2000 };
        let (mut raws, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            raws.push(time(calls, stream, |_| {
                communicator
                    .call(|inside| {
                        for _ in 0..calls {
                            // SAFETY: memory and stream live until the stream is done, at the end of `time`.
                            let code = unsafe {
                                let (handle, stream) = (inside.handle(), raw(stream).0);
                                bare(from.address, to.address, bytes / 4, 7, 0, handle, stream)
                            };
                            assert_eq!(code, 0, "a world of one is done at once");
                        }
                        Ok(())
                    })
                    .unwrap();
            }));
            ours.push(time(calls, stream, |_| {
                for _ in 0..calls {
                    // SAFETY: as above.
                    let call = |inside: &NcclCalls<'_>| unsafe {
                        inside.all_reduce((DataType::F32, ReduceOp::Sum), from, to, raw(stream))
                    };
                    communicator.call(call).unwrap();
                }
            }));
        }
        let (raws, ours) = (medians(raws), medians(ours));
        let percent = |at: fn(&(f64, f64)) -> f64| (at(&ours) / at(&raws) - 1.0) * 100.0;
        let (put, done) = (percent(|times| times.0), percent(|times| times.1));
        println!(
            "{bytes:>10} {:>9.3} {:>9.3} {put:>+6.1}%   {:>9.3} {:>9.3} {done:>+6.1}%",
            raws.0, ours.0, raws.1, ours.1
        );
    }
    watched_cost(&mut group, stream, bare);
}

/// The same for a group, which is watched over, in place: NCCL has next to nothing to do for a world of one then, so that this is
/// all that numbering, checking and watching cost.
fn watched_cost(group: &mut NcclGroup, stream: &Arc<CudaStream>, bare: AllReduce) {
    let mut data = Values::zeros(stream, 4096);
    let (data, calls) = (data.memory(), 20_000);
    let (mut raws, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let communicator = group.communicator().unwrap();
        raws.push(time(calls, stream, |_| {
            let all = |inside: &NcclCalls<'_>| {
                for _ in 0..calls {
                    let (at, handle) = (data.address, inside.handle());
                    // SAFETY: as in `cost`.
                    assert_eq!(unsafe { bare(at, at, 1024, 7, 0, handle, raw(stream).0) }, 0);
                }
                Ok(())
            };
            communicator.call(all).unwrap();
        }));
        ours.push(time(calls, stream, |_| {
            for _ in 0..calls {
                let work = Collective::AllReduce { data, op: ReduceOp::Sum };
                // SAFETY: as in `cost`.
                unsafe { group.run_on_device(DataType::F32, work, raw(stream)) }.unwrap();
            }
        }));
    }
    let (raws, ours) = (medians(raws), medians(ours));
    println!("in place, watched over: raw {:.3}, ours {:.3}: {:.3} more", raws.0, ours.0, ours.0 - raws.0);
}

/// Microseconds of one call until all were put on the stream, and until all were done.
fn time(calls: u32, stream: &CudaStream, put: impl FnOnce(&CudaStream)) -> (f64, f64) {
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(calls);
    stream.synchronize().unwrap();
    let start = Instant::now();
    put(stream);
    let on_the_stream = start.elapsed();
    stream.synchronize().unwrap();
    (each(on_the_stream), each(start.elapsed()))
}

fn medians(mut times: Vec<(f64, f64)>) -> (f64, f64) {
    let half = times.len() / 2;
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let first = times[half].0;
    times.sort_by(|a, b| a.1.total_cmp(&b.1));
    (first, times[half].1)
}
