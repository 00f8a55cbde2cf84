//! `--check-devices` and `--exclude-unhealthy`.

use harness::{Lost, Machine};

use super::{assert_devices, assert_refused, assert_visible_count, assignment_lines, launch_from_line};

#[test]
fn healthy_devices_print_no_warning() {
    let outcome = assert_devices("rankrun --check-devices", &Machine::gpus(2), &[0, 1]);
    outcome.expect_absent("warning");
}

/// A card with a handle keeps its place among the others; one without is still counted by the driver.
#[test]
fn check_devices_names_lost_gpu() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        assert_refused("rankrun --check-devices", &machine, &["GPU 1", "lost"]);
        assert_devices("rankrun --check-devices --devices 0,2", &machine, &[0, 2]);
    }
}

#[test]
fn exclude_unhealthy_skips_lost_gpu() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        let outcome = assert_devices("rankrun --exclude-unhealthy", &machine, &[0, 2, 3]);
        assert_visible_count(&outcome, 3);
        outcome.expect_stderr("GPU 1");
        assignment_lines(&outcome, 3);
        assert_devices("rankrun --exclude-unhealthy --devices 3,1,0", &machine, &[3, 0]);
    }
    let machine = Machine::gpus(2).lost(0, Lost::Calls).lost(1, Lost::Calls);
    assert_refused("rankrun --exclude-unhealthy", &machine, &["lost"]);
}

#[test]
fn uncorrected_ecc_errors_make_gpu_unhealthy() {
    let mut machine = Machine::gpus(2);
    machine.card(1).ecc = Some(3);
    assert_refused("rankrun --check-devices", &machine, &["GPU 1", "ECC"]);
    assert_devices("rankrun --exclude-unhealthy", &machine, &[0]);
}

#[test]
fn heat_other_processes_and_retired_pages_only_warn() {
    // In no process table of Linux: a process in another container.
    let foreign_pid = 4_194_305;
    let mut machine = Machine::gpus(4).hot(0).busy(1, foreign_pid);
    machine.card(2).retired = Some(2);
    let outcome = assert_devices("rankrun --check-devices", &machine, &[0, 1, 2, 3]);
    outcome.expect_stderr("91").expect_stderr("busy").expect_stderr("retired");
    for card in [0, 1, 2] {
        outcome.expect_stderr(&machine.pci(card));
    }
}

/// Without the option too no other card replaces it, and a user that gets all cards is warned.
#[test]
fn lost_gpu_is_not_replaced_by_another() {
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(4).lost(1, lost);
        assert_devices("rankrun --devices 2,0", &machine, &[2, 0]);
        assert_devices("rankrun --devices 3", &machine, &[3]);
        assert_refused("rankrun --devices 1", &machine, &["GPU 1", "does not answer"]);
        let outcome = launch_from_line("rankrun").on(&machine).worker(["alive"]).run();
        outcome.expect_exit_code(0).expect_stderr("does not answer").expect_stderr("--exclude-unhealthy");
    }
}

/// Without the option the launcher does not query the health of the cards.
#[test]
fn health_is_not_checked_without_option() {
    assert_devices("rankrun", &Machine::gpus(2).hot(0), &[0, 1]).expect_absent("91");
}
