//! What can be wrong with a machine.

use nix::sys::signal::SigSet;

use super::machine;
use super::setup::{Setup, Wait};
use crate::agent::state::State;

/// What is wrong with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// When one worker of a stop has ended, it takes all for gone.
    StartsBesideTheOld,
    /// Nobody kills what the old generation left behind.
    LeavesLeftovers,
    StartsTwice,
    /// It does not wait until everything is ready.
    StartsAtOnce,
    CountsEndsTwice,
    ForgetsAnEnd,
    /// One success is everybody's.
    DoesNotWait,
    SwallowsTheKill,
    KillsLate,
    HasNoDeadline,
    NeverGivesUp,
    /// A signal that is for the workers stops them.
    StopsForNothing,
    LeavesLeftoversAtTheEnd,
    BlamesTheLast,
    /// Whom it stopped itself.
    BlamesItsVictim,
    /// When the user stops the job meanwhile.
    ForgetsTheCause,
    RestartsOnceTooOften,
    ForgetsItsRestarts,
    RestartsAfterAStop,
    SpeaksAfterTheEnd,
    PraisesAFailure,
    /// The status of a later generation is another one.
    RemembersThePast,
    BelievesTheOld,
    DeafWhileChecking,
    DeafWhileStopping,
    AsksOnceMore,
    SignalsThePerson,
    /// It fails at once of a signal that may be everybody's.
    IgnoresTheWindow,
    ClosesTheWindowEarly,
    ClosesTheWindowLate,
    /// It starts all again at once where several may have handled everybody's signal.
    RestartsOverTheSignal,
    /// It waits for a folder that does not answer.
    WaitsForTheFolder,
    /// Also where the launcher is told to stop in time.
    BlamesTheSuspect,
    IgnoresTheTimeLimit,
    IgnoresTheStartLimit,
    ForgivesTheMissing,
    WarnsNobody,
    /// The warning is a signal to stop.
    WarningStops,
    /// It looks at the ranks when they were told to stop.
    CollectsRanksLate,
    RestartsAfterTheTimeLimit,
    /// It takes who ends by the warning for one that failed.
    BlamesTheWarned,
    HidesTheTimeLimit,
    /// One more than there may be.
    MiscountsTheWindow,
    /// It looks back on half of it.
    ForgetsTheWindow,
    IgnoresTheBackoff,
    /// Whatever the factor is.
    WaitsAlwaysTheSame,
    IgnoresTheCap,
    /// Nothing wakes it when the wait is over.
    OversleepsTheWait,
    /// However short a generation lived.
    ResetsForNothing,
    /// However long a generation lived.
    NeverResets,
    NeverRestarts,
    IgnoresTheRules,
    NeverLooksForProgress,
    /// It looks, and restarts whatever it saw.
    IgnoresMissingProgress,
    ForgetsToRequeue,
    /// Takes the time of a halt for that of the workers.
    ForgetsTheHalt,
    /// It gives after a failure what the user's signal gives, and the other way round.
    TakesAnothersGrace,
    /// Takes any second wish for an impatient one.
    KillsEarly,
    /// It does not wait for the other nodes.
    StartsWithoutARound,
    /// In a round that is over.
    StartsInTheOldRound,
    /// Takes what other nodes did for restarts of its own.
    CountsWhatOthersDo,
    RunsOnAlone,
    KeepsItsFailureToItself,
    /// Takes its time, although the others take it for dead.
    OutlivesTheLease,
    /// Takes the failure of a lost node for its own.
    TakesTheBlame,
    DeafWhileJoining,
    ClosesWhenItLeaves,
    /// Its own success is everybody's.
    PraisesAlone,
    RestartsAfterTheClose,
    /// Takes a failure elsewhere that lost a peer for the cause of one here that lost none.
    TakesALossForTheCause,
    /// Counts what failed elsewhere as if the budget were each node's.
    ForgetsTheJobsRestarts,
}

