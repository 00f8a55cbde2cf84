//! `rankrun shim`: makes rankrun the `torchrun` of a Python environment, if asked for also its `accelerate launch` and
//! `deepspeed`, and restores the originals.
//!
//! There are three ways to call torchrun, and each has its own part:
//!
//! | call | what makes it ours |
//! |---|---|
//! | `torchrun` | `bin/torchrun` is a script that a shell and Python can both read; the shell runs us |
//! | `python …/bin/torchrun` | the hook: a line in a `.pth` file, run at each start of that Python |
//! | `python -m torch.distributed.run` | the hook |
//!
//! The first two hold for each script of the other launchers. Their modules are left alone, and so is a program that
//! calls `torch.distributed.run` in its own process: it expects Python's exceptions.
//!
//! A script, and not a link to us, since a link would be broken when rankrun is uninstalled, and no Python could read
//! it: the shell costs 0.7 ms. Python's part of the script is the original command. The hook also replaces a
//! script that an installer has written again.
//!
//! `script` has the list of scripts. `environment` chooses the environment, `layout` names the files, `state`
//! classifies the present files, `plan` computes the changes, `status` says what would run: all pure. `probe` asks a
//! Python, and `disk` reads and changes files.

mod disk;
mod environment;
mod error;
mod interrupted;
mod layout;
mod plan;
mod probe;
mod script;
mod state;
mod status;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub use error::ShimError;
pub use interrupted::{CleanupResult, InterruptedFile, find_interrupted};
pub use script::Launcher;

use environment::PythonEnvironment;
use layout::{Layout, ShimTexts};
use plan::{turn_off, turn_on};
use rankrun_core::facts::Facts;
use rankrun_core::spec::OutputFormat;
use script::Script;
use state::{ScriptFile, ShimState};
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShimCommand {
    /// `on`: rankrun is the environment's torchrun, and these launchers. Launchers that are on stay on.
    On(Vec<Launcher>),
    /// `off`: the originals are back.
    Off,
    /// `status`: says which it is.
    Status(OutputFormat),
}

/// Set to `off`, it makes the shim start the original launcher.
pub const SWITCH: &str = "RANKRUN_SHIM";

/// The hint after a refusal of a launch through the shim.
pub const BYPASS_HINT: &str = "      `RANKRUN_SHIM=off` in front of the command runs the original launcher";

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
        ShimCommand::On(_) | ShimCommand::Off => disk::lock(&environment.scripts),
        ShimCommand::Status(_) => None,
    };
    let state = ShimState::of(disk::read_files(&layout, |path| facts.is_executable(path))?, &texts);
    match &request.command {
        ShimCommand::On(also) => {
            let launchers = launchers_to_replace(also, &state, &environment)?;
            let rankrun = environment::own_path(argv0, program, facts);
            on(&environment, (&layout, &texts), &state, (&launchers, &rankrun))
        }
        ShimCommand::Off => off(&environment, &layout, &state),
        ShimCommand::Status(format) => {
            let status =
                Status::of(&environment, &layout, &state, gather_outside_facts(&layout, &state, facts));
            Ok(match format {
                OutputFormat::Text => status.table(),
                OutputFormat::Json => status.json(),
            })
        }
    }
}

/// torchrun, these, and those that are on and still installed.
fn launchers_to_replace(
    also: &[Launcher],
    state: &ShimState,
    environment: &PythonEnvironment,
) -> Result<BTreeSet<Launcher>, ShimError> {
    let asked_for: BTreeSet<Launcher> = also.iter().copied().chain([Launcher::Torchrun]).collect();
    if let Some(launcher) = asked_for.iter().copied().find(|launcher| !environment.has(*launcher)) {
        return Err(ShimError::NotInstalled { launcher, prefix: environment.prefix.clone() });
    }
    let stays_on = |launcher: &Launcher| state.is_on(*launcher) && environment.has(*launcher);
    Ok(Launcher::ALL.into_iter().filter(stays_on).chain(asked_for).collect())
}

fn on(
    environment: &PythonEnvironment,
    (layout, texts): (&Layout, &ShimTexts),
    state: &ShimState,
    (launchers, rankrun): (&BTreeSet<Launcher>, &Path),
) -> Result<String, ShimError> {
    let mut wanted = state.scripts.iter().filter(|script| launchers.contains(&script.script.launcher));
    if let Some(foreign) = wanted.find(|script| script.file == ScriptFile::Foreign) {
        let launcher = foreign.script.launcher;
        return Err(ShimError::Foreign { launcher, path: layout.script(foreign.script) });
    }
    let changes = turn_on(state, layout, texts, (launchers, rankrun));
    disk::apply(&changes)?;
    let already = if changes.is_empty() { "already " } else { "" };
    let calls: Vec<&str> = launchers.iter().map(|launcher| launcher.call()).collect();
    let (calls, verb) = match &calls[..] {
        [call] => ((*call).to_owned(), "is"),
        calls => (calls.join(" and "), "are"),
    };
    Ok(format!(
        "the shim is {already}on in `{}`: {calls} {verb} rankrun there\nthe original runs once with \
         `RANKRUN_SHIM=off` in front of the command, and comes back with `rankrun shim off`\n",
        environment.prefix.display()
    ))
}

fn off(environment: &PythonEnvironment, layout: &Layout, state: &ShimState) -> Result<String, ShimError> {
    let changes = turn_off(state, layout, |launcher| environment.has(launcher));
    disk::apply(&changes)?;
    let already = if changes.is_empty() { "already " } else { "" };
    Ok(format!("the shim is {already}off in `{}`\n", environment.prefix.display()))
}

fn gather_outside_facts(layout: &Layout, state: &ShimState, facts: &Facts) -> OutsideFacts {
    let resolve = |path: &Path| facts.world().resolve_links(path);
    let other_in_path = |script: &'static Script| {
        let found = facts.absolute(&facts.find_in_path(OsStr::new(script.name))?);
        (resolve(&found) != resolve(&layout.script(script))).then_some(found)
    };
    let reported = state.reported_scripts().map(|script| script.script);
    OutsideFacts {
        others_in_path: reported.filter_map(other_in_path).collect(),
        switched_off: facts.variable(SWITCH).is_some_and(|value| value == "off"),
    }
}
