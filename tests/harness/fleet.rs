//! Several hosts on this machine, made of network namespaces by `tests/hosts/hosts.sh`, with faults between them.
#![expect(clippy::disallowed_methods, reason = "the hosts are made by a script, and a wait reads the clock")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::launch::Launch;
use crate::processes::Process;
use crate::settings::can_use_namespaces;

/// How long what ran on a host may take to vanish.
const LEFT_LIMIT: Duration = Duration::from_secs(10);

/// Hosts `th1`, `th2`, … with an address of each kind, and `th0`, the test's own host among them. They reach each other
/// and no other machine. Files and process ids are shared, the rest is each host's own.
///
/// They go with the value, also when the test fails or is killed.
#[derive(Debug)]
pub struct Fleet {
    id: String,
    size: usize,
    /// Takes the hosts away once its standard input ends, however that comes.
    keeper: Child,
}

/// How packets are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A reset for every packet of TCP: its connection is over at once.
    Reset,
    /// An ICMP error: a connection that is open tries on, a new one fails.
    Icmp,
}

impl Fleet {
    /// Hosts 1 to `size`, and 0; nothing where this machine permits no namespaces.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    #[track_caller]
    pub fn start(size: usize) -> Option<Self> {
        Self::start_by(&script(), size, &[])
    }

    /// The same by a script that puts more on the hosts, with these variables.
    #[track_caller]
    pub(crate) fn start_by(script: &Path, size: usize, variables: &[(&str, &str)]) -> Option<Self> {
        if !can_use_namespaces() {
            return None;
        }
        let id = fresh_id();
        let keeper = Command::new("sh")
            .args(["-c", "cat >/dev/null; exec \"$0\" down"])
            .arg(script)
            .env("TH_ID", &id)
            .stdin(Stdio::piped())
            // Ctrl-C ends the tests and not this one.
            .process_group(0)
            .spawn()
            .expect("a shell starts");
        let fleet = Self { id, size, keeper };
        fleet.run_by(script, variables, &["up", &size.to_string()]);
        Some(fleet)
    }

    /// The name of this fleet for the scripts of hosts (`TH_ID`).
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The launch, on that host. A wrapper that is given afterwards runs there too.
    #[must_use]
    pub fn on(&self, host: usize, launch: Launch) -> Launch {
        launch.env("TH_ID", &self.id).under([
            script().into_os_string(),
            "exec".into(),
            host.to_string().into(),
        ])
    }

