//! The processes of one kind of ranks, of which all make the same calls when they are told.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use super::server::Server;

/// Where ranks run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// All on this host.
    Here,
    /// The first half on test host 1, the others on 2.
    TwoHosts,
}

impl Place {
    /// The number of a rank's test host.
    fn host(self, rank: u32, world: u32) -> Option<u32> {
        (self == Self::TwoHosts).then(|| 1 + rank * 2 / world)
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
fn hosts_script() -> OsString {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hosts/hosts.sh").into_os_string()
}

/// A program with its arguments, and variables of its environment.
pub(crate) type Line = (Vec<OsString>, Vec<(OsString, OsString)>);

/// Ranks that wait for what they are told.
pub(crate) struct Team(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Team {
    /// Starts `world` ranks; rank r runs on processor r of `processors`, counted around, and on nothing else.
    pub(crate) fn start(
        place: Place,
        world: u32,
        processors: &[usize],
        command: impl Fn(u32) -> Line,
    ) -> Self {
        let start = |rank: u32| {
            let (line, environment) = command(rank);
            let processor = processors[rank as usize % processors.len()].to_string();
            let mut all: Vec<OsString> = Vec::new();
            if let Some(host) = place.host(rank, world) {
                all.extend([hosts_script(), "exec".into(), host.to_string().into()]);
            }
            all.extend(["taskset".into(), "-c".into(), processor.into()]);
            all.extend(line);
            let mut child = Command::new(&all[0])
                .args(&all[1..])
                .envs(environment)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a rank starts");
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let stdout = BufReader::new(stdout.expect("a pipe was asked for"));
            (child, stdin.expect("a pipe was asked for"), stdout)
        };
        Self((0..world).map(start).collect())
    }

    /// How long each of so many calls took on rank 0.
    pub(crate) fn measure(&mut self, name: &str, bytes: usize, calls: usize) -> Vec<Duration> {
        for (_, stdin, _) in &mut self.0 {
            writeln!(stdin, "{name} {bytes} {calls}").expect("the rank lives");
        }
        let mut answers = self.0.iter_mut().map(|(_, _, stdout)| {
            let mut line = String::new();
            let read = stdout.read_line(&mut line).expect("the rank lives");
            assert!(read > 0, "a rank ended");
            line
        });
        let first = answers.next().expect("there are ranks");
        assert!(answers.all(|line| !line.trim().is_empty()), "a rank did nothing");
        first.split_whitespace().map(|word| Duration::from_nanos(word.parse().expect("a time"))).collect()
    }

    /// Ends the ranks.
    pub(crate) fn end(self) {
        for (mut child, stdin, stdout) in self.0 {
            drop((stdin, stdout));
            assert!(child.wait().expect("it is ours").success(), "a rank failed");
        }
    }
}
