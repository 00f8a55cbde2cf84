//! Decides which of several failures was the cause, and what exit status follows. Pure.
//!
//! One worker fails. Its peers notice within microseconds and fail too. On a busy machine a peer may be
//! reaped before the worker that failed first. The evidence that tells cause from consequence, best first:
//!
//! 1. A worker that names a lost peer points to that peer. A failure without a lost peer precedes one with a
//!    lost peer.
//! 2. A crash or a SIGKILL from outside is not a consequence of a lost peer.
//! 3. Of the workers with an error file, the first to write failed first.
//! 4. Else the worker that was reaped first.
//!
//! A worker that our own stop ended is never the cause (invariant 5). The exception is a worker that wrote
//! its error file before the stop: a Python interpreter may take seconds to exit.

use std::time::Duration;

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use crate::exit_code::{ExitStatus, LAUNCHER_FAILED};
use crate::hang::verdict::Verdict;
use crate::job_event::memory::OomEvidence;
use crate::job_event::{DeadDevice, FailureKind, ForeignKill, LostPeer, WorkerEnd};
use crate::posix::{Exit, Signal};
use crate::spec::restart::FailureCause;

/// A crash seen later than this after the first failure may be a consequence of the stop.
const SAME_MOMENT: Duration = Duration::from_millis(500);

/// Why a generation of workers failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The generation that failed.
    pub generation: Generation,
    /// The first failure that was seen; once [settled](Self::settle), the cause.
    pub first: WorkerEnd,
    /// How the worker in `first` failed.
    pub kind: FailureKind,
    /// Workers that exited with 0 before the failure, in the order of their exits.
    pub early_successes: Box<[EarlySuccess]>,
    /// The exits after the first failure, in the order in which they were seen.
    pub following_ends: Vec<FollowingEnd>,
    /// Restarts used before this failure.
    pub restart_count: RestartCount,
    /// The workers' devices that a health check found dead after the failure.
    pub dead_devices: Vec<DeadDevice>,
    /// Workers that had not joined the store when the start limit expired.
    pub not_joined: Box<[LocalRank]>,
    /// Why the workers made no progress, if that was the failure.
    pub hang: Option<Box<Verdict>>,
}

/// The cause of a failure of this kind that neither code nor signal shows.
#[must_use]
pub fn failure_cause(
    kind: FailureKind,
    foreign_kill: Option<ForeignKill>,
    hang: Option<&Verdict>,
) -> Option<FailureCause> {
    let killed_by_kernel = |kill: ForeignKill| matches!(kill.oom, OomEvidence::InCgroup { .. });
    match (kind, hang) {
        (FailureKind::Hang, Some(Verdict::Desync(_))) => Some(FailureCause::Desync),
        (FailureKind::Hang, _) => Some(FailureCause::Hang),
        _ => foreign_kill.is_some_and(killed_by_kernel).then_some(FailureCause::Oom),
    }
}

/// A worker that had exited with 0 before the first failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlySuccess {
    /// The exit of the worker.
    pub end: WorkerEnd,
    /// The time from its exit to the failure.
    pub before: Duration,
}

/// An exit after the first failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowingEnd {
    /// The worker and its exit.
    pub end: WorkerEnd,
    /// True if our own stop brought it about.
    pub is_stopped_by_us: bool,
}

impl Failure {
    /// Records a further exit.
    pub(super) fn push_exit(&mut self, other: FollowingEnd) {
        if self.precedes_worker_exit() && other.end.local_rank == self.first.local_rank {
            // The reason for its stop was recorded before; this adds only its exit.
            self.first.exit = other.end.exit;
        } else {
            self.following_ends.push(other);
        }
    }

    /// True if one signal may have reached all workers, and each ended in its own way. That needs at least
    /// two exits with a code that our own stop does not explain: most workers die of the stop.
    pub(super) fn may_be_group_signal(&self) -> bool {
        let is_code = |exit: Exit| matches!(exit, Exit::Code(code) if code != 0);
        self.kind == FailureKind::Ended
            && is_code(self.first.exit)
            && self.following_ends.iter().any(|other| is_code(other.end.exit))
    }

    /// The cause that a restart rule can name.
    pub(super) fn cause(&self) -> Option<FailureCause> {
        failure_cause(self.kind, self.first.foreign_kill, self.hang.as_deref())
    }

