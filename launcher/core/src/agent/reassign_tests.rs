//! Device requests of launches, assigned again on machines that have changed.

use super::*;
use crate::device::order::DeviceOrder;
use crate::device::{Accelerator, ChosenDevice, Condition, CudaDevice, DeviceType, fake};
use crate::device_assignment::device_lines;
use crate::facts::fake::FakeWorld;
use crate::spec::device_request::{DeviceRequest, WorkerCount};
use crate::spec::setting::{Origin, Setting};
use crate::spec::{self, CliFlavor, Unhealthy};

/// A device with this index that was there from the start.
fn accelerator(index: u32) -> Accelerator {
    Accelerator {
        uuid: Some(format!("GPU-{index:08x}")),
        state: Some(Box::default()),
        ..fake::card(DeviceType::Cuda, index, "Fast", u8::try_from(index + 1).unwrap())
    }
}

fn lost_accelerator(index: u32) -> Accelerator {
    Accelerator { condition: Condition::Lost { why: "GPU is lost".to_owned() }, ..accelerator(index) }
}

fn machine(accelerators: impl IntoIterator<Item = Accelerator>) -> Machine {
    Machine { accelerators: accelerators.into_iter().collect(), ..Machine::default() }
}

/// A launch with `--exclude-unhealthy` and this device list, on this machine.
fn launch(devices: &str, machine: &Machine, order: &CudaOrder) -> LaunchSpec {
    launch_by(request(devices), machine, order)
}

fn request(devices: &str) -> DeviceRequest {
    let value = (devices.to_owned(), devices.parse().unwrap());
    DeviceRequest {
        devices: Some(by_option("devices", value)),
        check: Some(by_option("exclude-unhealthy", Unhealthy::Exclude)),
        ..DeviceRequest::default()
    }
}

fn with_workers(count: u32, request: DeviceRequest) -> DeviceRequest {
    DeviceRequest { worker_count: WorkerCount::Number(LocalWorldSize::new(count).unwrap()), ..request }
}

fn by_option<T>(name: &'static str, value: T) -> Setting<T> {
    Setting { origin: Origin::Option(name), value }
}

fn launch_by(device_request: DeviceRequest, machine: &Machine, order: &CudaOrder) -> LaunchSpec {
    let spec =
        LaunchSpec { device_request, devices: DeviceChoice::cpus(Vec::new()), ..spec::fake::example() };
    match reassign_devices(&spec, &facts(), machine, Some(order)) {
        Reassignment::Assigned(assigned) => LaunchSpec { devices: *assigned, ..spec },
        other => panic!("{:?}: {other:?}", spec.device_request),
    }
}

fn facts() -> Facts {
    FakeWorld::default().facts(&[])
}

/// The device's index of each rank.
fn device_indices(devices: &DeviceChoice) -> Vec<String> {
    let index = |device: &ChosenDevice| number(&device.accelerator);
    let workers = devices.workers.iter();
    workers.map(|worker| worker.identity.as_ref().map_or_else(|| "none".to_owned(), index)).collect()
}

fn no_driver() -> CudaOrder {
    Err("there is none".to_owned())
}

fn reassign(spec: &LaunchSpec, machine: &Machine, order: Option<&CudaOrder>) -> Reassignment {
    reassign_devices(spec, &facts(), machine, order)
}

#[test]
fn devices_option_yields_remaining_devices() {
    let before = machine([0, 1, 2].map(accelerator));
    let now = machine([accelerator(0), lost_accelerator(1), accelerator(2)]);
    for (request, first, then) in [
        (request("all"), vec!["0", "1", "2"], vec!["0", "2"]),
        (request("2,1,0"), vec!["2", "1", "0"], vec!["2", "0"]),
        (with_workers(2, request("1,2,0")), vec!["1", "2"], vec!["2", "0"]),
        (request("2,0"), vec!["2", "0"], vec!["2", "0"]),
    ] {
        let spec = launch_by(request.clone(), &before, &no_driver());
        assert_eq!(device_indices(&spec.devices), first, "{request:?}");
        let again = reassign(&spec, &now, Some(&no_driver()));
        let Reassignment::Assigned(assignment) = again else { panic!("{request:?}: {again:?}") };
        assert_eq!(device_indices(&assignment), then, "{request:?}");
        assert_eq!(assignment.workers.len(), then.len(), "{request:?}");
        assert_eq!(device_lines(&assignment, &request, CliFlavor::Rankrun).len(), then.len(), "{request:?}");
    }
}

