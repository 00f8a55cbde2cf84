//! The verdict on all ranks of this node: one function of their evidence, the time and the limits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rankrun_contract::rank::Rank;

use crate::hang::evidence::{Collective, RankEvidence};

/// The time without progress after which a job is warned of, where the user sets no limit.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The time that restoring, compiling and the first step may take, where the user sets no limit.
pub const DEFAULT_FIRST_STEP: Duration = Duration::from_secs(10 * 60);
/// Without a limit of the user, a pause is as long as this many times the longest one before.
const LEARNED_FACTOR: u32 = 3;

/// How long a rank may show no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `--hang-timeout`.
    pub hang_timeout: Option<Duration>,
    /// `--first-step-timeout`: until the first heartbeat of a rank, and for a section without a limit of its own.
    pub first_step: Duration,
    /// Other nodes have ranks of which nothing is known here.
    pub has_other_nodes: bool,
}

impl Limits {
    /// The limit outside of sections, before anything is learned.
    #[must_use]
    pub fn usual(&self) -> Duration {
        self.hang_timeout.unwrap_or(DEFAULT_LIMIT)
    }
}

/// Whether the ranks make progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// At least one rank makes progress, and no other rank waits for long.
    Progress,
    /// Nothing that the ranks show says whether they make progress.
    NotEnoughEvidence,
    /// No rank makes progress.
    Hang(Hang),
    /// No rank makes progress, since the ranks of a group call different collectives.
    Desync(Desync),
    /// Ranks wait for long, and those that they wait for make progress.
    Straggler(Straggler),
}

/// Ranks that make no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hang {
    /// The collectives that ranks wait in; first one of which the missing ranks wait in no other.
    pub waits: Vec<Wait>,
    /// The ranks that wait in no collective: those that are missing in one, and others without progress.
    pub silent: Vec<RankStatus>,
    /// A missing rank may be on another node.
    pub has_other_nodes: bool,
}

/// Ranks of one group that wait in one collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The description of the group; empty if it has none.
    pub group: String,
    /// The name of the collective, if it is recent.
    pub name: Option<String>,
    pub sequence: u64,
    pub waiting: BTreeSet<Rank>,
    /// Ranks of the group that have not called it.
    pub missing: BTreeSet<Rank>,
    /// The line of the program that all waiting ranks call it from, once their stacks are taken.
    pub place: Option<String>,
}

/// Ranks of one group that call different collectives at one place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desync {
    pub group: String,
    pub sequence: u64,
    pub calls: Vec<Call>,
    pub since: Duration,
}

/// Ranks that call the same collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub ranks: BTreeSet<Rank>,
    pub collective: Collective,
    /// As in [`Wait::place`].
    pub place: Option<String>,
}

/// Ranks that wait for others, which make progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Straggler {
    pub waits: Vec<Wait>,
    pub working: Vec<RankStatus>,
}

/// What is known of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStatus {
    pub rank: Rank,
    pub activity: Activity,
    /// Since its last progress.
    pub since: Duration,
    /// Where it stands, as in `in load_batch (data.py:17)`, once its stack is taken.
    pub place: Option<String>,
}

/// The last sign of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// It exited with 0.
    Finished,
    /// The step and the section of its last heartbeat.
    Step { step: u64, section: Option<String> },
    /// It sends no heartbeats, and its flight recorder answers.
    Recorded,
    /// Its flight recorder answers without any collective.
    NoCollective,
    /// Its flight recorder does not answer.
    Unanswered,
    /// It shows nothing.
    Unknown,
}

impl Hang {
    /// Of the ranks that wait in no collective, one that the others miss in theirs, else the one that has stood still for
    /// the longest time. A rank that shows nothing comes last.
    fn longest_silent(&self) -> Option<Rank> {
        let is_missing = |rank: &Rank| self.waits.iter().any(|wait| wait.missing.contains(rank));
        let alive = self.silent.iter().filter(|status| status.activity != Activity::Finished);
        let first = alive.min_by_key(|status| {
            let shows_nothing = status.activity == Activity::Unknown;
            (!is_missing(&status.rank), shows_nothing, Reverse(status.since), status.rank)
        });
        first.map(|status| status.rank)
    }
}

