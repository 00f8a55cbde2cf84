//! What a launch with default options needs of its machine: no port of its own, and no name that can be resolved.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, getsockname, socket};

use harness::{Gate, Launch, Name, Outcome, can_use_namespaces, is_rankrun};

const LAUNCHES: usize = 20;

#[test]
fn concurrent_launches_have_distinct_ports() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let gate = Gate::closed();
        let start = || Launch::new(*name).worker(["env", &gate.step()]).start();
        let jobs: Vec<_> = (0..LAUNCHES).map(|_| start()).collect();
        // Each worker speaks while all the others wait, or are about to.
        let ports: BTreeSet<String> = jobs.iter().map(|job| job.wait_for_line(" MASTER_PORT=")).collect();
        assert_eq!(ports.len(), LAUNCHES, "{ports:?}");
        gate.open(LAUNCHES);
        for job in jobs {
            job.wait().expect_exit_code(0);
        }
    }
}

/// A mount and host name namespace. The machine has a name that no file knows, and its only name server is `$1`.
const UNKNOWN_NAME: &str = r#"
    set -e
    echo nowhere >/proc/sys/kernel/hostname
    echo '127.0.0.1 localhost' >"$TMPDIR/hosts"
    echo 'hosts: files dns' >"$TMPDIR/nsswitch"
    printf 'nameserver %s\noptions timeout:30 attempts:5\n' "$1" >"$TMPDIR/resolv"
    shift
    for file in hosts:hosts nsswitch:nsswitch.conf resolv:resolv.conf; do
        [ ! -e "/etc/${file#*:}" ] || mount --bind "$TMPDIR/${file%:*}" "/etc/${file#*:}"
    done
    exec "$@""#;

/// A name server that never answers. It hears of every lookup.
struct Silent {
    socket: UdpSocket,
}

impl Silent {
    /// The address of this test's own name server: a loopback address of no other program.
    const ADDRESS: &str = "127.53.53.53";

    fn new() -> Self {
        let socket = UdpSocket::bind((Self::ADDRESS, 53)).expect("the port of name servers is free there");
        Self { socket }
    }

    /// Whether a program has queried the server since.
    fn received_query(&self, patience: Duration) -> bool {
        self.socket.set_read_timeout(Some(patience)).expect("a socket takes a timeout");
        match self.socket.recv(&mut [0; 512]) {
            Ok(_) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Err(error) => panic!("the name server cannot listen: {error}"),
        }
    }
}

#[track_caller]
fn with_unresolvable_hostname(launch: Launch) -> Launch {
    let namespace =
        ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", UNKNOWN_NAME, "sh"];
    launch.under(namespace).under([Silent::ADDRESS])
}

/// The launcher's output, once it is sure that no name server was queried.
#[track_caller]
fn assert_no_dns_query(server: &Silent, launch: Launch) -> Outcome {
    let outcome = with_unresolvable_hostname(launch).run();
    // What was sent is there as soon as the sender has ended.
    assert!(!server.received_query(Duration::from_millis(1)), "a name was looked up\n{outcome}");
    outcome
}

/// One test, since the name server is one.
#[test]
fn launch_without_endpoint_sends_no_dns_query() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let server = Silent::new();
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).worker(["env", "exit=0"]);
        assert_no_dns_query(&server, launch).expect_exit_code(0).expect_stdout(" MASTER_ADDR=127.0.0.1\n");
        let launch = Launch::new(*name).worker(["env", "exit=0"]);
        assert_no_dns_query(&server, launch).expect_exit_code(0).expect_stdout(" MASTER_ADDR=127.0.0.1\n");
        // Nor for a restart.
        let launch = Launch::standalone(*name, 2).args(["--max-restarts", "1"]);
        assert_no_dns_query(&server, launch.worker(["rank1:attempt<1:exit=3"])).expect_exit_code(0);
    }
    // Nor for our own card; torchrun's report names the host in full, and waits a second for that at most (`reports`).
    assert_no_dns_query(&server, Launch::standalone(Name::Rankrun, 2).worker(["rank1:exit=3"]))
        .expect_exit_code(3);
    // The trap works: the server sees a query.
    let job = with_unresolvable_hostname(Launch::new(Name::Rankrun))
        .args(["--no-python", "getent", "hosts", "nowhere"])
        .start();
    assert!(server.received_query(Duration::from_secs(60)), "the name server hears nothing\n{job}");
    job.signal(nix::sys::signal::Signal::SIGKILL);
}

/// A socket that holds a free port of every address of this machine, and does not listen.
fn bind_unused_port() -> (OwnedFd, u16) {
    let socket =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 0)).expect("the machine has a free port");
    let address: SockaddrIn = getsockname(socket.as_raw_fd()).expect("a bound socket has an address");
    (socket, address.port())
}

/// The launcher that finds the port held would host the store itself: no other launcher is there to wait for.
#[test]
fn port_held_by_a_socket_that_does_not_listen_is_refused_at_once() {
    let (_held, port) = bind_unused_port();
    let endpoint = format!("127.0.0.1:{port}");
    let dynamic = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint];
    let port = port.to_string();
    let fixed = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", &port];
    let alone = ["--master-port", &port];
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        for options in [dynamic.as_slice(), &fixed, &alone] {
            let job = Launch::new(*name).args(options).worker(["exit=0"]).start();
            // Far below the minute for which a store that is about to come is looked for.
            let _ = job.ends_within(Duration::from_secs(20));
            let outcome = job.wait();
            outcome
                .expect_exit_code(1)
                .expect_stderr(&format!(":{port}`: a socket holds the port and does not listen"));
            outcome.expect_stderr("hint: `ss -tanp`").expect_absent("panicked");
        }
    }
}

/// A connection that another program has opened from that port holds it too.
#[test]
fn port_held_by_a_connection_is_refused_at_once() {
    if !is_rankrun() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("the machine has a free port");
    let (bound, port) = bind_unused_port();
    let target = listener.local_addr().expect("a bound socket has an address");
    connect(bound.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, target.port())).expect("it listens");
    let endpoint = format!("127.0.0.1:{port}");
    let options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint];
    let outcome = Launch::new(Name::Rankrun).args(options).worker(["exit=0"]).run();
    outcome.expect_exit_code(1).expect_stderr("a socket holds the port and does not listen");
}
