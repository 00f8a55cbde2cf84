//! What cannot be: each refused with the value, the cause and a way out, before any worker starts.

use harness::{Machine, MachineTree, namespaces};

use super::{refused, typed};

#[test]
fn lists_that_are_none() {
    let machine = Machine::gpus(4);
    for list in
        ["0,0", "0-2,1", "9", "0-9", "-", "-9", "0,,1", "0,", "0x1", "1.5", "x", "GPU", "99999999999", "0:0"]
    {
        refused(&format!("rankrun --devices={list}"), &machine, &["--devices", "hint: "]);
    }
    for (list, says) in [
        ("0,0", "`0`"),
        ("9", "no cuda device has the index 9"),
        ("cuda:1,2", "--device-type cuda --devices 1,2"),
        ("GPU-f00", "GPU-f00"),
        ("0000:ff:00.0", "0000:ff:00.0"),
        ("all,1", "all"),
        ("-0,-1,-2,-3", "leaves no"),
    ] {
        refused(&format!("rankrun --devices={list}"), &machine, &[says]);
    }
    let outcome = typed("rankrun").args(["--devices", ""]).on(&machine).worker(["print=started"]).run();
    outcome.exits(1).complains("--devices").never_says("started");
}

/// What is there is listed, with what one can type.
#[test]
fn an_index_that_is_not_there_lists_what_is() {
    let machine = Machine::mixed();
    let says = [&machine.pci(0), &machine.pci(2), machine.uuid(1), "NVIDIA GeForce RTX 3090"];
    refused("rankrun --devices 9", &machine, &says);
}

/// What is repeated in a message commands no terminal.
#[test]
fn a_list_of_control_characters() {
    let launch = typed("rankrun").args(["--devices", "GPU-0\n\u{1b}[31m"]).on(&Machine::gpus(2));
    let outcome = launch.worker(["print=started"]).run();
    outcome.exits(1).complains("GPU-0\\n").never_says("started");
    assert!(!outcome.to_string().contains('\u{1b}'), "{outcome}");
}

#[test]
fn a_prefix_of_two() {
    let mut machine = Machine::gpus(4);
    machine.card(1).uuid = "GPU-aab00000-0000-4000-8000-000000000001".to_owned();
    machine.card(2).uuid = "GPU-aac00000-0000-4000-8000-000000000002".to_owned();
    let says = ["GPU-aa`", "2 devices", &machine.pci(1), &machine.pci(2)];
    refused("rankrun --devices GPU-aa", &machine, &says);
    refused("rankrun --devices GPU-", &machine, &["GPU-` names no device"]);
}

#[test]
fn words_that_are_none() {
    let machine = Machine::gpus(2);
    refused("rankrun --device-order quickest", &machine, &["quickest", "free-memory"]);
    refused("rankrun --device-type tpu", &machine, &["tpu", "rocm"]);
    refused("rankrun --device-visibility some", &machine, &["some", "own"]);
    refused("rankrun --probe-timeout 0", &machine, &["--probe-timeout"]);
    refused("rankrun --probe-timeout 1e-9", &machine, &["--probe-timeout", "from 0.1 up"]);
    refused("rankrun --probe-timeout soon", &machine, &["--probe-timeout", "soon"]);
    refused("rankrun --device-type xpu", &machine, &["xpu"]);
    refused("rankrun --device-type cpu --devices 0", &machine, &["--device-type", "--devices"]);
}

/// Cards of two vendors: the list must not mix them, and a plain number must not guess.
#[test]
fn mixed_vendors() {
    if !namespaces() {
        return;
    }
    let machine = Machine::gpus(2);
    let tree = MachineTree::new().amd(2);
    let launch = |line: &str| typed(line).under(tree.stage()).on(&machine).worker(["print=started"]);
    let uuids = format!("{},GPU-000000000000abc0", machine.uuid(0));
    let outcome = launch(&format!("rankrun --devices {uuids}")).run();
    outcome.exits(1).complains("cuda").complains("rocm").never_says("started");
    for kind in ["cuda", "rocm"] {
        launch(&format!("rankrun --device-type {kind} --devices 1")).run().exits(0).says("started");
    }
}

/// None of our words means anything under the other name.
#[test]
fn torchrun_has_none_of_it() {
    if !harness::only_ours() {
        return;
    }
    let machine = Machine::gpus(2);
    for option in ["--devices", "--device-order", "--device-type", "--device-visibility"] {
        let outcome = typed(&format!("torchrun {option} 0")).on(&machine).worker(["print=started"]).run();
        outcome.exits(2).complains(option).never_says("started");
    }
}
