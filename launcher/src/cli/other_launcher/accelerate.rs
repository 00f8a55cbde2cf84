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

use super::{OtherCommand, Translation};
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
    let words = match words.split_first() {
        _ if is_launch => words,
        Some((first, rest)) if first == "launch" => rest,
        _ => return own_program::find(words, facts).map(OtherCommand::Run),
    };
    let Some(line) = args::parse(words)? else { return Ok(OtherCommand::Print(help(None))) };
    let path = config_file::find(&line.args, facts);
    let file = path.map(|path| config_file::read(&path, facts)).transpose()?;
    let remarks_on_file = file.as_ref().map_or_else(Vec::new, |file| file.remarks.clone());
    let settings = AccelerateSettings::merge(&line, file)?;
    let launch = words::translate(&settings, &line.program, facts);
    Ok(OtherCommand::Launch(Translation {
        environment: environment::changes(&settings, facts),
        words: launch.words,
        remarks: [remarks_on_file, launch.remarks].concat(),
    }))
}

#[cfg(test)]
mod tests;
