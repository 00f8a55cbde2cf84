//! The launchers that the shim can replace, and the console scripts that start them. Pure.

use std::fmt;

/// A launcher, which comes with a Python package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launcher {
    /// PyTorch's torchrun.
    Torchrun,
    /// `accelerate launch`.
    Accelerate,
    /// `deepspeed`.
    Deepspeed,
}

impl Launcher {
    pub(super) const ALL: [Self; 3] = [Self::Torchrun, Self::Accelerate, Self::Deepspeed];

    /// The name that Python imports and pip installs.
    #[must_use]
    pub(super) const fn package(self) -> &'static str {
        match self {
            Self::Torchrun => "torch",
            Self::Accelerate => "accelerate",
            Self::Deepspeed => "deepspeed",
        }
    }

    /// The call that launches.
    #[must_use]
    pub(super) const fn call(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Accelerate => "accelerate launch",
            Self::Deepspeed => "deepspeed",
        }
    }

    /// The module that `python -m` starts as a launcher.
    #[must_use]
    pub(super) const fn module(self) -> &'static str {
        match self {
            Self::Torchrun => "torch.distributed.run",
            Self::Accelerate => "accelerate.commands.launch",
            Self::Deepspeed => "deepspeed.launcher.runner",
        }
    }
}

/// The name of the package, as people write it.
impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "PyTorch",
            Self::Accelerate => "accelerate",
            Self::Deepspeed => "DeepSpeed",
        })
    }
}

/// A console script: a file in `bin/` that an installer writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) launcher: Launcher,
    /// The module with the function `main` that it calls.
    pub(super) module: &'static str,
    /// The first argument of a launch. Other calls are the original's.
    pub(super) subcommand: Option<&'static str>,
}

pub(super) static SCRIPTS: [Script; 5] = [
    Script::new("torchrun", Launcher::Torchrun, "torch.distributed.run"),
    Script {
        subcommand: Some("launch"),
        ..Script::new("accelerate", Launcher::Accelerate, "accelerate.commands.accelerate_cli")
    },
    Script::new("accelerate-launch", Launcher::Accelerate, "accelerate.commands.launch"),
    Script::new("deepspeed", Launcher::Deepspeed, "deepspeed.launcher.runner"),
    Script::new("ds", Launcher::Deepspeed, "deepspeed.launcher.runner"),
];

/// Stands in every script that the shim has written.
const MARK: &str = "# Made by `rankrun shim on`";
/// A script of an installer has this, or the name of its module.
pub(super) const ENTRY_POINT: &str = "console_scripts";

impl Script {
    const fn new(name: &'static str, launcher: Launcher, module: &'static str) -> Self {
        Self { name, launcher, module, subcommand: None }
    }

    /// Whether it is the file that an installer writes.
    #[must_use]
    pub(super) fn is_original(&self, text: &[u8]) -> bool {
        text.starts_with(b"#!")
            && !is_shim(text)
            && [self.module, ENTRY_POINT].iter().any(|sign| contains(text, sign))
    }

    /// The words of a launch by this name.
    #[must_use]
    pub(super) fn call(&self, program: &str) -> String {
        self.subcommand.map_or_else(|| program.to_owned(), |subcommand| format!("{program} {subcommand}"))
    }
}

/// Whether a script was written by the shim, of this or another version.
#[must_use]
pub(super) fn is_shim(text: &[u8]) -> bool {
    contains(text, MARK)
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}
