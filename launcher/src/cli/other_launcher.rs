//! The command lines of `accelerate launch` and `deepspeed`, translated into command lines of rankrun. `rankrun convert`
//! prints such a translation. A launch under another launcher's name is the launch of the translated words in the
//! translated environment; nothing behind this room knows other launchers.

pub(super) mod convert;

mod accelerate;
mod deepspeed;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::error::CliError;
use rankrun_core::facts::Facts;
use rankrun_tools::explain::{ReadAs, Text};

/// The other launcher's own program has it in its environment. It is a wrapper around rankrun if it hands over again.
pub(crate) const HANDED_OVER: &str = "RANKRUN_HANDED_OVER";

/// A launch of another launcher, as rankrun's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Translation {
    /// Variables of the launcher's environment to set, or to remove where there is no value. The workers inherit them.
    pub(crate) environment: Vec<(String, Option<OsString>)>,
    /// The words behind `rankrun`: options, entrypoint and its arguments.
    pub(crate) words: Vec<OsString>,
    /// What has no equivalent: a sentence each, without a full stop.
    pub(crate) remarks: Vec<String>,
    /// What is for single hosts of `--hosts` in the words, in their order.
    pub(crate) nodes: Vec<NodeChange>,
}

/// Options and variables of the launch on one host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeChange {
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

impl Translation {
    /// The launch alone, without the words of `explain`, which stand in front as in the command line.
    pub(crate) fn read_as(&self, argv: &[OsString]) -> ReadAs {
        let typed = argv.split_first().filter(|(argv0, _)| called_as(argv0).is_none());
        let start = typed.map_or(0, |(_, words)| explain_words(words));
        let words = self.words.iter().skip(start).cloned();
        ReadAs {
            environment: self
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.clone().map(Text)))
                .collect(),
            command: [OsString::from("rankrun")].into_iter().chain(words).map(Text).collect(),
        }
    }
}

/// A command line of another launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OtherCommand {
    /// Start workers, or explain what would be started.
    Launch(Translation),
    /// Print this on stdout and exit 0.
    Print(String),
    /// Become the other launcher's own program, which has commands that rankrun has not.
    Run(OtherProgram),
}

/// A program that takes the place of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherProgram {
    /// The file to execute.
    pub(crate) path: PathBuf,
    /// Its arguments; the first is the name.
    pub(crate) argv: Vec<OsString>,
}

/// The machine that a translation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetMachine {
    This,
    /// Nothing is asked of the devices of this one.
    Any,
}

/// Words of a translation for any machine, which its shell replaces: the search path so far, the working folder, and the
/// number of threads or accelerate's default.
const OLD_PYTHONPATH: &str = "${PYTHONPATH:+$PYTHONPATH:}";
const WORKING_FOLDER: &str = "${PWD}";
const OLD_THREADS: &str = "${OMP_NUM_THREADS:-1}";

/// The launchers that rankrun can stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OtherLauncher {
    Accelerate,
    Deepspeed,
}

/// The help of the command of this name, where rankrun has one for it.
pub(super) fn help(command: &str, width: Option<usize>) -> Option<String> {
    match command {
        "accelerate" => Some(accelerate::help(width)),
        "deepspeed" => Some(deepspeed::help(width)),
        _ => None,
    }
}

/// The command line of another launcher, if this is one: by the name of the program, as the first word, or behind
/// `explain` and its options.
///
/// # Errors
/// The other launcher refuses this command line, or rankrun has nothing for it.
pub(crate) fn translate(argv: &[OsString], facts: &Facts) -> Result<Option<OtherCommand>, CliError> {
    let Some((argv0, words)) = argv.split_first() else { return Ok(None) };
    if let Some((launcher, is_launch)) = called_as(argv0) {
        return launcher.translate(is_launch, words, facts).map(Some);
    }
    if Path::new(argv0).file_name().is_some_and(|name| name == "torchrun") {
        return Ok(None);
    }
    let start = explain_words(words);
    let Some(launcher) = words.get(start).and_then(|word| command_named(word)) else { return Ok(None) };
    let command = launcher.translate(false, &words[start + 1..], facts)?;
    Ok(Some(match command {
        OtherCommand::Launch(mut translation) => {
            translation.words.splice(..0, words[..start].iter().cloned());
            OtherCommand::Launch(translation)
        }
        OtherCommand::Run(_) if start > 0 => {
            return Err(CliError::refused(
                "`explain` explains a launch, and only accelerate's own program has this command",
                "write `rankrun explain accelerate launch ...`",
            ));
        }
        OtherCommand::Print(_) | OtherCommand::Run(_) => command,
    }))
}

