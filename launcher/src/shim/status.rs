//! `rankrun shim status`: the program behind each way of calling torchrun, as a table and as JSON. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::environment::Environment;
use super::layout::Layout;
use super::state::{Age, State, Target, Torchrun};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runs {
    Rankrun,
    Torch,
    Foreign,
    Nothing,
}

impl Runs {
    const fn word(self) -> &'static str {
        match self {
            Self::Rankrun => "rankrun",
            Self::Torch => "torch",
            Self::Foreign => "foreign",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for Runs {
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
pub(super) struct Way {
    pub(super) call: String,
    pub(super) runs: Runs,
    pub(super) by: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
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
    environment: &'a Environment,
    rankrun: Option<&'a Target>,
    pub(super) health: Health,
    pub(super) ways: Vec<Way>,
    pub(super) notes: Vec<Note>,
}

/// The facts outside of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outside {
    /// The torchrun that `PATH` leads to, links resolved, if it is not the environment's.
    pub(super) other_in_path: Option<PathBuf>,
    pub(super) switched_off: bool,
}

impl<'a> Status<'a> {
    #[must_use]
    pub(super) fn of(
        environment: &'a Environment,
        layout: &Layout,
        state: &'a State,
        outside: Outside,
    ) -> Self {
        let health = health(state);
        Self {
            environment,
            rankrun: state.link.as_ref(),
            health,
            ways: ways(environment, layout, state, outside.switched_off),
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
            Some(Target::Works(path)) => path.display().to_string(),
            Some(Target::Gone(path)) => format!("{} (gone)", path.display()),
            None => "none".to_owned(),
        };
        let shim = match self.health {
            Health::Off => "off",
            Health::On => "on",
            Health::Partly => "partly on",
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
        for Way { call, runs, by } in &self.ways {
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
            .map(|way| json!({ "call": way.call, "runs": way.runs.word(), "by": way.by }))
            .collect();
        let value = json!({
            "environment": text(&self.environment.prefix),
            "python": text(&self.environment.python),
            "torch": self.environment.torch.as_ref().map(|torch| &torch.version),
            "shim": match self.health {
                Health::Off => "off",
                Health::On => "on",
                Health::Partly => "partly",
            },
            "rankrun": self.rankrun.map(|target| text(target.path())),
            "ways": ways,
            "notes": self.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        format!("{value}\n")
    }
}

fn health(state: &State) -> Health {
    let complete = state.torchrun == Torchrun::Shim(Age::Current) && state.hook == Some(Age::Current);
    match state.torchrun {
        _ if complete && state.hook_works() => Health::On,
        Torchrun::Shim(_) => Health::Partly,
        _ if state.has_traces || state.link.is_some() => Health::Partly,
        _ => Health::Off,
    }
}

fn ways(environment: &Environment, layout: &Layout, state: &State, switched_off: bool) -> Vec<Way> {
    let hook = state.hook_works() && !switched_off;
    let link = matches!(state.link, Some(Target::Works(_))) && !switched_off;
    let torch = if environment.torch.is_some() { Runs::Torch } else { Runs::Nothing };
    let script = match state.torchrun {
        Torchrun::Missing => (Runs::Nothing, "not there"),
        Torchrun::Foreign => (Runs::Foreign, "the file itself"),
        Torchrun::Original(_) | Torchrun::Shim(_) if hook => (Runs::Rankrun, "the hook"),
        Torchrun::Original(_) => (torch, "the file itself"),
        Torchrun::Shim(_) => (torch, "the kept file"),
    };
    let plain = match state.torchrun {
        Torchrun::Shim(_) if link => (Runs::Rankrun, "the file itself"),
        _ => script,
    };
    let module = if hook { (Runs::Rankrun, "the hook") } else { (torch, "the module") };
    let python = environment.python.file_name().unwrap_or_default().to_string_lossy();
    let calls = [
        ("torchrun".to_owned(), plain),
        (format!("{python} {}", layout.torchrun.display()), script),
        (format!("{python} -m torch.distributed.run"), module),
    ];
    calls.into_iter().map(|(call, (runs, by))| Way { call, runs, by }).collect()
}

fn notes(environment: &Environment, layout: &Layout, state: &State, outside: Outside) -> Vec<Note> {
    let is_there = health(state) != Health::Off;
    let is_old = state.torchrun == Torchrun::Shim(Age::Old) || state.hook == Some(Age::Old);
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
            Some(Target::Gone(path)) => notes.push(Note::Gone(path.clone())),
            Some(Target::Works(_)) if state.hook.is_some() => {}
            Some(Target::Works(_)) | None => notes.push(Note::NoHook),
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
