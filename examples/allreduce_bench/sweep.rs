//! Makes the calls of one size, takes the time, and has the results checked.

use std::time::Instant;

use rankrun_worker::process_group::{bf16, f16};
use rankrun_worker::{Group, GroupError, Reduction};

use crate::host::OnHost;
use crate::table::{self, Row};
use crate::value::Number;
use crate::{Operation, Options, Type};

/// A call that is measured, with its memory.
pub(crate) trait Call {
    /// Gives the memory its first values.
    fn fill(&mut self, group: &Group);

    /// Makes the call, and waits for its end.
    fn run(&mut self, group: &mut Group) -> Result<(), GroupError>;

    /// How many elements on this rank are not what one call makes of the first values.
    fn count_wrong(&self, group: &Group) -> u64;
}

/// Measures calls on `bytes` bytes, or a little less so that all ranks have as many elements.
pub(crate) fn measure(options: &Options, group: &mut Group, bytes: usize) -> Result<Row, GroupError> {
    match options.data_type {
        Type::F16 => measure_type::<f16>(options, group, bytes),
        Type::Bf16 => measure_type::<bf16>(options, group, bytes),
        Type::F32 => measure_type::<f32>(options, group, bytes),
        Type::F64 => measure_type::<f64>(options, group, bytes),
        Type::I32 => measure_type::<i32>(options, group, bytes),
        Type::I64 => measure_type::<i64>(options, group, bytes),
        Type::U8 => measure_type::<u8>(options, group, bytes),
    }
}

fn measure_type<T: Number>(options: &Options, group: &mut Group, bytes: usize) -> Result<Row, GroupError> {
    let world = group.world_size().get();
    // As in nccl-tests: the size is that of all ranks' parts, the count that of one rank's.
    let (count, size) = match options.operation {
        Operation::AllGather | Operation::ReduceScatter => {
            let count = bytes / size_of::<T>() / world as usize;
            (count, count * size_of::<T>() * world as usize)
        }
        _ => (bytes / size_of::<T>(), bytes / size_of::<T>() * size_of::<T>()),
    };
    let mut call = OnHost::<T>::new(options, group, count);
    let micros = time(options, group, &mut call)?;
    call.fill(group);
    call.run(group)?;
    let mut wrong = [i64::try_from(call.count_wrong(group)).unwrap_or(i64::MAX)];
    group.all_reduce(&mut wrong, Reduction::Sum)?;
    let factor = table::bus_factor(options.operation, world);
    Ok(Row { size, count, micros, factor, wrong: wrong[0].unsigned_abs() })
}

/// The mean time of a call over all ranks, in microseconds.
#[expect(clippy::disallowed_methods, reason = "takes the time")]
fn time(options: &Options, group: &mut Group, call: &mut impl Call) -> Result<f64, GroupError> {
    call.fill(group);
    for _ in 0..options.warmup {
        call.run(group)?;
    }
    group.barrier()?;
    let begun = Instant::now();
    for _ in 0..options.iterations {
        call.run(group)?;
    }
    let mut mean = [begun.elapsed().as_secs_f64() * 1e6 / f64::from(options.iterations)];
    group.all_reduce(&mut mean, Reduction::Mean)?;
    Ok(mean[0])
}
