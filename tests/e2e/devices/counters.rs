//! The error counters of the failed worker's device: read at the start and after the failure.
#![expect(clippy::disallowed_methods, reason = "the delay of a report is measured")]

use std::time::{Duration, Instant};

use harness::{Fault, Gate, Job, Launch, Lost, Machine, Name, Outcome, Scratch, is_rankrun};
use serde_json::{Value, json};

use super::launch_from_line;
use crate::control::Runtime;
use crate::report::read_report;
use crate::stacks::{Workers, stop};

/// The line of `-v` after which the machine may change.
const ARE_READ: &str = "error counters of the devices are read";

/// A job of two workers in which rank 1 fails once the gate opens.
struct Failing {
    job: Job,
    gate: Gate,
    description: String,
    report: String,
    _scratch: Scratch,
}

impl Failing {
    fn start(machine: &Machine) -> Self {
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let report = scratch.at("report.json");
        let launch: Launch = launch_from_line("rankrun -v --nproc-per-node 2").args(["--report", &report]);
        let launch = launch.worker([""; 0]).on(machine);
        let description = launch.machine_file();
        let job = launch.args(["alive", &gate.step(), "rank1:exit=4", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        Self { job, gate, description, report, _scratch: scratch }
    }

    /// The end of the job on this machine, and the device in its report.
    fn finish_on(self, machine: &Machine) -> (Outcome, Value) {
        let _ = machine.describe(&self.description);
        self.gate.open(2);
        let outcome = self.job.wait();
        outcome.expect_exit_code(4).expect_stderr("rank 1 failed first");
        let device = read_report(&self.report)["failure"]["device"].clone();
        (outcome, device)
    }
}

/// The row of the failure report, if there is one.
fn row(outcome: &Outcome) -> Option<String> {
    outcome
        .lines_with("  counters ")
        .first()
        .map(|row| row.trim_start()["counters".len()..].trim().to_owned())
}

/// A link of a reading.
fn link(number: u32, replay: u64, recovery: u64) -> Value {
    let errors = json!({"crc_flit": 0, "crc_data": 0, "replay": replay, "recovery": recovery});
    json!({"link": number, "errors": errors})
}

#[test]
fn changed_counters_are_one_row_and_both_readings_are_data() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::linked_pair();
    let failing = Failing::start(&machine);
    failing.job.wait_for_line(ARE_READ);
    let mut worn = machine.clone();
    let card = worn.card(1);
    (card.ecc, card.nvlink_errors, card.remapped) = (Some(2), vec![(0, [0, 0, 3, 1])], Some(1));
    let (outcome, device) = failing.finish_on(&worn);
    let expected = format!(
        "ECC uncorrected 0 → 2, remapped rows 0 → 1, 3 NVLink replay errors, 1 NVLink recovery error (serial 1650000000001, \
         {})",
        machine.uuid(1)
    );
    assert_eq!(row(&outcome), Some(expected), "{outcome}");
    assert_eq!(device["serial"], "1650000000001");
    let reading = |ecc, rows, first_link| {
        json!({
            "ecc_uncorrected": ecc, "ecc_corrected": 0, "remapped_rows": rows, "remap_pending": false,
            "remap_failed": false, "nvlinks": [first_link, link(1, 0, 0)], "power_watts": 120.0,
        })
    };
    assert_eq!(device["counters"]["before"], reading(0, 0, link(0, 0, 0)));
    assert_eq!(device["counters"]["after"], reading(2, 1, link(0, 3, 1)));
}

/// A driver that counts all links together has fewer errors afterwards.
#[test]
fn nvlink_that_goes_down_is_in_the_row_and_takes_no_errors_along() {
    if !is_rankrun() {
        return;
    }
    let mut machine = Machine::linked_pair();
    machine.card(1).nvlink_errors = vec![(0, [0, 0, 7, 0]), (1, [0, 0, 1, 0])];
    let of_all = machine.clone().with_fault("nvmlDeviceGetNvLinkErrorCounter", Fault::Error(3));
    for (machine, new_errors) in [(machine, ", 2 NVLink replay errors"), (of_all, "")] {
        let failing = Failing::start(&machine);
        failing.job.wait_for_line(ARE_READ);
        let mut worn = machine.clone();
        let card = worn.card(1);
        (card.nvlinks_down, card.nvlink_errors[1]) = (vec![0], (1, [0, 0, 3, 0]));
        let (outcome, device) = failing.finish_on(&worn);
        let row = row(&outcome).expect("a link is down");
        assert!(row.starts_with(&format!("NVLink 0 is down{new_errors} (serial ")), "{row}");
        let Value::Object(mut counters) = device["counters"].clone() else { panic!("{device}") };
        assert_eq!(counters["nvlinks_down"], json!([0]));
        let mut read = |when: &str| counters[when].as_object_mut().expect("it was read").clone();
        let (before, after) = (read("before"), read("after"));
        if new_errors.is_empty() {
            assert_eq!(before["nvlinks"], json!([{"link": 0}, {"link": 1}]));
            let replays = [&before, &after].map(|reading| reading["nvlink_total"]["replay"].clone());
            assert_eq!(replays, [8, 3]);
        } else {
            assert_eq!(before["nvlinks"], json!([link(0, 7, 0), link(1, 1, 0)]));
            assert_eq!(after["nvlinks"], json!([link(1, 3, 0)]));
        }
    }
}

#[test]
fn unchanged_counters_are_no_row() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(2);
    let failing = Failing::start(&machine);
    failing.job.wait_for_line(ARE_READ);
    let (outcome, device) = failing.finish_on(&machine);
    assert_eq!(row(&outcome), None, "{outcome}");
    assert_eq!(device["counters"]["before"], device["counters"]["after"]);
}

