//! Chooses the backend of a group: each rank publishes a record of its request and its host, and every rank
//! draws the same conclusion from all records. Pure.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rankrun_contract::rank::{ParseIdError, Rank};

use super::{Backend, shm};
use crate::diagnostic::{Details, Diagnostic};

/// Version of everything that ranks send to each other, the record included. Each rank publishes its version
/// first, so that ranks of different versions fail with an error that names both.
pub(crate) const PROTOCOL_VERSION: u32 = 3;

/// Bytes of a record at most, written or read.
const MAX_RECORD_LEN: usize = 512;

/// The first bytes of a record of any version.
const RECORD_PREFIX: &str = "rankrun group ";

/// The backend that a program or `RANKRUN_BACKEND` requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// Shared memory among the ranks of a host, TCP between hosts.
    #[default]
    Auto,
    /// Shared memory; all ranks must be on one host.
    Shm,
    /// A TCP connection between every two ranks, on any hosts.
    Tcp,
    /// NCCL, for memory of NVIDIA GPUs.
    Nccl,
}

impl BackendChoice {
    const ALL: [Self; 4] = [Self::Auto, Self::Shm, Self::Tcp, Self::Nccl];
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nccl => "nccl",
        })
    }
}

impl FromStr for BackendChoice {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        Self::ALL.into_iter().find(|choice| choice.to_string() == text).ok_or_else(|| ParseIdError {
            text: text.to_owned(),
            expected: "a backend of process groups: `auto`, `shm`, `tcp` or `nccl`",
        })
    }
}

/// Identifies a host: equal for ranks that reach each other without a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostId(String);

impl HostId {
    /// `None` for text that a record cannot hold: empty, too long, or not visible ASCII.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let is_fine = (1..=MAX_RECORD_LEN / 2).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_fine.then(|| Self(text.to_owned()))
    }

    /// A host that no other rank shares.
    pub(crate) fn unique(id: uuid::Uuid) -> Self {
        Self(id.to_string())
    }
}

/// What one rank tells all others before they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RankRecord {
    /// A rank of this version.
    Current { choice: BackendChoice, host: HostId },
    /// A rank of another version; the rest of its record is unknown.
    Other { version: u32 },
}

impl RankRecord {
    /// The text for the store.
    pub(crate) fn render(&self) -> String {
        match self {
            Self::Current { choice, host } => {
                format!("{RECORD_PREFIX}{PROTOCOL_VERSION}\nbackend {choice}\nhost {}\n", host.0)
            }
            Self::Other { version } => format!("{RECORD_PREFIX}{version}\n"),
        }
    }

    /// `None` for text that a rank never writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_RECORD_LEN)?;
        let (version, rest) = text.strip_prefix(RECORD_PREFIX)?.split_once('\n')?;
        let version = version.parse::<Rank>().ok()?.0;
        if version != PROTOCOL_VERSION {
            return Some(Self::Other { version });
        }
        let (choice, rest) = rest.strip_prefix("backend ")?.split_once('\n')?;
        let host = rest.strip_prefix("host ")?.strip_suffix('\n')?;
        Some(Self::Current { choice: choice.parse().ok()?, host: HostId::new(host)? })
    }
}

/// The conclusion from the records of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendPlan {
    pub(crate) choice: BackendChoice,
    /// The host of each rank, numbered from 0 in the order of their first ranks.
    pub(crate) hosts: Arc<[u32]>,
}

/// Why ranks cannot become a group. It names the first two ranks, in rank order, that do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Two ranks have different versions of the protocol.
    #[error(
        "{}rank {} speaks version {} of the protocol and rank {} version {}",
        Details(self), ranks[0], versions[0], ranks[1], versions[1]
    )]
    Versions {
        /// The two ranks.
        ranks: [Rank; 2],
        /// Their protocol versions.
        versions: [u32; 2],
    },
    /// Two ranks request different backends.
    #[error(
        "{}rank {} requests the backend `{}` and rank {} `{}`",
        Details(self), ranks[0], choices[0], ranks[1], choices[1]
    )]
    Backends {
        /// The two ranks.
        ranks: [Rank; 2],
        /// Their requests.
        choices: [BackendChoice; 2],
    },
    /// Shared memory is requested, and two ranks are on different hosts or have different users.
    #[error(
        "{}the backend `shm` needs ranks of one user on one host, but rank {} and rank {} are on different hosts or of \
         different users",
        Details(self), ranks[0], ranks[1]
    )]
    Hosts {
        /// The two ranks.
        ranks: [Rank; 2],
    },
}

