//! Shared memory: every way of a call gives the same bits, a rank may die at any
//! moment, and nothing is left behind.

#![expect(
    clippy::disallowed_methods,
    reason = "the test starts programs, and measures how long a loss takes"
)]

mod foreign_connections;
mod kills;
mod limits;
mod soak;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};

use rankrun_worker::process_group::BackendChoice;
use rankrun_worker::{Group, GroupError, Rank, ReduceOp, WorkerContext};

use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, env, options, run_on};

/// The prefix of the group's keys in the store.
const PLACE: &str = "rankrun/group/default/life 0/1";

/// Bytes at which calls take another way, and lengths that no way divides well.
const BORDERS: [usize; 6] = [2 << 10, 256 << 10, 512 << 10, 1 << 20, 3 << 20, 0];

/// Where the data of a rank lies.
#[derive(Debug, Clone, Copy)]
enum Place {
    Group,
    Program,
    /// Of the group on every other rank.
    Either,
}

impl Place {
    const ALL: [Self; 3] = [Self::Group, Self::Program, Self::Either];

    fn is_of_group(self, rank: usize) -> bool {
        match self {
            Self::Group => true,
            Self::Program => false,
            Self::Either => rank.is_multiple_of(2),
        }
    }
}

/// Calls `then` with a copy of the data at this place; what it is afterwards.
fn with_placed_buffer<R>(
    group: &mut Group,
    place: Place,
    data: &[f32],
    then: impl FnOnce(&mut Group, &mut [f32]) -> Result<R, GroupError>,
) -> Result<Vec<f32>, GroupError> {
    if place.is_of_group(group.rank().index()) {
        let mut buffer = group.buffer(data.len());
        buffer.copy_from_slice(data);
        then(group, &mut buffer)?;
        return Ok(buffer.to_vec());
    }
    let mut data = data.to_vec();
    then(group, &mut data)?;
    Ok(data)
}

/// Values after which those of a rank repeat. A prime, so that data at a wrong place is wrong data.
const PERIOD: usize = 1009;

/// What the ranks give, and its sum.
struct Data {
    all: Vec<Vec<f32>>,
    sum: Vec<f32>,
}

impl Data {
    /// Values whose sums depend on their order.
    fn new(world: usize, count: usize) -> Self {
        let value = |rank: usize, index: usize| {
            ((index * 7 + rank * 13) % PERIOD) as f32 / 3.0 * 10f32.powi(rank as i32)
        };
        let repeated = |value: &dyn Fn(usize) -> f32| {
            let pattern: Vec<f32> = (0..count.min(PERIOD)).map(value).collect();
            let mut values = pattern.repeat(count.div_ceil(PERIOD));
            values.truncate(count);
            values
        };
        let sum = |index| (1..world).fold(value(0, index), |sum, rank| sum + value(rank, index));
        Self {
            all: (0..world).map(|rank| repeated(&|index| value(rank, index))).collect(),
            sum: repeated(&sum),
        }
    }
}

#[test]
fn all_algorithms_give_identical_bits() {
    let near = |bytes: usize| [bytes / 4, bytes / 4 + 1, (bytes / 4).saturating_sub(1)];
    for world in [2u32, 3] {
        // The ranks' data is computed once, not by each rank.
        let all_data = BORDERS.map(|bytes| near(bytes).map(|count| Data::new(world as usize, count)));
        let ended = run_on(BackendChoice::Shm, (world, AMPLE), |mut group| {
            for data in all_data.as_flattened() {
                for place in Place::ALL {
                    compare(&mut group, place, data).unwrap();
                }
            }
        });
        assert!(ended.iter().all(Option::is_some), "{world} ranks");
    }
}

