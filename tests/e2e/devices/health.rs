//! `--check-devices` and `--exclude-unhealthy`.

use harness::{Lost, Machine};

use super::{each_sees, gives, refused, seat_lines, typed};

#[test]
fn a_healthy_machine_is_not_mentioned() {
    let outcome = gives("rankrun --check-devices", &Machine::gpus(2), &[0, 1]);
    outcome.never_says("warning");
}

/// A card with a handle keeps its place among the others; one without is still counted by the driver.
#[test]
fn a_dead_card_is_named() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        refused("rankrun --check-devices", &machine, &["GPU 1", "lost"]);
        gives("rankrun --check-devices --devices 0,2", &machine, &[0, 2]);
    }
}

#[test]
fn a_dead_card_is_left_out() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        let outcome = gives("rankrun --exclude-unhealthy", &machine, &[0, 2, 3]);
        each_sees(&outcome, 3);
        outcome.complains("GPU 1");
        seat_lines(&outcome, 3);
        gives("rankrun --exclude-unhealthy --devices 3,1,0", &machine, &[3, 0]);
    }
    let machine = Machine::gpus(2).lost(0, Lost::Calls).lost(1, Lost::Calls);
    refused("rankrun --exclude-unhealthy", &machine, &["lost"]);
}

#[test]
fn uncorrected_errors_are_death() {
    let mut machine = Machine::gpus(2);
    machine.card(1).ecc = Some(3);
    refused("rankrun --check-devices", &machine, &["GPU 1", "ECC"]);
    gives("rankrun --exclude-unhealthy", &machine, &[0]);
}

#[test]
fn heat_neighbours_and_retired_pages_only_warn() {
    // In no process table of Linux: a process in another container.
    let stranger = 4_194_305;
    let mut machine = Machine::gpus(4).hot(0).busy(1, stranger);
    machine.card(2).retired = Some(2);
    let outcome = gives("rankrun --check-devices", &machine, &[0, 1, 2, 3]);
    outcome.complains("91").complains("busy").complains("retired");
    for card in [0, 1, 2] {
        outcome.complains(&machine.pci(card));
    }
}

/// Without the option too no other card replaces it, and a user that gets all cards is warned.
#[test]
fn a_dead_card_is_no_other() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        gives("rankrun --devices 2,0", &machine, &[2, 0]);
        gives("rankrun --devices 3", &machine, &[3]);
        refused("rankrun --devices 1", &machine, &["GPU 1", "does not answer"]);
        let outcome = typed("rankrun").on(&machine).worker(["alive"]).run();
        outcome.exits(0).complains("does not answer").complains("--exclude-unhealthy");
    }
}

/// Without the option the launcher does not query the health of the cards.
#[test]
fn unasked_nothing_is_checked() {
    gives("rankrun", &Machine::gpus(2).hot(0), &[0, 1]).never_says("91");
}
