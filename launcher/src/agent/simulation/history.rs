//! A history: what a node is like and what happens on it, as a list of choices that can be replayed and shortened.
//!
//! Every list is a history: a choice that means nothing where it stands (nobody is left who could end) does nothing.

use nix::sys::signal::Signal;

use crate::agent::rules::Interrupt;
use crate::process::Exit;
use crate::spec::{Persona, Unhealthy};

pub(super) const MOST_WORKERS: u32 = 4;

/// Numbers that look random and come again with the same seed (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).expect("less than `limit`")
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(u32::try_from(from.len()).expect("a short list")) as usize]
    }
}

/// One life of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct History {
    pub(super) setup: Setup,
    pub(super) events: Vec<Event>,
}

/// What was asked for, and what the node is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) persona: Persona,
    pub(super) workers: u32,
    pub(super) max_restarts: u32,
    /// In milliseconds.
    pub(super) grace: u32,
    /// In milliseconds.
    pub(super) stuck_limit: Option<u32>,
    pub(super) interrupt: Interrupt,
    pub(super) unhealthy: Option<Unhealthy>,
    pub(super) left_out: Option<u32>,
    /// How the workers take a signal to stop, by local rank.
    pub(super) tempers: [Temper; MOST_WORKERS as usize],
    /// In this generation the start fails at this local rank.
    pub(super) start_fails: Option<(u32, u32)>,
    /// How much later than asked for the machine is woken, in milliseconds.
    pub(super) late: u32,
    /// Whether the first event comes before everything is ready.
    pub(super) early: bool,
}

/// How a worker takes a signal to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temper {
    /// Dies of it, so many milliseconds later.
    Obeys { after: u32 },
    /// Writes an error file and dies of it, so many milliseconds later.
    Complains { after: u32 },
    /// Ends with a code of its own, so many milliseconds later.
    Handles { after: u32, code: i32 },
    /// Takes any but this one.
    DeafTo(Signal),
    /// Takes none.
    Ignores,
}

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) what: What,
    /// The agent sees it in one turn with what comes next.
    pub(super) held: bool,
}

/// What happens. A worker is meant by its place among those who could do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Time passes, in milliseconds.
    Wait(u32),
    /// Time passes until the machine or a worker has something to do.
    NextMoment,
    /// A worker ends by itself.
    Ends { worker: u32, exit: Exit, wrote: Wrote },
    /// The launcher is told to stop.
    Stop { signal: Signal, by: Way },
    /// The launcher gets a signal that is for the workers.
    Pass(Signal),
    /// A worker sits down in the kernel, where not even SIGKILL reaches it.
    FallsAsleep(u32),
    /// It comes back.
    WakesUp(u32),
    /// The question that is open gets its answer: about the devices, or about the seats on those that are left.
    Answer { dead: bool, seats: Option<u32> },
    /// A person starts the worker that was left to them.
    StartsByHand,
    /// Something about the generation before comes late.
    Stale(Stale),
}

/// What a worker's error file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Nothing,
    /// Of a failure of its own.
    Own,
    /// That it lost this local rank.
    Lost(u32),
}

/// How a signal reaches the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the guard: the second one kills.
    Guard,
    /// Sent to the agent itself, as schedulers do.
    Direct,
}

/// What can come late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stale {
    Exited,
    Looked,
    StartedByHand,
    StartFailed,
    DevicesChecked,
    Reseated,
}

impl Setup {
    /// The simplest one.
    pub(super) const PLAIN: Self = Self {
        persona: Persona::Rankrun,
        workers: 1,
        max_restarts: 0,
        grace: 1_000,
        stuck_limit: None,
        interrupt: Interrupt::Listed,
        unhealthy: None,
        left_out: None,
        tempers: [Temper::Obeys { after: 0 }; MOST_WORKERS as usize],
        start_fails: None,
        late: 0,
        early: false,
    };

    fn random(random: &mut Random) -> Self {
        let workers = 1 + random.below(MOST_WORKERS);
        let left_out = random.one_in(5).then(|| random.below(workers));
        let mut tempers = Self::PLAIN.tempers;
        tempers.iter_mut().for_each(|temper| *temper = Temper::random(random));
        Self {
            persona: random.pick(&[Persona::Rankrun, Persona::Torchrun]),
            workers,
            max_restarts: random.below(4),
            grace: random.pick(&[0, 200, 1_000, 1_000, 30_000]),
            stuck_limit: random.one_in(4).then(|| random.pick(&[5, 150, 400])),
            interrupt: random.pick(&[Interrupt::Listed, Interrupt::Listed, Interrupt::Unlisted]),
            unhealthy: random.pick(&[None, None, Some(Unhealthy::Refuse), Some(Unhealthy::Exclude)]),
            left_out,
            tempers,
            start_fails: random.one_in(6).then(|| (random.below(3), random.below(workers + 1))),
            late: random.pick(&[0, 0, 1, 60]),
            early: random.one_in(10),
        }
    }
}

impl Temper {
    fn random(random: &mut Random) -> Self {
        let after = random.pick(&[0, 0, 50, 700]);
        match random.below(10) {
            0..5 => Self::Obeys { after },
            5 => Self::Complains { after },
            6 | 7 => Self::Handles { after, code: random.pick(&[0, 1, 143]) },
            8 => Self::DeafTo(random.pick(&[Signal::SIGTERM, Signal::SIGINT])),
            _ => Self::Ignores,
        }
    }
}

impl Event {
    fn random(random: &mut Random) -> Self {
        Self { what: What::random(random), held: random.one_in(4) }
    }
}

impl What {
    fn random(random: &mut Random) -> Self {
        let worker = random.below(MOST_WORKERS);
        match random.below(32) {
            0..3 => Self::Wait(random.pick(&[1, 40, 300, 1_100, 2_500])),
            3..10 => Self::NextMoment,
            10..20 => Self::Ends { worker, exit: exit(random), wrote: Wrote::random(random) },
            20..23 => Self::Stop {
                signal: random.pick(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]),
                by: random.pick(&[Way::Guard, Way::Guard, Way::Direct]),
            },
            23 => Self::Pass(Signal::SIGUSR1),
            24 => Self::FallsAsleep(worker),
            25 => Self::WakesUp(worker),
            26..29 => Self::Answer {
                dead: random.one_in(2),
                seats: random.pick(&[None, Some(1), Some(2), Some(MOST_WORKERS)]),
            },
            29 => Self::StartsByHand,
            _ => Self::Stale(random.pick(&[
                Stale::Exited,
                Stale::Looked,
                Stale::StartedByHand,
                Stale::StartFailed,
                Stale::DevicesChecked,
                Stale::Reseated,
            ])),
        }
    }
}

impl Wrote {
    fn random(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Own,
            1 => Self::Lost(random.below(MOST_WORKERS)),
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
    ])
}

impl History {
    /// The one that belongs to this seed.
    pub(super) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::random(&mut random);
        let length = 2 + random.below(13);
        let events = (0..length).map(|_| Event::random(&mut random)).collect();
        Self { setup, events }
    }
}
