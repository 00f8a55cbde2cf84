//! Data-parallel training on what carries groups: shared memory, and TCP.

use rankrun_worker::ddp::{Ddp, DdpError, DdpOptions, Parameter};
use rankrun_worker::process_group::BackendChoice;
use rankrun_worker::{Group, Rank};

use crate::world::{AMPLE, crash, run_on};

fn model() -> Vec<Parameter> {
    vec![Parameter::new::<f32>("fc1.weight", &[300, 100]), Parameter::new::<f32>("fc2.weight", &[100, 7])]
}

fn options() -> DdpOptions {
    DdpOptions { bucket_bytes: 1 << 10, first_bucket_bytes: 1 << 10, find_unused_parameters: true }
}

fn steps(group: Group) -> Result<(), DdpError> {
    let (rank, world) = (group.rank().0 as f32, group.world_size().get() as f32);
    let mut ddp = Ddp::new(group, model(), &options())?;
    let mut weights = [vec![rank; 30_000], vec![rank + 1.0; 700]];
    ddp.broadcast(&mut weights)?;
    assert_eq!(weights, [vec![0.0; 30_000], vec![1.0; 700]]);
    for step in 0..20 {
        let step = step as f32;
        ddp.overwrite_gradient::<f32>(1)?.fill(rank + step);
        ddp.mark_ready(1)?;
        // Only rank 0 uses the first layer.
        if rank == 0.0 {
            ddp.gradient_ready(0, &vec![world * step; 30_000])?;
        }
        let gradients = ddp.finish()?;
        assert_eq!(gradients.get::<f32>(0)?, vec![step; 30_000]);
        assert_eq!(gradients.get::<f32>(1)?, vec![step + (world - 1.0) / 2.0; 700]);
        assert!(!gradients.is_unused(0) && !gradients.is_unused(1));
    }
    ddp.into_group()?.barrier().map_err(DdpError::Group)
}

#[test]
fn gradients_are_reduced_in_place() {
    for choice in [BackendChoice::Auto, BackendChoice::Tcp] {
        for world in [1, 2, 4] {
            for ended in run_on(choice, (world, AMPLE), steps) {
                ended.expect("no rank panics").expect("no rank fails");
            }
        }
    }
}

#[test]
fn rank_crash_during_step_is_named() {
    let ended = run_on(BackendChoice::Auto, (3, AMPLE), |group| {
        let rank = group.rank();
        let mut ddp =
            Ddp::new(group, model(), &DdpOptions { find_unused_parameters: false, ..options() }).unwrap();
        ddp.mark_ready(1).unwrap();
        if rank == Rank(2) {
            // What is on its way ends first, so that it is the next bucket that is missing.
            crash(ddp.into_group().unwrap());
        }
        ddp.mark_ready(0).unwrap();
        let Err(DdpError::Group(error)) = ddp.finish() else { panic!("rank 2 is gone") };
        error.lost_rank()
    });
    assert_eq!(ended, [Some(Some(Rank(2))), Some(Some(Rank(2))), None]);
}