impl Verdict {
    /// The rank that the others wait for, if it is alive, else the one that stands still for longest; else one that waits.
    #[must_use]
    pub fn blamed_rank(&self) -> Option<Rank> {
        let waiting = |waits: &[Wait]| waits.iter().find_map(|wait| wait.waiting.first().copied());
        match self {
            Self::Progress | Self::NotEnoughEvidence => None,
            Self::Hang(hang) => hang.longest_silent().or_else(|| waiting(&hang.waits)),
            Self::Desync(desync) => {
                let fewest = desync.calls.iter().min_by_key(|call| call.ranks.len());
                fewest.and_then(|call| call.ranks.first().copied())
            }
            Self::Straggler(straggler) => straggler.working.first().map(|status| status.rank),
        }
    }
}

/// The verdict on these ranks; their order has no influence.
#[must_use]
pub fn judge(ranks: &[RankEvidence], now: Instant, limits: &Limits) -> Verdict {
    let ranks: BTreeMap<Rank, &RankEvidence> = ranks.iter().map(|it| (it.rank, it)).collect();
    let visible: Vec<&RankEvidence> =
        ranks.values().copied().filter(|it| it.has_evidence() && !it.is_finished).collect();
    if visible.is_empty() {
        return Verdict::NotEnoughEvidence;
    }
    let (stalled, moving): (Vec<&RankEvidence>, Vec<&RankEvidence>) =
        visible.iter().partition(|it| is_stalled(it, now, limits));
    let waits = collect_waits(&ranks, &stalled);
    let waiting: BTreeSet<Rank> = waits.iter().flat_map(|wait| wait.waiting.iter().copied()).collect();
    if !moving.is_empty() {
        let awaited = waits.iter().flat_map(|wait| &wait.missing).filter(|rank| !waiting.contains(rank));
        let awaited: BTreeSet<Rank> = awaited.copied().collect();
        let works =
            |rank: &Rank| moving.iter().any(|it| it.rank == *rank && !is_in_first_step(it, now, limits));
        if awaited.is_empty() || !awaited.iter().all(works) {
            return Verdict::Progress;
        }
        let working = awaited.iter().filter_map(|rank| Some(status(ranks.get(rank)?, now))).collect();
        return Verdict::Straggler(Straggler { waits, working });
    }
    if let Some(desync) = find_desync(&stalled, now) {
        return Verdict::Desync(desync);
    }
    // A recorder whose counts stand still says nothing of a program between two collectives.
    if waits.is_empty() && stalled.iter().all(|it| it.last_heartbeat.is_none()) {
        return Verdict::NotEnoughEvidence;
    }
    let is_missing = |rank: &Rank| waits.iter().any(|wait| wait.missing.contains(rank));
    let silent = ranks.values().filter(|it| !waiting.contains(&it.rank));
    let silent = silent.filter(|it| !it.is_finished || is_missing(&it.rank));
    let silent = silent.map(|it| status(it, now)).collect();
    Verdict::Hang(Hang { waits, silent, has_other_nodes: limits.has_other_nodes })
}

fn is_stalled(it: &RankEvidence, now: Instant, limits: &Limits) -> bool {
    let learned = it.largest_gap.saturating_mul(LEARNED_FACTOR);
    let usual = limits.hang_timeout.unwrap_or_else(|| DEFAULT_LIMIT.max(learned));
    let heartbeat = it.last_heartbeat.as_ref().map(|last| &last.heartbeat);
    let limit = heartbeat.map_or(usual, |heartbeat| match (&heartbeat.section, heartbeat.limit) {
        (_, Some(limit)) => limit,
        (Some(_), None) => limits.first_step.max(usual),
        (None, None) => usual,
    });
    !is_in_first_step(it, now, limits) && now.saturating_duration_since(it.last_progress) >= limit
}

fn is_in_first_step(it: &RankEvidence, now: Instant, limits: &Limits) -> bool {
    it.last_heartbeat.is_none() && now.saturating_duration_since(it.started) < limits.first_step
}

