//! Little room, few descriptors, and what a machine does not permit.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::process::Child;

use rankrun_worker::WorkerContext;

use super::start_apart;
use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, env, options};

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
pub(super) fn joins_short(context: &WorkerContext, spare: &str) -> Result<(), Box<dyn Error>> {
    let is_free = |number: &u64| fs::read_link(format!("/proc/self/fd/{number}")).is_err();
    let limit = (0..).filter(is_free).nth(spare.parse()?);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    Ok(context.process_group(&options(AMPLE)).map(drop)?)
}
