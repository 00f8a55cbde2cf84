//! MIG: a process sees one device of that kind only, so each worker gets its own.

use harness::{Machine, Outcome, only_ours};

use super::{each_sees, got, refused, seat_lines, typed};

#[track_caller]
fn mig_gives(line: &str, expected: &[(usize, usize)]) -> Outcome {
    mig_machine_gives(&Machine::mig(), line, expected)
}

#[track_caller]
fn mig_machine_gives(machine: &Machine, line: &str, expected: &[(usize, usize)]) -> Outcome {
    let outcome = typed(line).on(machine).worker(["device=cuda"]).run();
    outcome.exits(0);
    each_sees(&outcome, 1);
    let is: Vec<_> = got(&outcome).into_iter().map(|got| got.is).collect();
    let expected: Vec<_> =
        expected.iter().map(|(at, mig)| machine.mig_uuid(*at, *mig)[4..].to_owned()).collect();
    assert_eq!(is, expected, "{line}\n{outcome}");
    outcome
}

#[test]
fn each_worker_its_own() {
    let outcome = mig_gives("rankrun", &[(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert!(got(&outcome).iter().all(|got| got.local_rank == 0), "{outcome}");
    outcome.complains("a process sees one MIG device only");
    for (line, number) in seat_lines(&outcome, 4).iter().zip(["0:0", "0:1", "1:0", "1:1"]) {
        assert!(line.contains(&format!("MIG device {number} ")), "`{line}`\n{outcome}");
    }
}

#[test]
fn by_number_and_by_name() {
    mig_gives("rankrun --devices 1:1,0:0", &[(1, 1), (0, 0)]);
    mig_gives("rankrun --devices MIG-11,MIG-01", &[(1, 1), (0, 1)]);
    let list = format!("CUDA_VISIBLE_DEVICES={} rankrun", Machine::mig().mig_uuid(1, 0));
    mig_gives(&list, &[(1, 0)]);
}

/// torch's own way.
#[test]
fn under_torchruns_name() {
    let machine = Machine::mig();
    let list = format!("{},{}", machine.mig_uuid(1, 0), machine.mig_uuid(0, 1));
    let line = format!("CUDA_VISIBLE_DEVICES={list} torchrun --nproc-per-node 2 --virtual-local-rank");
    mig_gives(&line, &[(1, 0), (0, 1)]);
}

/// Through NVML torch counts the cards; of a list of MIG devices it asks the driver, which shows the first.
#[test]
fn torchrun_counts_cards() {
    if !only_ours() {
        return;
    }
    let machine = Machine::mig_cards(1);
    let (first, second) = (machine.mig_uuid(0, 0).to_owned(), machine.mig_uuid(0, 1).to_owned());
    for word in ["gpu", "auto"] {
        let line = format!("torchrun --nproc-per-node {word}");
        mig_machine_gives(&machine, &line, &[(0, 0)]);
        mig_machine_gives(&machine, &format!("CUDA_VISIBLE_DEVICES=0 {line}"), &[(0, 0)]);
        mig_machine_gives(&machine, &format!("CUDA_VISIBLE_DEVICES={second},{first} {line}"), &[(0, 1)]);
        let two = typed(&line).on(&Machine::mig()).worker(["print=started"]).run();
        assert_eq!(two.exits(0).lines_with("started").len(), 2, "{two}");
    }
    mig_machine_gives(&machine, "rankrun --nproc-per-node gpu", &[(0, 0), (0, 1)]);
}

#[test]
fn the_card_itself_is_none() {
    refused("rankrun --devices 0", &Machine::mig(), &["MIG", "0:0", "0:1"]);
}
