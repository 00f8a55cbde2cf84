//! What clap reads for an option of accelerate: the value, or the reason why the text is none.

use super::python_value::PythonValue;
use crate::cli::python_text::{parse_float, parse_int};

/// The text is not a value of the option: what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongValue(pub(super) String);

fn wrong(expected: &str) -> WrongValue {
    WrongValue(expected.to_owned())
}

pub(super) const COUNT: &str = "a whole number from 1 up";
pub(super) const RANK: &str = "a whole number from 0 up";
pub(super) const PORT: &str = "a port from 0 to 65535";
pub(super) const PRECISIONS: &[&str] = &["no", "fp16", "bf16", "fp8"];

/// A number of processes, machines or threads.
pub(super) fn parse_count(text: &str) -> Result<u32, WrongValue> {
    count_of(parse_int(text)).ok_or_else(|| wrong(COUNT))
}

pub(super) fn count_of(number: Option<i128>) -> Option<u32> {
    number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

pub(super) fn parse_rank(text: &str) -> Result<u32, WrongValue> {
    parse_int(text).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| wrong(RANK))
}

pub(super) fn parse_port(text: &str) -> Result<u16, WrongValue> {
    parse_int(text).and_then(|number| u16::try_from(number).ok()).ok_or_else(|| wrong(PORT))
}

pub(super) fn parse_precision(text: &str) -> Result<String, WrongValue> {
    parse_choice(text, PRECISIONS)
}

pub(super) fn parse_choice(text: &str, choices: &[&str]) -> Result<String, WrongValue> {
    if choices.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(WrongValue(format!("one of {}", choices.join(", "))))
}

pub(super) fn parse_integer(text: &str) -> Result<PythonValue, WrongValue> {
    parse_int(text).map(PythonValue::Int).ok_or_else(|| wrong("a whole number"))
}

pub(super) fn parse_float_value(text: &str) -> Result<PythonValue, WrongValue> {
    parse_float(text).map(PythonValue::Float).ok_or_else(|| wrong("a number"))
}

pub(super) fn parse_seconds(text: &str) -> Result<String, WrongValue> {
    parse_float(text).map(|_| text.to_owned()).ok_or_else(|| wrong("a number of seconds"))
}

/// A truth value as Python's `strtobool` reads it.
pub(super) fn parse_bit(text: &str) -> Result<PythonValue, WrongValue> {
    match text.to_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "on" | "1" => Ok(PythonValue::Int(1)),
        "n" | "no" | "f" | "false" | "off" | "0" => Ok(PythonValue::Int(0)),
        _ => Err(wrong("true or false")),
    }
}

pub(super) fn parse_bits(text: &str) -> Result<PythonValue, WrongValue> {
    let bits: Result<Vec<PythonValue>, WrongValue> = text.split(',').map(parse_bit).collect();
    let bits = bits.ok().filter(|bits| bits.len() == 3);
    bits.map(PythonValue::List).ok_or_else(|| wrong("three of true or false, as in false,false,true"))
}
