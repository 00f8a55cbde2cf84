//! The search for histories that break an invariant, and the shortest of them in words.

use std::fmt::Write;

use super::history::{ErrorFileContent, Event, EventKind, History};
use super::invariants::Broken;
use super::mutants::Machine;
use super::setup::{Policy, Setup, StopReaction, Wait};
use super::world::run_history;
use crate::posix::Exit;
use crate::simulated::Seeds;

/// A history that breaks invariants.
pub(super) type Failing = crate::simulated::Failing<History, Vec<Broken>>;

/// The histories of these seeds that break what is `wanted`, shortened.
pub(super) fn search<M: Machine>(
    seeds: Seeds,
    machine: impl Fn(&Setup) -> M,
    wanted: impl Fn(&[Broken]) -> bool,
) -> Vec<Failing> {
    let try_out = |history: &History| {
        let broken = run_history(history, machine(&history.setup), None).err()?;
        wanted(&broken).then_some(broken)
    };
    seeds
        .iter()
        .filter_map(|seed| {
            let history = History::random(seed);
            try_out(&history).map(|broken| minimize(Failing { seed, history, broken }, try_out))
        })
        .take(seeds.enough)
        .collect()
}

/// Removes events and settings as long as the history still fails in the same way.
fn minimize(failing: Failing, try_out: impl Fn(&History) -> Option<Vec<Broken>>) -> Failing {
    let first = failing.broken[0].invariant;
    let same = |broken: &Vec<Broken>| broken.iter().any(|it| it.invariant == first);
    failing.shrink(|history| {
        simpler_histories(history)
            .find_map(|history| try_out(&history).filter(same).map(|broken| (history, broken)))
    })
}

/// All histories that are simpler by one step, the largest steps first.
fn simpler_histories(history: &History) -> impl Iterator<Item = History> + use<'_> {
    let length = history.events.len();
    let cuts = [length / 2, length / 4, 2, 1].into_iter().filter(|cut| *cut > 0);
    let shorter = cuts.flat_map(move |cut| {
        (0..=length.saturating_sub(cut)).filter(move |_| cut <= length).map(move |from| {
            let mut events = history.events.clone();
            events.drain(from..from + cut);
            History { events, ..history.clone() }
        })
    });
    let plainer =
        simpler_setups(&history.setup).map(|setup| History { setup, events: history.events.clone() });
    let milder = (0..length).flat_map(move |at| {
        simpler_events(history.events[at]).map(move |event| {
            let mut events = history.events.clone();
            events[at] = event;
            History { events, ..history.clone() }
        })
    });
    shorter.chain(plainer).chain(milder)
}

fn simpler_setups(setup: &Setup) -> impl Iterator<Item = Setup> + use<'_> {
    let plain = Setup::PLAIN;
    let fields = [
        Setup { cli_flavor: plain.cli_flavor, ..*setup },
        Setup { max_restarts: setup.max_restarts.saturating_sub(1), ..*setup },
        Setup { grace: plain.grace, ..*setup },
        Setup { graces: plain.graces, ..*setup },
        Setup { time_limit: None, warning: None, ..*setup },
        Setup { warning: None, ..*setup },
        Setup { start_limit: None, ..*setup },
        Setup { dstate_limit: None, ..*setup },
        Setup { prompt: true, ..*setup },
        Setup { joins: plain.joins, ..*setup },
        Setup { files: plain.files, ..*setup },
        Setup { interrupt: plain.interrupt, ..*setup },
        Setup { unhealthy: None, ..*setup },
        Setup { external_worker: None, ..*setup },
        Setup { leftover_wait: None, ..*setup },
        Setup { leftover: None, ..*setup },
        Setup { unkillable: None, ..*setup },
        Setup { group_members: plain.group_members, ..*setup },
        Setup { is_output_read: true, ..*setup },
        Setup { is_parent_file_quick: true, ..*setup },
        Setup { start_fails: None, ..*setup },
        Setup { late: 0, ..*setup },
        Setup { early: false, ..*setup },
        Setup { others: false, ..*setup },
        Setup { meets: true, ..*setup },
        Setup { workers: without_one(setup), ..*setup },
    ];
    let reactions = (0..setup.reactions.len()).flat_map(move |at| {
        [StopReaction::Obeys { after: 0 }, StopReaction::Ignores].into_iter().filter_map(move |reaction| {
            let mut reactions = setup.reactions;
            let is_simpler =
                !matches!(reactions[at], StopReaction::Ignores | StopReaction::Obeys { after: 0 })
                    || reaction == StopReaction::Obeys { after: 0 };
            reactions[at] = reaction;
            is_simpler.then_some(Setup { reactions, ..*setup })
        })
    });
    let policies = simpler_policies(setup.policy).map(|policy| Setup { policy, ..*setup });
    fields.into_iter().chain(policies).chain(reactions).filter(move |simpler| simpler != setup)
}

