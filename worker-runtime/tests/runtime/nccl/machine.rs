//! NCCL on the fake machine, which computes what real devices would: every operation among ranks that are
//! processes with a device each, and errors of memory, devices and killed ranks.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, DeviceRepr};
use nix::sys::signal::Signal;
use rankrun_worker::cuda::cuda_context;
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{
    Collective, DataType, DeviceCollective, DeviceMemory, Element, ProcessGroup, Stream,
};
use rankrun_worker::{GroupError, GroupOptions, Rank, ReduceOp, WorkerContext};

use super::ranks::Job;

/// More than the fake exchanges at a time, and no multiple of it.
const LONG: usize = 70_001;

/// What a rank does on the device of its own number, or of `wish`.
pub(super) fn scene(context: &WorkerContext, choice: &str, timeout: Duration) -> Result<(), GroupError> {
    let rank = context.rank().0 as usize;
    let device = cuda_context(if choice == "same device" { 0 } else { rank }).unwrap();
    let stream = device.new_stream().unwrap();
    let mut ranks = Ranks { group: join(context, timeout)?, stream };
    match choice {
        "everything" => {
            everything::<f32>(&mut ranks, |number| number as f32);
            everything::<f64>(&mut ranks, f64::from);
            everything::<i64>(&mut ranks, i64::from);
        }
        "other memory" => {
            let other = cuda_context(1 - rank).unwrap().new_stream().unwrap();
            let mut data = other.clone_htod(&[1.0_f32; 4]).unwrap();
            device.bind_to_thread().unwrap();
            let data = memory(&mut data, &other);
            println!("under way");
            ranks.put(DataType::F32, Collective::AllReduce { data, op: ReduceOp::Sum })?;
        }
        "for ever" => {
            let mut data = ranks.stream.clone_htod(&vec![0.0_f32; LONG]).unwrap();
            let data = memory(&mut data, &ranks.stream);
            println!("under way");
            loop {
                ranks.put(DataType::F32, Collective::AllReduce { data, op: ReduceOp::Sum })?;
            }
        }
        _ => {}
    }
    ranks.group.leave();
    Ok(())
}

fn join(context: &WorkerContext, timeout: Duration) -> Result<NcclGroup, GroupError> {
    NcclGroup::join(context, &GroupOptions { timeout, ..GroupOptions::default() }, None)
}

/// A rank and its stream.
struct Ranks {
    group: NcclGroup,
    stream: Arc<CudaStream>,
}

fn memory<T>(slice: &mut CudaSlice<T>, stream: &CudaStream) -> DeviceMemory {
    let bytes = slice.num_bytes();
    let (address, _sync) = slice.device_ptr_mut(stream);
    DeviceMemory { address, bytes }
}

impl Ranks {
    fn put(&mut self, kind: DataType, work: DeviceCollective<'_>) -> Result<(), GroupError> {
        let stream = Stream(self.stream.cu_stream().cast());
        // SAFETY: the caller keeps the memory, and the stream stays.
        unsafe { self.group.run_on_device(kind, work, stream).and_then(|()| self.group.synchronize(stream)) }
    }

    /// What is in some memory after a call that is given where it lies; before it there was `given`.
    fn after<T: Element + DeviceRepr>(
        &mut self,
        input: &[T],
        work: impl FnOnce(DeviceMemory) -> DeviceCollective<'static>,
    ) -> Vec<T> {
        let mut slice = self.stream.clone_htod(input).unwrap();
        let work = work(memory(&mut slice, &self.stream));
        self.put(T::DATA_TYPE, work).unwrap();
        self.stream.clone_dtoh(&slice).unwrap()
    }
}

/// Small whole numbers, with which every type computes exactly.
fn number(rank: usize, at: usize) -> i32 {
    i32::try_from((rank * 5 + at) % 7).unwrap() - 3
}

