//! The variables that `accelerate launch` gives the processes. Pure.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::python_value::PythonValue;
use super::settings::AccelerateSettings;
use super::variable_option::{Group, ROWS};
use crate::cli::other_launcher::HANDED_OVER;
use crate::cli::python_text::parse_int;
use rankrun_core::facts::Facts;

/// The variables that would count `--gpu_ids` within them; accelerate writes one of them anew.
const VISIBILITY: [&str; 8] = [
    "CUDA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "MLU_VISIBLE_DEVICES",
    "SDAA_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "NEURON_RT_VISIBLE_CORES",
];

/// torchrun's variables for options that accelerate has; it gives torchrun a value of its own for each.
const OF_TORCHRUN: [&str; 15] = [
    "PET_NPROC_PER_NODE",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_CONF",
    "PET_MAX_RESTARTS",
    "PET_MONITOR_INTERVAL",
    "PET_ROLE",
    "PET_TEE",
    "PET_LOG_DIR",
    "PET_MODULE",
    "PET_NO_PYTHON",
];

/// The changes of the launcher's environment, in the order in which accelerate makes them.
pub(super) fn changes(settings: &AccelerateSettings, facts: &Facts) -> Vec<(String, Option<OsString>)> {
    let mut changes = Changes { settings, list: Vec::new() };
    for name in OF_TORCHRUN.into_iter().chain([HANDED_OVER]).filter(|name| facts.variable(name).is_some()) {
        changes.remove(name);
    }
    changes.add_processes(facts);
    for group in [Group::Fp8, Group::Dynamo, Group::Fsdp, Group::MegatronLm, Group::DeepSpeed] {
        changes.add_group(group);
    }
    changes.add_threads(facts);
    if settings.args.enable_cpu_affinity {
        changes.set("ACCELERATE_CPU_AFFINITY", "1");
    }
    changes.add_group(Group::Parallelism);
    changes.list
}

struct Changes<'a> {
    settings: &'a AccelerateSettings,
    list: Vec<(String, Option<OsString>)>,
}

impl Changes<'_> {
    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.list.push((name.to_owned(), Some(value.into())));
    }

    fn remove(&mut self, name: &str) {
        self.list.push((name.to_owned(), None));
    }

    fn add_processes(&mut self, facts: &Facts) {
        let settings = self.settings;
        if settings.is_simple() {
            self.set("ACCELERATE_USE_CPU", PythonValue::Bool(settings.uses_cpu).to_string());
            if settings.uses_cpu {
                self.set("KMP_AFFINITY", "granularity=fine,compact,1,0");
                self.set("KMP_BLOCKTIME", "1");
            }
        }
        if settings.args.debug {
            self.set("ACCELERATE_DEBUG_MODE", "true");
        }
        if settings.devices().is_some() {
            for name in VISIBILITY.into_iter().filter(|name| facts.variable(name).is_some()) {
                self.remove(name);
            }
        }
        if settings.has_group(Group::DeepSpeed) {
            self.set("PYTHONPATH", with_folder(facts.variable("PYTHONPATH"), &facts.working_folder()));
        }
        self.set("ACCELERATE_MIXED_PRECISION", settings.precision());
    }

    fn add_group(&mut self, group: Group) {
        let settings = self.settings;
        if !settings.has_group(group) {
            return;
        }
        match group {
            Group::DeepSpeed => {
                let fields = settings.deepspeed_fields.join(",").to_lowercase();
                self.set("ACCELERATE_CONFIG_DS_FIELDS", fields);
                self.set("ACCELERATE_USE_DEEPSPEED", "true");
            }
            Group::Fsdp => self.set("ACCELERATE_USE_FSDP", "true"),
            Group::MegatronLm => self.set("ACCELERATE_USE_MEGATRON_LM", "true"),
            Group::Parallelism => self.set("ACCELERATE_USE_PARALLELISM_CONFIG", "true"),
            Group::Fp8 | Group::Dynamo => {}
        }
        let is_above_one = |name: &str| settings.value(name).as_int().is_some_and(|size| size > 1);
        for row in ROWS.iter().filter(|row| row.group == group) {
            for (name, value) in row.variables(&settings.value(row.name), is_above_one) {
                self.set(&name, value);
            }
        }
        if group == Group::Fp8 {
            for (name, value) in &settings.further_fp8 {
                self.set(name, value);
            }
        }
    }

    /// On CPUs the launch itself shares them among the processes.
    fn add_threads(&mut self, facts: &Facts) {
        let settings = self.settings;
        let name = "OMP_NUM_THREADS";
        let inherited = facts.filled_variable(name).and_then(OsStr::to_str).and_then(parse_int);
        match (settings.args.num_cpu_threads_per_process, inherited) {
            (Some(count), _) => self.set(name, count.to_string()),
            (None, Some(0)) if settings.is_cpu() => self.remove(name),
            (None, None)
                if facts.filled_variable(name).is_none()
                    && !settings.is_cpu()
                    && !settings.has_group(Group::DeepSpeed) =>
            {
                self.set(name, "1")
            }
            _ => {}
        }
    }
}

/// The search path with one folder more, at its end.
fn with_folder(path: Option<&OsStr>, folder: &Path) -> OsString {
    let mut extended = path.unwrap_or_default().to_owned();
    if !extended.is_empty() {
        extended.push(":");
    }
    extended.push(folder);
    extended
}
