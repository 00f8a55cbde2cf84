//! `rankrun shim status`: the program behind each way of calling a launcher, as a table and as JSON. `disk` reads the
//! state of the environment. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::environment::PythonEnvironment;
use super::layout::Layout;
use super::script::Launcher;
use super::state::{FileAge, ScriptFile, ScriptState, ShimState, ShimTarget};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    Rankrun,
    Original(Launcher),
    Foreign,
    Nothing,
}

impl CallTarget {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Rankrun => "rankrun",
            Self::Original(launcher) => launcher.package(),
            Self::Foreign => "foreign",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for CallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rankrun => f.pad("rankrun"),
            Self::Original(launcher) => f.pad(&format!("{launcher}'s")),
            Self::Foreign => f.pad("another program"),
            Self::Nothing => f.pad("nothing"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallRoute {
    pub(super) call: String,
    pub(super) runs: CallTarget,
    pub(super) by: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShimHealth {
    Off,
    /// All of it, and it works.
    On,
    /// Something is missing, old or replaced.
    Partly,
}

/// A further fact for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// An installer has written the script again.
    Reinstalled(PathBuf),
    /// Another version has written some of it.
    Old,
    NoHook,
    /// The rankrun that it starts is gone.
    Gone(PathBuf),
    Foreign(Launcher, PathBuf),
    Missing(PathBuf),
    OtherInPath(PathBuf),
    NotInstalled(Launcher),
    SwitchedOff,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reinstalled(path) => write!(
                f,
                "`{}` is the original again, probably by a reinstallation: Python starts first and then becomes \
                 rankrun; `rankrun shim on` saves that",
                path.display()
            ),
            Self::Old => f.write_str("another version wrote a part of it; `rankrun shim on` renews it"),
            Self::NoHook => f.write_str("the hook is not complete; `rankrun shim on` repairs it"),
            Self::Gone(path) => {
                write!(f, "`{}` is gone, so the originals run; `rankrun shim on` repairs it", path.display())
            }
            Self::Foreign(launcher, path) => {
                write!(f, "`{}` is not the script that comes with {launcher}", path.display())
            }
            Self::Missing(path) => write!(f, "`{}` does not exist", path.display()),
            Self::OtherInPath(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                write!(f, "`{name}` without a path is another environment's here: `{}`", path.display())
            }
            Self::NotInstalled(launcher) => write!(f, "this environment has no {launcher}"),
            Self::SwitchedOff => f.write_str("`RANKRUN_SHIM=off` is set here: the originals run"),
        }
    }
}

/// The facts of `rankrun shim status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status<'a> {
    environment: &'a PythonEnvironment,
    rankrun: Option<&'a ShimTarget>,
    pub(super) health: ShimHealth,
    pub(super) ways: Vec<CallRoute>,
    pub(super) notes: Vec<Note>,
}

/// The facts outside of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutsideFacts {
    /// The scripts that `PATH` leads to and that are not the environment's.
    pub(super) others_in_path: Vec<PathBuf>,
    pub(super) switched_off: bool,
}

impl<'a> Status<'a> {
    #[must_use]
    pub(super) fn of(
        environment: &'a PythonEnvironment,
        layout: &Layout,
        state: &'a ShimState,
        outside: OutsideFacts,
    ) -> Self {
        let health = health(state);
        Self {
            environment,
            rankrun: state.target(),
            health,
            ways: call_routes(environment, layout, state, outside.switched_off),
            notes: notes(environment, layout, state, outside),
        }
    }

    #[must_use]
    pub(super) fn table(&self) -> String {
        let rankrun = match self.rankrun {
            Some(ShimTarget::Works(path)) => path.display().to_string(),
            Some(ShimTarget::Gone(path)) => format!("{} (gone)", path.display()),
            None => "none".to_owned(),
        };
        let shim = match self.health {
            ShimHealth::Off => "off",
            ShimHealth::On => "on",
            ShimHealth::Partly => "partly on",
        };
        let packages = Launcher::ALL.into_iter().filter_map(|launcher| {
            let value = match self.environment.installs.get(&launcher) {
                Some(install) => format!("{} in {}", install.version, install.folder.display()),
                None if launcher == Launcher::Torchrun => "none".to_owned(),
                None => return None,
            };
            Some((launcher.package(), value))
        });
        let mut text = String::new();
        for (name, value) in [
            ("environment", self.environment.prefix.display().to_string()),
            ("python", self.environment.python.display().to_string()),
        ]
        .into_iter()
        .chain(packages)
        .chain([("shim", shim.to_owned()), ("starts", rankrun)])
        {
            text.push_str(&format!("{name:<12} {value}\n"));
        }
        let width = self.ways.iter().map(|way| way.call.chars().count()).max().unwrap_or_default();
        text.push_str(&format!("\n{:<width$}  {:<15}  by\n", "call", "runs"));
        for CallRoute { call, runs, by } in &self.ways {
            text.push_str(&format!("{call:<width$}  {runs:<15}  {by}\n"));
        }
        for note in &self.notes {
            text.push_str(&format!("\nnote: {note}\n"));
        }
        text
    }

