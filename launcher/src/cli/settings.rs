//! Where a setting's value comes from: the command line, then the option's variable, then the file of `--config`. The
//! one place that knows.
//!
//! Own options have `RANKRUN_*`, torchrun's have `PET_*`, and no option has both; what stands in for them
//! further down the line (`LOGLEVEL`, defaults) is said where the setting is resolved.

use std::ffi::OsString;

use super::config::Config;
use super::error::{CliError, Origin, SettingError, UsageError};
use super::grammar::Given;
use super::option::{Family, OptionRow};
use super::python_text::{parse_float, parse_int};
use crate::facts::Facts;
use crate::spec::CliFlavor;
pub(super) use crate::spec::setting::Setting;

/// What was typed, over what the environment says, over what a file says.
pub(super) struct Settings<'a> {
    pub(super) cli_flavor: CliFlavor,
    pub(super) given: &'a [Given],
    pub(super) facts: &'a Facts,
    pub(super) config: Option<&'a Config>,
}

impl Settings<'_> {
    /// The value that counts, as it was written.
    pub(super) fn find(&self, row: &'static OptionRow) -> Option<Setting<OsString>> {
        if let Some(given) = self.given.iter().rev().find(|given| given.row == row) {
            return Some(Setting { origin: Origin::Option(row.long), value: given.value.clone() });
        }
        self.variable(row).or_else(|| self.config?.find(row))
    }

    fn variable(&self, row: &'static OptionRow) -> Option<Setting<OsString>> {
        let name = row.variable()?;
        let value = match row.family {
            // argparse takes an empty variable for an empty value.
            Family::Pet => self.facts.variable(&name),
            Family::Rankrun | Family::None => self.facts.filled_variable(&name),
        };
        value.map(|value| Setting { value: value.to_owned(), origin: Origin::Variable(name) })
    }

    /// The value as text.
    pub(super) fn text(&self, row: &'static OptionRow) -> Result<Option<Setting<String>>, CliError> {
        let Some(Setting { origin, value }) = self.find(row) else { return Ok(None) };
        match value.into_string() {
            Ok(value) => Ok(Some(Setting { origin, value })),
            Err(value) => {
                let value = value.to_string_lossy().into_owned();
                Err(SettingError::NotUnicode { origin, value }.into())
            }
        }
    }

    /// The value as Python's `int()` reads it.
    pub(super) fn int(&self, row: &'static OptionRow) -> Result<Option<Setting<i128>>, CliError> {
        self.typed(row, parse_int)
    }

    /// The value as Python's `float()` reads it.
    pub(super) fn float(&self, row: &'static OptionRow) -> Result<Option<Setting<f64>>, CliError> {
        self.typed(row, parse_float)
    }

    /// The value as `parse` reads it; what it cannot read is a usage error, also from a variable.
    pub(super) fn typed<T>(
        &self,
        row: &'static OptionRow,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<Setting<T>>, CliError> {
        let Some(Setting { origin, value }) = self.find(row) else { return Ok(None) };
        match value.to_str().and_then(parse) {
            Some(value) => Ok(Some(Setting { origin, value })),
            None => {
                let value = value.to_string_lossy().into_owned();
                let error = UsageError::BadValue { option: row, origin, value };
                Err(CliError::Usage { cli_flavor: self.cli_flavor, error })
            }
        }
    }

    /// Whether the flag was typed, or its variable is an integer other than zero, or the file says so.
    ///
    /// A variable that is no integer is refused even where the flag was typed: argparse reads it first.
    pub(super) fn flag(&self, row: &'static OptionRow) -> Result<bool, SettingError> {
        let variable = row.variable().and_then(|name| Some((self.facts.variable(&name)?, name)));
        let without_typing = match variable {
            None => self.config.and_then(|config| config.find(row)).is_some_and(|found| found.value != "0"),
            Some((value, variable)) => match value.to_str().and_then(parse_int) {
                Some(number) => number != 0,
                None => {
                    let value = value.to_string_lossy().into_owned();
                    return Err(SettingError::FlagNotInteger { variable, value });
                }
            },
        };
        Ok(without_typing || self.given.iter().any(|given| given.row == row))
    }

    /// How often a flag was typed.
    pub(super) fn count(&self, row: &'static OptionRow) -> usize {
        self.given.iter().filter(|given| given.row == row).count()
    }
}
