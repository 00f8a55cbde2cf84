//! Completions: `rankrun completions SHELL`, and torchrun's `--print-completion`. clap_complete makes them.
//!
//! The script of rankrun asks the launcher at each tab. So subcommands stand beside the files of the folder, the jobs
//! that run complete `status`, `stacks`, `stop` and `restart`, and behind the entrypoint no option of the launcher is
//! offered. The script of torchrun stands alone: where PyTorch's own torchrun takes its place again, a question would be
//! a launch.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate, complete};
use clap_complete::env::Shells;
use clap_complete::{Shell as ShellOfClap, generate};

use super::help::TOPICS;
use super::option::{Kind, LaunchOption, letters, long_names, options};
use super::subcommand;
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_host::control::folder::RuntimeFolders;

/// Names the shell whose script asks.
const VARIABLE: &str = "RANKRUN_COMPLETE";
/// Where the word that is completed stands.
const INDEX_VARIABLE: &str = "_CLAP_COMPLETE_INDEX";
const SEPARATOR_VARIABLE: &str = "_CLAP_IFS";

/// A shell that has completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
    /// Under the name torchrun alone.
    #[value(skip)]
    Tcsh,
}

impl Shell {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
            Self::Tcsh => "tcsh",
        }
    }
}

/// What torchrun's `--print-completion` takes.
pub(super) const TORCHRUN_SHELLS: &[&str] = &["bash", "zsh", "tcsh"];

/// The shell of this name, of torchrun's.
pub(super) fn torchrun_shell(name: &str) -> Option<Shell> {
    [Shell::Bash, Shell::Zsh, Shell::Tcsh].into_iter().find(|shell| shell.as_str() == name)
}

