//! A second, shorter probe, for a vendor without an answer to the full one. Pure, but for the probes.
//!
//! A library that hangs or crashes over a temperature or a link takes the whole answer with it, and yet a launch,
//! which asks for neither, finds the cards. So the cards alone are asked for again, and shown with the problem.

use std::time::Duration;

use rankrun_core::device::{DeviceType, Machine, ProbeProblem, ProbeProblemKind, ProbeScope};
use rankrun_host::device_probe::merge::merge;

/// The second look asks for so little that a library that takes longer will not answer.
const MAX_RETRY_TIME: Duration = Duration::from_secs(5);

/// Looks, and where that is worth it looks again.
pub(super) fn probe_with_retry(
    ask: ProbeScope,
    limit: Duration,
    discover: impl Fn(ProbeScope, Duration) -> Machine,
) -> Machine {
    let first = discover(ask, limit);
    if !needs_retry(&first, ask) {
        return first;
    }
    let second = discover(reduced_scope(ask), self::retry_limit(limit));
    merge_probes(first, second, ask)
}

/// The same question without the parts at which libraries may fail.
pub(super) const fn reduced_scope(ask: ProbeScope) -> ProbeScope {
    ProbeScope { state: false, links: false, cpus: ask.cpus }
}

/// The limit of the second look.
pub(super) fn retry_limit(limit: Duration) -> Duration {
    limit.min(MAX_RETRY_TIME)
}

/// Whether a shorter question may find devices that this one did not.
pub(super) fn needs_retry(first: &Machine, ask: ProbeScope) -> bool {
    reduced_scope(ask) != ask && first.troubles.iter().any(|problem| is_lost(first, problem))
}

/// Whether the whole answer about this type went with the problem.
fn is_lost(machine: &Machine, problem: &ProbeProblem) -> bool {
    match problem.what {
        ProbeProblemKind::Crashed(_) | ProbeProblemKind::Hung(_) => true,
        ProbeProblemKind::Failed(_) => !machine.accelerators.iter().any(|found| found.kind == problem.kind),
        ProbeProblemKind::Missing(_) => false,
    }
}

/// Joins two looks: the second one's answers in place of the lost ones, with the first one's troubles.
pub(super) fn merge_probes(first: Machine, second: Machine, ask: ProbeScope) -> Machine {
    let is_found = |kind: DeviceType| second.accelerators.iter().any(|found| found.kind == kind);
    let is_back = |problem: &ProbeProblem| {
        is_lost(&first, problem)
            && is_found(problem.kind)
            && !second.troubles.iter().any(|again| again.kind == problem.kind && is_lost(&second, again))
    };
    let back: Vec<DeviceType> =
        first.troubles.iter().filter(|problem| is_back(problem)).map(|problem| problem.kind).collect();
    let mut problems = first.troubles.clone();
    for problem in problems.iter_mut().filter(|problem| is_back(problem)) {
        problem.source = format!("{}, asked for {},", problem.source, omitted_facts(ask));
    }
    let is_nvidia = |kind: &DeviceType| *kind == DeviceType::Cuda;
    let others_are_lost = !first.accelerators.iter().any(|found| !is_nvidia(&found.kind));
    let of = |machine: Machine, is_wanted: &dyn Fn(&DeviceType) -> bool| {
        // Positions would not match any more.
        let accelerators = machine.accelerators.into_iter().filter(|found| is_wanted(&found.kind));
        Machine { accelerators: accelerators.collect(), links: Vec::new(), nics: Vec::new(), ..machine }
    };
    let joined = match (back.iter().any(is_nvidia), back.iter().any(|kind| !is_nvidia(kind))) {
        (true, true) if others_are_lost => second,
        (true, _) => merge(of(second, &is_nvidia), first),
        (false, true) if others_are_lost => merge(first, of(second, &|kind| !is_nvidia(kind))),
        (false, _) => first,
    };
    Machine { troubles: problems, ..joined }
}

/// The facts that the first look asked for, and the second did not.
const fn omitted_facts(ask: ProbeScope) -> &'static str {
    match (ask.state, ask.links) {
        (true, true) => "state and links",
        (true, false) => "state",
        (false, _) => "links",
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::{card, machine, machine_without_devices};
    use super::*;
    use rankrun_core::device::{DeviceLink, LinkKind};

    const ASK: ProbeScope = ProbeScope { state: true, links: true, cpus: true };

    fn lost(kind: DeviceType, what: ProbeProblemKind) -> Machine {
        let problem = ProbeProblem { kind, source: "NVML".to_owned(), what };
        Machine { troubles: vec![problem], ..machine_without_devices() }
    }

    fn crashed() -> ProbeProblemKind {
        ProbeProblemKind::Crashed("SIGSEGV".to_owned())
    }

    #[test]
    fn crashed_probe_is_retried_with_smaller_scope() {
        for what in [crashed(), ProbeProblemKind::Hung(1), ProbeProblemKind::Failed("garbled".to_owned())] {
            let found =
                probe_with_retry(ASK, Duration::from_secs(30), |ask, limit| match ask.state || ask.links {
                    true => lost(DeviceType::Cuda, what.clone()),
                    false => {
                        assert!(ask.cpus && limit == MAX_RETRY_TIME);
                        machine(vec![card(0), card(1)], LinkKind::Sys)
                    }
                });
            assert_eq!(found.accelerators.len(), 2, "{what:?}");
            assert_eq!(found.troubles[0].source, "NVML, asked for state and links,");
            assert_eq!(found.troubles[0].what, what);
        }
    }

    #[test]
    fn retry_keeps_devices_of_first_probe() {
        let mut amd = card(0);
        amd.kind = DeviceType::Rocm;
        let mut other = amd.clone();
        other.index = 1;
        let first = Machine {
            links: vec![DeviceLink { a: 0, b: 1, kind: LinkKind::Xgmi }],
            ..machine(vec![amd.clone(), other.clone()], LinkKind::Xgmi)
        };
        let first = Machine { troubles: lost(DeviceType::Cuda, crashed()).troubles, ..first };
        amd.state = None;
        other.state = None;
        let second = machine(vec![card(0), amd, other], LinkKind::Sys);
        let found = merge_probes(first.clone(), second, ASK);
        let kinds: Vec<DeviceType> = found.accelerators.iter().map(|found| found.kind).collect();
        assert_eq!(kinds, [DeviceType::Cuda, DeviceType::Rocm, DeviceType::Rocm]);
        assert_eq!(found.accelerators[1].state, first.accelerators[0].state);
        assert!(found.links.contains(&DeviceLink { a: 1, b: 2, kind: LinkKind::Xgmi }), "{:?}", found.links);
    }

    #[test]
    fn failed_retry_keeps_first_problem() {
        let first = lost(DeviceType::Cuda, crashed());
        assert_eq!(merge_probes(first.clone(), first.clone(), ASK), first);
        let missing = lost(DeviceType::Cuda, ProbeProblemKind::Missing("no file".to_owned()));
        assert!(!needs_retry(&missing, ASK) && needs_retry(&first, ASK));
        assert!(!needs_retry(&first, reduced_scope(ASK)));
    }
}
