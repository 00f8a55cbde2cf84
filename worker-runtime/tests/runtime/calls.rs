//! Every operation, type, reduction and world size on every backend against the [oracle](crate::oracle).
//!
//! The usual run takes a sample of the sizes and reductions; with `RANKRUN_SOAK=1` it is the whole product.

use std::any::Any;
use std::thread;

use rankrun_worker::process_group::{BackendChoice, Buffer, bf16, f16};
use rankrun_worker::{Group, GroupError, Rank, ReduceOp, ThreadGroup};

use crate::counts::is_soak;
use crate::oracle::{Oracle, Values, assert_same, reduced, samples};
use crate::server::Server;
use crate::world::{AMPLE, join_at, join_on};

/// Miri takes a thousand times as long for each step.
const WORLDS: &[u32] = if cfg!(miri) { &[2] } else { &[1, 2, 3, 4, 8] };
const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min];

/// Elements of one rank's part: 4099 are a few kernel blocks and a rest.
const SIZES: &[usize] = if cfg!(miri) { &[0, 70] } else { &[0, 1, 7, 4099] };

/// More than one block of any transport.
const LARGE: usize = 5 << 20;

/// The groups of all ranks in rank order, and what must live as long as they.
type World = (Vec<Group>, Box<dyn Any>);

#[test]
fn every_call_over_tcp_matches_oracle() {
    every_call(Values::Any, |ranks| joined(BackendChoice::Tcp, ranks));
}

#[test]
fn every_call_over_shared_memory_matches_oracle() {
    every_call(Values::Any, |ranks| joined(BackendChoice::Shm, ranks));
}

#[test]
fn every_call_between_threads_matches_oracle() {
    every_call(Values::Any, memory);
}

#[test]
fn every_call_across_hosts_of_two_ranks_matches_oracle() {
    every_call(Values::AnyOrder, |ranks| on_hosts(ranks, |rank| rank / 2));
}

#[test]
fn every_call_across_hosts_with_scattered_ranks_matches_oracle() {
    every_call(Values::AnyOrder, |ranks| on_hosts(ranks, |rank| [1, 0, 1, 2, 1, 2, 0, 1][rank as usize]));
}

#[test]
fn every_call_across_hosts_of_one_rank_matches_oracle() {
    every_call(Values::AnyOrder, |ranks| on_hosts(ranks, |rank| rank));
}

fn joined(choice: BackendChoice, ranks: u32) -> World {
    join_world(ranks, |server, rank| join_on(choice, server, (rank, ranks), AMPLE))
}

/// The number of each rank's host.
fn on_hosts(ranks: u32, host: fn(u32) -> u32) -> World {
    join_world(ranks, |server, rank| join_at(&format!("host-{}", host(rank)), server, (rank, ranks), AMPLE))
}

