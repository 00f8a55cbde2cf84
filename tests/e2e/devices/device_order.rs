//! `--devices` and `--device-order`: the order is a promise.

use harness::{Fault, Machine};

use super::{assert_devices, assert_refused, launch_from_line};

#[test]
fn device_list_accepts_every_notation() {
    let machine = Machine::gpus(8);
    let (second, sixth) = (machine.pci(2), machine.pci(6));
    for (list, cards) in [
        ("3,1".to_owned(), vec![3, 1]),
        ("7".to_owned(), vec![7]),
        ("0-3".to_owned(), vec![0, 1, 2, 3]),
        ("3-0".to_owned(), vec![3, 2, 1, 0]),
        ("4-6,0".to_owned(), vec![4, 5, 6, 0]),
        ("0-3,-2".to_owned(), vec![0, 1, 3]),
        ("all".to_owned(), (0..8).collect()),
        ("GPU-5,GPU-2c0ffee0".to_owned(), vec![5, 2]),
        (machine.uuid(4).to_owned(), vec![4]),
        (format!("{sixth},{second}"), vec![6, 2]),
        (format!("1,GPU-4,{sixth}"), vec![1, 4, 6]),
    ] {
        assert_devices(&format!("rankrun --devices {list}"), &machine, &cards);
    }
    assert_devices("rankrun --devices=-2,-3,-4,-5", &machine, &[0, 1, 6, 7]);
    assert_devices("rankrun --devices -2,-3,-4,-5", &machine, &[0, 1, 6, 7]);
}

#[test]
fn devices_idle_selects_unused_gpus() {
    let machine = Machine::gpus(4).busy(1, 1).busy(2, 1);
    assert_devices("rankrun --devices idle", &machine, &[0, 3]);
    let busy = machine.busy(0, 1).busy(3, 1);
    assert_refused("rankrun --devices idle", &busy, &["idle"]);
}

#[test]
fn device_order_pci() {
    assert_devices("rankrun --devices 3,1,2 --device-order pci", &Machine::gpus(4), &[1, 2, 3]);
    assert_devices("CUDA_VISIBLE_DEVICES=3,1 rankrun --device-order pci", &Machine::gpus(4), &[1, 3]);
}

#[test]
fn device_order_as_listed() {
    assert_devices("rankrun --devices 3,1,2 --device-order as-listed", &Machine::gpus(4), &[3, 1, 2]);
}

#[test]
fn device_order_fastest() {
    let machine = Machine::mixed();
    assert_devices("rankrun --devices 0,2 --device-order fastest", &machine, &[2, 0]);
    assert_devices("CUDA_VISIBLE_DEVICES=GPU-0,GPU-1 rankrun --device-order fastest", &machine, &[1, 0]);
}

/// Only the driver knows.
#[test]
fn device_order_fastest_without_driver_is_refused() {
    let line = "rankrun --device-order fastest";
    let machine = Machine::mixed().without_library("libcuda.so.1").without_library("libcuda.so");
    assert_refused(line, &machine, &["fastest", "libcuda"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Error(803));
    assert_refused(line, &machine, &["fastest", "unsupported display driver"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Crash);
    assert_refused(line, &machine, &["fastest", "SIGABRT"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Hang);
    assert_refused("rankrun --device-order fastest --probe-timeout 1", &machine, &["fastest", "within 1 s"]);
}

#[test]
fn device_order_free_memory() {
    let mut machine = Machine::gpus(4);
    for (at, gib) in [30, 10, 60, 20].into_iter().enumerate() {
        machine.card(at).used = gib << 30;
    }
    assert_devices("rankrun --device-order free-memory", &machine, &[1, 3, 0, 2]);
    assert_devices("rankrun --devices 2,0 --device-order free-memory", &machine, &[0, 2]);
}

/// Neighbours in rank are those with links between them; then those of one NUMA node.
#[test]
fn device_order_topology() {
    let machine = Machine::two_linked_pairs();
    assert_devices("rankrun --device-order topology", &machine, &[0, 2, 3, 1]);
    assert_devices("rankrun --devices 1,2,3 --device-order topology", &machine, &[1, 3, 2]);
    assert_devices("rankrun --device-order topology", &Machine::switched(), &[0, 1, 2, 3, 4, 5, 6, 7]);
}

/// The variables of our own options choose as well.
#[test]
fn device_order_from_environment() {
    let machine = Machine::gpus(4);
    assert_devices("RANKRUN_DEVICES=2,0,1 RANKRUN_DEVICE_ORDER=pci rankrun", &machine, &[0, 1, 2]);
    assert_devices("RANKRUN_DEVICES=2,0,1 rankrun --devices 3", &machine, &[3]);
    let outcome =
        launch_from_line("RANKRUN_DEVICE_ORDER=quickest rankrun").on(&machine).worker(["alive"]).run();
    outcome.expect_exit_code(2).expect_stderr("RANKRUN_DEVICE_ORDER").expect_stderr("quickest");
}
