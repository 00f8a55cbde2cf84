//! The faults that a mutant machine can have, and the invariant that each must break. `mutants` applies them.

use super::machine;
use super::setup::{Setup, Wait};
use crate::agent::state::State;

/// A fault of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Takes all workers for gone when the first of a stop has ended.
    StartsBesideTheOld,
    /// Leaves the processes of the old generation alive.
    LeavesLeftovers,
    StartsTwice,
    /// Starts before everything is ready.
    StartsAtOnce,
    CountsEndsTwice,
    ForgetsAnEnd,
    /// Takes one success for the success of all.
    DoesNotWait,
    SwallowsTheKill,
    KillsLate,
    HasNoDeadline,
    NeverGivesUp,
    /// Stops the workers on a signal that is to be passed on.
    StopsForNothing,
    LeavesLeftoversAtTheEnd,
    BlamesTheLast,
    /// Blames a worker that its own stop ended.
    BlamesItsVictim,
    /// Drops the cause when the user stops the job meanwhile.
    ForgetsTheCause,
    RestartsOnceTooOften,
    ForgetsItsRestarts,
    RestartsAfterAStop,
    SpeaksAfterTheEnd,
    PraisesAFailure,
    /// Gives a failure of a later generation another exit status.
    RemembersThePast,
    AcceptsOldAnswers,
    DeafWhileChecking,
    DeafWhileStopping,
    /// Awaits leftover processes whatever signal comes.
    IgnoresSignalsInSweep,
    /// Awaits a reader of the output whatever signal comes.
    IgnoresSignalsInDrain,
    /// Awaits the file system of the parent's error file whatever signal comes.
    IgnoresSignalsInParentFile,
    /// Awaits the other nodes whatever signal comes.
    IgnoresSignalsAfterReport,
    AsksOnceMore,
    SignalsThePerson,
    /// Fails at once on a signal that may have hit all processes.
    IgnoresTheWindow,
    ClosesTheWindowEarly,
    ClosesTheWindowLate,
    /// Restarts at once where several workers may have handled one signal.
    RestartsOverTheSignal,
    /// Waits for a folder that does not answer.
    WaitsForTheFolder,
    /// Blames the suspect even if the launcher gets a stop signal in time.
    BlamesTheSuspect,
    IgnoresTheTimeLimit,
    IgnoresTheStartLimit,
    ForgivesTheMissing,
    WarnsNobody,
    /// Takes the warning for a stop signal.
    WarningStops,
    /// Collects the ranks only after the stop signal.
    CollectsRanksLate,
    RestartsAfterTheTimeLimit,
    /// Takes a worker that ends by the warning for a failed worker.
    BlamesTheWarned,
    HidesTheTimeLimit,
    /// Allows one restart too many per window.
    MiscountsTheWindow,
    /// Looks back on half of the window only.
    ForgetsTheWindow,
    IgnoresTheBackoff,
    /// Ignores the factor of the back-off.
    WaitsAlwaysTheSame,
    IgnoresTheCap,
    /// Sets no deadline at the end of the wait.
    OversleepsTheWait,
    /// Resets the budget however short a generation lived.
    ResetsForNothing,
    /// Keeps the budget however long a generation lived.
    NeverResets,
    NeverRestarts,
    IgnoresTheRules,
    NeverLooksForProgress,
    /// Checks for progress, but restarts whatever the result.
    IgnoresMissingProgress,
    ForgetsToRequeue,
    /// Counts suspended time as run time of the workers.
    ForgetsSuspension,
    /// Lets a stop wait until the suspended job goes on.
    StaysSuspended,
    /// Lets the time limit wait until the suspended job goes on.
    SuspendsPastTheLimit,
    /// Lets suspended workers live that the other nodes take for dead.
    SparesTheSuspended,
    ActsWhileSuspended,
    LeavesThemSuspended,
    /// Swaps the grace periods of a failure and of the user's signal.
    TakesAnothersGrace,
    /// Takes any second request for an impatient one.
    KillsEarly,
    /// Starts without waiting for the other nodes.
    StartsWithoutARound,
    /// Starts in a round that is over.
    StartsInTheOldRound,
    /// Counts membership changes as restarts of this node.
    CountsWhatOthersDo,
    RunsOnAlone,
    KeepsItsFailureToItself,
    /// Takes its time although the other nodes take it for dead.
    OutlivesTheLease,
    /// Takes the failure of a lost node for its own.
    TakesTheBlame,
    DeafWhileJoining,
    ClosesWhenItLeaves,
    /// Takes its own success for the success of all nodes.
    PraisesAlone,
    RestartsAfterTheClose,
    /// Takes another node's lost peer for the cause of a failure here that lost no peer.
    TakesALossForTheCause,
    /// Counts failures on other nodes as if each node had a budget of its own.
    ForgetsTheJobsRestarts,
    /// Takes a lost node that another node reports for a failed worker of that node.
    CountsALostNode,
    IgnoresARestartRequest,
    RestartsWhileSuspended,
    /// Takes a requested restart from the budget.
    CountsARestartRequest,
    /// Starts again as requested, although the job got a stop signal meanwhile.
    RestartsByRequestAfterAStop,
    /// Awaits a leftover that SIGKILL does not end for ever.
    AwaitsASurvivor,
    /// Awaits and reports it in each generation.
    ForgetsItsSurvivors,
    /// Sends no signal to the group of an ended worker.
    SparesTheGroup,
    /// Kills what an ended worker left in its group at once.
    KillsTheGroup,
    /// Awaits the processes of a group for ever.
    AwaitsTheGroup,
}

