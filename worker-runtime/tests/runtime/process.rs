//! Ranks as processes: this test program starts itself again, with a test as the rank's `main`.

#![expect(
    clippy::disallowed_methods,
    reason = "the test starts and kills ranks, and a rank reads its variables"
)]
#![expect(clippy::print_stdout, reason = "a rank tells the test that it is under way")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rankrun_worker::{Group, GroupError, GroupOptions, Rank, ReduceOp, WorkerContext};

use crate::server::Server;
use crate::world::env;

/// Says to a started rank what to do.
const ROLE: &str = "RANKRUN_TEST_ROLE";

/// This program as `role`, with nothing but `vars` of a launcher's variables.
pub(crate) fn start(role: &str, vars: impl IntoIterator<Item = (&'static str, std::ffi::OsString)>) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::main_of_a_started_rank", "--nocapture", "--test-threads=1", "-q"])
        .env(ROLE, role)
        .envs(vars)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn main_of_a_started_rank() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.to_str().unwrap().to_owned();
    let code = match role.as_str() {
        "panic" | "panic in a thread" | "error" | "fine" => crate::report::main(&role),
        role if role.starts_with("error: ") => crate::report::main(role),
        "split" => crate::split::main(),
        "splits" => crate::split::soak(),
        "meet" => crate::rendezvous::main(),
        "pair" => crate::pair::main(),
        role if role.starts_with("elastic: ") => crate::elastic::main(role),
        role if role.starts_with("shm: ") => crate::shm::main(role),
        #[cfg(feature = "cuda")]
        role if role.starts_with("cuda: ") => crate::cuda::main(role),
        role if role.starts_with("mixed: ") => crate::mixed_kills::main(role),
        #[cfg(feature = "nccl")]
        role if role.starts_with("nccl: ") => crate::nccl::main(role),
        role if role.starts_with("part: ") => crate::exit_order::main(role),
        _ => rankrun_worker::run(|context| repeat(context, &role)),
    };
    exit(code);
}

#[expect(clippy::exit, reason = "the harness would make a status of its own")]
fn exit(code: ExitCode) -> ! {
    let code = (0..=u8::MAX).find(|&known| code == ExitCode::from(known));
    std::process::exit(code.map_or(255, i32::from))
}

/// Makes the same call until it fails; says so once it has been made.
fn repeat(context: &WorkerContext, operation: &str) -> Result<(), GroupError> {
    let options = GroupOptions { timeout: Duration::from_secs(30), ..GroupOptions::default() };
    let mut group = context.process_group(&options)?;
    call(&mut group, operation)?;
    println!("under way");
    loop {
        call(&mut group, operation)?;
    }
}

fn call(group: &mut Group, operation: &str) -> Result<(), GroupError> {
    let world = group.world_size().get() as usize;
    let mut data = vec![1.0f32; 1 << 19];
    match operation {
        "broadcast" => group.broadcast(&mut data, Rank(0)),
        "all_reduce" => group.all_reduce(&mut data, ReduceOp::Sum),
        "all_gather" => group.all_gather(&data[..1 << 16]).map(drop),
        "scatter" => {
            let counts = vec![data.len() / world; world];
            let input = if group.rank() == Rank(0) { &data[..] } else { &[] };
            group.scatter(input, &counts, Rank(0)).map(drop)
        }
        "gather" => group.gather(&data, &vec![data.len(); world], Rank(0)).map(drop),
        _ => group.barrier(),
    }
}

#[test]
fn rank_killed_during_operation_is_named() {
    for (operation, victim) in [
        ("all_reduce", 2),
        ("all_gather", 3),
        ("broadcast", 0),
        ("broadcast", 2),
        ("scatter", 1),
        ("gather", 0),
        ("gather", 3),
        ("barrier", 1),
    ] {
        let server = Server::start();
        let mut ranks: Vec<_> =
            (0..4).map(|rank| start(operation, env(&server, rank, 4).to_vars())).collect();
        let mut outputs: Vec<_> =
            ranks.iter_mut().map(|rank| BufReader::new(rank.stdout.take().unwrap())).collect();
        for output in &mut outputs {
            assert!(output.lines().map_while(Result::ok).any(|line| line.ends_with("under way")));
        }
        let pid = i32::try_from(ranks[victim].id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        for (number, rank) in ranks.into_iter().enumerate() {
            // The others read nothing that could block them; their errors are a line each.
            let ended = rank.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&ended.stderr);
            if number != victim {
                assert_eq!(ended.status.code(), Some(1), "`{operation}`, rank {number}: {errors}");
                let expected =
                    format!("rank {number}: error: `{operation}` cannot finish: lost rank {victim},");
                assert!(errors.contains(&expected), "rank {number} said: {errors}");
            }
        }
    }
}
