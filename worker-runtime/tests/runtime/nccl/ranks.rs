//! Ranks as processes, with the fake: the rank that does not do its part is named.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{Backend, Collective, DataType, DeviceCollective, ProcessGroup};
use rankrun_worker::{GroupError, GroupOptions, Rank, ReduceOp, TcpStore, WorkerContext};

use super::place::{Folder, library_vars, start};
use super::scenes::{STREAM, memory};
use crate::server::Server;
use crate::world::{AMPLE, env};

/// What a rank does; the others of its job may do something else.
pub(super) fn scene(context: &WorkerContext, action: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (action, timeout) = action.rsplit_once(' ').unwrap();
    let timeout = Duration::from_millis(timeout.parse().unwrap());
    if let Some(choice) = action.strip_prefix("machine:") {
        return Ok(super::machine::scene(context, choice, timeout)?);
    }
    if let Some(what) = action.strip_prefix("ddp:") {
        return Ok(super::ddp::scene(context, what, timeout)?);
    }
    let options = GroupOptions { timeout, ..GroupOptions::default() };
    if action == "chosen" {
        let group = context.process_group(&options)?;
        assert_eq!(group.backend(), Backend::Nccl);
        return Ok(());
    }
    let mut group = NcclGroup::join(context, &options, None)?;
    println!("has joined");
    if let Some(rest) = action.strip_prefix("split:") {
        return Ok(split(&mut group, rest)?);
    }
    let mut data = vec![1.0_f32; if action == "other" { 8 } else { 4 }];
    let data = memory(&mut data);
    let put = |group: &mut NcclGroup, work: DeviceCollective<'_>| {
        // SAFETY: the fake touches no memory in a world of several ranks.
        unsafe { group.run_on_device(DataType::F32, work, STREAM) }
    };
    let reduce = || Collective::AllReduce { data, op: ReduceOp::Sum };
    match action {
        "call" | "other" => put(&mut group, reduce())?,
        "calls" => (0..3).try_for_each(|_| put(&mut group, reduce()))?,
        "receive" => put(&mut group, Collective::Receive { data, from: Rank(1) })?,
        "leave" => {
            group.leave();
            return Ok(());
        }
        "panic" => panic!("this rank fails"),
        _ => {}
    }
    println!("under way");
    if action == "nothing" {
        loop {
            std::thread::park();
        }
    }
    // SAFETY: the default stream is always there.
    Ok(unsafe { group.synchronize(STREAM) }?)
}

/// Splits off rank 1; the others become a group in reverse order, and call or not.
fn split(group: &mut NcclGroup, then: &str) -> Result<(), GroupError> {
    let rank = group.rank().0;
    let color = if rank == 1 { None } else { Some(4) };
    let Some(mut part) = group.split(color, 9 - rank)? else {
        assert_eq!(rank, 1);
        return Ok(());
    };
    assert_eq!((part.world_size().get(), part.backend()), (2, Backend::Nccl));
    assert_eq!(part.rank(), if rank == 0 { Rank(1) } else { Rank(0) });
    println!("under way");
    let data = memory(&mut [1.0_f32; 4]);
    // SAFETY: the fake touches no memory in a world of several ranks.
    unsafe {
        if then == "call" || rank == 0 {
            part.run_on_device(DataType::F32, Collective::AllReduce { data, op: ReduceOp::Sum }, STREAM)?;
            return part.synchronize(STREAM);
        }
    }
    loop {
        std::thread::park();
    }
}

/// The ranks of a job; those that are left at the end are killed.
pub(super) struct Job {
    server: Server,
    _folder: Folder,
    ranks: Vec<Child>,
}

impl Job {
    /// Starts ranks with what each does, its time in milliseconds and its orders to the fake; of `world_size`.
    pub(super) fn start(world_size: u32, ranks: &[(&str, u32, &str)]) -> Self {
        Self::start_with(world_size, ranks, &[])
    }

    /// The same with more variables.
    fn start_with(
        world_size: u32,
        ranks: &[(&str, u32, &str)],
        more: &[(&'static str, &'static str)],
    ) -> Self {
        let (server, folder) = (Server::start(), Folder::with_fakes());
        let started = (0..).zip(ranks).map(|(rank, (action, timeout, orders))| {
            let mut vars = library_vars(&folder.0, &format!("together=1 {orders}"));
            vars.extend(env(&server, rank, world_size).to_vars());
            vars.extend(more.iter().map(|(name, value)| (*name, (*value).into())));
            start(&format!("{action} {timeout}"), vars)
        });
        let ranks = started.collect();
        Self { server, _folder: folder, ranks }
    }

