//! A setting that was read and does not work out.

use std::borrow::Cow;
use std::fmt;

use super::{Expected, Origin, advice, quoted};

/// A setting that does not work out: `ORIGIN is VALUE, PROBLEM`, or `ORIGIN PROBLEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
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
        Self { origin, value: None, problem, hint, is_unsupported: false }
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
