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

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(name) => write!(f, "`--{name}`"),
            Self::Variable(name) => write!(f, "`{name}`"),
            Self::File(place) => write!(f, "`{}`, line {}: `{}`", place.path, place.line, place.key),
        }
    }
}
