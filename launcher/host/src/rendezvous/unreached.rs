//! Reasons why the rendezvous store at the endpoint is not reached, and the lines that tell the user. Pure; the caller
//! makes the connection attempts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;

use super::port_owner::PortOwner;
use crate::store::client::ClientError;
use rankrun_core::rendezvous::text::escape_bytes_for_terminal;

/// Longest text of another program that is shown, in characters.
const MAX_SHOWN: usize = 80;

/// Time before the first line. A node that starts a little before its host waits silently. Without a known reason the
/// line comes a little later.
const FIRST_LINE: Duration = Duration::from_secs(2);
const FIRST_LINE_WITHOUT_REASON: Duration = Duration::from_millis(4500);

/// Interval at which the line is repeated.
const REMINDER: Duration = Duration::from_secs(30);

/// Limit for distinct reasons: another program may send a different text each time.
const MOST_REASONS: usize = 8;

/// Why the rendezvous store at the endpoint is not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreachedReason {
    /// The machine refuses the connection: no program listens on the port.
    #[error("nothing listens there")]
    NothingListens,
    /// The name of another machine means the loopback here, where no program listens on the port.
    #[error("`{host}` means this machine itself here (`{address}`), and nothing listens there")]
    OwnLoopback {
        /// The host name that was looked up.
        host: String,
        /// What it means.
        address: IpAddr,
    },
    /// No packet comes back before the connection times out.
    #[error("no answer to any connection request: the machine is down, or a firewall drops the packets")]
    NoAnswer,
    /// The time was over before the first try had a result.
    #[error("the first try had not ended: the cause is not known")]
    FirstTryRuns,
    /// This machine or a router has no route.
    #[error("no way leads there ({system}): the machine is down, or this is not its address")]
    NoRoute {
        /// The kernel's error message.
        system: String,
    },
    /// The connection is accepted, but no answer arrives.
    #[error("a program accepts connections there and says nothing")]
    Silent,
    /// The connection is accepted, then closed at once.
    #[error(
        "a program accepts connections there and closes them at once, as a proxy does without its target"
    )]
    Closes,
    /// A program answers that is not a store.
    #[error("another program listens there, {program}")]
    AnotherProgram {
        /// Name of the program, as far as its answer shows it.
        program: String,
    },
    /// The host name has no address.
    #[error("no address is known for the host `{host}` ({why})")]
    NoAddress {
        /// The host name that was looked up.
        host: String,
        /// The resolver's error message.
        why: String,
    },
    /// Any other error, with its message.
    #[error("{0}")]
    Other(String),
}

impl UnreachedReason {
    /// The reason for a failed connection attempt.
    #[must_use]
    pub(crate) fn of_client(error: &ClientError) -> Self {
        match error {
            ClientError::Io(error) => Self::of_io(error),
            ClientError::Silent { .. } => Self::Silent,
            ClientError::AnotherProgram { reply } => {
                Self::AnotherProgram { program: describe_program(reply) }
            }
            ClientError::NoStore => Self::AnotherProgram { program: describe_program(&[]) },
            ClientError::Limit => Self::Other(error.to_string()),
        }
    }

    /// The reason for a failed name lookup.
    #[must_use]
    pub(crate) fn of_name(host: &str, error: &io::Error) -> Self {
        let text = error.to_string();
        let why = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
        Self::NoAddress { host: host.to_owned(), why: why.to_owned() }
    }

