//! A history: the settings of a node and its events, as a list of choices that can be replayed and shortened.
//! `world` runs it; `report` shortens it.
//!
//! Every list is a history: a choice that is impossible where it stands (no worker is left to end) does
//! nothing.

use super::others::PeerEvent;
use super::setup::{MOST_WORKERS, Setup};
use crate::posix::{Exit, Signal};
use crate::simulated::Random;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) setup: Setup,
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) what: EventKind,
    /// The agent sees it in one turn with the next event.
    pub(super) held: bool,
}

/// An event. A worker is given by its index among the workers that can do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventKind {
    /// Time passes, in milliseconds.
    Wait(u32),
    /// Time passes until the machine or a worker has a deadline.
    NextMoment,
    /// A worker ends by itself.
    Ends { worker: u32, exit: Exit, wrote: ErrorFileContent },
    /// All workers end by a signal, or with a code because of it. The launcher is told to stop by the same
    /// signal this many milliseconds later, or earlier if negative.
    HitsAll { signal: Signal, code: Option<i32>, launcher: i32 },
    /// The launcher is told to stop.
    Stop { signal: Signal, by: SignalPath },
    /// The whole job is suspended for this many milliseconds (Ctrl-Z).
    SuspendsFor(u32),
    /// The whole job is suspended until it goes on or is told to stop.
    Suspends,
    /// The suspended job goes on.
    Resumes,
    /// The user wants all workers to start again.
    RequestRestart,
    /// The launcher gets a signal that is for the workers.
    Pass(Signal),
    /// A worker becomes uninterruptible: not even SIGKILL ends it.
    BecomesUninterruptible(u32),
    /// An uninterruptible worker runs again.
    WakesUp(u32),
    /// The open question is answered: about the devices, the assignment of the remaining ones, or progress.
    Answer { dead: bool, new_devices: Option<u32> },
    /// The user starts the external worker by hand.
    StartsExternalWorker,
    /// An event on the other nodes.
    PeerEvent(PeerEvent),
    /// An event of the last generation arrives late.
    LateInput(LateInput),
}

/// The content of a worker's error file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorFileContent {
    Nothing,
    /// A failure of its own.
    Own,
    /// The loss of this local rank.
    Lost(u32),
    /// The loss of a rank of another node.
    LostElsewhere,
}

/// How a signal reaches the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalPath {
    /// Through the guard: the second one kills.
    Guard,
    /// Sent to the agent itself, as schedulers do.
    Direct,
}

/// What can arrive late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateInput {
    Exited,
    DStateProbed,
    JoinedProbed,
    RanksCollected,
    ExternalWorkerStarted,
    StartFailed,
    DevicesChecked,
    DevicesReassigned,
    ProgressProbed,
}

impl Event {
    fn random(random: &mut Random) -> Self {
        Self { what: EventKind::random(random), held: random.one_in(4) }
    }
}

impl EventKind {
    fn random(random: &mut Random) -> Self {
        let worker = random.below(MOST_WORKERS);
        match random.below(40) {
            0..3 => Self::Wait(random.pick(&[1, 40, 300, 1_100, 2_500])),
            3..10 => Self::NextMoment,
            10..20 => Self::Ends { worker, exit: exit(random), wrote: ErrorFileContent::random(random) },
            20..23 => Self::Stop {
                signal: random.pick(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]),
                by: random.pick(&[SignalPath::Guard, SignalPath::Guard, SignalPath::Direct]),
            },
            23 => Self::Pass(Signal::SIGUSR1),
            24 => Self::BecomesUninterruptible(worker),
            25 => Self::WakesUp(worker),
            26..29 => Self::Answer {
                dead: random.one_in(2),
                new_devices: random.pick(&[None, Some(1), Some(2), Some(MOST_WORKERS)]),
            },
            29 => Self::StartsExternalWorker,
            30 => Self::HitsAll {
                signal: random.pick(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]),
                code: random.pick(&[None, Some(1)]),
                launcher: random.pick(&[-600, -50, 0, 50, 499, 600]),
            },
            32..38 => Self::PeerEvent(PeerEvent::random(random)),
            31 => {
                let lasted = random.pick(&[40, 600, 20_000]);
                random.pick(&[
                    Self::SuspendsFor(lasted),
                    Self::SuspendsFor(lasted),
                    Self::Suspends,
                    Self::Resumes,
                ])
            }
            38 => Self::RequestRestart,
            _ => Self::LateInput(random.pick(&[
                LateInput::Exited,
                LateInput::DStateProbed,
                LateInput::JoinedProbed,
                LateInput::RanksCollected,
                LateInput::ExternalWorkerStarted,
                LateInput::StartFailed,
                LateInput::DevicesChecked,
                LateInput::DevicesReassigned,
                LateInput::ProgressProbed,
            ])),
        }
    }
}

impl ErrorFileContent {
    fn random(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Own,
            1 => Self::Lost(random.below(MOST_WORKERS)),
            2 => Self::LostElsewhere,
            _ => Self::Nothing,
        }
    }
}

fn exit(random: &mut Random) -> Exit {
    let signal = |number| Exit::Signal { number, core_dumped: false };
    random.pick(&[
        Exit::Code(0),
        Exit::Code(0),
        Exit::Code(0),
        Exit::Code(1),
        Exit::Code(7),
        signal(libc::SIGSEGV),
        signal(libc::SIGKILL),
        signal(libc::SIGTERM),
        Exit::Code(143),
        signal(libc::SIGUSR2),
    ])
}

impl History {
    /// The history that belongs to this seed.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::random(&mut random);
        let length = 2 + random.below(13);
        let events = (0..length).map(|_| Event::random(&mut random)).collect();
        Self { setup: setup.with_random_shutdown(&mut random), events }
    }
}
