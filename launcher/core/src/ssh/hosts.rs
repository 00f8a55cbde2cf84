//! The hosts of a job: `--hosts a,b:4` and the lines of a host file. Pure.
//!
//! A line of a host file is the one of DeepSpeed (`NAME slots=N`), of Open MPI (the same, with `max_slots`), of MPICH
//! (`NAME:N`), or a name alone. `#` begins a comment.

use core::net::IpAddr;
use std::fmt;
use std::num::NonZeroU32;

/// A host that ssh reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The destination as ssh takes it: a name, an address or an alias, perhaps with `user@`.
    pub destination: String,
    /// The number of workers; without one the host's launcher decides.
    pub slots: Option<NonZeroU32>,
}

/// What is wrong with a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostProblem {
    /// No host is named.
    #[error("names no host")]
    Empty,
    /// The text is not a name that ssh takes.
    #[error("has `{0}`, which is not the name of a host")]
    Name(String),
    /// The number of slots is not one.
    #[error("gives the host `{name}` the slots `{slots}`, which is not a number from 1 to 4294967295")]
    Slots {
        /// The host.
        name: String,
        /// The text behind `slots=` or the colon.
        slots: String,
    },
    /// A line says it two times.
    #[error("gives the host `{0}` its slots twice")]
    SlotsTwice(String),
    /// The host would have no worker.
    #[error("gives the host `{0}` no slot")]
    NoSlots(String),
    /// A word of a host file has no meaning.
    #[error("has the word `{word}` behind the host `{name}`")]
    Word {
        /// The host.
        name: String,
        /// The word.
        word: String,
    },
    /// Two entries name one host.
    #[error("names the host `{name}` twice{}", Earlier(*first_line))]
    Twice {
        /// The host.
        name: String,
        /// The line of the first entry, in a file.
        first_line: Option<usize>,
    },
    /// The other hosts cannot reach this one by its name.
    #[error("names `{0}` among other hosts, which mean themselves by it")]
    Loopback(String),
}

/// The place of the first of two entries.
struct Earlier(Option<usize>);

impl fmt::Display for Earlier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(line) => write!(f, ": line {line} has it too"),
            None => Ok(()),
        }
    }
}

impl HostProblem {
    /// The one thing to do.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Empty => "name a host that `ssh HOST` reaches",
            Self::Name(_) => "write each name as `ssh` takes it: `node1`, `user@node1`, `10.0.0.7`",
            Self::Slots { .. } => "write the number of workers, as in `node1 slots=4` or `node1:4`",
            Self::SlotsTwice(_) => "give one number",
            Self::NoSlots(_) => "leave the host out, or give it a slot",
            Self::Word { .. } => "write `NAME`, `NAME slots=N` or `NAME:N`; a comment begins with `#`",
            Self::Twice { .. } => "name each host once, with all its slots",
            Self::Loopback(_) => "write the name by which the other hosts reach this machine",
        }
    }
}

impl Host {
    /// The host without its user: the name for messages and for other hosts.
    #[must_use]
    pub fn name(&self) -> &str {
        self.destination.rsplit_once('@').map_or(&self.destination, |(_, name)| name)
    }
}

/// The hosts of `--hosts`, in rank order.
///
/// # Errors
/// An entry cannot be read, or two of them exclude each other.
pub fn parse_host_list(text: &str) -> Result<Vec<Host>, HostProblem> {
    let mut hosts = HostList::default();
    for entry in text.split(',').map(str::trim) {
        hosts.add(parse_name(entry)?, None)?;
    }
    hosts.finish()
}

/// The hosts of a host file, in rank order.
///
/// # Errors
/// The problem, and the line that has it, from 1; no line where the whole file has it.
pub fn parse_hostfile(text: &str) -> Result<Vec<Host>, (Option<usize>, HostProblem)> {
    let mut hosts = HostList::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let at = |problem| (Some(number), problem);
        if let Some(host) = parse_line(line).map_err(at)? {
            hosts.add(host, Some(number)).map_err(at)?;
        }
    }
    hosts.finish().map_err(|problem| (None, problem))
}

