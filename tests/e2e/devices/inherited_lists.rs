//! Inherited lists keep the vendor's own rules, and entries that these drop are named once.

use harness::{Machine, is_rankrun};

use super::{assert_devices, assert_launch_devices, assert_refused, launch_from_line};

/// The list, what the driver makes of it on four cards, and the variable's own value in one warning where that is less
/// than the list says.
const LISTS: [(&str, &[usize], bool); 11] = [
    ("3,1", &[3, 1], false),
    ("0,2,-1,1", &[0, 2], true),
    ("0,7,1", &[0], true),
    ("2,junk,1", &[2], true),
    ("1gpu,2x", &[1, 2], false),
    ("0-2", &[0], false),
    ("GPU-2", &[2], false),
    ("GPU-2,GPU-1", &[2, 1], false),
    ("GPU-2,1", &[2], true),
    ("GPU-1,GPU-x,GPU-2", &[1], true),
    ("0,,1", &[0], true),
];

#[test]
fn inherited_list_follows_driver_rules() {
    let machine = Machine::gpus(4);
    for (list, cards, dropped) in LISTS {
        let outcome = assert_devices(&format!("CUDA_VISIBLE_DEVICES={list} rankrun"), &machine, cards);
        if dropped {
            let warnings = outcome.lines_with(&format!("CUDA_VISIBLE_DEVICES={list}`"));
            assert_eq!(warnings.len(), 1, "`{list}`: one warning\n{outcome}");
        }
    }
}

#[test]
fn inherited_list_under_torchrun_name_is_left_to_driver() {
    let machine = Machine::gpus(4);
    for (list, cards, _) in LISTS {
        let line = format!("CUDA_VISIBLE_DEVICES={list} torchrun --nproc-per-node {}", cards.len());
        assert_devices(&line, &machine, cards).expect_absent("CUDA_VISIBLE_DEVICES");
    }
}

/// A list that leaves nothing is the CPUs, as the vendor has it. A message says that this may be a mistake.
#[test]
fn inherited_list_without_valid_device_uses_cpus() {
    let machine = Machine::gpus(4);
    for list in ["1,1", "7", "junk", "GPU-c"] {
        let launch = launch_from_line(&format!("CUDA_VISIBLE_DEVICES={list} rankrun")).on(&machine);
        let outcome = launch.worker(["device=cuda"]).run();
        outcome
            .expect_exit_code(0)
            .expect_stdout("sees=0 is=none")
            .expect_stderr(&format!("`CUDA_VISIBLE_DEVICES={list}`"));
        assert_eq!(outcome.lines_with("device rank=").len(), 1, "{outcome}");
    }
    // Two ways to say so on purpose.
    for list in ["", "-1", "NoDevFiles"] {
        let launch = launch_from_line(&format!("CUDA_VISIBLE_DEVICES={list} rankrun")).on(&machine);
        launch.worker(["device=cuda"]).run().expect_exit_code(0).expect_stdout("sees=0 is=none");
    }
}

/// With blanks, which a typed line cannot have.
#[test]
fn blanks_in_inherited_list_are_skipped() {
    let machine = Machine::gpus(4);
    let launch = launch_from_line("rankrun").env("CUDA_VISIBLE_DEVICES", " 1gpu, 2x");
    assert_launch_devices(launch, &machine, &[1, 2]);
}

#[test]
fn device_index_counts_within_inherited_list() {
    let machine = Machine::gpus(4);
    assert_devices("CUDA_VISIBLE_DEVICES=3,1,2 rankrun --devices 0,2", &machine, &[3, 2]);
    assert_devices("CUDA_VISIBLE_DEVICES=3,1,2 rankrun --devices 2-0", &machine, &[2, 1, 3]);
    assert_devices("CUDA_VISIBLE_DEVICES=3,1,2 rankrun --devices=-0", &machine, &[1, 2]);
    assert_devices("CUDA_VISIBLE_DEVICES=GPU-3,GPU-1 rankrun --devices 1", &machine, &[1]);
    let says = ["2", &machine.pci(3), &machine.pci(1)];
    assert_refused("CUDA_VISIBLE_DEVICES=3,1 rankrun --devices 2", &machine, &says);
}

/// A UUID and a PCI address do not count, but what is hidden stays hidden.
#[test]
fn device_hidden_by_inherited_list_is_refused() {
    let machine = Machine::gpus(4);
    assert_devices("CUDA_VISIBLE_DEVICES=3,1 rankrun --devices GPU-1", &machine, &[1]);
    assert_devices(&format!("CUDA_VISIBLE_DEVICES=3,1 rankrun --devices {}", machine.pci(3)), &machine, &[3]);
    if is_rankrun() {
        let says = ["GPU-0", "CUDA_VISIBLE_DEVICES"];
        assert_refused("CUDA_VISIBLE_DEVICES=3,1 rankrun --devices GPU-0", &machine, &says);
        let hidden = machine.pci(0);
        assert_refused(&format!("CUDA_VISIBLE_DEVICES=3,1 rankrun --devices {hidden}"), &machine, &[&hidden]);
    }
}
