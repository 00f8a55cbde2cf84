//! What each host of a job is told: its ssh command, words, variables and working folder. Pure.

use std::ffi::OsStr;
use std::time::Duration;

use super::hosts::Host;
use super::protocol::{NODE_AGENT, NodeLaunch};
use crate::shell::quote::for_shell;
use crate::spec::SignalSpec;

/// A connection whose other end is silent for three of these is lost. Words of `--ssh` come before and count.
const KEEP_ALIVE: [&str; 4] = ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"];
/// No terminal, and no question that waits for a person.
const NO_QUESTION: [&str; 3] = ["-T", "-o", "BatchMode=yes"];

/// A job that is started on several hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSpec {
    /// The hosts in rank order.
    pub nodes: Vec<FleetNode>,
    /// The ssh client and its options.
    pub ssh: Vec<String>,
    /// The path of this launcher's own program; the other hosts may have it there too.
    pub launcher: String,
    /// The working folder on each host.
    pub directory: String,
    /// Variables for each host.
    pub environment: Vec<(String, String)>,
    /// The options of the launch, for each host.
    pub options: Vec<String>,
    /// The entrypoint and its arguments.
    pub program: Vec<String>,
    /// How the nodes find each other; a job of one host needs nothing.
    pub rendezvous: FleetRendezvous,
    /// The time for a host to answer.
    pub connect_limit: Duration,
    /// What the local launcher's signals mean; the launchers of the hosts have the same.
    pub signals: SignalSpec,
}

/// A host, with what is for it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetNode {
    /// The host.
    pub host: Host,
    /// Options of the launch.
    pub words: Vec<String>,
    /// Variables.
    pub environment: Vec<(String, String)>,
}

/// How the nodes find each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetRendezvous {
    /// The c10d rendezvous in place of the static one.
    pub is_c10d: bool,
    /// The address of the first host, where the user gave one.
    pub address: Option<String>,
    /// The port there, where the user gave one.
    pub port: Option<u16>,
    /// The run id, where the user gave none.
    pub run_id: Option<String>,
}

impl FleetSpec {
    /// The name of a host in messages.
    ///
    /// # Panics
    /// Never for a node of the job.
    #[must_use]
    pub fn name(&self, node: usize) -> &str {
        self.nodes[node].host.name()
    }

    /// The command that starts the agent of a host: the ssh client and its arguments. It has no variable and no word of
    /// the launch, since other users of a host may read command lines.
    #[must_use]
    pub fn ssh_command(&self, node: usize) -> Vec<String> {
        let mut words = self.ssh.clone();
        words.extend(NO_QUESTION.into_iter().chain(KEEP_ALIVE).map(str::to_owned));
        let destination = self.nodes[node].host.destination.clone();
        words.extend(["--".to_owned(), destination, self.agent_line()]);
        words
    }

    /// The command that prints the settings of the ssh client for the first host.
    #[must_use]
    pub fn ssh_settings_command(&self) -> Vec<String> {
        let mut words = self.ssh.clone();
        words.extend(["-G".to_owned(), "--".to_owned(), self.nodes[0].host.destination.clone()]);
        words
    }

    /// The line for the login shell of a host. Its `sh` stays there, so that an agent that a signal killed is told from
    /// a connection that broke.
    fn agent_line(&self) -> String {
        let path = quoted(&self.launcher);
        let script = format!("p={path}; [ -x \"$p\" ] || p=rankrun; \"$p\" {NODE_AGENT}; exit $?");
        format!("sh -c {}", quoted(&script))
    }

    /// What the agent of a node is told. The nodes meet at the address of the first host and its port.
    #[must_use]
    pub fn node_launch(&self, node: usize, (address, port): (&str, u16)) -> NodeLaunch {
        let own = &self.nodes[node];
        let mut words = self.options.clone();
        words.extend(own.words.iter().cloned());
        if self.nodes.len() > 1 {
            words.extend(self.rendezvous_words(node, (address, port)));
        }
        words.push("--".to_owned());
        words.extend(self.program.iter().cloned());
        let environment = self.environment.iter().chain(&own.environment).cloned().collect();
        NodeLaunch { directory: self.directory.clone(), environment, words }
    }

