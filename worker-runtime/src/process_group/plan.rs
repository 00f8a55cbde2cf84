//! What carries the calls of a group: each rank says in a record what it wants and where it is, and all ranks draw the same
//! conclusion from all records. Pure.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rankrun_contract::rank::{ParseIdError, Rank};

use super::{Backend, shm};

/// The version of everything that ranks say to each other, from the record on. Every rank that joins has said its version in
/// its record before anything else, so that ranks of different versions part with an error that names both.
pub(crate) const PROTOCOL: u32 = 3;

/// Longest record that a rank writes, and that another one looks at.
const MAX_RECORD: usize = 512;

/// What every record begins with, of any version.
const MARK: &str = "rankrun group ";

/// Which backend a rank wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wish {
    /// The fastest one for memory of the CPU: shared memory among the ranks of a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory; all ranks must be on one host.
    Shm,
    /// TCP connections between any two ranks, wherever they are.
    Tcp,
    /// NCCL, on NVIDIA GPUs.
    Nccl,
}

impl Wish {
    const ALL: [Self; 4] = [Self::Auto, Self::Shm, Self::Tcp, Self::Nccl];
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nccl => "nccl",
        })
    }
}

impl FromStr for Wish {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Self::ALL.into_iter().find(|wish| wish.to_string() == text).ok_or_else(|| ParseIdError {
            text: text.to_owned(),
            expected: "a backend of process groups: `auto`, `shm`, `tcp` or `nccl`",
        })
    }
}

/// Stands for the machine and network that a rank sees: equal for ranks that reach each other without a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host(String);

impl Host {
    /// `None` for what no record can hold: nothing, too much, or anything but visible ASCII.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let is_fine =
            (1..=MAX_RECORD / 2).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_graphic());
        is_fine.then(|| Self(text.to_owned()))
    }

    /// A host on which nobody else is.
    pub(crate) fn unknown(id: uuid::Uuid) -> Self {
        Self(id.to_string())
    }
}

/// What one rank says to all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// A rank of this version.
    Current { wish: Wish, host: Host },
    /// A rank of another version, of which nothing else is known.
    Other { version: u32 },
}

impl Record {
    /// What goes into the store.
    pub(crate) fn render(&self) -> String {
        match self {
            Self::Current { wish, host } => format!("{MARK}{PROTOCOL}\nbackend {wish}\nhost {}\n", host.0),
            Self::Other { version } => format!("{MARK}{version}\n"),
        }
    }

    /// `None` for what no rank writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_RECORD)?;
        let (version, rest) = text.strip_prefix(MARK)?.split_once('\n')?;
        let version = version.parse::<Rank>().ok()?.0;
        if version != PROTOCOL {
            return Some(Self::Other { version });
        }
        let (wish, rest) = rest.strip_prefix("backend ")?.split_once('\n')?;
        let host = rest.strip_prefix("host ")?.strip_suffix('\n')?;
        Some(Self::Current { wish: wish.parse().ok()?, host: Host::new(host)? })
    }
}

/// On which all ranks of a group agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) wish: Wish,
    /// The host of each rank, numbered from 0 in the order of their first ranks.
    pub(crate) hosts: Arc<[u32]>,
}

/// Why ranks cannot become a group; the first two, in rank order, that do not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// They speak different versions of the protocol.
    #[error(
        "rank {} speaks version {} of the protocol and rank {} version {}; build all ranks with the same rankrun",
        ranks[0], versions[0], ranks[1], versions[1]
    )]
    Versions {
        /// The two ranks.
        ranks: [Rank; 2],
        /// What each speaks.
        versions: [u32; 2],
    },
    /// They want different backends.
    #[error(
        "rank {} wants the backend `{}` and rank {} `{}`; give all ranks the same `RANKRUN_BACKEND` or \
         `GroupOptions::backend`",
        ranks[0], wishes[0], ranks[1], wishes[1]
    )]
    Wishes {
        /// The two ranks.
        ranks: [Rank; 2],
        /// What each wants.
        wishes: [Wish; 2],
    },
    /// They want shared memory and are on different hosts, or of different users.
    #[error(
        "the backend `shm` is for ranks of one user on one host, and rank {} and rank {} are on different ones, or of \
         different users; ask for `auto`",
        ranks[0], ranks[1]
    )]
    Hosts {
        /// The two ranks.
        ranks: [Rank; 2],
    },
}

