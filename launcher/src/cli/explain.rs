//! `rankrun explain`: the launch that a command line asks for, and where each of its settings was set.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rankrun_contract::rank::LocalWorldSize;

use super::error::{CliError, Origin, UsageError};
use super::option::{Kind, LaunchOption, options};
use super::settings::{CommandLine, ParsedArgs, Setting, Settings, WrittenOption, merge, parse, variable};
use super::subcommand::find_subcommand;
use super::{Command, launch};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::stop::GraceCause;
use rankrun_tools::explain::{ExplainForm, ExplainRequest, Origins, RunIdLife};

/// Where the options of a launch were set.
fn origins_of(line: &CommandLine, facts: &Facts) -> Result<Origins, CliError> {
    let settings = merge(line, facts)?;
    let written = settings.written.iter().filter(|written| says_something(written));
    let mut effective: Vec<(&'static str, Origin)> =
        written.map(|written| (written.option.long_name(), written.setting.origin.clone())).collect();
    let grace = settings.find("grace").or_else(|| settings.find("shutdown-timeout"));
    if grace.is_none_or(|grace| grace.is_of_file()) {
        let of_file = |(cause, grace): &(GraceCause, Setting<_>)| (cause.setting(), grace.origin.clone());
        effective.extend(settings.config.graces().iter().map(of_file));
    }
    if let Some(rule) = settings.config.rules().first() {
        effective.push(("restart-rules", rule.text.origin.clone()));
    }
    Ok(Origins { effective, overridden: overridden_by(&settings) })
}

/// Variables and lines of the file that lost against the command line or a variable.
fn overridden_by(settings: &Settings<'_>) -> Vec<(&'static str, Origin)> {
    let mut overridden = Vec::new();
    for option in options(CliFlavor::Rankrun) {
        let winner = settings.find(option.long_name()).map(|winner| winner.origin);
        let sources = [variable(option, settings.facts), settings.config.find(option)];
        let losers = sources.into_iter().flatten().map(|setting| WrittenOption { option, setting });
        let losers = losers.filter(|loser| says_something(loser) && winner.is_some());
        let others =
            losers.map(|loser| loser.setting.origin).filter(|origin| Some(origin) != winner.as_ref());
        overridden.extend(others.map(|origin| (option.long_name(), origin)));
    }
    let has_other_rules = settings.find("restart-rules").is_some();
    let rules = settings.config.rules().first().filter(|_| has_other_rules);
    overridden.extend(rules.map(|rule| ("restart-rules", rule.text.origin.clone())));
    overridden
}

/// An empty text is as good as none, but for a name; a flag may be 0.
fn says_something(written: &WrittenOption) -> bool {
    let WrittenOption { option, setting } = written;
    if option.kind() == Kind::Flag {
        setting.value != "0"
    } else {
        !setting.value.is_empty() || option.long_name() == "role"
    }
}

/// Explains the words: a command line as it would be launched, with or without the name of the command.
pub(super) fn interpret(
    argv0: &OsStr,
    form: impl FnOnce(LocalWorldSize) -> Result<ExplainForm, CliError>,
    words: &[OsString],
    facts: &Facts,
) -> Result<Command, CliError> {
    let (cli_flavor, argv0, words) = match words.split_first() {
        Some((name, rest)) if is_called(name, "torchrun") => (CliFlavor::Torchrun, name.as_os_str(), rest),
        Some((name, rest)) if is_called(name, "rankrun") => (CliFlavor::Rankrun, name.as_os_str(), rest),
        _ => (CliFlavor::Rankrun, argv0, words),
    };
    let subcommand = find_subcommand(words, facts).filter(|_| cli_flavor == CliFlavor::Rankrun);
    let words = match subcommand {
        Some("run") => &words[1..],
        None | Some("explain") => words,
        Some(word) => return Err(no_launch(word)),
    };
    let first = match launch(cli_flavor, argv0, words, facts)? {
        Command::Launch(launch) => *launch,
        answer => return Ok(answer),
    };
    // What differs in a second reading of the same words is made up, at each launch anew.
    let again = match launch(cli_flavor, argv0, words, facts)? {
        Command::Launch(launch) => *launch,
        answer => return Ok(answer),
    };
    let is_fresh = first.spec.rendezvous.run_id() != again.spec.rendezvous.run_id();
    let form = form(first.spec.workers)?;
    let origins = match parse(cli_flavor, words)? {
        ParsedArgs::Launch(line) => origins_of(&line, facts)?,
        _ => Origins::default(),
    };
    Ok(Command::Explain(Box::new(ExplainRequest {
        spec: first.spec,
        notices: first.notices.into_iter().filter(|notice| again.notices.contains(notice)).collect(),
        origins,
        run_id: if is_fresh { RunIdLife::Fresh } else { RunIdLife::Fixed },
        form,
    })))
}

fn no_launch(word: &'static str) -> CliError {
    CliError::Usage { cli_flavor: CliFlavor::Rankrun, error: UsageError::NoLaunch { word } }
}

fn is_called(word: &OsStr, name: &str) -> bool {
    Path::new(word).file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests;
