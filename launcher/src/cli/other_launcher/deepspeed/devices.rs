//! The workers of this machine (2.4 of docs/dev/launchers-contract.md): their number, and the words and variables that give them their devices.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::args::{option, worker_limit};
use super::hosts::{DeepspeedHost, DeviceFilter, nothing_left};
use crate::cli::error::{CliError, Origin, SettingError};
use crate::cli::other_launcher::TargetMachine;
use rankrun_core::device::DeviceType;
use rankrun_core::device_assignment::{DeviceError, NodeFacts, assign_devices};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::device_request::{DeviceRequest, WorkerCount};
use rankrun_core::spec::setting::Setting;

const ACCELERATOR: &str = "DS_ACCELERATOR";
const CUDA_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// The variables that DeepSpeed's accelerators read and write. Two vendors of its list are not known to rankrun.
const VISIBLE_DEVICES: [&str; 4] =
    [CUDA_DEVICES, "ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"];
const NUMA_NODES: &str = "/sys/devices/system/node";
const MAX_NUMA_NODES: usize = 4096;
const MAX_CPU_LIST: usize = 4096;

/// The workers of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LocalWorkers {
    /// Nothing where only the target machine knows.
    pub(super) count: Option<u32>,
    pub(super) words: Vec<OsString>,
    pub(super) environment: Vec<(String, Option<OsString>)>,
    pub(super) remarks: Vec<String>,
}

/// Where the devices come from.
pub(super) struct DeviceSource<'a> {
    pub(super) machine: TargetMachine,
    pub(super) host: &'a DeepspeedHost,
    pub(super) facts: &'a Facts,
    /// The environment of the workers.
    pub(super) environment: Vec<(OsString, OsString)>,
}

