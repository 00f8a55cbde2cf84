//! What a launch by `accelerate launch` is to be: the command line with the file behind it, and accelerate's own checks.
//! Pure.

use std::collections::BTreeMap;

use super::args::{AccelerateArgs, TypedLine};
use super::config_file::ConfigFile;
use super::python_value::PythonValue;
use super::variable_option::{Group, ROWS};
use crate::cli::error::{CliError, Origin, SettingError};

/// What the program trains with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrainingKind {
    /// One process, unless several are asked for.
    Plain,
    MultiCpu,
    MultiDevice,
    DeepSpeed,
    Fsdp,
    MegatronLm,
}

/// The merged settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AccelerateSettings {
    pub(super) args: AccelerateArgs,
    pub(super) kind: TrainingKind,
    /// `--cpu`, or `use_cpu` in the file.
    pub(super) uses_cpu: bool,
    variables: BTreeMap<&'static str, PythonValue>,
    pub(super) further_fp8: Vec<(String, String)>,
    /// Where settings of the file stand that no option has replaced.
    origins: BTreeMap<String, Origin>,
    /// The keys of the file that the program compares with DeepSpeed's own file.
    pub(super) deepspeed_fields: Vec<String>,
}

impl AccelerateSettings {
    /// The options of the command line, and the file for what they leave open.
    ///
    /// # Errors
    /// accelerate refuses the combination, or it starts something on other machines.
    pub(super) fn merge(line: &TypedLine, file: Option<ConfigFile>) -> Result<Self, CliError> {
        check_flags(&line.args)?;
        let typed_kind = kind_of_flags(&line.args);
        let has_file = file.is_some();
        let file = file.unwrap_or_default();
        let mut deepspeed_fields = file.deepspeed_keys;
        if line.args.mixed_precision.is_none() && file.args.mixed_precision.is_some() {
            deepspeed_fields.push("mixed_precision".to_owned());
        }
        let kind = typed_kind.or(file.kind).unwrap_or(TrainingKind::Plain);
        let typed = [
            ("gpu_ids", line.args.gpu_ids.is_some()),
            ("machine_rank", line.args.machine_rank.is_some()),
            ("main_process_port", line.args.main_process_port.is_some()),
        ];
        let mut origins = file.origins;
        origins.retain(|key, _| !typed.contains(&(key, true)));
        let mut args = merge_args(line.args.clone(), file.args);
        args.use_parallelism_config |= typed_kind.is_none() && file.has_parallelism;
        if has_file && kind != TrainingKind::Plain && args.num_processes.is_none() {
            return Err(CliError::refused(
                format!(
                    "`{}` has no `num_processes`, and the command line has no `--num_processes`",
                    file.path
                ),
                "give one of them: the number of processes on all machines",
            ));
        }
        let uses_cpu = args.cpu || file.use_cpu;
        let settings = Self {
            args,
            kind,
            uses_cpu,
            variables: file.variables.into_iter().chain(line.variables.clone()).collect(),
            further_fp8: file.further_fp8,
            origins,
            deepspeed_fields,
        };
        settings.check_machines()?;
        settings.check_devices()?;
        settings.check_fsdp()?;
        Ok(settings)
    }

    /// accelerate starts such a launch without torchrun: its processes get the variables of CPU runs, and one process
    /// alone is not distributed.
    pub(super) const fn is_simple(&self) -> bool {
        self.args.cpu || matches!(self.kind, TrainingKind::Plain | TrainingKind::MultiCpu)
    }

    /// Whether the processes compute on the CPUs.
    pub(super) fn is_cpu(&self) -> bool {
        self.is_simple() && (self.uses_cpu || self.kind == TrainingKind::MultiCpu)
    }

    pub(super) fn machines(&self) -> u32 {
        self.args.num_machines.unwrap_or(1)
    }

