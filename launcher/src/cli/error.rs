//! Why a command line cannot be launched: usage errors (exit status 2), and settings that do not work out (1).
//!
//! The message is the fact and the hint is the one thing to do. Under the name `torchrun` a usage error is
//! worded as argparse words it, since scripts look for that text.

pub(super) use advice::{
    hint_for_brackets, hint_for_nodes, hint_for_place, hint_for_port, hint_for_port_in_host,
    hint_for_port_range, hint_for_restarts, hint_for_size, hint_for_streams, hint_for_time, hint_for_type,
    hint_for_workers,
};
pub(super) use rule::RuleProblem;
pub(crate) use setting::SettingError;
pub(super) use setting::{Problem, expected};

use std::borrow::Cow;

use clap::Arg;

use super::option::{LaunchOption, argparse_name};
use super::python_text::python_repr;
use super::subcommand::options_of;
use super::suggest::{help_topic_hint, similar_option_of, unknown_options_hint};
use super::torchrun;
use rankrun_core::device_assignment::DeviceError;
use rankrun_core::exit_code;
use rankrun_core::plain::is_bidi_control;
use rankrun_core::spec::CliFlavor;
pub(crate) use rankrun_core::spec::setting::{Expected, FilePlace, Origin};

mod advice;
mod rule;
mod setting;

/// Why the command line could not be read, or does not work out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line, or a variable that stands for a part of it, could not be read.
    #[error("{}", match cli_flavor {
        CliFlavor::Rankrun => error.to_string(),
        CliFlavor::Torchrun => error.argparse(),
    })]
    Usage {
        /// Under which name: it decides the wording.
        cli_flavor: CliFlavor,
        /// What is wrong.
        error: UsageError,
    },
    /// The command line of another launcher could not be read.
    #[error("{message}")]
    OtherUsage {
        /// The fact.
        message: String,
        /// The one thing to do.
        hint: String,
    },
    /// A setting does not work out.
    #[error(transparent)]
    Setting(Box<SettingError>),
    /// Devices cannot be chosen, counted, shared or bound to as was asked.
    #[error(transparent)]
    Devices(Box<DeviceError>),
    /// The launch cannot be, whatever single settings say.
    #[error("{message}")]
    Refused {
        /// The fact.
        message: String,
        /// The one thing to do.
        hint: Cow<'static, str>,
    },
}

impl From<SettingError> for CliError {
    fn from(error: SettingError) -> Self {
        Self::Setting(Box::new(error))
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> Self {
        Self::Devices(Box::new(error))
    }
}

impl CliError {
    pub(super) fn refused(message: impl Into<String>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { message: message.into(), hint: hint.into() }
    }

    /// 2 for usage, as argparse; 1 for the rest.
    #[must_use]
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::OtherUsage { .. } => exit_code::USAGE,
            _ => exit_code::LAUNCHER_FAILED,
        }
    }

    /// The one thing to do.
    #[must_use]
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { cli_flavor: CliFlavor::Rankrun, error } => error.hint(),
            Self::Usage { cli_flavor: CliFlavor::Torchrun, .. } => None,
            Self::Setting(error) => Some(error.hint.to_string()),
            Self::Devices(error) => Some(error.hint()),
            Self::OtherUsage { hint, .. } => Some(hint.clone()),
            Self::Refused { hint, .. } => Some(hint.to_string()),
        }
    }

    /// Whether torchrun may be able to do it and we are not.
    #[must_use]
    pub(crate) fn is_not_supported(&self) -> bool {
        matches!(self, Self::Setting(error) if error.is_unsupported)
    }

    /// Whether the line is well-formed, and rankrun does not start it.
    #[must_use]
    pub(crate) const fn is_refusal(&self) -> bool {
        !matches!(self, Self::Usage { .. } | Self::OtherUsage { .. })
    }

    /// The usage text that stands before the message: only under the name `torchrun`.
    #[must_use]
    pub(crate) const fn usage(&self) -> Option<&'static str> {
        match self {
            Self::Usage { cli_flavor: CliFlavor::Torchrun, .. } => Some(torchrun::USAGE),
            _ => None,
        }
    }

    /// The line above argparse's, which does not say that the value stood in a variable: the user
    /// did not type it.
    fn variable_line(&self) -> String {
        match self {
            Self::Usage { error: UsageError::Setting(error), .. }
                if error.option_of_argparse().is_some() && matches!(error.origin, Origin::Variable(_)) =>
            {
                format!("{error}\n")
            }
            _ => String::new(),
        }
    }

    /// The whole text for stderr, ready to print.
    #[must_use]
    pub(crate) fn render(&self) -> String {
        let text = match (self.usage(), self.hint()) {
            (Some(usage), _) => format!("{usage}{}torchrun: error: {self}\n", self.variable_line()),
            (None, Some(hint)) => format!("error: {self}\n\nhint: {hint}\n"),
            (None, None) => format!("error: {self}\n"),
        };
        // What was typed is repeated, and may hold commands for a terminal.
        let harmless = |letter: char| match letter {
            '\n' | '\t' => letter.to_string(),
            letter if letter.is_control() || is_bidi_control(letter) => letter.escape_default().to_string(),
            letter => letter.to_string(),
        };
        text.chars().map(harmless).collect()
    }
}

