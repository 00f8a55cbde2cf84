//! What is wrong with a device, in words. Pure.

use std::fmt;

use super::{Accelerator, Condition};

/// Something about a device that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether work on it can go well.
    pub severity: Severity,
    /// In words, such as `is lost (GPU is lost)`.
    pub text: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, with a blemish.
    Warning,
    /// It is dead: a launch on it is refused.
    Fatal,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Everything that is to be said about one device; `own_uid` is whose processes are no strangers.
#[must_use]
pub fn findings(accelerator: &Accelerator, own_uid: u32) -> Vec<Finding> {
    let _ = own_uid;
    match &accelerator.condition {
        Condition::Answers => Vec::new(),
        Condition::Lost { why } => {
            vec![Finding { severity: Severity::Fatal, text: format!("does not answer: {why}") }]
        }
    }
}
