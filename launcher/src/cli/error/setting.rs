//! Settings that were read and do not work out.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::cli::other_language::OtherLanguage;
use crate::cli::suggest::answer_to_command;
use crate::process::exec_problem::{is_on_noexec_mount, noexec_hint};

use super::{
    Clash, ConfProblem, ConfigError, DeviceError, Expected, HostProblem, Origin, RuleProblem, advice,
    entrypoint, quoted,
};

/// What was asked for cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// A `PET_*` flag that is no integer, which torchrun refuses too.
    #[error("`{variable}` is `{value}`, which is not a whole number")]
    FlagNotInteger {
        /// The variable.
        variable: String,
        /// Its value.
        value: String,
    },
    /// A text that must be shown or sent and cannot be.
    #[error("{origin} is not valid UTF-8: `{value}`")]
    NotUnicode {
        /// Where it came from.
        origin: Origin,
        /// The value, with what cannot be shown replaced.
        value: String,
    },
    /// Something that torchrun can do and we cannot yet.
    #[error("{origin}{} is not supported yet", shown(value))]
    NotSupported {
        /// Where it came from.
        origin: Origin,
        /// Its value; empty for a flag.
        value: String,
    },
    /// Something that torchrun looks for among Python's plug-ins.
    #[error("{origin} is `{value}`, a plug-in that only Python could load")]
    PythonPlugin {
        /// Where it came from.
        origin: Origin,
        /// Its name.
        value: String,
        /// What works without.
        built_in: &'static [&'static str],
    },
    /// Lines are to be copied to a file, and there are no files.
    #[error("{origin} copies lines to a file, and `--log-dir /dev/null` makes none")]
    DuplicatesWithoutFiles {
        /// Which filter.
        origin: Origin,
    },
    /// A configuration file cannot be used.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// Devices cannot be chosen, counted, shared or bound to as was asked.
    #[error(transparent)]
    Devices(Box<DeviceError>),
    /// A number outside of its range, or a word that is no value of the setting.
    #[error("{origin} is {}, which is not {expected}", quoted(value))]
    Refused {
        /// Where it came from.
        origin: Origin,
        /// The value.
        value: String,
        /// What would have been accepted, in words.
        expected: Expected,
    },
    /// A host at which no node can be reached: torchrun would try it until its time is over.
    #[error("{origin} is `{value}`, {} {problem}", whose(value, host))]
    Host {
        /// Where it came from.
        origin: Origin,
        /// As it was written.
        value: String,
        /// The host in it.
        host: String,
        /// What is wrong with it.
        problem: HostProblem,
    },
    /// `--rdzv-conf` that torchrun could not read either.
    #[error("{origin} has the item `{item}`, {problem}")]
    RendezvousConf {
        /// Where it came from.
        origin: Origin,
        /// The item between two commas.
        item: String,
        /// What is wrong with it.
        problem: ConfProblem,
    },
    /// A rule about restarts that cannot be read, or means nothing.
    #[error("{origin} has the rule `{rule}`, {problem}")]
    RestartRule {
        /// Where it came from.
        origin: Origin,
        /// As it was written.
        rule: String,
        /// What is wrong with it.
        problem: RuleProblem,
    },
    /// It refines something that was not asked for.
    #[error("{origin} is given, but {missing} is not")]
    WithoutEffect {
        /// What was given.
        origin: Origin,
        /// What it refines.
        missing: &'static str,
    },
    /// Two settings that cannot both be meant.
    #[error("{origin} is `{value}`, and {} is `{other_value}`: {clash}", beside(other))]
    Clash {
        /// Where the one came from.
        origin: Origin,
        /// Its value.
        value: String,
        /// Where the other came from.
        other: Box<Origin>,
        /// Its value.
        other_value: String,
        /// Why not.
        clash: Clash,
    },
    /// A worker is named that does not exist.
    #[error("{origin} is `{rank}`, but the local ranks are 0 to {}", workers - 1)]
    NoSuchRank {
        /// Where it came from.
        origin: Origin,
        /// The rank.
        rank: i128,
        /// Workers on this node.
        workers: u32,
    },
    /// A node is named that does not exist.
    #[error("{origin} is `{rank}`, and the node ranks of a job of {nodes} nodes are 0 to {}", nodes - 1)]
    NoSuchNode {
        /// Where it came from.
        origin: Origin,
        /// The rank.
        rank: i128,
        /// Nodes of the job.
        nodes: u32,
    },
    /// Several nodes, and a store on a port that only this one knows.
    #[error("{origin} is `{value}`, and no other node can find a store on a free port")]
    NobodyFindsUs {
        /// Where it came from.
        origin: Origin,
        /// How many nodes.
        value: String,
    },
    /// Several nodes, and no name of the job that they all have.
    #[error("{origin} is empty, and each of {nodes} nodes would make up a run id that no other node has")]
    NoCommonId {
        /// Where it came from.
        origin: Origin,
        /// How many nodes.
        nodes: String,
    },
    /// `--start-timeout` where other nodes may have the store.
    #[error("{origin} needs the launcher's own store, and of several nodes only one has it")]
    JoinsElsewhere {
        /// Where it came from.
        origin: Origin,
    },
    /// `--warn-signal` without `--time-limit`.
    #[error("{origin} warns of a time limit, and there is none")]
    NoTimeLimit {
        /// Where it came from.
        origin: Origin,
    },
    /// `--start-timeout` where worker rank 0 opens the store.
    #[error("{origin} needs the launcher's own store, and rank 0 is to open it")]
    JoinsUnseen {
        /// Where it came from.
        origin: Origin,
    },
    /// Each of several tasks would run a job of its own.
    #[error(
        "`{variable}` says that this is one of {tasks} tasks, and nothing says how many nodes the job has: each task \
         would run a separate job"
    )]
    SeparateJobs {
        /// What says so.
        variable: &'static str,
        /// Tasks on all nodes.
        tasks: u32,
        /// The command line that makes one job of them.
        line: String,
    },
    /// `--module` with `--no-python`.
    #[error("`--no-python` and `--module` exclude each other")]
    ModuleWithoutPython,
    /// `--module` with a path, or with nothing.
    #[error("`--module` takes the name of a module, and `{module}` is not one")]
    ModuleIsPath {
        /// As it was typed.
        module: String,
    },
    /// The entrypoint cannot be run.
    #[error("the entrypoint `{entrypoint}` {problem}")]
    Entrypoint {
        /// As it was typed.
        entrypoint: String,
        /// What is wrong with it.
        problem: EntrypointProblem,
    },
    /// Launches of one entrypoint stand inside one another, as of a script that starts itself.
    #[error(
        "the entrypoint `{entrypoint}` starts itself: this launch is inside {} launches of it, each inside the one \
         before (`RANKRUN_NESTING`)",
        depth - 1
    )]
    NestedTooDeep {
        /// As it was typed.
        entrypoint: String,
        /// Which launch of it this is.
        depth: u32,
    },
    /// `PYTHON_EXEC` names nothing that can be run.
    #[error("`PYTHON_EXEC` is `{value}`, which {problem}")]
    PythonExec {
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: EntrypointProblem,
    },
    /// No Python anywhere.
    #[error("no `python` or `python3` to run the entrypoint with; looked in {}", places(looked))]
    NoPython {
        /// Where.
        looked: Vec<PathBuf>,
    },
}

