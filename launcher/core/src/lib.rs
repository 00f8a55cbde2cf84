//! The pure part of the rankrun launcher: decisions as functions of state, time and event, and the data between rooms.
//!
//! No crate with IO is in the manifest; a test holds that.
//!
//! | room | what it does |
//! |---|---|
//! | [`agent`] | what follows from an event: the state machine, the restart policy, the first failure |
//! | [`device`] | which accelerators, in which order |
//! | [`device_assignment`] | how many workers, and which device each has |
//! | [`error_chain`] | an error with its causes, as text |
//! | [`exit_code`] | every exit status of the launcher |
//! | [`facts`] | the outside world, read once or on demand, behind a trait |
//! | [`gc`] | which processes are left from dead jobs, and the text about them |
//! | [`hang`] | whether the workers make progress, and which rank is missing where |
//! | [`job_event`] | what the agent tells the user, as plain data |
//! | [`log_route`] | where each stream of a worker goes |
//! | [`notice`] | lines that are printed once, before the workers start |
//! | [`placement`] | rank → device and variables |
//! | [`plain`] | control characters of foreign text, escaped |
//! | [`posix`] | pids, signals and exits, as plain data |
//! | [`rank_names`] | ranks in a sentence |
//! | [`rendezvous`] | which nodes take part, in which order |
//! | [`screen`] | a terminal, as a model: what bytes do to it |
//! | [`shell`] | words and scripts for a POSIX shell |
//! | [`spec`] | a launch, as data |
//! | [`ssh`] | a job of several hosts that one command starts |
//! | [`stacks`] | where workers stand: their stacks, read and folded |
//! | `template` | `{rank}` and the like in texts of the user |
//! | [`worker_command`] | the argv and the environment of one worker |

pub mod agent;
pub mod device;
pub mod device_assignment;
pub mod error_chain;
pub mod exit_code;
pub mod facts;
pub mod gc;
pub mod hang;
pub mod job_event;
pub mod log_route;
pub mod notice;
pub mod placement;
pub mod plain;
pub mod posix;
pub mod rank_names;
pub mod rendezvous;
pub mod screen;
pub mod shell;
#[cfg(test)]
mod simulated;
pub mod spec;
pub mod ssh;
pub mod stacks;
pub(crate) mod template;
pub mod worker_command;