/// Every call on this data.
fn compare(group: &mut Group, place: Place, data: &Data) -> Result<(), GroupError> {
    let (me, world) = (group.rank().index(), group.world_size().get() as usize);
    let root = Rank(1);
    let Data { all, sum } = data;
    let (own, count) = (&all[me], sum.len());
    let check = |what: &str, is: &[f32], expected: &[f32]| {
        let same = bytemuck::cast_slice::<f32, u8>(is) == bytemuck::cast_slice::<f32, u8>(expected);
        assert!(same, "{what} of {count} elements, {place:?}, rank {me} of {world}");
    };
    let reduced = with_placed_buffer(group, place, own, |group, data| group.all_reduce(data, ReduceOp::Sum))?;
    check("all_reduce", &reduced, sum);
    let reduced =
        with_placed_buffer(group, place, own, |group, data| group.reduce(data, ReduceOp::Sum, root))?;
    check("reduce", &reduced, if group.rank() == root { sum } else { own });
    let received = with_placed_buffer(group, place, own, |group, data| group.broadcast(data, root))?;
    check("broadcast", &received, &all[1]);
    let mut gathered = vec![0.0; count * world];
    with_placed_buffer(group, place, own, |group, data| group.all_gather_into(data, &mut gathered))?;
    check("all_gather", &gathered, &all.concat());
    let mut part = vec![0.0; count];
    let input = vec![own.as_slice(); world].concat();
    with_placed_buffer(group, place, &input, |group, data| {
        group.reduce_scatter(data, &mut part, ReduceOp::Sum)
    })?;
    check("reduce_scatter", &part, sum);

    let counts: Vec<usize> = (0..world).map(|rank| if rank == 2 { 0 } else { count / (rank + 1) }).collect();
    let shares: Vec<f32> = all.iter().zip(&counts).flat_map(|(all, &count)| &all[..count]).copied().collect();
    let mut is = None;
    with_placed_buffer(group, place, &own[..counts[me]], |group, data| {
        is = group.gather(data, &counts, root)?;
        Ok(())
    })?;
    check("gather", &is.unwrap_or_default(), if group.rank() == root { &shares } else { &[] });
    let mut is = Vec::new();
    with_placed_buffer(group, place, if group.rank() == root { &shares } else { &[] }, |group, data| {
        is = group.scatter(data, &counts, root)?;
        Ok(())
    })?;
    check("scatter", &is, &own[..counts[me]]);
    let (next, before) = ((me + 1) % world, (me + world - 1) % world);
    let mut is = vec![0.0; count];
    with_placed_buffer(group, place, own, |group, data| {
        if me == 0 {
            group.send(data, Rank(next as u32))?;
            group.receive(&mut is, Rank(before as u32))
        } else {
            group.receive(&mut is, Rank(before as u32))?;
            group.send(data, Rank(next as u32))
        }
    })?;
    check("receive", &is, &all[before]);
    Ok(())
}

#[test]
fn buffers_outlive_group_and_are_zeroed() {
    let ended = run_on(BackendChoice::Shm, (2, AMPLE), |mut group| {
        for _ in 0..3 {
            let mut buffer = group.buffer::<i64>(1 << 20);
            assert!(buffer.iter().all(|&value| value == 0));
            buffer.fill(7);
            group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        }
        let mut last = group.buffer::<i64>(1 << 18);
        last.fill(1);
        group.all_reduce(&mut last, ReduceOp::Sum).unwrap();
        group.leave();
        last.iter().sum::<i64>()
    });
    assert_eq!(ended, [Some(2 << 18); 2]);
}

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    let role = role.trim_start_matches("shm: ").to_owned();
    rankrun_worker::run(|context| match role.as_str() {
        "leaves nothing" => soak::leaves_nothing(context),
        "soak" => soak::soak(context),
        "forks" => kills::forks(context),
        "forks and calls" => kills::forks_and_calls(context),
        "say the backend" => limits::says_the_backend(context),
        "little room" => {
            let mut group = joined(context)?;
            let data = Data::new(group.world_size().get() as usize, 300_000);
            Ok(compare(&mut group, Place::Either, &data)?)
        }
        spare if spare.ends_with(" descriptors") => {
            limits::joins_short(context, spare.trim_end_matches(" descriptors"))
        }
        seed => kills::repeat(context, seed),
    })
}

fn joined(context: &WorkerContext) -> Result<Group, GroupError> {
    let options = rankrun_worker::GroupOptions { backend: Some(BackendChoice::Shm), ..options(AMPLE) };
    context.process_group(&options)
}

