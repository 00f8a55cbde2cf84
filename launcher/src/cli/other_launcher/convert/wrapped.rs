//! Finds the launcher of a command line: the first word, or a word behind programs that run another one.

use std::path::Path;

use rankrun_core::shell::split;

use super::Environment;
use crate::cli::entrypoint::is_python;
use crate::cli::error::CliError;

/// Programs that run the command behind their own words.
const WRAPPERS: [&str; 27] = [
    "apptainer",
    "chrt",
    "conda",
    "docker",
    "env",
    "exec",
    "hatch",
    "ionice",
    "mamba",
    "micromamba",
    "nice",
    "nohup",
    "numactl",
    "pdm",
    "pipenv",
    "pixi",
    "podman",
    "poetry",
    "rye",
    "setsid",
    "singularity",
    "stdbuf",
    "sudo",
    "taskset",
    "time",
    "timeout",
    "uv",
];
/// Options of these whose value may be the name of a launcher: `conda run -n deepspeed`.
const NAME_OPTIONS: [&str; 5] = ["-n", "--name", "-p", "--prefix", "--with"];

const KNOWN: &str = "it knows torchrun, `python -m torch.distributed.run` and `.launch`, accelerate launch, deepspeed, \
                     mpirun, mpiexec, srun, torchx and horovodrun";

/// A launcher that is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    /// `is_old`: `torch.distributed.launch`.
    Torchrun {
        is_old: bool,
    },
    /// `is_launch`: no word `launch` is needed.
    Accelerate {
        is_launch: bool,
    },
    Deepspeed,
    Mpirun,
    Srun,
    Torchx,
    Horovodrun,
}

/// The parts of a command line.
#[derive(Debug)]
pub(super) struct Wrapped<'a> {
    pub(super) assignments: Environment,
    /// The words in front of the launcher.
    pub(super) prefix: &'a [String],
    pub(super) launcher: Launcher,
    /// The Python that runs the launcher, where it is named.
    pub(super) python: Option<&'a str>,
    /// The words behind the launcher.
    pub(super) rest: &'a [String],
}

/// Splits the words at the launcher.
///
/// # Errors
/// There is no launcher that is converted.
pub(super) fn find(words: &[String]) -> Result<Wrapped<'_>, CliError> {
    let count = words.iter().take_while(|word| assignment(word).is_some()).count();
    let (assigned, words) = words.split_at(count);
    let assignments = assigned.iter().filter_map(|word| assignment(word)).collect();
    let is_wrapper = words.first().is_some_and(|word| WRAPPERS.contains(&file_name(word)));
    let starts = if is_wrapper { 0..words.len() } else { 0..1.min(words.len()) };
    let found = starts.into_iter().find_map(|at| {
        let is_value = at > 0 && NAME_OPTIONS.contains(&words[at - 1].as_str());
        let (launcher, python, rest) = launcher_at(&words[at..]).filter(|_| !is_value)?;
        Some((&words[..at], launcher, python, rest))
    });
    match found {
        Some((prefix, launcher, python, rest)) => Ok(Wrapped { assignments, prefix, launcher, python, rest }),
        None => Err(no_launcher(words, is_wrapper)),
    }
}

fn no_launcher(words: &[String], is_wrapper: bool) -> CliError {
    let Some(first) = words.first() else {
        return CliError::refused("there is no launcher behind the assignments", KNOWN);
    };
    match file_name(first) {
        "rankrun" => CliError::refused("the command line is already one of rankrun", "run it as it is"),
        name if is_python(name) => CliError::refused(
            format!("`{first}` starts one process, and is not a launcher"),
            "write the script behind `rankrun`, as in `rankrun train.py`: one worker for each accelerator",
        ),
        _ if is_wrapper => CliError::refused(
            format!("there is no launcher that `rankrun convert` knows behind `{first}`"),
            KNOWN,
        ),
        _ => CliError::refused(format!("`rankrun convert` does not know the launcher `{first}`"), KNOWN),
    }
}

/// The launcher that the words begin with, its Python, and the words behind it.
fn launcher_at(words: &[String]) -> Option<(Launcher, Option<&str>, &[String])> {
    let (first, rest) = words.split_first()?;
    if let Some(launcher) = launcher_named(file_name(first)) {
        return Some((launcher, None, rest));
    }
    if !is_python(file_name(first)) {
        return None;
    }
    let mut rest = rest;
    loop {
        let (word, behind) = rest.split_first()?;
        let launcher = match word.as_str() {
            "-W" | "-X" => {
                rest = behind.get(1..)?;
                continue;
            }
            "-m" => {
                let (module, behind) = behind.split_first()?;
                return Some((launcher_module(module)?, Some(first), behind));
            }
            option if option.starts_with("-m") => launcher_module(&option[2..]),
            option if option.starts_with('-') => {
                rest = behind;
                continue;
            }
            script => launcher_named(file_name(script)),
        };
        return Some((launcher?, Some(first), behind));
    }
}

fn launcher_named(name: &str) -> Option<Launcher> {
    Some(match name {
        "torchrun" => Launcher::Torchrun { is_old: false },
        "accelerate" => Launcher::Accelerate { is_launch: false },
        "accelerate-launch" => Launcher::Accelerate { is_launch: true },
        "deepspeed" | "deepspeed.pt" | "ds" => Launcher::Deepspeed,
        "mpirun" | "mpiexec" | "mpiexec.hydra" | "orterun" | "prterun" => Launcher::Mpirun,
        "srun" => Launcher::Srun,
        "torchx" => Launcher::Torchx,
        "horovodrun" => Launcher::Horovodrun,
        _ => return None,
    })
}

fn launcher_module(module: &str) -> Option<Launcher> {
    Some(match module {
        "torch.distributed.run" => Launcher::Torchrun { is_old: false },
        "torch.distributed.launch" => Launcher::Torchrun { is_old: true },
        "accelerate.commands.launch" => Launcher::Accelerate { is_launch: true },
        "accelerate.commands.accelerate_cli" => Launcher::Accelerate { is_launch: false },
        "deepspeed.launcher.runner" => Launcher::Deepspeed,
        "horovod.runner.launch" => Launcher::Horovodrun,
        _ => return None,
    })
}

/// The launcher in the text that a shell runs: `bash -c 'torchrun …'`.
pub(super) fn launcher_in_quotes(program: &[String]) -> Option<&str> {
    let (shell, rest) = program.split_first()?;
    if !["bash", "dash", "sh", "zsh"].contains(&file_name(shell)) {
        return None;
    }
    let is_launcher =
        |word: &&str| launcher_named(file_name(word)).or_else(|| launcher_module(word)).is_some();
    let texts = rest.iter().filter(|text| text.contains(char::is_whitespace));
    texts.flat_map(|text| text.split_whitespace()).find(is_launcher)
}

/// `NAME=VALUE`
pub(super) fn assignment(word: &str) -> Option<(String, Option<String>)> {
    let (name, value) = split::assignment(word)?;
    Some((name.to_owned(), Some(value.to_owned())))
}

pub(super) fn file_name(word: &str) -> &str {
    Path::new(word).file_name().and_then(|name| name.to_str()).unwrap_or(word)
}
