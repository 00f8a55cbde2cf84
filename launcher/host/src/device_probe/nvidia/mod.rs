//! NVIDIA's cards through NVML, the library beneath `nvidia-smi`, loaded at run time.
//!
//! | file | what it does |
//! |---|---|
//! | `identity` | one card or MIG device: its identity and whether it answers |
//! | `state` | its state: heat, power, clocks, errors |
//! | `processes` | the processes on it |
//! | `links` | how two cards are joined |
//! | `reading` | error counters of chosen cards |
//! | `power` | power draw of chosen cards |
//! | `raw` | calls that `nvml-wrapper` lacks or gets wrong |
//! | `error_text` | the library's errors in words (pure) |
//!
//! Where the library is not installed, or cannot be initialised, the CUDA driver is asked, which knows names, UUIDs
//! and addresses. Where that has none either and no device node is there, the machine has no card: a computer without
//! one often shares its image with those that have some.
//!
//! Every fact is optional: a function that this driver lacks, or that does not fit the card, leaves its field empty.
//! NVML knows nothing of `CUDA_VISIBLE_DEVICES`: it shows what the driver or the container shows.

mod error_text;
mod identity;
mod links;
mod power;
mod processes;
mod raw;
mod reading;
mod state;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

pub(crate) use power::read_power;
pub(crate) use reading::read_devices;

use crate::device_probe::cuda_driver;
use rankrun_core::device::{
    Accelerator, Condition, CudaDevice, CudaOrder, DeviceType, Machine, Part, PciAddress, ProbeProblem,
    ProbeProblemKind, ProbeScope,
};

/// Where the library is looked for: by name with the loader's own rules, then where Windows' Linux keeps it.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

/// More cards than any machine has; a higher count is not a valid answer.
const MOST_CARDS: u32 = 256;

/// More MIG devices than any card has (7 today).
const MOST_INSTANCES: u32 = 64;

/// Device nodes without NVIDIA's name: WSL's, and those of its embedded boards.
const OTHER_NODES: [&[u8]; 3] = [b"dxg", b"nvhost-ctrl-gpu", b"nvmap"];

/// The source that troubles name.
const SOURCE: &str = "NVML";

/// A card with a valid NVML handle.
struct Handle<'nvml> {
    device: Device<'nvml>,
    position: usize,
    pci: Option<PciAddress>,
}

/// The cards that NVML shows, in its order, which is that of `nvidia-smi`.
#[must_use]
pub(crate) fn probe_nvml(ask: ProbeScope) -> Machine {
    let mut machine = Machine::default();
    match open_nvml(&LIBRARIES) {
        Ok(nvml) => {
            add_cards(&mut machine, &nvml, ask);
            // The probe ends now and the kernel gives everything back. Shutting down would be one more call that may
            // hang on a lost card, and nvml-wrapper panics where the library lacks it.
            std::mem::forget(nvml);
        }
        Err(what) => add_from_driver(
            &mut machine,
            what,
            cuda_driver::cuda_devices_in_order(),
            has_nodes(Path::new("/dev")),
        ),
    }
    machine
}

/// Whether a driver of NVIDIA's made device nodes in this folder.
fn has_nodes(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(|entry| is_node(&entry.file_name())))
}

fn is_node(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"nvidia") || OTHER_NODES.contains(&name)
}

/// Adds the CUDA driver's answers after a failure of NVML. The parent of the probe has set the driver's order to that
/// of PCI, so its numbers are those of `nvidia-smi`.
fn add_from_driver(machine: &mut Machine, problem: ProbeProblemKind, driver: CudaOrder, has_nodes: bool) {
    let device = |(index, device): (u32, CudaDevice)| {
        // Of the devices in MIG mode the driver shows one instance.
        let is_instance = device.uuid.starts_with("MIG-");
        Accelerator {
            kind: DeviceType::Cuda,
            index: if is_instance { 0 } else { index },
            name: device.name,
            uuid: Some(device.uuid),
            pci: device.pci,
            numa_node: None,
            memory: None,
            part: if is_instance { Part::MigInstance { gpu: index } } else { Part::Whole },
            integrated: false,
            module_id: None,
            condition: Condition::Answers,
            state: None,
        }
    };
    let is_missing = matches!(problem, ProbeProblemKind::Missing(_));
    // Nothing of NVIDIA's is here but files of an image.
    let is_nowhere = |problem| match problem {
        ProbeProblemKind::Failed(message) if !has_nodes => ProbeProblemKind::Missing(message),
        problem => problem,
    };
    let nvml = |problem| probe_problem(SOURCE.to_owned(), problem);
    let message = match driver {
        Ok(devices) if devices.is_empty() => "it has no device".to_owned(),
        Ok(devices) => {
            machine.accelerators = (0..).zip(devices).map(device).collect();
            let problems = if is_missing { &mut machine.troubles } else { &mut machine.made_good };
            return problems.push(nvml(problem));
        }
        Err(message) => message,
    };
    machine.troubles.push(nvml(is_nowhere(problem)));
    // With NVML in trouble that is the one to tell; without NVML this is most often a machine without a card.
    machine.troubles.push(probe_problem("the CUDA driver".to_owned(), ProbeProblemKind::Missing(message)));
}

/// NVML, initialised.
///
/// # Errors
/// The library and its trouble, in words.
fn open_library() -> Result<Nvml, String> {
    open_nvml(&LIBRARIES).map_err(|what| probe_problem(SOURCE.to_owned(), what).to_string())
}