/// Why a program or script cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntrypointProblem {
    /// Nothing there.
    Missing {
        /// The working folder, which a relative path starts from; empty where that was removed.
        folder: PathBuf,
        /// A file with nearly that name.
        nearest: Option<String>,
    },
    /// It belongs to the list of `--devices`.
    RestOfList {
        /// The whole list.
        list: String,
    },
    /// Neither a file here nor a program in `PATH`.
    NotInPath {
        /// How many folders `PATH` names.
        folders: usize,
        /// A Python script here that has this name.
        script: Option<String>,
    },
    /// A folder that Python cannot run.
    Directory,
    /// A notebook, which only Jupyter can run.
    Notebook,
    /// A script that we may not read.
    NotReadable,
    /// A program on a file system where none may run.
    NoExecMount {
        /// The file.
        path: PathBuf,
    },
    /// A program that we may not run.
    NotExecutable {
        /// Where it is.
        path: PathBuf,
    },
    /// A script that neither the kernel nor Python can run.
    OtherLanguage(OtherLanguage),
}

impl EntrypointProblem {
    /// The reason that a file which is there cannot be run.
    pub(crate) fn of_refused_file(path: PathBuf) -> Self {
        match is_on_noexec_mount(&path) {
            true => Self::NoExecMount { path },
            false => Self::NotExecutable { path },
        }
    }
}

