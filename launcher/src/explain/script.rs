//! One worker as a shell script, to be run by hand. Pure.
//!
//! `exec env -i NAME=value … PROGRAM args…`, after `cd`: the worker gets exactly the environment of a launch,
//! whatever the shell at hand has, and shells have no say in it (`export UID=0` is an error in some). Only the
//! variables that describe the terminal are taken from there. Arguments of the script stand before the command, as in
//! `sh r1.sh gdb --args`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rankrun_contract::env::{ERROR_FILE, JOB};
use rankrun_contract::rank::LocalRank;

use super::quote::for_shell;
use super::{Explanation, LaunchValue, Pending, Store};
use crate::device::affinity::format_ranges;

/// Variables that the terminal at hand defines.
const TERMINAL_VARIABLES: [&str; 2] = ["TERM", "COLORTERM"];

/// A worker's command as a shell script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Comments for the reader, a line each.
    pub comment: Vec<String>,
    /// Where it starts; empty where that has no name.
    pub folder: OsString,
    /// The environment of the worker, in order.
    pub environment: Vec<(OsString, ScriptValue)>,
    /// The words in front of the command, also in front of the script's arguments.
    pub wrapper: Vec<OsString>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// The value of a variable in the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptValue {
    /// The value is known before the launch.
    Exactly(OsString),
    /// That of the variable of the same name, which must be set; what it is.
    Demanded(&'static str),
    /// That of the variable of the same name, else this.
    Asked(&'static str),
}

/// The script for one of the workers that would be launched.
#[must_use]
pub fn worker_script(explanation: &Explanation, local_rank: LocalRank) -> Script {
    let worker = explanation.ranks.get(local_rank.index());
    let entries = worker.map(|worker| worker.environment.as_slice()).unwrap_or_default();
    let environment =
        entries.iter().map(|entry| (entry.name.0.clone(), script_value(&entry.name.0, &entry.value)));
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

/// A shell has no word of its own to bind a program.
#[must_use]
pub(crate) fn binding_script(cpus: &[u32]) -> String {
    let cpus = format_ranges(cpus);
    format!("A launch binds it to the CPUs {cpus}; by hand: `taskset --cpu-list {cpus} sh THIS`.")
}

impl Script {
    /// The script's bytes, for any POSIX shell.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        let mut text = b"#!/bin/sh\n".to_vec();
        for line in &self.comment {
            text.extend_from_slice(format!("# {}\n", line.replace(char::is_control, " ")).as_bytes());
        }
        text.push(b'\n');
        for (name, value) in &self.environment {
            if let ScriptValue::Demanded(what) = value {
                push_required_variable(&mut text, &name.to_string_lossy(), what);
            }
        }
        if !self.folder.is_empty() {
            text.extend_from_slice(b"cd ");
            text.extend_from_slice(&for_shell(&self.folder));
            text.extend_from_slice(b" || exit 1\n");
        }
        text.extend_from_slice(b"exec env -i");
        for (at, (name, value)) in self.environment.iter().enumerate() {
            // Of two equal names a program sees the first, and `env` would keep the last.
            let is_first = !self.environment[..at].iter().any(|(earlier, _)| earlier == name);
            if is_first && !TERMINAL_VARIABLES.iter().any(|own| name == own) {
                push_line(&mut text, &assignment(name, value));
            }
        }
        for name in TERMINAL_VARIABLES {
            push_line(&mut text, format!("${{{name}+\"{name}=${name}\"}}").as_bytes());
        }
        if !self.wrapper.is_empty() {
            push_line(&mut text, &render_command(&self.wrapper));
        }
        push_line(&mut text, b"\"$@\"");
        push_line(&mut text, &render_command(&self.command));
        text.push(b'\n');
        text
    }
}

/// Ends the script early where a variable is missing.
fn push_required_variable(text: &mut Vec<u8>, name: &str, what: &str) {
    let message = for_shell(OsStr::new(&format!("error: `{name}` is not set: {what}")));
    text.extend_from_slice(format!("if [ -z \"${{{name}-}}\" ]; then\n    echo ").as_bytes());
    text.extend_from_slice(&message);
    text.extend_from_slice(b" >&2\n    exit 2\nfi\n");
}

fn push_line(text: &mut Vec<u8>, line: &[u8]) {
    text.extend_from_slice(b" \\\n    ");
    text.extend_from_slice(line);
}

fn assignment(name: &OsStr, value: &ScriptValue) -> Vec<u8> {
    let shown = name.to_string_lossy();
    match value {
        ScriptValue::Exactly(value) => {
            for_shell(&OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat()))
        }
        ScriptValue::Demanded(_) => format!("\"{shown}=${shown}\"").into_bytes(),
        ScriptValue::Asked(default) => format!("\"{shown}=${{{shown}-{default}}}\"").into_bytes(),
    }
}

/// For `env` a program path with a `=` in it would be a variable.
fn render_command(words: &[OsString]) -> Vec<u8> {
    let is_variable = words.first().is_some_and(|program| program.as_bytes().contains(&b'='));
    let shell: &[&str] = if is_variable { &["/bin/sh", "-c", "exec \"$@\"", "sh"] } else { &[] };
    let all = shell.iter().map(OsStr::new).chain(words.iter().map(OsString::as_os_str));
    all.map(for_shell).collect::<Vec<_>>().join(&b' ')
}

#[cfg(test)]
mod tests;
