//! What is wrong with a configuration file: which file, line and key.

use std::fmt;

/// A configuration file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", place(path, at.as_ref(), problem))]
pub struct ConfigError {
    /// The file, as it was named.
    pub path: String,
    /// The line, from 1, and the key; empty for none.
    pub at: Option<(usize, String)>,
    /// What is wrong.
    pub problem: ConfigProblem,
}

fn place(path: &str, at: Option<&(usize, String)>, problem: &ConfigProblem) -> String {
    match at {
        None if matches!(problem, ConfigProblem::TooDeep) => format!("the configuration file `{path}`: "),
        None => format!("the configuration file `{path}` "),
        Some((line, key)) if key.is_empty() => format!("`{path}`, line {line}: "),
        Some((line, key)) => format!("`{path}`, line {line}: `{key}` "),
    }
}

/// What is wrong with a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigProblem {
    /// It cannot be read, in words.
    Unreadable(String),
    /// A FIFO, a device, a socket or a folder, in words.
    NotRegular(String),
    /// It is not UTF-8.
    NotUnicode,
    /// A NUL byte, in the file or in the value that it writes.
    NulByte,
    /// Tables or lists inside one another, more than any reader follows.
    TooDeep,
    /// It is no TOML.
    Syntax {
        /// The key or table of the line, where there is one.
        key: Option<String>,
        /// In words.
        what: String,
    },
    /// A key that means nothing.
    UnknownKey {
        /// One that is written nearly so.
        nearest: Option<String>,
        /// Whether it stands where a table's name is expected.
        is_table: bool,
        /// All that there are, where they are few.
        known: Vec<String>,
    },
    /// A value of another type.
    WrongType {
        /// What it is.
        is: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A word that is none of the option's.
    NoChoice {
        /// The word.
        value: String,
        /// The option's.
        choices: Vec<String>,
    },
    /// The same thing is said twice.
    Twice {
        /// Where before.
        line: usize,
        /// By which key.
        key: String,
    },
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) | Self::NotRegular(why) => write!(f, "cannot be read: {why}"),
            Self::NotUnicode => f.write_str("this is not valid UTF-8"),
            Self::NulByte => f.write_str("there is a NUL byte in the text"),
            Self::TooDeep => f.write_str("tables or lists are nested too deeply"),
            Self::Syntax { key: None, what } => f.write_str(what),
            Self::Syntax { key: Some(key), what } => write!(f, "`{key}`: {what}"),
            Self::UnknownKey { .. } => f.write_str("is no known key"),
            Self::WrongType { is, expected } => write!(f, "is {is}, not {expected}"),
            Self::NoChoice { value, .. } => write!(f, "is `{value}`, which is none of its values"),
            Self::Twice { line, key } => write!(f, "says what `{key}` in line {line} says"),
        }
    }
}

impl ConfigProblem {
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Unreadable(_) => {
                "name a file that can be read, in `--config` or `RANKRUN_CONFIG`, or leave both out".to_owned()
            }
            Self::NotRegular(why) if why.starts_with("a folder") => "name a file in the folder".to_owned(),
            Self::NotRegular(_) => {
                "write it into a file, and name that: a pipe may be the input of the workers".to_owned()
            }
            Self::NotUnicode => "save it as UTF-8".to_owned(),
            Self::NulByte => "remove it; a file in UTF-16 is saved again as UTF-8".to_owned(),
            Self::TooDeep => "write `key = value` below `[launch]`: no option needs more levels".to_owned(),
            Self::Syntax { what, .. } if what.contains("duplicate key") => "drop one of them".to_owned(),
            Self::Syntax { .. } => {
                "the file is TOML: `key = value` below `[launch]`, texts in quotes".to_owned()
            }
            Self::UnknownKey { nearest: Some(nearest), .. } => format!("did you mean `{nearest}`?"),
            Self::UnknownKey { nearest: None, known, .. } if known.is_empty() => {
                "keys are the long names of options, as in `rankrun --help`, without dashes in front"
                    .to_owned()
            }
            Self::UnknownKey { is_table: true, .. } => {
                "the tables are `[launch]`, `[nodes]`, `[restart]` and `[stop]`; an option stands below `[launch]`"
                    .to_owned()
            }
            Self::UnknownKey { nearest: None, known, .. } => format!("there are {}", known.join(", ")),
            Self::WrongType { is: "a date" | "a time of day", expected } if expected.contains("text") => {
                "put it in quotes".to_owned()
            }
            Self::WrongType { is: "a text", expected } if expected.contains("number") => {
                format!("write {expected}, without quotes")
            }
            Self::WrongType { expected, .. } => format!("write {expected}"),
            Self::NoChoice { choices, .. } => format!("write one of {}", choices.join(", ")),
            Self::Twice { .. } => "drop one of them".to_owned(),
        }
    }
}