/// Whether every host means itself by this name.
#[must_use]
pub fn is_loopback(name: &str) -> bool {
    let name = name.trim_matches(['[', ']']);
    let is_name = ["localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known));
    is_name || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The hosts read so far, each with its line.
#[derive(Debug, Default)]
struct HostList {
    hosts: Vec<Host>,
    lines: Vec<Option<usize>>,
}

impl HostList {
    fn add(&mut self, host: Host, line: Option<usize>) -> Result<(), HostProblem> {
        let is_same = |known: &Host| known.name().eq_ignore_ascii_case(host.name());
        if let Some(at) = self.hosts.iter().position(is_same) {
            let name = host.name().to_owned();
            return Err(HostProblem::Twice { name, first_line: self.lines[at] });
        }
        self.hosts.push(host);
        self.lines.push(line);
        Ok(())
    }

    fn finish(self) -> Result<Vec<Host>, HostProblem> {
        let loopback = self.hosts.iter().find(|host| is_loopback(host.name()));
        match (self.hosts.len(), loopback) {
            (0, _) => Err(HostProblem::Empty),
            (2.., Some(host)) => Err(HostProblem::Loopback(host.name().to_owned())),
            _ => Ok(self.hosts),
        }
    }
}

/// A line without its comment.
fn parse_line(line: &str) -> Result<Option<Host>, HostProblem> {
    let mut words = line.split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let mut host = parse_name(first)?;
    for word in words {
        let unknown = || HostProblem::Word { name: host.name().to_owned(), word: word.to_owned() };
        let (key, value) = word.split_once('=').ok_or_else(unknown)?;
        match key {
            "slots" if host.slots.is_some() => return Err(HostProblem::SlotsTwice(host.name().to_owned())),
            "slots" => host.slots = Some(parse_slots(host.name(), value)?),
            // The most that Open MPI may put there; the slots count.
            "max_slots" | "max-slots" => drop(parse_slots(host.name(), value)?),
            _ => return Err(unknown()),
        }
    }
    Ok(Some(host))
}

/// `NAME`, `NAME:N`; several colons are an IPv6 address, which takes a number behind brackets alone.
fn parse_name(text: &str) -> Result<Host, HostProblem> {
    let (destination, slots) = match (text.rsplit_once(':'), text.matches(':').count()) {
        (Some((name, slots)), 1) => (name.to_owned(), Some(slots)),
        (Some((name, slots)), _) if name.ends_with(']') => (name.to_owned(), Some(slots)),
        _ => (text.to_owned(), None),
    };
    let destination = without_brackets(&destination).ok_or_else(|| HostProblem::Name(text.to_owned()))?;
    let host = Host { destination, slots: None };
    let is_of_name = |letter: char| letter.is_alphanumeric() || "-_.:%@".contains(letter);
    let is_plain = !host.name().is_empty() && host.destination.chars().all(is_of_name);
    // ssh would take a leading hyphen for an option.
    if !is_plain || host.destination.starts_with(['-', '@']) || host.name().starts_with('-') {
        return Err(HostProblem::Name(text.to_owned()));
    }
    let slots = slots.map(|slots| parse_slots(host.name(), slots)).transpose()?;
    Ok(Host { slots, ..host })
}

/// ssh takes an IPv6 address without its brackets. Others are the list of a scheduler, as in `n[1-2]`.
fn without_brackets(destination: &str) -> Option<String> {
    let (user, name) = destination.rsplit_once('@').map_or(("", destination), |(user, name)| (user, name));
    let Some(inner) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) else {
        return (!name.contains(['[', ']'])).then(|| destination.to_owned());
    };
    let is_address = (inner.contains(':') || inner.parse::<IpAddr>().is_ok()) && !inner.contains(['[', ']']);
    let at = if user.is_empty() { "" } else { "@" };
    is_address.then(|| format!("{user}{at}{inner}"))
}

fn parse_slots(name: &str, text: &str) -> Result<NonZeroU32, HostProblem> {
    let number: u32 =
        text.parse().map_err(|_| HostProblem::Slots { name: name.to_owned(), slots: text.to_owned() })?;
    NonZeroU32::new(number).ok_or_else(|| HostProblem::NoSlots(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(hosts: &[Host]) -> Vec<String> {
        let slots = |host: &Host| host.slots.map_or(String::new(), |slots| format!("={slots}"));
        hosts.iter().map(|host| format!("{}{}", host.destination, slots(host))).collect()
    }

    #[test]
    fn list_has_names_and_slots() {
        for (text, hosts) in [
            ("a", &["a"][..]),
            ("a,b:4, c", &["a", "b=4", "c"]),
            ("me@a,10.0.0.7:2", &["me@a", "10.0.0.7=2"]),
            ("fd00::7,[fd00::8]:3", &["fd00::7", "fd00::8=3"]),
            ("me@[fd00::8],[10.0.0.7]:2", &["me@fd00::8", "10.0.0.7=2"]),
            ("localhost", &["localhost"]),
        ] {
            assert_eq!(shown(&parse_host_list(text).unwrap()), hosts, "{text}");
        }
    }

    #[test]
    fn bad_list_is_refused() {
        for (text, part) in [
            ("", "``"),
            ("a,,b", "``"),
            ("a,-oProxyCommand=x", "is not the name"),
            ("me@-x", "is not the name"),
            ("a b", "is not the name"),
            ("n[1-2]", "`n[1-2]`, which is not the name"),
            ("n[1,2]", "`n[1`, which is not the name"),
            ("[n1]", "`[n1]`, which is not the name"),
            ("[fd00::8", "is not the name"),
            ("a:x", "the slots `x`"),
            ("a:0", "no slot"),
            ("a:99999999999", "the slots `99999999999`"),
            ("a,b,A", "twice"),
            ("a,me@a", "twice"),
            ("a,localhost", "`localhost` among other hosts"),
            ("127.0.0.1,a", "`127.0.0.1` among other hosts"),
            ("a,::1", "`::1` among other hosts"),
        ] {
            let problem = parse_host_list(text).unwrap_err();
            assert!(problem.to_string().contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn hostfile_has_all_spellings() {
        let file = "# the cluster\n\n a slots=3   # gpus\nb:2\nc\nme@d slots=4 max_slots=8\n";
        assert_eq!(shown(&parse_hostfile(file).unwrap()), ["a=3", "b=2", "c", "me@d=4"]);
    }

    #[test]
    fn hostfile_error_has_its_line() {
        for (file, line, part) in [
            ("", None, "names no host"),
            ("# nothing\n", None, "names no host"),
            ("a slots=1\nb slots=x\n", Some(2), "the slots `x`"),
            ("a slots=0\n", Some(1), "gives the host `a` no slot"),
            ("a slots=1 slots=2\n", Some(1), "its slots twice"),
            ("a\nb:2 slots=3\n", Some(2), "its slots twice"),
            ("\n\na slots=2\nb slots=2\na slots=1\n", Some(5), "`a` twice: line 3 has it too"),
            ("a slots=2 gpus\n", Some(1), "the word `gpus`"),
            ("a 4\n", Some(1), "the word `4`"),
            ("a\nlocalhost\n", None, "`localhost` among other hosts"),
        ] {
            let (at, problem) = parse_hostfile(file).unwrap_err();
            assert_eq!(at, line, "{file}: {problem}");
            assert!(problem.to_string().contains(part), "{file}: {problem}");
            assert!(!problem.hint().ends_with('.'));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}") {
            let _ = parse_host_list(&text);
            if let Ok(hosts) = parse_hostfile(&text) {
                prop_assert!(hosts.iter().all(|host| !host.destination.starts_with('-')));
            }
        }
    }
}
