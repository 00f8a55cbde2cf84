//! Properties that hold for every machine, every inherited list and every request.

use std::ffi::OsString;

use proptest::prelude::*;

use super::*;
use crate::device::visibility::IndexOrder;

/// A machine with what is inherited on it.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) inherited: InheritedVariables,
}

/// Machines of every vendor with good and bad lists.
pub(crate) fn worlds() -> impl Strategy<Value = World> {
    const MACHINES: &[&str] =
        &["cuda 4", "cuda 8", "mixed", "mig", "rocm 4", "xpu 4", "xpu 2x2", "hpu 8", "npu 8"];
    let list = || proptest::option::of(proptest::collection::vec(0_u32..9, 0..6));
    let value = |choices: &'static [&'static str]| proptest::option::of(proptest::sample::select(choices));
    let orders = value(&["PCI_BUS_ID", "FASTEST_FIRST"]);
    let hierarchies = value(&["FLAT", "COMPOSITE", "COMBINED"]);
    (proptest::sample::select(MACHINES), list(), list(), orders, hierarchies, any::<bool>()).prop_map(
        |(machine, first, second, order, hierarchy, by_uuid)| {
            let machine = fake::machine(machine);
            let inherited = inherited(&machine, [first, second], [order, hierarchy], by_uuid);
            World { machine, inherited }
        },
    )
}

fn inherited(
    machine: &Machine,
    [first, second]: [Option<Vec<u32>>; 2],
    [order, hierarchy]: [Option<&str>; 2],
    by_uuid: bool,
) -> InheritedVariables {
    let uuid = |index: &u32| {
        let uuid =
            machine.accelerators.get(usize::try_from(*index).unwrap()).and_then(|card| card.uuid.clone());
        uuid.filter(|_| by_uuid).unwrap_or_else(|| index.to_string())
    };
    let text =
        |list: Option<Vec<u32>>| list.map(|list| list.iter().map(uuid).collect::<Vec<_>>().join(",").into());
    let mut inherited = InheritedVariables::default();
    match machine.accelerators[0].kind {
        DeviceType::Cuda => (inherited.cuda, inherited.cuda_order) = (text(first), order.map(Into::into)),
        DeviceType::Rocm => (inherited.rocr, inherited.hip) = (text(first), text(second)),
        DeviceType::Xpu => {
            // Without it a mask counts in an order that the driver alone knows.
            inherited.ze_pci_order = first.is_some().then(|| "1".into());
            (inherited.ze_mask, inherited.ze_hierarchy) = (text(first), hierarchy.map(Into::into));
        }
        DeviceType::Hpu => inherited.habana = text(first),
        _ => inherited.ascend = text(first),
    }
    inherited
}

/// The typed devices among the visible ones, in order, as numbers modulo the count of the remaining ones.
pub(crate) fn picked_indices() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(any::<usize>(), 0..8)
}

/// A request for some of the devices that are visible, and the devices in the order of its entries.
pub(crate) fn typed_request(world: &World, picks: &[usize]) -> (ChoiceRequest, Vec<Accelerator>) {
    let kind = world.machine.accelerators[0].kind;
    let cuda_order = || Ok(fake::mixed_cuda_order(&world.machine));
    let mut visible = visibility::read_visible_devices(
        kind,
        &world.machine,
        &world.inherited,
        IndexOrder::Typed,
        &cuda_order,
    )
    .devices;
    let (mut entries, mut devices) = (Vec::new(), Vec::new());
    for pick in picks {
        if visible.is_empty() {
            break;
        }
        let device = visible.remove(pick % visible.len());
        entries.push(match device.index {
            Some(index) => SelectorEntry::Index(index),
            None => SelectorEntry::Uuid(device.accelerator.uuid.clone().unwrap()),
        });
        devices.push(device.accelerator);
    }
    let devices_option = (!entries.is_empty()).then_some(Selector::List(entries));
    (ChoiceRequest { devices: devices_option, ..ChoiceRequest::default() }, devices)
}

fn chosen(choice: &DeviceChoice) -> Vec<Accelerator> {
    choice.devices.iter().map(|device| device.accelerator.clone()).collect()
}

proptest! {
    #[test]
    fn choice_is_injective_as_requested_and_within_visible(world in worlds(), picks in picked_indices()) {
        let all = fake::choose(&world.machine, &world.inherited, &ChoiceRequest::default()).unwrap();
        let visible = chosen(&all);
        let (request, expected) = typed_request(&world, &picks);
        let choice = fake::choose(&world.machine, &world.inherited, &request).unwrap();
        let devices = chosen(&choice);
        prop_assert_eq!(choice.is_untouched, request.devices.is_none() && all.is_untouched);
        if request.devices.is_some() {
            prop_assert_eq!(&devices, &expected);
        }
        for (place, device) in devices.iter().enumerate() {
            prop_assert!(visible.contains(device));
            prop_assert!(!devices[..place].contains(device));
        }
    }

    #[test]
    fn device_order_keeps_set_of_devices(world in worlds(), picks in picked_indices()) {
        let (mut request, _) = typed_request(&world, &picks);
        let listed = chosen(&fake::choose(&world.machine, &world.inherited, &request).unwrap());
        request.order = Some(DeviceOrder::Pci);
        let arranged = chosen(&fake::choose(&world.machine, &world.inherited, &request).unwrap());
        prop_assert!(arranged.is_sorted_by_key(|device| device.pci));
        prop_assert_eq!(arranged.len(), listed.len());
        prop_assert!(arranged.iter().all(|device| listed.contains(device)));
    }

    #[test]
    fn any_list_and_request_do_not_panic(list in "[-0-9GPUMI,. x]{0,12}", words in "[-0-9GPUMI,.:x]{1,8}") {
        for machine in ["cuda 4", "mixed", "mig", "rocm 4", "xpu 2x2", "hpu 8", "npu 8", "cuda 1+rocm 1", "none"] {
            let value: Option<OsString> = Some(list.clone().into());
            let inherited = InheritedVariables {
                cuda: value.clone(), rocr: value.clone(), ze_mask: value.clone(), habana: value.clone(), ascend: value,
                ..InheritedVariables::default()
            };
            let request = ChoiceRequest { devices: words.parse().ok(), ..ChoiceRequest::default() };
            if let Err(error) = fake::choose(&fake::machine(machine), &inherited, &request) {
                prop_assert!(!error.to_string().is_empty() && error.hint().is_some());
            }
        }
    }
}