/// The first library of `paths` that exists, initialised.
fn open_nvml(paths: &[&str]) -> Result<Nvml, ProbeProblemKind> {
    let mut missing = None;
    for path in paths {
        match Nvml::builder().lib_path(OsStr::new(path)).init() {
            Ok(nvml) => return Ok(nvml),
            Err(error) => match error_text::library_problem(&error, path) {
                what @ ProbeProblemKind::Missing(_) => _ = missing.get_or_insert(what),
                what => return Err(what),
            },
        }
    }
    Err(missing.unwrap_or_else(|| ProbeProblemKind::Missing("no library was looked for".to_owned())))
}

fn add_cards(machine: &mut Machine, nvml: &Nvml, ask: ProbeScope) {
    let count = match nvml.device_count() {
        Ok(count) if count <= MOST_CARDS => count,
        Ok(count) => {
            let problem = ProbeProblemKind::Failed(format!("it counts `{count}` GPUs"));
            return machine.troubles.push(probe_problem(SOURCE.to_owned(), problem));
        }
        Err(error) => {
            let problem = ProbeProblemKind::Failed(error_text::error_message(&error));
            return machine.troubles.push(probe_problem(SOURCE.to_owned(), problem));
        }
    };
    let mut handles = Vec::new();
    let mut index = 0;
    for number in 0..count {
        match nvml.device_by_index(number) {
            // NVML also counts the cards that a cgroup keeps from us. No tool and no program here sees them, and they
            // take no index.
            Err(error @ NvmlError::NoPermission) => {
                let problem = ProbeProblemKind::Missing(error_text::error_message(&error));
                machine.troubles.push(probe_problem(format!("{SOURCE}, GPU {number}"), problem));
                continue;
            }
            Err(error) => {
                machine.accelerators.push(identity::lost_card(index, error_text::error_message(&error)))
            }
            Ok(device) => {
                let position = machine.accelerators.len();
                let card = identity::probe_card(&device, index, ask);
                let pci = card.pci;
                let instances = instances(&device, &card, ask);
                machine.accelerators.push(card);
                machine.accelerators.extend(instances);
                handles.push(Handle { device, position, pci });
            }
        }
        index += 1;
    }
    if ask.links {
        machine.links = links::links_between_cards(&handles);
    }
}

/// The MIG devices of a card in MIG mode.
fn instances(device: &Device<'_>, card: &Accelerator, ask: ProbeScope) -> Vec<Accelerator> {
    if card.part != Part::MigParent {
        return Vec::new();
    }
    let most = device.mig_device_count().unwrap_or(0).min(MOST_INSTANCES);
    (0..most)
        .filter_map(|number| {
            let instance = device.mig_device_by_index(number).ok()?;
            Some(identity::probe_mig_instance(&instance, number, card, ask))
        })
        .collect()
}

fn probe_problem(source: String, problem: ProbeProblemKind) -> ProbeProblem {
    ProbeProblem { kind: DeviceType::Cuda, source, what: problem }
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::*;

    #[test]
    fn missing_library_reports_loader_error() {
        let Err(ProbeProblemKind::Missing(message)) =
            open_nvml(&["libnvidia-ml-missing.so.1", "/nowhere/lib.so.1"])
        else {
            panic!("it must be missing");
        };
        assert!(message.starts_with("libnvidia-ml-missing.so.1:"), "{message}");
    }

    #[test]
    fn cuda_driver_devices_replace_failed_nvml() {
        let device = |uuid: &str, bus: &str| CudaDevice {
            uuid: uuid.to_owned(),
            pci: format!("0000:{bus}:00.0").parse().ok(),
            name: "A".to_owned(),
        };
        let missing = || ProbeProblemKind::Missing("no such file".to_owned());
        let failed = || ProbeProblemKind::Failed("Driver Not Loaded".to_owned());
        let cards = || Ok(vec![device("GPU-1", "1b"), device("MIG-2", "43")]);
        let probe = |nvml, driver, has_nodes| {
            let mut machine = Machine::default();
            add_from_driver(&mut machine, nvml, driver, has_nodes);
            machine
        };
        for (nvml, made_good) in [(missing(), 0), (failed(), 1)] {
            let machine = probe(nvml, cards(), true);
            let found: Vec<_> = machine.accelerators.iter().map(|found| (found.index, found.part)).collect();
            assert_eq!(found, [(0, Part::Whole), (0, Part::MigInstance { gpu: 1 })]);
            assert_eq!((machine.made_good.len(), machine.troubles.len()), (made_good, 1 - made_good));
        }
        for driver in [Err("no device".to_owned()), Ok(vec![])] {
            let kinds = |nvml, has_nodes| {
                let problems = probe(nvml, driver.clone(), has_nodes).troubles;
                problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
            };
            assert!(matches!(
                &kinds(missing(), true)[..],
                [ProbeProblemKind::Missing(_), ProbeProblemKind::Missing(_)]
            ));
            assert_eq!(kinds(failed(), true)[0], failed());
            assert_eq!(kinds(failed(), false)[0], ProbeProblemKind::Missing("Driver Not Loaded".to_owned()));
        }
    }

    #[test]
    fn nvidia_device_nodes_are_detected_by_name() {
        for (name, expected) in [("nvidia0", true), ("nvidiactl", true), ("dxg", true), ("null", false)] {
            assert_eq!(is_node(OsStr::new(name)), expected, "{name}");
        }
        assert!(!has_nodes(Path::new("/nowhere")));
    }

    #[test]
    fn file_that_is_not_a_library_fails_to_open() {
        let Err(ProbeProblemKind::Failed(message)) = open_nvml(&["/proc/self/status"]) else {
            panic!("it must fail");
        };
        assert!(message.contains("/proc/self/status"), "{message}");
    }
}
