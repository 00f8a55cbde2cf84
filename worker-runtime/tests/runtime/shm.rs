//! Shared memory: every way a call can take gives the same bits, a rank may die at any moment, and nothing is left behind.

#![expect(
    clippy::disallowed_methods,
    reason = "the test starts programs, and measures how long a loss takes"
)]
#![expect(clippy::print_stdout, reason = "a rank tells the test what it does")]

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork};
use rankrun_worker::process_group::Wish;
use rankrun_worker::{Group, GroupError, Rank, Reduction, TcpStore, WorkerContext};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, env, join_on, options, run_on};

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
fn at<R>(
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

/// Values whose sums depend on their order.
fn values(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + rank * 13) % 1009) as f32 / 3.0 * 10f32.powi(rank as i32)).collect()
}

#[test]
fn every_way_gives_the_same_bits() {
    for world in [2u32, 3] {
        let ended = run_on(Wish::Shm, (world, AMPLE), |mut group| {
            for bytes in BORDERS {
                for count in [bytes / 4, bytes / 4 + 1, (bytes / 4).saturating_sub(1)] {
                    for place in Place::ALL {
                        compare(&mut group, place, count).unwrap();
                    }
                }
            }
        });
        assert!(ended.iter().all(Option::is_some), "{world} ranks");
    }
}

