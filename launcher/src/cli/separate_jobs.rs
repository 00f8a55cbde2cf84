//! A launcher that runs a job of its own where a scheduler has several nodes: under the name torchrun each task of a step
//! does, and any launcher on the one node of an allocation where no step started it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::option::{Kind, LaunchOption};
use super::scheduler::{MpiNames, Starter, Step, find_step, is_in_shell_of_pty, nodes_of_allocation};
use super::settings::{CommandLine, Settings, WrittenOption};
use rankrun_core::notice::{Notice, SeparateJobs};
use rankrun_core::shell::quote::{for_people, for_shell};
use rankrun_core::spec::CliFlavor;

/// What the line for one job says anew.
const OF_NODES: [&str; 8] = [
    "nnodes",
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "master-addr",
    "master-port",
    "standalone",
];

/// The line for a launcher that runs a separate job where one job of several tasks or nodes may be meant.
pub(super) fn separate_jobs_notice(
    settings: &Settings<'_>,
    argv0: &OsStr,
    typed: &CommandLine,
) -> Option<Notice> {
    if settings.find("nnodes").is_some() || settings.args.torchrun.standalone.is_some() {
        return None;
    }
    let line = SingleJobLine { settings, argv0, typed };
    let Some(step) = find_step(settings.facts) else {
        let nodes = nodes_of_allocation(settings.facts)?;
        let line = line.of_slurm(nodes, None);
        return Some(Notice::SeparateJobs(SeparateJobs::Allocation { nodes, line }));
    };
    let tasks = step.all?;
    let (variable, tasks, line) = (tasks.variable, tasks.count, line.of_step(&step));
    Some(Notice::SeparateJobs(SeparateJobs::Tasks { variable, tasks, line }))
}

/// The command line that makes one job of all tasks.
struct SingleJobLine<'a> {
    settings: &'a Settings<'a>,
    argv0: &'a OsStr,
    typed: &'a CommandLine,
}

impl SingleJobLine<'_> {
    fn of_step(&self, step: &Step) -> String {
        let here = step.here.map(|tasks| tasks.count);
        match step.starter {
            Starter::Slurm => self.of_slurm(step.nodes, here),
            Starter::Mpi(names) if step.nodes < 2 => {
                format!("{}`, without `{}", self.launcher(here, ""), names.command)
            }
            Starter::Mpi(_) => {
                let rendezvous =
                    format!("--nnodes {} --rdzv-backend c10d --rdzv-endpoint \"$(hostname)\"", step.nodes);
                format!("{} {}", step.one_per_node(), self.launcher(here, &rendezvous))
            }
        }
    }

    /// torchrun learns nothing from Slurm. The shell runs inside the task: only there `SLURM_STEP_NODELIST` is set.
    fn of_slurm(&self, nodes: u32, here: Option<u32>) -> String {
        // The step of the shell has all of the allocation.
        let overlap = if is_in_shell_of_pty(self.settings.facts) { " --overlap" } else { "" };
        let srun = format!("{}{overlap}", srun(nodes));
        // `srun` gives a task one CPU without `--cpus-per-task`.
        let cpus = self.settings.facts.variable("SLURM_CPUS_ON_NODE").and_then(OsStr::to_str);
        let cpus = cpus.and_then(|cpus| cpus.parse().ok()).filter(|cpus: &u32| *cpus > 1);
        let cpus = cpus.map_or_else(String::new, |cpus| format!(" -c{cpus}"));
        if nodes < 2 || self.settings.cli_flavor == CliFlavor::Rankrun {
            return format!("{srun}{cpus} {}", self.launcher(here, ""));
        }
        let rendezvous = format!(
            "--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint \
             \"$(scontrol show hostnames \"$SLURM_STEP_NODELIST\" | head -n 1)\" --rdzv-id \"$SLURM_JOB_ID\""
        );
        let inner = self.launcher(here, &rendezvous);
        let inner = String::from_utf8_lossy(&for_shell(OsStr::new(&inner))).into_owned();
        format!("{srun}{cpus} bash -c {inner}")
    }

    /// What was typed, with other words about the nodes. As many workers as there were tasks, where no number was said.
    fn launcher(&self, here: Option<u32>, rendezvous: &str) -> String {
        let mut words = vec![for_people(self.argv0)];
        words.extend(Some(rendezvous).filter(|rendezvous| !rendezvous.is_empty()).map(str::to_owned));
        if let Some(here) = here.filter(|_| self.settings.find("nproc-per-node").is_none()) {
            words.push(format!("--nproc-per-node {here}"));
        }
        let options =
            self.typed.options.iter().filter(|option| !OF_NODES.contains(&option.option.long_name()));
        words.extend(options.map(as_typed));
        words.push(for_people(&self.typed.entrypoint));
        words.extend(self.typed.arguments.iter().map(|word| for_people(word)));
        words.join(" ")
    }
}

impl Step {
    /// What starts one launcher on each node.
    pub(super) fn one_per_node(&self) -> String {
        match self.starter {
            Starter::Slurm => srun(self.nodes),
            Starter::Mpi(MpiNames { command, count: "", one_per_node, .. }) => {
                format!("{command} {one_per_node}")
            }
            Starter::Mpi(MpiNames { command, count, one_per_node, .. }) => {
                format!("{command} {count} {} {one_per_node}", self.nodes)
            }
        }
    }
}

/// Both numbers are given: `srun` reads a missing one from the variables of the batch script.
fn srun(nodes: u32) -> String {
    format!("srun -N{nodes} -n{nodes} --ntasks-per-node=1")
}

/// An option as it may stand on a command line.
fn as_typed(written: &WrittenOption) -> String {
    let (long, value) = (written.option.long_name(), &written.setting.value);
    if written.option.kind() == Kind::Flag {
        return format!("--{long}");
    }
    let separator = if value.is_empty() || value.as_bytes().starts_with(b"-") { "=" } else { " " };
    format!("--{long}{separator}{}", for_people(value))
}