impl Conflict {
    /// One thing that the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Versions { .. } => "build all ranks with the same version of rankrun",
            Self::Backends { .. } => "give all ranks the same `RANKRUN_BACKEND` or `GroupOptions::backend`",
            Self::Hosts { .. } => "choose the backend `auto`",
        }
    }
}

impl Diagnostic for Conflict {
    fn hint(&self) -> Option<&str> {
        Some(Self::hint(self))
    }
}

/// Draws the conclusion from the records of all ranks, in rank order.
pub(crate) fn plan_backend(records: &[RankRecord]) -> Result<BackendPlan, Conflict> {
    let mut members = Vec::with_capacity(records.len());
    for (record, rank) in records.iter().zip(0..) {
        match record {
            RankRecord::Current { choice, host } => members.push((Rank(rank), *choice, host)),
            RankRecord::Other { version } => {
                // The reading rank has this version. If all ranks before it have the other one, it comes
                // later.
                let reader =
                    records.iter().position(|other| matches!(other, RankRecord::Current { .. })).unwrap_or(0);
                return Err(version_conflict(
                    (Rank(rank), *version),
                    (rank_from_index(reader), PROTOCOL_VERSION),
                ));
            }
        }
    }
    let Some(&(first, choice, _)) = members.first() else {
        return Ok(BackendPlan { choice: BackendChoice::default(), hosts: Arc::new([]) });
    };
    if let Some(&(rank, other, _)) = members.iter().find(|&&(_, chosen, _)| chosen != choice) {
        return Err(Conflict::Backends { ranks: [first, rank], choices: [choice, other] });
    }
    let hosts = index_by_first_occurrence(members.into_iter().map(|(_, _, host)| host));
    match hosts.iter().position(|&host| host != 0) {
        Some(away) if choice == BackendChoice::Shm => {
            Err(Conflict::Hosts { ranks: [first, rank_from_index(away)] })
        }
        _ => Ok(BackendPlan { choice, hosts: hosts.into() }),
    }
}

fn version_conflict(one: (Rank, u32), other: (Rank, u32)) -> Conflict {
    let [one, other] = if one.0 < other.0 { [one, other] } else { [other, one] };
    Conflict::Versions { ranks: [one.0, other.0], versions: [one.1, other.1] }
}

/// Numbers equal items alike, in the order of their first occurrence.
fn index_by_first_occurrence<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<u32> {
    let mut known: Vec<T> = Vec::new();
    let mut numbers = Vec::new();
    for item in items {
        let index = known.iter().position(|known_item| *known_item == item).unwrap_or_else(|| {
            known.push(item);
            known.len() - 1
        });
        numbers.push(rank_from_index(index).0);
    }
    numbers
}

