//! Sub-groups: their members, their independence, and the ranks in their errors.

use std::process::ExitCode;
use std::sync::Barrier;

use rankrun_contract::report;
use rankrun_worker::process_group::GroupError;
use rankrun_worker::{Group, Rank, ReduceOp};

use crate::process::start;
use crate::report::Folder;
use crate::server::Server;
use crate::world::{AMPLE, crash, env, options, run};

/// The ranks of the job that are in the group, by their ranks in it.
fn members(group: &mut Group, rank_in_job: Rank) -> Vec<u8> {
    let members = group.all_gather(&[rank_in_job.0 as u8]).unwrap();
    assert_eq!(members.len(), group.world_size().get() as usize);
    assert_eq!(members[group.rank().index()], rank_in_job.0 as u8);
    members
}

fn on_all(world: u32, body: impl Fn(Group) + Sync) {
    for (rank, ended) in run(world, AMPLE, body).into_iter().enumerate() {
        ended.unwrap_or_else(|| panic!("rank {rank} of {world} panicked"));
    }
}

#[test]
fn split_orders_ranks_of_color_by_key() {
    on_all(5, |mut group| {
        let me = group.rank();
        // Rank 2 takes part and gets none.
        let color = (me != Rank(2)).then_some(me.0 % 2);
        let part = group.split(color, 10 - me.0).unwrap();
        let members = part.map(|mut part| members(&mut part, me));
        let expected: [Option<&[u8]>; 5] = [Some(&[4, 0]), Some(&[3, 1]), None, Some(&[3, 1]), Some(&[4, 0])];
        assert_eq!(members.as_deref(), expected[me.index()], "rank {me}");
        group.barrier().unwrap();
    });
}

#[test]
fn single_rank_world_splits_into_itself() {
    on_all(1, |mut group| {
        assert!(group.split(None, 0).unwrap().is_none());
        let mut part = group.split(Some(3), 7).unwrap().unwrap();
        let mut own = part.split(Some(0), 0).unwrap().unwrap();
        assert_eq!(own.all_gather(&[1.5f32]).unwrap(), [1.5]);
    });
}

#[test]
fn sub_groups_can_be_split_again() {
    on_all(8, |mut group| {
        let me = group.rank();
        let mut half = group.split(Some(me.0 / 4), 8 - me.0).unwrap().unwrap();
        let mut quarter = half.split(Some(half.rank().0 % 2), 0).unwrap().unwrap();
        let mut alone = quarter.split(Some(quarter.rank().0), 0).unwrap().unwrap();
        // 3 2 1 0 and 7 6 5 4, of which every second one.
        let expected = if me.0 % 2 == 1 { [3, 1] } else { [2, 0] }.map(|rank| rank + (me.0 / 4 * 4) as u8);
        assert_eq!(members(&mut quarter, me), expected);
        assert_eq!(members(&mut alone, me), [me.0 as u8]);
        // All of them work side by side.
        let sum = |group: &mut Group| {
            let mut data = [i64::from(me.0)];
            group.all_reduce(&mut data, ReduceOp::Sum).map(|()| data[0])
        };
        assert_eq!(sum(&mut half).unwrap(), if me.0 < 4 { 6 } else { 22 });
        assert_eq!(sum(&mut group).unwrap(), 28);
        assert_eq!(sum(&mut quarter).unwrap(), i64::from(expected[0] + expected[1]));
    });
}

#[test]
fn groups_can_be_created_and_dropped_in_any_order() {
    on_all(4, |mut group| {
        let me = group.rank();
        let mut kept: Vec<Group> = Vec::new();
        for round in 0..40u32 {
            // Another pairing in each round, all ranks, or only some of them.
            let color = match round % 4 {
                0 => Some(me.0 / 2),
                1 => Some(me.0 % 2),
                2 => Some(0),
                _ => (me.0 != round / 4 % 4).then_some(round),
            };
            kept.extend(group.split(color, round % 3 * me.0).unwrap());
            for group in &mut kept {
                group.barrier().unwrap();
            }
            // The ranks let go of different groups, but never of one that others still use before the next round.
            if round % 5 == 4 {
                group.barrier().unwrap();
                while let Some(part) = if me.0.is_multiple_of(2) { kept.pop() } else { Some(kept.remove(0)) }
                {
                    if round % 2 == 0 {
                        part.leave()
                    } else {
                        drop(part)
                    }
                    if kept.is_empty() {
                        break;
                    }
                }
                assert!(kept.is_empty());
            }
        }
    });
}

#[test]
fn sub_group_outlives_parent_group() {
    on_all(4, |mut group| {
        let mut part = group.split(Some(group.rank().0 % 2), 0).unwrap().unwrap();
        group.leave();
        part.barrier().unwrap();
    });
}