/// Whether the launch of another launcher is only explained.
pub(crate) fn is_query(argv: &[OsString]) -> bool {
    argv.split_first().is_some_and(|(argv0, words)| called_as(argv0).is_none() && explain_words(words) > 0)
}

/// Whether another launcher's own program takes the place of this one.
pub(crate) fn is_for_other_program(argv: &[OsString]) -> bool {
    let Some((argv0, words)) = argv.split_first() else { return false };
    let words = match called_as(argv0) {
        Some((OtherLauncher::Accelerate, is_launch)) => Some(words).filter(|_| !is_launch),
        Some((OtherLauncher::Deepspeed, _)) => None,
        None => words.split_first().filter(|(first, _)| *first == "accelerate").map(|(_, rest)| rest),
    };
    words.is_some_and(|words| words.first().is_none_or(|word| word != "launch"))
}

/// The launcher of this program name, and whether the name includes `launch`.
fn called_as(argv0: &OsStr) -> Option<(OtherLauncher, bool)> {
    Some(match Path::new(argv0).file_name()?.to_str()? {
        "accelerate" => (OtherLauncher::Accelerate, false),
        "accelerate-launch" => (OtherLauncher::Accelerate, true),
        "deepspeed" | "deepspeed.pt" | "ds" => (OtherLauncher::Deepspeed, true),
        _ => return None,
    })
}

fn command_named(word: &OsStr) -> Option<OtherLauncher> {
    match word.to_str()? {
        "accelerate" => Some(OtherLauncher::Accelerate),
        "deepspeed" => Some(OtherLauncher::Deepspeed),
        _ => None,
    }
}

/// The number of words of `explain` with its options; 0 without it.
fn explain_words(words: &[OsString]) -> usize {
    if words.first().is_none_or(|word| word != "explain") {
        return 0;
    }
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        at += match word {
            "--script" => 2,
            word if word.starts_with("--") => 1,
            _ => break,
        };
    }
    at.min(words.len())
}

impl OtherLauncher {
    /// `is_launch`: no word `launch` is needed.
    fn translate(self, is_launch: bool, words: &[OsString], facts: &Facts) -> Result<OtherCommand, CliError> {
        match self {
            Self::Accelerate => accelerate::translate(is_launch, words, facts),
            Self::Deepspeed => deepspeed::translate(words, facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translation_is_read_as_launch_without_explain() {
        let words = ["explain", "--json", "--nproc-per-node", "2", "x y.py"].map(OsString::from);
        let translation = Translation { words: words.to_vec(), ..Translation::default() };
        let argv = ["rankrun", "explain", "--json", "deepspeed", "x y.py"].map(OsString::from);
        let read_as = translation.read_as(&argv);
        assert_eq!(read_as.command_line(), "rankrun --nproc-per-node 2 'x y.py'");
        assert!(read_as.explains("hint: `--nproc-per-node 1`") && !read_as.explains("`--devices` is `a`"));
    }

    #[test]
    fn options_of_explain_stand_before_launcher() {
        for (line, start) in [
            ("explain --json accelerate launch x.py", 2),
            ("explain --script 0 deepspeed x.py", 3),
            ("explain", 1),
            ("explain --script", 2),
            ("accelerate launch", 0),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(explain_words(&words), start, "{line}");
        }
    }
}
