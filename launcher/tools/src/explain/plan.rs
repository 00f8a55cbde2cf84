//! Computes the plan of a launch, worker by worker. Pure.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rankrun_contract::env::{
    ERROR_FILE, FLIGHT_RECORDER, HEARTBEAT, JOB, MASTER_PORT, NESTING, PROGRESS_PAGE, RANK, RUN_ID, STACKS,
};

use super::nodes::is_agreed_on;
use super::settings::SettingOrigins;
use super::{
    DeviceSummary, EnvironmentEntry, LaunchValue, Pending, StreamTarget, Text, Variable, WorkerPlan,
    path_pattern,
};
use rankrun_core::device::WorkerDevice;
use rankrun_core::facts::Facts;
use rankrun_core::hang::recorder_dumps::{DUMP_STEM, recorder_variables};
use rankrun_core::hang::trainer_access::SERVER_TOKEN;
use rankrun_core::log_route::{Route, StreamOwner, routes};
use rankrun_core::placement::Placement;
use rankrun_core::spec::{LaunchSpec, LogDir, StdinPolicy};
use rankrun_core::worker_command::{
    GenerationContext, TIMER_FILE, WorkerCommand, WorkerFiles, WorkerHook, hidden_variables, split_entry,
    worker_command, worker_environment,
};
use rankrun_host::error::LaunchError;
use rankrun_host::hang::channels::file_patterns;
use rankrun_host::hang::file_timer::{TimerPlace, timer_place};
use rankrun_host::hooks::{hook_folder, python_path};
use rankrun_host::logs::tree::Attempt;
use rankrun_host::system::short_hostname;

pub(super) struct LaunchPlan<'a> {
    pub(super) spec: &'a LaunchSpec,
    pub(super) facts: &'a Facts,
    pub(super) sources: &'a SettingOrigins<'a>,
    pub(super) context: GenerationContext,
    pub(super) attempt: Option<Attempt>,
}

