//! Machines and device assignments, and what is reported about the devices.

use super::*;
use crate::device::{Condition, DeviceState, DeviceType, Part, PciAddress};

fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

/// A healthy card with this index and bus.
fn card(index: u32) -> Accelerator {
    Accelerator {
        kind: DeviceType::Cuda,
        index,
        name: "Fast".to_owned(),
        uuid: Some(format!("GPU-{index}")),
        pci: Some(pci(0x10 + u8::try_from(index).unwrap())),
        numa_node: None,
        memory: None,
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: Some(Box::default()),
    }
}

fn machine(accelerators: impl IntoIterator<Item = Accelerator>) -> Machine {
    Machine { accelerators: accelerators.into_iter().collect(), ..Machine::default() }
}

/// A worker on the card with this index.
fn seat(index: u32) -> WorkerDevice {
    let accelerator = card(index);
    let mut seat = WorkerDevice::cpu(LocalRank(0));
    seat.device = Device {
        kind: accelerator.kind,
        ordinal: 0,
        card: Some(DeviceIdentity {
            index: index.to_string(),
            noun: "GPU",
            name: accelerator.name,
            uuid: accelerator.uuid,
            pci: accelerator.pci,
            numa_node: None,
            how: "--devices".to_owned(),
        }),
        known: true,
    };
    seat
}

fn dead(checkup: &DeviceReport) -> Vec<(Vec<u32>, &str, &str)> {
    let rank = |dead: &DeadDevice| dead.local_ranks.iter().map(|rank| rank.0).collect();
    checkup.dead.iter().map(|dead| (rank(dead), &*dead.device, &*dead.why)).collect()
}

fn lost(why: &str) -> Condition {
    Condition::Lost { why: why.to_owned() }
}

fn trouble(what: ProbeProblemKind) -> ProbeProblem {
    ProbeProblem { kind: DeviceType::Cuda, source: "NVML".to_owned(), what }
}

#[test]
fn healthy_devices_need_no_word() {
    let checkup = judge(&machine([0, 1, 2].map(card)), &[seat(2), seat(0)], 0);
    assert_eq!(checkup, DeviceReport::default());
    assert_eq!(judge(&Machine::default(), &[WorkerDevice::cpu(LocalRank(0))], 0), DeviceReport::default());
}

#[test]
fn only_the_devices_of_the_workers_count() {
    let mut sick = card(1);
    sick.condition = lost("GPU is lost");
    let machine = machine([card(0), sick, card(2)]);
    assert_eq!(judge(&machine, &[seat(2), seat(0)], 0), DeviceReport::default());
    let checkup = judge(&machine, &[seat(2), seat(1)], 0);
    let expected = (vec![1], "GPU 1 Fast (0000:11:00.0)", "does not answer: GPU is lost");
    assert_eq!(dead(&checkup), [expected]);
}

#[test]
fn unlisted_device_is_dead_even_if_another_has_its_index() {
    let mut newcomer = card(1);
    newcomer.uuid = Some("GPU-new".to_owned());
    for machine in [machine([card(0)]), machine([card(0), newcomer])] {
        let checkup = judge(&machine, &[seat(0), seat(1), seat(1)], 0);
        assert_eq!(dead(&checkup), [(vec![1, 2], "GPU 1 Fast (0000:11:00.0)", GONE)]);
    }
}

#[test]
fn a_card_that_does_not_say_who_it_is_is_known_by_its_place_or_number() {
    let placed = Accelerator { uuid: None, condition: lost("by place"), ..card(1) };
    let nameless = Accelerator { pci: None, condition: lost("by number"), ..placed.clone() };
    for (found, why) in [(placed, "does not answer: by place"), (nameless, "does not answer: by number")] {
        let checkup = judge(&machine([card(0), found]), &[seat(0), seat(1)], 0);
        assert_eq!(checkup.dead.iter().map(|dead| &*dead.why).collect::<Vec<_>>(), [why]);
    }
}

#[test]
fn nobody_is_dead_of_a_library_that_does_not_answer() {
    let mut machine = machine([]);
    machine.troubles = vec![trouble(ProbeProblemKind::Hung(10)), trouble(ProbeProblemKind::Hung(10))];
    let checkup = judge(&machine, &[seat(0)], 0);
    assert_eq!(
        (dead(&checkup), &checkup.unchecked[..]),
        (vec![], &["NVML did not answer within 10 seconds".to_owned()][..])
    );

    machine.troubles = vec![trouble(ProbeProblemKind::Missing("no such file".to_owned()))];
    let checkup = judge(&machine, &[seat(0)], 0);
    assert_eq!((checkup.dead.len(), checkup.unchecked.len()), (1, 0), "the kernel alone knew of it");

    machine.troubles = vec![ProbeProblem { kind: DeviceType::Rocm, ..trouble(ProbeProblemKind::Hung(10)) }];
    let checkup = judge(&machine, &[seat(0)], 0);
    assert_eq!(
        (checkup.dead.len(), checkup.unchecked.len()),
        (1, 0),
        "devices of another type are not checked"
    );
}

#[test]
fn a_blemish_is_a_warning() {
    let mut hot = card(0);
    let state =
        DeviceState { throttle: vec![crate::device::Throttle::HardwareThermal], ..DeviceState::default() };
    hot.state = Some(Box::new(state));
    let checkup = judge(&machine([hot]), &[seat(0)], 0);
    assert!(checkup.dead.is_empty(), "a hot device is not dead");
    let [warning] = &checkup.warnings[..] else { panic!("{checkup:?}") };
    assert!(warning.what.contains("heat"), "{warning:?}");
}