/// What the records of all ranks, in rank order, come to.
pub(crate) fn choose(records: &[Record]) -> Result<Plan, Conflict> {
    let mut members = Vec::with_capacity(records.len());
    for (record, rank) in records.iter().zip(0..) {
        match record {
            Record::Current { wish, host } => members.push((Rank(rank), *wish, host)),
            Record::Other { version } => {
                // Of this version is whoever reads; where all that come before are of the other one, it comes later.
                let reader = records.iter().position(|it| matches!(it, Record::Current { .. })).unwrap_or(0);
                return Err(versions((Rank(rank), *version), (rank_at(reader), PROTOCOL)));
            }
        }
    }
    let Some(&(first, wish, _)) = members.first() else {
        return Ok(Plan { wish: Wish::default(), hosts: Arc::new([]) });
    };
    if let Some(&(rank, other, _)) = members.iter().find(|&&(_, it, _)| it != wish) {
        return Err(Conflict::Wishes { ranks: [first, rank], wishes: [wish, other] });
    }
    let hosts = number(members.into_iter().map(|(_, _, host)| host));
    match hosts.iter().position(|&host| host != 0) {
        Some(away) if wish == Wish::Shm => Err(Conflict::Hosts { ranks: [first, rank_at(away)] }),
        _ => Ok(Plan { wish, hosts: hosts.into() }),
    }
}

fn versions(one: (Rank, u32), other: (Rank, u32)) -> Conflict {
    let [one, other] = if one.0 < other.0 { [one, other] } else { [other, one] };
    Conflict::Versions { ranks: [one.0, other.0], versions: [one.1, other.1] }
}

/// Numbers equal things alike, in the order in which they first come.
fn number<T: PartialEq>(things: impl Iterator<Item = T>) -> Vec<u32> {
    let mut known: Vec<T> = Vec::new();
    let mut numbers = Vec::new();
    for thing in things {
        let index = known.iter().position(|it| *it == thing).unwrap_or_else(|| {
            known.push(thing);
            known.len() - 1
        });
        numbers.push(rank_at(index).0);
    }
    numbers
}