/// Every call on `count` elements of each rank.
fn compare(group: &mut Group, place: Place, count: usize) -> Result<(), GroupError> {
    let (me, world) = (group.rank().index(), group.world_size().get() as usize);
    let root = Rank(1);
    let all: Vec<Vec<f32>> = (0..world).map(|rank| values(rank, count)).collect();
    let own = &all[me];
    let mut sum = all[0].clone();
    for other in &all[1..] {
        sum.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
    }
    let check = |what: &str, is: &[f32], expected: &[f32]| {
        let same = is.len() == expected.len()
            && is.iter().zip(expected).all(|(one, other)| one.to_bits() == other.to_bits());
        assert!(same, "{what} of {count} elements, {place:?}, rank {me} of {world}");
    };
    let reduced = at(group, place, own, |group, data| group.all_reduce(data, Reduction::Sum))?;
    check("all_reduce", &reduced, &sum);
    let reduced = at(group, place, own, |group, data| group.reduce(data, Reduction::Sum, root))?;
    check("reduce", &reduced, if group.rank() == root { &sum } else { own });
    let received = at(group, place, own, |group, data| group.broadcast(data, root))?;
    check("broadcast", &received, &all[1]);
    let mut gathered = vec![0.0; count * world];
    at(group, place, own, |group, data| group.all_gather_into(data, &mut gathered))?;
    check("all_gather", &gathered, &all.concat());
    let mut part = vec![0.0; count];
    let input = vec![own.as_slice(); world].concat();
    at(group, place, &input, |group, data| group.reduce_scatter(data, &mut part, Reduction::Sum))?;
    check("reduce_scatter", &part, &sum);

    let counts: Vec<usize> = (0..world).map(|rank| if rank == 2 { 0 } else { count / (rank + 1) }).collect();
    let shares: Vec<f32> = all.iter().zip(&counts).flat_map(|(all, &count)| &all[..count]).copied().collect();
    let mut is = None;
    at(group, place, &own[..counts[me]], |group, data| {
        is = group.gather(data, &counts, root)?;
        Ok(())
    })?;
    check("gather", &is.unwrap_or_default(), if group.rank() == root { &shares } else { &[] });
    let mut is = Vec::new();
    at(group, place, if group.rank() == root { &shares } else { &[] }, |group, data| {
        is = group.scatter(data, &counts, root)?;
        Ok(())
    })?;
    check("scatter", &is, &own[..counts[me]]);
    let (next, before) = ((me + 1) % world, (me + world - 1) % world);
    let mut is = vec![0.0; count];
    at(group, place, own, |group, data| {
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
fn buffers_outlive_their_group_and_come_back_as_zeros() {
    let ended = run_on(Wish::Shm, (2, AMPLE), |mut group| {
        for _ in 0..3 {
            let mut buffer = group.buffer::<i64>(1 << 20);
            assert!(buffer.iter().all(|&value| value == 0));
            buffer.fill(7);
            group.all_reduce(&mut buffer, Reduction::Sum).unwrap();
        }
        let mut last = group.buffer::<i64>(1 << 18);
        last.fill(1);
        group.all_reduce(&mut last, Reduction::Sum).unwrap();
        group.leave();
        last.iter().sum::<i64>()
    });
    assert_eq!(ended, [Some(2 << 18); 2]);
}

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    let role = role.trim_start_matches("shm: ").to_owned();
    rankrun_worker::run(|context| match role.as_str() {
        "leaves nothing" => leaves_nothing(context),
        "soak" => soak(context),
        "forks and dies" => forks_and_dies(context),
        "little room" => Ok(compare(&mut joined(context)?, Place::Either, 300_000)?),
        spare if spare.ends_with(" descriptors") => {
            joins_short(context, spare.trim_end_matches(" descriptors"))
        }
        operation => repeat(context, operation),
    })
}

fn joined(context: &WorkerContext) -> Result<Group, GroupError> {
    let options = rankrun_worker::GroupOptions { backend: Some(Wish::Shm), ..options(AMPLE) };
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
    let sum = at(group, place, &own, |group, data| match which {
        0 => group.barrier(),
        1 => group.broadcast(data, root),
        2 => group.reduce(data, Reduction::Max, root),
        3 => group.all_gather(data).map(drop),
        4 => group.gather(data, &vec![count; world], root).map(drop),
        5 => group
            .scatter(&data.repeat(if me == root { world } else { 0 }), &vec![count; world], root)
            .map(drop),
        6 => group.reduce_scatter(&data.repeat(world), &mut vec![0.0; count], Reduction::Sum),
        7 if world > 1 && me == root => group.send(data, Rank((root.0 + 1) % world as u32)),
        7 if world > 1 && me.0 == (root.0 + 1) % world as u32 => group.receive(data, root),
        7 => Ok(()),
        _ => group.all_reduce(data, Reduction::Sum),
    })?;
    let expected = if which == 8 { world as f32 } else { 1.0 };
    assert!(sum.iter().all(|&value| value == expected), "call {which} of {count}");
    Ok(())
}

/// Calls until one fails.
fn repeat(context: &WorkerContext, operation: &str) -> Result<(), Box<dyn Error>> {
    let mut group = joined(context)?;
    let mut random = Random(operation.parse()?);
    group.barrier()?;
    println!("under way");
    loop {
        any_call(&mut group, &mut random, 1 << 20)?;
    }
}

/// How many steps, and kills, there are: many with `RANKRUN_SOAK=1`.
pub(crate) fn times(usually: usize, soak: usize) -> usize {
    if std::env::var_os("RANKRUN_SOAK").is_some() { soak } else { usually }
}

#[test]
fn a_rank_killed_at_any_moment_is_named_by_all_others_within_a_second() {
    let seed = Instant::now().elapsed().subsec_nanos() as usize + std::process::id() as usize;
    let mut random = Random(seed as u64);
    for round in 0..times(5, 100) {
        let server = Server::start();
        let role = format!("shm: {}", random.below(1 << 30));
        let mut ranks: Vec<Child> =
            (0..4).map(|rank| start(&role, env(&server, rank, 4).to_vars())).collect();
        ranks.iter_mut().for_each(await_word);
        let victim = random.below(4);
        // In the middle of something: calls take from microseconds to milliseconds.
        thread::sleep(Duration::from_micros(random.below(30_000) as u64));
        kill(Pid::from_raw(i32::try_from(ranks[victim].id()).unwrap()), Signal::SIGKILL).unwrap();
        let killed = Instant::now();
        for (number, rank) in ranks.into_iter().enumerate() {
            let ended = rank.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&ended.stderr);
            if number != victim {
                let place = format!("{role}, round {round}, rank {number}, {victim} was killed: {errors}");
                assert!(errors.contains(&format!("cannot finish: lost rank {victim},")), "{place}");
                assert!(killed.elapsed() < Duration::from_secs(1), "{:?}: {place}", killed.elapsed());
            }
        }
    }
}

pub(crate) fn await_word(rank: &mut Child) {
    let mut lines = BufReader::new(rank.stdout.take().unwrap()).lines().map_while(Result::ok);
    if !lines.any(|line| line.ends_with("under way")) {
        let mut errors = String::new();
        rank.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        panic!("a rank ended: {:?}, {errors}", rank.wait());
    }
}

/// Runs a role on `world` ranks, and asserts that all end well.
fn all_end_well(role: &str, world: u32) {
    let server = Server::start();
    let ranks: Vec<Child> = (0..world).map(|rank| start(role, env(&server, rank, world).to_vars())).collect();
    for rank in ranks {
        let ended = rank.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr) + String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{role}: {said}");
    }
}