#[test]
fn fewer_workers_share_cpus_anew() {
    let facts = |environment: &[(&str, &str)]| FakeWorld::default().cpus(12).facts(environment);
    let spec = launch("all", &machine([0, 1, 2].map(accelerator)), &no_driver());
    let now = machine([accelerator(0), lost_accelerator(1), accelerator(2)]);
    for (environment, threads) in [(vec![], Some(6)), (vec![("OMP_NUM_THREADS", "3")], None)] {
        let again = reassign_devices(&spec, &facts(&environment), &now, Some(&no_driver()));
        let Reassignment::Assigned(assignment) = again else { panic!("{again:?}") };
        assert_eq!(assignment.omp_threads, threads, "{environment:?}");
    }
}

#[test]
fn explicit_worker_count_without_enough_devices_is_refused() {
    let two = machine([0, 1].map(accelerator));
    let spec = launch_by(with_workers(2, request("all")), &two, &no_driver());
    let refusal =
        |accelerators: [Accelerator; 2]| match reassign(&spec, &machine(accelerators), Some(&no_driver())) {
            Reassignment::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        };
    assert!(refusal([accelerator(0), lost_accelerator(1)]).contains("2 workers"));
    assert!(!refusal([lost_accelerator(0), lost_accelerator(1)]).is_empty());
}

#[test]
fn assignment_without_named_worker_is_refused() {
    let now = machine([accelerator(0), lost_accelerator(1)]);
    let spec = launch("all", &machine([0, 1].map(accelerator)), &no_driver());
    let second = LocalRank(1);
    for (option, spec) in [
        ("--stdin", LaunchSpec { stdin: StdinPolicy::Only(second), ..spec.clone() }),
        ("--leave-out", LaunchSpec { external_worker: Some(second), ..spec.clone() }),
    ] {
        let refusal =
            format!("`{option}` names local rank 1, and the local ranks of 1 worker would be 0 to 0");
        assert_eq!(reassign(&spec, &now, Some(&no_driver())), Reassignment::Refused(refusal));
    }
    let first = LaunchSpec { stdin: StdinPolicy::Only(LocalRank(0)), ..spec };
    assert!(matches!(reassign(&first, &now, Some(&no_driver())), Reassignment::Assigned(_)));
}

#[test]
fn renumbered_devices_are_refused() {
    let spec = launch("0,1,2", &machine([0, 1, 2].map(accelerator)), &no_driver());
    // The first is not even listed: the others have moved up.
    let moved = machine([1, 2].map(|index| Accelerator { index: index - 1, ..accelerator(index) }));
    assert_eq!(
        reassign(&spec, &moved, Some(&no_driver())),
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
    let three = machine([0, 1, 2].map(accelerator));
    let now = machine([lost_accelerator(0), accelerator(1), accelerator(2)]);
    let order: CudaOrder = Ok(vec![device(2), device(0), device(1)]);
    let fastest = Some(by_option("device-order", DeviceOrder::Fastest));
    let spec = launch_by(DeviceRequest { order: fastest, ..request("all") }, &three, &order);
    assert_eq!(device_indices(&spec.devices), ["2", "0", "1"]);
    assert_eq!(reassign(&spec, &now, None), Reassignment::NeedsOrder);
    let again = reassign(&spec, &now, Some(&order));
    let Reassignment::Assigned(assignment) = again else { panic!("{again:?}") };
    assert_eq!(device_indices(&assignment), ["2", "1"]);

    let spec = launch("all", &three, &no_driver());
    assert!(matches!(reassign(&spec, &now, None), Reassignment::Assigned(_)));
}
