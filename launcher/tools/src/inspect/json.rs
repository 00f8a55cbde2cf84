//! `rankrun devices` and `topo` as one JSON object, for programs. Pure.
//!
//! The shape is ours and stable: names carry their units where they have one, unknown values are `null`, and a device
//! is named by its place in `devices`.

use serde::Serialize;

use rankrun_core::device::affinity::format_ranges;
use rankrun_core::device::choice::number;
use rankrun_core::device::{
    Accelerator, Condition, Cpu, CpuLayout, DeviceState, DeviceType, Machine, Nic, NumaNode, Part,
    PciAddress, ProbeProblem, ProbeProblemKind, Throttle,
};

use super::snapshot::MachineSnapshot;
use super::topo::{Topology, link_name};

/// The shape of both objects. They grow without a new number; a field that is there keeps its name and meaning.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct DevicesAnswer<'a> {
    version: u32,
    host: &'a str,
    devices: Vec<DeviceAnswer<'a>>,
    links: Vec<LinkAnswer>,
    nics: Vec<NicAnswer<'a>>,
    cpus: Option<CpusAnswer<'a>>,
    orders: Vec<OrderAnswer<'a>>,
    warnings: Vec<WarningAnswer<'a>>,
    troubles: Vec<ProblemAnswer<'a>>,
}

#[derive(Serialize)]
struct DeviceAnswer<'a> {
    r#type: DeviceType,
    index: u32,
    /// The name of the device for `--devices`.
    selector: String,
    name: &'a str,
    uuid: Option<&'a str>,
    pci: Option<PciAddress>,
    numa_node: Option<u32>,
    memory_total_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    part: &'static str,
    /// Of a MIG instance, the index of its GPU; of a tile, its card.
    parent: Option<u32>,
    tile: Option<u32>,
    module_id: Option<u32>,
    answers: bool,
    lost_because: Option<&'a str>,
    /// The variables that keep a launch from using it.
    hidden_by: Option<&'a str>,
    state: Option<StateAnswer<'a>>,
}

#[derive(Serialize)]
struct StateAnswer<'a> {
    compute_capability: Option<String>,
    temperature_celsius: Option<u32>,
    slowdown_temperature_celsius: Option<u32>,
    power_milliwatts: Option<u64>,
    power_limit_milliwatts: Option<u64>,
    default_power_limit_milliwatts: Option<u64>,
    clock_mhz: Option<u32>,
    max_clock_mhz: Option<u32>,
    memory_clock_mhz: Option<u32>,
    utilisation_per_cent: Option<u32>,
    throttle: &'a [Throttle],
    uncorrected_ecc_errors: Option<u64>,
    retired_memory: Option<u32>,
    retirement_pending: bool,
    processes: Vec<ProcessAnswer<'a>>,
}

#[derive(Serialize)]
struct ProcessAnswer<'a> {
    pid: u32,
    name: Option<&'a str>,
    uid: Option<u32>,
    is_own: bool,
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct LinkAnswer {
    devices: [usize; 2],
    kind: String,
}

#[derive(Serialize)]
struct NicAnswer<'a> {
    name: &'a str,
    pci: Option<PciAddress>,
    numa_node: Option<u32>,
    /// The links to the other devices, by position.
    links: Vec<String>,
}

#[derive(Serialize)]
struct CpusAnswer<'a> {
    count: usize,
    /// Those that this process may use.
    usable: &'a [u32],
    nodes: Vec<NumaNodeAnswer<'a>>,
    cpus: Vec<CpuAnswer>,
}

#[derive(Serialize)]
struct CpuAnswer {
    id: u32,
    package: i32,
    /// The CPUs of its core, as ranges.
    siblings: String,
    /// Those that share its last cache, as ranges.
    cache: String,
}

#[derive(Serialize)]
struct NumaNodeAnswer<'a> {
    id: u32,
    cpus: &'a [u32],
}