impl fmt::Display for EntrypointProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { folder, .. } if folder.as_os_str().is_empty() => {
                f.write_str("does not exist, and the working folder was removed")
            }
            Self::Missing { folder, .. } => {
                write!(f, "does not exist (working folder `{}`)", folder.display())
            }
            Self::RestOfList { .. } => {
                f.write_str("is not a program: it looks like more of the list of `--devices`")
            }
            Self::NotInPath { folders: 0, .. } => f.write_str("is not in PATH, which names no folder"),
            Self::NotInPath { folders: 1, .. } => f.write_str("is not in PATH (1 folder)"),
            Self::NotInPath { folders, .. } => write!(f, "is not in PATH ({folders} folders)"),
            Self::Directory => f.write_str("is a folder"),
            Self::Notebook => f.write_str("is a notebook, which Python cannot run"),
            Self::NotReadable => f.write_str("cannot be read: permission denied"),
            Self::NoExecMount { path } => {
                write!(f, "cannot run: its file system is mounted with `noexec` (`{}`)", path.display())
            }
            Self::NotExecutable { path } => write!(f, "has no run permission (`{}`)", path.display()),
            Self::OtherLanguage(other) => other.fmt(f),
        }
    }
}

fn shown(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" = `{value}`") }
}

fn places(looked: &[PathBuf]) -> String {
    if looked.is_empty() {
        return "no folder".to_owned();
    }
    let mut named: Vec<String> = looked.iter().map(|folder| format!("`{}`", folder.display())).collect();
    named.dedup();
    named.join(", ")
}

fn whose(value: &str, host: &str) -> String {
    if value == host { "which is".to_owned() } else { format!("whose host `{host}` is") }
}

/// The file is already named.
fn beside(origin: &Origin) -> String {
    match origin {
        Origin::File(place) => format!("`{}` in line {}", place.key, place.line),
        origin => origin.to_string(),
    }
}

impl SettingError {
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::FlagNotInteger { variable, .. } => Some(format!("`{variable}=1` is on, 0 is off")),
            Self::NotSupported { origin, .. } => not_supported_hint(origin),
            Self::Config(error) => Some(error.problem.hint()),
            Self::Devices(error) => Some(error.hint()),
            Self::PythonPlugin { value, built_in, .. } => Some(advice::hint_for_plugin(value, built_in)),
            Self::DuplicatesWithoutFiles { .. } => {
                Some("name a log folder, or leave the filter out".to_owned())
            }
            Self::Host { origin, value, problem, .. } => Some(advice::hint_for_host(origin, value, *problem)),
            Self::RendezvousConf { problem, .. } => Some(problem.hint().to_owned()),
            Self::RestartRule { problem, .. } => Some(problem.hint().to_owned()),
            Self::WithoutEffect { missing, .. } => Some(format!("add {missing}, or leave it out")),
            Self::Clash { clash, .. } => Some(clash.hint().to_owned()),
            Self::NoTimeLimit { .. } => Some("give the limit too, as in `--time-limit 2h`".to_owned()),
            Self::JoinsUnseen { .. } => {
                Some("unset `TORCH_DISABLE_SHARE_RDZV_TCP_STORE`, or leave out the limit".to_owned())
            }
            Self::SeparateJobs { line, .. } => {
                Some(format!("one job is started by `{line}`; for separate jobs add `--nnodes 1`"))
            }
            Self::ModuleWithoutPython => Some("drop one of them".to_owned()),
            Self::ModuleIsPath { module } => Some(entrypoint::hint_for_module(module)),
            Self::Entrypoint { entrypoint, problem } => entrypoint_hint(entrypoint, problem),
            Self::NestedTooDeep { entrypoint, .. } => Some(format!(
                "let `{entrypoint}` start no launcher on itself; where it is meant, start that launcher with \
                 `env -u RANKRUN_NESTING`"
            )),
            Self::PythonExec { .. } => Some("correct the variable, or unset it".to_owned()),
            Self::NoPython { .. } => {
                Some("set `PYTHON_EXEC`, or give `--no-python` if the entrypoint is a program".to_owned())
            }
            Self::JoinsElsewhere { .. } => {
                Some("leave it out: PyTorch's own time-outs still end a start that hangs".to_owned())
            }
            Self::NoSuchNode { .. } => {
                Some("node ranks count from 0, below `--nnodes`; each node has another one".to_owned())
            }
            Self::NobodyFindsUs { .. } => Some(
                "name a place that all nodes know: `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`"
                    .to_owned(),
            ),
            Self::NoCommonId { .. } => {
                Some("give the job one name on all nodes; is a variable unset that holds it?".to_owned())
            }
            Self::NoSuchRank { .. } => Some("ranks count from 0, below `--nproc-per-node`".to_owned()),
            Self::NotUnicode { .. } => Some("write it in UTF-8".to_owned()),
            Self::Refused { origin, value, expected } => {
                Some(advice::hint_for_setting(origin, *expected, value))
            }
        }
    }
}

