//! `torchrun` and its module, which have rankrun's options, and the old `torch.distributed.launch`.

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::{Arg, ArgAction};

use super::{Conversion, Environment};
use crate::cli::error::CliError;
use crate::cli::option::command;
use crate::cli::settings::{CommandLine, ParsedArgs, parse_with};
use rankrun_core::shell::split::ShellWords;
use rankrun_core::spec::CliFlavor;

/// The argument that the old module gives the script.
const LOCAL_RANK: &str = "--local-rank=${local_rank}";
const OLD_SPELLING: &str =
    "the script gets `--local-rank`, as from PyTorch 2; older ones gave it `--local_rank`";

/// The options of the old module.
static OLD: LazyLock<clap::Command> = LazyLock::new(|| {
    let flag = Arg::new("use-env").long("use-env").action(ArgAction::SetTrue);
    command(CliFlavor::Torchrun).clone().arg(flag)
});

/// A command line that torchrun accepts.
struct Accepted {
    line: CommandLine,
    /// Where the entrypoint stands.
    at: usize,
    uses_environment: bool,
}

/// The words of torchrun, or of `torch.distributed.launch` (`is_old`).
///
/// # Errors
/// torchrun refuses them, or they start no workers.
pub(super) fn convert(
    is_old: bool,
    words: &[String],
    assignments: &Environment,
    shell: &ShellWords,
) -> Result<Conversion, CliError> {
    let known: Vec<_> = words
        .iter()
        .enumerate()
        .map(|(at, word)| (at, shell.replace_expansions(word, |_| "0".to_owned())))
        .collect();
    let (accepted, has_hidden_options) = find_entrypoint(is_old, words, known, shell)?;
    let Accepted { line, at, uses_environment } = accepted;
    let mut options: Vec<String> = words[..at].to_vec();
    options.retain(|word| !(is_old && ["--use_env", "--use-env"].contains(&word.as_str())));
    let mut notes = Vec::new();
    let is_counted = assignments.iter().any(|(name, _)| name == "PET_NPROC_PER_NODE");
    if has_hidden_options {
        notes.push(
            "rankrun starts one worker per accelerator, torchrun one, if the variable has no --nproc-per-node".to_owned(),
        );
    } else if line.args.torchrun.nproc_per_node.is_none() && !is_counted {
        options.splice(..0, ["--nproc-per-node", "1"].map(str::to_owned));
    }
    let mut rest = words[at..].to_vec();
    if is_old && !uses_environment {
        if line.args.torchrun.no_python.is_some() {
            let message = "`torch.distributed.launch` refuses `--no_python` without `--use_env`";
            return Err(CliError::refused(message, "add `--use_env`"));
        }
        rest.splice(
            1..1 + usize::from(rest.get(1).is_some_and(|word| word == "--")),
            [LOCAL_RANK.to_owned()],
        );
        notes.push(OLD_SPELLING.to_owned());
    }
    Ok(Conversion { words: [options, rest].concat(), notes, ..Conversion::default() })
}

/// The accepted line, and whether a variable in front of the script may hold further options, as `$DISTRIBUTED_ARGS`.
fn find_entrypoint(
    is_old: bool,
    words: &[String],
    mut known: Vec<(usize, String)>,
    shell: &ShellWords,
) -> Result<(Accepted, bool), CliError> {
    let mut has_hidden_options = false;
    loop {
        let accepted = accept(is_old, &known)?;
        let found = known.iter().position(|(at, _)| *at == accepted.at);
        let Some(index) = found.filter(|_| shell.is_bare(&words[accepted.at])) else {
            return Ok((accepted, has_hidden_options));
        };
        let mut fewer = known.clone();
        fewer.remove(index);
        let is_script = |accepted: &Accepted| {
            words[accepted.at].ends_with(".py") || accepted.line.args.torchrun.module.is_some()
        };
        if !accept(is_old, &fewer).is_ok_and(|accepted| is_script(&accepted)) {
            return Ok((accepted, has_hidden_options));
        }
        has_hidden_options = true;
        known = fewer;
    }
}

fn accept(is_old: bool, known: &[(usize, String)]) -> Result<Accepted, CliError> {
    let words: Vec<OsString> = known.iter().map(|(_, word)| word.into()).collect();
    let grammar: &'static clap::Command = if is_old { &OLD } else { command(CliFlavor::Torchrun) };
    let (parsed, further) = parse_with(CliFlavor::Torchrun, &words, grammar)?;
    let ParsedArgs::Launch(line) = parsed else {
        return Err(CliError::refused(
            "this line of torchrun starts no workers",
            "run it as it is: it needs no rankrun",
        ));
    };
    let mut index = words.len() - line.arguments.len() - 1;
    if words[index] == "--" && line.entrypoint != "--" {
        index -= 1;
    }
    Ok(Accepted { line: *line, at: known[index].0, uses_environment: !further.is_empty() })
}
