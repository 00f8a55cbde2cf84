//! Machines for unit tests, built without a probe. End-to-end tests use the folders and libraries in `tests/fakes/`.

use std::ffi::OsString;

use super::choice::{ChoiceError, ChoiceInput, ChoiceRequest, number, select, visible};
use super::visibility::InheritedVariables;
use super::{
    Accelerator, Condition, CudaDevice, DeviceChoice, DeviceLink, DeviceProcess, DeviceType, LinkKind,
    Machine, Memory, Part, PciAddress,
};

const GIB: u64 = 1 << 30;

/// A card on a bus of its own: `GPU-…` with eight digits that differ between the cards of one machine.
pub fn card(kind: DeviceType, index: u32, name: &str, bus: u8) -> Accelerator {
    let uuid = match kind {
        DeviceType::Cuda => {
            Some(format!("GPU-{:08x}-1111-2222-3333-444455556666", 0xa000_0000 + u32::from(bus) * 0x101))
        }
        DeviceType::Rocm => Some(format!("GPU-{:016x}", 0x1c2d_0000_0000_0000 + u64::from(bus))),
        _ => None,
    };
    Accelerator {
        kind,
        index,
        name: name.to_owned(),
        uuid,
        pci: Some(PciAddress { domain: 0, bus, device: 0, function: 0 }),
        numa_node: None,
        memory: Some(Memory { total: 80 * GIB, free: Some(80 * GIB) }),
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: None,
    }
}

fn identical_devices(kind: DeviceType, count: u8, name: &str) -> Machine {
    let cards = (0..count).map(|index| card(kind, index.into(), name, 0x10 * (index + 1)));
    Machine { accelerators: cards.collect(), ..Machine::default() }
}

pub fn cuda(count: u8) -> Machine {
    identical_devices(DeviceType::Cuda, count, "NVIDIA H100")
}

/// An old card, a new one, an old one, a newer one, of 8, 24, 8 and 80 GiB: the driver's order is not PCI's.
pub fn mixed_cuda() -> Machine {
    let mut machine = cuda(4);
    let models = [("NVIDIA P4", 8), ("NVIDIA RTX 4090", 24), ("NVIDIA P4", 8), ("NVIDIA H100", 80)];
    for (card, (name, gib)) in machine.accelerators.iter_mut().zip(models) {
        card.name = name.to_owned();
        card.memory = Some(Memory { total: gib * GIB, free: Some(gib * GIB) });
    }
    machine
}

/// The driver's answer on [`mixed_cuda`]: 3, 1, 0, 2.
pub fn mixed_cuda_order(machine: &Machine) -> Vec<CudaDevice> {
    cuda_order(machine, &[3, 1, 0, 2])
}

/// A driver that names these entries of the machine in this order.
pub fn cuda_order(machine: &Machine, order: &[usize]) -> Vec<CudaDevice> {
    let device = |at: &usize| {
        let card = &machine.accelerators[*at];
        CudaDevice { uuid: card.uuid.clone().unwrap_or_default(), pci: card.pci, name: card.name.clone() }
    };
    order.iter().map(device).collect()
}

/// GPU 0 in MIG mode with two instances, then a whole GPU 1, then GPU 2 in MIG mode without instances.
pub fn mig() -> Machine {
    let mut machine = cuda(3);
    let mut parents = machine.accelerators.split_off(1);
    let parent = &mut machine.accelerators[0];
    parent.part = Part::MigParent;
    let instance = |index: u32| Accelerator {
        index,
        name: "NVIDIA H100 MIG 3g.40gb".to_owned(),
        uuid: Some(format!("MIG-{index}0000000-aaaa-bbbb-cccc-dddddddddddd")),
        part: Part::MigInstance { gpu: 0 },
        memory: Some(Memory { total: 40 * GIB, free: Some(40 * GIB) }),
        ..parent.clone()
    };
    let instances = [instance(0), instance(1)];
    parents[1].part = Part::MigParent;
    machine.accelerators.extend(instances.into_iter().chain(parents));
    machine
}

pub fn rocm(count: u8) -> Machine {
    identical_devices(DeviceType::Rocm, count, "AMD MI300X")
}

/// Intel cards, each with this number of tiles.
pub fn xpu(cards: u8, tiles: u8) -> Machine {
    let mut machine = Machine::default();
    for card_number in 0..cards {
        for tile in 0..tiles {
            let index = u32::from(card_number) * u32::from(tiles) + u32::from(tile);
            let mut device = card(DeviceType::Xpu, index, "Intel Max 1550", 0x10 * (card_number + 1));
            if tiles > 1 {
                device.part = Part::Tile { card: card_number.into(), tile: tile.into() };
            }
            machine.accelerators.push(device);
        }
    }
    machine
}

/// Gaudi cards with modules that are numbered backwards on the board.
pub fn hpu(count: u8) -> Machine {
    let mut machine = identical_devices(DeviceType::Hpu, count, "Gaudi 2");
    for card in &mut machine.accelerators {
        card.module_id = Some(u32::from(count) - 1 - card.index);
    }
    machine
}

pub fn npu(count: u8) -> Machine {
    identical_devices(DeviceType::Npu, count, "Ascend 910B")
}

