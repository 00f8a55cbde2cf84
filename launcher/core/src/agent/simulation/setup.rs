//! The settings of a launch and of its node, before anything happens. `machine` gets them as rules; the
//! oracle judges by them.

use std::time::Duration;

use crate::posix::{Exit, Pid, ProcessIdentity, Signal};

use rankrun_contract::rank::{Generation, LocalRank, Rank};

use super::oracle::Cause;
use crate::agent::device_report::DeviceReport;
use crate::agent::rules::{Interrupt, JobRules};
use crate::agent::state::tests::rules;
use crate::job_event::DeadDevice;
use crate::simulated::Random;
use crate::spec::restart::{Backoff, Conditions, ProgressLimit, RestartPolicy, RestartRule, RuleAction};
use crate::spec::stop::{EarlyWarning, GraceFor, LeftoverPolicy, StopPolicy, StopReason, TimeLimit};
use crate::spec::{CliFlavor, Unhealthy};

pub(super) const MOST_WORKERS: u32 = 4;
/// The result of the progress check is chosen for this many generations; later ones repeat the last result.
const GENERATIONS: usize = 4;

/// Settings of the launch and of the node. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is chosen by chance, apart from the others")]
pub(super) struct Setup {
    pub(super) cli_flavor: CliFlavor,
    pub(super) workers: u32,
    pub(super) max_restarts: u32,
    pub(super) policy: Policy,
    pub(super) grace: u32,
    /// Grace periods for a stop by the user, after a failure, by the time limit and by the start limit.
    pub(super) graces: [Option<u32>; 4],
    pub(super) time_limit: Option<u32>,
    /// Time from SIGUSR2 for the workers to the time limit.
    pub(super) warning: Option<u32>,
    pub(super) start_limit: Option<u32>,
    pub(super) dstate_limit: Option<u32>,
    pub(super) interrupt: Interrupt,
    pub(super) unhealthy: Option<Unhealthy>,
    pub(super) external_worker: Option<u32>,
    /// How long processes that outlive a success are awaited; `None` if they are left alone.
    pub(super) leftover_wait: Option<u32>,
    /// The reader of the workers' output reads it.
    pub(super) is_output_read: bool,
    /// The file system of the parent's error file answers.
    pub(super) is_parent_file_quick: bool,
    /// A process that the workers leave running, and how it reacts to a stop signal.
    pub(super) leftover: Option<StopReaction>,
    /// From this generation on the workers leave a process that SIGKILL does not end.
    pub(super) unkillable: Option<u32>,
    /// The workers that get stop signals alone, by local rank: how the process reacts that each leaves in its group.
    pub(super) group_members: [Option<StopReaction>; MOST_WORKERS as usize],
    /// How the workers react to a stop signal, by local rank.
    pub(super) reactions: [StopReaction; MOST_WORKERS as usize],
    /// Time from start to joining the store; `None` for a worker that never joins.
    pub(super) joins: [Option<u32>; MOST_WORKERS as usize],
    /// Result of the progress check after each generation; `None` if the folder cannot be read.
    pub(super) files: [Option<u32>; GENERATIONS],
    /// The generation and the local rank at which the start fails.
    pub(super) start_fails: Option<(u32, u32)>,
    /// By how much every deadline of the machine fires late.
    pub(super) late: u32,
    /// The first event comes before everything is ready.
    pub(super) early: bool,
    pub(super) others: bool,
    /// Other nodes join at once when they are awaited.
    pub(super) meets: bool,
    /// Every check is answered at once, with a good result.
    pub(super) prompt: bool,
}

/// The restart policy. Times are in milliseconds, shares in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) window: Option<u32>,
    pub(super) wait: Option<Wait>,
    pub(super) reset_after: Option<u32>,
    pub(super) rules: [Option<Rule>; 2],
    pub(super) progress: Option<u32>,
    /// Seed of the jitter.
    pub(super) seed: u64,
}

