//! Opens what the job needs before its first generation: the stores and the log folder. A name server or a file system
//! may not answer, so the agent's loop waits for it and answers signals meanwhile.

use std::io;

use crate::agent::host;
use crate::agent::rendezvous_handle::rendezvous_setup;
use crate::agent::watched_call::WatchedCall;
use crate::blocking::CallStep;
use crate::blocking::file_calls::FileCalls;
use crate::error::LaunchError;
use crate::logs::tree::{LogTree, TreeOutcome};
use crate::rendezvous::Rendezvous;
use crate::spec::{EventLog, LaunchSpec};

/// What outlives every generation.
pub(super) struct OpenedResources {
    pub(super) rendezvous: Rendezvous,
    pub(super) log_tree: Option<LogTree>,
    /// The full name of this node, where events need it.
    pub(super) full_name: Option<String>,
}

/// Starts to open them.
///
/// # Errors
/// No descriptor or no thread is left.
pub(super) fn start_opening(
    spec: &LaunchSpec,
    files: &FileCalls,
) -> io::Result<WatchedCall<Result<OpenedResources, LaunchError>>> {
    let spec = spec.clone();
    files.start(move |step| open_resources(&spec, step)).map(WatchedCall::new)
}

fn open_resources(spec: &LaunchSpec, step: &CallStep) -> Result<OpenedResources, LaunchError> {
    step.set(format!("a name server to resolve `{}`", spec.rendezvous.host()));
    // First, since they leave nothing behind when the rest fails.
    let rendezvous = Rendezvous::open(rendezvous_setup(spec))?;
    if let Some(folder) = spec.logs.dir.folder() {
        step.set(format!("the file system of the log folder `{}`", folder.display()));
    }
    let log_tree = match LogTree::make(&spec.logs.dir, spec.rendezvous.run_id())? {
        TreeOutcome::Made(tree) => Some(tree),
        TreeOutcome::Off => None,
        TreeOutcome::Lost(note) => {
            tracing::info!("{note}");
            None
        }
    };
    let full_name = (spec.events == EventLog::Console).then(host::full_name);
    Ok(OpenedResources { rendezvous, log_tree, full_name })
}
