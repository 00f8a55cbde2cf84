//! `rankrun explain`: resolves a command line as a launch does, and adds the origin of each setting. The crate
//! `rankrun-tools` prints the answer.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::LazyLock;

use clap::{Arg, Args};
use rankrun_contract::env::{GROUP_RANK, GROUP_WORLD_SIZE};
use rankrun_contract::rank::LocalWorldSize;

use super::behind::options_behind_notice;
use super::error::{CliError, SettingError, UsageError};
use super::hosts::names_hosts;
use super::normalise::asks_for_text;
use super::option::{Kind, LaunchOption, command, options};
use super::resolve::resolve;
use super::scheduled_job::Number;
use super::settings::{Setting, Settings, config_path, merge, parse_with};
use super::subcommand::{ExplainArgs, find_subcommand};
use super::suggest::similar_option_of;
use super::{Command, answer, config};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_tools::explain::{ExplainForm, ExplainRequest, KnownOption, Origins};

/// The options of a launch, and of `explain` among them.
static RANKRUN: LazyLock<clap::Command> =
    LazyLock::new(|| ExplainArgs::augment_args(command(CliFlavor::Rankrun).clone()));
static TORCHRUN: LazyLock<clap::Command> =
    LazyLock::new(|| ExplainArgs::augment_args(command(CliFlavor::Torchrun).clone()));

/// Those of `explain` alone.
static OWN: LazyLock<clap::Command> =
    LazyLock::new(|| ExplainArgs::augment_args(clap::Command::new("explain")));

/// What was said of each option, and of the settings that only a file has.
fn origins_of(settings: &Settings<'_>) -> Origins {
    let mut given: Vec<(&'static str, Setting<OsString>)> = Vec::new();
    for written in &settings.given {
        let (name, kind) = (written.option.long_name(), written.option.kind());
        let Setting { origin, value } = written.setting.clone();
        let value = match (kind == Kind::Flag, name) {
            (true, "verbose") if value.is_empty() => settings.typed_count("verbose").to_string().into(),
            (true, name) if name != "verbose" => OsString::from(if written.is_off() { "no" } else { "yes" }),
            _ => value,
        };
        // A flag that is typed again says no more.
        let is_known = |(known, said): &(&str, Setting<_>)| *known == name && said.origin == origin;
        if kind != Kind::Flag || !given.iter().any(is_known) {
            given.push((name, Setting { origin, value }));
        }
    }
    let text = |text: &Setting<String>| Setting { origin: text.origin.clone(), value: (&text.value).into() };
    given.extend(settings.config.graces().iter().map(|(cause, grace)| (cause.setting(), text(grace))));
    given.extend(settings.config.rules().first().map(|rule| ("restart-rules", text(&rule.text))));
    if let Some(job) = settings.job.as_ref().filter(|job| job.on_node.is_some()) {
        let number = |number: &Number| Setting {
            origin: number.origin.clone(),
            value: number.value.to_string().into(),
        };
        given.extend([(GROUP_RANK, number(&job.node_rank)), (GROUP_WORLD_SIZE, number(&job.nodes))]);
    }
    let of_launch = options(CliFlavor::Rankrun).filter(|option| !asks_for_text(option));
    Origins { given, options: of_launch.map(known_option).collect() }
}

fn known_option(option: &'static Arg) -> KnownOption {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let default = help.rsplit_once("[default: ").and_then(|(_, text)| text.rsplit_once(']'));
    KnownOption {
        name: option.long_name(),
        flag: (option.kind() == Kind::Flag).then_some("no"),
        default: default.map(|(text, _)| text.replace('\n', " ")),
    }
}

/// Explains the words: a command line as it would be launched, with or without the name of the command.
pub(super) fn interpret(
    argv0: &OsStr,
    form: impl FnOnce(&[OsString], LocalWorldSize) -> Result<ExplainForm, CliError>,
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
    let grammar: &'static clap::Command = match cli_flavor {
        CliFlavor::Rankrun => &RANKRUN,
        CliFlavor::Torchrun => &TORCHRUN,
    };
    let (parsed, own) = parse_with(cli_flavor, words, grammar).map_err(named_as_own)?;
    answer(cli_flavor, parsed, |line| {
        let settings = merge(&line, facts, config::read(config_path(&line, facts), facts)?)?;
        refuse_hosts(&settings)?;
        let behind = options_behind_notice(&line, &OWN);
        let mut launch = resolve(argv0, line, &settings)?;
        launch.notices.extend(behind);
        Ok(Command::Explain(Box::new(ExplainRequest {
            form: form(&own, launch.spec.workers)?,
            spec: launch.spec,
            notices: launch.notices,
            origins: origins_of(&settings),
            read_as: None,
        })))
    })
}

/// Each host resolves its own launch.
fn refuse_hosts(settings: &Settings<'_>) -> Result<(), CliError> {
    match names_hosts(settings) {
        Some(origin) => {
            let hint = "leave it out to see the launch of one node on this machine";
            Err(SettingError::of_origin(origin, "is given, and each host explains its own launch", hint)
                .into())
        }
        None => Ok(()),
    }
}

/// The error where an unknown option is nearly one of `explain`.
fn named_as_own(error: CliError) -> CliError {
    match error {
        CliError::Usage { error: UsageError::Unknown { words }, .. }
            if similar_option_of("explain", &words[0]).is_some() =>
        {
            let error = UsageError::UnknownTo { command: "explain", word: words[0].clone() };
            CliError::Usage { cli_flavor: CliFlavor::Rankrun, error }
        }
        error => error,
    }
}

fn no_launch(word: &'static str) -> CliError {
    CliError::Usage { cli_flavor: CliFlavor::Rankrun, error: UsageError::NoLaunch { word } }
}

fn is_called(word: &OsStr, name: &str) -> bool {
    Path::new(word).file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests;
