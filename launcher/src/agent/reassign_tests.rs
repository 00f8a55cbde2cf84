//! Command lines that are parsed again on machines that have changed.

use super::*;
use crate::device::{Accelerator, Condition, DeviceState, DeviceType, Part};

/// A card with this index that was there from the start.
fn accelerator(index: u32) -> Accelerator {
    Accelerator {
        kind: DeviceType::Cuda,
        index,
        name: "Fast".to_owned(),
        uuid: Some(format!("GPU-{index:08x}")),
        pci: format!("0000:{:02x}:00.0", index + 1).parse().ok(),
        numa_node: None,
        memory: None,
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: Some(Box::new(DeviceState::default())),
    }
}

fn lost_accelerator(index: u32) -> Accelerator {
    Accelerator { condition: Condition::Lost { why: "GPU is lost".to_owned() }, ..accelerator(index) }
}

fn machine(accelerators: impl IntoIterator<Item = Accelerator>) -> Machine {
    Machine { accelerators: accelerators.into_iter().collect(), ..Machine::default() }
}

/// A launch by these options, and its device assignment on this machine.
fn launch(options: &str, machine: &Machine, order: &CudaOrder) -> (Invocation, Vec<WorkerDevice>) {
    let program = ["--exclude-unhealthy", "--no-python", "/bin/true"];
    let argv = ["rankrun"].into_iter().chain(options.split_whitespace()).chain(program);
    let words = Invocation { argv: argv.map(OsString::from).collect(), environment: Vec::new() };
    match reassign_devices(&words, &[], machine.clone(), Some(order.clone())) {
        Reassignment::Seated(assignment) => (words, assignment.worker_devices),
        other => panic!("{options}: {other:?}"),
    }
}

/// The card's index of each rank.
fn device_indices(worker_devices: &[WorkerDevice]) -> Vec<&str> {
    worker_devices
        .iter()
        .map(|worker_device| worker_device.device.identity.as_ref().map_or("none", |card| &*card.index))
        .collect()
}

fn no_driver() -> CudaOrder {
    Err("there is none".to_owned())
}

#[test]
fn reparsed_devices_option_yields_remaining_devices() {
    let before = machine([0, 1, 2].map(accelerator));
    let now = machine([accelerator(0), lost_accelerator(1), accelerator(2)]);
    for (options, first, then) in [
        ("--devices all", vec!["0", "1", "2"], vec!["0", "2"]),
        ("--devices 2,1,0", vec!["2", "1", "0"], vec!["2", "0"]),
        ("--devices 1,2,0 --nproc-per-node 2", vec!["1", "2"], vec!["2", "0"]),
        ("--devices 2,0", vec!["2", "0"], vec!["2", "0"]),
    ] {
        let (words, devices_before) = launch(options, &before, &no_driver());
        assert_eq!(device_indices(&devices_before), first, "{options}");
        let reseated = reassign_devices(&words, &devices_before, now.clone(), Some(no_driver()));
        let Reassignment::Seated(assignment) = reseated else { panic!("{options}: {reseated:?}") };
        assert_eq!(device_indices(&assignment.worker_devices), then, "{options}");
        assert_eq!(assignment.workers.get() as usize, then.len(), "{options}");
        assert_eq!(assignment.device_lines.len(), then.len(), "{options}");
    }
}

/// This test has no other Python: without that of the shim the command line could not be parsed again.
#[test]
fn reparsed_command_line_finds_shim_python() {
    let given = [("PATH", "/nowhere"), ("RANKRUN_SHIM_PYTHON", "/bin/sh")];
    let given = given.map(|(name, value)| (name.into(), value.into())).to_vec();
    let argv = ["/nowhere/rankrun", "--exclude-unhealthy", "/etc/passwd"].map(OsString::from).to_vec();
    let reassignment_of = |environment| {
        let words = Invocation { argv: argv.clone(), environment };
        reassign_devices(&words, &[], machine([accelerator(0)]), Some(no_driver()))
    };
    let facts = Facts::new(given, Box::new(System::SILENT));
    assert!(matches!(reassignment_of(facts.environment().to_vec()), Reassignment::Refused(_)));
    assert!(matches!(reassignment_of(facts.given_environment()), Reassignment::Seated(_)));
}

#[test]
fn explicit_worker_count_without_enough_devices_is_refused() {
    let (words, devices_before) =
        launch("--devices all --nproc-per-node 2", &machine([0, 1].map(accelerator)), &no_driver());
    let refused = |accelerators: [Accelerator; 2]| match reassign_devices(
        &words,
        &devices_before,
        machine(accelerators),
        Some(no_driver()),
    ) {
        Reassignment::Refused(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused([accelerator(0), lost_accelerator(1)]).contains("2 workers"));
    assert!(!refused([lost_accelerator(0), lost_accelerator(1)]).is_empty());
}

#[test]
fn renumbered_devices_are_refused() {
    let (words, devices_before) =
        launch("--devices 0,1,2", &machine([0, 1, 2].map(accelerator)), &no_driver());
    // The first is not even listed: the others have moved up.
    let moved = machine([1, 2].map(|index| Accelerator { index: index - 1, ..accelerator(index) }));
    let reseated = reassign_devices(&words, &devices_before, moved, Some(no_driver()));
    assert_eq!(
        reseated,
        Reassignment::Refused("the devices that are left have other numbers now".to_owned())
    );
}

#[test]
fn driver_order_is_requested_only_for_fastest_order() {
    let device = |index: u32| CudaDevice {
        uuid: accelerator(index).uuid.unwrap_or_default(),
        pci: accelerator(index).pci,
        name: "Fast".to_owned(),
    };
    let now = machine([lost_accelerator(0), accelerator(1), accelerator(2)]);
    let order: CudaOrder = Ok(vec![device(2), device(0), device(1)]);
    let (words, devices_before) =
        launch("--device-order fastest --devices all", &machine([0, 1, 2].map(accelerator)), &order);
    assert_eq!(device_indices(&devices_before), ["2", "0", "1"]);
    assert_eq!(reassign_devices(&words, &devices_before, now.clone(), None), Reassignment::NeedsOrder);
    let Reassignment::Seated(assignment) =
        reassign_devices(&words, &devices_before, now.clone(), Some(order))
    else {
        panic!("the driver has answered")
    };
    assert_eq!(device_indices(&assignment.worker_devices), ["2", "1"]);

    let (words, devices_before) = launch("--devices all", &machine([0, 1, 2].map(accelerator)), &no_driver());
    assert!(matches!(reassign_devices(&words, &devices_before, now, None), Reassignment::Seated(_)));
}
