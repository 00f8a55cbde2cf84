//! What an option is: its spellings, the type of its value, its variable. The tables themselves stand in
//! `torchrun.rs` and `run.rs`.

use std::ffi::OsStr;
use std::fmt;

use super::python_text::{parse_float, parse_int};

/// Which values an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// None: it is there or not.
    Flag,
    /// Any text.
    Text,
    /// What Python's `int()` takes.
    Int,
    /// What Python's `float()` takes.
    Float,
    /// One of these; a variable's text is not checked, as under torchrun.
    Choice(&'static [&'static str]),
    /// A local rank, `all` or `none`.
    RankOrWord,
}

/// Which environment variables give an option's value when the command line does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// torchrun's, `PET_…`.
    Pet,
    /// Ours, `RANKRUN_…`.
    Rankrun,
    /// None has this option's name.
    None,
}

/// One option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionRow {
    /// The long name without dashes, with hyphens.
    pub long: &'static str,
    /// The one-letter name.
    pub short: Option<u8>,
    /// Its values.
    pub kind: Kind,
    /// What the help calls the value.
    pub value_name: &'static str,
    /// One sentence for the help.
    pub help: &'static str,
    /// Its variables.
    pub family: Family,
}

impl OptionRow {
    const fn new(kind: Kind, long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self { long, short: None, kind, value_name, help, family: Family::Pet }
    }

    pub(super) const fn flag(long: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Flag, long, "", help)
    }

    pub(super) const fn text(long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Text, long, value_name, help)
    }

    pub(super) const fn int(long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Int, long, value_name, help)
    }

    pub(super) const fn float(long: &'static str, value_name: &'static str, help: &'static str) -> Self {
        Self::new(Kind::Float, long, value_name, help)
    }

    pub(super) const fn choice(
        long: &'static str,
        choices: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(Kind::Choice(choices), long, "", help)
    }

    pub(super) const fn rank_or_word(
        long: &'static str,
        value_name: &'static str,
        help: &'static str,
    ) -> Self {
        Self::new(Kind::RankOrWord, long, value_name, help)
    }

    pub(super) const fn short(mut self, letter: u8) -> Self {
        self.short = Some(letter);
        self
    }

    pub(super) const fn family(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Both spellings with their dashes, each once: all hyphens, all underscores.
    #[must_use]
    pub fn spellings(&self) -> Vec<String> {
        let mut spellings = vec![format!("--{}", self.long)];
        if self.long.contains('-') {
            spellings.push(format!("--{}", self.long.replace('-', "_")));
        }
        spellings
    }

    /// The name of the variable of a family of variables.
    #[must_use]
    pub fn variable(&self) -> Option<String> {
        let prefix = match self.family {
            Family::Pet => "PET_",
            Family::Rankrun => "RANKRUN_",
            Family::None => return None,
        };
        Some(format!("{prefix}{}", self.long.replace('-', "_").to_uppercase()))
    }

    /// All names as argparse joins them: `-r/--redirects`.
    #[must_use]
    pub fn argparse_name(&self) -> String {
        let short = self.short.map(|letter| format!("-{}", char::from(letter)));
        short.into_iter().chain(self.spellings()).collect::<Vec<_>>().join("/")
    }

    /// Whether a value from the command line is of the option's type.
    pub(super) fn takes(&self, value: &OsStr) -> bool {
        let Some(text) = value.to_str() else { return self.kind == Kind::Text };
        match self.kind {
            Kind::Flag | Kind::Text => true,
            Kind::Int => parse_int(text).is_some(),
            Kind::Float => parse_float(text).is_some(),
            Kind::Choice(choices) => choices.contains(&text),
            Kind::RankOrWord => matches!(text, "all" | "none") || is_rank(text),
        }
    }
}

/// Digits only, and small enough for a rank.
fn is_rank(text: &str) -> bool {
    text.parse::<rankrun_contract::rank::LocalRank>().is_ok()
}

impl fmt::Display for OptionRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESTARTS: OptionRow = OptionRow::int("max-restarts", "N", "help");
    const TEE: OptionRow = OptionRow::text("tee", "MAP", "help").short(b't').family(Family::Rankrun);

    #[test]
    fn option_spellings_derive_from_long_name() {
        assert_eq!(RESTARTS.spellings(), ["--max-restarts", "--max_restarts"]);
        assert_eq!(RESTARTS.argparse_name(), "--max-restarts/--max_restarts");
        assert_eq!(RESTARTS.variable().as_deref(), Some("PET_MAX_RESTARTS"));
        assert_eq!(TEE.spellings(), ["--tee"]);
        assert_eq!(TEE.argparse_name(), "-t/--tee");
        assert_eq!(TEE.variable().as_deref(), Some("RANKRUN_TEE"));
        assert_eq!(TEE.family(Family::None).variable(), None);
    }

    #[test]
    fn option_value_must_match_option_type() {
        let stdin = OptionRow::rank_or_word("stdin", "RANK", "help");
        let choice = OptionRow::choice("start-method", &["spawn", "fork"], "help");
        for (row, text, taken) in [
            (RESTARTS, " +1_0 ", true),
            (RESTARTS, "1.5", false),
            (TEE, "", true),
            (stdin, "all", true),
            (stdin, "3", true),
            (stdin, "-1", false),
            (stdin, "some", false),
            (choice, "fork", true),
            (choice, "FORK", false),
        ] {
            assert_eq!(row.takes(OsStr::new(text)), taken, "{row} `{text}`");
        }
    }
}
