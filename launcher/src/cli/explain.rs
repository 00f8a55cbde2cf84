//! `rankrun explain` and its own options, which stand before the command line that is explained; and where each
//! setting of that one was said.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rankrun_contract::rank::LocalRank;

use super::by_hand::local_rank_in;
use super::config;
use super::error::{CliError, Origin, UsageError};
use super::grammar::{Given, Parsed, parse, tables};
use super::option::{Kind, OptionRow};
use super::python_text::parse_int;
use super::run::{GRACE, RESTART_RULES};
use super::settings::{Setting, Settings};
use super::torchrun::{ROLE, SHUTDOWN_TIMEOUT};
use super::{Command, Launch, command};
use crate::facts::Facts;
use crate::spec::CliFlavor;
use crate::spec::stop::GraceCause;

/// The word that asks for an explanation, only in the first place and only under our own name.
pub(super) const WORD: &str = "explain";

static SCRIPT: OptionRow = OptionRow::int("script", "RANK", "A script that runs this worker by hand");

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
    fn of(cli_flavor: CliFlavor, given: &[Given], facts: &Facts) -> Result<Self, CliError> {
        let settings = Settings { cli_flavor, given, facts, config: None };
        let config = config::read(&settings, facts)?;
        let settings = Settings { config: Some(&config), ..settings };
        let (mut by_variable, mut by_file) = (Vec::new(), Vec::new());
        for row in tables(CliFlavor::Rankrun) {
            if row.kind == Kind::Flag && !settings.flag(row)? {
                continue;
            }
            let found = settings.find(row).filter(|found| says_something(row, &found.value));
            match found.map(|found| found.origin) {
                Some(origin @ Origin::Variable(_)) => by_variable.push((row.long, origin)),
                Some(origin @ Origin::File(_)) => by_file.push((row.long, origin)),
                Some(Origin::Option(_)) | None => {}
            }
        }
        let typed = given.iter().filter(|given| says_something(given.row, &given.value));
        let grace = settings.find(&GRACE).or_else(|| settings.find(&SHUTDOWN_TIMEOUT));
        if grace.is_none_or(|grace| grace.is_of_file()) {
            let of_file = |(cause, said): &(GraceCause, Setting<_>)| (cause.setting(), said.origin.clone());
            by_file.extend(config.graces().iter().map(of_file));
        }
        if let Some(rule) = config.rules().first() {
            by_file.push((RESTART_RULES.long, rule.text.origin.clone()));
        }
        Ok(Self { typed: typed.map(|given| given.row.long).collect(), by_variable, by_file })
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

/// An empty text is as good as none, but for a name.
fn says_something(row: &OptionRow, value: &OsStr) -> bool {
    row.kind == Kind::Flag || !value.is_empty() || row == &ROLE
}

/// Reads what stands behind the word: our own options, then a command line as it would be launched, with or
/// without the name of the command.
pub(super) fn interpret(argv0: &OsStr, words: &[OsString], facts: &Facts) -> Result<Command, CliError> {
    let (asked, words) =
        read_own(words).map_err(|error| CliError::Usage { cli_flavor: CliFlavor::Rankrun, error })?;
    let (cli_flavor, argv0, words) = match words.split_first() {
        Some((name, rest)) if is_called(name, "torchrun") => (CliFlavor::Torchrun, name.as_os_str(), rest),
        Some((name, rest)) if is_called(name, "rankrun") => (CliFlavor::Rankrun, name.as_os_str(), rest),
        _ => (CliFlavor::Rankrun, argv0, words),
    };
    let launch = match command(cli_flavor, argv0, words, facts)? {
        Command::Launch(launch) => *launch,
        // Who only asks changes nothing.
        Command::Shim(_) => return Err(no_launch("shim")),
        Command::Inspect(question) => return Err(no_launch(question.subject.word())),
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
    let form = match asked {
        Asked::Text => Form::Text,
        Asked::Json => Form::Json,
        Asked::Script(rank) => {
            let origin = Origin::Option(SCRIPT.long);
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
    match parse(cli_flavor, words).map_err(|error| CliError::Usage { cli_flavor, error })? {
        Parsed::Launch(request) => Origins::of(cli_flavor, &request.given, facts),
        _ => Ok(Origins::default()),
    }
}

/// The form, before it is known which ranks there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Text,
    Json,
    Script(i128),
}

fn read_own(words: &[OsString]) -> Result<(Asked, &[OsString]), UsageError> {
    let (mut json, mut script, mut rest) = (false, None, words);
    while let Some((word, behind)) = rest.split_first() {
        let (value, behind) = match (word.as_bytes(), behind.split_first()) {
            (b"--json", _) => {
                (json, rest) = (true, behind);
                continue;
            }
            (b"--script", Some((value, behind))) => (value.as_os_str(), behind),
            (b"--script", None) => return Err(UsageError::MissingValue { option: &SCRIPT }),
            (word, _) => match word.strip_prefix(b"--script=") {
                Some(value) => (OsStr::from_bytes(value), behind),
                None => break,
            },
        };
        let Some(rank) = value.to_str().and_then(parse_int) else {
            let value = value.to_string_lossy().into_owned();
            return Err(UsageError::BadValue { option: &SCRIPT, origin: Origin::Option(SCRIPT.long), value });
        };
        (script, rest) = (Some(rank), behind);
    }
    let asked = match (json, script) {
        (false, None) => Asked::Text,
        (true, None) => Asked::Json,
        (false, Some(rank)) => Asked::Script(rank),
        (true, Some(_)) => return Err(UsageError::TwoForms),
    };
    Ok((asked, rest))
}

#[cfg(test)]
mod tests;