#[test]
fn a_group_that_is_gone_leaves_nothing() {
    all_end_well("shm: leaves nothing", 3);
}

fn leaves_nothing(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
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

/// How many descriptors this process has.
fn descriptors() -> Result<usize, std::io::Error> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// How many segments are mapped.
fn segments() -> Result<usize, std::io::Error> {
    Ok(fs::read_to_string("/proc/self/maps")?.matches("memfd:rankrun").count())
}

/// KiB of this process that are in memory.
fn resident() -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[test]
fn many_steps_take_no_more_memory_than_few() {
    all_end_well("shm: soak", 4);
}

/// Calls of all ranks and of random sub-groups.
fn soak(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
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

#[test]
fn a_forked_child_does_not_keep_a_dead_rank_alive() {
    let server = Server::start();
    let mut ranks: Vec<Child> =
        (0..2).map(|rank| start("shm: forks and dies", env(&server, rank, 2).to_vars())).collect();
    let mut lines = BufReader::new(ranks[1].stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.rsplit_once("child ").map(|(_, pid)| pid.to_owned()));
    let child = Pid::from_raw(line.expect("the rank forked").parse().unwrap());
    ranks[1].kill().unwrap();
    let killed = Instant::now();
    let ended = ranks.remove(0).wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    let elapsed = killed.elapsed();
    assert!(kill(child, None).is_ok(), "the child outlives the rank");
    kill(child, Signal::SIGKILL).unwrap();
    ranks[0].wait().unwrap();
    assert!(errors.contains("cannot finish: lost rank 1,"), "{errors}");
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
}

fn forks_and_dies(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut group = joined(context)?;
    group.barrier()?;
    if group.rank() == Rank(1) {
        // SAFETY: the child only waits for a signal.
        #[expect(unsafe_code, reason = "a child that has all that this process has")]
        match unsafe { fork()? } {
            ForkResult::Child => loop {
                nix::unistd::pause();
            },
            ForkResult::Parent { child } => println!("child {child}"),
        }
        loop {
            nix::unistd::pause();
        }
    }
    Ok(group.barrier()?)
}

/// A rank in namespaces of its own, as `unshare` makes them; this test has the rights, or those of a user namespace.
fn start_apart(role: &str, how: &[&str], vars: impl IntoIterator<Item = (&'static str, OsString)>) -> Child {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "process::main_of_a_started_rank", "--nocapture", "--test-threads=1", "-q"];
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("-Ur");
    }
    command.args(how).arg(program).args(arguments).env("RANKRUN_TEST_ROLE", role).envs(vars);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn little_room_does_not_matter() {
    for script in [
        "mount -t tmpfs -o size=64k tmpfs /dev/shm",
        "ulimit -f 100000",
        "ulimit -v 1000000",
        // It cannot map what the other one has made.
        "[ $RANK = 0 ] || ulimit -v 1000000",
    ] {
        let server = Server::start();
        let script = format!("{script} && exec \"$@\"");
        let how = ["-m", "sh", "-c", &script, "sh"];
        let start = |rank| start_apart("shm: little room", &how, env(&server, rank, 2).to_vars());
        let ranks: Vec<Child> = (0..2).map(start).collect();
        for rank in ranks {
            let ended = rank.wait_with_output().unwrap();
            assert!(ended.status.success(), "{script}: {}", String::from_utf8_lossy(&ended.stderr));
        }
    }
}

#[test]
fn no_room_at_all_is_an_error_that_says_so() {
    let server = Server::start();
    let how = ["sh", "-c", "ulimit -f 10 && exec \"$@\"", "sh"];
    let start = |rank| start_apart("shm: little room", &how, env(&server, rank, 2).to_vars());
    let mut first = start(0);
    let other = start(1);
    let mut errors = String::new();
    first.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(1), "{errors}");
    assert!(errors.contains("bytes of shared memory (limits: `ulimit -v`, `ulimit -f`"), "{errors}");
    let ended = other.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("rank 0 could not make it, as its own error says"), "{errors}");
}

#[test]
fn a_rank_without_descriptors_says_so_and_blames_nobody() {
    for (backend, short, spare) in [("tcp", 0, 3), ("tcp", 2, 3), ("shm", 0, 2), ("shm", 0, 3), ("shm", 1, 2)]
    {
        let server = Server::start();
        let start = |rank| {
            let role = if rank == short { format!("shm: {spare} descriptors") } else { "barrier".to_owned() };
            start(
                &role,
                env(&server, rank, 3).to_vars().into_iter().chain([("RANKRUN_BACKEND", backend.into())]),
            )
        };
        let mut ranks: Vec<Child> = (0..3).map(start).collect();
        let ended = ranks.remove(short as usize).wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        let is_own = errors.contains("Too many open files") && errors.contains("ulimit -n");
        assert!(is_own && !errors.contains("lost rank"), "{backend}, rank {short}, {spare}: {errors}");
        for mut rank in ranks {
            rank.kill().unwrap();
            rank.wait().unwrap();
        }
    }
}

/// Joins where this process may open so many files more; the first two are connections to the store.
fn joins_short(context: &WorkerContext, spare: &str) -> Result<(), Box<dyn Error>> {
    let is_free = |number: &u64| fs::read_link(format!("/proc/self/fd/{number}")).is_err();
    let limit = (0..).filter(is_free).nth(spare.parse()?);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    Ok(context.process_group(&options(AMPLE)).map(drop)?)
}

#[test]
fn ranks_of_different_pid_namespaces_see_each_other_die() {
    for victim in [0, 1] {
        let server = Server::start();
        let start = |rank| start_apart("shm: 8", &["-pf", "--kill-child"], env(&server, rank, 2).to_vars());
        let mut ranks: Vec<Child> = (0..2).map(start).collect();
        ranks.iter_mut().for_each(await_word);
        // The rank ends with the `unshare` that waits for it.
        let mut killed = ranks.remove(victim);
        killed.kill().unwrap();
        let since = Instant::now();
        let ended = ranks.remove(0).wait_with_output().unwrap();
        killed.wait().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(errors.contains(&format!("cannot finish: lost rank {victim},")), "{errors}");
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    }
}

const PLACE: &str = "rankrun/group/default/life 0/1";
const KEY: &str = "shared memory";

/// The store as the group sees it, where rank `absent` seems to be.
fn place(server: &Server, present: u32, absent: u32) -> TcpStore {
    let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
    let record = store.get(&format!("record/{present}")).unwrap();
    store.set(&format!("record/{absent}"), &record).unwrap();
    store
}

/// How rank 0 is reached, and the token.
fn socket_of(store: &TcpStore) -> (SocketAddr, String) {
    let value = String::from_utf8(store.get(KEY).unwrap()).unwrap();
    let (name, token) = value.split_once(' ').unwrap();
    (SocketAddr::from_abstract_name(format!("rankrun {name}")).unwrap(), token.to_owned())
}

fn greeting(version: u32, token: &str, [world, rank]: [u32; 2]) -> Vec<u8> {
    let numbers = [world, rank].map(u32::to_le_bytes).concat();
    [b"rankrun shm\n", &version.to_le_bytes()[..], token.as_bytes(), &numbers].concat()
}

#[test]
fn strangers_at_the_socket_neither_join_nor_hold_up_the_ranks() {
    let server = Server::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| join_on(Wish::Shm, &server, (0, 2), AMPLE));
        let (address, token) = socket_of(&place(&server, 0, 1));
        let connect = || UnixStream::connect_addr(&address).unwrap();
        let _silent = connect();
        let mut beginning = connect();
        beginning.write_all(b"rankrun shm\n").unwrap();
        for garbage in [
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            vec![0; 4096],
            greeting(1, &"0".repeat(36), [2, 1]),
            greeting(1, &token, [2, 0]),
            greeting(1, &token, [2, 2]),
            greeting(1, &token, [3, 1]),
        ] {
            let mut stranger = connect();
            stranger.write_all(&garbage).unwrap();
            assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
        }
        let mut second = join_on(Wish::Shm, &server, (1, 2), AMPLE).unwrap();
        let mut first = first.join().unwrap().unwrap();
        let barrier = scope.spawn(move || first.barrier());
        second.barrier().unwrap();
        barrier.join().unwrap().unwrap();
    });
}