impl LaunchPlan<'_> {
    pub(super) fn worker(&self, placement: &Placement) -> Result<WorkerPlan, LaunchError> {
        let Placement { rank, local_rank, device, .. } = placement;
        let (rank, local_rank) = (*rank, *local_rank);
        let error_file = self.attempt.as_ref().map(|attempt| attempt.error_file(local_rank));
        let inherited = self.facts.environment();
        let is_external = self.spec.external_worker == Some(local_rank);
        let folder = hook_folder(self.spec, inherited).filter(|_| !is_external);
        let hook = folder
            .map(|folder| WorkerHook { python_path: python_path(&folder, inherited), stacks: String::new() });
        let is_temporary = matches!(self.spec.logs.dir, LogDir::Temporary(_) | LogDir::ErrorFiles(_));
        let attempt = self.attempt.as_ref().filter(|_| is_temporary).map(Attempt::folder);
        let base = attempt.and_then(|attempt| attempt.parent()?.parent());
        let progress = file_patterns(inherited, placement, self.spec, base);
        let timer_file = timer_place(inherited).as_ref().map(TimerPlace::pattern);
        let folder = self.attempt.as_ref().map(Attempt::folder);
        let recorder = recorder_variables(self.spec, device.kind, folder, inherited);
        let files = WorkerFiles {
            error_file: error_file.as_deref(),
            hook: hook.as_ref(),
            progress: progress.as_ref(),
            timer_file: timer_file.as_deref(),
            recorder: &recorder,
        };
        let command = worker_command(self.spec, &self.context, placement, inherited, files)
            .map_err(|source| LaunchError::Command { rank, source })?;
        let variables = worker_environment(self.spec, &self.context, placement, files);
        let (cli_flavor, role) = (self.spec.cli_flavor, &*self.spec.role);
        let (local_world, hostname): (_, fn() -> String) = (self.spec.workers, short_hostname);
        let owner = StreamOwner { cli_flavor, role, rank, local_rank, local_world, hostname };
        let folder = self.attempt.as_ref().map(|attempt| attempt.worker(local_rank));
        let names = self.spec.device_request.setting_names();
        let routes = routes(&self.spec.logs, owner, folder.as_deref());
        Ok(WorkerPlan {
            rank: (!is_agreed_on(self.spec, RANK)).then_some(rank.0),
            local_rank: local_rank.0,
            device: device.to_string(),
            card: device.identity.as_ref().map(|card| DeviceSummary::new(card, &names)),
            cpus: command.cpus.clone(),
            program: text(command.path.as_bytes()),
            argv: command.argv.iter().map(|argument| text(argument.as_bytes())).collect(),
            stdin: match self.spec.stdin {
                _ if is_external => "terminal",
                StdinPolicy::Only(reader) if reader != local_rank => "nothing",
                StdinPolicy::None => "nothing",
                StdinPolicy::All | StdinPolicy::Only(_) => "launcher",
            },
            stdout: if is_external { StreamTarget::Terminal } else { self.stream(&routes.stdout) },
            stderr: if is_external { StreamTarget::Terminal } else { self.stream(&routes.stderr) },
            error_file: error_file.as_deref().map(path_pattern),
            variables: variables.iter().map(|(name, value)| self.variable(name, value)).collect(),
            unset: self.removed_variables(device),
            environment: self.environment(&command, variables.len()),
        })
    }

    fn variable(&self, name: &'static str, value: &OsStr) -> Variable {
        let was = self.facts.variable(name).filter(|was| *was != value);
        Variable {
            name,
            value: self.value(name, value),
            source: self.sources.of_variable(name),
            was: was.map(|was| Text(was.to_owned())),
        }
    }

    fn removed_variables(&self, device: &WorkerDevice) -> Vec<&'static str> {
        let variables = device.variables.iter();
        let taken = variables.filter(|(name, value)| value.is_none() && self.facts.variable(name).is_some());
        let hidden = hidden_variables(self.spec).iter().copied();
        let hidden = hidden.filter(|name| self.facts.variable(name).is_some());
        taken.map(|(name, _)| *name).chain(hidden).collect()
    }

    /// The last `ours` variables are the launcher's; the rest is inherited unchanged.
    fn environment(&self, command: &WorkerCommand, ours: usize) -> Vec<EnvironmentEntry> {
        let inherited = command.envp.len().saturating_sub(ours);
        let entry = |(at, entry): (usize, &CString)| {
            let (name, value) = split_entry(entry.as_bytes());
            let value = match name.to_str() {
                Some(name) if at >= inherited => self.value(name, value),
                _ => LaunchValue::Known(value.to_owned()),
            };
            EnvironmentEntry { name: Text(name.to_owned()), value }
        };
        command.envp.iter().enumerate().map(entry).collect()
    }

    /// The value of a variable that the launcher sets.
    pub(super) fn value(&self, name: &str, value: &OsStr) -> LaunchValue {
        match name {
            name if is_agreed_on(self.spec, name) => LaunchValue::AtLaunch(Pending::Agreed),
            name if self.spec.defaults.connection_interfaces.contains(&name) => {
                LaunchValue::AtLaunch(Pending::Interface)
            }
            MASTER_PORT if value == "0" => LaunchValue::AtLaunch(Pending::FreePort),
            RUN_ID if self.sources.is_run_id_fresh() => LaunchValue::AtLaunch(Pending::RunId),
            // They name processes and descriptors of one launch.
            JOB | NESTING | STACKS => LaunchValue::AtLaunch(Pending::Mark),
            HEARTBEAT | FLIGHT_RECORDER | PROGRESS_PAGE | TIMER_FILE | SERVER_TOKEN | DUMP_STEM => {
                path_pattern(Path::new(value))
            }
            ERROR_FILE if !value.is_empty() => path_pattern(Path::new(value)),
            _ => LaunchValue::Known(value.to_owned()),
        }
    }

    fn stream(&self, route: &Route) -> StreamTarget {
        match route {
            Route::Inherit => StreamTarget::Launcher,
            Route::File(path) => StreamTarget::File { file: self.file(path) },
            Route::Capture { file, prefix } => StreamTarget::Console {
                prefix: prefix.clone(),
                file: file.as_deref().map(|path| self.file(path)),
            },
        }
    }

    fn file(&self, path: &Path) -> LaunchValue {
        match &self.attempt {
            Some(attempt) if path.starts_with(attempt.folder()) => path_pattern(path),
            _ => LaunchValue::Known(path.as_os_str().to_owned()),
        }
    }
}

fn text(bytes: &[u8]) -> Text {
    Text(OsStr::from_bytes(bytes).to_owned())
}