/// The cards of several machines in one.
pub fn merge_machines(machines: impl IntoIterator<Item = Machine>) -> Machine {
    let accelerators = machines.into_iter().flat_map(|machine| machine.accelerators).collect();
    Machine { accelerators, ..Machine::default() }
}

/// Puts another user's process on a device.
pub fn occupy(device: &mut Accelerator, pid: u32) {
    let process = DeviceProcess { pid, name: Some("python".to_owned()), uid: None, memory: None };
    device.state.get_or_insert_with(Box::default).processes.push(process);
}

/// Links between all of the machine's entries: these, and one kind for all other pairs.
pub fn link(machine: &mut Machine, fast: &[(usize, usize, LinkKind)], default_kind: LinkKind) {
    let count = machine.accelerators.len();
    for a in 0..count {
        for b in a + 1..count {
            let kind =
                fast.iter().find(|link| (link.0, link.1) == (a, b)).map_or(default_kind, |link| link.2);
            machine.links.push(DeviceLink { a, b, kind });
        }
    }
}

/// A machine by name: `cuda 4`, `xpu 2x2` (cards and tiles), `mixed`, `mig`, `none`, and several with `+`.
pub fn machine(name: &str) -> Machine {
    merge_machines(name.split('+').map(|name| {
        let (kind, count) = name.split_once(' ').unwrap_or((name, "0"));
        let (cards, tiles) = count.split_once('x').unwrap_or((count, "1"));
        let (cards, tiles) =
            (cards.parse().expect("a number of cards"), tiles.parse().expect("a number of tiles"));
        match kind {
            "cuda" => cuda(cards),
            "mixed" => mixed_cuda(),
            "mig" => mig(),
            "rocm" => rocm(cards),
            "xpu" => xpu(cards, tiles),
            "hpu" => hpu(cards),
            "npu" => npu(cards),
            "none" => Machine::default(),
            other => panic!("no machine is called `{other}`"),
        }
    }))
}

pub fn environment(text: &str) -> InheritedVariables {
    let variables: Vec<(&str, &str)> =
        text.split('|').filter_map(|variable| variable.split_once('=')).collect();
    InheritedVariables::of(|name| {
        variables
            .iter()
            .find(|(variable, _)| *variable == name)
            .map(|(_, value)| std::ffi::OsStr::new(*value))
    })
}

/// The environment of a process that inherits these variables and gets others on top.
pub fn with_variables(
    inherited: &InheritedVariables,
    variables: &[(&'static str, Option<OsString>)],
) -> InheritedVariables {
    let mut changed = inherited.clone();
    for (name, value) in variables {
        let field = match *name {
            "CUDA_VISIBLE_DEVICES" => &mut changed.cuda,
            "CUDA_DEVICE_ORDER" => &mut changed.cuda_order,
            "HIP_VISIBLE_DEVICES" => &mut changed.hip,
            "ROCR_VISIBLE_DEVICES" => &mut changed.rocr,
            "ZE_AFFINITY_MASK" => &mut changed.ze_mask,
            "ZE_FLAT_DEVICE_HIERARCHY" => &mut changed.ze_hierarchy,
            "ZE_ENABLE_PCI_ID_DEVICE_ORDER" => &mut changed.ze_pci_order,
            "HABANA_VISIBLE_MODULES" => &mut changed.habana,
            "ASCEND_RT_VISIBLE_DEVICES" => &mut changed.ascend,
            other => panic!("`{other}` is not a variable of ours"),
        };
        field.clone_from(value);
    }
    changed
}

/// A command line such as `--devices 3,1 --device-order pci`.
pub fn request(text: &str) -> ChoiceRequest {
    let mut request = ChoiceRequest::default();
    let mut tokens = text.split_whitespace();
    while let Some(token) = tokens.next() {
        let mut value = || tokens.next().expect("a value");
        match token {
            "--devices" => request.devices = Some(value().parse().expect("a valid value")),
            "--device-type" => request.kind = Some(value().parse().expect("a valid value")),
            "--device-order" => request.order = Some(value().parse().expect("a valid value")),
            "--exclude-unhealthy" => request.exclude_unhealthy = true,
            other => panic!("`{other}` is not an option"),
        }
    }
    request
}

/// Chooses with the driver of [`mixed_cuda`], or with none.
pub fn choose(
    machine: &Machine,
    inherited: &InheritedVariables,
    request: &ChoiceRequest,
) -> Result<DeviceChoice, ChoiceError> {
    let cuda_order = || {
        let cards = machine.accelerators.iter().filter(|card| card.kind == DeviceType::Cuda).count();
        if cards == 4 { Ok(mixed_cuda_order(machine)) } else { Err("no driver here".to_owned()) }
    };
    choose_by(&ChoiceInput { machine, inherited, request, unhealthy: &[], cuda_order: &cuda_order })
}

/// The first two steps of the choice.
pub(crate) fn choose_by(input: &ChoiceInput<'_>) -> Result<DeviceChoice, ChoiceError> {
    select(visible(input)?, input)
}

/// Devices as `rankrun devices` numbers them: `3 1`, `0:1` for a MIG device; `cpu` for none.
pub fn device_numbers<'a>(devices: impl IntoIterator<Item = &'a Accelerator>) -> String {
    let numbers: Vec<String> = devices.into_iter().map(number).collect();
    if numbers.is_empty() { "cpu".to_owned() } else { numbers.join(" ") }
}
