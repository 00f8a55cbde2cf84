//! `rankrun explain`: the launch that a command line asks for, and where each of its settings was said.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rankrun_contract::rank::LocalRank;

use super::by_hand::local_rank_in;
use super::error::{CliError, Origin, UsageError};
use super::option::{Kind, LaunchOption};
use super::settings::{CommandLine, Parsed, Setting, WrittenOption, merge, parse};
use super::subcommand::subcommand;
use super::{Command, Launch, command};
use crate::facts::Facts;
use crate::spec::CliFlavor;
use crate::spec::stop::GraceCause;

/// A launch that is only to be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explain {
    /// What would be launched.
    pub launch: Launch,
    /// Where its settings were said.
    pub origins: Origins,
    /// Whether its run id is another one at each launch.
    pub run_id: RunIdLife,
    /// How the answer is given.
    pub form: Form,
}

/// How an explanation is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// `--json`
    Json,
    /// `--script`: a shell script that runs this worker.
    Script(LocalRank),
}

/// Whether two launches by the same command line have the same run id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunIdLife {
    /// It was given, or is torch's `none`.
    Fixed,
    /// It is made up at each launch.
    Fresh,
}

/// Where options were said, by their long names; the rest has its default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origins {
    typed: Vec<&'static str>,
    by_variable: Vec<(&'static str, Origin)>,
    by_file: Vec<(&'static str, Origin)>,
}

impl Origins {
    fn of(line: &CommandLine, facts: &Facts) -> Result<Self, CliError> {
        let settings = merge(line, facts)?;
        let mut origins = Self::default();
        for WrittenOption { option, setting } in settings.written.iter().filter(|one| says_something(one)) {
            match &setting.origin {
                Origin::Option(_) => origins.typed.push(option.long_name()),
                Origin::Variable(_) => origins.by_variable.push((option.long_name(), setting.origin.clone())),
                Origin::File(_) => origins.by_file.push((option.long_name(), setting.origin.clone())),
            }
        }
        let grace = settings.find("grace").or_else(|| settings.find("shutdown-timeout"));
        if grace.is_none_or(|grace| grace.is_of_file()) {
            let of_file = |(cause, said): &(GraceCause, Setting<_>)| (cause.setting(), said.origin.clone());
            origins.by_file.extend(settings.config.graces().iter().map(of_file));
        }
        if let Some(rule) = settings.config.rules().first() {
            origins.by_file.push(("restart-rules", rule.text.origin.clone()));
        }
        Ok(origins)
    }

    /// Where a setting that several options say was said: by the one typed last, else by the first that has its
    /// variable, else by the first that a file says.
    #[must_use]
    pub fn of_setting(&self, options: &[&str]) -> Option<Origin> {
        let typed = self.typed.iter().rev().find(|typed| options.contains(*typed));
        let first = |said: &[(&str, Origin)]| {
            let of = |option: &&str| said.iter().find(|(long, _)| long == option);
            options.iter().find_map(of).map(|(_, origin)| origin.clone())
        };
        let elsewhere = || first(&self.by_variable).or_else(|| first(&self.by_file));
        typed.map(|typed| Origin::Option(typed)).or_else(elsewhere)
    }
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

/// How the explanation is asked for, before it is known which ranks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskedForm {
    Text,
    Json,
    Script(i128),
}

/// Explains the words: a command line as it would be launched, with or without the name of the command.
pub(super) fn interpret(
    argv0: &OsStr,
    form: AskedForm,
    words: &[OsString],
    facts: &Facts,
) -> Result<Command, CliError> {
    let (cli_flavor, argv0, words) = match words.split_first() {
        Some((name, rest)) if is_called(name, "torchrun") => (CliFlavor::Torchrun, name.as_os_str(), rest),
        Some((name, rest)) if is_called(name, "rankrun") => (CliFlavor::Rankrun, name.as_os_str(), rest),
        _ => (CliFlavor::Rankrun, argv0, words),
    };
    let other = subcommand(words).filter(|word| cli_flavor == CliFlavor::Rankrun && *word != "explain");
    if let Some(word) = other {
        return Err(no_launch(word));
    }
    let launch = match command(cli_flavor, argv0, words, facts)? {
        Command::Launch(launch) => *launch,
        Command::Shim(_) => return Err(no_launch("shim")),
        answer => return Ok(answer),
    };
    // What differs in a second reading of the same words is made up, at each launch anew.
    let again = match command(cli_flavor, argv0, words, facts)? {
        Command::Launch(launch) => *launch,
        answer => return Ok(answer),
    };
    let fresh = launch.spec.rendezvous.run_id() != again.spec.rendezvous.run_id();
    let launch = Launch {
        notices: launch.notices.into_iter().filter(|notice| again.notices.contains(notice)).collect(),
        ..launch
    };
    let form = match form {
        AskedForm::Text => Form::Text,
        AskedForm::Json => Form::Json,
        AskedForm::Script(rank) => {
            let origin = Origin::Option("script");
            Form::Script(local_rank_in(origin, rank, launch.spec.workers)?)
        }
    };
    let run_id = if fresh { RunIdLife::Fresh } else { RunIdLife::Fixed };
    let origins = origins(cli_flavor, words, facts)?;
    Ok(Command::Explain(Box::new(Explain { launch, origins, run_id, form })))
}

fn no_launch(word: &'static str) -> CliError {
    CliError::Usage { cli_flavor: CliFlavor::Rankrun, error: UsageError::NoLaunch { word } }
}

fn is_called(word: &OsStr, name: &str) -> bool {
    Path::new(word).file_name().is_some_and(|file| file == name)
}

fn origins(cli_flavor: CliFlavor, words: &[OsString], facts: &Facts) -> Result<Origins, CliError> {
    match parse(cli_flavor, words)? {
        Parsed::Launch(line) => Origins::of(&line, facts),
        _ => Ok(Origins::default()),
    }
}

#[cfg(test)]
mod tests;
