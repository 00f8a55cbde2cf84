//! The launch in rankrun's words. Pure, but for the question whether a port is in use.

use std::ffi::OsString;

use super::settings::AccelerateSettings;
use super::variable_option::Group;
use crate::cli::other_launcher::TargetMachine;
use crate::cli::subcommand;
use rankrun_core::facts::Facts;

const DEFAULT_PORT: u16 = 29500;

/// The words behind `rankrun`, and what has no equivalent.
#[derive(Debug, Default)]
pub(super) struct LaunchLine {
    pub(super) words: Vec<OsString>,
    pub(super) remarks: Vec<String>,
}

/// The options of the launch, then the program and its arguments.
pub(super) fn translate(
    machine: TargetMachine,
    settings: &AccelerateSettings,
    program: &[OsString],
    facts: &Facts,
) -> LaunchLine {
    let mut words = LaunchLine::default();
    words.add_devices(settings);
    words.add_size(settings);
    if settings.machines() > 1 {
        words.add_machines(settings)
    } else {
        words.add_one_machine(settings, |port| {
            machine == TargetMachine::This && facts.world().is_port_in_use(port)
        })
    }
    words.add_watch(settings);
    words.add_program(settings, program);
    words.remark_on_deepspeed(settings);
    words
}

impl AccelerateSettings {
    /// The devices that were chosen, without blanks.
    pub(super) fn devices(&self) -> Option<String> {
        let ids = self.args.gpu_ids.as_deref().filter(|ids| *ids != "all" && !self.is_cpu())?;
        Some(ids.split(',').map(str::trim).collect::<Vec<_>>().join(","))
    }
}

impl LaunchLine {
    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.words.extend([OsString::from(name), value.into()]);
    }

    fn add_devices(&mut self, settings: &AccelerateSettings) {
        if settings.is_cpu() {
            self.option("--device-type", "cpu");
        }
        match settings.devices() {
            Some(ids) => self.option("--devices", ids),
            None if settings.is_cpu() && settings.args.gpu_ids.as_deref().is_some_and(|ids| ids != "all") => {
                self.remarks.push("`--gpu_ids` has no effect: the processes compute on the CPUs".to_owned());
            }
            None => {}
        }
    }

    /// One process that accelerate starts without torchrun is not distributed.
    fn add_size(&mut self, settings: &AccelerateSettings) {
        let count =
            settings.args.num_processes.or((settings.is_cpu() && settings.machines() == 1).then_some(1));
        match count {
            Some(count) if settings.machines() > 1 => self.option("--total-workers", count.to_string()),
            Some(count) => self.option("--nproc-per-node", count.to_string()),
            None => {}
        }
        if settings.is_simple() && settings.machines() == 1 && count.is_none_or(|count| count == 1) {
            self.option("--distributed", "auto");
        }
    }

    fn add_machines(&mut self, settings: &AccelerateSettings) {
        let args = &settings.args;
        let host = args.main_process_ip.clone().unwrap_or_default();
        let port = args.main_process_port.unwrap_or(DEFAULT_PORT);
        self.option("--nnodes", settings.machines().to_string());
        if let Some(rank) = args.machine_rank {
            self.option("--node-rank", rank.to_string());
        }
        match args.rdzv_backend.as_deref() {
            None | Some("static") => {
                self.option("--master-addr", host);
                self.option("--master-port", port.to_string());
            }
            Some(backend) => {
                self.option("--rdzv-backend", backend);
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                self.option("--rdzv-endpoint", format!("{host}:{port}"));
            }
        }
    }

    /// A free port is taken unless another one was asked for and is free.
    fn add_one_machine(&mut self, settings: &AccelerateSettings, is_in_use: impl Fn(u16) -> bool) {
        let args = &settings.args;
        if args.main_process_ip.is_some() {
            self.remarks.push("`--main_process_ip` has no effect: the job has one machine".to_owned());
        }
        if let Some(backend) = args.rdzv_backend.as_deref().filter(|backend| *backend != "static") {
            self.option("--rdzv-backend", backend);
        } else if let Some(port) = args.main_process_port.filter(|port| *port != 0) {
            if is_in_use(port) {
                self.remarks
                    .push(format!("port {port} of `--main_process_port` is in use; a free one is taken"));
            } else {
                self.option("--master-port", port.to_string());
            }
        }
    }

    fn add_watch(&mut self, settings: &AccelerateSettings) {
        let args = &settings.args;
        let texts = [
            ("--rdzv-conf", args.rdzv_conf.as_deref().filter(|conf| !conf.is_empty()).map(OsString::from)),
            (
                "--max-restarts",
                args.max_restarts.filter(|count| *count > 0).map(|count| count.to_string().into()),
            ),
            ("--monitor-interval", args.monitor_interval.as_deref().map(OsString::from)),
            ("--role", args.role.as_deref().map(OsString::from)),
            ("--tee", args.tee.as_deref().filter(|streams| *streams != "0").map(OsString::from)),
            ("--log-dir", args.log_dir.clone()),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                self.option(name, value);
            }
        }
    }

    fn add_program(&mut self, settings: &AccelerateSettings, program: &[OsString]) {
        if settings.args.module {
            self.words.push("--module".into());
        }
        if settings.args.no_python {
            self.words.push("--no-python".into());
        }
        // A separator keeps the program's own `--`, and a name that rankrun would read as its own.
        let is_taken = |word: &OsString| {
            let word = word.to_string_lossy();
            word.starts_with('-') || (self.words.is_empty() && subcommand::is_name(&word))
        };
        if program.first().is_some_and(is_taken) || program.get(1).is_some_and(|word| word == "--") {
            self.words.push("--".into());
        }
        self.words.extend_from_slice(program);
    }

    fn remark_on_deepspeed(&mut self, settings: &AccelerateSettings) {
        let remote = ["deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"];
        for name in remote.into_iter().filter(|name| settings.value(name).is_true()) {
            let reason = "accelerate reads it only where it starts other machines";
            let is_remark = settings.has_group(Group::DeepSpeed);
            self.remarks.extend(is_remark.then(|| format!("`--{name}` has no effect: {reason}")));
        }
    }
}
