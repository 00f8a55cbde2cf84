//! `accelerate launch` and `deepspeed`, translated for any machine.
//!
//! A shell replaces variables later. Where one stands for a number, the line is translated with two numbers, and the
//! places where the results differ get the variable back.

use std::collections::BTreeMap;
use std::ffi::OsString;

use rankrun_core::facts::Facts;
use rankrun_core::shell::split::ShellWords;

use super::Conversion;
use crate::cli::error::CliError;
use crate::cli::other_launcher::{OtherCommand, TargetMachine, Translation, accelerate, deepspeed};

/// Numbers that take the place of a variable, each with another one to compare with. Some options do not allow the first.
const STAND_INS: [(&str, &str); 2] = [("6", "7"), ("0", "1")];
/// The variables that choose devices, count them or name folders: those of this shell say nothing about another machine.
const OF_THIS_MACHINE: [&str; 9] = [
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "HIP_VISIBLE_DEVICES",
    "LOCAL_SIZE",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
];

/// The launchers whose lines are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TranslatedLauncher {
    /// `is_launch`: no word `launch` is needed.
    Accelerate {
        is_launch: bool,
    },
    Deepspeed,
}

/// The numbers in the place of variables.
type StandIns = BTreeMap<String, (&'static str, &'static str)>;

/// A line of such a launcher.
pub(super) struct TranslatedLine<'a> {
    pub(super) launcher: TranslatedLauncher,
    /// The words behind the launcher.
    pub(super) words: &'a [String],
    pub(super) shell: &'a ShellWords,
    pub(super) facts: &'a Facts,
}

/// The facts without what the environment says about the devices of this machine.
pub(super) fn without_devices(facts: &Facts) -> Facts {
    facts.with_environment(&OF_THIS_MACHINE.map(|name| (name.to_owned(), None)))
}

impl TranslatedLauncher {
    const fn name(self) -> &'static str {
        match self {
            Self::Accelerate { .. } => "accelerate",
            Self::Deepspeed => "deepspeed",
        }
    }

    /// The script and its arguments.
    fn program(self, words: &[String]) -> Option<Vec<OsString>> {
        match self {
            Self::Accelerate { is_launch } => accelerate::program(is_launch, &os_words(words)),
            Self::Deepspeed => deepspeed::program(&os_words(words)),
        }
    }
}

impl TranslatedLine<'_> {
    /// # Errors
    /// The launcher refuses the line, or a variable has a meaning that only its value tells.
    pub(super) fn convert(&self) -> Result<Conversion, CliError> {
        let numbers = self.find_numbers(&StandIns::new())?;
        self.refuse_hidden_options(&numbers)?;
        let translated = self.translate(&numbers)?;
        let mut conversion = translated.clone();
        for (expansion, number) in &numbers {
            let other = |value| {
                let mut numbers = numbers.clone();
                numbers.insert(expansion.clone(), (value, value));
                self.translate(&numbers)
            };
            let changed = other(number.1)?;
            put_back(&mut conversion, [&translated, &changed], *number, expansion)
                .ok_or_else(|| self.computed(expansion))?;
            if let Ok(one) = other("1") {
                permit_one_worker(&mut conversion, &one);
            }
        }
        Ok(conversion)
    }

    fn translate(&self, numbers: &StandIns) -> Result<Conversion, CliError> {
        let words = os_words(&self.replaced(numbers));
        let command = match self.launcher {
            TranslatedLauncher::Accelerate { is_launch } => {
                accelerate::translate_for(TargetMachine::Any, is_launch, &words, self.facts)
            }
            TranslatedLauncher::Deepspeed => deepspeed::translate_for(TargetMachine::Any, &words, self.facts),
        };
        of_translation(self.launcher.name(), command?)
    }

    fn replaced(&self, numbers: &StandIns) -> Vec<String> {
        let replaced = |word: &String| {
            let mut replaced = String::new();
            let mut rest = word.as_str();
            while let Some(letter) = rest.chars().next() {
                // The longest one first: `$AB` before `$A`.
                let expansion = self.shell.expansions.iter().rev().find(|known| rest.starts_with(*known));
                let length = expansion.map_or(letter.len_utf8(), String::len);
                let number = expansion.and_then(|expansion| numbers.get(expansion));
                replaced.push_str(number.map_or(&rest[..length], |(number, _)| number));
                rest = &rest[length..];
            }
            replaced
        };
        self.words.iter().map(replaced).collect()
    }

    /// Numbers for the variables that the launcher wants to be numbers.
    fn find_numbers(&self, known: &StandIns) -> Result<StandIns, CliError> {
        let Err(error) = self.translate(known) else { return Ok(known.clone()) };
        let message = error.to_string();
        let is_named = |expansion: &&String| message.contains(*expansion) && !known.contains_key(*expansion);
        let Some(expansion) = self.shell.expansions.iter().rev().find(is_named) else { return Err(error) };
        let with = |number| {
            let mut numbers = known.clone();
            numbers.insert(expansion.clone(), number);
            self.find_numbers(&numbers).ok()
        };
        STAND_INS
            .into_iter()
            .find_map(with)
            .ok_or_else(|| CliError::refused(message, format!("write the value of `{expansion}`")))
    }

    fn computed(&self, expansion: &str) -> CliError {
        let message = format!(
            "the value of `{expansion}` decides what rankrun's words for `{}` are",
            self.launcher.name()
        );
        CliError::refused(message, format!("write the value of `{expansion}`"))
    }

    /// `$ARGS train.py`: the variable would be taken for the script.
    fn refuse_hidden_options(&self, numbers: &StandIns) -> Result<(), CliError> {
        let mut words = self.replaced(numbers);
        let Some(program) = self.launcher.program(&words) else { return Ok(()) };
        let at = words.len().saturating_sub(program.len());
        let Some(first) = self.words.get(at).filter(|word| self.shell.is_bare(word)) else { return Ok(()) };
        words.remove(at);
        let is_script = |program: Vec<OsString>| {
            let options = words.get(at..words.len().saturating_sub(program.len())).unwrap_or_default();
            program.first().is_some_and(|script| script.to_string_lossy().ends_with(".py"))
                || options.iter().any(|word| word == "-m" || word == "--module")
        };
        if !self.launcher.program(&words).is_some_and(is_script) {
            return Ok(());
        }
        let message =
            format!("`{first}` in front of the script may hold options of `{}`", self.launcher.name());
        Err(CliError::refused(message, format!("write the options of `{first}` out")))
    }
}