    /// Waits until a rank says so.
    pub(super) fn wait_for_line(&mut self, rank: usize, line_end: &str) {
        let output = self.ranks[rank].stdout.take().unwrap();
        let mut lines = BufReader::new(output);
        let is_said = (&mut lines).lines().map_while(Result::ok).any(|line| line.ends_with(line_end));
        // The lines after it are read at the end.
        self.ranks[rank].stdout = Some(lines.into_inner());
        if !is_said {
            panic!("rank {rank} did not say `{line_end}`: {}", self.errors(rank).1);
        }
    }

    pub(super) fn signal(&self, rank: usize, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.ranks[rank].id()).unwrap()), signal).unwrap();
    }

    /// How a rank ended, and what it said of it.
    pub(super) fn errors(&mut self, rank: usize) -> (Option<i32>, String) {
        let mut errors = String::new();
        let mut pipe = self.ranks[rank].stderr.take().unwrap();
        std::io::Read::read_to_string(&mut pipe, &mut errors).unwrap();
        (self.ranks[rank].wait().unwrap().code(), errors)
    }

    pub(super) fn assert_says(&mut self, rank: usize, message: &str) {
        let (code, errors) = self.errors(rank);
        assert_eq!(code, Some(1), "rank {rank}: {errors}");
        let expected = format!("rank {rank}: error: {message}");
        assert!(errors.contains(&expected), "rank {rank} said: {errors}, not: {expected}");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.kill());
            drop(rank.wait());
        }
    }
}

const HANGING_CALL: &str = "stuck=1";