    fn of_io(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED) => return Self::NothingListens,
            Some(errno @ (Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN)) => {
                return Self::NoRoute { system: errno.desc().to_owned() };
            }
            Some(Errno::EPERM | Errno::EACCES) => {
                let words = "this machine may not connect there: its firewall, or a sandbox, refuses it";
                return Self::Other(words.to_owned());
            }
            _ => {}
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Self::NoAnswer,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closes,
            _ => Self::Other(error.to_string()),
        }
    }

    /// Whether another program than a store listens at the endpoint.
    #[must_use]
    pub(crate) const fn is_another_program(&self) -> bool {
        matches!(self, Self::AnotherProgram { .. })
    }

    /// Adds that the host's name has loopback addresses alone, if that is why no program listens.
    #[must_use]
    pub(crate) fn with_addresses(self, host: &str, addresses: &[SocketAddr]) -> Self {
        let mut ips = addresses.iter().map(|address| address.ip().to_canonical()).peekable();
        match (self, ips.peek().copied()) {
            (Self::NothingListens, Some(address)) if ips.all(|ip| ip.is_loopback()) => {
                Self::OwnLoopback { host: host.to_owned(), address }
            }
            (other, _) => other,
        }
    }

    /// Adds the process that listens on the port, if it runs on this machine.
    #[must_use]
    pub(crate) fn with_owner(self, owner: Option<PortOwner>) -> Self {
        match self {
            Self::AnotherProgram { program } => match owner {
                Some(owner) => Self::AnotherProgram { program: format!("{owner}, {program}") },
                None => Self::AnotherProgram { program },
            },
            other => other,
        }
    }

    /// The wording while the host may still start.
    fn so_far(&self) -> String {
        let yet = if matches!(self, Self::NothingListens) { " yet" } else { "" };
        format!("{self}{yet}")
    }

    /// One action for the user. It names `--master-port` or `--rdzv-endpoint`, whichever sets the port.
    #[must_use]
    pub fn hint(&self, has_master_port: bool) -> &'static str {
        match self {
            Self::AnotherProgram { .. } if has_master_port => {
                "choose another port with `--master-port`, the same on every node"
            }
            Self::AnotherProgram { .. } => {
                "choose another port with `--rdzv-endpoint HOST:PORT`, the same on every node"
            }
            Self::NothingListens => {
                "start the launcher on the node that hosts the store (node rank 0, or the one that the endpoint names), with \
                 the same port; a launcher with the endpoint `localhost` lets no other machine in"
            }
            Self::OwnLoopback { .. } => {
                "the name has to lead to the node that hosts the store: see `/etc/hosts` here, or give an address"
            }
            Self::FirstTryRuns => {
                "a longer time tells the cause: `--join-timeout TIME` (for torchrun's name: `--rdzv-conf join_timeout=SECONDS`)"
            }
            Self::NoAnswer => "is that machine up, and does its firewall let this port in?",
            Self::NoRoute { .. } | Self::Other(_) => {
                "give an address of the node that hosts the store which this machine can reach (`ping` and `ip route` \
                 tell)"
            }
            Self::Silent => {
                "see with `ss -tlnp` there whether the launcher listens on this port, and whether it is stopped"
            }
            Self::Closes => "see with `ss -tlnp` on that machine what listens on this port",
            Self::NoAddress { .. } => "give an address there, or a name that this machine knows",
        }
    }
}

/// The lines that the user has seen while this node waits for its first connection to the store.
#[derive(Debug, Default)]
pub(crate) struct WaitingLines {
    reasons: Vec<UnreachedReason>,
    /// Time of the last line since the wait began.
    reported_at: Option<Duration>,
}

impl WaitingLines {
    /// Whether a line can be due for any reason.
    #[must_use]
    pub(crate) fn may_be_due(&self, waited: Duration) -> bool {
        waited >= FIRST_LINE
    }

    /// When a line can be due next for the present reason.
    #[must_use]
    pub(crate) fn next_line(&self, waited: Duration) -> Duration {
        let next = self.reported_at.map_or(FIRST_LINE_WITHOUT_REASON, |said| said + REMINDER);
        [FIRST_LINE, next].into_iter().filter(|at| *at > waited).min().unwrap_or(waited + REMINDER)
    }

