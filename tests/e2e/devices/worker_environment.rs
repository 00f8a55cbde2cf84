//! What is written into the workers' environment, and what is left alone.

use harness::{Machine, Name, Outcome, is_rankrun};

use super::{assert_devices, assert_visible_count, launch_from_line, worker_devices};

/// A variable of a worker, `None` where it has none.
#[track_caller]
fn worker_variable(outcome: &Outcome, rank: usize, name: &str) -> Option<String> {
    let prefix = format!("env{rank} {name}=");
    let lines = outcome.stdout_lines();
    assert!(
        lines.iter().any(|line| line.starts_with(&format!("env{rank} "))),
        "rank {rank} is silent\n{outcome}"
    );
    lines.iter().find_map(|line| line.strip_prefix(&prefix)).map(ToOwned::to_owned)
}

#[track_caller]
fn assert_worker_variables(line: &str, machine: &Machine, rank: usize, variables: &[(&str, Option<&str>)]) {
    let outcome = launch_from_line(line).on(machine).worker(["env"]).run();
    outcome.expect_exit_code(0);
    for (name, expected) in variables {
        let found = worker_variable(&outcome, rank, name);
        assert_eq!(found.as_deref(), *expected, "`{line}`: {name} of rank {rank}\n{outcome}");
    }
}

const LIST: &str = "CUDA_VISIBLE_DEVICES";
const ORDER: &str = "CUDA_DEVICE_ORDER";

/// Whatever is inherited, with its spelling.
#[test]
fn inherited_device_list_is_unchanged() {
    let machine = Machine::gpus(4);
    for value in ["0,2", "2,0", "+2,00", "GPU-1c0ffee0-0000,GPU-0", "", "3,junk,1", "7", "1,1"] {
        for name in ["torchrun", "rankrun"] {
            let line = format!("{LIST}={value} {name} --nproc-per-node 1");
            assert_worker_variables(&line, &machine, 0, &[(LIST, Some(value)), (ORDER, None)]);
        }
    }
    // The typed one has a blank in it.
    for name in Name::both() {
        let launch = harness::Launch::standalone(*name, 1).env(LIST, " 1gpu, 2x");
        let outcome = launch.on(&machine).worker(["env"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(worker_variable(&outcome, 0, LIST).as_deref(), Some(" 1gpu, 2x"), "{outcome}");
    }
}

#[test]
fn inherited_device_order_is_unchanged() {
    let machine = Machine::mixed();
    for order in ["PCI_BUS_ID", "FASTEST_FIRST"] {
        for name in ["torchrun", "rankrun"] {
            let line = format!("{ORDER}={order} {name} --nproc-per-node 2");
            assert_worker_variables(&line, &machine, 1, &[(ORDER, Some(order)), (LIST, None)]);
        }
    }
}

/// Under the name torchrun the launcher chooses nothing, unless the user sets our own variables.
#[test]
fn torchrun_name_sets_no_device_variables() {
    let machine = Machine::gpus(4);
    if is_rankrun() {
        assert_devices("RANKRUN_DEVICES=3,1 torchrun --nproc-per-node 2", &machine, &[3, 1]);
    }
    assert_worker_variables("torchrun --nproc-per-node 2", &machine, 1, &[(LIST, None), (ORDER, None)]);
}

#[test]
fn device_indices_are_set_with_device_order() {
    let machine = Machine::gpus(4);
    let both = |list| [(LIST, Some(list)), (ORDER, Some("PCI_BUS_ID"))];
    for rank in 0..2 {
        assert_worker_variables("rankrun --devices 3,1", &machine, rank, &both("3,1"));
        assert_worker_variables(
            "CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun --devices 3,1",
            &machine,
            rank,
            &both("3,1"),
        );
        assert_worker_variables(
            "CUDA_VISIBLE_DEVICES=2,3 rankrun --devices 1,0",
            &machine,
            rank,
            &both("3,2"),
        );
        let own = if rank == 0 { "3" } else { "1" };
        assert_worker_variables("rankrun --devices 3,1 --device-visibility own", &machine, rank, &both(own));
    }
}

#[test]
fn typed_uuids_are_set_as_uuids() {
    let machine = Machine::gpus(4);
    let typed = format!("{},{}", machine.uuid(2), machine.uuid(0));
    assert_worker_variables(&format!("rankrun --devices {typed}"), &machine, 0, &[(LIST, Some(&typed))]);
    assert_devices("rankrun --devices GPU-2,GPU-0", &machine, &[2, 0]);
    assert_devices("CUDA_VISIBLE_DEVICES=GPU-2,GPU-0 rankrun --devices 1", &machine, &[0]);
}

/// With this order an index does not identify a card.
#[test]
fn device_index_equals_nvidia_smi_index() {
    let machine = Machine::mixed();
    for (card, index) in ["0", "1", "2"].into_iter().enumerate() {
        assert_devices(&format!("rankrun --devices {index}"), &machine, &[card]);
        assert_devices(&format!("CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun --devices {index}"), &machine, &[card]);
    }
    assert_devices("rankrun --devices 2,0", &machine, &[2, 0]);
}

#[test]
fn visibility_own_shows_one_device_per_worker() {
    let machine = Machine::gpus(4);
    for (line, cards) in [
        ("rankrun --device-visibility own", vec![0, 1, 2, 3]),
        ("rankrun --devices 3,1 --device-visibility own", vec![3, 1]),
        ("rankrun --devices 3,1 --virtual-local-rank", vec![3, 1]),
        ("CUDA_VISIBLE_DEVICES=2,0 rankrun --device-visibility own", vec![2, 0]),
        ("CUDA_VISIBLE_DEVICES=2,0 torchrun --nproc-per-node 2 --virtual-local-rank", vec![2, 0]),
    ] {
        let outcome = assert_devices(line, &machine, &cards);
        assert_visible_count(&outcome, 1);
        assert!(worker_devices(&outcome).iter().all(|got| got.local_rank == 0), "{line}\n{outcome}");
    }
}

#[test]
fn default_visibility_shows_whole_list_to_each_worker() {
    let machine = Machine::gpus(4);
    let outcome = assert_devices("rankrun --devices 3,1,0", &machine, &[3, 1, 0]);
    assert_visible_count(&outcome, 3);
    assert!((0..).zip(worker_devices(&outcome)).all(|(rank, got)| got.local_rank == rank), "{outcome}");
}

/// The same devices after a restart.
#[test]
fn restart_keeps_devices() {
    let machine = Machine::gpus(4);
    let launch = launch_from_line("rankrun --devices 3,1 --max-restarts 1").on(&machine);
    let outcome = launch.worker(["attempt1:device=cuda", "rank1:attempt0:exit=4", "attempt0:forever"]).run();
    outcome.expect_exit_code(0);
    let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
    assert_eq!(is, [&machine.uuid(3)[4..], &machine.uuid(1)[4..]], "{outcome}");
}

#[test]
fn cpu_workers_see_no_accelerators() {
    let machine = Machine::gpus(2);
    if is_rankrun() {
        assert_worker_variables("rankrun --devices none", &machine, 0, &[(LIST, Some(""))]);
        assert_worker_variables("rankrun --device-type cpu", &machine, 0, &[(LIST, Some(""))]);
    }
}
