//! MIG: a process sees one device of that kind only, so each worker gets its own.

use harness::{Machine, Outcome, is_rankrun};

use super::{assert_refused, assert_visible_count, assignment_lines, launch_from_line, worker_devices};

#[track_caller]
fn assert_mig_devices(line: &str, expected: &[(usize, usize)]) -> Outcome {
    assert_mig_devices_on(&Machine::mig(), line, expected)
}

#[track_caller]
fn assert_mig_devices_on(machine: &Machine, line: &str, expected: &[(usize, usize)]) -> Outcome {
    let outcome = launch_from_line(line).on(machine).worker(["device=cuda"]).run();
    outcome.expect_exit_code(0);
    assert_visible_count(&outcome, 1);
    let is: Vec<_> = worker_devices(&outcome).into_iter().map(|got| got.identity).collect();
    let expected: Vec<_> =
        expected.iter().map(|(at, mig)| machine.mig_uuid(*at, *mig)[4..].to_owned()).collect();
    assert_eq!(is, expected, "{line}\n{outcome}");
    outcome
}

#[test]
fn each_worker_gets_own_mig_device() {
    let outcome = assert_mig_devices("rankrun", &[(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert!(worker_devices(&outcome).iter().all(|got| got.local_rank == 0), "{outcome}");
    outcome.expect_stderr("a process sees one MIG device only");
    for (line, number) in assignment_lines(&outcome, 4).iter().zip(["0:0", "0:1", "1:0", "1:1"]) {
        assert!(line.contains(&format!("MIG device {number} ")), "`{line}`\n{outcome}");
    }
}

#[test]
fn mig_devices_are_selected_by_number_and_uuid() {
    assert_mig_devices("rankrun --devices 1:1,0:0", &[(1, 1), (0, 0)]);
    assert_mig_devices("rankrun --devices MIG-11,MIG-01", &[(1, 1), (0, 1)]);
    let list = format!("CUDA_VISIBLE_DEVICES={} rankrun", Machine::mig().mig_uuid(1, 0));
    assert_mig_devices(&list, &[(1, 0)]);
}

/// torch's own way.
#[test]
fn mig_list_with_virtual_local_rank_follows_list_order() {
    let machine = Machine::mig();
    let list = format!("{},{}", machine.mig_uuid(1, 0), machine.mig_uuid(0, 1));
    let line = format!("CUDA_VISIBLE_DEVICES={list} torchrun --nproc-per-node 2 --virtual-local-rank");
    assert_mig_devices(&line, &[(1, 0), (0, 1)]);
}

/// Through NVML torch counts the cards; of a list of MIG devices it asks the driver, which shows the first.
#[test]
fn nproc_gpu_on_mig_counts_cards_under_torchrun_name() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::mig_cards(1);
    let (first, second) = (machine.mig_uuid(0, 0).to_owned(), machine.mig_uuid(0, 1).to_owned());
    for count in ["gpu", "auto"] {
        let line = format!("torchrun --nproc-per-node {count}");
        assert_mig_devices_on(&machine, &line, &[(0, 0)]);
        assert_mig_devices_on(&machine, &format!("CUDA_VISIBLE_DEVICES=0 {line}"), &[(0, 0)]);
        assert_mig_devices_on(&machine, &format!("CUDA_VISIBLE_DEVICES={second},{first} {line}"), &[(0, 1)]);
        let two = launch_from_line(&line).on(&Machine::mig()).worker(["print=started"]).run();
        assert_eq!(two.expect_exit_code(0).lines_with("started").len(), 2, "{two}");
    }
    assert_mig_devices_on(&machine, "rankrun --nproc-per-node gpu", &[(0, 0), (0, 1)]);
}

#[test]
fn parent_gpu_of_mig_devices_is_refused() {
    assert_refused("rankrun --devices 0", &Machine::mig(), &["MIG", "0:0", "0:1"]);
}