/// The back-off before a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) delay: u32,
    pub(super) factor: u32,
    pub(super) cap: u32,
    pub(super) jitter: u32,
}

/// A rule for a kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) code: Option<u8>,
    pub(super) signal: Option<Signal>,
    pub(super) rank: Option<u32>,
    pub(super) then: RuleAction,
}

/// How a worker reacts to a stop signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReaction {
    /// Dies of it after this many milliseconds.
    Obeys { after: u32 },
    /// Writes an error file, and dies of the signal after this many milliseconds.
    Complains { after: u32 },
    /// Exits with a code of its own after this many milliseconds.
    Handles { after: u32, code: i32 },
    /// Ignores this signal, and obeys the others.
    DeafTo(Signal),
    /// Ignores every stop signal.
    Ignores,
}

pub(super) const fn millis(millis: u32) -> Duration {
    Duration::from_millis(millis as u64)
}

impl Setup {
    /// The simplest settings.
    pub(super) const PLAIN: Self = Self {
        cli_flavor: CliFlavor::Rankrun,
        workers: 1,
        max_restarts: 0,
        policy: Policy::PLAIN,
        grace: 1_000,
        graces: [None; 4],
        time_limit: None,
        warning: None,
        start_limit: None,
        dstate_limit: None,
        interrupt: Interrupt::Listed,
        unhealthy: None,
        external_worker: None,
        leftover_wait: None,
        leftover: None,
        unkillable: None,
        is_output_read: true,
        is_parent_file_quick: true,
        group_members: [None; MOST_WORKERS as usize],
        reactions: [StopReaction::Obeys { after: 0 }; MOST_WORKERS as usize],
        joins: [Some(0); MOST_WORKERS as usize],
        files: [None; GENERATIONS],
        start_fails: None,
        late: 0,
        early: false,
        others: false,
        meets: true,
        prompt: true,
    };

    pub(super) fn random(random: &mut Random) -> Self {
        let workers = 1 + random.below(MOST_WORKERS);
        let external_worker = random.one_in(5).then(|| random.below(workers));
        let Self { mut reactions, mut joins, mut files, mut graces, .. } = Self::PLAIN;
        reactions.iter_mut().for_each(|reaction| *reaction = StopReaction::random(random));
        joins.iter_mut().for_each(|joins| *joins = random.pick(&[Some(0), Some(0), Some(150), None]));
        files.iter_mut().for_each(|file| *file = random.pick(&[None, Some(1), Some(2), Some(3)]));
        if random.one_in(3) {
            graces
                .iter_mut()
                .for_each(|grace| *grace = random.pick(&[None, Some(0), Some(300), Some(5_000)]));
        }
        let time_limit = random.one_in(4).then(|| random.pick(&[1, 500, 2_000, 10_000]));
        Self {
            cli_flavor: random.pick(&[CliFlavor::Rankrun, CliFlavor::Torchrun]),
            workers,
            max_restarts: random.below(4),
            policy: if random.one_in(2) { Policy::random(random) } else { Policy::PLAIN },
            grace: random.pick(&[0, 200, 1_000, 1_000, 30_000]),
            graces,
            time_limit,
            warning: time_limit.and_then(|_| random.pick(&[None, Some(100), Some(1_000), Some(20_000)])),
            start_limit: random.one_in(6).then(|| random.pick(&[1, 150, 1_000])),
            dstate_limit: random.one_in(4).then(|| random.pick(&[5, 150, 400])),
            interrupt: random.pick(&[Interrupt::Listed, Interrupt::Listed, Interrupt::Unlisted]),
            unhealthy: random.pick(&[None, None, Some(Unhealthy::Refuse), Some(Unhealthy::Exclude)]),
            external_worker,
            leftover_wait: None,
            leftover: None,
            unkillable: None,
            is_output_read: true,
            is_parent_file_quick: true,
            group_members: [None; MOST_WORKERS as usize],
            reactions,
            joins,
            files,
            start_fails: random.one_in(6).then(|| (random.below(3), random.below(workers + 1))),
            late: random.pick(&[0, 0, 1, 60]),
            early: random.one_in(10),
            others: random.one_in(3),
            meets: !random.one_in(3),
            prompt: random.one_in(2),
        }
    }

