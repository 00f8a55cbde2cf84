//! Hosts that reach each other by ssh: a [`Fleet`] with an sshd on each host, made by `tests/hosts/ssh-hosts.sh`.
#![expect(clippy::disallowed_methods, reason = "the servers are started by a script")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fleet::Fleet;
use crate::launch::{Launch, Name};
use crate::place::Scratch;
use crate::settings::is_rankrun;

/// Hosts `th1`, `th2`, … with ssh servers; `alias1` and `alias2` are names that ssh alone knows. Launches run on `th0`.
#[derive(Debug)]
pub struct SshFleet {
    fleet: Fleet,
    scratch: Scratch,
}

impl SshFleet {
    /// Hosts 1 to `size`, and 0; nothing where this machine permits no namespaces, or where the real torchrun is tested.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    #[track_caller]
    pub fn start(size: usize) -> Option<Self> {
        if !is_rankrun() {
            return None;
        }
        let (fleet, scratch) = (Fleet::start(size)?, Scratch::new());
        let ssh = Self { fleet, scratch };
        ssh.run_script(&["up", &size.to_string()]);
        Some(ssh)
    }

    /// The hosts.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// A folder that all hosts have.
    #[must_use]
    pub const fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// rankrun on host 0, with an ssh that reaches the others.
    #[must_use]
    pub fn launch<A: Into<OsString>>(&self, args: impl IntoIterator<Item = A>) -> Launch {
        self.prepare(Launch::new(Name::Rankrun).args(args))
    }

    /// The launch on host 0, with an ssh that reaches the others, in the folder that all hosts have.
    #[must_use]
    pub fn prepare(&self, launch: Launch) -> Launch {
        let bin = self.scratch.at("bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut first = OsString::from(format!("{bin}:"));
        first.push(path);
        self.fleet.on(0, launch.env("PATH", first).cwd(self.scratch.path()))
    }

    /// Ends the server of a host; what runs in its sessions goes on.
    #[track_caller]
    pub fn stop_server(&self, host: usize) {
        self.run_script(&["stop", &host.to_string()]);
    }

    /// Fails unless every process on every host ends within seconds, once the servers are told to end.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        for host in self.fleet.hosts() {
            self.stop_server(host);
        }
        self.fleet.is_empty();
    }

    #[track_caller]
    fn run_script(&self, line: &[&str]) {
        let output = Command::new(script())
            .args(line)
            .arg(self.scratch.path())
            .env("TH_ID", self.fleet.id())
            .stdin(Stdio::null())
            .output()
            .expect("the script of the ssh servers starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`ssh-hosts.sh {}` failed: {message}", line.join(" "));
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts/ssh-hosts.sh")
}