/// All faults, each with the invariant that it breaks.
pub(super) const FAULTS: [(Fault, &str); 90] = [
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
    (Fault::AcceptsOldAnswers, "9"),
    (Fault::DeafWhileChecking, "10"),
    (Fault::DeafWhileStopping, "10"),
    (Fault::IgnoresSignalsInSweep, "10"),
    (Fault::IgnoresSignalsInDrain, "10"),
    (Fault::IgnoresSignalsInParentFile, "10"),
    (Fault::IgnoresSignalsAfterReport, "10"),
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
    (Fault::ForgetsSuspension, "window"),
    (Fault::StaysSuspended, "10"),
    (Fault::SuspendsPastTheLimit, "suspended"),
    (Fault::SparesTheSuspended, "suspended"),
    (Fault::ActsWhileSuspended, "suspended"),
    (Fault::LeavesThemSuspended, "suspended"),
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
    (Fault::CountsALostNode, "6"),
    (Fault::IgnoresARestartRequest, "requested"),
    (Fault::RestartsWhileSuspended, "suspended"),
    (Fault::CountsARestartRequest, "granted"),
    (Fault::RestartsByRequestAfterAStop, "7"),
    (Fault::AwaitsASurvivor, "survivors"),
    (Fault::ForgetsItsSurvivors, "survivors"),
    (Fault::SparesTheGroup, "groups"),
    (Fault::KillsTheGroup, "groups"),
    (Fault::AwaitsTheGroup, "groups"),
];

/// A machine that was given other settings than the oracle.
pub(super) fn faulty_state(fault: Fault, setup: &Setup) -> State {
    let mut faulty = *setup;
    let Setup { max_restarts, policy, .. } = &mut faulty;
    match fault {
        Fault::IgnoresTheTimeLimit => faulty.time_limit = None,
        Fault::TakesAnothersGrace => faulty.graces.swap(0, 1),
        Fault::IgnoresTheStartLimit => faulty.start_limit = None,
        Fault::WarnsNobody => faulty.warning = None,
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
    let mut real = machine(&faulty);
    if fault == Fault::IgnoresTheWindow {
        real.rules.stop_signals = Vec::new();
    }
    real
}
