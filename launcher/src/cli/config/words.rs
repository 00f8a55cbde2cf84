//! TOML's values as the command line has them, and what they are called. Pure.

use std::ffi::OsStr;

use toml::de::DeValue;

use crate::cli::option::{FromText, Kind, LaunchOption};
use rankrun_core::spec::StdinPolicy;

use clap::Arg;

/// The value as it would stand on the command line, if it is of a type that the option takes.
pub(super) fn in_words(row: &Arg, value: &DeValue<'_>) -> Option<String> {
    match (row.kind(), value) {
        (Kind::Flag, DeValue::Boolean(on)) => Some(u8::from(*on).to_string()),
        (Kind::Flag, DeValue::Integer(_)) if row.long_name() == "verbose" => number_or_text(value),
        (Kind::Text, value) => text_of(value),
        (Kind::Choice(_), DeValue::String(text)) => Some(text.to_string()),
        (Kind::Float, DeValue::Float(number)) => Some(number.as_str().to_owned()),
        (Kind::Float | Kind::Int | Kind::RankOrWord, DeValue::Integer(_)) => {
            number_or_text(value).filter(|text| row.kind() != Kind::RankOrWord || is_stdin(text))
        }
        (Kind::RankOrWord, DeValue::String(text)) if is_stdin(text) => Some(text.to_string()),
        _ => None,
    }
}

/// A text, or a number as text.
pub(super) fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        value => number_or_text(value),
    }
}

fn is_stdin(text: &str) -> bool {
    StdinPolicy::from_text(OsStr::new(text)).is_some()
}

pub(super) fn number_or_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        _ => None,
    }
}

/// What a value is called that is too long to be shown.
pub(super) fn kind_of(value: &DeValue<'_>) -> Option<&'static str> {
    match value {
        DeValue::String(_) => Some("a text"),
        DeValue::Array(_) => Some("a list"),
        DeValue::Table(_) => Some("a table"),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => None,
    }
}
