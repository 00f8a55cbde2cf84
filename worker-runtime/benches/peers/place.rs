//! One host or two, and the store there through which our ranks meet.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use super::server::Server;

/// Where ranks run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// All on this host.
    Here,
    /// The first half on test host 1, the others on 2.
    TwoHosts,
}

/// Addresses of the test hosts 0 and 1.
const PLACE: &str = "198.18.0.10";
const FIRST_HOST: &str = "198.18.0.11";

impl Place {
    /// The number of a rank's test host.
    pub(super) fn host(self, rank: u32, world: u32) -> Option<u32> {
        (self == Self::TwoHosts).then(|| 1 + rank * 2 / world)
    }

    /// Where our ranks reach their store.
    pub(super) fn store_address(self) -> &'static str {
        match self {
            Self::Here => "127.0.0.1",
            Self::TwoHosts => PLACE,
        }
    }

    /// Where PyTorch's ranks reach rank 0, and the interface that leads there.
    pub(super) fn first_rank(self) -> (&'static str, &'static str) {
        match self {
            Self::Here => ("127.0.0.1", "lo"),
            Self::TwoHosts => (FIRST_HOST, "eth0"),
        }
    }
}

/// Has this program be the store of a job, until its standard input ends.
pub(crate) const SERVE: &str = "--serve";

/// See [`SERVE`].
pub(crate) fn serve() -> ExitCode {
    let server = Server::start_at("0.0.0.0", 0);
    println!("{}", server.port());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ExitCode::SUCCESS
}

/// The store through which our ranks meet: where they reach it.
pub(crate) enum Store {
    Here(Server),
    OnHost { port: u16, process: Child },
}

impl Store {
    pub(crate) fn start(place: Place) -> Self {
        if place == Place::Here {
            return Self::Here(Server::start_at("127.0.0.1", 0));
        }
        let mut command = Command::new(hosts_script());
        command.args(["exec", "0"]).arg(env::current_exe().expect("this program has a path")).arg(SERVE);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = process.expect("the store starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("the store says its port");
        Self::OnHost { port: line.trim().parse().expect("a port"), process }
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Here(server) => server.port(),
            Self::OnHost { port, .. } => *port,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Self::OnHost { process, .. } = self {
            drop(process.stdin.take());
            let _ = process.wait();
        }
    }
}

/// Test hosts 0, 1 and 2, which go with the value.
pub(crate) struct Hosts;

impl Hosts {
    pub(crate) fn up() -> Self {
        assert!(Command::new(hosts_script()).args(["up", "2"]).status().expect("a script").success());
        Self
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(hosts_script()).arg("down").status();
    }
}

/// The script of the test hosts; `TH_ID` says which ones.
pub(super) fn hosts_script() -> OsString {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hosts/hosts.sh").into_os_string()
}