/// A library of another version has other functions: NVML's code for a missing one is 13, for a card without it 3.
#[test]
fn missing_functions_are_listed_once_with_verbose_alone() {
    if !is_rankrun() {
        return;
    }
    let missing = [
        ("nvmlDeviceGetTotalEccErrors", 3),
        ("nvmlDeviceGetRemappedRows", 13),
        ("nvmlDeviceGetSerial", 13),
        ("nvmlDeviceGetPowerUsage", 3),
        ("nvmlDeviceGetNvLinkErrorCounter", 3),
    ];
    let add = |machine: Machine, (name, code): &(&str, i32)| machine.with_fault(name, Fault::Error(*code));
    let machine = missing.iter().fold(Machine::linked_pair(), add);
    let failing = Failing::start(&machine);
    failing.job.wait_for_line(ARE_READ);
    let mut worn = machine.clone();
    worn.card(1).nvlink_errors = vec![(1, [5, 0, 0, 0])];
    let (outcome, device) = failing.finish_on(&worn);
    let listed = outcome.lines_with(ARE_READ);
    assert!(
        listed.len() == 1 && listed[0].contains("serial: ") && listed[0].contains("remapped rows: "),
        "{outcome}"
    );
    let row = row(&outcome).expect("links are counted together");
    assert!(row.starts_with("5 NVLink flow control CRC errors (GPU-"), "{row}");
    assert_eq!((device.get("serial"), device["counters"]["before"].get("ecc_uncorrected")), (None, None));
}

#[test]
fn lost_card_is_in_the_row() {
    if !is_rankrun() {
        return;
    }
    for lost in [Lost::Calls, Lost::Handle] {
        let machine = Machine::gpus(2);
        let failing = Failing::start(&machine);
        failing.job.wait_for_line(ARE_READ);
        let (outcome, device) = failing.finish_on(&machine.clone().lost(1, lost));
        let row = row(&outcome).expect("the card is lost");
        assert!(row.starts_with("does not answer: GPU is lost (serial "), "{row}");
        assert_eq!(device["counters"]["after"], json!({"lost": "GPU is lost"}));
    }
}

#[test]
fn card_that_is_gone_is_in_the_row() {
    if !is_rankrun() {
        return;
    }
    let failing = Failing::start(&Machine::gpus(2));
    failing.job.wait_for_line(ARE_READ);
    let (outcome, _) = failing.finish_on(&Machine::gpus(1));
    let row = row(&outcome).expect("the card is gone");
    assert!(row.starts_with("does not answer: Not Found (serial "), "{row}");
}

/// As where the driver unloads with the last process that uses it. NVML's codes: 9 for a driver that is not loaded, 10
/// for a timeout, 999 for an unknown error.
#[test]
fn driver_that_fails_the_second_time_is_not_a_row() {
    if !is_rankrun() {
        return;
    }
    for (function, code) in
        [("nvmlInit_v2", 9), ("nvmlDeviceGetHandleByUUID", 10), ("nvmlDeviceGetHandleByUUID", 999)]
    {
        let machine = Machine::gpus(2);
        let failing = Failing::start(&machine);
        failing.job.wait_for_line(ARE_READ);
        let (outcome, device) = failing.finish_on(&machine.with_fault(function, Fault::Error(code)));
        assert_eq!(row(&outcome), None, "{function} {code}: {outcome}");
        assert!(device["counters"]["after"].get("lost").is_none(), "{device}");
    }
}

