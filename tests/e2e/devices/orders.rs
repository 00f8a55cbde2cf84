//! `--devices` and `--device-order`: the order is a promise.

use harness::{Fault, Machine};

use super::{gives, refused, typed};

#[test]
fn every_way_to_write_a_list() {
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
        gives(&format!("rankrun --devices {list}"), &machine, &cards);
    }
    gives("rankrun --devices=-2,-3,-4,-5", &machine, &[0, 1, 6, 7]);
    gives("rankrun --devices -2,-3,-4,-5", &machine, &[0, 1, 6, 7]);
}

#[test]
fn those_that_nobody_uses() {
    let machine = Machine::gpus(4).busy(1, 1).busy(2, 1);
    gives("rankrun --devices idle", &machine, &[0, 3]);
    let busy = machine.busy(0, 1).busy(3, 1);
    refused("rankrun --devices idle", &busy, &["idle"]);
}

#[test]
fn pci() {
    gives("rankrun --devices 3,1,2 --device-order pci", &Machine::gpus(4), &[1, 2, 3]);
    gives("CUDA_VISIBLE_DEVICES=3,1 rankrun --device-order pci", &Machine::gpus(4), &[1, 3]);
}

#[test]
fn as_listed() {
    gives("rankrun --devices 3,1,2 --device-order as-listed", &Machine::gpus(4), &[3, 1, 2]);
}

#[test]
fn fastest() {
    let machine = Machine::mixed();
    gives("rankrun --devices 0,2 --device-order fastest", &machine, &[2, 0]);
    gives("CUDA_VISIBLE_DEVICES=GPU-0,GPU-1 rankrun --device-order fastest", &machine, &[1, 0]);
}

/// Only the driver knows.
#[test]
fn fastest_without_the_driver() {
    let line = "rankrun --device-order fastest";
    let machine = Machine::mixed().without_library("libcuda.so.1").without_library("libcuda.so");
    refused(line, &machine, &["fastest", "libcuda"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Error(803));
    refused(line, &machine, &["fastest", "unsupported display driver"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Crash);
    refused(line, &machine, &["fastest", "SIGABRT"]);
    let machine = Machine::mixed().with_fault("cuInit", Fault::Hang);
    refused("rankrun --device-order fastest --probe-timeout 1", &machine, &["fastest", "within 1 s"]);
}

#[test]
fn free_memory() {
    let mut machine = Machine::gpus(4);
    for (at, gib) in [30, 10, 60, 20].into_iter().enumerate() {
        machine.card(at).used = gib << 30;
    }
    gives("rankrun --device-order free-memory", &machine, &[1, 3, 0, 2]);
    gives("rankrun --devices 2,0 --device-order free-memory", &machine, &[0, 2]);
}

/// Neighbours in rank are those with links between them; then those of one NUMA node.
#[test]
fn topology() {
    let machine = Machine::two_linked_pairs();
    gives("rankrun --device-order topology", &machine, &[0, 2, 3, 1]);
    gives("rankrun --devices 1,2,3 --device-order topology", &machine, &[1, 3, 2]);
    gives("rankrun --device-order topology", &Machine::switched(), &[0, 1, 2, 3, 4, 5, 6, 7]);
}

/// The variables of our own options choose as well.
#[test]
fn by_variables() {
    let machine = Machine::gpus(4);
    gives("RANKRUN_DEVICES=2,0,1 RANKRUN_DEVICE_ORDER=pci rankrun", &machine, &[0, 1, 2]);
    gives("RANKRUN_DEVICES=2,0,1 rankrun --devices 3", &machine, &[3]);
    let outcome = typed("RANKRUN_DEVICE_ORDER=quickest rankrun").on(&machine).worker(["alive"]).run();
    outcome.exits(2).complains("RANKRUN_DEVICE_ORDER").complains("quickest");
}
