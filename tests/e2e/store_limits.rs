//! A store at its limits: what it refuses is told, its memory is bounded, and a job still ends.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use harness::{Job, Launch, Name, Outcome, field, free_port, is_rankrun, is_soak, print_notice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// `VALIDATE` with its magic number.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
const MIB: usize = 1024 * 1024;

/// An agent of a static job of two nodes with one worker each, on one machine: workers and agents share the store.
fn node_launch(name: Name, port: u16, node_rank: usize) -> Launch {
    let launch = Launch::new(name).args(["--nnodes", "2", "--node-rank", &node_rank.to_string()]);
    launch.args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string()])
}

/// Both agents, started.
#[track_caller]
fn start_both_nodes(name: Name, launch: impl Fn(Launch) -> Launch) -> [Job; 2] {
    let port = free_port();
    [0, 1].map(|node_rank| launch(node_launch(name, port, node_rank)).start())
}

#[test]
fn full_store_shared_with_agents_does_not_end_the_job() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let steps = ["rank0:store-fill", "rank0:store-counts=/rankrun/beat/,2", "print=finished"];
        let jobs = start_both_nodes(*name, |launch| launch.env("RANKRUN_STORE_LIMIT", "24MiB").worker(steps));
        let outcomes = jobs.map(Job::wait);
        for outcome in &outcomes {
            outcome.expect_exit_code(0).expect_stdout("finished").expect_absent("panicked");
        }
        assert_warned_once(&outcomes[0], "the store is full: it holds ");
        outcomes[0].expect_stdout("waits: the store refuses to wait for ");
    }
}

#[track_caller]
fn assert_warned_once(outcome: &Outcome, text: &str) {
    let warnings: Vec<_> =
        outcome.stderr().lines().filter(|line| line.contains(text)).map(str::to_owned).collect();
    assert_eq!(warnings.len(), 1, "{outcome}");
    assert!(warnings[0].contains("`--store-limit SIZE` raises the limit"), "{}", warnings[0]);
}

#[test]
fn refused_heartbeat_ends_job_with_named_key_and_value() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let steps = ["rank0:store-spoil=/rankrun/beat/,never a number", "forever"];
        for job in start_both_nodes(*name, |launch| launch.worker(steps)) {
            let outcome = job.wait();
            assert_ne!(outcome.status.code(), Some(0), "{outcome}");
            outcome.expect_absent("panicked");
            outcome.expect_stderr("/rankrun/beat/").expect_stderr("`never a number`").expect_stderr("hint:");
        }
    }
}

/// The workers go on for long enough that a heartbeat is refused, and end before the refusal is given up.
#[test]
fn succeeded_job_with_refused_heartbeat_exits_0() {
    if !is_rankrun() {
        return;
    }
    let steps = ["rank0:store-spoil=/rankrun/beat/,x", "sleep-ms=1500", "print=finished"];
    for job in start_both_nodes(Name::Rankrun, |launch| launch.args(["--lease", "20"]).worker(steps)) {
        job.wait().expect_exit_code(0).expect_stdout("finished").expect_absent("panicked");
    }
}

/// A `SET` of a value, and a `GET` of it.
fn replace_and_get(key: &[u8], value: &[u8]) -> Vec<u8> {
    let element = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
    [&[1], &element(key)[..], &element(value), &[3], &element(key)].concat()
}

/// Whether the socket takes more within a moment.
fn is_writable(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::from(100u16)).is_ok_and(|ready| ready > 0)
}

/// A client that asks for large values, each of which the next request replaces, and reads no answer.
fn ask_without_reading(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the store accepts");
    stream.set_nonblocking(true).expect("a socket can be told not to block");
    let mut bytes = VALIDATE.to_vec();
    (0..12).for_each(|_| bytes.extend_from_slice(&replace_and_get(b"k", &vec![b'v'; 4 * MIB])));
    let mut written = 0;
    while written < bytes.len() && is_writable(&stream) {
        match stream.write(&bytes[written..]) {
            Ok(length) => written += length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // The store may close it at any time.
            Err(_) => break,
        }
    }
    stream
}

/// The most memory that a process has had, in bytes.
fn peak_memory(pid: i32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    peak.and_then(|peak| peak.trim().parse::<usize>().ok()).expect("the kernel tells the peak") * 1024
}

#[test]
fn clients_that_do_not_read_keep_store_within_limit() {
    if !is_rankrun() {
        return;
    }
    let (limit, clients) = if is_soak() { (256, 300) } else { (32, 16) };
    for name in Name::for_shared_behaviour() {
        let launch =
            Launch::standalone(*name, 1).stdin_open().env("RANKRUN_STORE_LIMIT", format!("{limit}MiB"));
        let mut job =
            launch.limit(Duration::from_secs(300)).worker(["place", "read", "sum", "print=trained"]).start();
        let place = job.wait_for_line("place rank=");
        let of = |key| field(&place, key).expect("the worker says where the store is").to_owned();
        let address = format!("{}:{}", of("addr"), of("port"));
        let greedy: Vec<_> = (0..clients).map(|_| ask_without_reading(&address)).collect();
        crate::store_foreign_clients::assert_store_serves(&address);
        let peak = peak_memory(job.only_child_of(job.pid())) / MIB;
        if is_soak() {
            print_notice(&format!(
                "{clients} clients that do not read: the agent takes {peak} MiB of {limit} MiB and as many"
            ));
        }
        assert!(peak <= 2 * limit + 24, "the agent took {peak} MiB");
        job.type_text("\n");
        let outcome = job.wait();
        outcome.expect_exit_code(0).expect_stdout("trained").expect_absent("panicked");
        assert_warned_once(&outcome, "the store's clients leave more than ");
        drop(greedy);
    }
}