    /// Runs a program on a host to its end, and gives what it wrote to standard output.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn run(&self, host: usize, line: &[&str]) -> String {
        self.run_script(&[&["exec", &host.to_string()], line].concat())
    }

    /// A shell's line on a host.
    ///
    /// # Panics
    /// As [`Fleet::run`].
    #[track_caller]
    pub fn shell(&self, host: usize, line: &str) -> String {
        self.run(host, &["sh", "-euc", line])
    }

    /// The host's IPv4 address.
    #[must_use]
    pub fn address(host: usize) -> String {
        format!("198.18.0.{}", 10 + host)
    }

    /// The host's IPv6 address.
    #[must_use]
    pub fn address_v6(host: usize) -> String {
        format!("fd00:7468::{}", 10 + host)
    }

    /// The hosts' numbers, without the test's own host.
    pub fn hosts(&self) -> impl Iterator<Item = usize> + use<> {
        1..=self.size
    }

    /// Takes the names out of the host's `/etc/hosts`: not even its own resolves then.
    #[track_caller]
    pub fn remove_host_names(&self, host: usize) {
        self.write_hosts_file(host, "");
    }

    /// Takes away all IPv4 addresses of every host but those of the loopback; names mean IPv6 addresses.
    #[track_caller]
    pub fn disable_ipv4(&self) {
        let names = self.hosts().map(|host| format!("{} th{host}\n", Self::address_v6(host)));
        let names = format!("::1 localhost\n{}", names.collect::<String>());
        for host in self.hosts() {
            self.write_hosts_file(host, &names);
            self.run(host, &["ip", "-4", "addr", "flush", "dev", "eth0"]);
        }
    }

    /// The names that this host knows from now on, as lines of `/etc/hosts`.
    #[track_caller]
    pub fn write_hosts_file(&self, host: usize, names: &str) {
        let line = "cp /dev/stdin /etc/hosts".to_owned();
        self.run(host, &["sh", "-euc", &format!("printf %s \"$0\" | {line}"), names]);
    }

    /// Of new connections to this host, only those to ports of the range arrive; the others are dropped in silence.
    #[track_caller]
    pub fn allow_only_ports(&self, host: usize, first: u16, last: u16) {
        let rules = format!(
            "table inet wall {{ chain input {{ type filter hook input priority 0; policy accept; \
             iifname \"eth0\" tcp flags & (syn | ack) == syn tcp dport != {first}-{last} counter drop; }}; }}"
        );
        self.run(host, &["nft", &rules]);
    }

    /// Drops every packet to and from the host, without an error.
    #[track_caller]
    pub fn disconnect(&self, host: usize) {
        self.run_script(&["cut", &host.to_string()]);
    }

    /// Refuses every packet to and from the host, in this way.
    #[track_caller]
    pub fn reject(&self, host: usize, refusal: Refusal) {
        let how = match refusal {
            Refusal::Reset => "tcp",
            Refusal::Icmp => "icmp",
        };
        self.run_script(&["reject", &host.to_string(), how]);
    }

    /// Two hosts do not hear each other.
    #[track_caller]
    pub fn disconnect_pair(&self, one: usize, other: usize) {
        self.run_script(&["cut", &one.to_string(), &other.to_string()]);
    }

    /// A host does not hear another one any more, which still hears it.
    #[track_caller]
    pub fn cut_one_way(&self, from: usize, to: usize) {
        self.run_script(&["cut", &from.to_string(), "to", &to.to_string()]);
    }

    /// The host loses its power: all its processes are gone, and nothing more is sent.
    #[track_caller]
    pub fn crash(&self, host: usize) {
        self.run_script(&["crash", &host.to_string()]);
    }

    /// Ends all faults of a host; one that has crashed is back, with nothing running.
    #[track_caller]
    pub fn heal(&self, host: usize) {
        self.run_script(&["heal", &host.to_string()]);
    }

    /// Drops so many of a hundred packets to and from the host.
    #[track_caller]
    pub fn drop_packets(&self, host: usize, percent: u32) {
        self.run_script(&["loss", &host.to_string(), &percent.to_string()]);
    }

    /// Holds every packet that arrives at the host.
    #[track_caller]
    pub fn delay(&self, host: usize, time: Duration) {
        self.run_script(&["delay", &host.to_string(), &time.as_millis().to_string()]);
    }

    /// The processes that run on a host.
    #[must_use]
    #[track_caller]
    pub fn processes(&self, host: usize) -> Vec<Process> {
        let pids = self.run_script(&["pids", &host.to_string()]);
        pids.split_whitespace().filter_map(|pid| Process::open(pid.parse().ok()?)).collect()
    }

    /// Fails unless every process on every host ends within seconds.
    ///
    /// # Panics
    /// With the list of those that are left.
    #[track_caller]
    pub fn is_empty(&self) {
        let until = Instant::now() + LEFT_LIMIT;
        for host in self.hosts() {
            let mut processes = self.processes(host);
            while !processes.is_empty() && processes.iter().all(|process| process.ended_by(until)) {
                processes = self.processes(host);
            }
            let names: Vec<_> =
                processes.iter().map(|one| format!("{} `{}`", one.pid, one.command)).collect();
            assert!(names.is_empty(), "left on host {host}: {}", names.join(", "));
        }
    }

    #[track_caller]
    fn run_script(&self, line: &[&str]) -> String {
        self.run_by(&script(), &[], line)
    }

    /// Runs a script for these hosts, and gives what it wrote to standard output.
    #[track_caller]
    pub(crate) fn run_by(&self, script: &Path, variables: &[(&str, &str)], line: &[&str]) -> String {
        let Output { status, stdout, stderr } = Command::new(script)
            .args(line)
            .env("TH_ID", &self.id)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .output()
            .expect("the script of the hosts starts");
        let message = String::from_utf8_lossy(&stderr);
        assert!(
            status.success(),
            "`{} {}` failed, {status}: {message}\nRANKRUN_E2E_NO_NAMESPACES=1 skips what needs hosts",
            script.display(),
            line.join(" ")
        );
        String::from_utf8_lossy(&stdout).into_owned()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts/hosts.sh")
}

/// Six letters, of this process and of no other fleet of it.
fn fresh_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let letters = |mut number: u32, count: usize| {
        let mut text = String::new();
        for _ in 0..count {
            text.push(char::from(b'a' + u8::try_from(number % 26).expect("below 26")));
            number /= 26;
        }
        text
    };
    letters(std::process::id(), 4) + &letters(COUNT.fetch_add(1, Ordering::Relaxed), 2)
}
