//! Machines and device assignments, and what is reported about the devices.

use super::*;
use crate::device::{Condition, DeviceState, DeviceType, fake};

/// A healthy device with this index and bus.
fn accelerator(index: u32) -> Accelerator {
    Accelerator {
        uuid: Some(format!("GPU-{index}")),
        state: Some(Box::default()),
        ..fake::card(DeviceType::Cuda, index, "Fast", 0x10 + u8::try_from(index).unwrap())
    }
}

fn machine(accelerators: impl IntoIterator<Item = Accelerator>) -> Machine {
    Machine { accelerators: accelerators.into_iter().collect(), ..Machine::default() }
}

/// A worker on the device with this index.
fn worker_device(index: u32) -> WorkerDevice {
    let identity = Some(ChosenDevice::new(usize::try_from(index).unwrap(), accelerator(index)));
    WorkerDevice { kind: DeviceType::Cuda, identity, ..WorkerDevice::cpu(LocalRank(0)) }
}

fn dead_devices(checkup: &DeviceReport) -> Vec<(Vec<u32>, &str, &str)> {
    let rank = |dead: &DeadDevice| dead.local_ranks.iter().map(|rank| rank.0).collect();
    checkup.dead.iter().map(|dead| (rank(dead), &*dead.device, &*dead.reason)).collect()
}

fn lost_condition(why: &str) -> Condition {
    Condition::Lost { why: why.to_owned() }
}

fn probe_problem(what: ProbeProblemKind) -> ProbeProblem {
    ProbeProblem { kind: DeviceType::Cuda, source: "NVML".to_owned(), what }
}

#[test]
fn healthy_devices_give_empty_report() {
    let checkup =
        report_devices(&machine([0, 1, 2].map(accelerator)), &[worker_device(2), worker_device(0)], 0);
    assert_eq!(checkup, DeviceReport::default());
    assert_eq!(
        report_devices(&Machine::default(), &[WorkerDevice::cpu(LocalRank(0))], 0),
        DeviceReport::default()
    );
}

#[test]
fn only_assigned_devices_are_reported() {
    let mut sick = accelerator(1);
    sick.condition = lost_condition("GPU is lost");
    let machine = machine([accelerator(0), sick, accelerator(2)]);
    assert_eq!(report_devices(&machine, &[worker_device(2), worker_device(0)], 0), DeviceReport::default());
    let checkup = report_devices(&machine, &[worker_device(2), worker_device(1)], 0);
    let expected = (vec![1], "GPU 1 Fast (0000:11:00.0)", "does not answer: GPU is lost");
    assert_eq!(dead_devices(&checkup), [expected]);
}

#[test]
fn unlisted_device_is_dead_even_if_another_has_its_index() {
    let mut newcomer = accelerator(1);
    newcomer.uuid = Some("GPU-new".to_owned());
    for machine in [machine([accelerator(0)]), machine([accelerator(0), newcomer])] {
        let checkup = report_devices(&machine, &[worker_device(0), worker_device(1), worker_device(1)], 0);
        assert_eq!(dead_devices(&checkup), [(vec![1, 2], "GPU 1 Fast (0000:11:00.0)", NOT_LISTED)]);
    }
}

#[test]
fn device_without_uuid_is_matched_by_pci_address_or_index() {
    let placed = Accelerator { uuid: None, condition: lost_condition("by place"), ..accelerator(1) };
    let nameless = Accelerator { pci: None, condition: lost_condition("by number"), ..placed.clone() };
    for (found, why) in [(placed, "does not answer: by place"), (nameless, "does not answer: by number")] {
        let checkup =
            report_devices(&machine([accelerator(0), found]), &[worker_device(0), worker_device(1)], 0);
        assert_eq!(checkup.dead.iter().map(|dead| &*dead.reason).collect::<Vec<_>>(), [why]);
    }
}

#[test]
fn unanswered_library_leaves_device_unchecked() {
    let mut machine = machine([]);
    machine.troubles =
        vec![probe_problem(ProbeProblemKind::Hung(10)), probe_problem(ProbeProblemKind::Hung(10))];
    let checkup = report_devices(&machine, &[worker_device(0)], 0);
    assert_eq!(
        (dead_devices(&checkup), &checkup.unchecked[..]),
        (vec![], &["NVML did not answer within 10 seconds".to_owned()][..])
    );

    machine.troubles = vec![probe_problem(ProbeProblemKind::Missing("no such file".to_owned()))];
    let checkup = report_devices(&machine, &[worker_device(0)], 0);
    assert_eq!((checkup.dead.len(), checkup.unchecked.len()), (1, 0), "the kernel alone knew of it");

    machine.troubles =
        vec![ProbeProblem { kind: DeviceType::Rocm, ..probe_problem(ProbeProblemKind::Hung(10)) }];
    let checkup = report_devices(&machine, &[worker_device(0)], 0);
    assert_eq!(
        (checkup.dead.len(), checkup.unchecked.len()),
        (1, 0),
        "devices of another type are not checked"
    );
}

#[test]
fn throttled_device_gives_warning() {
    let mut hot = accelerator(0);
    let state =
        DeviceState { throttle: vec![crate::device::Throttle::HardwareThermal], ..DeviceState::default() };
    hot.state = Some(Box::new(state));
    let checkup = report_devices(&machine([hot]), &[worker_device(0)], 0);
    assert!(checkup.dead.is_empty(), "a hot device is not dead");
    let [warning] = &checkup.warnings[..] else { panic!("{checkup:?}") };
    assert!(warning.problem.contains("heat"), "{warning:?}");
}