impl DeviceSource<'_> {
    /// # Errors
    /// A device does not exist, a variable cannot be read, or nothing is left.
    pub(super) fn find_workers(mut self) -> Result<LocalWorkers, CliError> {
        let mut workers = LocalWorkers::default();
        let accelerator = self.accelerator()?;
        if accelerator == Some(DeviceType::Cpu) {
            self.on_cpus(&mut workers)?;
            return Ok(workers);
        }
        if self.is_filtered() {
            self.drop_inherited_list(&mut workers);
        }
        let request = request_for(accelerator);
        if self.machine == TargetMachine::Any {
            self.on_devices(request, &mut workers)?;
        } else if self.assign(&request)?.0 == DeviceType::Cpu {
            self.on_cpus(&mut workers)?;
            workers.remarks.push("no accelerator is visible, so the workers run on the CPUs".to_owned());
        } else {
            self.on_devices(request, &mut workers)?;
        }
        Ok(workers)
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    /// The type that `DS_ACCELERATOR` forces.
    fn accelerator(&self) -> Result<Option<DeviceType>, CliError> {
        let Some(word) = self.variable(ACCELERATOR).filter(|word| !word.is_empty()) else { return Ok(None) };
        let word = word.to_string_lossy();
        word.parse().map(Some).map_err(|_| {
            let origin = Origin::Variable(ACCELERATOR.to_owned());
            let hint = "rankrun knows cuda, xpu, hpu, npu, mps and cpu";
            SettingError::of_value(origin, word, "a device that rankrun does not know", hint).into()
        })
    }

    /// Whether ids count all devices of this machine.
    fn is_filtered(&self) -> bool {
        self.host.slots.is_some() || self.host.filter != DeviceFilter::All
    }

    fn drop_inherited_list(&mut self, workers: &mut LocalWorkers) {
        for name in VISIBLE_DEVICES {
            if let Some(value) = self.variable(name).filter(|value| !value.is_empty()) {
                let value = value.to_string_lossy().into_owned();
                workers.remarks.push(format!(
                    "`{name}={value}` is not used: the ids of the command line and of a host file count all devices of \
                     this machine"
                ));
                workers.environment.push((name.to_owned(), None));
                self.environment.retain(|(key, _)| key != name);
            }
        }
    }

    /// The type of the devices and the number of the workers that the launch will have.
    fn assign(&self, request: &DeviceRequest) -> Result<(DeviceType, u32), CliError> {
        let discover = |scope| self.facts.discover(scope, request.probe_timeout);
        let cuda_order = || self.facts.world().cuda_order(request.probe_timeout);
        let node = self.facts.node_facts(&discover, &cuda_order);
        let node = NodeFacts { environment: &self.environment, ..node };
        let (choice, _) = assign_devices(request, CliFlavor::Rankrun, &node)?;
        Ok((choice.kind, choice.worker_count().get()))
    }

    fn on_devices(&self, mut request: DeviceRequest, workers: &mut LocalWorkers) -> Result<(), CliError> {
        if let Some(kind) = &request.device_type {
            workers.words.extend(["--device-type".into(), kind.value.to_string().into()]);
        }
        if self.machine == TargetMachine::Any {
            workers.count = self.typed_count();
            if let Some(count) = self.first_devices() {
                workers.words.extend(["--nproc-per-node".into(), count.to_string().into()]);
                return Ok(());
            }
        }
        if let Some((name, list)) = self.device_list()? {
            let origin = option(name);
            let selector = list.parse().map_err(|error| DeviceError::Selector {
                origin: origin.clone(),
                value: list.clone(),
                error,
            })?;
            request.worker_count = WorkerCount::Default;
            request.devices = Some(Setting { origin, value: (list.clone(), selector) });
            workers.words.extend(device_words(&list));
        }
        if self.machine == TargetMachine::Any {
            return Ok(());
        }
        workers.count = Some(self.assign(&request)?.1);
        if let DeviceFilter::First(count) = self.host.filter {
            workers.words.extend(["--nproc-per-node".into(), count.to_string().into()]);
        }
        Ok(())
    }

    /// The devices 0 to this one, which rankrun takes by itself.
    fn first_devices(&self) -> Option<u32> {
        match (&self.host.filter, self.host.slots) {
            (DeviceFilter::First(count), _) => Some(*count),
            (DeviceFilter::All, slots) => slots.filter(|slots| *slots > 0),
            _ => None,
        }
    }

    /// The number of workers as far as the command line and a host file have it.
    fn typed_count(&self) -> Option<u32> {
        let count = match (&self.host.filter, self.host.slots) {
            (DeviceFilter::Include(ids), _) => ids.len(),
            (DeviceFilter::Exclude(ids), Some(slots)) => {
                (0..slots).filter(|id| !ids.contains(&id.to_string())).count()
            }
            (DeviceFilter::All, None) => {
                let list = self.inherited_list()?.to_string_lossy();
                let is_hidden = |id: &str| id.trim().starts_with('-');
                (!list.split(',').any(is_hidden)).then(|| list.split(',').count())?
            }
            _ => return self.first_devices(),
        };
        u32::try_from(count).ok()
    }

    /// The value of `--devices`, and the option that it comes from; an inherited list passes as it is.
    fn device_list(&self) -> Result<Option<(&'static str, String)>, CliError> {
        let range =
            |count: u32| if count == 1 { "0".to_owned() } else { format!("0-{}", count.saturating_sub(1)) };
        Ok(Some(match (&self.host.filter, self.host.slots) {
            (DeviceFilter::All, None) if self.inherited_list().is_some() => return Ok(None),
            (DeviceFilter::All, None) => ("include", "all".to_owned()),
            (DeviceFilter::All, Some(0)) => return Err(nothing_left()),
            (DeviceFilter::All, Some(slots)) => ("hostfile", range(slots)),
            (DeviceFilter::First(count), _) => ("num_gpus", range(*count)),
            (DeviceFilter::Include(ids), _) => ("include", ids.join(",")),
            (DeviceFilter::Exclude(ids), None) => {
                ("exclude", ids.iter().map(|id| format!("-{id}")).collect::<Vec<_>>().join(","))
            }
            (DeviceFilter::Exclude(ids), Some(slots)) => {
                let left: Vec<String> =
                    (0..slots).map(|id| id.to_string()).filter(|id| !ids.contains(id)).collect();
                if left.is_empty() {
                    return Err(nothing_left());
                }
                ("exclude", left.join(","))
            }
        }))
    }

    fn inherited_list(&self) -> Option<&OsStr> {
        VISIBLE_DEVICES.iter().find_map(|name| self.variable(name).filter(|value| !value.is_empty()))
    }

    /// Each id is a share of the CPUs.
    fn on_cpus(&mut self, workers: &mut LocalWorkers) -> Result<(), CliError> {
        // -1 hides every GPU, and is not a list of shares.
        let inherited = self.variable(CUDA_DEVICES).filter(|value| !value.is_empty() && *value != "-1");
        let inherited = inherited.map(|value| value.to_string_lossy().into_owned());
        let count = self.host.slots.map_or_else(|| self.cpu_share_count(), Ok)?;
        let all = || (0..count).collect::<Vec<u32>>();
        let ids = match (&self.host.filter, inherited) {
            (DeviceFilter::All, Some(list)) if self.host.slots.is_none() => {
                let ids: Vec<&str> = list.split(',').map(str::trim).collect();
                cpu_shares(&ids, count, &Origin::Variable(CUDA_DEVICES.to_owned()))?
            }
            (filter, _) => match filter {
                DeviceFilter::All => all(),
                // More than there are is permitted, as in the real tool.
                DeviceFilter::First(first) => (0..*first).collect(),
                DeviceFilter::Include(ids) => cpu_shares(ids, count, &option("include"))?,
                DeviceFilter::Exclude(ids) => {
                    let excluded = cpu_shares(ids, count, &option("exclude"))?;
                    all().into_iter().filter(|id| !excluded.contains(id)).collect()
                }
            },
        };
        if self.is_filtered() {
            self.drop_inherited_list(workers);
        }
        let worker_count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if worker_count == 0 {
            return Err(nothing_left());
        }
        workers.count = Some(worker_count);
        let words = ["--device-type", "cpu", "--nproc-per-node", &worker_count.to_string()];
        workers.words.extend(words.map(OsString::from));
        let list: Vec<String> = ids.iter().map(ToString::to_string).collect();
        workers.environment.retain(|(name, _)| name != CUDA_DEVICES);
        workers.environment.push((CUDA_DEVICES.to_owned(), Some(list.join(",").into())));
        Ok(())
    }

    /// `LOCAL_SIZE`, else the number of NUMA nodes with CPUs.
    fn cpu_share_count(&self) -> Result<u32, CliError> {
        if let Some(text) = self.variable("LOCAL_SIZE") {
            let text = text.to_string_lossy();
            let count: i128 = text.trim().parse().map_err(|_| {
                let origin = Origin::Variable("LOCAL_SIZE".to_owned());
                SettingError::of_value(
                    origin,
                    &text,
                    "which is not a whole number",
                    "correct it, or unset it",
                )
            })?;
            if count > 0 {
                return worker_limit(count, Origin::Variable("LOCAL_SIZE".to_owned()));
            }
        }
        match (self.machine, &self.host.filter) {
            (TargetMachine::This, _) => Ok(numa_node_count(self.facts)),
            // These say by themselves how many there are.
            (TargetMachine::Any, DeviceFilter::First(_) | DeviceFilter::Include(_)) => Ok(u32::MAX),
            (TargetMachine::Any, _) if self.inherited_list().is_some() => Ok(u32::MAX),
            (TargetMachine::Any, _) => Err(CliError::refused(
                "on CPUs deepspeed starts a worker for each NUMA node, and their number is not in the line",
                "add `--num_accelerators N`",
            )),
        }
    }
}

