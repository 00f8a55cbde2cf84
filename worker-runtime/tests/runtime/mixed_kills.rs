//! Ranks on several hosts as processes, killed at any moment, wherever the others wait.

#![expect(clippy::disallowed_methods, reason = "the test measures how long a loss takes")]
#![expect(clippy::print_stdout, reason = "a rank tells the test what it does")]

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, fork, pause};
use rankrun_worker::{Group, GroupError, Rank, ReduceOp, WorkerContext};

use crate::counts::{is_soak, times};
use crate::process::start;
use crate::server::Server;
use crate::shm::{Random, any_call, descriptors, segments, wait_for_line};
use crate::world::{AMPLE, env, options};

/// What a started rank does: `<hosts> <what>`, where each rank's host is a letter.
pub(crate) fn main(role: &str) -> ExitCode {
    let (hosts, what) = role.trim_start_matches("mixed: ").split_once(' ').unwrap();
    let (hosts, what) = (hosts.to_owned(), what.to_owned());
    rankrun_worker::run(move |context| {
        let before = (descriptors()?, segments()?);
        let group = joined(context, &hosts)?;
        match what.as_str() {
            "barrier" => again_and_again(group, Group::barrier),
            "all_reduce" => {
                again_and_again(group, |group| group.all_reduce(&mut vec![1.0f32; 4 << 20], ReduceOp::Sum))
            }
            "fork" => forks(group),
            seed => calls(group, seed.parse()?, before),
        }
    })
}

fn joined(context: &WorkerContext, hosts: &str) -> Result<Group, GroupError> {
    let at = context.rank().index();
    let mut group = context.clone().with_host(&hosts[at..=at]).process_group(&options(AMPLE))?;
    group.barrier()?;
    Ok(group)
}

/// Calls until one fails; what is left then of the group is an error, too.
fn calls(mut group: Group, seed: u64, before: (usize, usize)) -> Result<(), Box<dyn Error>> {
    let mut random = Random(seed);
    println!("under way");
    let error = loop {
        if let Err(error) = any_call(&mut group, &mut random, 1 << 20) {
            break error;
        }
    };
    drop(group);
    assert_eq!((descriptors()?, segments()?), before, "descriptors and segments are left");
    Err(error.into())
}

fn again_and_again(
    mut group: Group,
    call: fn(&mut Group) -> Result<(), GroupError>,
) -> Result<(), Box<dyn Error>> {
    println!("under way");
    loop {
        call(&mut group)?;
    }
}

/// Rank 1 has a child that keeps its connections open; rank 0 waits for rank 2, which does nothing.
fn forks(mut group: Group) -> Result<(), Box<dyn Error>> {
    if group.rank() == Rank(1) {
        // SAFETY: the child only waits for a signal.
        #[expect(unsafe_code, reason = "a child that has all that this process has")]
        match unsafe { fork()? } {
            ForkResult::Child => loop {
                pause();
            },
            ForkResult::Parent { child } => println!("child {child}"),
        }
    }
    println!("under way");
    if group.rank() == Rank(0) {
        return Ok(group.receive(&mut [0u8], Rank(2))?);
    }
    loop {
        pause();
    }
}

fn start_all(role: &str, hosts: &str, server: &Server) -> Vec<Child> {
    let world = hosts.len() as u32;
    let role = format!("mixed: {hosts} {role}");
    (0..world).map(|rank| start(&role, env(server, rank, world).to_vars())).collect()
}

fn signal(rank: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(rank.id()).unwrap()), signal).unwrap();
}

/// The errors of ranks that end by themselves, and how long after `since` each had ended.
fn errors(rank: Child, since: Instant) -> (String, Duration) {
    let ended = rank.wait_with_output().unwrap();
    (String::from_utf8_lossy(&ended.stderr).into_owned(), since.elapsed())
}

