//! A job of several hosts: the launcher that starts the others by ssh, and the agent of one of them.

use std::ffi::OsString;
use std::process::ExitCode;

use rankrun_core::ssh::plan::FleetSpec;
use rankrun_host::reporter;
use rankrun_host::ssh::node::{Lifeline, receive_launch};
use rankrun_host::ssh::supervisor;

use crate::cli::other_launcher::NodeChange;
use crate::exit_with;

/// All hosts need the same.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Starts the launchers of all hosts, and waits for them.
pub(crate) fn run_fleet(spec: &FleetSpec) -> ExitCode {
    match supervisor::run(spec, VERSION, &|error| reporter::error_text(error, Some(&error.hint()))) {
        Ok(status) => exit_with(status),
        Err(error) => reporter::report_error(&error, error.hint().as_deref()),
    }
}

/// The command line that the launcher of all hosts sends, and the connection to it. This process is its agent.
///
/// # Errors
/// The exit code; the reason is reported.
pub(crate) fn receive_command_line() -> Result<(Vec<OsString>, Lifeline), ExitCode> {
    // Python is looked for beside this program.
    let name = std::env::args_os().next().unwrap_or_else(|| "rankrun".into());
    match receive_launch(VERSION) {
        Ok((words, lifeline)) => {
            Ok((std::iter::once(name).chain(words.into_iter().map(OsString::from)).collect(), lifeline))
        }
        Err(error) => Err(reporter::report_error(&error, Some(error.hint()))),
    }
}

/// Adds what another launcher's command line has for single hosts, in their order.
pub(crate) fn add_node_changes(spec: &mut FleetSpec, changes: Vec<NodeChange>) {
    for (node, change) in spec.nodes.iter_mut().zip(changes) {
        node.words.extend(change.words);
        node.environment.extend(change.environment);
    }
}