/// The collectives that stalled ranks wait in, those first whose missing ranks wait in none.
fn collect_waits(ranks: &BTreeMap<Rank, &RankEvidence>, stalled: &[&RankEvidence]) -> Vec<Wait> {
    let mut waiting: BTreeMap<(&str, u64), BTreeSet<Rank>> = BTreeMap::new();
    for it in stalled {
        for place in it.pending() {
            waiting.entry(place).or_default().insert(it.rank);
        }
    }
    let all_waiting: BTreeSet<Rank> = waiting.values().flatten().copied().collect();
    let mut waits: Vec<Wait> = waiting
        .into_iter()
        .map(|((name, sequence), waiting)| {
            let missing = members(ranks, name).into_iter().filter(|rank| {
                let called = ranks.get(rank).and_then(|it| it.group(name)).map_or(0, |group| group.enqueued);
                called < sequence && ranks.contains_key(rank)
            });
            let missing = missing.filter(|rank| !waiting.contains(rank)).collect();
            let groups = || waiting.iter().filter_map(|rank| ranks.get(rank)?.group(name));
            let group = groups().map(|group| group.description.clone()).max().unwrap_or_default();
            let name = groups().find_map(|group| Some(group.collective(sequence)?.name.clone()));
            Wait { group, name, sequence, waiting, missing, place: None }
        })
        .collect();
    let leads_on = |wait: &Wait| wait.missing.is_empty() || wait.missing.is_subset(&all_waiting);
    waits.sort_by_key(leads_on);
    waits
}

/// The ranks of a group: as its configuration says, else the ranks that have called a collective of it.
fn members(ranks: &BTreeMap<Rank, &RankEvidence>, name: &str) -> BTreeSet<Rank> {
    let groups = || ranks.values().filter_map(|it| it.group(name));
    if groups().any(|group| group.is_world) {
        return ranks.keys().copied().collect();
    }
    let listed = groups().filter_map(|group| group.members.as_ref()).flatten().copied();
    let calling = ranks.values().filter(|it| it.group(name).is_some()).map(|it| it.rank);
    listed.chain(calling).collect()
}

/// The first collective at which the ranks of a group differ, where one of them waits in it.
fn find_desync(stalled: &[&RankEvidence], now: Instant) -> Option<Desync> {
    let places: BTreeSet<(&str, u64)> = stalled.iter().flat_map(|it| it.pending()).collect();
    places.into_iter().find_map(|(name, sequence)| {
        let mut calls: Vec<Call> = Vec::new();
        // A rank that has completed later calls of the group is past this one, perhaps in an older group of the same name.
        let groups = stalled.iter().filter_map(|it| Some((it.rank, it.group(name)?)));
        let groups = groups.filter(|(_, group)| group.completed <= sequence);
        for (rank, found) in groups.clone().filter_map(|(rank, it)| Some((rank, it.collective(sequence)?))) {
            match calls.iter_mut().find(|call| call.collective == *found) {
                Some(call) => {
                    call.ranks.insert(rank);
                }
                None => {
                    calls.push(Call { ranks: BTreeSet::from([rank]), collective: found.clone(), place: None })
                }
            }
        }
        let group = groups.map(|(_, group)| group.description.clone()).max().unwrap_or_default();
        let since = stalled.iter().map(|it| now.saturating_duration_since(it.last_progress)).min()?;
        (calls.len() > 1).then_some(Desync { group, sequence, calls, since })
    })
}

fn status(it: &RankEvidence, now: Instant) -> RankStatus {
    let heartbeat = it
        .last_heartbeat
        .as_ref()
        .map(|last| Activity::Step { step: last.heartbeat.step, section: last.heartbeat.section.clone() });
    let activity = match heartbeat {
        _ if it.is_finished => Activity::Finished,
        Some(step) => step,
        None if it.is_unanswered => Activity::Unanswered,
        None if it.groups.is_some() && (it.has_groups() || it.has_progressed()) => Activity::Recorded,
        None if it.groups.is_some() => Activity::NoCollective,
        None => Activity::Unknown,
    };
    RankStatus {
        rank: it.rank,
        activity,
        since: now.saturating_duration_since(it.last_progress),
        place: None,
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