/// Random numbers that are the same on every rank.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// One call, chosen at random, on at most `most` elements.
pub(crate) fn any_call(group: &mut Group, random: &mut Random, most: usize) -> Result<(), GroupError> {
    let (me, world) = (group.rank(), group.world_size().get() as usize);
    let (which, shift) = (random.below(9), random.below(most.ilog2() as usize + 1));
    let count = random.below((most >> shift).max(1));
    let root = Rank(random.below(world) as u32);
    let place = Place::ALL[random.below(3)];
    let own = vec![1.0f32; count];
    let sum = with_placed_buffer(group, place, &own, |group, data| match which {
        0 => group.barrier(),
        1 => group.broadcast(data, root),
        2 => group.reduce(data, ReduceOp::Max, root),
        3 => group.all_gather(data).map(drop),
        4 => group.gather(data, &vec![count; world], root).map(drop),
        5 => group
            .scatter(&data.repeat(if me == root { world } else { 0 }), &vec![count; world], root)
            .map(drop),
        6 => group.reduce_scatter(&data.repeat(world), &mut vec![0.0; count], ReduceOp::Sum),
        7 if world > 1 && me == root => group.send(data, Rank((root.0 + 1) % world as u32)),
        7 if world > 1 && me.0 == (root.0 + 1) % world as u32 => group.receive(data, root),
        7 => Ok(()),
        _ => group.all_reduce(data, ReduceOp::Sum),
    })?;
    let expected = if which == 8 { world as f32 } else { 1.0 };
    assert!(sum.iter().all(|&value| value == expected), "call {which} of {count}");
    Ok(())
}

/// A rank with this role on this backend.
fn start_on(backend: &str, server: &Server, role: &str, (rank, world): (u32, u32)) -> Child {
    let vars = env(server, rank, world).to_vars().into_iter().chain([("RANKRUN_BACKEND", backend.into())]);
    start(&format!("shm: {role}"), vars)
}

/// Waits until a rank says that it is under way.
pub(crate) fn wait_for_line(rank: &mut Child) {
    drop(read_line_of(rank));
}

/// What a rank says when it is under way.
fn read_line_of(rank: &mut Child) -> String {
    let mut lines = BufReader::new(rank.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("under way")).unwrap_or_else(|| {
        let mut errors = String::new();
        rank.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("a rank ended: {:?}, {errors}", rank.wait());
    })
}

/// Runs a role on `world` ranks, and asserts that all end well.
fn all_end_well(role: &str, world: u32) {
    let server = Server::start();
    let ranks: Vec<Child> = (0..world).map(|rank| start(role, env(&server, rank, world).to_vars())).collect();
    for rank in ranks {
        let ended = rank.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr) + String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{role}: {stderr}");
    }
}

/// How many descriptors this process has.
pub(crate) fn descriptors() -> Result<usize, std::io::Error> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// How many segments are mapped.
pub(crate) fn segments() -> Result<usize, std::io::Error> {
    Ok(fs::read_to_string("/proc/self/maps")?.matches("memfd:rankrun").count())
}

/// A rank in namespaces of its own, as `unshare` makes them; this test has the rights, or those of a user namespace.
fn start_apart(
    role: &str,
    prefix: &[&str],
    vars: impl IntoIterator<Item = (&'static str, OsString)>,
) -> Child {
    let rights = if rustix::process::geteuid().is_root() { &[][..] } else { &["-Ur"] };
    start_under(&[&["unshare"], rights, prefix].concat(), role, vars)
}

/// A rank that this program starts, with these arguments before those of the rank.
fn start_under(
    program: &[&str],
    role: &str,
    vars: impl IntoIterator<Item = (&'static str, OsString)>,
) -> Child {
    let rank = std::env::current_exe().unwrap();
    let arguments = ["--exact", "process::main_of_a_started_rank", "--nocapture", "--test-threads=1", "-q"];
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(rank).args(arguments).env("RANKRUN_TEST_ROLE", role).envs(vars);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// An error with its cause.
fn error_text(error: &GroupError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