    #[must_use]
    pub(super) fn json(&self) -> String {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let ways: Vec<Value> = self
            .ways
            .iter()
            .map(|way| json!({ "call": way.call, "runs": way.runs.as_str(), "by": way.by }))
            .collect();
        let version = |launcher| self.environment.installs.get(&launcher).map(|install| &install.version);
        let value = json!({
            "environment": text(&self.environment.prefix),
            "python": text(&self.environment.python),
            "torch": version(Launcher::Torchrun),
            "accelerate": version(Launcher::Accelerate),
            "deepspeed": version(Launcher::Deepspeed),
            "shim": match self.health {
                ShimHealth::Off => "off",
                ShimHealth::On => "on",
                ShimHealth::Partly => "partly",
            },
            "rankrun": self.rankrun.map(|target| text(target.path())),
            "ways": ways,
            "notes": self.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        format!("{value}\n")
    }
}

fn health(state: &ShimState) -> ShimHealth {
    let is_complete = |script: &ScriptState| {
        script.file == ScriptFile::Shim(FileAge::Current)
            && script.link_works()
            && state.hook == Some(FileAge::Current)
    };
    if !state.has_traces && !state.scripts.iter().any(ScriptState::is_on) {
        ShimHealth::Off
    } else if state.reported_scripts().all(is_complete) {
        ShimHealth::On
    } else {
        ShimHealth::Partly
    }
}

fn call_routes(
    environment: &PythonEnvironment,
    layout: &Layout,
    state: &ShimState,
    switched_off: bool,
) -> Vec<CallRoute> {
    let python = environment.python.file_name().unwrap_or_default().to_string_lossy();
    let mut routes = Vec::new();
    let mut route = |call, (runs, by)| routes.push(CallRoute { call, runs, by });
    for launcher in Launcher::ALL {
        // Another launcher is of no interest where it is neither installed nor replaced.
        if launcher != Launcher::Torchrun && !environment.has(launcher) && !state.is_on(launcher) {
            continue;
        }
        let original =
            if environment.has(launcher) { CallTarget::Original(launcher) } else { CallTarget::Nothing };
        let mut module = (original, "the module");
        for script_state in state.scripts.iter().filter(|state| state.script.launcher == launcher) {
            let script = script_state.script;
            let link = script_state.link_works() && !switched_off;
            let hook = link && state.hook.is_some();
            let [by_shell, by_python] = script_targets(&script_state.file, link, hook, original);
            route(script.call(script.name), by_shell);
            let path = layout.script(script).display().to_string();
            route(format!("{python} {}", script.call(&path)), by_python);
            // The modules of other launchers are left alone.
            if hook && launcher == Launcher::Torchrun {
                module = (CallTarget::Rankrun, "the hook");
            }
        }
        route(format!("{python} -m {}", launcher.module()), module);
    }
    routes
}

/// The program that a script runs, and by what: called by a shell, and by Python.
const fn script_targets(
    file: &ScriptFile,
    link: bool,
    hook: bool,
    original: CallTarget,
) -> [(CallTarget, &'static str); 2] {
    let by_python = match file {
        ScriptFile::Missing => (CallTarget::Nothing, "not there"),
        ScriptFile::Foreign => (CallTarget::Foreign, "the file itself"),
        ScriptFile::Original(_) | ScriptFile::Shim(_) if hook => (CallTarget::Rankrun, "the hook"),
        ScriptFile::Original(_) => (original, "the file itself"),
        ScriptFile::Shim(_) => (original, "the kept file"),
    };
    let by_shell = match file {
        ScriptFile::Shim(_) if link => (CallTarget::Rankrun, "the file itself"),
        _ => by_python,
    };
    [by_shell, by_python]
}

fn notes(
    environment: &PythonEnvironment,
    layout: &Layout,
    state: &ShimState,
    outside: OutsideFacts,
) -> Vec<Note> {
    let is_there = health(state) != ShimHealth::Off;
    let mut notes = Vec::new();
    let is_missed = |launcher: &Launcher| {
        !environment.has(*launcher) && (*launcher == Launcher::Torchrun || state.is_on(*launcher))
    };
    notes.extend(Launcher::ALL.into_iter().filter(is_missed).map(Note::NotInstalled));
    for script_state in state.reported_scripts() {
        let path = layout.script(script_state.script);
        match script_state.file {
            ScriptFile::Foreign => notes.push(Note::Foreign(script_state.script.launcher, path)),
            ScriptFile::Missing => notes.push(Note::Missing(path)),
            ScriptFile::Original(_) if script_state.link_works() && state.hook.is_some() => {
                notes.push(Note::Reinstalled(path));
            }
            ScriptFile::Original(_) | ScriptFile::Shim(_) => {}
        }
    }
    let has_links = state.reported_scripts().all(|script| script.link.is_some());
    if is_there {
        match state.target() {
            Some(ShimTarget::Gone(path)) => notes.push(Note::Gone(path.clone())),
            Some(ShimTarget::Works(_)) if state.hook.is_some() && has_links => {}
            Some(ShimTarget::Works(_)) | None => notes.push(Note::NoHook),
        }
    }
    let is_old = |script: &ScriptState| script.file == ScriptFile::Shim(FileAge::Old);
    if state.hook == Some(FileAge::Old) || state.scripts.iter().any(is_old) {
        notes.push(Note::Old);
    }
    notes.extend(outside.others_in_path.into_iter().map(Note::OtherInPath));
    if outside.switched_off && is_there {
        notes.push(Note::SwitchedOff);
    }
    notes
}

#[cfg(test)]
mod tests;
