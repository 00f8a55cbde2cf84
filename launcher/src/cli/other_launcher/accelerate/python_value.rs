//! Values as Python has them: what an option or a key of the file says, and how `str()` prints it into a variable.

use std::fmt;

use crate::cli::python_text::{parse_int, python_repr};

/// A value of an option or of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PythonValue {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Self>),
}

impl PythonValue {
    /// The value of a plain word by YAML 1.1, whose rules PyYAML follows: `no` and `off` are false, `1e5` is text.
    pub(super) fn of_plain_word(word: &str) -> Self {
        match word {
            "" | "~" | "null" | "Null" | "NULL" => return Self::None,
            "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Self::Bool(true),
            "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                return Self::Bool(false);
            }
            _ => {}
        }
        let number = int_of_yaml(word).map(Self::Int).or_else(|| float_of_yaml(word).map(Self::Float));
        number.unwrap_or_else(|| Self::Text(word.to_owned()))
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Python's `bool(value)`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(values) => !values.is_empty(),
        }
    }

    /// A whole number, also where it is written as text.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Text(text) => parse_int(text),
            _ => None,
        }
    }

    fn repr(&self) -> String {
        match self {
            Self::Text(text) => python_repr(text),
            other => other.to_string(),
        }
    }
}

/// As `str()`.
impl fmt::Display for PythonValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(true) => f.write_str("True"),
            Self::Bool(false) => f.write_str("False"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => f.write_str(&float_repr(*value)),
            Self::Text(text) => f.write_str(text),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(Self::repr).collect();
                write!(f, "[{}]", values.join(", "))
            }
        }
    }
}

/// `1e-05` and `1e+16` where Rust writes `1e-5` and `1e16`; both turn to exponents at the same sizes.
fn float_repr(value: f64) -> String {
    let text = format!("{value:?}").to_lowercase();
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn int_of_yaml(word: &str) -> Option<i128> {
    let (is_negative, digits) = match word.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'x' | b'_')) {
        return None;
    }
    let bare = digits.replace('_', "");
    let size = match bare.as_bytes() {
        [b'0', b'x', ..] => i128::from_str_radix(&bare[2..], 16),
        [b'0', b'b', ..] => i128::from_str_radix(&bare[2..], 2),
        [b'0', _, ..] => i128::from_str_radix(&bare, 8),
        [b'0'..=b'9', ..] if digits.starts_with(|first: char| first.is_ascii_digit()) => bare.parse(),
        _ => return None,
    };
    size.ok().map(|size| if is_negative { -size } else { size })
}

/// YAML 1.1 wants a point, and a sign in the exponent.
fn float_of_yaml(word: &str) -> Option<f64> {
    let (sign, bare) = match word.strip_prefix('-') {
        Some(bare) => (-1.0, bare),
        None => (1.0, word.strip_prefix('+').unwrap_or(word)),
    };
    match bare {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Some(f64::NAN),
        _ => {}
    }
    let (digits, exponent) = bare.split_once(['e', 'E']).map_or((bare, None), |(d, e)| (d, Some(e)));
    let has_sign = exponent.is_none_or(|exponent| exponent.starts_with(['+', '-']));
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'_'));
    let value = (digits.contains('.') && has_sign && is_number).then(|| bare.replace('_', ""));
    value?.parse().ok().map(|value: f64| sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `str(yaml.safe_load(word))` prints with PyYAML 6.0.3.
    #[test]
    fn plain_words_are_printed_as_python_prints_them() {
        for (word, printed) in [
            ("NO", "False"),
            ("on", "True"),
            ("~", "None"),
            ("12", "12"),
            ("+1_000", "1000"),
            ("010", "8"),
            ("0x1F", "31"),
            ("0b11", "3"),
            ("1.0", "1.0"),
            ("1.e-5", "1e-05"),
            ("1e5", "1e5"),
            ("1e-5", "1e-5"),
            ("1.5e+20", "1.5e+20"),
            ("123456789.125", "123456789.125"),
            ("-.inf", "-inf"),
            (".nan", "nan"),
            ("0,1", "0,1"),
            ("09", "09"),
            ("_1", "_1"),
            ("x", "x"),
            ("127.0.0.1", "127.0.0.1"),
            ("TE", "TE"),
            ("be", "be"),
        ] {
            assert_eq!(PythonValue::of_plain_word(word).to_string(), printed, "{word}");
        }
    }

    #[test]
    fn list_is_printed_as_python_prints_it() {
        let list =
            PythonValue::List(vec![PythonValue::text("a"), PythonValue::Bool(true), PythonValue::None]);
        assert_eq!(list.to_string(), "['a', True, None]");
    }
}
