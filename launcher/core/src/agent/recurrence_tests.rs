use crate::posix::Exit;
use crate::stacks::Frame;
use rankrun_contract::rank::LocalRank;

use super::*;
use crate::hang::verdict::{Desync, Verdict};
use crate::job_event::WorkerEnd;
use crate::posix::Pid;
use std::time::{Duration, SystemTime};

const MARK: ProgressMark = ProgressMark::Files(CheckpointFingerprint(7));

fn failure(kind: FailureKind, exit: Exit) -> Failure {
    let end = WorkerEnd {
        local_rank: LocalRank(0),
        pid: Pid::from_raw(100),
        exit,
        at: SystemTime::UNIX_EPOCH,
        error_file_info: None,
        foreign_kill: None,
    };
    Failure::of_ends(end, kind, &[])
}

fn exception(kind: &str, line: u32) -> Option<RaisedException> {
    let frame = Frame { function: "load".to_owned(), file: "data.py".to_owned(), line };
    Some(RaisedException { kind: kind.to_owned(), frame: Some(frame) })
}

/// The restarts that count after these failures, at the same place of the checkpoints.
fn counted(signatures: impl IntoIterator<Item = FailureSignature>) -> u32 {
    let add = |before, signature| Some(Recurrence::after(before, MARK, signature));
    signatures.into_iter().fold(None, add).unwrap().restarts
}

#[test]
fn same_exception_of_another_rank_is_same_cause() {
    let of = |rank, exception| {
        FailureSignature::of(&failure(FailureKind::Ended, Exit::Code(1)), Rank(rank), exception)
    };
    assert_eq!(counted([of(0, exception("ValueError", 17)), of(3, exception("ValueError", 17))]), 1);
    for other in [exception("KeyError", 17), exception("ValueError", 18), None] {
        assert_eq!(counted([of(0, exception("ValueError", 17)), of(0, other.clone())]), 0, "{other:?}");
    }
    assert_eq!(counted([of(0, None), of(0, None)]), 1);
    assert_eq!(counted([of(0, None), of(1, None)]), 0, "an exit code says little");
}

#[test]
fn signal_kind_and_verdict_tell_causes_apart() {
    let segfault = Exit::Signal { number: libc::SIGSEGV, core_dumped: false };
    let stopped = |exit| failure(FailureKind::Hang, exit);
    let mut desync = stopped(segfault);
    let (group, since) = (String::new(), Duration::ZERO);
    desync.hang = Some(Box::new(Verdict::Desync(Desync { group, sequence: 5, calls: Vec::new(), since })));
    let of = |failure: &Failure| FailureSignature::of(failure, Rank(0), None);
    let ended = |exit| of(&failure(FailureKind::Ended, exit));
    assert_eq!(counted([ended(segfault), ended(segfault)]), 1);
    assert_eq!(counted([ended(segfault), ended(Exit::Code(1))]), 0);
    assert_eq!(counted([of(&stopped(segfault)), of(&stopped(Exit::Code(1)))]), 1, "the stop chose the exit");
    assert_eq!(counted([of(&stopped(segfault)), of(&desync)]), 0);
}

#[test]
fn folder_that_changes_or_step_that_grows_begins_anew() {
    let signature = || FailureSignature::Exit { rank: Rank(0), exit: Exit::Code(1), cause: None };
    let restarts = |marks: &[ProgressMark]| {
        let add = |before, mark: &ProgressMark| Some(Recurrence::after(before, *mark, signature()));
        marks.iter().fold(None, add).unwrap().restarts
    };
    let (files, step) = (|hash| ProgressMark::Files(CheckpointFingerprint(hash)), ProgressMark::Step);
    assert_eq!(restarts(&[files(1), files(1), files(1)]), 2);
    assert_eq!(restarts(&[files(1), files(1), files(2)]), 0);
    assert_eq!(restarts(&[step(Some(9)), step(None), step(Some(9))]), 2);
    assert_eq!(restarts(&[step(Some(9)), step(Some(3)), step(Some(10))]), 0);
    assert_eq!(restarts(&[step(None), step(None)]), 1);
    assert_eq!(restarts(&[step(None), step(Some(0))]), 0);
}
