//! Facts about devices in words and units. Pure.

use rankrun_core::device::affinity::format_ranges;
use rankrun_core::device::choice::number;
use rankrun_core::device::health::{format_gib, watts};
use rankrun_core::device::{Accelerator, Machine, Memory, ProbeProblem, ProbeProblemKind, Throttle};

/// The name of a device within a sentence: `cuda 3`.
pub(super) fn device(accelerator: &Accelerator) -> String {
    format!("{} {}", accelerator.kind, number(accelerator))
}

/// Free and total memory, as in `79.1/80.0 GiB`.
pub(super) fn memory(memory: Option<Memory>) -> String {
    memory.map_or_else(String::new, |memory| {
        let free = memory.free.map_or_else(|| "?".to_owned(), format_gib);
        format!("{free}/{} GiB", format_gib(memory.total))
    })
}

/// `now/limit`, of which either may be unknown.
pub(super) fn format_with_limit(now: Option<u64>, limit: Option<u64>) -> String {
    let shown = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    match (now, limit) {
        (None, None) => String::new(),
        (Some(now), None) => now.to_string(),
        (now, limit) => format!("{}/{}", shown(now), shown(limit)),
    }
}

pub(super) fn power(now: Option<u64>, limit: Option<u64>) -> String {
    format_with_limit(now.map(watts), limit.map(watts))
}

/// Why it does not run at full speed.
pub(super) const fn throttle(reason: Throttle) -> &'static str {
    match reason {
        Throttle::Idle => "idle",
        Throttle::ApplicationClocks => "clocks set by user",
        Throttle::PowerCap => "power limit",
        Throttle::HardwareSlowdown => "hardware slowdown",
        Throttle::SyncBoost => "sync boost",
        Throttle::SoftwareThermal => "heat",
        Throttle::HardwareThermal => "heat (hardware)",
        Throttle::PowerBrake => "power brake",
        Throttle::DisplayClocks => "display",
    }
}

pub(super) fn throttles(reasons: &[Throttle]) -> String {
    let names: Vec<&str> = reasons.iter().copied().map(throttle).collect();
    names.join(", ")
}

/// The number with its noun: `1 GPU`, `2 GPUs`.
pub(super) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Whether the problem hides devices that may be present.
pub(super) const fn is_serious(problem: &ProbeProblem) -> bool {
    !matches!(problem.what, ProbeProblemKind::Missing(_))
}

/// The processors in one line; nothing where they are not known.
pub(super) fn processors(machine: &Machine, affinity: &[u32]) -> String {
    let Some(layout) = &machine.cpus else { return String::new() };
    let nodes: Vec<String> = layout
        .nodes
        .iter()
        .map(|node| format!("{} on node {}", format_ranges(&node.cpus), node.id))
        .collect();
    let total = count(layout.cpus.len(), "CPU");
    let within = match nodes.as_slice() {
        [] => String::new(),
        [_] => " in 1 NUMA node".to_owned(),
        many => format!(" in {} NUMA nodes: {}", many.len(), many.join(", ")),
    };
    let own = if affinity.is_empty() || affinity.len() >= layout.cpus.len() {
        String::new()
    } else {
        format!("; this process may use {}: {}", affinity.len(), format_ranges(affinity))
    };
    format!("{total}{within}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::device::{Cpu, CpuLayout, DeviceType, NumaNode};

    #[test]
    fn unknown_value_is_question_mark() {
        assert_eq!(format_with_limit(None, None), "");
        assert_eq!(format_with_limit(Some(5), None), "5");
        assert_eq!(format_with_limit(None, Some(7)), "?/7");
        assert_eq!(memory(Some(Memory { total: 80 << 30, free: None })), "?/80.0 GiB");
        assert_eq!(memory(None), "");
    }

    #[test]
    fn probe_problems_are_described() {
        let of = |what| ProbeProblem { kind: DeviceType::Cuda, source: "NVML".to_owned(), what };
        for (what, text, serious) in [
            (ProbeProblemKind::Missing("no such file".to_owned()), "NVML is not there: no such file", false),
            (ProbeProblemKind::Failed("Unknown Error".to_owned()), "NVML failed: Unknown Error", true),
            (ProbeProblemKind::Hung(10), "NVML did not answer within 10 seconds", true),
            (ProbeProblemKind::Crashed("SIGSEGV".to_owned()), "NVML crashed: SIGSEGV", true),
        ] {
            let problem = of(what);
            assert_eq!((problem.to_string().as_str(), is_serious(&problem)), (text, serious));
        }
    }

    #[test]
    fn processors_are_listed_by_numa_node() {
        let cpu = |id| Cpu { id, package: 0, siblings: vec![id], cache: vec![id] };
        let node = |id, cpus: &[u32]| NumaNode { id, cpus: cpus.to_vec() };
        let machine = |nodes| {
            let cpus = Some(CpuLayout { nodes, cpus: (0..8).map(cpu).collect() });
            Machine { cpus, ..Machine::default() }
        };
        let all: Vec<u32> = (0..8).collect();
        let two = machine(vec![node(0, &[0, 1, 2, 3]), node(1, &[4, 5, 6, 7])]);
        let text = "8 CPUs in 2 NUMA nodes: 0-3 on node 0, 4-7 on node 1";
        assert_eq!(processors(&two, &all), text);
        assert_eq!(processors(&two, &[4, 5]), format!("{text}; this process may use 2: 4-5"));
        assert_eq!(processors(&machine(vec![node(0, &all)]), &all), "8 CPUs in 1 NUMA node");
        assert_eq!(processors(&Machine::default(), &all), "");
    }
}