/// Writes the variable where the two results have the two numbers; nothing where they differ otherwise.
fn put_back(
    conversion: &mut Conversion,
    [translated, changed]: [&Conversion; 2],
    numbers: (&str, &str),
    expansion: &str,
) -> Option<()> {
    let (before, after) = (texts(translated), texts(changed));
    let places = texts_mut(conversion);
    if before.len() != after.len() || before.len() != places.len() {
        return None;
    }
    for ((before, after), place) in before.into_iter().zip(after).zip(places) {
        if before == after {
            continue;
        }
        let at = before.bytes().zip(after.bytes()).take_while(|(before, after)| before == after).count();
        let behind = before.get(at..)?.strip_prefix(numbers.0)?;
        if after.get(at..)?.strip_prefix(numbers.1)? != behind || place != before {
            return None;
        }
        *place = format!("{}{expansion}{behind}", &before[..at]);
    }
    Some(())
}

/// One process that accelerate starts is not distributed; `auto` changes nothing for several.
fn permit_one_worker(conversion: &mut Conversion, one: &Conversion) {
    const AUTO: [&str; 2] = ["--distributed", "auto"];
    let at = |conversion: &Conversion| conversion.words.windows(2).position(|words| words == AUTO);
    if let (None, Some(at)) = (at(conversion), at(one)) {
        conversion.words.splice(at..at, AUTO.map(str::to_owned));
    }
}

fn texts(conversion: &Conversion) -> Vec<&str> {
    let values = conversion.environment.iter().flat_map(|(name, value)| [Some(name), value.as_ref()]);
    values.flatten().chain(&conversion.words).chain(&conversion.notes).map(String::as_str).collect()
}

fn texts_mut(conversion: &mut Conversion) -> Vec<&mut String> {
    let values = conversion.environment.iter_mut().flat_map(|(name, value)| [Some(name), value.as_mut()]);
    values.flatten().chain(&mut conversion.words).chain(&mut conversion.notes).collect()
}

fn os_words(words: &[String]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn of_translation(launcher: &str, command: OtherCommand) -> Result<Conversion, CliError> {
    let Translation { environment, words, remarks, .. } = match command {
        OtherCommand::Launch(translation) => translation,
        OtherCommand::Print(_) | OtherCommand::Run(_) => {
            let message = format!("this command of `{launcher}` starts no workers");
            return Err(CliError::refused(message, "run it as it is: it needs no rankrun"));
        }
    };
    let text = |word: OsString| word.to_string_lossy().into_owned();
    Ok(Conversion {
        environment: environment.into_iter().map(|(name, value)| (name, value.map(text))).collect(),
        words: words.into_iter().map(text).collect(),
        notes: remarks,
        ..Conversion::default()
    })
}
