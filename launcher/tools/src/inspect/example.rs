//! Machines made by hand, for the tests.

use rankrun_core::device::visibility::{AskCuda, InheritedVariables};
use rankrun_core::device::{
    Accelerator, Condition, Cpu, CpuLayout, DeviceLink, DeviceProcess, DeviceState, DeviceType, LinkKind,
    Machine, Memory, Nic, NumaNode, Part, PciAddress, ProbeProblem, ProbeProblemKind, Throttle,
};

use super::snapshot::{MachineSnapshot, SnapshotContext};

pub(super) const GIB: u64 = 1 << 30;
pub(super) const OWN: u32 = 1000;

pub(super) fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

/// An idle card of 80 GiB.
pub(super) fn card(index: u32) -> Accelerator {
    let state = DeviceState {
        compute_capability: Some((8, 0)),
        temperature: Some(34),
        slowdown_temperature: Some(92),
        power: Some(61_400),
        power_limit: Some(400_000),
        default_power_limit: Some(400_000),
        clock: Some(210),
        max_clock: Some(1410),
        utilisation: Some(0),
        throttle: vec![Throttle::Idle],
        uncorrected_ecc: Some(0),
        ..DeviceState::default()
    };
    Accelerator {
        kind: DeviceType::Cuda,
        index,
        name: "NVIDIA A100-SXM4-80GB".to_owned(),
        uuid: Some(format!("GPU-{index:08x}-1111-2222-3333-444444444444")),
        pci: Some(pci(0x10 + u8::try_from(index).unwrap())),
        numa_node: Some(index / 4),
        memory: Some(Memory { total: 80 * GIB, free: Some(79 * GIB + GIB / 2) }),
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: Some(Box::new(state)),
    }
}

/// A hot device with a busy process of another user.
pub(super) fn busy(index: u32) -> Accelerator {
    let own = DeviceProcess {
        pid: 4711,
        name: Some("python train.py".to_owned()),
        uid: Some(OWN),
        memory: Some(60 * GIB),
    };
    let foreign = DeviceProcess { pid: 99, name: Some("python3".to_owned()), uid: Some(1001), memory: None };
    let mut card = card(index);
    card.memory = Some(Memory { total: 80 * GIB, free: Some(11 * GIB) });
    let state = card.state.as_mut().unwrap();
    (state.temperature, state.power, state.clock) = (Some(91), Some(398_000), Some(1275));
    state.utilisation = Some(100);
    state.throttle = vec![Throttle::PowerCap, Throttle::SoftwareThermal];
    state.processes = vec![own, foreign];
    card
}

pub(super) fn lost(index: u32) -> Accelerator {
    let condition = Condition::Lost { why: "GPU is lost".to_owned() };
    Accelerator { condition, state: None, memory: None, ..card(index) }
}

/// A card in MIG mode and one of its instances.
pub(super) fn mig(index: u32) -> [Accelerator; 2] {
    let instance = Accelerator {
        index: 0,
        name: "NVIDIA A100-SXM4-80GB MIG 1g.10gb".to_owned(),
        uuid: Some("MIG-00000000-1111-2222-3333-444444444444".to_owned()),
        memory: Some(Memory { total: 10 * GIB, free: Some(9 * GIB + GIB / 2) }),
        part: Part::MigInstance { gpu: index },
        state: None,
        ..card(index)
    };
    [Accelerator { part: Part::MigParent, ..card(index) }, instance]
}

pub(super) fn cpus() -> CpuLayout {
    let cpu = |id: u32| Cpu { id, package: i32::from(id >= 4), siblings: vec![id], cache: vec![id] };
    let node = |id: u32| NumaNode { id, cpus: (4 * id..4 * id + 4).collect() };
    CpuLayout { nodes: vec![node(0), node(1)], cpus: (0..8).map(cpu).collect() }
}

/// These devices, each pair joined in the same way.
pub(super) fn machine(accelerators: Vec<Accelerator>, kind: LinkKind) -> Machine {
    let count = accelerators.len();
    let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| DeviceLink { a, b, kind }));
    Machine { links: pairs.collect(), accelerators, cpus: Some(cpus()), ..Machine::default() }
}

pub(super) fn nic(name: &str, bus: u8, numa_node: u32, links: Vec<LinkKind>) -> Nic {
    Nic { name: name.to_owned(), pci: Some(pci(bus)), numa_node: Some(numa_node), links }
}

pub(super) fn machine_without_devices() -> Machine {
    let missing = |kind, source: &str, why: &str| ProbeProblem {
        kind,
        source: source.to_owned(),
        what: ProbeProblemKind::Missing(why.to_owned()),
    };
    let problems = vec![
        missing(DeviceType::Cuda, "NVML", "libnvidia-ml.so.1: cannot open shared object file"),
        missing(DeviceType::Rocm, "/sys/class/kfd", "no such folder"),
    ];
    Machine { troubles: problems, cpus: Some(cpus()), ..Machine::default() }
}

/// The snapshot of a machine for a user with `cuda` as the inherited `CUDA_VISIBLE_DEVICES`.
pub(super) fn snapshot(machine: Machine, kind: Option<DeviceType>, cuda: Option<&str>) -> MachineSnapshot {
    let inherited = InheritedVariables { cuda: cuda.map(Into::into), ..InheritedVariables::default() };
    MachineSnapshot::of(machine, kind, &context(&inherited, &|| Err("libcuda.so.1 is not there".to_owned())))
}

pub(super) fn context<'a>(inherited: &'a InheritedVariables, cuda_order: AskCuda<'a>) -> SnapshotContext<'a> {
    SnapshotContext {
        host: "node17",
        inherited,
        affinity: &[0, 1, 2, 3, 4, 5, 6, 7],
        own_uid: OWN,
        cuda_order,
    }
}
