//! Ranks that are killed at any moment, in any call.

#![expect(clippy::print_stdout, reason = "a rank tells the test what it does")]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rankrun_worker::{AsyncGroup, Rank, ReduceOp, WorkerContext};

use super::{Random, any_call, descriptors, read_line_of, segments, start_apart, start_on, wait_for_line};
use crate::counts::times;
use crate::server::Server;
use crate::world::{AMPLE, env, options};

/// Calls until one fails; what is left then of the group is an error, too.
pub(super) fn repeat(context: &WorkerContext, seed: &str) -> Result<(), Box<dyn Error>> {
    let (files, maps) = (descriptors()?, segments()?);
    let mut group = context.process_group(&options(AMPLE))?;
    let mut random = Random(seed.parse()?);
    group.barrier()?;
    println!("under way on {}", group.backend());
    let error = loop {
        if let Err(error) = any_call(&mut group, &mut random, 1 << 20) {
            break error;
        }
    };
    drop(group);
    assert_eq!((descriptors()?, segments()?), (files, maps), "descriptors and segments are left");
    Err(error.into())
}

/// Kills one of four ranks in the middle of something, many times.
fn kill_at_random(backend: &str) {
    let seed = Instant::now().elapsed().subsec_nanos() as usize + std::process::id() as usize;
    let mut random = Random(seed as u64);
    for round in 0..times(5, 100) {
        let server = Server::start();
        let role = random.below(1 << 30).to_string();
        let start = |rank| start_on(backend, &server, &role, (rank, 4));
        let mut ranks: Vec<Child> = (0..4).map(start).collect();
        for rank in &mut ranks {
            let line = read_line_of(rank);
            assert!(line.ends_with(&format!("under way on {backend}")), "{line}");
        }
        let victim = random.below(4);
        // Calls take from microseconds to milliseconds.
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

#[test]
fn killed_rank_is_named_within_a_second() {
    kill_at_random("shm");
}

#[test]
fn killed_rank_over_tcp_is_named_within_a_second() {
    kill_at_random("tcp");
}

#[test]
fn forked_child_does_not_hide_rank_death() {
    for backend in ["shm", "tcp"] {
        let server = Server::start();
        let mut ranks: Vec<Child> =
            (0..2).map(|rank| start_on(backend, &server, "forks", (rank, 2))).collect();
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
        assert!(errors.contains("cannot finish: lost rank 1,"), "{backend}: {errors}");
        assert!(elapsed < Duration::from_secs(1), "{backend}: {elapsed:?}");
    }
}

/// Rank 1 forks a child, and neither of the two does anything more.
pub(super) fn forks(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut group = context.process_group(&options(AMPLE))?;
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

#[test]
fn forked_child_does_not_affect_group() {
    for backend in ["shm", "tcp"] {
        let server = Server::start();
        let start = |rank| start_on(backend, &server, "forks and calls", (rank, 2));
        for rank in (0..2).map(start).collect::<Vec<Child>>() {
            let ended = rank.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.success(), "{backend}: {stderr}");
        }
    }
}

/// Each rank forks a child that makes calls and ends as any program does; then the ranks go on.
pub(super) fn forks_and_calls(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut group = context.process_group(&options(AMPLE))?;
    let parts = group.split(Some(0), 0)?.ok_or("a color was said")?;
    let queue = AsyncGroup::new(parts)?;
    let [mut buffer, before] = [0; 2].map(|_| group.buffer::<f32>(1 << 18));
    buffer.fill(1.0);
    // Kept until it is known how the program ends, which the child does not decide.
    drop(group.split(Some(0), 0)?);
    // SAFETY: the child does what the program does. No other thread of it holds a lock that it takes.
    #[expect(unsafe_code, reason = "a child that has all that this process has")]
    let child = match unsafe { fork()? } {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            group.buffer::<f32>(1 << 18).fill(7.0);
            drop(before);
            let errors = [
                group.barrier().unwrap_err(),
                queue.all_reduce(vec![1.0f32], ReduceOp::Sum).wait().unwrap_err(),
            ];
            let rank = group.rank();
            let expected =
                format!("this process is a fork of rank {rank} and cannot use the groups of its parent");
            let other = errors.into_iter().find(|error| error.to_string() != expected);
            return other.map_or(Ok(()), |error| Err(error.into()));
        }
    };
    assert_eq!(waitpid(child, None)?, WaitStatus::Exited(child, 0));
    let [fresh, sum] = [group.buffer::<f32>(1 << 18), queue.all_reduce(before, ReduceOp::Sum).wait()?];
    assert!(fresh.iter().chain(&*sum).all(|&value| value == 0.0), "nothing of the child is in our memory");
    group.all_reduce(&mut buffer, ReduceOp::Sum)?;
    assert!(buffer.iter().all(|&value| value == 2.0));
    Ok(())
}

#[test]
fn rank_death_is_detected_across_pid_namespaces() {
    for victim in [0, 1] {
        let server = Server::start();
        let start = |rank| start_apart("shm: 8", &["-pf", "--kill-child"], env(&server, rank, 2).to_vars());
        let mut ranks: Vec<Child> = (0..2).map(start).collect();
        ranks.iter_mut().for_each(wait_for_line);
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
