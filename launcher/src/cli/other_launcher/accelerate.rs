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

use std::ffi::{OsStr, OsString};

use super::{OLD_PYTHONPATH, OLD_THREADS, OtherCommand, TargetMachine, Translation, WORKING_FOLDER};
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
    let mut environment = environment::changes(&settings, facts);
    if machine == TargetMachine::Any {
        leave_to_shell(&mut environment, &settings, facts);
    }
    Ok(OtherCommand::Launch(Translation {
        environment,
        words: launch.words,
        remarks: [remarks_on_file, launch.remarks].concat(),
        ..Translation::default()
    }))
}

/// What the launch would take from its own machine becomes words that the shell of another one replaces.
fn leave_to_shell(
    environment: &mut [(String, Option<OsString>)],
    settings: &AccelerateSettings,
    facts: &Facts,
) {
    let has_threads = settings.args.num_cpu_threads_per_process.is_some();
    for (name, value) in environment {
        if name == "PYTHONPATH" {
            let before = match facts.filled_variable(name) {
                Some(path) => [path, OsStr::new(":")].into_iter().collect(),
                None => OsString::from(OLD_PYTHONPATH),
            };
            *value = Some([&before, OsStr::new(WORKING_FOLDER)].into_iter().collect());
        } else if name == "OMP_NUM_THREADS" && value.is_some() && !has_threads {
            *value = Some(OLD_THREADS.into());
        }
    }
}

/// The script and its arguments, of a launch that is not refused.
pub(super) fn program(is_launch: bool, words: &[OsString]) -> Option<Vec<OsString>> {
    let words = if is_launch { words } else { words.strip_prefix(&[OsString::from("launch")])? };
    Some(args::parse(words).ok()??.program)
}

#[cfg(test)]
mod tests;
