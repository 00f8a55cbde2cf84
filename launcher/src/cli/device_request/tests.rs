//! Workers and devices from the command line, on made-up machines.

use std::ffi::OsString;
use std::time::Duration;

use rankrun_contract::rank::LocalRank;

use crate::cli::{Command, Launch, interpret};
use rankrun_core::device::{
    Accelerator, Condition, DeviceType, Machine, Memory, Part, ProbeProblem, ProbeProblemKind, ProbeScope,
};
use rankrun_core::facts::fake::{FakeWorld, Question};
use rankrun_core::notice::Notice;
use rankrun_core::spec::Unhealthy;

use super::*;

mod advice;
mod binding;
mod cpus;
mod hints;
mod looks;
mod maps;
mod tasks;
mod virtual_devices;

/// NVIDIA's cards, two on each NUMA node.
fn gpus(count: u32) -> Machine {
    Machine {
        accelerators: (0..count).map(|index| gpu(DeviceType::Cuda, index)).collect(),
        ..Machine::default()
    }
}

fn gpu(kind: DeviceType, index: u32) -> Accelerator {
    Accelerator {
        kind,
        index,
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        uuid: Some(format!("GPU-{index:08x}-0000-0000-0000-000000000000")),
        pci: format!("0000:{:02x}:00.0", 0x1b + index).parse().ok(),
        numa_node: Some(index / 2),
        memory: Some(Memory { total: 80 << 30, free: Some(80 << 30) }),
        part: Part::Whole,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: None,
    }
}

/// The same, but the first GPU is another model. Only the driver knows which one it orders first.
fn unlike(count: u32) -> Machine {
    let mut machine = gpus(count);
    machine.accelerators[0].name = "NVIDIA A2".to_owned();
    machine
}

/// NVML in trouble.
fn trouble(what: ProbeProblemKind) -> Machine {
    let trouble = ProbeProblem { kind: DeviceType::Cuda, source: "NVML".to_owned(), what };
    Machine { troubles: vec![trouble], ..Machine::default() }
}

fn missing() -> Machine {
    trouble(ProbeProblemKind::Missing("libnvidia-ml.so.1: no such file".to_owned()))
}

fn world() -> FakeWorld {
    FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python3")
}

/// What a machine with a driver shows without a probe.
fn with_sign(machine: Machine) -> FakeWorld {
    world().device("/dev/nvidiactl").device("/dev/nvidia0").machine(machine)
}

fn try_launch(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Result<Launch, CliError> {
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let argv: Vec<OsString> = line.split_whitespace().chain(["x.py"]).map(OsString::from).collect();
    match interpret(&argv, &world.facts(&environment))? {
        Command::Launch(launch) => Ok(*launch),
        other => panic!("`{line}`: {other:?}"),
    }
}

fn launch(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Launch {
    try_launch(world, line, environment).unwrap_or_else(|error| panic!("`{line}`: {error}"))
}

/// Exit code, message and hint.
fn refusal(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> (u8, String, String) {
    match try_launch(world, line, environment) {
        Err(error) => (error.exit_code(), error.to_string(), error.hint().unwrap_or_default()),
        Ok(launch) => panic!("`{line}` was accepted: {:?}", launch.spec.devices.workers),
    }
}

fn said(launch: &Launch) -> Vec<String> {
    launch.notices.iter().map(ToString::to_string).collect()
}
