//! Opens what the job needs before its first generation: the stores and the log folder. A name server or a file system
//! may not answer, so the agent's loop waits for it and answers signals meanwhile. Where no call
//! can hang, all are made at once.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::agent::host;
use crate::agent::rendezvous_handle::rendezvous_setup;
use crate::agent::watched_call::WatchedCall;
use crate::blocking::CallStep;
use crate::blocking::file_calls::FileCalls;
use crate::blocking::local_disk::{is_in_memory, is_on_local_disk};
use crate::error::LaunchError;
use crate::logs::tree::{LogTree, TreeOutcome};
use crate::process::exec_files::{is_local_with_own_loader, read_exec_files};
use crate::rendezvous::Rendezvous;
use crate::report_file;
use rankrun_core::spec::report_file::ReportFile;
use rankrun_core::spec::{EventLog, LaunchSpec, LogDir};

/// What outlives every generation.
pub(super) struct OpenedResources {
    pub(super) rendezvous: Rendezvous,
    pub(super) log_tree: Option<LogTree>,
    /// The log tree is in memory, and the program with the files that its exec needs on a local disk.
    pub(super) are_files_in_memory: bool,
    /// The full name of this node, where events need it.
    pub(super) full_name: Option<String>,
}

/// Starts to open them.
///
/// # Errors
/// No descriptor or no thread is left.
pub(super) fn start_opening(
    (spec, hook): (&LaunchSpec, Option<PathBuf>),
    files: &FileCalls,
) -> io::Result<WatchedCall<Result<OpenedResources, LaunchError>>> {
    // The user's cache is unknown yet, like a folder that the user named.
    if hook.is_none() && opens_at_once(spec) {
        files.set_in_memory();
    }
    let spec = spec.clone();
    files.start(move |step| open_resources((&spec, hook.as_deref()), step)).map(WatchedCall::new)
}

/// True if no call waits for a server. A folder or file that the user named is unknown yet, so the question itself might hang, and
/// so are an interpreter and a foreign loader; the program and the temporary folder were read with the command line.
fn opens_at_once(spec: &LaunchSpec) -> bool {
    let is_named = matches!(spec.logs.dir, LogDir::At(_));
    let resolves = spec.rendezvous.is_shared() || spec.rendezvous.store().addr.parse::<IpAddr>().is_err();
    !is_named
        && spec.options.report.is_none()
        && !resolves
        && spec.events != EventLog::Console
        && spec.logs.dir.folder().is_none_or(is_in_memory)
        && spec.programs().all(is_local_with_own_loader)
}

/// The exec, for which the main thread waits, reads more of the program than the start, which was read before.
fn are_files_in_memory(
    (spec, hook): (&LaunchSpec, Option<&Path>),
    folder: Option<&Path>,
    step: &CallStep,
) -> bool {
    let is_local = |file: &PathBuf| is_on_local_disk(file);
    folder.is_none_or(is_in_memory)
        && hook.is_none_or(|hook| {
            step.set(format!("the file system of `{}`", hook.display()));
            hook.ancestors().find(|folder| folder.exists()).is_some_and(is_on_local_disk)
        })
        && spec.programs().all(|program| read_exec_files(program, step).iter().all(is_local))
}

fn open_resources(
    (spec, hook): (&LaunchSpec, Option<&Path>),
    step: &CallStep,
) -> Result<OpenedResources, LaunchError> {
    if let Some(ReportFile(path)) = &spec.options.report {
        step.set(format!("the file system of the report `{}`", path.display()));
        report_file::check(path)?;
    }
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
    let are_files_in_memory =
        are_files_in_memory((spec, hook), log_tree.as_ref().map(LogTree::run_folder), step);
    Ok(OpenedResources { rendezvous, log_tree, are_files_in_memory, full_name })
}
