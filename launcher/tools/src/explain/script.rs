//! The script of one of the workers that would be launched. Pure.

use std::ffi::{OsStr, OsString};

use rankrun_contract::env::{ERROR_FILE, FLIGHT_RECORDER, HEARTBEAT, JOB, PROGRESS_PAGE};
use rankrun_contract::rank::LocalRank;

use super::{EnvironmentEntry, Explanation, LaunchValue, Pending, Store};
use rankrun_core::hang::recorder_dumps::DUMP_STEM;
use rankrun_core::hang::trainer_access::{SERVER_TOKEN, SERVER_URL};
use rankrun_core::shell::script::{Script, ScriptValue, binding_script};

/// The script for one of the workers that would be launched.
#[must_use]
pub(super) fn worker_script(explanation: &Explanation, local_rank: LocalRank) -> Script {
    let worker = explanation.ranks.get(local_rank.index());
    let entries = worker.map(|worker| worker.environment.as_slice()).unwrap_or_default();
    // No launcher reads what a worker started by this script shows of its progress.
    let is_pending = |entry: &EnvironmentEntry| matches!(entry.value, LaunchValue::AtLaunch(_));
    let has_server = entries.iter().any(|entry| entry.name.0 == SERVER_TOKEN && is_pending(entry));
    let server: &[&str] = if has_server { &[SERVER_URL, SERVER_TOKEN] } else { &[] };
    let unread =
        [HEARTBEAT, FLIGHT_RECORDER, PROGRESS_PAGE, DUMP_STEM].into_iter().chain(server.iter().copied());
    let unread: Vec<&OsStr> = unread.map(OsStr::new).collect();
    let entries = entries.iter().filter(|entry| !unread.contains(&&*entry.name.0));
    let environment = entries.map(|entry| (entry.name.0.clone(), script_value(&entry.name.0, &entry.value)));
    let mut command: Vec<OsString> = Vec::new();
    if let Some(worker) = worker {
        command.push(worker.program.0.clone());
        command.extend(worker.argv.iter().skip(1).map(|argument| argument.0.clone()));
    }
    Script {
        comment: comment(explanation, local_rank),
        folder: explanation.working_folder.0.clone(),
        environment: environment.collect(),
        wrapper: Vec::new(),
        command,
    }
}

fn script_value(name: &OsStr, value: &LaunchValue) -> ScriptValue {
    match value {
        LaunchValue::Known(text) => ScriptValue::Exactly(text.clone()),
        LaunchValue::AtLaunch(Pending::FreePort) => {
            ScriptValue::Demanded("the port of the store, which a launch chooses; `--master-port` fixes it")
        }
        LaunchValue::AtLaunch(Pending::RunId) => {
            ScriptValue::Demanded("the run id, which a launch makes up; `--rdzv-id` fixes it")
        }
        LaunchValue::AtLaunch(Pending::Interface) => {
            ScriptValue::Demanded("the interface by which this node reaches the others; `--iface` fixes it")
        }
        LaunchValue::AtLaunch(Pending::Agreed) => {
            ScriptValue::Demanded("the nodes of the job agree on it; a worker of a running job has it")
        }
        // Only the launcher reads the mark, and a worker can do without the file.
        LaunchValue::AtLaunch(Pending::Mark | Pending::Path(_)) if name == JOB => {
            ScriptValue::Asked("by-hand")
        }
        LaunchValue::AtLaunch(Pending::Mark | Pending::Path(_)) => ScriptValue::Asked(""),
    }
}

fn comment(explanation: &Explanation, local_rank: LocalRank) -> Vec<String> {
    let Store { host, port, opened_by, .. } = &explanation.store;
    let known = |value: &LaunchValue, variable: &str| match value {
        LaunchValue::Known(text) => text.to_string_lossy().into_owned(),
        LaunchValue::AtLaunch(_) => variable.to_owned(),
    };
    let place = format!("{}:{}", known(host, "$MASTER_ADDR"), known(port, "$MASTER_PORT"));
    let mut lines = vec![
        format!(
            "Runs local rank {local_rank} of {} as {} would start it.",
            explanation.ranks.len(),
            explanation.name
        ),
        format!("It expects the store at {place}, opened by {opened_by} of the job."),
        "Words that are given to it stand before the command: `sh THIS gdb --args`.".to_owned(),
        "It holds the whole environment of the launch: keep it private.".to_owned(),
        format!("{ERROR_FILE} and {JOB} may be set, to those of a running job."),
    ];
    let worker = explanation.ranks.get(local_rank.index());
    lines.extend(worker.and_then(|worker| worker.cpus.as_deref()).map(binding_script));
    lines
}
