//! OOM kills: processes that the kernel killed for lack of memory, by its counters.
//!
//! The counter of a memory cgroup counts victims in it, whichever limit was reached: its own, that of a cgroup above,
//! or the machine's memory (cgroup v2: `oom_kill` in `memory.events`; v1: in `memory.oom_control`, since Linux 4.13).
//! A counter beside each limit shows which limit was reached. `/proc/vmstat` counts the victims of the whole machine,
//! also of other containers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_core::job_event::memory::OomEvidence;
use rankrun_core::job_event::memory::PeakMemory;

/// The kernel's OOM counters at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OomCounters {
    /// Of this process's memory cgroup; nothing where it cannot be read.
    cgroup: Option<CgroupCounters>,
    machine: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupCounters {
    folder: PathBuf,
    kills: u64,
    /// Those of the cgroup and of the cgroups above it, nearest first.
    limits: Vec<Limit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    /// How often the memory of this cgroup has come to it.
    reached_count: u64,
    /// The most memory that this cgroup ever had, in bytes.
    peak: Option<u64>,
}

impl Limit {
    /// Whether the cgroup ever had so much, allowing for the larger pieces of the kernel's accounting.
    fn was_ever_reached(&self) -> bool {
        self.peak.is_some_and(|peak| peak >= self.bytes - self.bytes / 64)
    }
}

/// OOM kills since an earlier reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OomKills {
    /// In the memory cgroup of the launcher; nothing where that is not known.
    pub cgroup: Option<u64>,
    /// The nearest limit that was reached meanwhile, in bytes; where the kernel counts that not, at any time.
    pub limit: Option<u64>,
    /// On the whole machine; nothing where that is not known.
    pub machine: Option<u64>,
}

/// The form of a cgroup's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    const fn mount(self) -> &'static str {
        match self {
            Self::V1 => "sys/fs/cgroup/memory",
            Self::V2 => "sys/fs/cgroup",
        }
    }

    /// The file with the line `oom_kill`.
    const fn kills_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.oom_control",
            Self::V2 => "memory.events",
        }
    }

    fn limit_in(self, folder: &Path) -> Option<Limit> {
        let read = |name: &str| text_of(&folder.join(name));
        let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
        let limit = |file| number(file).filter(|bytes| *bytes < NO_LIMIT);
        Some(match self {
            Self::V1 => Limit {
                bytes: limit("memory.limit_in_bytes")?,
                // With an equal limit on memory and swap together, that one is reached first.
                reached_count: number("memory.failcnt")?
                    .saturating_add(number("memory.memsw.failcnt").unwrap_or_default()),
                peak: number("memory.max_usage_in_bytes"),
            },
            Self::V2 => Limit {
                bytes: limit("memory.max")?,
                reached_count: value_of(&read("memory.events")?, "oom")?,
                peak: None,
            },
        })
    }
}

/// From here on a limit of version 1 means none: the kernel writes the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// The size of a read of `/proc/vmstat`, in bytes.
const READ_CHUNK: usize = 16 * 1024;

/// More is not read of a file, in bytes.
const MAX_FILE_LEN: u64 = 1 << 20;

impl OomCounters {
    /// Reads the counters of the cgroup and of the machine.
    #[must_use]
    pub(crate) fn read() -> Self {
        Self::below(Path::new("/"))
    }

    /// Those of the file system below `root`.
    fn below(root: &Path) -> Self {
        let machine = text_of(&root.join("proc/vmstat"));
        Self {
            cgroup: CgroupCounters::below(root),
            machine: machine.and_then(|text| value_of(&text, "oom_kill")),
        }
    }

    /// The OOM kills since `before` was read.
    #[must_use]
    pub(crate) fn kills_since(&self, before: &Self) -> OomKills {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let cgroups = self.cgroup.as_ref().zip(before.cgroup.as_ref());
        // Counters of another cgroup cannot be compared.
        let cgroups = cgroups.filter(|(now, before)| now.folder == before.folder);
        let reached =
            |(now, before): (&Limit, &Limit)| (now.reached_count > before.reached_count).then_some(now.bytes);
        let limit = cgroups.and_then(|(now, before)| {
            // Linux 6.18 was seen to count no failures in version 1.
            let full = || now.limits.iter().find(|limit| limit.was_ever_reached()).map(|limit| limit.bytes);
            now.limits.iter().zip(&before.limits).find_map(reached).or_else(full)
        });
        OomKills {
            cgroup: cgroups.map(|(now, before)| since(now.kills, before.kills)),
            limit,
            machine: self.machine.zip(before.machine).map(|(now, before)| since(now, before)),
        }
    }
}

impl CgroupCounters {
    fn below(root: &Path) -> Option<Self> {
        let text = text_of(&root.join("proc/self/cgroup"))?;
        let (version, path) = memory_cgroup(&text)?;
        let mount = root.join(version.mount());
        let own = mount.join(path.trim_start_matches('/'));
        // A container without a cgroup namespace sees its own cgroup as the root, under the path of the host.
        let is_seen = !path.contains("/..") && own.join(version.kills_file()).exists();
        let folder = if is_seen { own } else { mount.clone() };
        let counts = text_of(&folder.join(version.kills_file()))?;
        let above = folder.ancestors().take_while(|above| above.starts_with(&mount));
        let limits = above.filter_map(|above| version.limit_in(above)).collect();
        Some(Self { kills: value_of(&counts, "oom_kill")?, limits, folder })
    }
}

