//! `rankrun shim`: makes rankrun the `torchrun` of a Python environment, and restores PyTorch's.
//!
//! There are three ways to call torchrun, and each has its own part:
//!
//! | call | what makes it ours |
//! |---|---|
//! | `torchrun` | `bin/torchrun` is a script that a shell and Python can both read; the shell runs us |
//! | `python …/bin/torchrun` | the hook: a line in a `.pth` file, run at each start of that Python |
//! | `python -m torch.distributed.run` | the hook |
//!
//! A script, and not a link to us, since a link would be broken when rankrun is uninstalled, and no Python could read
//! it: the shell costs 0.7 ms. Python's part of the script is PyTorch's own command. The hook also replaces a
//! `bin/torchrun` that an installer has written again.
//!
//! `environment` chooses the environment, `layout` names the files, `state`
//! classifies the present files, `plan` computes the changes, `status` says what would run: all pure. `probe` asks a
//! Python, and `disk` reads and changes files.

mod disk;
mod environment;
mod error;
mod interrupted;
mod layout;
mod plan;
mod probe;
mod state;
mod status;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub use error::ShimError;
pub use interrupted::{CleanupResult, InterruptedFile, find_interrupted};

use environment::PythonEnvironment;
use layout::{Layout, ShimTexts};
use plan::{turn_off, turn_on};
use rankrun_core::facts::Facts;
use rankrun_core::spec::OutputFormat;
use state::{ShimState, Torchrun};
use status::{OutsideFacts, Status};

/// The request of a `rankrun shim` command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShimRequest {
    /// The action.
    pub command: ShimCommand,
    /// `--python`: its environment, else one that is found.
    pub python: Option<OsString>,
}

/// The action of `rankrun shim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShimCommand {
    /// `on`: rankrun is the environment's torchrun.
    On,
    /// `off`: PyTorch's own is.
    Off,
    /// `status`: says which it is.
    Status(OutputFormat),
}

/// Set to `off`, it makes the shim start PyTorch's own torchrun.
pub const SWITCH: &str = "RANKRUN_SHIM";

/// The hint after a refusal of the shim's torchrun.
pub const BYPASS_HINT: &str = "      `RANKRUN_SHIM=off` in front of the command runs PyTorch's own torchrun";

/// Runs `rankrun shim`; `argv0` is the launcher's name in the command, `program` its own file.
/// Returns the text to print.
///
/// # Errors
/// The command failed; then nothing was changed.
pub fn run(
    request: &ShimRequest,
    argv0: &OsStr,
    program: PathBuf,
    facts: &Facts,
) -> Result<String, ShimError> {
    let python = environment::choose_python(request.python.as_deref(), argv0, facts)?;
    let environment = environment::parse(&python, &probe::run_python_probe(&python)?)?;
    let layout = Layout::of(&environment);
    let texts = ShimTexts::of(&environment, &layout)?;
    let _lock = match request.command {
        ShimCommand::On | ShimCommand::Off => disk::lock(&environment.scripts),
        ShimCommand::Status(_) => None,
    };
    let state = ShimState::of(disk::read_files(&layout, |path| facts.is_executable(path))?, &texts);
    match request.command {
        ShimCommand::On => {
            let rankrun = environment::own_path(argv0, program, facts);
            on(&environment, &layout, &texts, (&state, &rankrun))
        }
        ShimCommand::Off => off(&environment, &layout, &state),
        ShimCommand::Status(format) => {
            let status = Status::of(&environment, &layout, &state, gather_outside_facts(&layout, facts));
            Ok(match format {
                OutputFormat::Text => status.table(),
                OutputFormat::Json => status.json(),
            })
        }
    }
}

fn on(
    environment: &PythonEnvironment,
    layout: &Layout,
    texts: &ShimTexts,
    (state, rankrun): (&ShimState, &Path),
) -> Result<String, ShimError> {
    if environment.torch.is_none() {
        return Err(ShimError::NoTorch { prefix: environment.prefix.clone() });
    }
    if state.torchrun == Torchrun::Foreign {
        return Err(ShimError::Foreign { path: layout.torchrun.clone() });
    }
    let changes = turn_on(state, layout, texts, rankrun);
    disk::apply(&changes)?;
    let already = if changes.is_empty() { "already " } else { "" };
    Ok(format!(
        "the shim is {already}on in `{}`: torchrun is rankrun there\nPyTorch's own runs once with \
         `RANKRUN_SHIM=off torchrun …`, and comes back with `rankrun shim off`\n",
        environment.prefix.display()
    ))
}

fn off(environment: &PythonEnvironment, layout: &Layout, state: &ShimState) -> Result<String, ShimError> {
    let changes = turn_off(state, layout, environment.torch.is_some());
    disk::apply(&changes)?;
    let already = if changes.is_empty() { "already " } else { "" };
    Ok(format!("the shim is {already}off in `{}`\n", environment.prefix.display()))
}

fn gather_outside_facts(layout: &Layout, facts: &Facts) -> OutsideFacts {
    let resolve = |path: &Path| facts.world().resolve_links(path);
    let in_path = facts.find_in_path(OsStr::new("torchrun")).map(|path| facts.absolute(&path));
    let ours = resolve(&layout.torchrun);
    OutsideFacts {
        other_in_path: in_path.filter(|path| resolve(path) != ours),
        switched_off: facts.variable(SWITCH).is_some_and(|value| value == "off"),
    }
}