#[test]
fn hanging_driver_delays_report_by_its_limit() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(2);
    let failing = Failing::start(&machine);
    failing.job.wait_for_line(ARE_READ);
    let begin = Instant::now();
    let hung = machine.clone().with_fault("nvmlDeviceGetTotalEccErrors", Fault::Hang);
    let (outcome, device) = failing.finish_on(&hung);
    // A good card's driver may be slow to load again: that is data, and no row.
    assert_eq!(row(&outcome), None, "{outcome}");
    assert_eq!(device["counters"]["problem"], "NVML: no answer within 1.4 s");
    outcome.expect_stderr("error counters of the device are not read after the failure: NVML: no answer");
    // The rest is the stop of the other worker, on a machine with much to do.
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}\n{outcome}", begin.elapsed());
}

/// The reading of the start is a child of the launcher, and no leftover of the workers.
#[test]
fn hanging_driver_at_start_costs_nothing() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::gpus(2).with_fault("nvmlDeviceGetTotalEccErrors", Fault::Hang);
    let (outcome, device) = Failing::start(&machine).finish_on(&machine);
    assert_eq!((row(&outcome), device.get("counters")), (None, None), "{outcome}");
    let succeeding = launch_from_line("rankrun --nproc-per-node 2").worker(["alive"]).on(&machine).run();
    succeeding.expect_exit_code(0).expect_absent("left running");
}

/// Parts of a card have no counters, and under the name torchrun no device is chosen.
#[test]
fn mig_devices_and_torchrun_have_no_counters() {
    if !is_rankrun() {
        return;
    }
    let machine = Machine::mig_cards(1);
    let (outcome, device) = Failing::start(&machine).finish_on(&machine);
    assert_eq!((row(&outcome), device.get("counters")), (None, None), "{outcome}");
    assert_eq!(outcome.lines_with(ARE_READ), [""; 0]);

    let machine = Machine::gpus(2);
    let launch = launch_from_line("torchrun --nproc-per-node gpu").worker(["alive", "exit=4"]).on(&machine);
    let outcome = launch.run();
    outcome.expect_exit_code(1).expect_absent("counters");
    let opened = outcome.opened().into_iter().filter(|(library, _)| library == "libnvidia-ml.so.1").count();
    assert!(opened <= 1, "the devices are counted, and not read: {:?}", outcome.opened());
}

#[test]
fn stacks_show_power_of_devices() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = launch_from_line("rankrun --nproc-per-node 2").env("XDG_RUNTIME_DIR", runtime.path());
    // The error counters are not asked for: they take time.
    let mut machine = Machine::gpus(2).with_fault("nvmlDeviceGetTotalEccErrors", Fault::Hang);
    machine.card(1).power = Some(390_400);
    let job = launch.worker(["alive", "forever"]).on(&machine).start();
    job.wait_for_lines("alive rank=", 2);
    job.wait_until("the job has a socket", || {
        runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
    });
    runtime.ask(&["stacks", &runtime.job_id()]).expect_exit_code(0).expect_stdout(", device 120-390 W");
    let one = runtime.ask(&["stacks", &runtime.job_id(), "--rank", "1"]);
    one.expect_exit_code(0).expect_stdout("  its device draws 390 W");
}

/// A worker without a Python stack has the power beside it, and waits for its limit.
#[test]
fn stacks_wait_for_power_only_without_python() {
    let Some(workers) = Workers::new() else { return };
    let limit = Duration::from_secs(1);
    let machine = Machine::gpus(2).with_fault("nvmlDeviceGetPowerUsage", Fault::Hang);
    let launch = || workers.launch(Name::Rankrun, 2).on(&machine);
    let time_of_stacks = || {
        let begin = Instant::now();
        workers.stacks();
        begin.elapsed()
    };
    let job = workers.start_launch(launch(), &["sleeps", "waits"]);
    // On a busy machine one answer may be slow.
    let times: Vec<Duration> = std::iter::repeat_with(time_of_stacks).take(10).collect();
    assert!(times.iter().any(|time| *time < limit), "{times:?}");
    stop(job);

    let job = launch().worker(["alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.wait_until("the job has a socket", || {
        workers.runtime.ask(&["status", &job.pid().to_string()]).status.code() == Some(0)
    });
    let time = time_of_stacks();
    assert!(time >= limit, "{time:?}");
    stop(job);
}