fn everything<T: Element + DeviceRepr>(ranks: &mut Ranks, of: impl Fn(i32) -> T) {
    let (rank, world) = (ranks.group.rank().0 as usize, ranks.group.world_size().get() as usize);
    let values = |rank: usize, count: usize| (0..count).map(|at| of(number(rank, at))).collect::<Vec<T>>();
    for count in [1, 6, LONG] {
        let own = values(rank, count);
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min] {
            let reduced = |at: usize| {
                let all = (0..world).map(|rank| number(rank, at));
                of(match op {
                    ReduceOp::Sum => all.sum(),
                    ReduceOp::Product => all.product(),
                    ReduceOp::Max => all.max().unwrap(),
                    _ => all.min().unwrap(),
                })
            };
            let expected: Vec<T> = (0..count).map(reduced).collect();
            let actual = ranks.after(&own, |data| Collective::AllReduce { data, op });
            assert!(actual == expected, "{op} of {count} {}", T::DATA_TYPE);
            let actual = ranks.after(&own, |data| Collective::Reduce { data, op, root: Rank(1) });
            assert!(actual == if rank == 1 { expected } else { own.clone() }, "to rank 1: {op}");
            // As many for each rank.
            let input = values(rank, count * world);
            let mut input = ranks.stream.clone_htod(&input).unwrap();
            let input = memory(&mut input, &ranks.stream);
            let actual = ranks.after(&own, |output| Collective::ReduceScatter { input, output, op });
            let expected: Vec<T> = (rank * count..(rank + 1) * count).map(reduced).collect();
            assert!(actual == expected, "a part of {op} of {count} {}", T::DATA_TYPE);
        }
        let actual = ranks.after(&own, |data| Collective::Broadcast { data, root: Rank(2) });
        assert!(actual == values(2, count), "{count} {}", T::DATA_TYPE);
        transfers(ranks, &own, &|rank| values(rank, count));
    }
    // Means are sums that are divided.
    let alike = vec![of(6 * (i32::try_from(rank).unwrap() + 1)); 5];
    let actual = ranks.after(&alike, |data| Collective::AllReduce { data, op: ReduceOp::Mean });
    assert!(actual == [of(12); 5], "the mean of {}", T::DATA_TYPE);
}

/// What only moves.
fn transfers<T: Element + DeviceRepr>(ranks: &mut Ranks, own: &[T], of: &dyn Fn(usize) -> Vec<T>) {
    let (rank, world) = (ranks.group.rank().0, ranks.group.world_size().get());
    let all: Vec<T> = (0..world as usize).flat_map(of).collect();
    let counts: &'static [usize] = vec![own.len(); world as usize].leak();
    let mut input = ranks.stream.clone_htod(own).unwrap();
    let input = memory(&mut input, &ranks.stream);
    let nothing = vec![T::zeroed(); all.len()];
    assert!(ranks.after(&nothing, |output| Collective::AllGather { input, output }) == all);
    let root = Rank(1);
    let actual = ranks.after(&nothing, |output| {
        let output = (rank == root.0).then_some(output);
        Collective::Gather { input, output, counts, root }
    });
    assert!(actual == if rank == root.0 { all.clone() } else { nothing });
    let mut whole = ranks.stream.clone_htod(&all).unwrap();
    let whole = memory(&mut whole, &ranks.stream);
    let actual = ranks.after(&vec![T::zeroed(); own.len()], |output| {
        let input = (rank == root.0).then_some(whole);
        Collective::Scatter { input, output, counts, root }
    });
    assert!(actual == own);
    // Each sends to the next one and receives from the one before it.
    let (next, before) = (Rank((rank + 1) % world), (rank + world - 1) % world);
    let mut output = ranks.stream.alloc_zeros::<u8>(size_of_val(own)).unwrap();
    let data = memory(&mut output, &ranks.stream);
    let kind = T::DATA_TYPE;
    let works = [
        (kind, Collective::Send { data: input, to: next }),
        (kind, Collective::Receive { data, from: Rank(before) }),
    ];
    let stream = Stream(ranks.stream.cu_stream().cast());
    // SAFETY: the memory is there until the wait is over.
    unsafe { ranks.group.run_grouped(&works, stream).and_then(|()| ranks.group.synchronize(stream)) }
        .unwrap();
    let actual = ranks.stream.clone_dtoh(&output).unwrap();
    assert!(actual == bytemuck::cast_slice::<T, u8>(&of(before as usize)));
}

#[test]
fn ranks_on_own_devices_run_collectives() {
    let mut job = Job::start(3, &[("machine:everything", 60_000, "devices=3"); 3]);
    for rank in 0..3 {
        let (code, errors) = job.errors(rank);
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    let mut job = Job::start(2, &[("machine:same device", 20_000, "devices=2"); 2]);
    for rank in 0..2 {
        let (code, errors) = job.errors(rank);
        assert!(code == Some(1) && errors.contains("ncclInvalidUsage"), "rank {rank}: {errors}");
    }
}

#[test]
fn memory_of_another_device_is_refused() {
    let mut job = Job::start(2, &[("machine:other memory", 20_000, "devices=2"); 2]);
    for rank in 0..2 {
        let (code, errors) = job.errors(rank);
        assert!(code == Some(1) && errors.contains("ncclInvalidArgument"), "rank {rank}: {errors}");
    }
}

#[test]
fn rank_killed_during_collective_is_named() {
    let mut job = Job::start(3, &[("machine:for ever", 60_000, "devices=3"); 3]);
    for rank in 0..3 {
        job.wait_for_line(rank, "under way");
    }
    job.signal(2, Signal::SIGKILL);
    for rank in 0..2 {
        job.assert_says(rank, "`all_reduce` cannot finish: lost rank 2,");
    }
}