    /// With settings of the shutdown and of the workers' process groups.
    pub(super) fn with_random_shutdown(self, random: &mut Random) -> Self {
        let mut group_members = self.group_members;
        if random.one_in(3) {
            let member = |random: &mut Random| random.one_in(2).then(|| StopReaction::random(random));
            group_members.iter_mut().for_each(|reaction| *reaction = member(random));
        }
        Self {
            group_members,
            leftover_wait: random.pick(&[None, Some(0), Some(1_000), Some(30_000)]),
            leftover: random.one_in(2).then(|| StopReaction::random(random)),
            is_output_read: !random.one_in(3),
            is_parent_file_quick: !random.one_in(3),
            unkillable: random.one_in(5).then(|| random.below(2)),
            ..self
        }
    }

    /// Whether not every worker of this generation can be started.
    pub(super) fn fails_to_start(&self, generation: Generation) -> bool {
        self.start_fails.is_some_and(|(at, _)| at == generation.0)
    }

    /// The process that SIGKILL does not end after this generation.
    pub(super) fn unkillable_after(&self, generation: Generation) -> Option<ProcessIdentity> {
        let unkillable = ProcessIdentity { pid: Pid::from_raw(50), started: 1 };
        self.unkillable.filter(|first| *first <= generation.0).map(|_| unkillable)
    }

    /// The result of the progress check after this generation.
    pub(super) fn files_after(&self, generation: Generation) -> Option<u32> {
        self.files[(generation.0 as usize).min(GENERATIONS - 1)]
    }

    /// The rules for the machine.
    pub(super) fn rules(&self) -> JobRules {
        let limit = |time: u32| {
            let warning = |before| EarlyWarning { signal: WARNING, before: millis(before) };
            TimeLimit { limit: millis(time), warning: self.warning.map(warning) }
        };
        JobRules {
            restart: self.policy.restart_policy(),
            stop: StopPolicy { grace: millis(self.grace), grace_for: self.grace_for() },
            leftovers: self
                .leftover_wait
                .map_or(LeftoverPolicy::Keep, |wait| LeftoverPolicy::End { grace: millis(wait) }),
            time_limit: self.time_limit.map(limit),
            start_timeout: self.start_limit.map(millis),
            dstate_timeout: self.dstate_limit.map(millis),
            stop_signals: self.stop_signals(),
            interrupt: self.interrupt,
            unhealthy: self.unhealthy,
            external_worker: self.external_worker.map(LocalRank),
            ..rules(self.workers, self.max_restarts, self.cli_flavor)
        }
    }

    fn grace_for(&self) -> GraceFor {
        let [signal, failure, time_limit, start_timeout] = self.graces.map(|grace| grace.map(millis));
        GraceFor { signal, failure, time_limit, start_timeout, restart: None }
    }

    /// The grace period of workers that this cause stops.
    pub(super) fn grace_of(&self, cause: Cause) -> Duration {
        let [signal, failure, time_limit, start] = self.graces;
        millis(
            match cause {
                Cause::Stop(StopReason::Signal(_)) => signal,
                Cause::Stop(StopReason::TimeLimit) => time_limit,
                Cause::Failed(_) | Cause::Uninterruptible(_) | Cause::Stop(_) => failure,
                Cause::NotJoined(_) => start.or(failure),
            }
            .unwrap_or(self.grace),
        )
    }

    pub(super) fn longest_grace(&self) -> Duration {
        millis(self.graces.into_iter().flatten().fold(self.grace, u32::max))
    }