fn join_world(ranks: u32, join: impl Fn(&Server, u32) -> Result<Group, GroupError> + Sync) -> World {
    let server = Server::start();
    let groups = thread::scope(|scope| {
        let join = |rank| {
            let (server, join) = (&server, &join);
            scope.spawn(move || join(server, rank).expect("the ranks meet"))
        };
        let ranks: Vec<_> = (0..ranks).map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    (groups, Box::new(server))
}

fn memory(ranks: u32) -> World {
    (ThreadGroup::world(ranks), Box::new(()))
}

fn every_call(values: Values, make: fn(u32) -> World) {
    for &world in WORLDS {
        let (mut groups, _keeps) = make(world);
        let groups = &mut groups;
        of_type::<f32>(values, groups);
        of_type::<f64>(values, groups);
        of_type::<f16>(values, groups);
        of_type::<bf16>(values, groups);
        of_type::<i32>(values, groups);
        of_type::<i64>(values, groups);
        of_type::<u8>(values, groups);
        match world {
            _ if cfg!(miri) => {}
            4 => Case::<f32>::new(values, 4, LARGE / 4 / 4 + 1, &[ReduceOp::Sum]).run(groups),
            3 => Case::<i64>::new(values, 3, LARGE / 8 / 3 + 1, &[ReduceOp::Product]).run(groups),
            2 => Case::<bf16>::new(values, 2, LARGE / 2 / 2 + 1, &[ReduceOp::Mean]).run(groups),
            _ => {}
        }
    }
}

fn of_type<T: Oracle>(values: Values, groups: &mut [Group]) {
    let world = groups.len() as u32;
    for &size in SIZES {
        // In the largest world the largest buffers show nothing new, and take long.
        let size = if world > 4 && !is_soak() { size.min(257) } else { size };
        let reductions = if size <= 7 || is_soak() { &REDUCTIONS } else { &REDUCTIONS[..2] };
        Case::<T>::new(values, world, size, reductions).run(groups);
    }
}

/// What ranks give and get in every call on data of one type and size.
struct Case<T> {
    world: u32,
    /// Elements of one part; there is one part for each rank.
    part: usize,
    /// All parts of each rank.
    inputs: Vec<Vec<T>>,
    results: Vec<(ReduceOp, Vec<T>)>,
}

impl<T: Oracle> Case<T> {
    fn new(values: Values, world: u32, part: usize, reductions: &[ReduceOp]) -> Self {
        let all = part * world as usize;
        Self {
            world,
            part,
            inputs: (0..world).map(|rank| samples(values, rank, all)).collect(),
            results: reductions.iter().map(|&op| (op, reduced(values, op, world, all))).collect(),
        }
    }

    fn run(&self, groups: &mut [Group]) {
        thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    let done = self.reductions(group).and_then(|()| self.copies(group));
                    let done = done.and_then(|()| self.uneven(group)).and_then(|()| self.pairs(group));
                    done.unwrap_or_else(|error| panic!("{}: {error}", self.name("a call", group)));
                });
            }
        });
    }

    fn name(&self, operation: &str, group: &Group) -> String {
        let Self { world, part, .. } = self;
        format!("{operation} of {part} {} on rank {} of {world}", T::DATA_TYPE, group.rank())
    }

    fn input(&self, group: &Group) -> &[T] {
        &self.inputs[group.rank().index()]
    }

    fn roots(&self) -> Vec<Rank> {
        if self.world == 1 { vec![Rank(0)] } else { vec![Rank(0), Rank(self.world - 1)] }
    }

    fn reductions(&self, group: &mut Group) -> Result<(), GroupError> {
        let (input, me, part) = (self.input(group), group.rank(), self.part);
        for (op, result) in &self.results {
            // Of an odd length, and of one that all ranks share equally.
            for length in [part, input.len()] {
                let mut data = input[..length].to_vec();
                group.all_reduce(&mut data, *op)?;
                assert_same(&data, &result[..length], &|| self.name(&format!("all_reduce ({op})"), group));
                let mut data = placed(group, &input[..length]);
                group.all_reduce(&mut data, *op)?;
                assert_same(&data, &result[..length], &|| {
                    self.name(&format!("own all_reduce ({op})"), group)
                });
            }
            for root in self.roots() {
                let mut data = input.to_vec();
                group.reduce(&mut data, *op, root)?;
                let expected = if me == root { result } else { input };
                assert_same(&data, expected, &|| self.name(&format!("reduce ({op}) to {root}"), group));
            }
            let mut output = vec![T::zeroed(); part];
            group.reduce_scatter(input, &mut output, *op)?;
            let expected = &result[me.index() * part..][..part];
            assert_same(&output, expected, &|| self.name(&format!("reduce_scatter ({op})"), group));
            let (input, mut output) = (placed(group, input), group.buffer(part));
            group.reduce_scatter(&input, &mut output, *op)?;
            assert_same(&output, expected, &|| self.name(&format!("own reduce_scatter ({op})"), group));
        }
        Ok(())
    }

    fn copies(&self, group: &mut Group) -> Result<(), GroupError> {
        let (input, part) = (self.input(group), self.part);
        for root in self.roots() {
            let expected = &self.inputs[root.index()];
            let mut data = input.to_vec();
            group.broadcast(&mut data, root)?;
            assert_same(&data, expected, &|| self.name("broadcast", group));
            let mut data = placed(group, input);
            group.broadcast(&mut data, root)?;
            assert_same(&data, expected, &|| self.name("own broadcast", group));
        }
        let all: Vec<T> = self.inputs.iter().flat_map(|input| &input[..part]).copied().collect();
        assert_same(&group.all_gather(&input[..part])?, &all, &|| self.name("all_gather", group));
        let (placed_input, mut output) = (placed(group, &input[..part]), group.buffer(all.len()));
        group.all_gather_into(&placed_input, &mut output)?;
        assert_same(&output, &all, &|| self.name("own all_gather", group));
        group.barrier()
    }

    /// Unequal shares, some of them empty.
    fn uneven(&self, group: &mut Group) -> Result<(), GroupError> {
        let me = group.rank().index();
        let share = |rank| if rank % 3 == 2 { 0 } else { self.part / (rank + 1) };
        let counts: Vec<usize> = (0..self.world as usize).map(share).collect();
        let all: Vec<T> =
            self.inputs.iter().zip(&counts).flat_map(|(input, &count)| &input[..count]).copied().collect();
        let own = &self.input(group)[..counts[me]];
        for root in self.roots() {
            let is_root = group.rank() == root;
            let gathered = group.gather(own, &counts, root)?;
            assert_eq!(gathered.is_some(), is_root);
            assert_same(&gathered.unwrap_or_default(), if is_root { &all } else { &[] }, &|| {
                self.name("gather", group)
            });
            let scattered = group.scatter(if is_root { &all } else { &[] }, &counts, root)?;
            assert_same(&scattered, own, &|| self.name("scatter", group));
        }
        Ok(())
    }

    /// Every rank sends to every other one: the lower rank first.
    fn pairs(&self, group: &mut Group) -> Result<(), GroupError> {
        let (me, input, part) = (group.rank(), self.input(group), self.part);
        for (low, high) in (0..self.world).flat_map(|low| (low + 1..self.world).map(move |high| (low, high)))
        {
            for (from, to) in [(Rank(low), Rank(high)), (Rank(high), Rank(low))] {
                if me == from {
                    group.send(&input[..part], to)?;
                } else if me == to {
                    let mut data = vec![T::zeroed(); part];
                    group.receive(&mut data, from)?;
                    assert_same(&data, &self.inputs[from.index()][..part], &|| self.name("receive", group));
                }
            }
        }
        Ok(())
    }
}

/// The same data in memory of the group.
fn placed<T: Oracle>(group: &mut Group, data: &[T]) -> Buffer<T> {
    let mut buffer = group.buffer(data.len());
    buffer.copy_from_slice(data);
    buffer
}
