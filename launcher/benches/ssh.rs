//! What a start by ssh costs: `rankrun --hosts` with one host and with four, each with one worker that does nothing.
//!
//! `cargo bench -p rankrun --bench ssh [-- ROUNDS]`, as root, with OpenSSH: the hosts are network namespaces of this
//! machine (`tests/hosts/hosts.sh`, `tests/hosts/ssh-hosts.sh`). One host and four take turns, and time runs from the start
//! of the command to its end. The ssh client alone (`ssh th1 true`) is measured beside them. Figures are medians of ROUNDS
//! (10).
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]

#[expect(dead_code, reason = "torchrun, which the other programs measure, starts no host")]
mod common;

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{RANKRUN, median};

const DEFAULT_ROUNDS: usize = 10;
const HOSTS: &str = "4";

fn main() {
    let rounds = env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(DEFAULT_ROUNDS);
    let hosts = Hosts::up();
    let (mut ssh, mut one, mut four) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        ssh.push(hosts.seconds(&["ssh", "th1", "true"]));
        one.push(hosts.launch("th1"));
        four.push(hosts.launch("th1,th2,th3,th4"));
    }
    let (ssh, one, four) = (median(ssh), median(one), median(four));
    println!("start and end of a job by ssh; medians of {rounds} rounds\n");
    println!("| command | time |");
    println!("| --- | ---: |");
    println!("| `ssh th1 true` | {:.0} ms |", ssh * 1e3);
    println!("| `rankrun --hosts`, one host | {:.0} ms |", one * 1e3);
    println!("| `rankrun --hosts`, four hosts | {:.0} ms |", four * 1e3);
    println!("| ratio of four hosts to one | {:.2} |", four / one);
}

/// Hosts th0 to th4 with ssh servers, until the value goes, or this process.
struct Hosts {
    id: String,
    folder: PathBuf,
    /// Takes the hosts away once its standard input ends, however that comes.
    keeper: Child,
}

impl Hosts {
    fn up() -> Self {
        // Six letters at most.
        let letter = |place: u32| char::from(b'a' + (std::process::id() / 26_u32.pow(place) % 26) as u8);
        let id: String = ['s', letter(0), letter(1), letter(2), letter(3)].into_iter().collect();
        let folder = env::temp_dir().join(format!("rankrun-bench-ssh-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let mut keeper = Command::new("sh");
        keeper
            .args(["-c", "cat >/dev/null; \"$0\" down; rm -rf \"$1\""])
            .arg(script("hosts.sh"))
            .arg(&folder);
        let keeper = keeper.env("TH_ID", &id).stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        let hosts = Self { id, folder, keeper };
        hosts.run(Command::new(script("hosts.sh")).args(["up", HOSTS]));
        hosts.run(Command::new(script("ssh-hosts.sh")).args(["up", HOSTS]).arg(&hosts.folder));
        hosts
    }

    fn run(&self, command: &mut Command) {
        let status = command.env("TH_ID", &self.id).stdout(Stdio::null()).status();
        assert!(
            status.unwrap().success(),
            "`{command:?}` failed: hosts are made by root, with ip, nft and sshd"
        );
    }

    fn launch(&self, hosts: &str) -> f64 {
        self.seconds(&[RANKRUN, "--hosts", hosts, "--nproc-per-node", "1", "--no-python", "true"])
    }

    /// The time of a command on host 0.
    fn seconds(&self, words: &[&str]) -> f64 {
        let path = env::var("PATH").unwrap_or_default();
        let mut command = Command::new(script("hosts.sh"));
        command.args(["exec", "0"]).args(words).stdin(Stdio::null());
        command.env("PATH", format!("{}/bin:{path}", self.folder.display()));
        let begin = Instant::now();
        self.run(&mut command);
        begin.elapsed().as_secs_f64()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hosts").join(name)
}