#[test]
fn all_ranks_join_and_leave() {
    let mut job = Job::start(3, &[("calls", 20_000, ""), ("calls", 20_000, ""), ("calls", 20_000, "slow=2")]);
    for rank in 0..3 {
        let (code, errors) = job.errors(rank);
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn group_is_split() {
    let mut job = Job::start(3, &[("split:call", 60_000, ""); 3]);
    for rank in 0..3 {
        let (code, errors) = job.errors(rank);
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn sub_group_lost_rank_is_named_by_job_rank() {
    let mut job = Job::start(3, &[("split:wait", 60_000, HANGING_CALL); 3]);
    for rank in [0, 2] {
        job.wait_for_line(rank, "under way");
    }
    job.signal(2, Signal::SIGKILL);
    job.assert_says(0, "`all_reduce` cannot finish: lost rank 0 (rank 2 of the job), ");
}

#[test]
fn rank_missing_from_split_is_named() {
    let mut job = Job::start(2, &[("split:call", 1000, ""), ("nothing", 1000, "")]);
    job.assert_says(0, "`split` cannot finish: lost rank 1, which took no part within 1s");
}

#[test]
fn backend_variable_selects_nccl() {
    let mut job = Job::start_with(2, &[("chosen", 60_000, ""); 2], &[("RANKRUN_BACKEND", "nccl")]);
    for rank in 0..2 {
        let (code, errors) = job.errors(rank);
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn killed_rank_is_named_before_deadline() {
    let mut job = Job::start(3, &[("call", 60_000, HANGING_CALL); 3]);
    for rank in 0..3 {
        job.wait_for_line(rank, "under way");
    }
    job.signal(2, Signal::SIGKILL);
    for rank in 0..2 {
        job.assert_says(rank, "`all_reduce` cannot finish: lost rank 2, ");
    }
}

#[test]
fn panicked_rank_is_named() {
    let mut job = Job::start(2, &[("call", 60_000, HANGING_CALL), ("panic", 60_000, HANGING_CALL)]);
    job.assert_says(
        0,
        "`all_reduce` cannot finish: lost rank 1, which exited: its connection closed without a leave message",
    );
}

#[test]
fn departed_rank_is_named_when_needed() {
    let mut job = Job::start(2, &[("call", 60_000, HANGING_CALL), ("leave", 60_000, "")]);
    job.assert_says(0, "`all_reduce` cannot finish: lost rank 1, which has left the group");
}

#[test]
fn idle_rank_is_named_at_deadline() {
    let mut job =
        Job::start(3, &[("call", 1000, HANGING_CALL), ("nothing", 1000, ""), ("call", 1000, HANGING_CALL)]);
    for rank in [0, 2] {
        job.assert_says(rank, "`all_reduce` cannot finish: lost rank 1, ");
    }
}

#[test]
fn stopped_rank_is_named_at_deadline() {
    let mut job = Job::start(2, &[("call", 2000, HANGING_CALL), ("nothing", 2000, "")]);
    job.wait_for_line(1, "under way");
    job.signal(1, Signal::SIGSTOP);
    job.assert_says(0, "`all_reduce` cannot finish: lost rank 1, which took no part within 2s");
}

#[test]
fn silent_sender_is_named() {
    let mut job =
        Job::start(3, &[("receive", 1000, HANGING_CALL), ("nothing", 1000, ""), ("nothing", 1000, "")]);
    job.assert_says(0, "`receive` cannot finish: lost rank 1, which took no part within 1s");
}

#[test]
fn call_mismatch_names_both_calls() {
    let mut job = Job::start(2, &[("call", 1000, HANGING_CALL), ("other", 1000, HANGING_CALL)]);
    let (four, eight) = ("`all_reduce` (sum) of 4 f32", "`all_reduce` (sum) of 8 f32");
    let makes = |rank, other_call, own_call| {
        format!(
            "`all_reduce` cannot finish: rank {rank} makes call 1, {other_call} where this rank makes call 1, {own_call}"
        )
    };
    let errors = [job.errors(0).1, job.errors(1).1];
    let both = |error: &str| error.contains(four) && error.contains(eight) && error.contains("rank 1 makes");
    assert!(both(&errors[0]) || errors[0].contains(&makes(1, eight, four)), "{errors:?}");
    assert!(
        errors[1].contains("makes call 1, ") && errors[1].contains(four) && errors[1].contains(eight),
        "{errors:?}"
    );
}

#[test]
fn nccl_error_on_one_rank_reaches_all() {
    let mut job = Job::start(2, &[("call", 60_000, HANGING_CALL), ("call", 60_000, "stuck=1 async=2")]);
    job.assert_says(
        1,
        "`all_reduce` cannot finish: on rank 1: `ncclCommGetAsyncError` failed: a system call",
    );
    job.assert_says(
        0,
        "`all_reduce` cannot finish: on rank 1: `ncclCommGetAsyncError` failed: a system call",
    );
}

#[test]
fn nccl_error_names_lost_rank() {
    let mut job = Job::start(2, &[("call", 60_000, "stuck=1"), ("call", 60_000, "stuck=1")]);
    for rank in 0..2 {
        job.wait_for_line(rank, "under way");
    }
    job.signal(1, Signal::SIGKILL);
    job.assert_says(0, "`all_reduce` cannot finish: lost rank 1, ");
}

#[test]
fn absent_rank_is_named_at_deadline() {
    let mut job = Job::start(3, &[("call", 1000, ""), ("call", 1000, "")]);
    for rank in 0..2 {
        job.assert_says(rank, "`join` cannot finish: lost rank 2, ");
    }
}

#[test]
fn failed_init_rank_is_named_with_error() {
    let mut job = Job::start(
        2,
        &[("call", 60_000, "absent=1"), ("call", 60_000, "absent=1 fail=ncclCommInitRankConfig:2")],
    );
    job.assert_says(1, "NCCL cannot connect the ranks\n  caused by: `ncclCommInitRankConfig` failed: a system call failed (ncclSystemError, 2): fake.cc:1 the fake was told to fail\n  hint: check the network and the shared memory of this node; NCCL_DEBUG=INFO prints details");
    job.assert_says(0, "`join` cannot finish: on rank 1: `ncclCommInitRankConfig` failed: a system call");
}

#[test]
fn rank_killed_during_nccl_connect_is_named() {
    let mut job =
        Job::start(2, &[("call", 60_000, "absent=1"), ("call", 60_000, "freeze=ncclCommInitRankConfig")]);
    let store = TcpStore::connect("127.0.0.1", job.server.port(), AMPLE).unwrap();
    let arrived = [0, 1].map(|rank| format!("rankrun/group/default/life 0/1/nccl/arrived/{rank}"));
    store.wait(&[&arrived[0], &arrived[1]], AMPLE).unwrap();
    job.signal(1, Signal::SIGKILL);
    job.assert_says(
        0,
        "`join` cannot finish: lost rank 1, which exited: its connection closed without a leave message",
    );
}

#[test]
fn failed_nccl_connect_times_out() {
    let mut job = Job::start(2, &[("call", 1000, "absent=1"); 2]);
    for rank in 0..2 {
        let (code, errors) = job.errors(rank);
        assert_eq!(code, Some(1), "rank {rank}: {errors}");
        assert!(errors.contains("`join` cannot finish: on rank "), "{errors}");
        assert!(errors.contains("`ncclCommInitRankConfig` is not done within 1s"), "{errors}");
    }
}
