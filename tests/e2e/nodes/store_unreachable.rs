//! An endpoint without the store: the first line of the wait says what stands there, the wait goes on until the join
//! timeout, and the error says it again. A port that this node was told to host on says what holds it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use harness::{Fleet, Gate, Job, Launch, Name, Refusal, Scratch, free_port, is_rankrun};

use super::{ENDPOINT, assert_all_succeed, c10d, static_launch};

/// How a node is told where the store is that another node hosts, and the option that names its port.
const MEETINGS: [(Client, &str); 2] =
    [(client_of_c10d, "--rdzv-endpoint"), (client_of_static, "--master-port")];

/// A node, told this port.
type Client = fn(u16) -> Launch;

fn client_of_c10d(port: u16) -> Launch {
    let launch =
        Launch::new(Name::Rankrun).args(["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job"]);
    launch.args(["--rdzv-endpoint", &format!("127.0.0.1:{port}"), "--rdzv-conf", "is_host=0"])
}

fn client_of_static(port: u16) -> Launch {
    static_node(port, 1)
}

fn static_node(port: u16, rank: usize) -> Launch {
    let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--node-rank", &rank.to_string()]);
    launch.args(["--rdzv-id", "job", "--master-addr", "127.0.0.1", "--master-port", &port.to_string()])
}

/// A program that answers every connection in its way, for as long as the test runs.
fn start_server(answer: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || listener.incoming().flatten().for_each(answer));
    port
}

/// Waits for the first line of the wait, and then for the error: both say this.
#[track_caller]
fn assert_reason_reported(job: Job, reason: &str, advice: &str) {
    let line = job.wait_for_line("waiting for the rendezvous store at ");
    assert!(line.contains(reason) && line.contains(" left"), "{line}");
    let outcome = job.wait();
    outcome
        .expect_exit_code(1)
        .expect_stderr("error: cannot reach the rendezvous store at ")
        .expect_absent("panicked");
    let error = outcome.stderr();
    let (_, error) = error.split_once("error: ").expect("an error");
    assert!(error.contains(reason) && error.contains(advice) && error.contains("hint: "), "{error}");
}

fn assert_reason_for_each_rendezvous(answer: fn(TcpStream), reason: &str, has_port_advice: bool) {
    if !is_rankrun() {
        return;
    }
    for (client, port_option) in MEETINGS {
        let launch = client(start_server(answer)).args(["--join-timeout", "6s"]).worker(["place"]);
        assert_reason_reported(launch.start(), reason, if has_port_advice { port_option } else { "" });
    }
}

/// As nginx, which answers the first bytes.
#[test]
fn http_server_at_endpoint_is_named_with_its_first_line() {
    let answer = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n");
    };
    assert_reason_for_each_rendezvous(answer, "an HTTP server (`HTTP/1.1 400 Bad Request`)", true);
}

/// As Python's `http.server`, which waits for the end of a line.
#[test]
fn http_server_that_waits_for_a_line_is_named() {
    let answer = |mut stream: TcpStream| {
        thread::spawn(move || {
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|read| read == 1) {
                if byte == *b"\n" {
                    let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
                    return;
                }
            }
        });
    };
    assert_reason_for_each_rendezvous(answer, "an HTTP server (`HTTP/1.0 200 OK`)", true);
}

/// `localhost` has two addresses, of which one refuses.
#[test]
fn http_server_at_one_of_two_addresses_is_named() {
    if !is_rankrun() {
        return;
    }
    let answer = |mut stream: TcpStream| {
        thread::spawn(move || {
            let mut text = [0; 64];
            while stream.read(&mut text).is_ok_and(|read| read > 0 && !text[..read].contains(&b'\n')) {}
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
        });
    };
    let endpoint = format!("localhost:{}", start_server(answer));
    let launch = Launch::new(Name::Rankrun).args(["--nnodes", "2", "--rdzv-backend", "c10d"]);
    let launch = launch.args(["--rdzv-endpoint", &endpoint, "--join-timeout", "6s"]).worker(["place"]);
    let job = launch.start();
    let line = job.wait_for_line("waiting for the rendezvous store at ");
    let owner = format!("(pid {}), an HTTP server (`HTTP/1.0 200 OK`)", std::process::id());
    assert!(line.contains(&owner), "{line}");
    job.wait().expect_exit_code(1).expect_stderr(&owner);
}