fn rank_at(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

impl Plan {
    /// What suits the wish best. Ranks that are too many for one piece of shared memory are connected one by one, unless they asked
    /// for it: then they hear that they are too many.
    pub(crate) fn backend(&self) -> Backend {
        match self.wish {
            Wish::Tcp => Backend::Tcp,
            Wish::Nccl => Backend::Nccl,
            Wish::Auto if most_on_one_host(&self.hosts) > shm::MAX_RANKS => Backend::Tcp,
            Wish::Auto if spans_hosts(&self.hosts) => Backend::Mixed,
            Wish::Auto | Wish::Shm => Backend::Shm,
        }
    }
}

fn most_on_one_host(hosts: &[u32]) -> u32 {
    let mut counts = vec![0; hosts.len()];
    for &host in hosts {
        // There are no more hosts than ranks.
        counts[Rank(host).index()] += 1;
    }
    counts.into_iter().max().unwrap_or(0)
}

/// Whether some ranks reach each other through the network only.
pub(crate) fn spans_hosts(hosts: &[u32]) -> bool {
    hosts.iter().any(|&host| host != 0)
}

/// The hosts of a group that consists of these ranks, numbered anew.
pub(crate) fn hosts_of(hosts: &[u32], ranks: &[Rank]) -> Arc<[u32]> {
    number(ranks.iter().filter_map(|rank| hosts.get(rank.index()))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(wish: Wish, host: &str) -> Record {
        Record::Current { wish, host: Host::new(host).unwrap() }
    }

    #[test]
    fn ranks_on_one_host_share_memory_and_others_mix() {
        let plan = choose(&[record(Wish::Auto, "a"), record(Wish::Auto, "a")]).unwrap();
        assert_eq!((plan.backend(), &plan.hosts[..]), (Backend::Shm, &[0, 0][..]));
        let hosts = ["b", "a", "b", "c"].map(|host| record(Wish::Auto, host));
        let plan = choose(&hosts).unwrap();
        assert_eq!((plan.backend(), &plan.hosts[..]), (Backend::Mixed, &[0, 1, 0, 2][..]));
        assert_eq!(hosts_of(&plan.hosts, &[Rank(3), Rank(1)])[..], [0, 1]);
        assert_eq!(hosts_of(&plan.hosts, &[Rank(2), Rank(0)])[..], [0, 0]);
    }

    #[test]
    fn more_ranks_of_a_host_than_share_memory_go_by_tcp_unless_they_ask_for_it() {
        let host = |host, ranks: u32| vec![host; ranks as usize];
        let backend = |wish, hosts: Vec<u32>| Plan { wish, hosts: hosts.into() }.backend();
        assert_eq!(backend(Wish::Auto, host(0, 1024)), Backend::Shm);
        assert_eq!(backend(Wish::Auto, host(0, 1025)), Backend::Tcp);
        assert_eq!(backend(Wish::Shm, host(0, 1025)), Backend::Shm);
        // Of several hosts the fullest one counts, and no other.
        assert_eq!(backend(Wish::Auto, [host(0, 1024), host(1, 1024)].concat()), Backend::Mixed);
        assert_eq!(backend(Wish::Auto, [host(0, 1), host(1, 1025), host(2, 3)].concat()), Backend::Tcp);
    }

    #[test]
    fn what_is_asked_for_is_done() {
        for (wish, backend) in [(Wish::Tcp, Backend::Tcp), (Wish::Nccl, Backend::Nccl)] {
            assert_eq!(choose(&[record(wish, "a"), record(wish, "b")]).unwrap().backend(), backend);
        }
        assert_eq!(
            choose(&[record(Wish::Shm, "a"), record(Wish::Shm, "a")]).unwrap().backend(),
            Backend::Shm
        );
    }

    #[test]
    fn ranks_that_do_not_fit_are_both_named() {
        let said = |records: &[Record]| choose(records).unwrap_err().to_string();
        let (auto, tcp) = (record(Wish::Auto, "a"), record(Wish::Tcp, "a"));
        let text = said(&[auto.clone(), auto.clone(), tcp]);
        assert!(text.starts_with("rank 0 wants the backend `auto` and rank 2 `tcp`;"), "{text}");
        let text = said(&[record(Wish::Shm, "a"), record(Wish::Shm, "a"), record(Wish::Shm, "b")]);
        assert!(
            text.contains("rank 0 and rank 2 are on different ones") && text.ends_with("ask for `auto`"),
            "{text}"
        );
        let other = Record::Other { version: 1 };
        let text = said(&[auto.clone(), other.clone()]);
        assert!(text.starts_with("rank 0 speaks version 3 of the protocol and rank 1 version 1;"), "{text}");
        let text = said(&[other.clone(), other, auto]);
        assert!(text.starts_with("rank 0 speaks version 1 of the protocol and rank 2 version 3;"), "{text}");
    }

    #[test]
    fn another_version_is_known_by_its_first_line_alone() {
        let later = Record::parse(b"rankrun group 4\nwhatever it then says");
        assert_eq!(later, Some(Record::Other { version: 4 }));
    }

    #[test]
    fn what_no_rank_writes_is_no_record() {
        let long = format!("rankrun group 3\nbackend auto\nhost {}\n", "h".repeat(MAX_RECORD));
        for text in [
            "",
            "rankrun group",
            "rankrun group 3",
            "rankrun group +3\n",
            "rankrun group 3\nbackend auto\n",
            "rankrun group 3\nbackend auto\nhost a",
            "rankrun group 3\nbackend auto\nhost \n",
            "rankrun group 3\nbackend auto\nhost a\nhost b\n",
            "rankrun group 3\nbackend gloo\nhost a\n",
            &long,
        ] {
            assert_eq!(Record::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(wish in proptest::sample::select(&Wish::ALL), host in "[!-~]{1,256}") {
            let record = record(wish, &host);
            prop_assert_eq!(Record::parse(record.render().as_bytes()), Some(record));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), is_ours in any::<bool>()) {
            let start: &[u8] = if is_ours { b"rankrun group 3\nbackend tcp\n" } else { b"" };
            drop(Record::parse(&[start, &bytes].concat()));
        }
    }
}