fn simpler_policies(policy: Policy) -> impl Iterator<Item = Policy> {
    let [first, second] = policy.rules;
    let policies = [
        Policy { window: None, ..policy },
        Policy { wait: None, ..policy },
        Policy { wait: policy.wait.map(|wait| Wait { jitter: 0, ..wait }), ..policy },
        Policy { reset_after: None, ..policy },
        Policy { rules: [first, None], ..policy },
        Policy { rules: [None, second], ..policy },
        Policy { progress: None, ..policy },
        Policy { seed: 0, ..policy },
    ];
    policies.into_iter()
}

/// One worker less, as long as the external worker keeps its place.
fn without_one(setup: &Setup) -> u32 {
    setup.workers.saturating_sub(1).max(1).max(setup.external_worker.map_or(1, |rank| rank + 1))
}

fn simpler_events(event: Event) -> impl Iterator<Item = Event> {
    let ends = |worker, exit, wrote| EventKind::Ends { worker, exit, wrote };
    let simpler = match event.what {
        EventKind::Ends { worker, exit, wrote } => {
            let success = matches!(exit, Exit::Code(0));
            vec![
                ends(worker, exit, ErrorFileContent::Nothing),
                ends(worker, if success { exit } else { Exit::Code(1) }, wrote),
                ends(worker.saturating_sub(1), exit, wrote),
            ]
        }
        EventKind::Wait(_) => vec![EventKind::NextMoment],
        EventKind::BecomesUninterruptible(worker) => {
            vec![EventKind::BecomesUninterruptible(worker.saturating_sub(1))]
        }
        EventKind::WakesUp(worker) => vec![EventKind::WakesUp(worker.saturating_sub(1))],
        EventKind::HitsAll { signal, code, launcher } if launcher != 0 => {
            vec![EventKind::HitsAll { signal, code, launcher: 0 }]
        }
        EventKind::NextMoment
        | EventKind::SuspendsFor(_)
        | EventKind::Suspends
        | EventKind::Resumes
        | EventKind::HitsAll { .. }
        | EventKind::Stop { .. }
        | EventKind::Pass(_)
        | EventKind::Answer { .. }
        | EventKind::StartsExternalWorker
        | EventKind::PeerEvent(_)
        | EventKind::RequestRestart
        | EventKind::LateInput(_) => Vec::new(),
    };
    let simpler = simpler.into_iter().map(move |what| Event { what, ..event });
    [Event { held: false, ..event }].into_iter().chain(simpler).filter(move |simpler| *simpler != event)
}

/// The failing history in words: the broken invariants, how to repeat it, its choices and its events.
pub(super) fn render_failing<M: Machine>(failing: &Failing, machine: impl Fn(&Setup) -> M) -> String {
    let Failing { history, broken, .. } = failing;
    let mut text = String::new();
    for Broken { invariant, why } in broken {
        let _ = writeln!(text, "invariant {}: {}\n  {why}", invariant.number, invariant.description);
    }
    let _ = writeln!(text, "\n{}", failing.how_to_repeat());
    let _ = writeln!(text, "  {:?}", history.setup);
    for Event { what, held } in &history.events {
        let _ = writeln!(text, "  {what:?}{}", if *held { ", and at once" } else { "" });
    }
    let mut transcript = Vec::new();
    // It fails as it did before.
    let _ = run_history(history, machine(&history.setup), Some(&mut transcript));
    let _ = writeln!(text, "\nwhat happened:\n{}", transcript.join("\n"));
    text
}