#[test]
fn ssh_and_tls_servers_at_endpoint_are_named() {
    // A server that closes before it reads resets the connection.
    let ssh = |mut stream: TcpStream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n");
        let _ = stream.read(&mut [0; 64]);
    };
    assert_reason_for_each_rendezvous(ssh, "an SSH server (`SSH-2.0-OpenSSH_9.2p1`)", true);
    let tls = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"\x15\x03\x01\x00\x02\x02\x46");
    };
    assert_reason_for_each_rendezvous(tls, "a TLS server", true);
}

/// Bytes that a terminal obeys, without an end.
#[test]
fn endless_escape_sequences_at_endpoint_do_not_reach_the_terminal() {
    let answer = |mut stream: TcpStream| {
        thread::spawn(move || while stream.write_all(b"\x1b[2J\x1b]0;title\x07").is_ok() {});
    };
    if !is_rankrun() {
        return;
    }
    let launch = client_of_static(start_server(answer)).args(["--join-timeout", "6s"]).worker(["place"]);
    let outcome = launch.run();
    outcome.expect_exit_code(1).expect_stderr("which does not speak the store's protocol");
    assert!(!outcome.stderr_bytes().contains(&0x1b), "{outcome}");
}

#[test]
fn endpoint_that_closes_connections_is_reported() {
    assert_reason_for_each_rendezvous(
        drop,
        "a program accepts connections there and closes them at once",
        false,
    );
}

/// The kernel takes the connections of a program that never does.
#[test]
fn silent_endpoint_is_reported() {
    let answer = |stream: TcpStream| std::mem::forget(stream);
    assert_reason_for_each_rendezvous(answer, "a program accepts connections there and says nothing", false);
}

#[test]
fn closed_port_is_reported_and_late_store_host_is_found() {
    if !is_rankrun() {
        return;
    }
    let host_of_c10d: Client = |port| client_of_c10d(port).args(["--rdzv-conf", "is_host=1"]);
    let host_of_static: Client = |port| static_node(port, 0);
    for ((client, _), host) in MEETINGS.into_iter().zip([host_of_c10d, host_of_static]) {
        let port = free_port();
        let first = client(port).args(["--join-timeout", "60s"]).worker(["place", "sum"]).start();
        let line = first.wait_for_line("waiting for the rendezvous store at ");
        assert!(line.contains("nothing listens there yet; ") && line.contains("s left"), "{line}");
        let second = host(port).worker(["place", "sum"]).start();
        assert_all_succeed([first, second]);
        let launch = client(port).args(["--join-timeout", "4s"]).worker(["place"]);
        assert_reason_reported(
            launch.start(),
            "nothing listens there",
            "start the launcher on the node that hosts the store",
        );
    }
}

/// The machine may be too busy for a first try in half a second.
#[test]
fn short_join_timeout_on_closed_port_does_not_name_firewall() {
    if !is_rankrun() {
        return;
    }
    for (client, _) in MEETINGS {
        let outcome = client(free_port()).args(["--join-timeout", "0.5"]).worker(["place"]).run();
        outcome.expect_exit_code(1).expect_stderr("` within 500ms\n").expect_absent("firewall");
        let error = outcome.stderr();
        let causes = ["nothing listens there\n", "the first try had not ended"];
        assert!(causes.iter().any(|cause| error.contains(cause)) && error.contains("hint: "), "{error}");
    }
}

#[test]
fn unresolvable_endpoint_is_reported_during_wait() {
    if !is_rankrun() {
        return;
    }
    let launches = [
        c10d(Name::Rankrun, "no-such-host.invalid:29400", "2").args(["--rdzv-conf", "read_timeout=4"]),
        static_launch(Name::Rankrun, "no-such-host.invalid", 2, 1).args(["--rdzv-conf", "timeout=4"]),
    ];
    for launch in launches {
        let job = launch.worker(["place"]).start();
        let line = job.wait_for_line("waiting for the rendezvous store at ");
        assert!(line.contains("no address is known for the host `no-such-host.invalid` ("), "{line}");
        job.wait()
            .expect_exit_code(1)
            .expect_stderr("cannot find the host `no-such-host.invalid`")
            .expect_absent("panicked");
    }
}