fn rank_from_index(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

impl BackendPlan {
    /// The best backend for the request. With too many ranks for one shared segment, `auto` uses TCP; an
    /// explicit `shm` fails later with the limit.
    pub(crate) fn backend(&self) -> Backend {
        match self.choice {
            BackendChoice::Tcp => Backend::Tcp,
            BackendChoice::Nccl => Backend::Nccl,
            BackendChoice::Auto if max_ranks_per_host(&self.hosts) > shm::MAX_RANKS => Backend::Tcp,
            BackendChoice::Auto if spans_hosts(&self.hosts) => Backend::Mixed,
            BackendChoice::Auto | BackendChoice::Shm => Backend::Shm,
        }
    }
}

fn max_ranks_per_host(hosts: &[u32]) -> u32 {
    let mut counts = vec![0; hosts.len()];
    for &host in hosts {
        // The numbers of hosts are below the number of ranks.
        counts[Rank(host).index()] += 1;
    }
    counts.into_iter().max().unwrap_or(0)
}

/// Whether some ranks reach each other only through the network.
pub(crate) fn spans_hosts(hosts: &[u32]) -> bool {
    hosts.iter().any(|&host| host != 0)
}

/// The hosts of these ranks, numbered from 0 again.
pub(crate) fn subset_hosts(hosts: &[u32], ranks: &[Rank]) -> Arc<[u32]> {
    index_by_first_occurrence(ranks.iter().filter_map(|rank| hosts.get(rank.index()))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(choice: BackendChoice, host: &str) -> RankRecord {
        RankRecord::Current { choice, host: HostId::new(host).unwrap() }
    }

    #[test]
    fn auto_backend_is_shm_on_one_host_and_mixed_on_several() {
        let plan =
            plan_backend(&[record(BackendChoice::Auto, "a"), record(BackendChoice::Auto, "a")]).unwrap();
        assert_eq!((plan.backend(), &plan.hosts[..]), (Backend::Shm, &[0, 0][..]));
        let hosts = ["b", "a", "b", "c"].map(|host| record(BackendChoice::Auto, host));
        let plan = plan_backend(&hosts).unwrap();
        assert_eq!((plan.backend(), &plan.hosts[..]), (Backend::Mixed, &[0, 1, 0, 2][..]));
        assert_eq!(subset_hosts(&plan.hosts, &[Rank(3), Rank(1)])[..], [0, 1]);
        assert_eq!(subset_hosts(&plan.hosts, &[Rank(2), Rank(0)])[..], [0, 0]);
    }

    #[test]
    fn host_above_max_ranks_uses_tcp_unless_shm_requested() {
        let host = |host, ranks: u32| vec![host; ranks as usize];
        let backend = |choice, hosts: Vec<u32>| BackendPlan { choice, hosts: hosts.into() }.backend();
        assert_eq!(backend(BackendChoice::Auto, host(0, 1024)), Backend::Shm);
        assert_eq!(backend(BackendChoice::Auto, host(0, 1025)), Backend::Tcp);
        assert_eq!(backend(BackendChoice::Shm, host(0, 1025)), Backend::Shm);
        // Of several hosts only the fullest one counts.
        assert_eq!(backend(BackendChoice::Auto, [host(0, 1024), host(1, 1024)].concat()), Backend::Mixed);
        assert_eq!(
            backend(BackendChoice::Auto, [host(0, 1), host(1, 1025), host(2, 3)].concat()),
            Backend::Tcp
        );
    }

    #[test]
    fn requested_backend_is_used() {
        for (choice, backend) in [(BackendChoice::Tcp, Backend::Tcp), (BackendChoice::Nccl, Backend::Nccl)] {
            assert_eq!(plan_backend(&[record(choice, "a"), record(choice, "b")]).unwrap().backend(), backend);
        }
        assert_eq!(
            plan_backend(&[record(BackendChoice::Shm, "a"), record(BackendChoice::Shm, "a")])
                .unwrap()
                .backend(),
            Backend::Shm
        );
    }

    #[test]
    fn conflicting_records_name_both_ranks() {
        let conflict = |records: &[RankRecord]| plan_backend(records).unwrap_err();
        let message = |records: &[RankRecord]| conflict(records).to_string();
        let (auto, tcp) = (record(BackendChoice::Auto, "a"), record(BackendChoice::Tcp, "a"));
        let text = message(&[auto.clone(), auto.clone(), tcp]);
        assert_eq!(text, "rank 0 requests the backend `auto` and rank 2 `tcp`");
        let hosts = conflict(&["a", "a", "b"].map(|host| record(BackendChoice::Shm, host)));
        assert!(hosts.to_string().contains("rank 0 and rank 2 are on different hosts"), "{hosts}");
        assert_eq!(hosts.hint(), "choose the backend `auto`");
        let other = RankRecord::Other { version: 1 };
        let text = message(&[auto.clone(), other.clone()]);
        assert_eq!(text, "rank 0 speaks version 3 of the protocol and rank 1 version 1");
        let text = message(&[other.clone(), other, auto]);
        assert_eq!(text, "rank 0 speaks version 1 of the protocol and rank 2 version 3");
    }

    #[test]
    fn record_of_other_version_is_parsed_from_first_line() {
        let later = RankRecord::parse(b"rankrun group 4\nwhatever it then says");
        assert_eq!(later, Some(RankRecord::Other { version: 4 }));
    }

    #[test]
    fn invalid_record_is_rejected() {
        let long = format!("rankrun group 3\nbackend auto\nhost {}\n", "h".repeat(MAX_RECORD_LEN));
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
            assert_eq!(RankRecord::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn record_round_trips(choice in proptest::sample::select(&BackendChoice::ALL), host in "[!-~]{1,256}") {
            let record = record(choice, &host);
            prop_assert_eq!(RankRecord::parse(record.render().as_bytes()), Some(record));
        }

        #[test]
        fn record_parse_of_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), is_ours in any::<bool>()) {
            let start: &[u8] = if is_ours { b"rankrun group 3\nbackend tcp\n" } else { b"" };
            drop(RankRecord::parse(&[start, &bytes].concat()));
        }
    }
}