    /// Whether the processes train with this, and find its variables.
    pub(super) fn has_group(&self, group: Group) -> bool {
        match group {
            Group::Dynamo => self.is_simple() || self.kind != TrainingKind::DeepSpeed,
            Group::Fp8 => self.precision() == "fp8",
            Group::Fsdp => !self.is_simple() && self.kind == TrainingKind::Fsdp,
            Group::MegatronLm => !self.is_simple() && self.kind == TrainingKind::MegatronLm,
            Group::Parallelism => !self.is_simple() && self.args.use_parallelism_config,
            Group::DeepSpeed => !self.is_simple() && self.kind == TrainingKind::DeepSpeed,
        }
    }

    pub(super) fn precision(&self) -> &str {
        self.args.mixed_precision.as_deref().unwrap_or("no")
    }

    /// The value of an option that only sets variables.
    pub(super) fn value(&self, name: &str) -> PythonValue {
        let default = || ROWS.iter().find(|row| row.name == name).map(|row| row.default_value());
        self.variables.get(name).cloned().or_else(default).unwrap_or(PythonValue::None)
    }

    /// The option, or the key of the file.
    fn origin(&self, name: &'static str) -> Origin {
        self.origins.get(name).cloned().unwrap_or(Origin::Option(name))
    }

    fn check_machines(&self) -> Result<(), CliError> {
        if self.machines() == 1 {
            return Ok(());
        }
        let launcher = self.value("deepspeed_multinode_launcher").to_string();
        if self.has_group(Group::DeepSpeed) && launcher != "standard" {
            let launcher = if launcher == "None" { "pdsh".to_owned() } else { launcher };
            return Err(CliError::refused(
                format!(
                    "DeepSpeed on several machines would be started through `{launcher}`, which rankrun does not do"
                ),
                "give `--deepspeed_multinode_launcher standard`, and run the same command on each machine with its \
                 `--machine_rank`",
            ));
        }
        let is_static = self.args.rdzv_backend.as_deref().is_none_or(|backend| backend == "static");
        if self.args.machine_rank.is_none() && is_static {
            let message = format!("the job has {} machines, and this one has no rank", self.machines());
            return Err(CliError::refused(
                message,
                "give `--machine_rank N`: 0 on the machine of `--main_process_ip`, then 1, 2, …",
            ));
        }
        if self.args.machine_rank.is_some_and(|rank| rank >= self.machines()) {
            let rank = self.args.machine_rank.unwrap_or_default();
            let problem = format!("but the job has {} machines", self.machines());
            let hint = "ranks count from 0, below the number of machines";
            return Err(SettingError::of_value(self.origin("machine_rank"), rank, problem, hint).into());
        }
        if self.args.main_process_ip.is_none() {
            let message = format!("the job has {} machines, and no address of the first", self.machines());
            return Err(CliError::refused(
                message,
                "give `--main_process_ip HOST`, the same on each machine",
            ));
        }
        if self.args.main_process_port == Some(0) {
            let hint = "give the same free port on each machine, as in `--main_process_port 29500`";
            let problem = "which only one machine can choose by itself";
            return Err(SettingError::of_value(self.origin("main_process_port"), 0, problem, hint).into());
        }
        Ok(())
    }

    fn check_devices(&self) -> Result<(), CliError> {
        let Some(ids) = self.args.gpu_ids.as_deref().filter(|ids| *ids != "all") else { return Ok(()) };
        let ids: Vec<&str> = ids.split(',').map(str::trim).collect();
        if let Some(id) = ids.iter().find(|id| id.is_empty() || id.starts_with('-')) {
            let problem = format!("has `{id}`, which is not the number of a device");
            let hint = "give a list such as `0,1`, or `all`";
            return Err(SettingError::of_origin(self.origin("gpu_ids"), problem, hint).into());
        }
        if ids.len() == 1
            && self.kind == TrainingKind::MultiDevice
            && !self.is_simple()
            && self.machines() == 1
        {
            let problem = format!("has one device, {}, and several are to be trained on", ids[0]);
            let hint = match self.origin("gpu_ids") {
                Origin::File(_) => "name two devices or more, or write `distributed_type: NO`",
                _ => "name two devices or more, or leave `--multi_gpu` out",
            };
            return Err(SettingError::of_origin(self.origin("gpu_ids"), problem, hint).into());
        }
        Ok(())
    }