#[derive(Serialize)]
struct OrderAnswer<'a> {
    r#type: DeviceType,
    order: &'static str,
    devices: Option<&'a [usize]>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct WarningAnswer<'a> {
    device: Option<usize>,
    severity: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct ProblemAnswer<'a> {
    r#type: DeviceType,
    source: &'a str,
    kind: &'static str,
    text: String,
}

/// The snapshot as one object, with a newline behind it.
pub(super) fn devices(snapshot: &MachineSnapshot) -> Vec<u8> {
    let machine = &snapshot.machine;
    let all = machine.accelerators.iter().zip(&snapshot.hidden_by);
    let orders = snapshot.orders.iter().map(|known| OrderAnswer {
        r#type: known.kind,
        order: known.order.as_str(),
        devices: known.devices.as_deref().ok(),
        error: known.devices.as_ref().err().map(String::as_str),
    });
    let warnings = snapshot.warnings.iter().map(|warning| WarningAnswer {
        device: warning.device,
        severity: warning.severity.as_str(),
        text: &warning.text,
    });
    object(&DevicesAnswer {
        version: VERSION,
        host: &snapshot.host,
        devices: all.map(|(one, hidden)| device(one, hidden.as_deref(), snapshot.own_uid)).collect(),
        links: links(machine),
        nics: machine.nics.iter().map(nic).collect(),
        cpus: machine.cpus.as_ref().map(|layout| cpus(layout, &snapshot.affinity)),
        orders: orders.collect(),
        warnings: warnings.collect(),
        troubles: machine.troubles.iter().chain(&machine.made_good).map(problem_answer).collect(),
    })
}

#[derive(Serialize)]
struct TopologyAnswer<'a> {
    version: u32,
    host: &'a str,
    /// The names of rows and columns: the devices, then the network cards.
    names: &'a [String],
    /// The cells by row and column, as in `nvidia-smi`.
    matrix: &'a [Vec<String>],
    devices: Vec<NearAnswer<'a>>,
    nics: Vec<NicAnswer<'a>>,
    troubles: Vec<ProblemAnswer<'a>>,
}

#[derive(Serialize)]
struct NearAnswer<'a> {
    name: &'a str,
    r#type: DeviceType,
    index: u32,
    pci: Option<PciAddress>,
    uuid: Option<&'a str>,
    cpu_affinity: Option<&'a [u32]>,
    numa_affinity: Option<u32>,
    /// The network cards by their names in `names`.
    nearest_nics: Vec<&'a str>,
    nearest_nic_link: Option<String>,
}

/// The matrix as one object, with a newline behind it.
pub(super) fn topology(machine: &Machine, host: &str) -> Vec<u8> {
    let topology = Topology::of(machine);
    let near = topology.neighbours.iter().zip(&topology.names).map(|(near, name)| {
        let device = &machine.accelerators[near.device];
        NearAnswer {
            name,
            r#type: device.kind,
            index: device.index,
            pci: device.pci,
            uuid: device.uuid.as_deref(),
            cpu_affinity: near.cpus.as_deref(),
            numa_affinity: near.numa_node,
            nearest_nics: near.nics.iter().map(|row| topology.names[*row].as_str()).collect(),
            nearest_nic_link: near.nearest_nic_link.map(link_name),
        }
    });
    object(&TopologyAnswer {
        version: VERSION,
        host,
        names: &topology.names,
        matrix: &topology.cells,
        devices: near.collect(),
        nics: machine.nics.iter().map(nic).collect(),
        troubles: machine.troubles.iter().chain(&machine.made_good).map(problem_answer).collect(),
    })
}

fn object(answer: &impl Serialize) -> Vec<u8> {
    // Every key is a string and there are no fractions, so this does not fail.
    let mut json = serde_json::to_vec_pretty(answer).unwrap_or_default();
    json.push(b'\n');
    json
}