#[test]
fn sub_groups_leave_nothing_in_the_store() {
    let keys = |splits: usize| {
        let server = Server::start();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let server = &server;
                scope.spawn(move || {
                    let mut group = crate::world::join(server, rank, 3, AMPLE).unwrap();
                    for _ in 0..splits {
                        group.split(Some(0), 0).unwrap().unwrap().barrier().unwrap();
                    }
                });
            }
        });
        server.keys().len()
    };
    assert_eq!(keys(20), keys(1));
}

#[test]
fn lost_rank_is_named_by_group_and_job_rank() {
    let all_there = Barrier::new(4);
    let ended = run(4, AMPLE, |mut group| {
        let me = group.rank();
        let mut part = group.split(Some(me.0 % 2), 0).unwrap().unwrap();
        all_there.wait();
        if me == Rank(3) {
            crash(part);
        }
        if me.0 % 2 == 0 {
            // Groups without the lost rank continue.
            part.barrier().unwrap();
            return None;
        }
        let error = part.barrier().unwrap_err();
        assert_eq!((error.lost_rank(), error.lost_global_rank()), (Some(Rank(1)), Some(Rank(3))));
        Some(error.to_string())
    });
    let error = ended[1].clone().flatten().unwrap();
    assert!(error.starts_with("`barrier` cannot finish: lost rank 1 (rank 3 of the job), which"), "{error}");
    assert_eq!(ended[0], Some(None));
}

#[test]
fn sub_group_mismatch_names_job_ranks() {
    let ended = run(4, AMPLE, |mut group| {
        let me = group.rank();
        let mut part = group.split((me.0 > 0).then_some(0), 0).unwrap()?;
        let result = if me == Rank(2) { part.barrier() } else { part.broadcast(&mut [1u8], Rank(1)) };
        Some(result.and_then(|()| part.barrier()).unwrap_err().to_string())
    });
    for error in ended.into_iter().skip(1) {
        let error = error.flatten().expect("no rank panics");
        assert!(error.contains("rank 1 (rank 2 of the job) makes call 1, `barrier`"), "{error}");
        assert_eq!(error.matches("of the job) makes call 1, ").count(), 2, "{error}");
    }
}

/// What a started rank does: the same splits over and over; what it holds afterwards is what it held before.
pub(crate) fn soak() -> ExitCode {
    rankrun_worker::run(|context| -> Result<(), GroupError> {
        let mut group = context.process_group(&options(AMPLE))?;
        let me = group.rank().0;
        let mut round = |color: u32, key: u32| -> Result<(), GroupError> {
            let mut half = group.split(Some(color), key)?.expect("a color");
            let mut data = [f32::from(color as u8); 100];
            half.all_reduce(&mut data, ReduceOp::Mean)?;
            assert_eq!(data, [f32::from(color as u8); 100]);
            let own = half.split((half.rank().0 == 0).then_some(0), 0)?;
            assert_eq!(own.is_some(), half.rank().0 == 0);
            if key == 1 {
                half.leave();
            }
            Ok(())
        };
        round(0, 0)?;
        let before = descriptors();
        for number in 0..100 {
            round((me + number) % 2, number % 3)?;
        }
        // The one before the last is dropped and not left, and so is kept until the next one.
        round(0, 0)?;
        assert_eq!(descriptors(), before);
        Ok(())
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn many_splits_leak_no_descriptor() {
    let server = Server::start();
    let ranks: Vec<_> = (0..4).map(|rank| start("splits", env(&server, rank, 4).to_vars())).collect();
    for rank in ranks {
        let ended = rank.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// What a started rank does: the last rank of the sub-group of the odd ones is killed.
pub(crate) fn main() -> ExitCode {
    rankrun_worker::run(|context| -> Result<(), GroupError> {
        let me = context.rank();
        let mut group = context.process_group(&options(AMPLE))?;
        let mut part = group.split(Some(me.0 % 2), 0)?.expect("a color");
        group.barrier()?;
        if me == Rank(3) {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
        part.barrier()
    })
}

#[test]
fn error_file_has_job_rank() {
    let (server, folder) = (Server::start(), Folder::new());
    let start = |rank| {
        let mut env = env(&server, rank, 4);
        env.error_file = Some(folder.0.join(format!("{rank}.json")));
        start("split", env.to_vars())
    };
    let ranks: Vec<_> = (0..4).map(start).collect();
    let ended: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    let stderr = |rank: usize| String::from_utf8_lossy(&ended[rank].stderr).into_owned();
    for rank in [0, 2] {
        assert_eq!(ended[rank].status.code(), Some(0), "{}", stderr(rank));
    }
    let report = report::parse(&std::fs::read(folder.0.join("1.json")).expect("an error file")).unwrap();
    assert_eq!(report.lost_rank, Some(Rank(3)), "{}", stderr(1));
    assert!(stderr(1).contains("lost rank 1 (rank 3 of the job)"), "{}", stderr(1));
}
