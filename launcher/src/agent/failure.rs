//! Which of several failures was the cause. Pure.
//!
//! One worker fails and its peers, who notice within microseconds, fail too; on a busy machine some of them are
//! reaped before it. What tells cause from consequence, best evidence first:
//!
//! 1. A worker that says whom it lost points to that one.
//! 2. A worker that crashed, or was killed from outside, did not do so because a peer left.
//! 3. Of those that wrote an error file, the first to write failed first.
//! 4. The first whose end was seen.
//!
//! A worker that our own stop ended is never the cause (invariant 5).

use std::time::{Duration, SystemTime};

use rankrun_contract::rank::{Generation, LocalRank, RestartCount};

use crate::agent::message::WorkerEnd;
use crate::process::Exit;

/// A crash that is seen later than this after the first failure may be a consequence of the stop.
const SAME_MOMENT: Duration = Duration::from_millis(500);

/// What a failed worker's error file says about the order of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Testimony {
    /// When it was written.
    pub written: SystemTime,
    /// The peer whose loss the worker failed of.
    pub lost: Option<LocalRank>,
}

/// Why a generation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Which life of the group.
    pub generation: Generation,
    /// The first failure that was seen; once [settled](Self::settle), the cause.
    pub first: WorkerEnd,
    /// The ends that followed, in the order in which they were seen.
    pub others: Vec<FollowingEnd>,
    /// Restarts used before it.
    pub restart_count: RestartCount,
}

/// An end after the first failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowingEnd {
    /// Who and how.
    pub end: WorkerEnd,
    /// Whether our own stop brought it about.
    pub stopped: bool,
}

impl Failure {
    /// Puts the cause first, when all ends are known.
    #[must_use]
    pub fn settle(mut self) -> Self {
        let cause = root_cause(&self);
        if cause.local_rank != self.first.local_rank {
            let seen_first = FollowingEnd { end: self.first, stopped: false };
            self.others.retain(|other| other.end.local_rank != cause.local_rank);
            self.others.insert(0, seen_first);
            self.first = cause;
        }
        self
    }
}

fn root_cause(failure: &Failure) -> WorkerEnd {
    let followed = failure.others.iter().filter(|other| !other.stopped).map(|other| other.end);
    let failed: Vec<WorkerEnd> =
        [failure.first].into_iter().chain(followed).filter(|end| !end.exit.is_success()).collect();
    let pointed_to = follow(failure.first, &failed);
    if pointed_to != failure.first {
        return pointed_to;
    }
    if let Some(crashed) = failed.iter().find(|end| is_crash(end.exit) && at_once(failure.first, **end)) {
        return *crashed;
    }
    let wrote = |end: &WorkerEnd| end.testimony.filter(|testimony| testimony.lost.is_none());
    if wrote(&failure.first).is_none() {
        return failure.first;
    }
    let witnesses = failed.iter().filter_map(|end| wrote(end).map(|testimony| (testimony.written, *end)));
    witnesses.min_by_key(|(written, _)| *written).map_or(failure.first, |(_, end)| end)
}

/// From a worker to the one that it lost, and on, as far as those have failed themselves.
fn follow(from: WorkerEnd, failed: &[WorkerEnd]) -> WorkerEnd {
    let mut at = from;
    // Nobody is visited twice in fewer steps than there are workers, unless they blame each other.
    for _ in failed {
        let lost = at.testimony.and_then(|testimony| testimony.lost);
        match lost.and_then(|lost| failed.iter().find(|end| end.local_rank == lost)) {
            Some(next) => at = *next,
            None => return at,
        }
    }
    from
}

fn at_once(first: WorkerEnd, end: WorkerEnd) -> bool {
    end.at.duration_since(first.at).unwrap_or_default() <= SAME_MOMENT
}

const fn is_crash(exit: Exit) -> bool {
    matches!(
        exit,
        Exit::Signal {
            number: libc::SIGKILL | libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE,
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::Pid;

    const CODE: Exit = Exit::Code(1);

    fn end(local_rank: u32, exit: Exit, testimony: Option<(u64, Option<u32>)>) -> WorkerEnd {
        WorkerEnd {
            local_rank: LocalRank(local_rank),
            pid: Pid::from_raw(100),
            exit,
            at: SystemTime::UNIX_EPOCH,
            testimony: testimony.map(|(micros, lost)| Testimony {
                written: SystemTime::UNIX_EPOCH + Duration::from_micros(micros),
                lost: lost.map(LocalRank),
            }),
        }
    }

    fn signal(number: i32) -> Exit {
        Exit::Signal { number, core_dumped: false }
    }

    /// The local rank that is blamed, of ends in the order in which they were seen.
    fn blamed(ends: &[(WorkerEnd, bool)]) -> u32 {
        let failure = Failure {
            generation: Generation(0),
            first: ends[0].0,
            others: ends[1..].iter().map(|&(end, stopped)| FollowingEnd { end, stopped }).collect(),
            restart_count: RestartCount(0),
        };
        let settled = failure.settle();
        assert_eq!(settled.others.len(), ends.len() - 1, "nobody is lost");
        settled.first.local_rank.0
    }

    #[test]
    fn without_evidence_the_first_to_be_seen_is_the_cause() {
        assert_eq!(blamed(&[(end(2, CODE, None), false), (end(0, CODE, None), false)]), 2);
        assert_eq!(blamed(&[(end(2, CODE, None), false), (end(0, signal(15), None), true)]), 2);
    }

    #[test]
    fn who_was_lost_is_the_cause() {
        let (a, b) = (end(0, CODE, Some((5, Some(1)))), end(2, CODE, Some((4, Some(0)))));
        assert_eq!(blamed(&[(b, false), (a, false), (end(1, Exit::Code(3), None), false)]), 1);
        assert_eq!(blamed(&[(a, false), (end(1, signal(15), None), true)]), 0, "our stop is no cause");
        let (c, d) = (end(0, CODE, Some((1, Some(1)))), end(1, CODE, Some((2, Some(0)))));
        assert_eq!(blamed(&[(d, false), (c, false)]), 1, "who blame each other decide nothing");
    }

    #[test]
    fn a_crash_is_no_consequence_of_a_lost_peer() {
        let raised = end(0, CODE, Some((1, None)));
        for number in [libc::SIGKILL, libc::SIGSEGV] {
            assert_eq!(blamed(&[(raised, false), (end(1, signal(number), None), false)]), 1);
        }
        assert_eq!(blamed(&[(raised, false), (end(1, signal(libc::SIGKILL), None), true)]), 0);
        let mut late = end(1, signal(libc::SIGSEGV), None);
        late.at += Duration::from_secs(2);
        assert_eq!(blamed(&[(raised, false), (late, false)]), 0, "it crashed on its way out");
    }

    #[test]
    fn the_first_to_write_its_error_file_is_the_cause() {
        let (early, late) = (end(3, CODE, Some((10, None))), end(0, CODE, Some((900, None))));
        assert_eq!(blamed(&[(late, false), (end(1, CODE, None), false), (early, false)]), 3);
        assert_eq!(blamed(&[(end(1, CODE, None), false), (early, false)]), 1, "it had nothing to write");
    }
}
