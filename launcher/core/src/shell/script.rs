//! A worker's command as a shell script, to be run by hand. Pure.
//!
//! `exec env -i NAME=value … PROGRAM args…`, after `cd`: the worker gets exactly the environment of a launch,
//! whatever the shell at hand has, and shells have no say in it (`export UID=0` is an error in some). Only the
//! variables that describe the terminal are taken from there. Arguments of the script stand before the command, as in
//! `sh r1.sh gdb --args`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::quote::for_shell;
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

/// A shell has no word of its own to bind a program.
#[must_use]
pub fn binding_script(cpus: &[u32]) -> String {
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