    fn rendezvous_words(&self, node: usize, (address, port): (&str, u16)) -> Vec<String> {
        let mut words = vec![format!("--nnodes={}", self.nodes.len()), format!("--node-rank={node}")];
        if self.rendezvous.is_c10d {
            let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
            words.push(format!("--rdzv-endpoint={host}:{port}"));
        } else {
            words.extend([format!("--master-addr={address}"), format!("--master-port={port}")]);
        }
        words.extend(self.rendezvous.run_id.iter().map(|id| format!("--rdzv-id={id}")));
        words
    }
}

/// The address in the settings that `ssh -G` prints: what an alias stands for.
#[must_use]
pub fn parse_ssh_hostname(settings: &str) -> Option<&str> {
    settings.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::trim)
}

fn quoted(word: &str) -> String {
    String::from_utf8_lossy(&for_shell(OsStr::new(word))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::hosts::parse_host_list;

    fn spec(hosts: &str) -> FleetSpec {
        let node = |host| FleetNode { host, words: Vec::new(), environment: Vec::new() };
        FleetSpec {
            nodes: parse_host_list(hosts).unwrap().into_iter().map(node).collect(),
            ssh: vec!["ssh".to_owned(), "-p".to_owned(), "2222".to_owned()],
            launcher: "/opt/my tools/rankrun".to_owned(),
            directory: "/job".to_owned(),
            environment: vec![("TOKEN".to_owned(), "secret".to_owned())],
            options: vec!["--max-restarts=1".to_owned()],
            program: vec!["train.py".to_owned(), "--lr".to_owned()],
            rendezvous: FleetRendezvous { run_id: Some("r".to_owned()), ..FleetRendezvous::default() },
            connect_limit: Duration::from_secs(60),
            signals: SignalSpec::torchrun(),
        }
    }

    #[test]
    fn ssh_command_asks_nothing_and_has_no_secret() {
        let words = spec("me@a,b").ssh_command(0);
        let line = words.join(" ");
        let expected = "ssh -p 2222 -T -o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -- me@a sh -c \
                        'p='\\''/opt/my tools/rankrun'\\''; [ -x \"$p\" ] || p=rankrun; \"$p\" --rankrun-ssh-node; exit $?'";
        assert_eq!(line, expected);
        assert_eq!(spec("me@a").ssh_settings_command().join(" "), "ssh -p 2222 -G -- me@a");
    }

    #[test]
    fn nodes_meet_at_first_host() {
        let mut spec = spec("a,b");
        spec.nodes[1].words = vec!["--nproc-per-node=3".to_owned()];
        let launch = spec.node_launch(1, ("10.0.0.7", 4000));
        assert_eq!(
            launch.words.join(" "),
            "--max-restarts=1 --nproc-per-node=3 --nnodes=2 --node-rank=1 --master-addr=10.0.0.7 --master-port=4000 \
             --rdzv-id=r -- train.py --lr"
        );
        spec.rendezvous.is_c10d = true;
        let launch = spec.node_launch(0, ("fd00::7", 4000));
        assert!(launch.words.contains(&"--rdzv-endpoint=[fd00::7]:4000".to_owned()), "{launch:?}");
    }

    #[test]
    fn only_host_needs_no_rendezvous() {
        let launch = spec("a").node_launch(0, ("a", 1));
        assert_eq!(launch.words.join(" "), "--max-restarts=1 -- train.py --lr");
        assert_eq!(launch.environment, [("TOKEN".to_owned(), "secret".to_owned())]);
    }

    #[test]
    fn hostname_is_found_in_settings() {
        assert_eq!(parse_ssh_hostname("user me\nhostname 10.0.0.7\nport 22\n"), Some("10.0.0.7"));
        assert_eq!(parse_ssh_hostname("hostnames x\n"), None);
    }
}
