//! Counters of both versions of cgroups, on a file system made by hand.

#![expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]

use std::fs;

use super::*;

/// A file system below a temporary folder.
struct FakeRoot(PathBuf);

impl FakeRoot {
    fn new(name: &str, cgroup: &str) -> Self {
        let root = std::env::temp_dir().join(format!("rankrun-oom-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let made = Self(root);
        made.file("proc/self/cgroup", cgroup);
        made.file("proc/vmstat", "nr_free_pages 1\noom_kill 7\nnuma_hit 3\n");
        made
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn v2(&self, folder: &str, (limit, oom, kills): (&str, u64, u64)) {
        let folder = format!("sys/fs/cgroup/{folder}");
        self.file(&format!("{folder}/memory.max"), &format!("{limit}\n"));
        let events = format!("low 0\nhigh 0\nmax 12\noom {oom}\noom_kill {kills}\noom_group_kill 0\n");
        self.file(&format!("{folder}/memory.events"), &events);
    }

    fn v1(&self, folder: &str, (limit, failures, kills): (u64, u64, u64)) {
        let folder = format!("sys/fs/cgroup/memory/{folder}");
        self.file(&format!("{folder}/memory.limit_in_bytes"), &format!("{limit}\n"));
        self.file(&format!("{folder}/memory.failcnt"), &format!("{failures}\n"));
        let control = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
        self.file(&format!("{folder}/memory.oom_control"), &control);
    }

    fn read(&self) -> OomCounters {
        OomCounters::below(&self.0)
    }
}

impl Drop for FakeRoot {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const V1_UNLIMITED: u64 = 9_223_372_036_854_771_712;
const MIB: u64 = 1 << 20;

#[test]
fn v2_kill_names_nearest_reached_limit() {
    let root = FakeRoot::new("v2", "0::/pod/job\n");
    let write = |(pod_oom, job_oom, kills)| {
        root.v2("pod", (&(400 * MIB).to_string(), pod_oom, kills));
        root.v2("pod/job", (&(900 * MIB).to_string(), job_oom, kills));
    };
    write((1, 0, 3));
    let before = root.read();
    let nothing = OomKills { cgroup: Some(0), limit: None, machine: Some(0) };
    assert_eq!(root.read().kills_since(&before), nothing);
    write((2, 0, 4));
    let of_pod = OomKills { cgroup: Some(1), limit: Some(400 * MIB), machine: Some(0) };
    assert_eq!(root.read().kills_since(&before), of_pod);
    write((3, 1, 5));
    let of_job = OomKills { cgroup: Some(2), limit: Some(900 * MIB), machine: Some(0) };
    assert_eq!(root.read().kills_since(&before), of_job);
}

#[test]
fn v2_without_limit_counts_kills_and_names_no_limit() {
    let root = FakeRoot::new("v2-max", "0::/job\n");
    root.v2("job", ("max", 0, 0));
    let before = root.read();
    root.v2("job", ("max", 0, 1));
    root.file("proc/vmstat", "oom_kill 9\n");
    let kills = OomKills { cgroup: Some(1), limit: None, machine: Some(2) };
    assert_eq!(root.read().kills_since(&before), kills);
}

#[test]
fn v1_kill_below_limited_cgroup_is_counted() {
    let root = FakeRoot::new("v1", "5:devices:/x\n4:cpu,memory:/box/job\n0::/elsewhere\n");
    root.v1("box", (400 * MIB, 10, 0));
    root.v1("box/job", (V1_UNLIMITED, 0, 2));
    let before = root.read();
    root.v1("box", (400 * MIB, 11, 0));
    root.v1("box/job", (V1_UNLIMITED, 0, 3));
    let kills = OomKills { cgroup: Some(1), limit: Some(400 * MIB), machine: Some(0) };
    assert_eq!(root.read().kills_since(&before), kills);
}

#[test]
fn v1_limit_without_counter_is_detected_by_peak() {
    let root = FakeRoot::new("v1-peak", "4:memory:/box\n");
    root.v1("box", (400 * MIB, 0, 0));
    let peak = |bytes: u64| {
        root.file("sys/fs/cgroup/memory/box/memory.max_usage_in_bytes", &format!("{bytes}\n"));
        root.read().kills_since(&root.read()).limit
    };
    assert_eq!(peak(390 * MIB), None);
    assert_eq!(peak(400 * MIB - 4096), Some(400 * MIB));
}

/// The limit on memory and swap together counts for itself, and is reached first where both are equal.
#[test]
fn v1_limit_with_swap_is_detected() {
    let root = FakeRoot::new("v1-swap", "4:memory:/box\n");
    root.v1("box", (400 * MIB, 0, 0));
    let with_swap = "sys/fs/cgroup/memory/box/memory.memsw.failcnt";
    root.file(with_swap, "3\n");
    let before = root.read();
    root.v1("box", (400 * MIB, 0, 1));
    root.file(with_swap, "4\n");
    assert_eq!(root.read().kills_since(&before).limit, Some(400 * MIB));
}

/// The container's own cgroup is mounted as the root, and `/proc` tells the host's path.
#[test]
fn container_without_cgroup_namespace_reads_mount_root() {
    for (name, path) in [("host-path", "/docker/abc"), ("above", "/../../abc")] {
        let root = FakeRoot::new(name, &format!("3:memory:{path}\n"));
        root.v1("", (64 * MIB, 0, 0));
        let before = root.read();
        root.v1("", (64 * MIB, 9, 1));
        let kills = OomKills { cgroup: Some(1), limit: Some(64 * MIB), machine: Some(0) };
        assert_eq!(root.read().kills_since(&before), kills, "{path}");
    }
}

#[test]
fn unreadable_counters_give_no_evidence() {
    let root = FakeRoot::new("none", "0::/job\n");
    let kills = OomKills { cgroup: None, limit: None, machine: Some(0) };
    assert_eq!(root.read().kills_since(&root.read()), kills, "the root of v2 has no such files");
    root.v1("", (V1_UNLIMITED, 0, 0));
    root.file("proc/self/cgroup", "4:memory:/\n");
    root.file("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n");
    assert_eq!(root.read().kills_since(&root.read()).cgroup, None, "Linux before 4.13");
    for garbage in ["", "4:memory\n", "memory", "\u{0}\n:::::\n", "4:memory:/\n0::/\n"] {
        root.file("proc/self/cgroup", garbage);
        root.file("proc/vmstat", garbage);
        assert_eq!(root.read().kills_since(&root.read()), OomKills::default(), "{garbage:?}");
    }
}

#[test]
fn counters_of_another_cgroup_are_not_compared() {
    let root = FakeRoot::new("moved", "0::/one\n");
    root.v2("one", ("max", 0, 0));
    root.v2("two", ("max", 0, 5));
    let before = root.read();
    root.file("proc/self/cgroup", "0::/two\n");
    assert_eq!(root.read().kills_since(&before).cgroup, None);
}

/// Workers with a peak of their own, as large as the limit.
fn deaths(count: usize) -> SigkillDeaths {
    SigkillDeaths { workers: vec![Some(PeakMemory { bytes: MIB, is_own: true }); count], orphans: 0 }
}

fn kills(cgroup: impl Into<Option<u64>>, machine: impl Into<Option<u64>>) -> OomKills {
    OomKills { cgroup: cgroup.into(), limit: Some(MIB), machine: machine.into() }
}

const CERTAIN: OomEvidence = OomEvidence::InCgroup { limit: Some(MIB), is_certain: true };
const PROBABLE: OomEvidence = OomEvidence::InCgroup { limit: Some(MIB), is_certain: false };

#[test]
fn each_kill_explains_one_death() {
    let now = Instant::now();
    let mut ledger = OomLedger::default();
    assert_eq!(ledger.explain_with_kills(kills(2, 2), &deaths(1), now), CERTAIN);
    assert_eq!(ledger.explain_with_kills(kills(2, 2), &deaths(1), now), CERTAIN);
    assert_eq!(ledger.explain_with_kills(kills(2, 2), &deaths(1), now), OomEvidence::NoKill);
    assert_eq!(ledger.explain_with_kills(kills(2, 5), &deaths(1), now), OomEvidence::OnMachine { count: 3 });
    assert_eq!(ledger.explain_with_kills(kills(3, 3), &deaths(2), now), PROBABLE, "one of the two");
    let take = |kills| OomLedger::default().explain_with_kills(kills, &deaths(1), now);
    assert_eq!(take(kills(0, 0)), OomEvidence::NoKill);
    assert_eq!(take(kills(0, None)), OomEvidence::NoKill);
    assert_eq!(take(kills(None, 0)), OomEvidence::NoKill);
    assert_eq!(take(kills(None, 3)), OomEvidence::OnMachine { count: 3 });
    assert_eq!(take(OomKills::default()), OomEvidence::Unknown);
}

#[test]
fn kill_of_possibly_other_process_is_only_probable() {
    let now = Instant::now();
    let take = |peak: Option<PeakMemory>, orphans| {
        OomLedger::default().explain_with_kills(
            kills(1, 1),
            &SigkillDeaths { workers: vec![peak], orphans },
            now,
        )
    };
    let own = |bytes| Some(PeakMemory { bytes, is_own: true });
    assert_eq!(take(own(MIB / 2), 0), CERTAIN);
    assert_eq!(take(Some(PeakMemory { bytes: MIB, is_own: false }), 0), PROBABLE, "of its child");
    assert_eq!(take(own(MIB / 128), 0), PROBABLE, "it is too small to be the victim");
    assert_eq!(take(None, 0), PROBABLE);
    assert_eq!(take(own(MIB), 1), PROBABLE, "an orphan died too");
}

#[test]
fn kill_counted_long_before_death_is_only_probable() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut ledger = OomLedger::default();
    ledger.record_sample(1, at(0));
    assert_eq!(
        ledger.explain_with_kills(kills(1, 1), &deaths(1), at(1)),
        CERTAIN,
        "the victim takes a moment to die"
    );
    let mut ledger = OomLedger::default();
    ledger.record_sample(1, at(0));
    assert_eq!(ledger.explain_with_kills(kills(1, 1), &deaths(1), at(9)), PROBABLE);
    let mut ledger = OomLedger::default();
    ledger.record_sample(1, at(0));
    assert_eq!(ledger.explain_with_kills(kills(2, 2), &deaths(1), at(9)), CERTAIN, "a kill of its own");
    assert_eq!(ledger.explain_with_kills(kills(2, 2), &deaths(1), at(10)), PROBABLE, "the old one is left");
    let mut ledger = OomLedger::default();
    let orphan = SigkillDeaths { workers: Vec::new(), orphans: 1 };
    let _ = ledger.explain_with_kills(kills(1, 1), &orphan, at(0));
    assert_eq!(ledger.explain_with_kills(kills(1, 1), &deaths(1), at(1)), PROBABLE, "an orphan died before");
}