/// All of them, with the invariant that each breaks.
pub(super) const FAULTS: [(Fault, &str); 71] = [
    (Fault::StartsBesideTheOld, "1"),
    (Fault::LeavesLeftovers, "1"),
    (Fault::StartsTwice, "2"),
    (Fault::StartsAtOnce, "2"),
    (Fault::CountsEndsTwice, "3"),
    (Fault::ForgetsAnEnd, "3"),
    (Fault::DoesNotWait, "3"),
    (Fault::SwallowsTheKill, "4"),
    (Fault::KillsLate, "4"),
    (Fault::HasNoDeadline, "4"),
    (Fault::NeverGivesUp, "4"),
    (Fault::StopsForNothing, "4"),
    (Fault::LeavesLeftoversAtTheEnd, "4"),
    (Fault::BlamesTheLast, "5"),
    (Fault::BlamesItsVictim, "5"),
    (Fault::ForgetsTheCause, "5"),
    (Fault::RestartsOnceTooOften, "6"),
    (Fault::ForgetsItsRestarts, "6"),
    (Fault::RestartsAfterAStop, "7"),
    (Fault::SpeaksAfterTheEnd, "7"),
    (Fault::PraisesAFailure, "8"),
    (Fault::RemembersThePast, "8"),
    (Fault::BelievesTheOld, "9"),
    (Fault::DeafWhileChecking, "10"),
    (Fault::DeafWhileStopping, "10"),
    (Fault::AsksOnceMore, "10"),
    (Fault::SignalsThePerson, "left out"),
    (Fault::IgnoresTheWindow, "window"),
    (Fault::ClosesTheWindowEarly, "window"),
    (Fault::ClosesTheWindowLate, "window"),
    (Fault::RestartsOverTheSignal, "window"),
    (Fault::WaitsForTheFolder, "6"),
    (Fault::BlamesTheSuspect, "5"),
    (Fault::IgnoresTheTimeLimit, "limits"),
    (Fault::IgnoresTheStartLimit, "limits"),
    (Fault::ForgivesTheMissing, "limits"),
    (Fault::WarnsNobody, "limits"),
    (Fault::WarningStops, "4"),
    (Fault::CollectsRanksLate, "ranks"),
    (Fault::RestartsAfterTheTimeLimit, "7"),
    (Fault::BlamesTheWarned, "5"),
    (Fault::HidesTheTimeLimit, "8"),
    (Fault::MiscountsTheWindow, "6"),
    (Fault::ForgetsTheWindow, "6"),
    (Fault::IgnoresTheBackoff, "6"),
    (Fault::WaitsAlwaysTheSame, "6"),
    (Fault::IgnoresTheCap, "6"),
    (Fault::OversleepsTheWait, "6"),
    (Fault::ResetsForNothing, "6"),
    (Fault::NeverResets, "granted"),
    (Fault::NeverRestarts, "granted"),
    (Fault::IgnoresTheRules, "7"),
    (Fault::NeverLooksForProgress, "7"),
    (Fault::IgnoresMissingProgress, "7"),
    (Fault::ForgetsToRequeue, "8"),
    (Fault::ForgetsTheHalt, "window"),
    (Fault::TakesAnothersGrace, "4"),
    (Fault::KillsEarly, "4"),
    (Fault::StartsWithoutARound, "2"),
    (Fault::StartsInTheOldRound, "2"),
    (Fault::CountsWhatOthersDo, "6"),
    (Fault::RunsOnAlone, "others"),
    (Fault::KeepsItsFailureToItself, "others"),
    (Fault::OutlivesTheLease, "4"),
    (Fault::TakesTheBlame, "6"),
    (Fault::DeafWhileJoining, "10"),
    (Fault::ClosesWhenItLeaves, "others"),
    (Fault::PraisesAlone, "8"),
    (Fault::RestartsAfterTheClose, "7"),
    (Fault::TakesALossForTheCause, "others"),
    (Fault::ForgetsTheJobsRestarts, "6"),
];

/// A machine that was told something else than what is asked for.
pub(super) fn misled(fault: Fault, setup: &Setup) -> State {
    let mut told = *setup;
    let Setup { max_restarts, policy, .. } = &mut told;
    match fault {
        Fault::IgnoresTheTimeLimit => told.time_limit = None,
        Fault::TakesAnothersGrace => told.graces.swap(0, 1),
        Fault::IgnoresTheStartLimit => told.start_limit = None,
        Fault::WarnsNobody => told.warning = None,
        Fault::MiscountsTheWindow => *max_restarts += u32::from(policy.window.is_some()),
        Fault::ForgetsTheWindow => policy.window = policy.window.map(|window| window / 2),
        Fault::IgnoresTheBackoff => policy.wait = None,
        Fault::WaitsAlwaysTheSame => policy.wait = policy.wait.map(|wait| Wait { factor: 100, ..wait }),
        Fault::IgnoresTheCap => policy.wait = policy.wait.map(|wait| Wait { cap: u32::MAX, ..wait }),
        Fault::ResetsForNothing => policy.reset_after = policy.reset_after.map(|_| 0),
        Fault::NeverResets => policy.reset_after = None,
        Fault::NeverRestarts => *max_restarts = 0,
        Fault::IgnoresTheRules => policy.rules = [None; 2],
        Fault::NeverLooksForProgress => policy.progress = None,
        Fault::IgnoresMissingProgress => policy.progress = policy.progress.map(|_| u32::MAX),
        _ => {}
    }
    let mut real = machine(&told);
    if fault == Fault::IgnoresTheWindow {
        real.rules.stop_signals = SigSet::empty();
    }
    real
}
