//! Small memory limits, few descriptors, and system calls that a machine refuses.

#![expect(clippy::print_stdout, reason = "a rank tells the test what carries its calls")]

use std::error::Error;
use std::fs;
use std::io::Read;
use std::process::Child;
use std::thread;

use rankrun_worker::process_group::BackendChoice;
use rankrun_worker::{ReduceOp, TcpStore, WorkerContext};

use super::{PLACE, error_text, start_apart, start_on, start_under};
use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, env, join_on, options};

#[test]
fn low_memory_and_file_limits_do_not_fail() {
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
fn full_shm_mount_is_error_naming_cause() {
    let server = Server::start();
    let how = ["sh", "-c", "ulimit -f 10 && exec \"$@\"", "sh"];
    let start = |rank| start_apart("shm: little room", &how, env(&server, rank, 2).to_vars());
    let mut first = start(0);
    let other = start(1);
    let mut errors = String::new();
    first.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(1), "{errors}");
    assert!(
        errors.contains("bytes of shared memory cannot be allocated (limits: `ulimit -v`, `ulimit -f`"),
        "{errors}"
    );
    let ended = other.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("rank 0 cannot create the shared memory: "), "{errors}");
}

#[test]
fn descriptor_shortage_is_reported_by_own_rank() {
    for (backend, short, spare) in [
        ("tcp", 0, 0),
        ("tcp", 1, 1),
        ("tcp", 0, 3),
        ("tcp", 2, 3),
        ("shm", 0, 2),
        ("shm", 0, 3),
        ("shm", 1, 2),
        ("auto", 1, 2),
    ] {
        let server = Server::start();
        let few = format!("{spare} descriptors");
        let role = |rank| if rank == short { &*few } else { "forks" };
        let start = |rank| start_on(backend, &server, role(rank), (rank, 3));
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

/// Makes as if all other ranks of a world had said what rank 0 has said.
fn say_for_all(server: &Server, world: u32) {
    let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
    let record = store.get("record/0").unwrap();
    (1..world).for_each(|rank| store.set(&format!("record/{rank}"), &record).unwrap());
}

#[test]
fn too_few_descriptors_is_error_before_connect() {
    // The second world does not fit into shared memory, and so goes by TCP of its own accord.
    for (backend, world) in [("tcp", 100), ("auto", 1025)] {
        let server = Server::start();
        let rank = start_on(backend, &server, "20 descriptors", (0, world));
        say_for_all(&server, world);
        let ended = rank.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(
            errors.contains(&format!("a TCP group of {world} ranks needs one connection for each rank")),
            "{errors}"
        );
        assert!(errors.contains("ulimit -n"), "{errors}");
    }
}

#[test]
fn too_many_ranks_for_shm_is_error() {
    let server = Server::start();
    let error = thread::scope(|scope| {
        let first = scope.spawn(|| join_on(BackendChoice::Shm, &server, (0, 1025), AMPLE).unwrap_err());
        say_for_all(&server, 1025);
        first.join().unwrap()
    });
    let text = error_text(&error);
    assert!(
        text.ends_with("a group of 1025 ranks does not fit into shared memory, which takes 1024"),
        "{text}"
    );
    assert_eq!(error.hint(), Some("use the backend `tcp` for larger groups"));
}

#[test]
fn ranks_of_other_user_connect_over_tcp() {
    // Rank 2 runs as another user: the overflow user, in a user namespace without a map.
    let start = |server: &Server, backend: &str, rank: u32| {
        let vars = env(server, rank, 3).to_vars().into_iter().chain([("RANKRUN_BACKEND", backend.into())]);
        match rank {
            2 => start_under(&["unshare", "-U"], "shm: say the backend", vars),
            _ => start("shm: say the backend", vars),
        }
    };
    for (backend, expected) in
        [("auto", "goes by mixed"), ("shm", "rank 0 and rank 2 are on different hosts or of")]
    {
        let server = Server::start();
        let ranks: Vec<Child> = (0..3).map(|rank| start(&server, backend, rank)).collect();
        for rank in ranks {
            let ended = rank.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
            assert!(stderr.contains(expected), "{backend}: {stderr}");
        }
    }
}

/// Joins, and says what carries its calls.
pub(super) fn says_the_backend(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut group = context.process_group(&options(AMPLE))?;
    let mut data = [1i32; 3];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert_eq!(data, [group.world_size().get() as i32; 3]);
    println!("goes by {}", group.backend());
    Ok(())
}