    fn check_fsdp(&self) -> Result<(), CliError> {
        let loads = self.value("fsdp_cpu_ram_efficient_loading").is_true();
        if self.has_group(Group::Fsdp) && loads && !self.value("fsdp_sync_module_states").is_true() {
            return Err(CliError::refused(
                "`fsdp_cpu_ram_efficient_loading` needs `fsdp_sync_module_states`, which is off",
                "set `fsdp_sync_module_states: true`, or `fsdp_cpu_ram_efficient_loading: false`",
            ));
        }
        Ok(())
    }
}

/// accelerate's checks of the command line alone.
fn check_flags(args: &AccelerateArgs) -> Result<(), CliError> {
    let flags = [
        (args.cpu, "--cpu"),
        (args.multi_gpu, "--multi_gpu"),
        (args.use_deepspeed, "--use_deepspeed"),
        (args.use_fsdp, "--use_fsdp"),
        (args.use_megatron_lm && !args.multi_gpu, "--use_megatron_lm"),
    ];
    let given: Vec<&str> = flags.iter().filter(|(is_given, _)| *is_given).map(|(_, name)| *name).collect();
    if let [one, other, ..] = given.as_slice() {
        return Err(CliError::refused(
            format!("`{one}` and `{other}` exclude each other"),
            "keep the one that the program trains with",
        ));
    }
    if args.multi_gpu && args.num_processes == Some(1) {
        return Err(CliError::refused(
            "`--multi_gpu` needs two processes, and `--num_processes` is 1",
            "leave `--multi_gpu` out, or give `--num_processes 2` or more",
        ));
    }
    if args.use_parallelism_config && !args.use_fsdp {
        let hint = "add `--use_fsdp --fsdp_version 2`, or leave `--use_parallelism_config` out";
        return Err(CliError::refused("`--use_parallelism_config` needs `--use_fsdp`", hint));
    }
    if args.module && args.no_python {
        let hint = "`-m` is for Python modules, `--no_python` for other programs: keep one";
        return Err(CliError::refused("`--module` and `--no_python` exclude each other", hint));
    }
    Ok(())
}

const fn kind_of_flags(args: &AccelerateArgs) -> Option<TrainingKind> {
    if args.use_deepspeed {
        Some(TrainingKind::DeepSpeed)
    } else if args.use_fsdp {
        Some(TrainingKind::Fsdp)
    } else if args.use_megatron_lm {
        Some(TrainingKind::MegatronLm)
    } else if args.multi_gpu {
        Some(TrainingKind::MultiDevice)
    } else {
        None
    }
}

fn merge_args(typed: AccelerateArgs, file: AccelerateArgs) -> AccelerateArgs {
    AccelerateArgs {
        mixed_precision: typed.mixed_precision.or(file.mixed_precision),
        num_processes: typed.num_processes.or(file.num_processes),
        num_machines: typed.num_machines.or(file.num_machines),
        machine_rank: typed.machine_rank.or(file.machine_rank),
        gpu_ids: typed.gpu_ids.or(file.gpu_ids),
        main_process_ip: typed.main_process_ip.or(file.main_process_ip),
        main_process_port: typed.main_process_port.or(file.main_process_port),
        rdzv_backend: typed.rdzv_backend.or(file.rdzv_backend),
        same_network: typed.same_network || file.same_network,
        enable_cpu_affinity: typed.enable_cpu_affinity || file.enable_cpu_affinity,
        debug: typed.debug || file.debug,
        ..typed
    }
}
