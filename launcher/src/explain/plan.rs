//! Computes the plan of a launch, worker by worker. Pure.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rankrun_contract::env::{ERROR_FILE, JOB, MASTER_PORT, NESTING, RANK, RUN_ID};
use rankrun_contract::rank::LocalRank;

use super::nodes::is_agreed_on;
use super::settings::Sources;
use super::{Entry, Pending, Stream, Text, Value, Variable, Worker, pattern, split};
use crate::cli::RunIdLife;
use crate::error::LaunchError;
use crate::facts::{Facts, short_hostname};
use crate::logs::route::{Route, Speaker, routes};
use crate::logs::tree::Attempt;
use crate::placement::Placement;
use crate::process::command::{self, Command, Life};
use crate::spec::{LaunchSpec, StdinPolicy};

pub(super) struct Plan<'a> {
    pub(super) spec: &'a LaunchSpec,
    pub(super) facts: &'a Facts,
    pub(super) sources: &'a Sources<'a>,
    pub(super) life: Life,
    pub(super) attempt: Option<Attempt>,
    pub(super) run_id: RunIdLife,
}

impl Plan<'_> {
    pub(super) fn worker(&self, seat: &Placement) -> Result<Worker, LaunchError> {
        let Placement { rank, local_rank, device, .. } = seat;
        let (rank, local_rank) = (*rank, *local_rank);
        let error_file = self.attempt.as_ref().map(|attempt| attempt.error_file(local_rank));
        let inherited = self.facts.environment();
        let command = command::build(self.spec, &self.life, seat, inherited, error_file.as_deref())
            .map_err(|source| LaunchError::Command { rank, source })?;
        let variables = command::variables(self.spec, &self.life, seat, error_file.as_deref());
        let (persona, role) = (self.spec.persona, &*self.spec.role);
        let (local_world, hostname): (_, fn() -> String) = (self.spec.workers, short_hostname);
        let speaker = Speaker { persona, role, rank, local_rank, local_world, hostname };
        let folder = self.attempt.as_ref().map(|attempt| attempt.worker(local_rank));
        let routes = routes(&self.spec.logs, speaker, folder.as_deref());
        let by_hand = self.spec.left_out == Some(local_rank);
        Ok(Worker {
            rank: (!is_agreed_on(self.spec, RANK)).then_some(rank.0),
            local_rank: local_rank.0,
            device: device.to_string(),
            card: device.card.as_ref().map(Into::into),
            cpus: command.cpus.clone(),
            program: text(command.path.as_bytes()),
            argv: command.argv.iter().map(|argument| text(argument.as_bytes())).collect(),
            stdin: match self.spec.stdin {
                _ if by_hand => "terminal",
                StdinPolicy::Only(reader) if reader != local_rank => "nothing",
                StdinPolicy::None => "nothing",
                StdinPolicy::All | StdinPolicy::Only(_) => "launcher",
            },
            stdout: if by_hand { Stream::Terminal } else { self.stream(&routes.stdout) },
            stderr: if by_hand { Stream::Terminal } else { self.stream(&routes.stderr) },
            error_file: error_file.as_deref().map(pattern),
            variables: variables.iter().map(|(name, value)| self.variable(name, value)).collect(),
            unset: self.unset(local_rank),
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

    fn unset(&self, local_rank: LocalRank) -> Vec<&'static str> {
        let seat = self.spec.seats.get(local_rank.index());
        let variables = seat.into_iter().flat_map(|seat| &seat.variables);
        let taken = variables.filter(|(name, value)| value.is_none() && self.facts.variable(name).is_some());
        taken.map(|(name, _)| *name).collect()
    }

    /// The last `ours` variables are the launcher's; the rest is inherited unchanged.
    fn environment(&self, command: &Command, ours: usize) -> Vec<Entry> {
        let inherited = command.envp.len().saturating_sub(ours);
        let entry = |(at, entry): (usize, &CString)| {
            let (name, value) = split(entry.as_bytes());
            let value = match name.to_str() {
                Some(name) if at >= inherited => self.value(name, value),
                _ => Value::Known(value.to_owned()),
            };
            Entry { name: Text(name.to_owned()), value }
        };
        command.envp.iter().enumerate().map(entry).collect()
    }

    /// The value of a variable that the launcher sets.
    pub(super) fn value(&self, name: &str, value: &OsStr) -> Value {
        match name {
            name if is_agreed_on(self.spec, name) => Value::AtLaunch(Pending::Agreed),
            name if self.spec.defaults.connection_interfaces.contains(&name) => {
                Value::AtLaunch(Pending::Interface)
            }
            MASTER_PORT if value == "0" => Value::AtLaunch(Pending::FreePort),
            RUN_ID if self.run_id == RunIdLife::Fresh => Value::AtLaunch(Pending::RunId),
            // Both name the processes of one launch.
            JOB | NESTING => Value::AtLaunch(Pending::Mark),
            ERROR_FILE if !value.is_empty() => pattern(Path::new(value)),
            _ => Value::Known(value.to_owned()),
        }
    }

    fn stream(&self, route: &Route) -> Stream {
        match route {
            Route::Inherit => Stream::Launcher,
            Route::File(path) => Stream::File { file: self.file(path) },
            Route::Capture { file, prefix } => {
                Stream::Console { prefix: prefix.clone(), file: file.as_deref().map(|path| self.file(path)) }
            }
        }
    }

    fn file(&self, path: &Path) -> Value {
        match &self.attempt {
            Some(attempt) if path.starts_with(attempt.folder()) => pattern(path),
            _ => Value::Known(path.as_os_str().to_owned()),
        }
    }
}

fn text(bytes: &[u8]) -> Text {
    Text(OsStr::from_bytes(bytes).to_owned())
}