fn not_supported_hint(origin: &Origin) -> Option<String> {
    match origin {
        Origin::Variable(name) => Some(format!("unset `{name}`")),
        Origin::File(place) => Some(format!("drop `{}` from the file", place.key)),
        Origin::Option("nproc-per-node") => {
            Some("give the number, such as `--nproc-per-node 8`, or `cpu`".to_owned())
        }
        Origin::Option("rdzv-backend" | "rdzv-conf") => {
            Some("take `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`, which needs nothing else".to_owned())
        }
        Origin::Option(_) => Some("leave it out".to_owned()),
    }
}

fn entrypoint_hint(name: &str, problem: &EntrypointProblem) -> Option<String> {
    match problem {
        EntrypointProblem::Missing { .. } | EntrypointProblem::NotInPath { .. }
            if matches!(name, "run" | "explain") =>
        {
            Some(format!("the word `{name}` must stand first; a file of that name is `./{name}`"))
        }
        EntrypointProblem::Missing { .. } | EntrypointProblem::NotInPath { .. }
            if name.split_once(' ').is_some() =>
        {
            Some("it has a space in it: leave out the quotes around the program and its arguments".to_owned())
        }
        EntrypointProblem::Missing { folder, .. } if folder.as_os_str().is_empty() => {
            Some("change to a folder that exists with `cd`".to_owned())
        }
        EntrypointProblem::Missing { nearest: Some(nearest), .. } => {
            Some(format!("did you mean `{nearest}`?"))
        }
        EntrypointProblem::Missing { .. } => {
            let check_path = || "check the path; for a module give `-m`".to_owned();
            Some(entrypoint::hint_for_name(name).unwrap_or_else(check_path))
        }
        EntrypointProblem::NotInPath { script: Some(script), .. } => {
            Some(format!("did you mean `{script}`?"))
        }
        EntrypointProblem::NotInPath { .. } if is_list(name) => Some(format!(
            "`{name}` stands in the place of the program; a list is one word, as in `--devices 0,2`"
        )),
        EntrypointProblem::NotInPath { .. } if is_python(Path::new(name)) => {
            Some("leave `--no-python` out: Python then runs the script".to_owned())
        }
        EntrypointProblem::NotInPath { .. } => {
            if let Some(hint) = entrypoint::hint_for_name(name) {
                return Some(hint);
            }
            let path = || format!("give its path, as in `./{name}`; for a module give `-m`");
            Some(answer_to_command(name).unwrap_or_else(path))
        }
        EntrypointProblem::RestOfList { list } => {
            Some(format!("write the list as one word: `--devices {list}`"))
        }
        EntrypointProblem::Directory => {
            Some("name a script, or a folder that has a `__main__.py`".to_owned())
        }
        EntrypointProblem::NotExecutable { path } => Some(if is_python(path) {
            "drop `--no-python`: Python then runs it".to_owned()
        } else {
            format!("chmod +x {}", path.display())
        }),
        EntrypointProblem::NoExecMount { .. } => Some(noexec_hint().to_owned()),
        EntrypointProblem::Notebook => {
            Some(format!("make a script of it: `jupyter nbconvert --to script {name}`"))
        }
        EntrypointProblem::OtherLanguage(other) => Some(other.hint(name)),
        EntrypointProblem::NotReadable => Some("chmod +r, or run as a user who may read it".to_owned()),
    }
}

fn is_list(entrypoint: &str) -> bool {
    entrypoint.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b'-'))
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}