    const fn precedes_worker_exit(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Uninterruptible { .. } | FailureKind::NotJoined { .. } | FailureKind::Hang
        )
    }

    /// True if new workers can succeed. An uninterruptible worker may hold a device or memory that they need.
    pub(super) const fn is_restartable(&self) -> bool {
        !matches!(self.kind, FailureKind::Uninterruptible { .. })
    }

    /// The exit status under the name rankrun: the worker's own code, or 128 + the signal that ended it. It
    /// is `LAUNCHER_FAILED` for a worker that our own stop ended.
    pub(super) fn exit_status(&self) -> ExitStatus {
        match (self.kind, self.first.exit) {
            (FailureKind::Ended, Exit::Code(code)) => {
                ExitStatus::Code(u8::try_from(code).unwrap_or(LAUNCHER_FAILED))
            }
            (FailureKind::Ended, Exit::Signal { number, .. }) => ExitStatus::of_signal(number),
            (
                FailureKind::EndedByStop
                | FailureKind::Uninterruptible { .. }
                | FailureKind::NotJoined { .. }
                | FailureKind::Hang,
                _,
            ) => ExitStatus::Code(LAUNCHER_FAILED),
        }
    }

    /// Moves the cause to the front, once all exits are known.
    #[must_use]
    pub fn settle(mut self) -> Self {
        // A worker that wrote its error file before the stop is the cause that another node had named.
        if self.precedes_worker_exit() || self.kind == FailureKind::EndedByStop {
            return self;
        }
        let cause = root_cause(&self);
        if cause.end.local_rank != self.first.local_rank {
            let seen_first = FollowingEnd { end: self.first, is_stopped_by_us: false };
            self.following_ends.retain(|other| other.end.local_rank != cause.end.local_rank);
            self.following_ends.insert(0, seen_first);
            self.first = cause.end;
            self.kind = if cause.is_stopped_by_us { FailureKind::EndedByStop } else { FailureKind::Ended };
        }
        self
    }
}

fn root_cause(failure: &Failure) -> FollowingEnd {
    let first = FollowingEnd { end: failure.first, is_stopped_by_us: false };
    let all = [first].into_iter().chain(failure.following_ends.iter().copied());
    let failed: Vec<FollowingEnd> = all
        .filter(|other| !other.end.exit.is_success())
        .filter(|other| !other.is_stopped_by_us || other.end.error_file_info.is_some())
        .collect();
    let pointed_to = follow_lost_peers(first, &failed);
    if pointed_to != first {
        return pointed_to;
    }
    let crashed = |other: &&FollowingEnd| {
        !other.is_stopped_by_us && is_crash(other.end.exit) && is_same_moment(failure.first, other.end)
    };
    if let Some(crashed) = failed.iter().find(crashed) {
        return *crashed;
    }
    if has_lost_peer(&failure.first)
        && let Some(own) =
            failed.iter().find(|other| !has_lost_peer(&other.end) && has_failed_before_stop(other, first))
    {
        return *own;
    }
    let wrote =
        |end: &WorkerEnd| end.error_file_info.filter(|error_file_info| error_file_info.lost_peer.is_none());
    if wrote(&failure.first).is_none() {
        return first;
    }
    // A file written after the stop is later than that of the first exit, whatever the clock says.
    let by_write_time = failed
        .iter()
        .filter_map(|other| wrote(&other.end).map(|error_file_info| (error_file_info.written, *other)));
    by_write_time.min_by_key(|(written, _)| *written).map_or(first, |(_, other)| other)
}

fn has_lost_peer(end: &WorkerEnd) -> bool {
    end.error_file_info.is_some_and(|error_file_info| error_file_info.lost_peer.is_some())
}

/// True if `other` failed before our stop, which followed `first`: the stop may also end a worker with a code
/// of its own.
fn has_failed_before_stop(other: &FollowingEnd, first: FollowingEnd) -> bool {
    let written = |end: &WorkerEnd| end.error_file_info.map(|error_file_info| error_file_info.written);
    let wrote_before = written(&other.end).zip(written(&first.end)).is_some_and(|(own, first)| own <= first);
    !other.is_stopped_by_us && other.end.at <= first.end.at || wrote_before
}