fn request_for(accelerator: Option<DeviceType>) -> DeviceRequest {
    let origin = Origin::Variable(ACCELERATOR.to_owned());
    match accelerator {
        // PyTorch calls AMD's devices `cuda`, too.
        Some(kind @ (DeviceType::Cuda | DeviceType::Rocm)) => DeviceRequest {
            worker_count: WorkerCount::Devices {
                origin,
                word: kind.to_string(),
                kinds: vec![DeviceType::Cuda, DeviceType::Rocm],
            },
            ..DeviceRequest::default()
        },
        Some(kind) => {
            DeviceRequest { device_type: Some(Setting { origin, value: kind }), ..DeviceRequest::default() }
        }
        None => DeviceRequest::default(),
    }
}

/// `--devices 3,1`, `--devices=-0`
fn device_words(list: &str) -> Vec<OsString> {
    match list.starts_with('-') {
        true => vec![format!("--devices={list}").into()],
        false => vec!["--devices".into(), list.into()],
    }
}

fn cpu_shares<T: AsRef<str>>(ids: &[T], count: u32, origin: &Origin) -> Result<Vec<u32>, CliError> {
    let share = |id: &T| {
        let share = id.as_ref().parse().ok().filter(|share| *share < count);
        share.ok_or_else(|| {
            let problem = format!("and the CPUs have no share `{}`", id.as_ref());
            let known = if count == 1 {
                "the only id is 0".to_owned()
            } else {
                format!("ids are 0 to {}", count - 1)
            };
            let hint = format!("{known}; `LOCAL_SIZE=N` makes N shares");
            let list: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
            SettingError::of_value(origin.clone(), list.join(","), problem, hint).into()
        })
    };
    ids.iter().map(share).collect()
}

/// The nodes without CPUs are memory alone. A node with the CPUs of the one before is a part of it.
fn numa_node_count(facts: &Facts) -> u32 {
    let names = facts.world().list_names(Path::new(NUMA_NODES), MAX_NUMA_NODES);
    let mut nodes: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    nodes.sort_unstable();
    let cpus = |node: &u32| {
        let path = format!("{NUMA_NODES}/node{node}/cpulist");
        facts.world().read_first_bytes(Path::new(&path), MAX_CPU_LIST).trim_ascii().to_vec()
    };
    let mut lists: Vec<Vec<u8>> = nodes.iter().map(cpus).filter(|list| !list.is_empty()).collect();
    lists.dedup();
    u32::try_from(lists.len()).unwrap_or(u32::MAX).max(1)
}
