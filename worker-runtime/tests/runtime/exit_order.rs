//! The end of a rank as the others see it: a failure is reported before the others fail of it.

#![expect(clippy::print_stdout, reason = "a rank tells the test what it saw")]

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output};

use nix::sys::signal::{Signal, raise};
use rankrun_contract::report;
use rankrun_worker::process_group::{GroupError, GroupFailure, LossCause};
use rankrun_worker::{Group, GroupOptions, Rank, StoreError, WorkerContext};

use crate::process::start;
use crate::report::Folder;
use crate::server::Server;
use crate::world::{AMPLE, env, options};

/// The rank that fails or leaves.
const VICTIM: Rank = Rank(1);

const ROUNDS: usize = 5;

#[derive(Debug, thiserror::Error)]
enum PartError {
    #[error("failed, as asked")]
    AsAsked,
    /// Hides the error of the group from a walk over the causes.
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    rankrun_worker::run(|context| {
        let group = context.process_group(&options(AMPLE))?;
        match role.trim_start_matches("part: ") {
            "leave" => leave(context, group),
            "go on" => run_on_after_leave(context, group),
            how if context.rank() == VICTIM => fail(how, group),
            how => notice(how, context, group),
        }
    })
}

fn fail(how: &str, mut group: Group) -> Result<(), PartError> {
    group.barrier()?;
    match how {
        "panic" => panic!("as asked"),
        "kill" => raise(Signal::SIGKILL).map_err(|_| PartError::AsAsked),
        _ => Err(PartError::AsAsked),
    }
}

fn notice(how: &str, context: &WorkerContext, mut group: Group) -> Result<(), PartError> {
    // It may be gone before all others have heard of each other in the first one.
    let error = group.barrier().and_then(|()| group.barrier()).expect_err("one rank is gone");
    let own = context.env().and_then(|env| env.error_file.as_deref()).expect("an error file");
    println!("reported: {}", error_file(own.parent().expect("a folder"), VICTIM.0).exists());
    if how == "panic" && context.rank() == Rank(0) { panic!("{error}") } else { Err(error.into()) }
}

fn has_left(group: &mut Group) -> bool {
    let failure = GroupFailure::Lost { rank: VICTIM, cause: LossCause::Left };
    matches!(group.barrier(), Err(GroupError::Failed { failure: it, .. }) if it == failure)
}

fn leave(context: &WorkerContext, mut group: Group) -> Result<(), PartError> {
    let store = context.store(AMPLE)?;
    if context.rank() == VICTIM {
        group.leave();
        return Ok(store.wait(&["seen"], AMPLE)?);
    }
    assert!(has_left(&mut group));
    Ok(store.set("seen", b"1")?)
}

fn run_on_after_leave(context: &WorkerContext, mut group: Group) -> Result<(), PartError> {
    if context.rank() == VICTIM {
        drop(group);
    } else {
        assert!(has_left(&mut group));
    }
    let next = GroupOptions { name: "next".to_owned(), ..options(AMPLE) };
    Ok(context.process_group(&next)?.barrier()?)
}

fn error_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("error-{rank}.json"))
}

/// Lets all ranks do it to their end.
fn run_ranks(role: &str, world_size: u32, folder: &Path) -> Vec<Output> {
    let server = Server::start();
    let start = |rank| {
        let mut env = env(&server, rank, world_size);
        env.error_file = Some(error_file(folder, rank));
        start(role, env.to_vars())
    };
    let ranks: Vec<_> = (0..world_size).map(start).collect();
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

#[test]
fn failed_rank_reports_before_peers_fail() {
    for (how, world_size) in ["panic", "error", "kill"].into_iter().flat_map(|how| [(how, 2), (how, 4)]) {
        for _ in 0..ROUNDS {
            let folder = Folder::new();
            let ended = run_ranks(&format!("part: {how}"), world_size, &folder.0);
            for (rank, output) in (0..).zip(ended) {
                let (stdout, errors) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                let place = format!("`{how}`, rank {rank} of {world_size}: {stdout}{errors}");
                if how == "kill" && Rank(rank) == VICTIM {
                    continue;
                }
                assert_eq!(output.status.code(), Some(1), "{place}");
                let file = std::fs::read(error_file(&folder.0, rank)).expect("an error file");
                let report = report::parse(&file).expect("a report");
                if Rank(rank) == VICTIM {
                    assert_eq!(report.lost_rank, None, "{place}");
                    assert!(report.message.contains("as asked"), "{place}");
                } else {
                    assert_eq!(report.lost_rank, Some(VICTIM), "{place}");
                    assert!(!report.message.contains("left"), "{place}");
                    assert!(stdout.contains(&format!("reported: {}", how != "kill")), "{place}");
                }
            }
        }
    }
}

#[test]
fn rank_that_leaves_and_runs_on_is_reported() {
    for role in ["part: leave", "part: go on"] {
        let folder = Folder::new();
        for output in run_ranks(role, 2, &folder.0) {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "`{role}`: {errors}");
        }
    }
}
