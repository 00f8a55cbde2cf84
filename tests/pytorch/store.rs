//! torch's own clients against the launcher's store; torch's own server is the oracle. And torch's shared state
//! and sampler.
#![expect(clippy::disallowed_methods, reason = "the tests start Python and the servers under test")]

mod sampler;
mod state;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use harness::{fixture, python, python_modules};

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pytorch").join(name)
}

fn python_script(name: &str) -> Command {
    let mut command = Command::new(python());
    command.arg(script(name)).env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1");
    command.env("PYTHONPATH", python_modules(&[]));
    // torch's client and server look up the name of each other's address, and where no name server answers
    // that takes 10 s for each connection.
    command.env("RES_OPTIONS", "timeout:1 attempts:1");
    command
}

/// A store in a process of its own, which ends with its standard input.
struct Server {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("the server starts");
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("its output is piped"));
        let mut server = Self { process, stdin, stdout, port: 0 };
        server.port = server.line().parse().expect("the server says its port");
        server
    }

    fn ours() -> Self {
        Self::start(Command::new(fixture("store-under-test")))
    }

    fn torchs() -> Self {
        let mut command = python_script("store_oracle.py");
        command.arg("serve");
        Self::start(command)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the server speaks text");
        line.trim().to_owned()
    }

    fn reset(&mut self) {
        let stdin = self.stdin.as_mut().expect("it is open until the server is dropped");
        stdin.write_all(b"\n").expect("the server reads");
        assert_eq!(self.line(), "reset");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let status = self.process.wait().expect("it is our child");
        if !thread::panicking() {
            assert!(status.success(), "the server ended with {status}");
        }
    }
}

/// The facts that the oracle script finds, one per line.
fn facts(mode: &str, server: &Server) -> Vec<String> {
    let output = python_script("store_oracle.py")
        .arg(mode)
        .arg(server.port.to_string())
        .output()
        .expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{mode} ended with {}:\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("JSON is text").lines().map(str::to_owned).collect()
}

#[test]
fn torch_client_operations_match_torch_server() {
    let (ours, torchs) = (Server::ours(), Server::torchs());
    let (ours, torchs) = thread::scope(|scope| {
        let ours = scope.spawn(|| facts("drive", &ours));
        let torchs = facts("drive", &torchs);
        (ours.join().expect("our store serves torch's clients"), torchs)
    });
    let differences: Vec<_> = ours.iter().zip(&torchs).filter(|(ours, torchs)| ours != torchs).collect();
    assert!(differences.is_empty(), "ours, torch's: {differences:#?}");
    assert_eq!(ours.len(), torchs.len());
    assert!(ours.len() > 100, "the script stopped early: {ours:#?}");
}

#[test]
fn torch_server_bugs_are_absent() {
    let expected = [
        r#"["a wait for a filled queue and a key ends with the key", null]"#,
        r#"["a compare_set that stores nothing wakes no waiter", "DistStoreError: wait timeout after 1000ms, keys: /absent"]"#,
    ];
    assert_eq!(facts("better", &Server::ours()), expected);
}

#[test]
fn gloo_workers_train_over_store_repeatedly() {
    let mut server = Server::ours();
    for generation in 0..2 {
        let workers = ["0", "1"].map(|rank| {
            python_script("store_gloo.py")
                .env("RANK", rank)
                .env("WORLD_SIZE", "2")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", server.port.to_string())
                .env("TORCHELASTIC_USE_AGENT_STORE", "True")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("Python starts")
        });
        for (rank, worker) in workers.into_iter().enumerate() {
            let output = worker.wait_with_output().expect("it is our child");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "generation {generation}, rank {rank}:\n{errors}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("rank {rank} done\n"));
        }
        server.reset();
    }
}

#[test]
fn rust_and_python_ranks_share_torch_or_rankrun_store() {
    for server in [Server::torchs(), Server::ours()] {
        let start = |rank: u32| {
            let mut command = if rank.is_multiple_of(2) {
                let mut command = Command::new(fixture("worker"));
                command.arg("beside-torch");
                command
            } else {
                python_script("programs/beside_rust.py")
            };
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", server.port.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a rank starts")
        };
        let ranks: Vec<Child> = (0..4).map(start).collect();
        let mut values_by_rank = Vec::new();
        for (rank, process) in ranks.into_iter().enumerate() {
            let output = process.wait_with_output().expect("it is our child");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "rank {rank}:\n{errors}");
            let stdout = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let values = stdout.strip_prefix(&format!("agreed rank={rank} ")).map(str::to_owned);
            values_by_rank.push(values.unwrap_or_else(|| panic!("rank {rank} said `{stdout}`")));
        }
        assert!(values_by_rank.iter().all(|values| *values == values_by_rank[0]), "{values_by_rank:#?}");
    }
}
