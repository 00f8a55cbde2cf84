//! Messages between two ranks, among calls of all of them; and how much memory calls need.

use std::process::ExitCode;

use rankrun_worker::process_group::{GroupError, GroupFailure, LossCause};
use rankrun_worker::{Group, Rank, ReduceOp};

use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, crash, env, options, run};

fn on_all(world: u32, body: impl Fn(&mut Group) -> Result<(), GroupError> + Sync) {
    for (rank, ended) in run(world, AMPLE, |mut group| body(&mut group)).into_iter().enumerate() {
        ended.unwrap_or_else(|| panic!("rank {rank} of {world} panicked")).expect("a rank failed");
    }
}

/// Sends to the next rank and receives from the one before; the first one sends first.
fn pass_on(group: &mut Group, data: &[f32]) -> Result<Vec<f32>, GroupError> {
    let (me, world) = (group.rank().0, group.world_size().get());
    let (next, before) = (Rank((me + 1) % world), Rank((me + world - 1) % world));
    let mut received = vec![0.0; data.len()];
    if me == 0 {
        group.send(data, next)?;
        group.receive(&mut received, before)?;
    } else {
        group.receive(&mut received, before)?;
        group.send(data, next)?;
    }
    Ok(received)
}

#[test]
fn messages_of_any_length_arrive() {
    for world in [2, 3, 4] {
        on_all(world, |group| {
            for length in [0, 1, 1003, 3 << 20] {
                let own = vec![group.rank().0 as f32; length];
                let before = (group.rank().0 + world - 1) % world;
                assert_eq!(pass_on(group, &own)?, vec![before as f32; length]);
            }
            Ok(())
        });
    }
}

#[test]
fn messages_are_buffered_and_received_in_order() {
    on_all(3, |group| {
        let me = group.rank();
        match me {
            Rank(0) => {
                // No rank receives these before rank 0 has done the calls of all ranks that follow.
                for number in 0..50i64 {
                    group.send(&[number], Rank(1))?;
                    group.send(&[number, -number], Rank(2))?;
                }
                group.broadcast(&mut [7u8], Rank(0))
            }
            _ => {
                let width = me.index();
                for number in 0..50i64 {
                    let mut data = vec![0; width];
                    group.receive(&mut data, Rank(0))?;
                    assert_eq!(data, [number, -number][..width]);
                }
                group.broadcast(&mut [0u8], Rank(0))
            }
        }
    });
}

#[test]
fn rank_pair_exchanges_while_others_are_ahead() {
    // Messages of two ranks are numbered by themselves, and many more than the calls of all: a third rank that waits in one of
    // those is taken neither for late nor for different.
    on_all(3, |group| {
        for round in 0..5i64 {
            if group.rank() != Rank(2) {
                for number in 0..100 {
                    let other = Rank(1 - group.rank().0);
                    let mut data = [number];
                    if group.rank() == Rank(0) {
                        group.send(&data, other)?;
                        group.receive(&mut data, other)?;
                    } else {
                        group.receive(&mut data, other)?;
                        group.send(&[data[0] + 1], other)?;
                    }
                    assert_eq!(data[0], number + i64::from(group.rank() == Rank(0)));
                }
            }
            let mut data = [round];
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            assert_eq!(data, [round * 3]);
        }
        Ok(())
    });
}

#[test]
fn lost_peer_is_error_for_sender_and_receiver() {
    for (dead_rank, other) in [(0, 1), (1, 0)] {
        let ended = run(3, AMPLE, |mut group| {
            let me = group.rank();
            if me == Rank(dead_rank) {
                crash(group);
            }
            let other = Rank(dead_rank);
            let error = match me {
                Rank(0) => group.receive(&mut [0u8; 4], other),
                // It may fit into the kernel's memory, but not again and again.
                Rank(1) => (0..1000).try_for_each(|_| group.send(&vec![0u8; 1 << 20], other)),
                _ => group.barrier(),
            };
            error.unwrap_err().lost_rank()
        });
        assert_eq!(ended[other], Some(Some(Rank(dead_rank))));
        assert_eq!(ended[2], Some(Some(Rank(dead_rank))));
    }
}

#[test]
fn message_sent_before_leave_is_received() {
    on_all(2, |group| {
        let mut data = vec![3i32; 1000];
        if group.rank() == Rank(0) {
            return group.send(&data, Rank(1));
        }
        data.fill(0);
        group.receive(&mut data, Rank(0))?;
        assert_eq!(data, [3; 1000]);
        let error = group.receive(&mut data, Rank(0)).unwrap_err();
        let peer_left = GroupFailure::Lost { rank: Rank(0), cause: LossCause::Left };
        assert!(matches!(&error, GroupError::Failed { failure, .. } if *failure == peer_left), "{error}");
        Ok(())
    });
}

#[test]
fn reductions_across_blocks_are_correct() {
    // More than one block, of which the last one is not full, and parts that the world does not divide.
    for world in [2u32, 3] {
        on_all(world, |group| {
            let (me, total) = (group.rank().0, i64::from(world * (world + 1) / 2));
            let length = 700_003;
            let own: Vec<i64> = (0..length).map(|index| index * i64::from(me + 1)).collect();
            let expected = |index: i64| index * total;
            let mut data = own.clone();
            group.reduce(&mut data, ReduceOp::Sum, Rank(1))?;
            let factor = if me == 1 { total } else { i64::from(me + 1) };
            assert!((0..length).all(|index| data[index as usize] == index * factor), "reduce");

            let input: Vec<i64> = (0..world).flat_map(|_| own.iter().copied()).collect();
            let mut part = vec![0; own.len()];
            group.reduce_scatter(&input, &mut part, ReduceOp::Sum)?;
            assert!((0..length).all(|index| part[index as usize] == expected(index)), "reduce_scatter");
            Ok(())
        });
    }
}

#[test]
fn empty_buffers_are_reduced_and_sent() {
    on_all(3, |group| {
        group.reduce::<f32>(&mut [], ReduceOp::Max, Rank(2))?;
        group.reduce_scatter::<u8>(&[], &mut [], ReduceOp::Mean)?;
        assert!(group.scatter::<i32>(&[], &[0; 3], Rank(0))?.is_empty());
        assert!(pass_on(group, &[])?.is_empty());
        group.barrier()
    });
}

/// What a started rank does: reductions of many blocks, before and after which it looks at the most memory that it ever had.
pub(crate) fn main() -> ExitCode {
    rankrun_worker::run(|context| -> Result<(), GroupError> {
        let mut group = context.process_group(&options(AMPLE))?;
        let world = group.world_size().get() as usize;
        let (mut part, input) = (vec![1.0f64; 2 << 20], vec![1.0f64; (2 << 20) * world]);
        let before = most_memory();
        group.reduce_scatter(&input, &mut part, ReduceOp::Sum)?;
        group.reduce(&mut part, ReduceOp::Sum, Rank(0))?;
        group.all_reduce(&mut part, ReduceOp::Sum)?;
        let grown = most_memory() - before;
        // 16 MiB of each of four ranks would be 64 MiB.
        assert!(grown < 24 << 10, "{grown} KiB more");
        Ok(())
    })
}

/// In KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn reduction_memory_is_bounded() {
    let server = Server::start();
    let ranks: Vec<_> = (0..4).map(|rank| start("pair", env(&server, rank, 4).to_vars())).collect();
    for rank in ranks {
        let ended = rank.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}