/// The text of one of the kernel's files, in one piece: the kernel counts anew for each piece that is read.
fn text_of(path: &Path) -> Option<String> {
    let mut text = String::with_capacity(READ_CHUNK);
    File::open(path).ok()?.take(MAX_FILE_LEN).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The version and path of the memory cgroup in the text of `/proc/self/cgroup`. Version 1 has the memory where it is named.
fn memory_cgroup(text: &str) -> Option<(Version, &str)> {
    let hierarchies = || {
        text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        })
    };
    let first = hierarchies().find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"));
    let unified = || hierarchies().find(|(controllers, _)| controllers.is_empty());
    first.map(|(_, path)| (Version::V1, path)).or_else(|| unified().map(|(_, path)| (Version::V2, path)))
}

/// The number behind a name, of lines such as `oom_kill 3`.
fn value_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A process that the kernel kills for lack of memory is dead after this time at the latest, in all but rare cases.
const MAX_KILL_DELAY: Duration = Duration::from_secs(5);

/// The kernel kills the largest process: one with less than this part of the limit was hardly the largest.
const MIN_VICTIM_DIVISOR: u64 = 64;

/// Deaths by SIGKILL that were found together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SigkillDeaths {
    /// The peak memory of each worker; the launcher did not send its signal.
    pub workers: Vec<Option<PeakMemory>>,
    /// The number of dead processes that workers had left behind.
    pub orphans: u64,
}

/// Which deaths by SIGKILL the counters explain, since the workers of a generation were started.
#[derive(Debug, Default)]
pub(crate) struct OomLedger {
    before: OomCounters,
    /// Kills that already explain a worker's death.
    explained_kills: u64,
    /// Kills that are known to be of other processes than the workers that are found dead from now on.
    other_kills: u64,
    /// The last look, and the kills in the cgroup that it found.
    last_sample: Option<(Instant, u64)>,
}

impl OomLedger {
    /// Reads the counters to compare with later.
    #[must_use]
    pub(crate) fn begin() -> Self {
        Self { before: OomCounters::read(), ..Self::default() }
    }

    /// The OOM kills since [`Self::begin`].
    #[must_use]
    pub(crate) fn kills(&self) -> OomKills {
        OomCounters::read().kills_since(&self.before)
    }

    /// Reads the counters, unless it did so a moment ago.
    pub(crate) fn sample(&mut self, now: Instant) {
        // Without counters of the cgroup there is nothing to read.
        if self.before.cgroup.is_none() {
            return;
        }
        if self.last_sample.is_none() {
            // `begin` has just read them.
            self.last_sample = Some((now, 0));
        } else if self.is_last_sample_old(now) {
            let kills = self.kills().cgroup.unwrap_or_default();
            self.record_sample(kills, now);
        }
    }

    fn is_last_sample_old(&self, now: Instant) -> bool {
        self.last_sample.is_none_or(|(at, _)| now.saturating_duration_since(at) >= MAX_KILL_DELAY)
    }

    /// The victims of the last look are dead by now, if that was long ago.
    fn record_sample(&mut self, kills: u64, now: Instant) {
        if self.is_last_sample_old(now) {
            let old = self.last_sample.map_or(0, |(_, kills)| kills);
            self.other_kills = self.other_kills.max(old.saturating_sub(self.explained_kills));
            self.last_sample = Some((now, kills));
        }
    }

    /// The evidence about workers that died by SIGKILL and were reaped together.
    pub(crate) fn explain_deaths(&mut self, deaths: &SigkillDeaths, now: Instant) -> OomEvidence {
        let kills = self.kills();
        self.explain_with_kills(kills, deaths, now)
    }

    fn explain_with_kills(&mut self, kills: OomKills, deaths: &SigkillDeaths, now: Instant) -> OomEvidence {
        let in_cgroup = kills.cgroup.unwrap_or_default();
        self.record_sample(in_cgroup, now);
        let unexplained = in_cgroup.saturating_sub(self.explained_kills);
        let fresh = unexplained.saturating_sub(self.other_kills);
        let count = deaths.workers.len() as u64;
        let may_be_victim = |peak: &Option<PeakMemory>| {
            let least = kills.limit.unwrap_or_default() / MIN_VICTIM_DIVISOR;
            peak.is_some_and(|peak| peak.is_own && peak.bytes >= least)
        };
        let is_certain = fresh >= count + deaths.orphans && deaths.workers.iter().all(may_be_victim);
        self.explained_kills += unexplained.min(count);
        let rest = unexplained - unexplained.min(count);
        self.other_kills = self.other_kills.saturating_add(deaths.orphans).min(rest);
        let elsewhere = kills.machine.map(|all| all.saturating_sub(in_cgroup));
        match (unexplained, elsewhere) {
            (1.., _) => OomEvidence::InCgroup { limit: kills.limit, is_certain },
            (0, Some(count @ 1..)) => OomEvidence::OnMachine { count },
            (0, Some(0)) => OomEvidence::NoKill,
            (0, None) if kills.cgroup.is_some() => OomEvidence::NoKill,
            (0, None) => OomEvidence::Unknown,
        }
    }
}

#[cfg(test)]
#[path = "oom_tests.rs"]
mod tests;