/// Packets that are dropped, a network without a way, an address that no machine has, and ICMP's refusal.
#[test]
fn network_failure_to_endpoint_is_reported() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(3) else { return };
    fleet.allow_only_ports(1, 1, 2);
    fleet.reject(3, Refusal::Icmp);
    let ends = [
        ("th1", "no answer to any connection request: the machine is down, or a firewall drops the packets"),
        ("203.0.113.1", "no way leads there (Network is unreachable)"),
        ("198.18.0.99", "no way leads there (No route to host)"),
        ("th3", "no way leads there (No route to host)"),
    ];
    let start = |(host, reason)| {
        let launches = [
            c10d(Name::Rankrun, &format!("{host}:29400"), "2").args(["--rdzv-conf", "read_timeout=15"]),
            static_launch(Name::Rankrun, host, 2, 1).args(["--rdzv-conf", "timeout=15"]),
        ];
        launches.map(|launch| (fleet.on(2, launch.worker(["place"])).start(), host, reason))
    };
    for (job, host, reason) in ends.into_iter().flat_map(start).collect::<Vec<_>>() {
        // An address that no machine has is silent at first.
        job.wait_for_line(&format!("waiting for the rendezvous store at `{host}:29400`: "));
        job.wait_for_line(reason);
        job.wait()
            .expect_exit_code(1)
            .expect_stderr("cannot reach the rendezvous store")
            .expect_absent("panicked");
    }
    fleet.is_empty();
}

/// The reason changes while it waits: the new one is said too.
#[test]
fn changed_reason_is_reported_again() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let job = fleet.on(2, c10d(Name::Rankrun, ENDPOINT, "2").worker(["place"])).start();
    job.wait_for_line("nothing listens there yet");
    fleet.allow_only_ports(1, 1, 2);
    job.wait_for_line("a firewall drops the packets");
    fleet.shell(1, "nft delete table inet wall");
    let host = fleet.on(1, c10d(Name::Rankrun, ENDPOINT, "2").worker(["place"])).start();
    for outcome in assert_all_succeed([job, host]) {
        assert!(outcome.lines_with("nothing listens there yet").len() <= 1, "{outcome}");
    }
    fleet.is_empty();
}

#[test]
fn second_launcher_with_node_rank_0_error_names_first() {
    if !is_rankrun() {
        return;
    }
    let (scratch, port) = (Scratch::new(), TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()));
    let (gate, port) = (Gate::new(&scratch, "gate"), port.expect("a port").port());
    let steps = ["place", "sum", &gate.step()];
    let jobs = [0, 1].map(|rank| static_node(port, rank).worker(steps).start());
    jobs.iter().for_each(|job| drop(job.wait_for_line("world=2 total=3")));
    let outcome = static_node(port, 0).worker(["place"]).run();
    let message = "another launcher with node rank 0 already hosts this job";
    outcome
        .expect_exit_code(1)
        .expect_stderr(message)
        .expect_stderr(&format!("port {port}"))
        .expect_stderr("`--node-rank` of its own");
    let other = static_node(port, 0).args(["--rdzv-id", "other"]).worker(["place"]).run();
    other.expect_exit_code(1).expect_absent("already hosts this job").expect_stderr("listens on this port");
    gate.open(2);
    assert_all_succeed(jobs);
}

#[test]
fn port_held_by_other_program_error_names_pid() {
    if !is_rankrun() {
        return;
    }
    let port = start_server(drop);
    let pid = format!("(pid {})", std::process::id());
    let one_node = Launch::new(Name::Rankrun).args(["--master-addr", "127.0.0.1", "--master-port"]);
    for launch in [
        static_node(port, 0),
        client_of_c10d(port).args(["--rdzv-conf", "is_host=1"]),
        one_node.args([port.to_string()]),
    ] {
        let outcome = launch.worker(["place"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("cannot listen on")
            .expect_stderr(&pid)
            .expect_stderr("hint: ");
    }
}

/// Its `read_timeout` limits the wait for the store, also where the nodes may come later.
#[test]
fn store_wait_under_torchrun_name_is_limited_by_read_timeout() {
    if !is_rankrun() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port").port();
    let conf = "is_host=0,read_timeout=4,join_timeout=600";
    let launch =
        Launch::new(Name::Torchrun).args(["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job"]);
    let launch = launch.args(["--rdzv-endpoint", &format!("127.0.0.1:{port}"), "--rdzv-conf", conf]);
    let outcome = launch.worker(["place"]).run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("nothing listens there yet; ")
        .expect_stderr("cannot reach the rendezvous store");
}
