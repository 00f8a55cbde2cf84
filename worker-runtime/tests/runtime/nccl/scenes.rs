//! The programs of the started processes: a world of one.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use rankrun_worker::cuda::{cuda_available, cuda_context};
use rankrun_worker::process_group::nccl::{Communicator, Nccl, NcclGroup};
use rankrun_worker::process_group::{
    Collective, DataType, DeviceCollective, DeviceMemory, Element, ProcessGroup, Stream, bf16, f16,
};
use rankrun_worker::{Group, GroupError, GroupOptions, Rank, ReduceOp, WorkerContext, WorldSize};

pub(super) const STREAM: Stream = Stream(ptr::null_mut::<c_void>());

/// An error with its causes and its hint, on one line.
pub(super) fn error_text(error: &GroupError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    if let Some(hint) = error.hint() {
        text += &format!(" [hint: {hint}]");
    }
    text.replace('\n', " ")
}

/// The group of a world of one with the time that the test gives.
pub(super) fn join(timeout: Duration) -> Result<NcclGroup, GroupError> {
    let options = GroupOptions { timeout, ..GroupOptions::default() };
    NcclGroup::join(&WorkerContext::single_process(), &options, None)
}

pub(super) fn memory<T>(data: &mut [T]) -> DeviceMemory {
    DeviceMemory { address: data.as_mut_ptr() as u64, bytes: size_of_val(data) }
}

pub(super) fn load() {
    println!("scene:");
    match Nccl::load(None) {
        Ok(nccl) => println!("NCCL {} from {}", nccl.version(), nccl.path().display()),
        Err(missing) => println!("{missing}\n{}", missing.hint()),
    }
}

pub(super) fn cuda() {
    println!("scene:");
    println!("{}", cuda_available().map_or_else(|error| error.to_string(), |()| "there is CUDA".to_owned()));
    println!("{}", cuda_context(7).unwrap_err());
}

/// Streams come and go while the group stays; the fake ends a process that uses one after its end.
pub(super) fn streams() {
    println!("scene:");
    // SAFETY: it is loaded already, or about to be.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    type Destroy = unsafe extern "C" fn(*mut c_void) -> i32;
    // SAFETY: this is the function's type in `cuda.h`.
    let destroy: Destroy = *unsafe { driver.get("cuStreamDestroy_v2") }.unwrap();
    let mut group = join(Duration::from_secs(10)).unwrap();
    let mut data = vec![1.0_f32; 10];
    let start = clock();
    let mut streams = 0;
    // As long as the watch looks at least ten times.
    while start.elapsed() < Duration::from_millis(200) {
        streams += 1;
        let stream = Stream(ptr::without_provenance_mut(16 * streams));
        // SAFETY: the fake takes memory of the process, and `data` outlives the group; the stream ends after the wait.
        unsafe {
            for _ in 0..3 {
                let work = Collective::AllReduce { data: memory(&mut data), op: ReduceOp::Sum };
                group.run_on_device(DataType::F32, work, stream).unwrap();
            }
            group.synchronize(stream).unwrap();
            assert_eq!(destroy(stream.0), 0);
        }
    }
    assert!(streams > 1);
    println!("fine");
}

/// Says how long something took.
fn timed<R>(what: &str, act: impl FnOnce() -> R) -> R {
    let start = clock();
    let result = act();
    let took = start.elapsed();
    println!("{what} took {} ms", took.as_millis());
    result
}

#[expect(clippy::disallowed_methods, reason = "a test measures")]
fn clock() -> Instant {
    Instant::now()
}

/// Joins and says how it went.
pub(super) fn only_join() {
    println!("scene:");
    match timed("join", || join(Duration::from_millis(400))) {
        Ok(group) => timed("drop", || drop(group)),
        Err(error) => println!("{}", error_text(&error)),
    }
}

/// One call, waited for, and another one; says how it went.
pub(super) fn one_call() {
    println!("scene:");
    let mut group = join(Duration::from_millis(400)).expect("the group is made");
    let mut data = vec![1.0_f32; 1000];
    for _ in 0..2 {
        let work = Collective::AllReduce { data: memory(&mut data), op: ReduceOp::Sum };
        let result = timed("call", || {
            // SAFETY: the fake takes memory of the process, and `data` outlives the group.
            unsafe {
                group.run_on_device(DataType::F32, work, STREAM).and_then(|()| group.synchronize(STREAM))
            }
        });
        println!("{}", result.map_or_else(|error| error_text(&error), |()| "done".to_owned()));
    }
    assert!(is_free(STREAM), "a wait for the stream never ends");
    timed("drop", || drop(group));
}