fn told(error: &GroupError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

#[test]
fn a_rank_with_another_layout_is_named_on_both_sides() {
    let server = Server::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| join_on(Wish::Shm, &server, (0, 2), AMPLE).unwrap_err());
        let (address, token) = socket_of(&place(&server, 0, 1));
        let mut second = UnixStream::connect_addr(&address).unwrap();
        second.write_all(&greeting(7, &token, [2, 1])).unwrap();
        let error = told(&first.join().unwrap());
        assert!(
            error.contains("rank 1 lays shared memory out in version 7, this rank in version 1"),
            "{error}"
        );
        let mut answer = [0; 24];
        second.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..16], *b"rankrun\n\x01\0\0\0\x01\0\0\0");
    });
}

/// What rank 1 says when rank 0 answers so.
fn answer_to_rank_1(answer: &[u8], file: Option<OwnedFd>) -> String {
    let server = Server::start();
    thread::scope(|scope| {
        let second = scope.spawn(|| join_on(Wish::Shm, &server, (1, 2), AMPLE).unwrap_err());
        let store = place(&server, 1, 0);
        let name = format!("test-{}-{}", std::process::id(), server.port());
        let address = SocketAddr::from_abstract_name(format!("rankrun {name}")).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        store.set(KEY, format!("{name} {}", "t".repeat(36)).as_bytes()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = vec![0; 60];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, greeting(1, &"t".repeat(36), [2, 1]));
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        sendmsg(&stream, &[IoSlice::new(answer)], &mut control, SendFlags::empty()).unwrap();
        drop((stream, listener));
        told(&second.join().unwrap())
    })
}

fn answer(code: u32, version: u32) -> Vec<u8> {
    [b"rankrun\n", &code.to_le_bytes()[..], &version.to_le_bytes(), &0u64.to_le_bytes()].concat()
}

#[test]
fn what_is_no_shared_memory_is_not_used() {
    let strange = "no shared memory for the ranks of this host: rank 0 passes what is not the shared memory";
    for (bytes, file) in [
        (answer(0, 1), None),
        (answer(0, 1), Some(fs::File::open("/dev/null").unwrap().into())),
        (b"HTTP/1.1 200 OK\r\n\r\n hello".to_vec(), None),
        (answer(9, 1), None),
    ] {
        let error = answer_to_rank_1(&bytes, file);
        assert!(error.starts_with(strange), "{error}");
    }
    let error = answer_to_rank_1(&answer(1, 5), None);
    assert!(error.contains("rank 0 lays shared memory out in version 5, this rank in version 1"), "{error}");
    let error = answer_to_rank_1(&answer(2, 1), None);
    assert!(error.contains("rank 0 runs as another user"), "{error}");
    // It goes away in the middle of its answer.
    let error = answer_to_rank_1(&answer(0, 1)[..20], None);
    assert!(error.contains("lost rank 0, which closed its connection"), "{error}");
}
