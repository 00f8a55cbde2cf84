//! Makes and times the calls of one size, and checks the results.

use std::time::Instant;

use rankrun_worker::process_group::{bf16, f16};
use rankrun_worker::{Group, ReduceOp};

use crate::device::OnDevice;
use crate::host::OnHost;
use crate::ranks::Ranks;
use crate::table::{self, Row};
use crate::value::Number;
use crate::{BenchError, Operation, Options, Type};

/// A measured call with its memory.
pub(crate) trait Call {
    /// Writes the initial values.
    fn fill(&mut self, group: &Group) -> Result<(), BenchError>;

    /// Makes the call; on a device it may still be under way afterwards.
    fn run(&mut self, group: &mut Group) -> Result<(), BenchError>;

    /// Waits until all calls are done.
    fn wait(&mut self, _group: &mut Group) -> Result<(), BenchError> {
        Ok(())
    }

    /// Number of elements on this rank that differ from the expected result of one call.
    fn count_wrong(&self, group: &Group) -> Result<u64, BenchError>;
}

/// Measures calls on `bytes` bytes, rounded down to equally many elements on all ranks.
pub(crate) fn measure(options: &Options, ranks: &mut Ranks, bytes: usize) -> Result<Row, BenchError> {
    match options.data_type {
        Type::F16 => measure_type::<f16>(options, ranks, bytes),
        Type::Bf16 => measure_type::<bf16>(options, ranks, bytes),
        Type::F32 => measure_type::<f32>(options, ranks, bytes),
        Type::F64 => measure_type::<f64>(options, ranks, bytes),
        Type::I32 => measure_type::<i32>(options, ranks, bytes),
        Type::I64 => measure_type::<i64>(options, ranks, bytes),
        Type::U8 => measure_type::<u8>(options, ranks, bytes),
    }
}

fn measure_type<T: Number>(options: &Options, ranks: &mut Ranks, bytes: usize) -> Result<Row, BenchError> {
    let world = ranks.group.world_size().get();
    // As in nccl-tests: the size covers all ranks' parts, the count one rank's.
    let (count, size) = match options.operation {
        Operation::AllGather | Operation::ReduceScatter => {
            let count = bytes / size_of::<T>() / world as usize;
            (count, count * size_of::<T>() * world as usize)
        }
        _ => (bytes / size_of::<T>(), bytes / size_of::<T>() * size_of::<T>()),
    };
    let (micros, wrong) = match ranks.device.clone() {
        Some(device) => time(options, ranks, OnDevice::<T>::new(options, &device, world, count)?)?,
        None => {
            let call = OnHost::<T>::new(options, &mut ranks.group, count);
            time(options, ranks, call)?
        }
    };
    let factor = table::bus_factor(options.operation, world);
    Ok(Row { size, count, micros, factor, wrong })
}

/// Mean time of a call over all ranks, in microseconds, and the number of wrong elements after one.
#[expect(clippy::disallowed_methods, reason = "takes the time")]
fn time(options: &Options, ranks: &mut Ranks, mut call: impl Call) -> Result<(f64, u64), BenchError> {
    call.fill(&ranks.group)?;
    for _ in 0..options.warmup {
        call.run(&mut ranks.group)?;
    }
    call.wait(&mut ranks.group)?;
    ranks.control().barrier()?;
    let begun = Instant::now();
    for _ in 0..options.iterations {
        call.run(&mut ranks.group)?;
    }
    call.wait(&mut ranks.group)?;
    let mut mean = [begun.elapsed().as_secs_f64() * 1e6 / f64::from(options.iterations)];
    call.fill(&ranks.group)?;
    call.run(&mut ranks.group)?;
    call.wait(&mut ranks.group)?;
    let mut wrong = [i64::try_from(call.count_wrong(&ranks.group)?).unwrap_or(i64::MAX)];
    let control = ranks.control();
    control.all_reduce(&mut mean, ReduceOp::Mean)?;
    control.all_reduce(&mut wrong, ReduceOp::Sum)?;
    Ok((mean[0], wrong[0].unsigned_abs()))
}