/// Whether what was put on the stream comes to an end, be it by an abort.
fn is_free(stream: Stream) -> bool {
    // SAFETY: it is loaded already.
    let driver = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    type Query = unsafe extern "C" fn(*mut c_void) -> i32;
    // SAFETY: this is the function's type in `cuda.h`.
    let query: Query = *unsafe { driver.get("cuStreamQuery") }.unwrap();
    let start = clock();
    while start.elapsed() < Duration::from_secs(5) {
        // SAFETY: the default stream is always there.
        if unsafe { query(stream.0) } != 600 {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

pub(super) fn wrong_memory() {
    println!("scene:");
    let mut nccl = Group::new(Box::new(join(Duration::from_secs(10)).unwrap()));
    println!("{}", error_text(&nccl.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap_err()));
    nccl.barrier().unwrap();
    let mut tcp = WorkerContext::single_process().process_group(&GroupOptions::default()).unwrap();
    let work = Collective::AllReduce { data: memory(&mut [1.0_f32]), op: ReduceOp::Sum };
    // SAFETY: no memory is touched.
    let result = unsafe { tcp.run_on_device(DataType::F32, work, STREAM) };
    println!("{}", error_text(&result.unwrap_err()));
}

/// Every operation and type, on a group and on a bare communicator.
pub(super) fn world_of_one() {
    println!("scene:");
    let nccl = Nccl::load(None).unwrap();
    let place = (Rank(0), WorldSize::ONE);
    let timeout = Duration::from_secs(10);
    let communicator = Communicator::init(&nccl, &nccl.unique_id().unwrap(), place, timeout).unwrap();
    let mut group = join(timeout).unwrap();
    every_operation(&mut group, &communicator, &[f16::from_f32(1.5), f16::from_f32(-2.0)]);
    every_operation(&mut group, &communicator, &[bf16::from_f32(1.5), bf16::from_f32(-2.0)]);
    every_operation(&mut group, &communicator, &[1.5_f32, f32::INFINITY]);
    every_operation(&mut group, &communicator, &[1.5_f64, f64::MIN]);
    every_operation(&mut group, &communicator, &[1_i32, i32::MIN]);
    every_operation(&mut group, &communicator, &[1_i64, i64::MAX]);
    every_operation(&mut group, &communicator, &[1_u8, 255]);
    every_operation::<f32>(&mut group, &communicator, &[]);
    group.run(DataType::None, Collective::Barrier).unwrap();
    let child = communicator.split(Some(3), 0).unwrap().expect("a color is given");
    assert_eq!((child.rank(), child.world_size()), place);
    assert!(communicator.split(None, 0).unwrap().is_none());
    let error = communicator.split(Some(1 << 31), 0).unwrap_err().to_string();
    assert_eq!(error, "`ncclCommSplit` takes colors up to 2147483647, not 2147483648");
    drop(child);
    let odd = DeviceMemory { address: 0, bytes: 3 };
    let call = communicator.call(|calls| {
        // SAFETY: no memory is touched, since the length is wrong.
        unsafe { calls.broadcast(DataType::F32, odd, Rank(0), STREAM) }
    });
    println!("{}", call.unwrap_err());
    communicator.abort();
    println!("{}", communicator.call(|_| Ok(())).unwrap_err());
    group.leave();
    println!("fine");
}

fn every_operation<T: Element>(group: &mut NcclGroup, communicator: &Communicator, values: &[T]) {
    let kind = T::DATA_TYPE;
    let same = |actual: &[T]| assert_eq!(actual, values, "{kind}");
    let put = |group: &mut NcclGroup, work: DeviceCollective<'_>| {
        // SAFETY: the fake takes memory of the process, and is done when the call returns.
        unsafe { group.run_on_device(kind, work, STREAM).and_then(|()| group.synchronize(STREAM)) }.unwrap();
    };
    let root = Rank(0);
    for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min] {
        let (mut input, mut output) = (values.to_vec(), vec![T::zeroed(); values.len()]);
        let (from, to) = (memory(&mut input), memory(&mut output));
        put(group, Collective::AllReduce { data: from, op });
        put(group, Collective::Reduce { data: from, op, root });
        put(group, Collective::ReduceScatter { input: from, output: to, op });
        same(&output);
        output.fill(T::zeroed());
        // SAFETY: as above.
        communicator.call(|calls| unsafe { calls.all_reduce((kind, op), from, to, STREAM) }).unwrap();
        same(&output);
        same(&input);
    }
    let counts = [values.len()];
    let (mut input, mut output) = (values.to_vec(), vec![T::zeroed(); values.len()]);
    let (from, to) = (memory(&mut input), memory(&mut output));
    put(group, Collective::Broadcast { data: from, root });
    put(group, Collective::AllGather { input: from, output: to });
    same(&output);
    output.fill(T::zeroed());
    put(group, Collective::Gather { input: from, output: Some(to), counts: &counts, root });
    same(&output);
    output.fill(T::zeroed());
    put(group, Collective::Scatter { input: Some(from), output: to, counts: &counts, root });
    same(&output);
    output.fill(T::zeroed());
    let works = [
        (kind, Collective::Send { data: from, to: root }),
        (kind, Collective::Receive { data: to, from: root }),
    ];
    // SAFETY: as above.
    unsafe { group.run_grouped(&works, STREAM).and_then(|()| group.synchronize(STREAM)) }.unwrap();
    same(&output);
}
