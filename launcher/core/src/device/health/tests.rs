//! Findings about cards made by hand.

use super::*;
use crate::device::DeviceType;

const GIB: u64 = 1 << 30;
const OWN: u32 = 1000;

fn card(state: DeviceState) -> Accelerator {
    Accelerator {
        kind: DeviceType::Cuda,
        index: 0,
        name: "NVIDIA A100".to_owned(),
        uuid: None,
        pci: None,
        numa_node: None,
        memory: Some(Memory { total: 80 * GIB, free: Some(79 * GIB + GIB / 2) }),
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: Some(Box::new(state)),
    }
}

fn process(pid: u32, uid: Option<u32>) -> DeviceProcess {
    DeviceProcess { pid, name: Some("python".to_owned()), uid, memory: Some(12 * GIB + GIB / 2) }
}

fn state_with_temperature(temperature: u32, throttle: Vec<Throttle>) -> DeviceState {
    DeviceState {
        temperature: Some(temperature),
        slowdown_temperature: Some(92),
        throttle,
        ..DeviceState::default()
    }
}

fn state_with_power(power: Option<u64>, limit: Option<u64>, throttle: Vec<Throttle>) -> DeviceState {
    DeviceState {
        power,
        power_limit: limit,
        default_power_limit: Some(400_000),
        throttle,
        ..DeviceState::default()
    }
}

fn finding_texts(accelerator: &Accelerator) -> Vec<String> {
    findings(accelerator, OWN)
        .iter()
        .map(|finding| format!("{}: {finding}", finding.severity.as_str()))
        .collect()
}

#[test]
fn healthy_card_has_no_findings() {
    let mut idle =
        card(DeviceState { throttle: vec![Throttle::Idle], ..state_with_temperature(88, Vec::new()) });
    assert_eq!(finding_texts(&idle), [""; 0]);
    idle.state = None;
    assert_eq!(finding_texts(&idle), [""; 0]);
}

#[test]
fn each_device_state_gives_its_finding() {
    use Throttle::{HardwareSlowdown, HardwareThermal, PowerBrake, PowerCap, SoftwareThermal};
    for (state, text) in [
        (state_with_temperature(89, vec![]), "warning: 89 °C, slows itself down at 92 °C"),
        (state_with_temperature(91, vec![]), "warning: 91 °C, slows itself down at 92 °C"),
        (
            state_with_temperature(85, vec![SoftwareThermal]),
            "warning: 85 °C, slowed down by heat; the hardware steps in at 92 °C",
        ),
        (
            state_with_temperature(95, vec![HardwareSlowdown, HardwareThermal]),
            "warning: 95 °C, slowed down by heat; the hardware steps in at 92 °C",
        ),
        (
            DeviceState { throttle: vec![HardwareThermal], ..DeviceState::default() },
            "warning: slowed down by heat",
        ),
        (
            DeviceState { throttle: vec![HardwareSlowdown, PowerBrake], ..DeviceState::default() },
            "warning: slowed down by the power brake: the supply of the machine is at its limit",
        ),
        (
            DeviceState { throttle: vec![HardwareSlowdown], ..DeviceState::default() },
            "warning: slowed down by the hardware: heat, power brake or a bad supply",
        ),
        (
            state_with_power(Some(398_700), Some(400_000), vec![PowerCap]),
            "warning: slowed down by its power limit: 399 of 400 W",
        ),
        (
            state_with_power(None, Some(400_000), vec![PowerCap]),
            "warning: slowed down by its power limit of 400 W",
        ),
        (state_with_power(None, None, vec![PowerCap]), "warning: slowed down by its power limit"),
        (
            state_with_power(Some(60_000), Some(300_000), vec![]),
            "warning: power limit set to 300 W; it came with 400 W",
        ),
        (
            DeviceState { uncorrected_ecc: Some(1), ..DeviceState::default() },
            "fatal: 1 uncorrected ECC error since the driver was loaded",
        ),
        (
            DeviceState { uncorrected_ecc: Some(7), ..DeviceState::default() },
            "fatal: 7 uncorrected ECC errors since the driver was loaded",
        ),
        (
            DeviceState { retired: Some(1), ..DeviceState::default() },
            "warning: 1 page or row of its memory is retired",
        ),
        (
            DeviceState { retired: Some(2), retirement_pending: true, ..DeviceState::default() },
            "warning: 2 pages or rows of its memory are retired; bad memory waits for a reset to be retired",
        ),
    ] {
        assert_eq!(finding_texts(&card(state.clone())), [text], "{state:?}");
    }
}

