//! Reads the options of a launcher by a table of what each one means for rankrun.

use std::collections::VecDeque;

use crate::cli::error::CliError;

/// How many words an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arity {
    None,
    One,
    /// A name and a value, or both in one word with `=`.
    Two,
    /// One, behind `=` alone.
    Glued,
}

/// What an option means for rankrun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect<S> {
    /// It sets this.
    Set(S),
    /// rankrun does so by itself, or it concerns the launcher's own work alone.
    Needless,
    /// It has no equivalent: why, or what to do.
    Lost(&'static str),
}

/// Options with one meaning: their names without hyphens, with commas between.
pub(super) type Row<S> = (&'static str, Arity, Effect<S>);

/// How a launcher writes its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `-n4`, `--ntasks=4`
    Getopt,
    /// `-np 4`, `--np 4`
    LongWithOneHyphen,
}

/// The options of a launcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grammar<S: 'static> {
    pub(super) launcher: &'static str,
    pub(super) style: Style,
    pub(super) rows: &'static [Row<S>],
}

/// What the options of a line say.
#[derive(Debug)]
pub(super) struct ReadOptions<S> {
    /// The options that count, with their values, in order.
    pub(super) settings: Vec<(S, Vec<String>)>,
    pub(super) lost: LostOptions,
    /// The words behind the options.
    pub(super) program: Vec<String>,
}

/// Options without an equivalent, by the reason.
#[derive(Debug, Default)]
pub(super) struct LostOptions(Vec<(&'static str, Vec<String>)>);

impl LostOptions {
    /// The option as it was typed.
    pub(super) fn push(&mut self, reason: &'static str, typed: &str) {
        let option = format!("`{typed}`");
        match self.0.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, options)) => options.push(option),
            None => self.0.push((reason, vec![option])),
        }
    }

    /// A note for each reason.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(reason, options)| format!("{}: {reason}", options.join(", ")))
    }
}

impl<S: Copy> Grammar<S> {
    /// Reads the options up to the first word that is none.
    ///
    /// # Errors
    /// An option is unknown, or lacks its value.
    pub(super) fn read(&self, words: &[String]) -> Result<ReadOptions<S>, CliError> {
        let mut rest: VecDeque<String> = words.iter().cloned().collect();
        let mut settings = Vec::new();
        let mut lost = LostOptions::default();
        while let Some(word) = rest.pop_front_if(|word| word.len() > 1 && word.starts_with('-')) {
            if word == "--" {
                break;
            }
            let Some((arity, effect, glued)) = self.find(&word, &mut rest) else {
                if word.starts_with("--") && word.contains('=') {
                    lost.push("`rankrun convert` does not know it", &word);
                    continue;
                }
                return Err(self.unknown(&word));
            };
            let is_glued = glued.is_some();
            let values = self.values((&word, arity), glued, &mut rest)?;
            match effect {
                Effect::Set(option) => settings.push((option, values)),
                Effect::Needless => {}
                Effect::Lost(reason) if is_glued => lost.push(reason, &word),
                Effect::Lost(reason) => lost.push(reason, &[&[word][..], &values].concat().join(" ")),
            }
        }
        Ok(ReadOptions { settings, lost, program: rest.into() })
    }

    /// The row of a word, and the value that is in the word. Further letters of `-lu` go back to `rest`.
    fn find(&self, word: &str, rest: &mut VecDeque<String>) -> Option<(Arity, Effect<S>, Option<String>)> {
        let is_long = word.starts_with("--");
        let name = word.trim_start_matches('-');
        let (whole, value) = match name.split_once('=') {
            Some((whole, value)) => (whole, Some(value.to_owned())),
            None => (name, None),
        };
        let is_letter = |name: &str| name.len() == 1;
        if self.style == Style::LongWithOneHyphen || is_long || is_letter(name) {
            let (_, arity, effect) = self.row(whole)?;
            return Some((*arity, *effect, value));
        }
        let (letter, glued) = name.split_at_checked(1)?;
        let (_, arity, effect) = self.row(letter)?;
        if *arity == Arity::None {
            rest.push_front(format!("-{glued}"));
            return Some((*arity, *effect, None));
        }
        Some((*arity, *effect, Some(glued.to_owned())))
    }

    fn row(&self, name: &str) -> Option<&'static Row<S>> {
        let spelling = |name: &str| name.replace('_', "-");
        let is_it = |known: &str| known == name || (known.len() > 1 && spelling(known) == spelling(name));
        self.rows.iter().find(|(names, _, _)| names.split(',').any(is_it))
    }

    fn values(
        &self,
        (word, arity): (&str, Arity),
        glued: Option<String>,
        rest: &mut VecDeque<String>,
    ) -> Result<Vec<String>, CliError> {
        let wanted = match arity {
            Arity::None | Arity::Glued => 0,
            Arity::One => 1,
            Arity::Two => 2,
        };
        let mut values: Vec<String> = glued.into_iter().collect();
        while values.len() < wanted {
            // Hydra takes `-genv NAME=VALUE`, too.
            if values.first().is_some_and(|first| first.contains('=')) && arity == Arity::Two {
                break;
            }
            let value = rest.pop_front().ok_or_else(|| {
                let message = format!("the option `{word}` of `{}` has no value", self.launcher);
                CliError::refused(message, "write the value behind it, and the program behind that")
            })?;
            values.push(value);
        }
        Ok(values)
    }

    fn unknown(&self, word: &str) -> CliError {
        CliError::refused(
            format!("`rankrun convert` does not know the option `{word}` of `{}`", self.launcher),
            "leave it out with its value; `rankrun --help` shows what may take its place",
        )
    }
}

/// The value of an option where it stands last.
pub(super) fn last_value<S: PartialEq>(settings: &[(S, Vec<String>)], option: &S) -> Option<String> {
    settings.iter().rev().find(|(known, _)| known == option)?.1.first().cloned()
}
