//! A setting that was read and does not work out.

use std::borrow::Cow;
use std::fmt;

use clap::Arg;

use super::{Expected, Origin, advice, backticked, quoted};
use crate::cli::option::{Family, Kind, LaunchOption, argparse_name};
use crate::cli::python_text::python_repr;

/// A setting that does not work out: `ORIGIN is VALUE, PROBLEM`, or `ORIGIN PROBLEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingError {
    /// The option, where the value is not of its type.
    pub option: Option<&'static Arg>,
    /// The place that gave the value.
    pub origin: Origin,
    /// The value as it was written, unless the problem names the part of it that counts.
    pub value: Option<String>,
    /// The value that is expected, or the reason why this one does not work, as a clause.
    pub problem: Cow<'static, str>,
    /// The one thing to do.
    pub hint: Cow<'static, str>,
    /// Whether torchrun may be able to do it.
    pub is_unsupported: bool,
}

/// What is wrong with a part of a value, and the one thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct Problem {
    pub(in crate::cli) text: &'static str,
    pub(in crate::cli) hint: &'static str,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, value, problem, .. } = self;
        match value {
            Some(value) => write!(f, "{origin} is {}, {problem}", quoted(value)),
            None => write!(f, "{origin} {problem}"),
        }
    }
}

impl std::error::Error for SettingError {}

impl SettingError {
    /// The value is not of the option's type.
    pub(in crate::cli) fn not_of_type(option: &'static Arg, origin: Origin, value: impl ToString) -> Self {
        let value = value.to_string();
        let hint = advice::hint_for_type(option, &origin, &value);
        let problem = format!("which is not {}", expected(option.kind()));
        Self { option: Some(option), ..Self::of_value(origin, value, problem, hint) }
    }

    /// The value is not of a type that names no [`Expected`]: the type's own words say why.
    pub(in crate::cli) fn of_other_type(
        option: &Arg,
        origin: Origin,
        value: impl ToString,
        reason: &dyn std::error::Error,
    ) -> Self {
        let hint = advice::hint_for_missing(option);
        Self::of_value(origin, value, format!("which cannot be read: {reason}"), hint)
    }

    /// The settings of these two places cannot both be meant.
    pub(in crate::cli) fn exclusive(one: Origin, other: &Origin) -> Self {
        Self::of_origin(one, format!("and {other} exclude each other"), "drop one of them")
    }

    /// Another value is expected.
    pub(in crate::cli) fn unexpected(origin: Origin, value: impl ToString, expected: Expected) -> Self {
        let value = value.to_string();
        let hint = advice::hint_for_setting(&origin, &expected, &value);
        Self::of_value(origin, value, format!("which is not {expected}"), hint)
    }

    /// The value has this problem.
    pub(in crate::cli) fn of_value(
        origin: Origin,
        value: impl ToString,
        problem: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { value: Some(value.to_string()), ..Self::of_origin(origin, problem, hint) }
    }

    /// The setting has this problem, whatever its whole value is.
    pub(in crate::cli) fn of_origin(
        origin: Origin,
        problem: impl Into<Cow<'static, str>>,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (problem, hint) = (problem.into(), hint.into());
        Self { option: None, origin, value: None, problem, hint, is_unsupported: false }
    }

    /// The value cannot be shown or sent.
    pub(in crate::cli) fn not_unicode(origin: Origin, value: &str) -> Self {
        Self::of_origin(origin, format!("is not valid UTF-8: `{value}`"), "write it in UTF-8")
    }

    /// torchrun can do it, and rankrun not yet.
    pub(in crate::cli) fn not_supported(origin: Origin, value: &str) -> Self {
        let hint = hint_for_unsupported(&origin);
        let problem = format!("= `{value}` is not supported yet");
        Self { is_unsupported: true, ..Self::of_origin(origin, problem, hint) }
    }

    /// torchrun looks for it among Python's plug-ins; `built_in` are the values that work without.
    pub(in crate::cli) fn python_plugin(origin: Origin, value: &str, built_in: &[&str]) -> Self {
        let hint = advice::hint_for_plugin(value, built_in);
        let error = Self::of_value(origin, value, "a plug-in that only Python could load", hint);
        Self { is_unsupported: true, ..error }
    }

    /// The option, where argparse has words for the mistake.
    pub(super) fn option_of_argparse(&self) -> Option<&'static Arg> {
        self.option.filter(|option| option.family() != Family::Rankrun)
    }

    /// The same in argparse's words, where it has some.
    pub(super) fn argparse(&self) -> String {
        match (self.option_of_argparse(), &self.value) {
            (Some(option), Some(value)) => {
                format!("argument {}: {}", argparse_name(option), argparse_value(option.kind(), value))
            }
            _ => self.to_string(),
        }
    }

    /// The worker that it names does not exist.
    pub(in crate::cli) fn no_such_rank(origin: Origin, rank: impl ToString, workers: u32) -> Self {
        let problem = format!("but the local ranks are 0 to {}", workers - 1);
        Self::of_value(origin, rank, problem, "ranks count from 0, below `--nproc-per-node`")
    }
}

fn hint_for_unsupported(origin: &Origin) -> Cow<'static, str> {
    match origin {
        Origin::Variable(name) => format!("unset `{name}`").into(),
        Origin::File(place) => format!("drop `{}` from the file", place.key).into(),
        Origin::Option("nproc-per-node") => "give the number, such as `--nproc-per-node 8`, or `cpu`".into(),
        Origin::Option("rdzv-backend" | "rdzv-conf") => {
            "take `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`, which needs nothing else".into()
        }
        Origin::Option(_) => "leave it out".into(),
    }
}

/// What an option takes, behind "which is not".
pub(in crate::cli) fn expected(kind: Kind) -> String {
    match kind {
        Kind::Flag => "true or false".to_owned(),
        Kind::Text => "a text or a number".to_owned(),
        Kind::Int => "a whole number".to_owned(),
        Kind::Float => "a number".to_owned(),
        Kind::Choice(choices) => format!("one of {}", backticked(&choices)),
        Kind::RankOrWord => "a local rank, `all` or `none`".to_owned(),
    }
}

fn argparse_value(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Int => format!("invalid int value: {}", python_repr(value)),
        Kind::Float => format!("invalid float value: {}", python_repr(value)),
        Kind::Choice(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| python_repr(choice)).collect();
            format!("invalid choice: {} (choose from {})", python_repr(value), choices.join(", "))
        }
        Kind::Flag | Kind::Text | Kind::RankOrWord => format!("invalid value: {}", python_repr(value)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, value_parser};

    use super::*;

    #[test]
    fn value_of_other_type_is_refused_in_words_of_the_type() {
        let option = Arg::new("politeness").long("politeness").value_parser(value_parser!(u32));
        let command = Command::new("rankrun").no_binary_name(true).arg(option.clone());
        for (value, words) in
            [("x", "invalid digit"), ("4.5", "invalid digit"), ("", "cannot parse integer from empty")]
        {
            let error = command.clone().try_get_matches_from([format!("--politeness={value}")]).unwrap_err();
            let reason = std::error::Error::source(&error).unwrap();
            let error = SettingError::of_other_type(&option, Origin::Option("politeness"), value, reason);
            let said = format!("`--politeness` is {}, which cannot be read: {words}", quoted(value));
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
}