    fn stop_signals(&self) -> Vec<Signal> {
        match self.interrupt {
            Interrupt::Listed => {
                [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect()
            }
            Interrupt::Unlisted => vec![Signal::SIGTERM],
        }
    }

    /// True if the exit may come from the warning signal.
    pub(super) fn is_exit_by_warning(&self, exit: Exit) -> bool {
        self.warning.is_some()
            && matches!(exit, Exit::Signal { number: libc::SIGUSR2, .. } | Exit::Code(SAYS_WARNED))
    }

    /// True if a worker ended in a way that may soon stop the launcher too.
    pub(super) fn may_be_group_signal(&self, exit: Exit) -> bool {
        let number = match exit {
            Exit::Signal { number, .. } => number,
            Exit::Code(code) => code - 128,
        };
        match self.interrupt {
            Interrupt::Listed => [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT].contains(&number),
            Interrupt::Unlisted => [libc::SIGTERM, libc::SIGINT].contains(&number),
        }
    }
}

/// The warning signal before the time limit.
pub(super) const WARNING: Signal = Signal::SIGUSR2;
/// The exit code by which a shell reports it.
const SAYS_WARNED: i32 = 128 + libc::SIGUSR2;

impl Policy {
    pub(super) const PLAIN: Self =
        Self { window: None, wait: None, reset_after: None, rules: [None; 2], progress: None, seed: 0 };

    fn random(random: &mut Random) -> Self {
        Self {
            window: random.one_in(3).then(|| random.pick(&[300, 1_500, 5_000])),
            wait: random.one_in(2).then(|| Wait::random(random)),
            reset_after: random.one_in(3).then(|| random.pick(&[1, 200, 1_000])),
            rules: [(); 2].map(|()| random.one_in(3).then(|| Rule::random(random))),
            progress: random.one_in(4).then(|| 1 + random.below(2)),
            seed: u64::from(random.below(1_000)),
        }
    }

    fn restart_policy(&self) -> RestartPolicy {
        let backoff = |wait: Wait| Backoff {
            delay: millis(wait.delay),
            factor: f64::from(wait.factor) / 100.0,
            cap: millis(wait.cap),
            jitter: f64::from(wait.jitter) / 100.0,
        };
        let rule = |rule: &Rule| {
            let exit = rule.code.map(|code| [code].into_iter().collect());
            let when =
                Conditions { exit, signal: rule.signal, rank: rule.rank.map(Rank), ..Conditions::default() };
            RestartRule { when, then: rule.then }
        };
        RestartPolicy {
            exclude_node_after: None,
            window: self.window.map(millis),
            backoff: self.wait.map(backoff),
            reset_after: self.reset_after.map(millis),
            rules: self.rules.iter().flatten().map(rule).collect(),
            progress: self
                .progress
                .map(|restarts| ProgressLimit { folder: Some("/checkpoints".into()), restarts }),
        }
    }
}

impl Wait {
    fn random(random: &mut Random) -> Self {
        Self {
            delay: random.pick(&[0, 50, 1_000, 2_000]),
            factor: random.pick(&[100, 200, 200]),
            cap: random.pick(&[500, 1_000, 10_000]),
            jitter: random.pick(&[0, 0, 50, 100]),
        }
    }
}

impl Rule {
    fn random(random: &mut Random) -> Self {
        let signals = [Signal::SIGTERM, Signal::SIGSEGV, Signal::SIGKILL];
        let (code, signal) = match random.below(5) {
            0 => (None, Some(random.pick(&signals))),
            1 => (None, None),
            _ => (Some(random.pick(&[1, 7, 143])), None),
        };
        Self {
            code,
            signal,
            rank: random.one_in(4).then(|| random.below(MOST_WORKERS)),
            then: random.pick(&RuleAction::KEYWORDS).1,
        }
    }
}

impl StopReaction {
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

/// The result of a device check.
pub(super) fn checkup(is_dead: bool) -> DeviceReport {
    let dead = DeadDevice {
        local_ranks: vec![LocalRank(0)],
        device: "one".to_owned(),
        reason: "it is gone".to_owned(),
    };
    DeviceReport { dead: is_dead.then_some(dead).into_iter().collect(), ..DeviceReport::default() }
}
