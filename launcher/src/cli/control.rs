//! The words behind `rankrun ls`, `status`, `stop` and `restart`.

use std::ffi::OsString;

use super::Command;
use super::error::{CliError, UsageError};
use crate::control::command::{AnswerFormat, ControlCommand, ControlVerb, JobVerb};
use crate::spec::CliFlavor;

/// A subcommand: its word, its verb, and its help.
const SUBCOMMANDS: [(&str, ControlVerb, &str); 4] = [
    ("ls", ControlVerb::List, include_str!("help_ls.txt")),
    ("status", ControlVerb::Job(JobVerb::Status), include_str!("help_status.txt")),
    ("stop", ControlVerb::Job(JobVerb::Stop), include_str!("help_stop.txt")),
    ("restart", ControlVerb::Job(JobVerb::Restart), include_str!("help_restart.txt")),
];

fn subcommand(words: &[OsString]) -> Option<(&'static str, ControlVerb, &'static str)> {
    SUBCOMMANDS.into_iter().find(|(name, ..)| words.first().is_some_and(|word| word == name))
}

/// True if the words begin with one of these subcommands.
pub(super) fn asks(words: &[OsString]) -> bool {
    subcommand(words).is_some()
}

/// Parses the words; the first is the subcommand.
pub(super) fn interpret(words: &[OsString]) -> Result<Command, CliError> {
    let (name, verb, help) = subcommand(words).unwrap_or(SUBCOMMANDS[0]);
    if words.iter().any(|word| word == "-h" || word == "--help") {
        return Ok(Command::Print(help.to_owned()));
    }
    let usage = |error| CliError::Usage { cli_flavor: CliFlavor::Rankrun, error };
    let mut command = ControlCommand { verb, job: None, format: AnswerFormat::Text };
    for word in &words[1..] {
        match (verb, word.to_str()) {
            (ControlVerb::List | ControlVerb::Job(JobVerb::Status), Some("--json")) => {
                command.format = AnswerFormat::Json
            }
            (ControlVerb::Job(JobVerb::Status), Some("--check")) => {
                command.verb = ControlVerb::Job(JobVerb::Check)
            }
            (ControlVerb::Job(JobVerb::Stop), Some("--wait")) => {
                command.verb = ControlVerb::Job(JobVerb::StopAndWait)
            }
            (ControlVerb::Job(_), Some(job)) if !job.starts_with('-') && command.job.is_none() => {
                command.job = Some(job.to_owned());
            }
            _ => {
                let word = word.to_string_lossy().into_owned();
                return Err(usage(UsageError::UnknownTo { command: name, word }));
            }
        }
    }
    let needs_job = matches!(verb, ControlVerb::Job(JobVerb::Stop | JobVerb::Restart));
    if needs_job && command.job.is_none() {
        return Err(usage(UsageError::MissingJob { command: name }));
    }
    Ok(Command::Control(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        assert!(asks(&words));
        interpret(&words).map_err(|error| error.render())
    }

    #[test]
    fn control_options_and_job_are_accepted_in_any_order() {
        let control = |verb, job: Option<&str>, format| {
            let verb = ControlVerb::Job(verb);
            Ok(Command::Control(ControlCommand { verb, job: job.map(str::to_owned), format }))
        };
        let list = ControlCommand { verb: ControlVerb::List, job: None, format: AnswerFormat::Json };
        use {AnswerFormat::*, JobVerb::*};
        assert_eq!(parse("ls --json"), Ok(Command::Control(list)));
        assert_eq!(parse("status"), control(Status, None, Text));
        assert_eq!(parse("status --json 12ab"), control(Status, Some("12ab"), Json));
        assert_eq!(parse("status 12ab --check"), control(Check, Some("12ab"), Text));
        assert_eq!(parse("stop 12ab"), control(Stop, Some("12ab"), Text));
        assert_eq!(parse("stop --wait 12ab"), control(StopAndWait, Some("12ab"), Text));
        assert_eq!(parse("restart 12ab"), control(Restart, Some("12ab"), Text));
        for name in ["ls", "status", "stop", "restart"] {
            let help = format!("usage: rankrun {name}");
            let printed = parse(&format!("{name} x --help"));
            assert!(matches!(printed, Ok(Command::Print(text)) if text.starts_with(&help)), "{name}");
        }
    }

    #[test]
    fn unknown_control_argument_is_refused() {
        for (line, word) in [
            ("ls 12ab", "12ab"),
            ("ls --check", "--check"),
            ("status --wait", "--wait"),
            ("status a b", "b"),
            ("stop --json a", "--json"),
            ("restart --wait a", "--wait"),
        ] {
            let name = line.split(' ').next().unwrap();
            let told = format!("`rankrun {name}` does not know `{word}`");
            assert!(parse(line).unwrap_err().contains(&told), "{line}");
        }
        for name in ["stop", "restart"] {
            let refusal = parse(name).unwrap_err();
            assert!(refusal.contains(&format!("`rankrun {name}` needs the job")), "{refusal}");
            assert!(refusal.contains("`rankrun ls` lists"), "{refusal}");
        }
    }
}
