//! What is written into the workers' environment, and what is left alone.

use harness::{Machine, Name, Outcome, only_ours};

use super::{each_sees, gives, got, typed};

/// A variable of a worker, `None` where it has none.
#[track_caller]
fn variable(outcome: &Outcome, rank: usize, name: &str) -> Option<String> {
    let prefix = format!("env{rank} {name}=");
    let lines = outcome.out_lines();
    assert!(
        lines.iter().any(|line| line.starts_with(&format!("env{rank} "))),
        "rank {rank} is silent\n{outcome}"
    );
    lines.iter().find_map(|line| line.strip_prefix(&prefix)).map(ToOwned::to_owned)
}

#[track_caller]
fn writes(line: &str, machine: &Machine, rank: usize, variables: &[(&str, Option<&str>)]) {
    let outcome = typed(line).on(machine).worker(["env"]).run();
    outcome.exits(0);
    for (name, expected) in variables {
        let found = variable(&outcome, rank, name);
        assert_eq!(found.as_deref(), *expected, "`{line}`: {name} of rank {rank}\n{outcome}");
    }
}

const LIST: &str = "CUDA_VISIBLE_DEVICES";
const ORDER: &str = "CUDA_DEVICE_ORDER";

/// Whatever is inherited, with its spelling.
#[test]
fn inherited_lists_pass_byte_for_byte() {
    let machine = Machine::gpus(4);
    for value in ["0,2", "2,0", "+2,00", "GPU-1c0ffee0-0000,GPU-0", "", "3,junk,1", "7", "1,1"] {
        for name in ["torchrun", "rankrun"] {
            let line = format!("{LIST}={value} {name} --nproc-per-node 1");
            writes(&line, &machine, 0, &[(LIST, Some(value)), (ORDER, None)]);
        }
    }
    // The typed one has a blank in it.
    for name in Name::both() {
        let launch = harness::Launch::standalone(*name, 1).env(LIST, " 1gpu, 2x");
        let outcome = launch.on(&machine).worker(["env"]).run();
        outcome.exits(0);
        assert_eq!(variable(&outcome, 0, LIST).as_deref(), Some(" 1gpu, 2x"), "{outcome}");
    }
}

#[test]
fn an_inherited_order_passes() {
    let machine = Machine::mixed();
    for order in ["PCI_BUS_ID", "FASTEST_FIRST"] {
        for name in ["torchrun", "rankrun"] {
            let line = format!("{ORDER}={order} {name} --nproc-per-node 2");
            writes(&line, &machine, 1, &[(ORDER, Some(order)), (LIST, None)]);
        }
    }
}

/// Under the name torchrun the launcher chooses nothing, unless the user sets our own variables.
#[test]
fn torchrun_chooses_nothing() {
    let machine = Machine::gpus(4);
    if only_ours() {
        gives("RANKRUN_DEVICES=3,1 torchrun --nproc-per-node 2", &machine, &[3, 1]);
    }
    writes("torchrun --nproc-per-node 2", &machine, 1, &[(LIST, None), (ORDER, None)]);
}

#[test]
fn indices_are_written_with_their_order() {
    let machine = Machine::gpus(4);
    let both = |list| [(LIST, Some(list)), (ORDER, Some("PCI_BUS_ID"))];
    for rank in 0..2 {
        writes("rankrun --devices 3,1", &machine, rank, &both("3,1"));
        writes("CUDA_DEVICE_ORDER=FASTEST_FIRST rankrun --devices 3,1", &machine, rank, &both("3,1"));
        writes("CUDA_VISIBLE_DEVICES=2,3 rankrun --devices 1,0", &machine, rank, &both("3,2"));
        let own = if rank == 0 { "3" } else { "1" };
        writes("rankrun --devices 3,1 --device-visibility own", &machine, rank, &both(own));
    }
}

#[test]
fn uuids_are_written_where_the_user_wrote_them() {
    let machine = Machine::gpus(4);
    let typed = format!("{},{}", machine.uuid(2), machine.uuid(0));
    writes(&format!("rankrun --devices {typed}"), &machine, 0, &[(LIST, Some(&typed))]);
    gives("rankrun --devices GPU-2,GPU-0", &machine, &[2, 0]);
    gives("CUDA_VISIBLE_DEVICES=GPU-2,GPU-0 rankrun --devices 1", &machine, &[0]);
}

/// With this order an index does not identify a card.
#[test]
fn an_index_is_nvidia_smis() {
    let machine = Machine::mixed();
    for (card, index) in ["0", "1", "2"].into_iter().enumerate() {
        gives(&format!("rankrun --devices {index}"), &machine, &[card]);
        gives(&format!("CUDA_DEVICE_ORDER=PCI_BUS_ID rankrun --devices {index}"), &machine, &[card]);
    }
    gives("rankrun --devices 2,0", &machine, &[2, 0]);
}

#[test]
fn each_worker_its_own_device() {
    let machine = Machine::gpus(4);
    for (line, cards) in [
        ("rankrun --device-visibility own", vec![0, 1, 2, 3]),
        ("rankrun --devices 3,1 --device-visibility own", vec![3, 1]),
        ("rankrun --devices 3,1 --virtual-local-rank", vec![3, 1]),
        ("CUDA_VISIBLE_DEVICES=2,0 rankrun --device-visibility own", vec![2, 0]),
        ("CUDA_VISIBLE_DEVICES=2,0 torchrun --nproc-per-node 2 --virtual-local-rank", vec![2, 0]),
    ] {
        let outcome = gives(line, &machine, &cards);
        each_sees(&outcome, 1);
        assert!(got(&outcome).iter().all(|got| got.local_rank == 0), "{line}\n{outcome}");
    }
}

#[test]
fn everybody_sees_the_whole_list() {
    let machine = Machine::gpus(4);
    let outcome = gives("rankrun --devices 3,1,0", &machine, &[3, 1, 0]);
    each_sees(&outcome, 3);
    assert!((0..).zip(got(&outcome)).all(|(rank, got)| got.local_rank == rank), "{outcome}");
}

/// The same devices after a restart.
#[test]
fn a_restart_keeps_the_devices() {
    let machine = Machine::gpus(4);
    let launch = typed("rankrun --devices 3,1 --max-restarts 1").on(&machine);
    let outcome = launch.worker(["life1:device=cuda", "rank1:life0:exit=4", "life0:forever"]).run();
    outcome.exits(0);
    let is: Vec<_> = got(&outcome).into_iter().map(|got| got.is).collect();
    assert_eq!(is, [&machine.uuid(3)[4..], &machine.uuid(1)[4..]], "{outcome}");
}

#[test]
fn on_cpus_the_accelerators_are_hidden() {
    let machine = Machine::gpus(2);
    if only_ours() {
        writes("rankrun --devices none", &machine, 0, &[(LIST, Some(""))]);
        writes("rankrun --device-type cpu", &machine, 0, &[(LIST, Some(""))]);
    }
}
