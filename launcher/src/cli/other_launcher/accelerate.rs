//! `accelerate launch` as a launch of rankrun, by accelerate 1.15 (docs/dev/launchers-contract.md, section 1). The
//! command line and the file become settings; the settings become words and variables. Other commands of accelerate
//! become its own program.

mod args;
mod config_file;
mod document;
mod environment;
mod own_program;
mod python_value;
mod settings;
mod value;
mod variable_option;
mod words;

use std::ffi::OsString;

use super::{OtherCommand, TargetMachine, Translation};
use crate::cli::error::CliError;
use rankrun_core::facts::Facts;
use settings::AccelerateSettings;

pub(in crate::cli) use args::help;

/// `is_launch`: the words begin behind `launch`.
pub(super) fn translate(
    is_launch: bool,
    words: &[OsString],
    facts: &Facts,
) -> Result<OtherCommand, CliError> {
    translate_for(TargetMachine::This, is_launch, words, facts)
}

pub(super) fn translate_for(
    machine: TargetMachine,
    is_launch: bool,
    words: &[OsString],
    facts: &Facts,
) -> Result<OtherCommand, CliError> {
    let words = match words.split_first() {
        _ if is_launch => words,
        Some((first, rest)) if first == "launch" => rest,
        _ => return own_program::find(words, facts).map(OtherCommand::Run),
    };
    let Some(line) = args::parse(words)? else { return Ok(OtherCommand::Print(help(None))) };
    let path = config_file::find(&line.args, facts);
    let file = path.map(|path| config_file::read(&path, facts)).transpose()?;
    let mut remarks_on_file = file.as_ref().map_or_else(Vec::new, |file| file.remarks.clone());
    if machine == TargetMachine::Any && line.args.config_file.is_none() {
        remarks_on_file
            .extend(file.as_ref().map(|file| format!("the settings of `{}` are in the line", file.path)));
    }
    let settings = AccelerateSettings::merge(&line, file)?;
    let launch = words::translate(machine, &settings, &line.program, facts);
    Ok(OtherCommand::Launch(Translation {
        environment: environment::changes(&settings, facts),
        words: launch.words,
        remarks: [remarks_on_file, launch.remarks].concat(),
    }))
}

/// The script and its arguments, of a launch that is not refused.
pub(super) fn program(is_launch: bool, words: &[OsString]) -> Option<Vec<OsString>> {
    let words = if is_launch { words } else { words.strip_prefix(&[OsString::from("launch")])? };
    Some(args::parse(words).ok()??.program)
}

#[cfg(test)]
mod tests;
