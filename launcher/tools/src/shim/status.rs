//! `rankrun shim status`: the program behind each way of calling torchrun, as a table and as JSON. `disk` reads the
//! state of the environment. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::environment::PythonEnvironment;
use super::layout::Layout;
use super::state::{FileAge, ShimState, ShimTarget, Torchrun};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    Rankrun,
    Torch,
    Foreign,
    Nothing,
}

impl CallTarget {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Rankrun => "rankrun",
            Self::Torch => "torch",
            Self::Foreign => "foreign",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for CallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rankrun => "rankrun",
            Self::Torch => "PyTorch's",
            Self::Foreign => "another program",
            Self::Nothing => "nothing",
        })
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
    /// An installer has written `bin/torchrun` again.
    Reinstalled,
    /// Another version has written some of it.
    Old,
    NoHook,
    /// The rankrun that it starts is gone.
    Gone(PathBuf),
    Foreign(PathBuf),
    Missing(PathBuf),
    OtherInPath(PathBuf),
    NoTorch,
    SwitchedOff,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reinstalled => f.write_str(
                "PyTorch's script is back, probably by a reinstallation: Python starts first and then becomes rankrun; \
                 `rankrun shim on` saves that",
            ),
            Self::Old => f.write_str("another version wrote a part of it; `rankrun shim on` renews it"),
            Self::NoHook => f.write_str("the hook is not complete; `rankrun shim on` repairs it"),
            Self::Gone(path) => write!(
                f,
                "`{}` is gone, so PyTorch's own torchrun runs; `rankrun shim on` repairs it",
                path.display()
            ),
            Self::Foreign(path) => {
                write!(f, "`{}` is not the script that comes with PyTorch", path.display())
            }
            Self::Missing(path) => write!(f, "`{}` does not exist", path.display()),
            Self::OtherInPath(path) => {
                write!(f, "`torchrun` without a path is another environment's here: `{}`", path.display())
            }
            Self::NoTorch => f.write_str("this environment has no PyTorch"),
            Self::SwitchedOff => f.write_str("`RANKRUN_SHIM=off` is set here: PyTorch's own torchrun runs"),
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
    /// The torchrun that `PATH` leads to, links resolved, if it is not the environment's.
    pub(super) other_in_path: Option<PathBuf>,
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
            rankrun: state.link.as_ref(),
            health,
            ways: call_routes(environment, layout, state, outside.switched_off),
            notes: notes(environment, layout, state, outside),
        }
    }

    #[must_use]
    pub(super) fn table(&self) -> String {
        let torch = match &self.environment.torch {
            Some(torch) => format!("{} in {}", torch.version, torch.folder.display()),
            None => "none".to_owned(),
        };
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
        let mut text = String::new();
        for (name, value) in [
            ("environment", self.environment.prefix.display().to_string()),
            ("python", self.environment.python.display().to_string()),
            ("torch", torch),
            ("shim", shim.to_owned()),
            ("starts", rankrun),
        ] {
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
        let value = json!({
            "environment": text(&self.environment.prefix),
            "python": text(&self.environment.python),
            "torch": self.environment.torch.as_ref().map(|torch| &torch.version),
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
    let complete = state.torchrun == Torchrun::Shim(FileAge::Current) && state.hook == Some(FileAge::Current);
    match state.torchrun {
        _ if complete && state.hook_works() => ShimHealth::On,
        Torchrun::Shim(_) => ShimHealth::Partly,
        _ if state.has_traces || state.link.is_some() => ShimHealth::Partly,
        _ => ShimHealth::Off,
    }
}

fn call_routes(
    environment: &PythonEnvironment,
    layout: &Layout,
    state: &ShimState,
    switched_off: bool,
) -> Vec<CallRoute> {
    let hook = state.hook_works() && !switched_off;
    let link = matches!(state.link, Some(ShimTarget::Works(_))) && !switched_off;
    let torch = if environment.torch.is_some() { CallTarget::Torch } else { CallTarget::Nothing };
    let script = match state.torchrun {
        Torchrun::Missing => (CallTarget::Nothing, "not there"),
        Torchrun::Foreign => (CallTarget::Foreign, "the file itself"),
        Torchrun::Original(_) | Torchrun::Shim(_) if hook => (CallTarget::Rankrun, "the hook"),
        Torchrun::Original(_) => (torch, "the file itself"),
        Torchrun::Shim(_) => (torch, "the kept file"),
    };
    let plain = match state.torchrun {
        Torchrun::Shim(_) if link => (CallTarget::Rankrun, "the file itself"),
        _ => script,
    };
    let module = if hook { (CallTarget::Rankrun, "the hook") } else { (torch, "the module") };
    let python = environment.python.file_name().unwrap_or_default().to_string_lossy();
    let calls = [
        ("torchrun".to_owned(), plain),
        (format!("{python} {}", layout.torchrun.display()), script),
        (format!("{python} -m torch.distributed.run"), module),
    ];
    calls.into_iter().map(|(call, (runs, by))| CallRoute { call, runs, by }).collect()
}

fn notes(
    environment: &PythonEnvironment,
    layout: &Layout,
    state: &ShimState,
    outside: OutsideFacts,
) -> Vec<Note> {
    let is_there = health(state) != ShimHealth::Off;
    let is_old = state.torchrun == Torchrun::Shim(FileAge::Old) || state.hook == Some(FileAge::Old);
    let mut notes = Vec::new();
    if environment.torch.is_none() {
        notes.push(Note::NoTorch);
    }
    match (&state.torchrun, is_there) {
        (Torchrun::Foreign, _) => notes.push(Note::Foreign(layout.torchrun.clone())),
        (Torchrun::Missing, _) => notes.push(Note::Missing(layout.torchrun.clone())),
        (Torchrun::Original(_), true) if state.hook_works() => notes.push(Note::Reinstalled),
        _ => {}
    }
    if is_there {
        match &state.link {
            Some(ShimTarget::Gone(path)) => notes.push(Note::Gone(path.clone())),
            Some(ShimTarget::Works(_)) if state.hook.is_some() => {}
            Some(ShimTarget::Works(_)) | None => notes.push(Note::NoHook),
        }
    }
    if is_old {
        notes.push(Note::Old);
    }
    notes.extend(outside.other_in_path.map(Note::OtherInPath));
    if outside.switched_off && is_there {
        notes.push(Note::SwitchedOff);
    }
    notes
}

#[cfg(test)]
mod tests;