#[test]
fn normal_state_has_no_findings() {
    for state in [
        state_with_temperature(
            88,
            vec![Throttle::ApplicationClocks, Throttle::SyncBoost, Throttle::DisplayClocks],
        ),
        DeviceState { slowdown_temperature: Some(0), temperature: Some(40), ..DeviceState::default() },
        state_with_power(Some(120_000), Some(400_000), vec![Throttle::PowerCap]),
        state_with_power(Some(450_000), Some(450_000), vec![]),
        DeviceState { uncorrected_ecc: Some(0), retired: Some(0), ..DeviceState::default() },
    ] {
        assert_eq!(finding_texts(&card(state.clone())), [""; 0], "{state:?}");
    }
}

#[test]
fn lost_card_has_single_fatal_finding() {
    let mut lost = card(state_with_temperature(95, vec![]));
    lost.condition = Condition::Lost { why: "GPU is lost".to_owned() };
    assert_eq!(finding_texts(&lost), ["fatal: does not answer: GPU is lost"]);
}

#[test]
fn own_and_other_users_have_separate_findings() {
    let state = DeviceState {
        processes: vec![
            process(1, Some(OWN)),
            process(2, Some(0)),
            DeviceProcess { pid: 3, name: None, uid: None, memory: None },
        ],
        ..DeviceState::default()
    };
    assert_eq!(
        finding_texts(&card(state)),
        [
            "warning: busy with another user's process: pid 2 `python`, 12.5 GiB",
            "warning: busy with an unknown user's process: pid 3",
            "note: busy with your own process: pid 1 `python`, 12.5 GiB",
        ]
    );
    let state = DeviceState {
        processes: (1..=5).map(|pid| process(pid, Some(7))).collect(),
        ..DeviceState::default()
    };
    let text = finding_texts(&card(state)).remove(0);
    assert!(text.starts_with("warning: busy with another user's processes: pid 1 `python`"), "{text}");
    assert!(text.ends_with("pid 3 `python`, 12.5 GiB; and 2 more"), "{text}");
}

#[test]
fn memory_used_by_hidden_processes_gives_warning() {
    let used = |free, part, processes| {
        let state = DeviceState { processes, ..DeviceState::default() };
        let memory = Some(Memory { total: 80 * GIB, free: Some(free) });
        finding_texts(&Accelerator { memory, part, ..card(state) })
    };
    let text = "warning: 20.0 GiB of its memory in use by processes that are not to be seen from here";
    assert_eq!(used(60 * GIB, Part::Whole, vec![]), [text]);
    assert_eq!(used(60 * GIB, Part::MigParent, vec![]), [""; 0]);
    assert_eq!(used(77 * GIB, Part::Whole, vec![]), [""; 0]);
    let note = "note: busy with your own process: pid 4 `python`, 12.5 GiB";
    assert_eq!(used(60 * GIB, Part::Whole, vec![process(4, Some(OWN))]), [note]);
    // More free than there is: a lie, and no reason to panic.
    assert_eq!(used(90 * GIB, Part::Whole, vec![]), [""; 0]);
}

#[test]
fn memory_in_use_exceeds_driver_overhead() {
    const MIB: u64 = 1 << 20;
    for (total, used, is_reported) in [
        (8 * GIB, 500 * MIB, false),
        (8 * GIB, 501 * MIB, true),
        (80 * GIB, 4 * GIB, false),
        (80 * GIB, 4 * GIB + 1, true),
    ] {
        let memory = Memory { total, free: Some(total - used) };
        assert_eq!(memory_in_use(memory), is_reported.then_some(used), "{used} of {total}");
    }
    assert_eq!(memory_in_use(Memory { total: GIB, free: None }), None);
}

#[test]
fn card_below_half_of_largest_memory_gives_warning() {
    let of = |total: u64, part| Accelerator {
        memory: Some(Memory { total, free: None }),
        part,
        ..card(DeviceState::default())
    };
    let cards = [
        of(80 * GIB, Part::Whole),
        of(24 * GIB, Part::Whole),
        of(40 * GIB, Part::Whole),
        of(5 * GIB, Part::MigInstance { gpu: 0 }),
        Accelerator { memory: None, ..card(DeviceState::default()) },
    ];
    let all: Vec<&Accelerator> = cards.iter().collect();
    let text = "24.0 GiB of memory, less than half of the largest's 80.0 GiB".to_owned();
    assert_eq!(small_memory_findings(&all), [(1, HealthFinding { severity: Severity::Warning, text })]);
    assert_eq!(small_memory_findings(&all[4..]), []);
}

#[test]
fn sizes_are_rounded_down() {
    for (bytes, text) in [
        (0, "0 MiB"),
        (GIB - 1, "1023 MiB"),
        (GIB, "1.0 GiB"),
        (85_520_809_984, "79.6 GiB"),
        (u64::MAX, "17179869183.9 GiB"),
    ] {
        assert_eq!(format_bytes(bytes), text);
    }
    assert_eq!(watts(u64::MAX), u64::MAX / 1000);
    assert_eq!(watts(398_500), 399);
}
