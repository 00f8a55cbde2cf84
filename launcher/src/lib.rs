//! The rankrun launcher: a native, drop-in replacement of torchrun.
//!
//! | room | what it does |
//! |---|---|
//! | [`cli`] | argv and environment → [`spec::LaunchSpec`] |
//! | [`placement`] | who sits where |
//! | [`store`] | the workers' key-value store |
//! | [`process`] | the only place that forks, signals and waits |
//! | [`agent`] | the only owner of the job's state |
//! | [`logs`] | the workers' output |
//! | [`reporter`] | everything told to people |
//! | [`shim`] | makes the torchrun of a Python environment ours, and back |

pub mod agent;
pub mod cli;
pub mod error;
pub mod exit_code;
pub mod facts;
pub mod logs;
pub mod placement;
pub mod process;
pub mod reporter;
pub mod shim;
pub mod spec;
pub mod store;

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitCode;

use rankrun_contract::rank::JobId;

use crate::agent::Setup;
use crate::cli::{Command, Launch};
use crate::error::LaunchError;
use crate::exit_code::{ExitStatus, LAUNCHER_FAILED, code_of_signal};
use crate::facts::Facts;
use crate::process::descendants::can_walk;
use crate::process::guard::{self, Guard, GuardEnd, Side};
use crate::process::inherited;
use crate::process::link::{Link, ToGuard};
use crate::process::signal::{self, HandledSignals, die_by};
use crate::process::spawn::Original;
use crate::reporter::console::{Console, Cursor};
use crate::reporter::voice::Voice;
use crate::spec::Persona;

/// The whole program: reads the command line, runs the job, and says how to end.
///
/// Called once, on the main thread, before any other thread exists: it forks.
#[must_use]
pub fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let facts = Facts::gather();
    match cli::interpret(&argv, &facts) {
        Ok(Command::Launch(launch)) => run(*launch, &facts),
        Ok(Command::Print(text)) => reporter::print(&text),
        Ok(Command::Shim(words)) => change_torchrun(&words, &argv[0], &facts),
        Err(error) => reporter::refuse(&error, facts.calling_python().map(|_| shim::WAY_OUT)),
    }
}

fn change_torchrun(words: &[OsString], argv0: &OsStr, facts: &Facts) -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| argv0.into());
    match shim::run(words, argv0, program, facts) {
        Ok(text) => reporter::print(&text),
        Err(error) => reporter::refuse_shim(&error),
    }
}

fn run(launch: Launch, facts: &Facts) -> ExitCode {
    let closed = inherited::close_on_exec();
    let handled = HandledSignals::of(&launch.spec.signals, launch.spec.persona);
    let job = JobId(uuid::Uuid::new_v4().to_string());
    // In this order: what the guard blocks before the fork, the agent has blocked too.
    let split = signal::block(&handled).and_then(|mask| Ok((mask, guard::split(&handled, &job)?)));
    match split {
        Ok((_, Side::Guard(guard))) => end(supervise(guard, launch.spec.persona)),
        Ok((mask, Side::Agent(link))) => {
            let original = Original { mask, handled, file_limits: inherited::raise_file_limit() };
            let agent = AgentStart { launch, facts, closed, link: &link };
            agent.run(job, original);
            ExitCode::SUCCESS
        }
        Err(source) => reporter::failed_to_start(&LaunchError::Setup { what: "start the agent", source }),
    }
}

/// What the agent begins with.
struct AgentStart<'a> {
    launch: Launch,
    facts: &'a Facts,
    /// Whether descriptors of strangers are kept from the workers.
    closed: io::Result<()>,
    link: &'a Link,
}

impl AgentStart<'_> {
    fn run(self, job: JobId, original: Original) {
        let console = match Console::of_process(cursor(self.facts)) {
            Ok(console) => console,
            Err(source) => {
                let error = LaunchError::Setup { what: "open the console", source };
                let _ = reporter::failed_to_start(&error);
                let _ = self.link.send_to_guard(ToGuard::Finish(ExitStatus::Code(LAUNCHER_FAILED)));
                return;
            }
        };
        reporter::trace_to(console.clone(), self.launch.verbosity);
        self.say_what_is_lost();
        let no_color = self.facts.filled_variable("NO_COLOR").is_some();
        let voice = Voice::new(console, self.launch.spec.persona, no_color);
        for notice in &self.launch.notices {
            voice.say(&notice.to_string());
        }
        let environment = self.facts.environment().to_vec();
        agent::run(Setup { spec: self.launch.spec, environment, job, original }, self.link, voice);
    }

    /// In places that lock a launcher down; under `-v`.
    fn say_what_is_lost(&self) {
        if let Err(error) = &self.closed {
            tracing::info!("workers may inherit open files of whoever started us: {error}");
        }
        if !can_walk() {
            tracing::info!("`/proc` does not show our processes: what workers leave behind cannot be ended");
        }
    }
}

fn cursor(facts: &Facts) -> Cursor {
    match facts.filled_variable("TERM") {
        Some(term) if term != "dumb" => Cursor::Moves,
        _ => Cursor::Stays,
    }
}

fn supervise(guard: Guard, persona: Persona) -> ExitStatus {
    match guard.supervise() {
        Ok(GuardEnd::Told(status)) => status,
        Ok(GuardEnd::AgentLost { exit, killed_for, left }) => {
            reporter::agent_lost(exit, killed_for, &left);
            match (persona, killed_for) {
                (Persona::Rankrun, Some(signal)) => ExitStatus::of_signal(signal),
                (Persona::Rankrun | Persona::Torchrun, _) => ExitStatus::Code(LAUNCHER_FAILED),
            }
        }
        Err(source) => {
            let error = LaunchError::Setup { what: "wait for the agent", source };
            let _ = reporter::failed_to_start(&error);
            ExitStatus::Code(LAUNCHER_FAILED)
        }
    }
}

fn end(status: ExitStatus) -> ExitCode {
    match status {
        ExitStatus::Code(code) => ExitCode::from(code),
        ExitStatus::Signal(signal) => {
            die_by(signal);
            // PID 1 of a container cannot die by a signal of its own.
            ExitCode::from(code_of_signal(signal))
        }
    }
}
