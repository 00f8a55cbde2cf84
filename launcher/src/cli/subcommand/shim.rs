//! The arguments of `rankrun shim`, and what they ask for.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::interpret::{format, usage};
use crate::cli::error::{CliError, UsageError};
use crate::cli::other_launcher::OtherLauncher;
use rankrun_tools::shim::{Launcher, ShimCommand, ShimRequest};

pub(super) const AFTER_HELP: &str = "\
RANKRUN_SHIM=off in front of a command runs the original launcher once: for what rankrun does not support yet.";

#[derive(Debug, Args)]
pub(in crate::cli) struct ShimArgs {
    /// What to do
    #[arg(value_name = "on|off|status")]
    verb: ShimVerb,
    /// With on: `accelerate launch`, `accelerate-launch`, or `deepspeed`, `ds`, run rankrun too
    #[arg(long, value_name = "LAUNCHERS", value_delimiter = ',')]
    also: Vec<OtherLauncher>,
    /// The Python of the environment [default: the `python` beside rankrun, else that of VIRTUAL_ENV, else that of
    /// CONDA_PREFIX]
    #[arg(long, value_name = "PATH")]
    python: Option<OsString>,
    /// With status: for programs
    #[arg(long)]
    json: bool,
}

/// What `rankrun shim` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ShimVerb {
    /// `torchrun`, `python …/bin/torchrun` and `python -m torch.distributed.run` run rankrun from now on; PyTorch's own
    /// command is kept beside. Again: repairs and renews, and what is on stays on
    On,
    /// Brings every original back, to the byte
    Off,
    /// Says what each call would run
    Status,
}

impl ShimArgs {
    /// # Errors
    /// An option does not belong to the verb.
    pub(super) fn request(self) -> Result<ShimRequest, CliError> {
        let unknown = |word: &str| usage(UsageError::UnknownTo { command: "shim", word: word.to_owned() });
        if self.json && self.verb != ShimVerb::Status {
            return Err(unknown("--json"));
        }
        if !self.also.is_empty() && self.verb != ShimVerb::On {
            return Err(unknown("--also"));
        }
        let command = match self.verb {
            ShimVerb::On => ShimCommand::On(self.also.into_iter().map(launcher).collect()),
            ShimVerb::Off => ShimCommand::Off,
            ShimVerb::Status => ShimCommand::Status(format(self.json)),
        };
        Ok(ShimRequest { command, python: self.python })
    }
}

const fn launcher(other: OtherLauncher) -> Launcher {
    match other {
        OtherLauncher::Accelerate => Launcher::Accelerate,
        OtherLauncher::Deepspeed => Launcher::Deepspeed,
    }
}
