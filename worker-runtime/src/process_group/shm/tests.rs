//! Counters wrap around in a job that runs long enough.

use std::thread;

use super::*;
use crate::clock;
use crate::process_group::cpu::CpuGroup;
use crate::process_group::element::ReduceOp;
use crate::process_group::error::GroupError;
use crate::process_group::members::Members;
use crate::process_group::rendezvous::{Coordinator, GroupBacking, Membership};
use crate::process_group::{Backend, Group};
use rankrun_contract::rank::{Rank, WorldSize};
use segment::Segment;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WORLD: usize = 3;

/// Elements for the path of small messages, of slots, and of arenas.
const LENGTHS: [usize; 3] = [5, 20_001, 100_003];

/// Ranks that are threads of one test need no agreement.
#[derive(Debug)]
struct NoCoordinator;

impl Coordinator for NoCoordinator {
    fn agree_on_failure(&self, _: &Membership, observed: GroupFailure) -> GroupFailure {
        observed
    }

    fn connect_subgroup(&self, _: &Membership, _: &str) -> Result<GroupBacking, GroupError> {
        Err(GroupError::NoBackend { backend: Backend::Shm })
    }
}

/// A rank of a group that has made many calls already.
fn group_at_counter(segment: &Arc<Segment>, rank: usize, start: u32) -> Group {
    let map = *segment.map();
    let mut shm = Shm::new(Member::new(Arc::clone(segment), rank));
    segment.populate(map.staging_slots(rank), map::STAGING_SLOT_BYTES * map::STAGING_SLOTS as usize).unwrap();
    shm.member.set_exchange_count(start);
    // All messages have been received; this number wraps around too.
    shm.member.unreceived_messages = [u64::MAX - 2, 3, 0][rank];
    shm.pairs.set_slots_passed(start);
    for other in 0..WORLD {
        for counter in [map.filled_counter(rank, other), map.emptied_counter(rank, other)] {
            segment.atomic_u32(counter).store(start, Ordering::Relaxed);
        }
    }
    shm.open_arena(true);
    shm.member.set_state(RankState::Here);
    let timeout = Duration::from_secs(60);
    let membership = Membership {
        rank: Rank(rank as u32),
        world_size: WorldSize::new(WORLD as u32).unwrap(),
        members: Members::all(),
        hosts: vec![0; WORLD].into(),
        generation: 0,
        run_id: String::new(),
        interface: None,
        timeout,
        join_deadline: clock::after(timeout),
    };
    let backing = GroupBacking {
        backend: Backend::Shm,
        transport: Box::new(shm),
        coordinator: Box::new(NoCoordinator),
    };
    Group::new(Box::new(CpuGroup::new(membership, backing)))
}

/// Makes every call on this number of elements, in memory of the group or of
/// the program, and checks the result.
fn run_all_calls(group: &mut Group, length: usize, is_of_group: bool) -> Result<(), GroupError> {
    let (me, root) = (group.rank().index(), Rank(1));
    let value = |rank: usize, index: usize| (index * 7 + rank * 1000) as i64;
    let all = |rank: usize| -> Vec<i64> { (0..length).map(|index| value(rank, index)).collect() };
    let sum = || -> Vec<i64> {
        (0..length).map(|index| (0..WORLD).map(|member| value(member, index)).sum()).collect()
    };
    let (mut buffer, mut heap) = (group.buffer::<i64>(length), vec![0; length]);
    let data: &mut [i64] = if is_of_group { &mut buffer } else { &mut heap };
    let own = all(me);
    data.copy_from_slice(&own);
    group.all_reduce(data, ReduceOp::Sum)?;
    assert!(*data == sum()[..], "all_reduce");
    data.copy_from_slice(&own);
    group.reduce(data, ReduceOp::Sum, root)?;
    assert!(*data == if group.rank() == root { sum() } else { own.clone() }[..], "reduce");
    data.copy_from_slice(&own);
    assert!(group.all_gather(data)? == (0..WORLD).flat_map(all).collect::<Vec<_>>(), "all_gather");
    let mut part = vec![0; length];
    group.reduce_scatter(&own.repeat(WORLD), &mut part, ReduceOp::Sum)?;
    assert!(part == sum(), "reduce_scatter");
    let counts = [length; WORLD];
    let gathered = group.gather(data, &counts, root)?;
    let everything = || (0..WORLD).flat_map(all).collect::<Vec<_>>();
    assert!(gathered == (group.rank() == root).then(everything), "gather");
    let input = if group.rank() == root { everything() } else { Vec::new() };
    assert!(group.scatter(&input, &counts, root)? == own, "scatter");
    group.barrier()?;
    let [next, before] = [1, WORLD - 1].map(|distance| (me + distance) % WORLD);
    if me == 0 {
        group.send(data, Rank(next as u32))?;
        group.receive(&mut part, Rank(before as u32))?;
    } else {
        group.receive(&mut part, Rank(before as u32))?;
        group.send(data, Rank(next as u32))?;
    }
    assert!(part == all(before), "receive");
    group.broadcast(data, root)?;
    assert!(*data == all(root.index())[..], "broadcast");
    Ok(())
}

#[test]
fn counter_wraparound_keeps_calls_working() {
    // The counters wrap in another call each time.
    for before in (0..20).step_by(3) {
        run_across_wraparound(u32::MAX - before);
    }
}

fn run_across_wraparound(start: u32) {
    let segment = Arc::new(Segment::create(WorldSize::new(WORLD as u32).unwrap()).unwrap());
    let groups: Vec<Group> = (0..WORLD).map(|rank| group_at_counter(&segment, rank, start)).collect();
    thread::scope(|scope| {
        for mut group in groups {
            scope.spawn(move || {
                for (length, is_of_group) in
                    LENGTHS.into_iter().flat_map(|each| [(each, false), (each, true)])
                {
                    run_all_calls(&mut group, length, is_of_group).unwrap();
                }
                group.leave();
            });
        }
    });
    let map = *segment.map();
    for rank in 0..WORLD {
        for counter in [map.exchange_counter(rank), map.filled_counter(rank, (rank + 1) % WORLD)] {
            let value = segment.atomic_u32(counter).load(Ordering::Relaxed);
            assert!(value < start, "the counter at {counter} of rank {rank} is at {value} only");
        }
    }
}