/// Follows lost peers from worker to worker, as long as the lost peer failed itself.
fn follow_lost_peers(from: FollowingEnd, failed: &[FollowingEnd]) -> FollowingEnd {
    let mut at = from;
    // More steps than workers happen only in a cycle of workers that blame each other.
    for _ in failed {
        let lost = match at.end.error_file_info.and_then(|error_file_info| error_file_info.lost_peer) {
            Some(LostPeer::Here(local_rank)) => Some(local_rank),
            Some(LostPeer::Elsewhere(_) | LostPeer::Unnamed) | None => None,
        };
        match lost.and_then(|lost| failed.iter().find(|other| other.end.local_rank == lost)) {
            Some(next) => at = *next,
            None => return at,
        }
    }
    from
}

fn is_same_moment(first: WorkerEnd, end: WorkerEnd) -> bool {
    end.at.duration_since(first.at).unwrap_or_default() <= SAME_MOMENT
}

fn is_crash(exit: Exit) -> bool {
    use Signal::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV};
    let Exit::Signal { number, .. } = exit else { return false };
    Signal::try_from(number)
        .is_ok_and(|signal| matches!(signal, SIGKILL | SIGSEGV | SIGBUS | SIGILL | SIGFPE))
}

#[cfg(any(test, feature = "fakes"))]
impl Failure {
    /// A failure of the first generation, with the ends that followed and whether we stopped those workers.
    #[must_use]
    pub fn of_ends(first: WorkerEnd, kind: FailureKind, following: &[(WorkerEnd, bool)]) -> Self {
        let following = following.iter();
        Self {
            generation: Generation(0),
            first,
            kind,
            following_ends: following
                .map(|&(end, is_stopped_by_us)| FollowingEnd { end, is_stopped_by_us })
                .collect(),
            restart_count: RestartCount(0),
            dead_devices: Vec::new(),
            early_successes: Box::default(),
            not_joined: Box::default(),
            hang: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_event::ErrorFileInfo;
    use crate::posix::Pid;
    use rankrun_contract::rank::Rank;
    use std::time::SystemTime;

    const CODE: Exit = Exit::Code(1);

    fn end(local_rank: u32, exit: Exit, error_file_info: Option<(u64, Option<u32>)>) -> WorkerEnd {
        WorkerEnd {
            local_rank: LocalRank(local_rank),
            pid: Pid::from_raw(100),
            exit,
            at: SystemTime::UNIX_EPOCH,
            error_file_info: error_file_info.map(|(micros, lost)| ErrorFileInfo {
                written: SystemTime::UNIX_EPOCH + Duration::from_micros(micros),
                lost_peer: lost.map(|rank| LostPeer::Here(LocalRank(rank))),
            }),
            foreign_kill: None,
        }
    }

    fn signal(number: i32) -> Exit {
        Exit::Signal { number, core_dumped: false }
    }

    /// The local rank that is blamed, given exits in the order in which they were seen.
    fn root_cause_rank(ends: &[(WorkerEnd, bool)]) -> u32 {
        let failure = Failure::of_ends(ends[0].0, FailureKind::Ended, &ends[1..]);
        let settled = failure.settle();
        assert_eq!(settled.following_ends.len(), ends.len() - 1, "no end is lost");
        settled.first.local_rank.0
    }

    #[test]
    fn first_reaped_is_root_cause_without_error_files() {
        assert_eq!(root_cause_rank(&[(end(2, CODE, None), false), (end(0, CODE, None), false)]), 2);
        assert_eq!(root_cause_rank(&[(end(2, CODE, None), false), (end(0, signal(15), None), true)]), 2);
    }

    #[test]
    fn lost_peer_is_root_cause() {
        let (a, b) = (end(0, CODE, Some((5, Some(1)))), end(2, CODE, Some((4, Some(0)))));
        assert_eq!(root_cause_rank(&[(b, false), (a, false), (end(1, Exit::Code(3), None), false)]), 1);
        assert_eq!(
            root_cause_rank(&[(a, false), (end(1, signal(15), None), true)]),
            0,
            "our stop is not a cause"
        );
        let (c, d) = (end(0, CODE, Some((1, Some(1)))), end(1, CODE, Some((2, Some(0)))));
        assert_eq!(root_cause_rank(&[(d, false), (c, false)]), 1, "mutual blame decides nothing");
    }

    #[test]
    fn peer_lost_on_other_node_names_no_local_root_cause() {
        let mut victim = end(0, CODE, Some((5, None)));
        victim.error_file_info = victim
            .error_file_info
            .map(|it| ErrorFileInfo { lost_peer: Some(LostPeer::Elsewhere(Rank(1))), ..it });
        let own = end(2, CODE, Some((900, None)));
        let second = end(1, CODE, Some((950, None)));
        assert_eq!(root_cause_rank(&[(own, false), (victim, false), (second, false)]), 2);
        let ends = [(victim, false), (own, false), (second, false)];
        assert_eq!(root_cause_rank(&ends), 2, "rank 1 is not local rank 1");
        let mut late = own;
        late.at += Duration::from_millis(1);
        assert_eq!(root_cause_rank(&[(victim, false), (late, false)]), 0, "it may have handled our stop");
    }

    #[test]
    fn failure_without_lost_peer_precedes_failure_with_one() {
        for lost in [LostPeer::Elsewhere(Rank(9)), LostPeer::Unnamed] {
            let loses = |mut end: WorkerEnd| {
                end.error_file_info =
                    end.error_file_info.map(|it| ErrorFileInfo { lost_peer: Some(lost), ..it });
                end
            };
            let victim = loses(end(0, CODE, Some((5, None))));
            assert_eq!(root_cause_rank(&[(victim, false), (end(1, Exit::Code(3), None), false)]), 1);
            let mut late = end(1, Exit::Code(3), None);
            late.at += Duration::from_millis(1);
            assert_eq!(root_cause_rank(&[(victim, false), (late, false)]), 0, "it may have handled our stop");
            let early = end(1, signal(15), Some((4, None)));
            assert_eq!(
                root_cause_rank(&[(victim, false), (early, true)]),
                1,
                "it had written before the victim"
            );
            let late = end(1, signal(15), Some((6, None)));
            assert_eq!(root_cause_rank(&[(victim, false), (late, true)]), 0, "it wrote because of our stop");
            assert_eq!(root_cause_rank(&[(victim, false), (end(1, signal(15), None), true)]), 0);
            let other = loses(end(1, CODE, Some((4, None))));
            assert_eq!(root_cause_rank(&[(victim, false), (other, false)]), 0, "both lost a peer");
        }
    }

    #[test]
    fn crash_is_root_cause_over_raised_error() {
        let raised = end(0, CODE, Some((1, None)));
        for number in [libc::SIGKILL, libc::SIGSEGV] {
            assert_eq!(root_cause_rank(&[(raised, false), (end(1, signal(number), None), false)]), 1);
        }
        assert_eq!(root_cause_rank(&[(raised, false), (end(1, signal(libc::SIGKILL), None), true)]), 0);
        let mut late = end(1, signal(libc::SIGSEGV), None);
        late.at += Duration::from_secs(2);
        assert_eq!(root_cause_rank(&[(raised, false), (late, false)]), 0, "it crashed on its way out");
    }

    #[test]
    fn worker_with_error_file_before_stop_is_root_cause() {
        let (victim, cause) = (end(0, CODE, Some((900, None))), end(3, signal(15), Some((10, None))));
        assert_eq!(root_cause_rank(&[(victim, false), (cause, true)]), 3);
        let stopped = end(3, signal(15), Some((1_000, None)));
        assert_eq!(
            root_cause_rank(&[(victim, false), (stopped, true)]),
            0,
            "it wrote because it was stopped"
        );
        let silent = end(0, CODE, None);
        assert_eq!(root_cause_rank(&[(silent, false), (cause, true)]), 0);
    }

    #[test]
    fn first_error_file_writer_is_root_cause() {
        let (early, late) = (end(3, CODE, Some((10, None))), end(0, CODE, Some((900, None))));
        assert_eq!(root_cause_rank(&[(late, false), (end(1, CODE, None), false), (early, false)]), 3);
        assert_eq!(
            root_cause_rank(&[(end(1, CODE, None), false), (early, false)]),
            1,
            "it had nothing to write"
        );
    }
}