    /// The line that is due after this wait, with the time left. Each reason is reported once, and the present reason
    /// again after a longer time.
    pub(crate) fn line(
        &mut self,
        waited: Duration,
        reason: Option<UnreachedReason>,
        (left, has_master_port): (Duration, bool),
    ) -> Option<String> {
        let is_new = match &reason {
            Some(reason) => !self.reasons.contains(reason) && self.reasons.len() < MOST_REASONS,
            None => self.reported_at.is_none() && waited >= FIRST_LINE_WITHOUT_REASON,
        };
        let is_again = self.reported_at.is_some_and(|said| waited >= said + REMINDER);
        if !is_new && !is_again {
            return None;
        }
        self.reported_at = Some(waited);
        let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
        let Some(reason) = reason else { return Some(format!("it has not answered yet; {left} left")) };
        let advice = match &reason {
            UnreachedReason::AnotherProgram { .. } => format!("; {}", reason.hint(has_master_port)),
            _ => String::new(),
        };
        let line = format!("{}{advice}; {left} left", reason.so_far());
        if is_new {
            self.reasons.push(reason);
        }
        Some(line)
    }
}

/// Name of a program, guessed from its first bytes.
fn describe_program(reply: &[u8]) -> String {
    let line = reply.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let shown = escape_bytes_for_terminal(line.trim_ascii(), MAX_SHOWN);
    // TLS: an alert or handshake record of any version.
    let is_tls = matches!(reply, [0x15 | 0x16, 0x03, ..]);
    let is_text = !shown.is_empty() && line.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte == b'\r');
    match line {
        _ if is_tls => "a TLS server".to_owned(),
        _ if line.starts_with(b"HTTP/") => format!("an HTTP server (`{shown}`)"),
        _ if line.starts_with(b"SSH-") => format!("an SSH server (`{shown}`)"),
        _ if is_text => format!("which says `{shown}`"),
        _ => "which does not speak the store's protocol".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_errno(errno: Errno) -> String {
        UnreachedReason::of_client(&ClientError::Io(errno.into())).to_string()
    }

    #[test]
    fn failed_attempts_are_described_by_cause() {
        assert_eq!(of_errno(Errno::ECONNREFUSED), "nothing listens there");
        let no_route =
            "no way leads there (No route to host): the machine is down, or this is not its address";
        assert_eq!(of_errno(Errno::EHOSTUNREACH), no_route);
        assert!(of_errno(Errno::ENETUNREACH).contains("Network is unreachable"));
        assert!(of_errno(Errno::ETIMEDOUT).starts_with("no answer to any connection request"));
        assert!(of_errno(Errno::EPERM).contains("firewall"));
        assert!(of_errno(Errno::ECONNRESET).contains("closes them at once"));
        let eof = ClientError::Io(io::ErrorKind::UnexpectedEof.into());
        assert!(UnreachedReason::of_client(&eof).to_string().contains("closes them at once"));
        let silent = ClientError::Silent { limit: std::time::Duration::from_secs(1) };
        assert!(UnreachedReason::of_client(&silent).to_string().ends_with("says nothing"));
        let name = io::Error::other("failed to lookup address information: Name or service not known");
        assert_eq!(
            UnreachedReason::of_name("node0", &name).to_string(),
            "no address is known for the host `node0` (Name or service not known)"
        );
    }

    #[test]
    fn name_that_means_the_loopback_is_shown_with_its_address() {
        let of = |reason: UnreachedReason, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            reason.with_addresses("node0", &addresses)
        };
        let own = of(UnreachedReason::NothingListens, &["127.0.1.1:7", "[::1]:7"]);
        let words = "`node0` means this machine itself here (`127.0.1.1`), and nothing listens there";
        assert_eq!(own.to_string(), words);
        assert!(own.hint(true).contains("/etc/hosts"));
        for addresses in [&["127.0.1.1:7", "10.0.0.1:7"][..], &["[fd00::1]:7"], &[]] {
            assert_eq!(of(UnreachedReason::NothingListens, addresses), UnreachedReason::NothingListens);
        }
        assert_eq!(of(UnreachedReason::Silent, &["127.0.0.1:7"]), UnreachedReason::Silent);
    }

    #[test]
    fn other_program_is_named_by_its_escaped_first_line() {
        let long = [b"HTTP/1.0 ".as_slice(), &[b'x'; 500]].concat();
        let cases: [(&[u8], &str); 8] = [
            (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n", "an HTTP server (`HTTP/1.1 400 Bad Request`)"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "an SSH server (`SSH-2.0-OpenSSH_9.2`)"),
            (b"\x15\x03\x01\x00\x02\x02\x46", "a TLS server"),
            (b"-ERR unknown command\r\n", "which says `-ERR unknown command`"),
            (b"\x1b]0;title\x07\n", "which does not speak the store's protocol"),
            (b"\n\n", "which does not speak the store's protocol"),
            (&[0; 64], "which does not speak the store's protocol"),
            (b"", "which does not speak the store's protocol"),
        ];
        for (said, expected) in cases {
            assert_eq!(describe_program(said), expected);
        }
        assert!(describe_program(&long).len() < 120, "{}", describe_program(&long));
        assert!(!describe_program(b"HTTP/1.0 \x1b[2J\r\n").contains('\x1b'));
    }

    #[test]
    fn waiting_line_repeats_rarely_unless_reason_changes() {
        let (mut lines, seconds) = (WaitingLines::default(), Duration::from_secs);
        let mut line = |waited: u64, reason: Option<UnreachedReason>| {
            let waited = Duration::from_millis(waited);
            let left = (seconds(600).saturating_sub(waited), false);
            lines.may_be_due(waited).then(|| lines.line(waited, reason, left)).flatten()
        };
        let (closed, silent) = (|| Some(UnreachedReason::NothingListens), || Some(UnreachedReason::Silent));
        assert_eq!(line(1_000, closed()), None, "its host may start a moment later");
        assert_eq!(line(2_000, None), None, "no try has ended");
        assert_eq!(line(2_100, closed()).as_deref(), Some("nothing listens there yet; 9m 57s left"));
        assert_eq!(line(2_200, closed()), None);
        let changed = line(9_000, silent());
        assert!(changed.is_some_and(|line| line.contains("says nothing; 9m 51s left")));
        // A reason that was told before is not told again.
        assert_eq!((line(10_000, closed()), line(11_000, silent())), (None, None));
        assert!(line(39_000, closed()).is_some_and(|line| line.starts_with("nothing listens there yet")));
        let other = |number: u32| Some(UnreachedReason::AnotherProgram { program: number.to_string() });
        let said = (0..100).filter(|number| line(39_100, other(*number)).is_some()).count();
        assert_eq!(said, MOST_REASONS - 2, "texts of others are bounded in number");
    }

    #[test]
    fn waiting_line_without_a_reason_comes_before_five_seconds() {
        let mut lines = WaitingLines::default();
        let left = (Duration::from_secs(60), false);
        assert_eq!(lines.line(Duration::from_secs(4), None, left), None);
        let line = lines.line(FIRST_LINE_WITHOUT_REASON, None, left);
        assert_eq!(line.as_deref(), Some("it has not answered yet; 1m left"));
    }

    #[test]
    fn waiting_line_for_other_program_has_a_hint() {
        let owner = Some(PortOwner { pid: 7, name: "python3".to_owned() });
        let reason = UnreachedReason::AnotherProgram { program: describe_program(b"HTTP/1.0 200 OK\r\n") }
            .with_owner(owner);
        let line = WaitingLines::default().line(FIRST_LINE, Some(reason), (Duration::from_secs(9), true));
        assert_eq!(
            line.as_deref(),
            Some(
                "another program listens there, `python3` (pid 7), an HTTP server (`HTTP/1.0 200 OK`); choose another port \
                 with `--master-port`, the same on every node; 9s left"
            )
        );
    }

    #[test]
    fn hint_for_other_program_names_the_port_option() {
        let other = UnreachedReason::AnotherProgram { program: String::new() };
        assert!(other.hint(true).contains("--master-port") && other.hint(false).contains("--rdzv-endpoint"));
    }
}