#[test]
fn killed_rank_is_named_within_a_second() {
    let seed = std::env::var("RANKRUN_SEED").ok().and_then(|seed| seed.parse().ok());
    // As in the launcher's tests: always the same, but in a soak run.
    let seed = seed.unwrap_or(if is_soak() { u64::from(std::process::id()) } else { 18 });
    println!("RANKRUN_SEED={seed}");
    let mut random = Random(seed);
    let mut slowest = Duration::ZERO;
    for round in 0..times(6, 120) {
        let hosts = ["aabb", "aab", "abab", "aaab", "aabc", "ab"][round % 6];
        let (server, role) = (Server::start(), random.below(1 << 30).to_string());
        let mut ranks = start_all(&role, hosts, &server);
        ranks.iter_mut().for_each(wait_for_line);
        let victim = random.below(hosts.len());
        // In the middle of something: calls take from microseconds to milliseconds.
        thread::sleep(Duration::from_micros(random.below(50_000) as u64));
        signal(&ranks[victim], Signal::SIGKILL);
        let killed = Instant::now();
        for (number, rank) in ranks.into_iter().enumerate() {
            let (errors, elapsed) = errors(rank, killed);
            if number != victim {
                let place =
                    format!("{hosts}, {role}, round {round}, rank {number}, {victim} was killed: {errors}");
                assert!(errors.contains(&format!("cannot finish: lost rank {victim},")), "{place}");
                assert!(elapsed < Duration::from_secs(1), "{elapsed:?}: {place}");
                slowest = slowest.max(elapsed);
            }
        }
    }
    println!("the slowest heard of it after {slowest:?}");
}

#[test]
fn remote_rank_death_is_detected_in_local_wait() {
    // It may have done its part before, and what it sent lies there, be it more than the kernel keeps.
    for (call, hosts, silent, killed) in [
        ("barrier", "aaab", 2, 3),
        ("barrier", "aaabb", 0, 4),
        ("barrier", "aabbb", 4, 1),
        ("all_reduce", "aab", 1, 2),
        ("all_reduce", "abb", 2, 0),
    ] {
        let server = Server::start();
        let mut ranks = start_all(call, hosts, &server);
        ranks.iter_mut().for_each(wait_for_line);
        signal(&ranks[silent], Signal::SIGSTOP);
        // All others come to wait for it.
        thread::sleep(Duration::from_millis(300));
        signal(&ranks[killed], Signal::SIGKILL);
        let since = Instant::now();
        let mut stopped = ranks.remove(silent);
        let ended: Vec<_> = ranks.into_iter().map(|rank| errors(rank, since)).collect();
        stopped.kill().unwrap();
        stopped.wait().unwrap();
        let numbers = (0..hosts.len()).filter(|&number| number != silent);
        for (number, (errors, elapsed)) in numbers.zip(ended).filter(|&(number, _)| number != killed) {
            let expected = format!("rank {number}: error: `{call}` cannot finish: lost rank {killed},");
            assert!(errors.contains(&expected), "{hosts}, rank {number}: {errors}");
            assert!(elapsed < Duration::from_secs(1), "{hosts}, rank {number}: {elapsed:?}");
        }
    }
}

#[test]
fn local_death_with_live_child_is_detected_in_remote_wait() {
    let server = Server::start();
    let mut ranks = start_all("fork", "aab", &server);
    wait_for_line(&mut ranks[2]);
    let mut lines = BufReader::new(ranks[1].stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.rsplit_once("child ").map(|(_, pid)| pid.to_owned()));
    let child = Pid::from_raw(line.expect("the rank forked").parse().unwrap());
    wait_for_line(&mut ranks[0]);
    ranks[1].kill().unwrap();
    let (errors, elapsed) = errors(ranks.remove(0), Instant::now());
    let outlived = kill(child, Signal::SIGKILL);
    for mut rank in ranks {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
    assert!(outlived.is_ok(), "the child outlives the rank");
    assert!(errors.contains("`receive` cannot finish: lost rank 1,"), "{errors}");
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
}
