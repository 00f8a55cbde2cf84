//! One run of an elastic worker: its group, its result, and its log lines.

use std::process::{ExitCode, Output};

use rankrun_contract::env::ERROR_FILE;
use rankrun_contract::report::{self, ErrorReport};
use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions, StateDict};
use rankrun_worker::{ReduceOp, run_elastic, trace};

use crate::process::start;
use crate::report::Folder;
use crate::server::Server;
use crate::world::env;

/// Where the started ranks keep their checkpoints.
const FOLDER: &str = "RANKRUN_TEST_FOLDER";

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(std::io::stderr)
        .init();
    run_elastic(|mut run| -> Result<(), Box<dyn std::error::Error>> {
        #[expect(clippy::disallowed_methods, reason = "the test says by the environment where")]
        let folder = std::env::var_os(FOLDER).ok_or("no folder")?;
        let mut sum = [1.0f32];
        let _span = trace::step_span(7);
        run.group.all_reduce(&mut sum, ReduceOp::Sum)?;
        tracing::info!(sum = sum[0], "summed");
        let mut checkpoint = Checkpoint::open(&run.context, &CheckpointOptions::new(folder))?;
        if role == "elastic: fail" && run.rank().0 == 1 {
            return Err("the data are gone".into());
        }
        if role == "elastic: load" {
            let loaded = checkpoint.load_latest(&mut StateDict::new().replicated("sum", &[1], &mut sum))?;
            assert_eq!(loaded.map(|loaded| loaded.step), Some(7));
            return Ok(());
        }
        checkpoint.save(7, &StateDict::new().replicated("sum", &[1], &mut sum))?;
        Ok(())
    })
}

/// Both ranks of a world, with what their error files say.
fn run_two_ranks(role: &str) -> [(Output, Option<ErrorReport>); 2] {
    run_two_ranks_in(&Folder::new(), role)
}

/// Both ranks of a world that keeps its checkpoints in this folder.
fn run_two_ranks_in(folder: &Folder, role: &str) -> [(Output, Option<ErrorReport>); 2] {
    let server = Server::start();
    let started = [0, 1].map(|rank| {
        let file = folder.0.join(format!("error {rank}"));
        let mut vars = env(&server, rank, 2).to_vars();
        vars.push((ERROR_FILE, file.clone().into_os_string()));
        vars.push((FOLDER, folder.0.join("state").into_os_string()));
        (start(role, vars), file)
    });
    started.map(|(rank, file)| {
        let output = rank.wait_with_output().unwrap();
        (output, std::fs::read(file).ok().map(|bytes| report::parse(&bytes).unwrap()))
    })
}

#[test]
fn elastic_run_has_group_and_rank_in_logs() {
    for (rank, (output, report)) in run_two_ranks("elastic: fine").into_iter().enumerate() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), report), (Some(0), None), "{stderr}");
        let worker = format!("worker{{rank={rank} world_size=2 restart=0}}:step{{step=7}}: ");
        let line = stderr.lines().find(|line| line.contains("summed")).unwrap();
        assert!(
            line.contains(&worker) && line.contains("INFO") && line.ends_with("summed sum=2.0"),
            "{stderr}"
        );
        let saved = stderr.lines().find(|line| line.contains(": saved"));
        assert_eq!(saved.is_some(), rank == 0, "{stderr}");
        let span = "checkpoint_save{rank=0 step=7}: ";
        assert!(saved.is_none_or(|line| line.contains(span)), "{stderr}");
    }
}

#[test]
fn damaged_checkpoint_is_reported_once() {
    let folder = Folder::new();
    let both =
        |role| run_two_ranks_in(&folder, role).map(|(output, _)| (output.status.code(), output.stderr));
    assert!(both("elastic: fine").iter().all(|(code, _)| *code == Some(0)));
    let damaged = folder.0.join("state/step-0000000009.safetensors");
    std::fs::write(&damaged, b"torn").unwrap();
    let [first, second] = both("elastic: load").map(|(code, stderr)| {
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(code, Some(0), "{stderr}");
        stderr
    });
    let expected = format!(
        "rank 0: warning: skipped the checkpoint `{}`: torn: it has 4 bytes, and should have 8\n  the training goes on from \
         the checkpoint of step 7\n",
        damaged.display()
    );
    assert_eq!(
        (first.matches(&expected).count(), second.contains("warning: ")),
        (1, false),
        "{first}{second}"
    );
}

#[test]
fn elastic_run_ended_by_another_rank_names_it() {
    let [(survivor, survivor_failure), (failed, cause)] = run_two_ranks("elastic: fail");
    assert_eq!((survivor.status.code(), failed.status.code()), (Some(1), Some(1)));
    let (survivor_failure, cause) = (survivor_failure.unwrap(), cause.unwrap());
    assert_eq!((cause.message.as_str(), cause.lost_rank), ("the data are gone", None));
    assert_eq!(survivor_failure.lost_rank, Some(rankrun_worker::Rank(1)), "{}", survivor_failure.message);
}