/// The script for the command of this name.
pub(super) fn script(cli_flavor: CliFlavor, shell: Shell) -> String {
    let shell_of_clap = match shell {
        Shell::Bash => ShellOfClap::Bash,
        Shell::Zsh => ShellOfClap::Zsh,
        Shell::Fish => ShellOfClap::Fish,
        Shell::Tcsh => return tcsh_script(cli_flavor),
    };
    let mut script = Vec::new();
    match (cli_flavor, Shells::builtins().completer(shell.as_str())) {
        (CliFlavor::Rankrun, Some(completer)) => {
            // Writing into memory cannot fail.
            let _ = completer.write_registration(VARIABLE, "rankrun", "rankrun", "rankrun", &mut script);
        }
        _ => generate(shell_of_clap, &mut launch_command("torchrun", cli_flavor), "torchrun", &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// The answer to a script of rankrun, where one asks: `words` are those behind the launcher's name.
pub(super) fn answer(words: &[OsString], facts: &Facts) -> Option<String> {
    let shell = facts.filled_variable(VARIABLE)?.to_str()?;
    let start = words.iter().position(|word| word == "--").map_or(0, |at| at + 1);
    let number = |name| facts.variable(name)?.to_str()?.parse::<usize>().ok();
    let typed = &words[start..];
    let index = number(INDEX_VARIABLE).unwrap_or(typed.len().saturating_sub(1));
    let (mut typed, mut index) = as_known(typed, index);
    let mut explained = CliFlavor::Rankrun;
    if let Some((at, cli_flavor)) = name_behind_explain(&typed[..index.min(typed.len())]) {
        typed.remove(at);
        (index, explained) = (index - 1, cli_flavor);
    }
    let mut command = whole_command(explained);
    let first = typed.get(1).filter(|_| index > 1);
    // A subcommand stands first, or nowhere.
    command = match first.filter(|first| command.find_subcommand(first).is_none()) {
        Some(_) => launch_command("rankrun", CliFlavor::Rankrun),
        None => with_jobs(command, facts),
    };
    command.build();
    if is_behind_entrypoint(&command, typed.get(1..index).unwrap_or_default()) {
        return Some(String::new());
    }
    if shell != "bash" {
        let mut answer = Vec::new();
        let folder = facts.working_folder();
        let completer = Shells::builtins();
        completer.completer(shell)?.write_complete(&mut command, typed, Some(&folder), &mut answer).ok()?;
        return Some(String::from_utf8_lossy(&answer).into_owned());
    }
    let separator = facts.variable(SEPARATOR_VARIABLE).and_then(OsStr::to_str).unwrap_or("\n");
    Some(candidates(&mut command, typed, index, facts).join(separator))
}

/// The words that bash may put there. An empty word stands for a subcommand, a file or a value.
fn candidates(command: &mut Command, typed: Vec<OsString>, index: usize, facts: &Facts) -> Vec<String> {
    let is_empty = typed.get(index).is_none_or(|word| word.is_empty());
    let found = complete(command, typed, index, Some(&facts.working_folder())).unwrap_or_default();
    let words = found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned());
    words.filter(|word| !is_empty || !word.starts_with('-')).collect()
}

/// Options that were typed as the engine knows them: with hyphens, and without the `=` that bash makes a word of its own.
fn as_known(words: &[OsString], index: usize) -> (Vec<OsString>, usize) {
    let mut kept = Vec::with_capacity(words.len());
    let mut index_kept = index;
    for (at, word) in words.iter().enumerate() {
        if word == "=" && at > 0 && words[at - 1].to_string_lossy().starts_with("--") {
            if at == index {
                kept.push(OsString::new());
            } else if at < index {
                index_kept -= 1;
            }
        } else if let Some(name) = word.to_str().filter(|word| at != index && word.starts_with("--")) {
            let (name, value) = name.split_at(name.find('=').unwrap_or(name.len()));
            kept.push(format!("{}{value}", name.replace('_', "-")).into());
        } else {
            kept.push(word.clone());
        }
    }
    (kept, index_kept)
}

/// The name of a command that `explain` explains: the words behind it are those of a launch under that name.
fn name_behind_explain(words: &[OsString]) -> Option<(usize, CliFlavor)> {
    words.get(1).filter(|word| *word == "explain")?;
    let mut words = words.iter().enumerate().skip(2);
    while let Some((at, word)) = words.next() {
        match word.to_str()? {
            "--script" => drop(words.next()),
            "torchrun" => return Some((at, CliFlavor::Torchrun)),
            "rankrun" => return Some((at, CliFlavor::Rankrun)),
            word if !word.starts_with('-') => return None,
            _ => {}
        }
    }
    None
}

/// Whether one of the words is the entrypoint: what follows it is the program's own.
fn is_behind_entrypoint(command: &Command, words: &[OsString]) -> bool {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    let mut command = command;
    let mut is_first = true;
    while let Some(word) = words.next() {
        match command.find_subcommand(&*word).filter(|_| is_first) {
            Some(found) if ["run", "explain"].contains(&found.get_name()) => command = found,
            Some(_) => return false,
            None if word == "--" => {}
            None if !word.starts_with('-') => return true,
            None => {
                let is_named = |arg: &&Arg| names(arg).contains(&word.to_string());
                let option = command.get_arguments().find(is_named);
                if option.is_some_and(|option| option.get_action().takes_values()) {
                    words.next();
                }
            }
        }
        is_first = false;
    }
    false
}

/// The words of rankrun: subcommands, and the options of a launch; behind `explain` those of the given name.
fn whole_command(explained: CliFlavor) -> Command {
    let mut command = launch_command("rankrun", CliFlavor::Rankrun).disable_help_subcommand(true);
    for known in subcommand::described().get_subcommands() {
        let mut known = known.clone();
        if ["run", "explain"].contains(&known.get_name()) {
            let cli_flavor = if known.get_name() == "explain" { explained } else { CliFlavor::Rankrun };
            let arguments = options(cli_flavor).filter(|option| option.get_help_heading().is_some());
            known = known.args(arguments.map(|option| for_shells(option.clone(), CliFlavor::Rankrun)));
            known = known.mut_arg("words", |words| words.value_hint(ValueHint::AnyPath));
        }
        command = command.subcommand(known);
    }
    let names = command.get_subcommands().map(|known| known.get_name().to_owned());
    let topics: BTreeSet<String> = names.chain(TOPICS.map(str::to_owned)).collect();
    command.mut_subcommand("help", |help| {
        help.mut_arg("topic", |topic| topic.value_parser(PossibleValuesParser::new(topics)))
    })
}

fn launch_command(name: &'static str, cli_flavor: CliFlavor) -> Command {
    let entrypoint = Arg::new("entrypoint").value_name("ENTRYPOINT").value_hint(ValueHint::AnyPath);
    let arguments = Arg::new("arguments")
        .value_name("ARGS")
        .num_args(0..)
        .trailing_var_arg(true)
        .value_hint(ValueHint::AnyPath);
    Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(options(cli_flavor).map(|option| for_shells(option.clone(), cli_flavor)))
        .arg(entrypoint)
        .arg(arguments)
}

/// The option with values that a shell can offer. torchrun's names have two spellings.
fn for_shells(option: Arg, cli_flavor: CliFlavor) -> Arg {
    let underscored = option.long_name().replace('-', "_");
    let option = match (option.long_name() == underscored, cli_flavor) {
        (true, _) => option,
        (false, CliFlavor::Rankrun) => option.alias(underscored),
        (false, CliFlavor::Torchrun) => option.visible_alias(underscored),
    };
    match (option.kind(), words_of(&option)) {
        (Kind::Flag, _) if option.get_action().takes_values() => {
            option.value_parser(clap::value_parser!(bool)).action(ArgAction::SetTrue)
        }
        (Kind::Flag, _) => option,
        (_, Some(words)) => option.value_parser(PossibleValuesParser::new(words)),
        (_, None) => {
            let hint = match LaunchOption::value_name(&option) {
                "DIR" => ValueHint::DirPath,
                "PATH" | "FILE" => ValueHint::FilePath,
                _ => ValueHint::Other,
            };
            option.value_hint(hint)
        }
    }
}

/// The jobs, for the subcommands that take one. They are searched for only where one is completed.
fn with_jobs(command: Command, facts: &Facts) -> Command {
    let places = RuntimeFolders::of_environment(facts.environment());
    ["status", "stacks", "stop", "restart"].into_iter().fold(command, |command, name| {
        let places = places.clone();
        let candidates = ArgValueCandidates::new(move || job_candidates(places.clone()));
        command.mut_subcommand(name, |command| command.mut_arg("job", |job| job.add(candidates)))
    })
}

/// No job is connected to: that would start a thread in it. So a job that was killed, with its guard, is offered too
/// until `rankrun ls` or `gc` has removed its folder.
fn job_candidates(places: RuntimeFolders) -> Vec<CompletionCandidate> {
    let jobs = places.find_job_folders().map_or_else(|_| Vec::new(), |found| found.jobs);
    jobs.into_iter().map(|folder| CompletionCandidate::new(folder.job)).collect()
}

/// Every name of an option.
fn names(option: &Arg) -> Vec<String> {
    let short = letters(option).map(|letter| format!("-{letter}"));
    let long =
        long_names(option).flat_map(|long| [format!("--{long}"), format!("--{}", long.replace('-', "_"))]);
    short.chain(long).collect()
}

/// The values that can be offered: the choices, or the lower-case words of a list such as `N|cpu|auto`.
fn words_of(option: &Arg) -> Option<Vec<String>> {
    let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let words: Vec<String> = match option.kind() {
        Kind::Choice(choices) => choices,
        _ if option.value_name().contains('|') => {
            option.value_name().split('|').filter(is_word).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    (!words.is_empty()).then_some(words)
}

/// clap_complete has none for tcsh, which torchrun's option takes.
fn tcsh_script(cli_flavor: CliFlavor) -> String {
    let name = match cli_flavor {
        CliFlavor::Rankrun => "rankrun",
        CliFlavor::Torchrun => "torchrun",
    };
    let values: String = options(cli_flavor)
        .filter_map(|option| Some((option, words_of(option)?.join(" "))))
        .flat_map(|(option, words)| {
            names(option).into_iter().map(move |name| format!(" 'n/{name}/({words})/'"))
        })
        .collect();
    let long: Vec<&str> = options(cli_flavor).map(LaunchOption::long_name).collect();
    format!(
        "# tcsh completion of {name}: source this file\ncomplete {name}{values} 'c/--/({})/' 'p/*/f/'\n",
        long.join(" ")
    )
}

#[cfg(test)]
mod tests;
