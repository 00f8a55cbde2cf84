//! A value of a setting, and where the user gave it.

use std::fmt;

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The place that gave the value.
    pub origin: Origin,
    /// The value, as far as it was parsed.
    pub value: T,
}

impl<T> Setting<T> {
    /// Whether a configuration file gave the value.
    pub const fn is_of_file(&self) -> bool {
        matches!(self.origin, Origin::File(_))
    }
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An option, by its long name.
    Option(&'static str),
    /// An environment variable.
    Variable(String),
    /// A configuration file.
    File(Box<FilePlace>),
}

/// A place in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlace {
    /// The path of the file as the user wrote it.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The table and the key in it.
    pub key: String,
}

impl Origin {
    /// Without quotes, in front of the value: `--devices`, `RANKRUN_DEVICES`, `job.toml:3 devices`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Option(name) => format!("--{name}"),
            Self::Variable(name) => name.clone(),
            Self::File(place) => format!("{}:{} {}", place.path, place.line, place.key),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(name) => write!(f, "`--{name}`"),
            Self::Variable(name) => write!(f, "`{name}`"),
            Self::File(place) => write!(f, "`{}`, line {}: `{}`", place.path, place.line, place.key),
        }
    }
}

/// What a setting accepts, for the error of another value.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// In words, behind "which is not".
    text: &'static str,
    /// A value for the hint.
    pub example: &'static str,
    /// The hint for a value that shows what was meant.
    pub advice: fn(&Origin, &str) -> Option<String>,
}

impl Expected {
    /// Hints have the example.
    #[must_use]
    pub const fn new(text: &'static str, example: &'static str) -> Self {
        Self { text, example, advice: |_, _| None }
    }

    /// With hints for certain values.
    #[must_use]
    pub const fn advised(self, advice: fn(&Origin, &str) -> Option<String>) -> Self {
        Self { advice, ..self }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl std::error::Error for Expected {}
