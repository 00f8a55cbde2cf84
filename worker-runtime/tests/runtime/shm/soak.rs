//! Groups leave nothing behind, however many there were.

use std::error::Error;
use std::fs;

use rankrun_worker::WorkerContext;

use super::{Random, all_end_well, any_call, descriptors, joined, segments};
use crate::counts::times;

#[test]
fn dropped_group_leaves_no_resources() {
    all_end_well("shm: leaves nothing", 3);
}

pub(super) fn leaves_nothing(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let (files, maps) = (descriptors()?, segments()?);
    let mut group = joined(context)?;
    assert!(descriptors()? > files && segments()? > maps, "the test sees what there is");
    let buffer = group.buffer::<f32>(1 << 20);
    any_call(&mut group, &mut Random(8), 1 << 20)?;
    group.barrier()?;
    group.leave();
    drop(buffer);
    // The connection to the store is kept.
    assert!(descriptors()? <= files + 1, "{} descriptors, {files} before", descriptors()?);
    assert_eq!(segments()?, maps);
    Ok(())
}

/// KiB of this process that are in memory.
fn resident() -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[test]
fn memory_is_constant_over_many_steps() {
    all_end_well("shm: soak", 4);
}

/// Calls of all ranks and of random sub-groups.
pub(super) fn soak(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut group = joined(context)?;
    let mut random = Random(42);
    let steps = times(500, 10_000);
    let mut before = None;
    for step in 0..steps {
        if step == steps / 5 {
            group.barrier()?;
            before = Some((descriptors()?, segments()?, resident()?));
        }
        any_call(&mut group, &mut random, 1 << 18)?;
        if random.below(10) == 0 {
            // Every rank draws for all, so that random numbers stay the same.
            let colors: Vec<usize> = (0..group.world_size().get()).map(|_| random.below(2)).collect();
            let color = colors[group.rank().index()];
            let sub = group.split(Some(color as u32), 0)?;
            let seed = random.below(1 << 30) as u64 + color as u64;
            if let Some(mut sub) = sub {
                (0..5).try_for_each(|_| any_call(&mut sub, &mut Random(seed), 1 << 12))?;
                sub.leave();
            }
        }
    }
    group.barrier()?;
    let (files, maps, memory) = before.ok_or("no steps")?;
    assert_eq!((descriptors()?, segments()?), (files, maps));
    assert!(resident()? < memory + 16 * 1024, "{} KiB, {memory} before", resident()?);
    Ok(())
}