fn device<'a>(device: &'a Accelerator, hidden_by: Option<&'a str>, own_uid: u32) -> DeviceAnswer<'a> {
    let (part, parent, tile) = match device.part {
        Part::Whole => ("whole", None, None),
        Part::MigParent => ("mig_parent", None, None),
        Part::MigInstance { gpu } => ("mig_instance", Some(gpu), None),
        Part::Tile { card, tile } => ("tile", Some(card), Some(tile)),
    };
    let lost_because = match &device.condition {
        Condition::Answers => None,
        Condition::Lost { why } => Some(why.as_str()),
    };
    DeviceAnswer {
        r#type: device.kind,
        index: device.index,
        selector: number(device),
        name: &device.name,
        uuid: device.uuid.as_deref(),
        pci: device.pci,
        numa_node: device.numa_node,
        memory_total_bytes: device.memory.map(|memory| memory.total),
        memory_free_bytes: device.memory.and_then(|memory| memory.free),
        part,
        parent,
        tile,
        module_id: device.module_id,
        answers: lost_because.is_none(),
        lost_because,
        hidden_by,
        state: device.state.as_deref().map(|known| state(known, own_uid)),
    }
}

fn state(state: &DeviceState, own_uid: u32) -> StateAnswer<'_> {
    let processes = state.processes.iter().map(|process| ProcessAnswer {
        pid: process.pid,
        name: process.name.as_deref(),
        uid: process.uid,
        is_own: process.uid == Some(own_uid),
        memory_bytes: process.memory,
    });
    StateAnswer {
        compute_capability: state.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        temperature_celsius: state.temperature,
        slowdown_temperature_celsius: state.slowdown_temperature,
        power_milliwatts: state.power,
        power_limit_milliwatts: state.power_limit,
        default_power_limit_milliwatts: state.default_power_limit,
        clock_mhz: state.clock,
        max_clock_mhz: state.max_clock,
        memory_clock_mhz: state.memory_clock,
        utilisation_per_cent: state.utilisation,
        throttle: &state.throttle,
        uncorrected_ecc_errors: state.uncorrected_ecc,
        retired_memory: state.retired,
        retirement_pending: state.retirement_pending,
        processes: processes.collect(),
    }
}

fn links(machine: &Machine) -> Vec<LinkAnswer> {
    machine
        .links
        .iter()
        .map(|link| LinkAnswer { devices: [link.a, link.b], kind: link_name(link.kind) })
        .collect()
}

fn nic(nic: &Nic) -> NicAnswer<'_> {
    NicAnswer {
        name: &nic.name,
        pci: nic.pci,
        numa_node: nic.numa_node,
        links: nic.links.iter().copied().map(link_name).collect(),
    }
}

fn cpus<'a>(layout: &'a CpuLayout, affinity: &'a [u32]) -> CpusAnswer<'a> {
    let node = |node: &'a NumaNode| NumaNodeAnswer { id: node.id, cpus: &node.cpus };
    let cpu = |cpu: &Cpu| CpuAnswer {
        id: cpu.id,
        package: cpu.package,
        siblings: format_ranges(&cpu.siblings),
        cache: format_ranges(&cpu.cache),
    };
    CpusAnswer {
        count: layout.cpus.len(),
        usable: affinity,
        nodes: layout.nodes.iter().map(node).collect(),
        cpus: layout.cpus.iter().map(cpu).collect(),
    }
}

fn problem_answer(problem: &ProbeProblem) -> ProblemAnswer<'_> {
    let kind = match problem.what {
        ProbeProblemKind::Missing(_) => "missing",
        ProbeProblemKind::Failed(_) => "failed",
        ProbeProblemKind::Hung(_) => "hung",
        ProbeProblemKind::Crashed(_) => "crashed",
    };
    ProblemAnswer { r#type: problem.kind, source: &problem.source, kind, text: problem.to_string() }
}

#[cfg(test)]
mod tests;
