//! What cannot be: each refused with the value, the cause and a way out, before any worker starts.

use harness::{Machine, MachineTree, can_use_namespaces};

use super::{assert_refused, launch_from_line};

#[test]
fn invalid_device_list_is_refused() {
    let machine = Machine::gpus(4);
    for list in
        ["0,0", "0-2,1", "9", "0-9", "-", "-9", "0,,1", "0,", "0x1", "1.5", "x", "GPU", "99999999999", "0:0"]
    {
        assert_refused(&format!("rankrun --devices={list}"), &machine, &["--devices", "hint: "]);
    }
    for (list, says) in [
        ("0,0", "`0`"),
        ("9", "no cuda device has the index 9"),
        ("cuda:1,2", "--device-type cuda --devices 1,2"),
        ("GPU-f00", "GPU-f00"),
        ("0000:ff:00.0", "0000:ff:00.0"),
        ("all,1", "all"),
        ("-0,-1,-2,-3", "no cuda device is left"),
    ] {
        assert_refused(&format!("rankrun --devices={list}"), &machine, &[says]);
    }
    assert_refused(
        "RANKRUN_DEVICES=-0-3 rankrun",
        &machine,
        &["error: `RANKRUN_DEVICES` is `-0-3`: no cuda device is left"],
    );
    let outcome =
        launch_from_line("rankrun").args(["--devices", ""]).on(&machine).worker(["print=started"]).run();
    outcome.expect_exit_code(1).expect_stderr("--devices").expect_absent("started");
}

/// What is there is listed, with what one can type.
#[test]
fn unknown_device_index_lists_devices() {
    let machine = Machine::mixed();
    let says = [&machine.pci(0), &machine.pci(2), machine.uuid(1), "NVIDIA GeForce RTX 3090"];
    assert_refused("rankrun --devices 9", &machine, &says);
}

/// What is repeated in a message commands no terminal.
#[test]
fn control_characters_in_device_list_are_escaped() {
    let launch = launch_from_line("rankrun").args(["--devices", "GPU-0\n\u{1b}[31m"]).on(&Machine::gpus(2));
    let outcome = launch.worker(["print=started"]).run();
    outcome.expect_exit_code(1).expect_stderr("GPU-0\\n").expect_absent("started");
    assert!(!outcome.to_string().contains('\u{1b}'), "{outcome}");
}

#[test]
fn ambiguous_uuid_prefix_is_refused() {
    let mut machine = Machine::gpus(4);
    machine.card(1).uuid = "GPU-aab00000-0000-4000-8000-000000000001".to_owned();
    machine.card(2).uuid = "GPU-aac00000-0000-4000-8000-000000000002".to_owned();
    let says = ["GPU-aa`", "2 devices", &machine.pci(1), &machine.pci(2)];
    assert_refused("rankrun --devices GPU-aa", &machine, &says);
    assert_refused("rankrun --devices GPU-", &machine, &["GPU-` names no device"]);
}

#[test]
fn invalid_device_option_values_are_refused() {
    let machine = Machine::gpus(2);
    assert_refused("rankrun --device-order quickest", &machine, &["quickest", "free-memory"]);
    assert_refused("rankrun --device-type tpu", &machine, &["tpu", "rocm"]);
    assert_refused("rankrun --device-visibility some", &machine, &["some", "own"]);
    assert_refused("rankrun --probe-timeout 0", &machine, &["--probe-timeout"]);
    assert_refused("rankrun --probe-timeout 1e-9", &machine, &["--probe-timeout", "from 0.1 up"]);
    assert_refused("rankrun --probe-timeout soon", &machine, &["--probe-timeout", "soon"]);
    assert_refused("rankrun --device-type xpu", &machine, &["xpu"]);
    assert_refused("rankrun --device-type cpu --devices 0", &machine, &["--device-type", "--devices"]);
}

/// Cards of two vendors: the list must not mix them, and a plain number must not guess.
#[test]
fn device_list_of_two_vendors_is_refused() {
    if !can_use_namespaces() {
        return;
    }
    let machine = Machine::gpus(2);
    let tree = MachineTree::new().amd(2);
    let launch =
        |line: &str| launch_from_line(line).under(tree.stage()).on(&machine).worker(["print=started"]);
    let uuids = format!("{},GPU-000000000000abc0", machine.uuid(0));
    let outcome = launch(&format!("rankrun --devices {uuids}")).run();
    outcome.expect_exit_code(1).expect_stderr("cuda").expect_stderr("rocm").expect_absent("started");
    for kind in ["cuda", "rocm"] {
        launch(&format!("rankrun --device-type {kind} --devices 1"))
            .run()
            .expect_exit_code(0)
            .expect_stdout("started");
    }
}

/// None of our words means anything under the other name.
#[test]
fn device_options_under_torchrun_name_are_refused() {
    if !harness::is_rankrun() {
        return;
    }
    let machine = Machine::gpus(2);
    for option in ["--devices", "--device-order", "--device-type", "--device-visibility"] {
        let outcome =
            launch_from_line(&format!("torchrun {option} 0")).on(&machine).worker(["print=started"]).run();
        outcome.expect_exit_code(2).expect_stderr(option).expect_absent("started");
    }
}