/// The command line could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    /// Nothing to run.
    #[error("there is no entrypoint to run{}", taken_as_value(taken.as_ref()))]
    MissingEntrypoint {
        /// A script that the last option took as its value.
        taken: Option<(&'static Arg, String)>,
        /// Whether a module was to be named.
        module: bool,
    },
    /// A line that launches nothing, so there is nothing to explain.
    #[error("`explain` explains a launch, and `{word}` is none")]
    NoLaunch {
        /// The subcommand.
        word: &'static str,
    },
    /// A word that a question about the machine has no use for.
    #[error("`rankrun {command}` does not know `{word}`")]
    UnknownTo {
        /// The question.
        command: &'static str,
        /// The word.
        word: String,
    },
    /// Several topics behind `help`.
    #[error("`rankrun help` takes one topic, and `{word}` is another one")]
    SecondTopic {
        /// The second topic.
        word: String,
    },
    /// A subcommand without the word that it needs.
    #[error("`rankrun {command}` needs {}", needed_by(command))]
    MissingArgument {
        /// The subcommand.
        command: &'static str,
    },
    /// Words that look like options and are none.
    #[error("unknown option {}", backticked(words))]
    Unknown {
        /// The words.
        words: Vec<String>,
    },
    /// An abbreviation of more than one option.
    #[error("`{word}` could be {}", backticked(candidates))]
    Ambiguous {
        /// The abbreviation.
        word: String,
        /// What begins with it.
        candidates: Vec<String>,
    },
    /// An option without its value.
    #[error("`--{}` needs a value", option.long_name())]
    MissingValue {
        /// The option.
        option: &'static Arg,
    },
    /// A flag with a value.
    #[error("`--{}` takes no value, but has `{value}`", option.long_name())]
    UnwantedValue {
        /// The flag.
        option: &'static Arg,
        /// The value.
        value: String,
    },
    /// A value that is not of the option's type, or options that exclude each other.
    #[error(transparent)]
    Setting(Box<SettingError>),
}

impl From<SettingError> for UsageError {
    fn from(error: SettingError) -> Self {
        Self::Setting(Box::new(error))
    }
}

impl UsageError {
    /// The same in argparse's words.
    #[must_use]
    pub(crate) fn argparse(&self) -> String {
        match self {
            Self::MissingEntrypoint { .. } => {
                "the following arguments are required: training_script, training_script_args".to_owned()
            }
            Self::Unknown { words } => format!("unrecognized arguments: {}", words.join(" ")),
            Self::Ambiguous { word, candidates } => {
                format!("ambiguous option: {word} could match {}", candidates.join(", "))
            }
            Self::MissingValue { option } => {
                format!("argument {}: expected one argument", argparse_name(option))
            }
            Self::UnwantedValue { option, value } => {
                format!(
                    "argument {}: ignored explicit argument {}",
                    argparse_name(option),
                    python_repr(value)
                )
            }
            // argparse has no words for what it does not know.
            Self::NoLaunch { .. }
            | Self::UnknownTo { .. }
            | Self::SecondTopic { .. }
            | Self::MissingArgument { .. } => self.to_string(),
            Self::Setting(error) => error.argparse(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::MissingEntrypoint { taken: Some((option, script)), .. } => {
                Some(format!("give the option its value: `--{} {} {script}`", option.long_name(), option.value_name()))
            }
            Self::MissingEntrypoint { module: true, .. } => {
                Some("name the module behind `-m`, as in `rankrun -m package.train`".to_owned())
            }
            Self::MissingEntrypoint { .. } => Some(
                "name the script behind the options, as in `rankrun --nproc-per-node 2 train.py`; `rankrun --help` \
                 explains them"
                    .to_owned(),
            ),
            Self::Unknown { words } => Some(unknown_options_hint(words)),
            Self::NoLaunch { word } => {
                Some(format!("leave `explain` out; a program of that name is `./{word}`"))
            }
            Self::UnknownTo { command: "completions", .. } => Some(COMPLETION_SHELLS.to_owned()),
            Self::UnknownTo { command: "shim", .. } => Some(SHIM_VERBS.to_owned()),
            Self::SecondTopic { word } => Some(format!("ask for one after the other: `rankrun help {word}`")),
            Self::UnknownTo { command: "help", word } => Some(help_topic_hint(word)),
            Self::UnknownTo { command, word } => {
                let all = || options_of(command).iter().map(|name| format!("--{name}")).collect::<Vec<_>>();
                let list = || format!("it knows {}", backticked(&all()));
                Some(similar_option_of(command, word).unwrap_or_else(list))
            }
            Self::MissingArgument { command: "completions" } => Some(COMPLETION_SHELLS.to_owned()),
            Self::MissingArgument { command: "shim" } => Some(SHIM_VERBS.to_owned()),
            Self::MissingArgument { .. } => Some("`rankrun ls` lists the running jobs".to_owned()),
            Self::Ambiguous { .. } => Some("write the name in full".to_owned()),
            Self::UnwantedValue { option, .. } => Some(format!("write only `--{}`", option.long_name())),
            Self::MissingValue { option } => Some(advice::hint_for_missing(option)),
            Self::Setting(error) => Some(error.hint.to_string()),
        }
    }
}

const SHIM_VERBS: &str =
    "`rankrun shim on` makes `torchrun` rankrun's, `off` gives PyTorch's own back, `status` says which it is";

const COMPLETION_SHELLS: &str = "write `rankrun completions bash`, `zsh` or `fish`";

/// What a subcommand cannot do without.
fn needed_by(command: &str) -> &'static str {
    match command {
        "shim" => "one of on, off or status",
        "completions" => "the shell: bash, zsh or fish",
        _ => "the job: an id, the beginning of one, a run id, or a launcher's pid",
    }
}

/// A value in a message.
fn quoted(value: &str) -> String {
    if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") }
}

fn taken_as_value(taken: Option<&(&'static Arg, String)>) -> String {
    let taken = taken
        .map(|(option, script)| format!(": `{script}` is read as the value of `--{}`", option.long_name()));
    taken.unwrap_or_default()
}

fn backticked(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
