//! The external worker (`--leave-out`), which the user starts by hand, as under a debugger. This module
//! writes its script, accepts its wrapper and tells it when the others have ended. The launcher never signals
//! an external worker: that process belongs to the user.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankrun_contract::rank::JobId;

use crate::blocking::BlockingCall;
use crate::error::LaunchError;
use crate::process::attach::ATTACH;
use crate::process::attach_listener::{AttachListener, AttachReport, socket_name};
use rankrun_core::placement::WorkerId;
use rankrun_core::shell::quote::for_shell;
use rankrun_core::shell::script::{Script, ScriptValue, binding_script};
use rankrun_core::worker_command::WorkerCommand;

/// How long the script's file system may take to answer.
const FILE_LIMIT: Duration = Duration::from_secs(2);

/// An external worker of one generation. Its script is removed on drop.
#[derive(Debug)]
pub(super) struct ExternalWorker {
    worker_id: WorkerId,
    listener: AttachListener,
    script: PathBuf,
}

impl ExternalWorker {
    /// Writes the script and listens for its wrapper.
    ///
    /// # Errors
    /// The script cannot be written, or the socket cannot be opened.
    pub(super) fn prepare(
        worker: WorkerId,
        job: &JobId,
        command: &WorkerCommand,
        script: &Path,
    ) -> Result<Self, LaunchError> {
        let name = socket_name(job, worker);
        let setup = |what| move |source| LaunchError::Setup { what, source };
        let listener =
            AttachListener::open(&name).map_err(setup("open a socket for the worker that is left out"))?;
        let launcher = std::env::current_exe().map_err(setup("find the launcher's own program"))?;
        let wrapper = vec![launcher.into_os_string(), format!("{ATTACH}{name}").into()];
        // Under the name torchrun the log folder may be a relative path.
        let script = std::path::absolute(script).unwrap_or_else(|_| script.to_owned());
        let text = build_script(worker, command, wrapper).render();
        let path = script.clone();
        call_with_limit(move || write_private_file(&path, &text))
            .and_then(|written| written)
            .map_err(|source| LaunchError::Script { path: script.clone(), source })?;
        Ok(Self { worker_id: worker, listener, script })
    }

    pub(super) const fn worker_id(&self) -> WorkerId {
        self.worker_id
    }

    /// Instructions for the user, in two lines.
    pub(super) fn hint(&self) -> String {
        let script = for_shell(self.script.as_os_str());
        format!(
            "rankrun: local rank {} is left out and the others wait for it; start it in another terminal:\n  sh {}",
            self.worker_id.local_rank,
            String::from_utf8_lossy(&script)
        )
    }

    /// The descriptors that become readable when [`Self::receive`] has something to do.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listener.as_fds()
    }

    /// What the wrapper has reported since the last call.
    pub(super) fn receive(&mut self) -> Vec<AttachReport> {
        self.listener.receive()
    }

    /// Tells the worker that the job no longer waits for it.
    pub(super) fn release(&mut self, why: &str) {
        self.listener.release_worker(why);
    }
}

impl Drop for ExternalWorker {
    fn drop(&mut self) {
        let script = std::mem::take(&mut self.script);
        // A script that is already removed is fine.
        let _ = call_with_limit(move || std::fs::remove_file(script));
    }
}

fn build_script(worker: WorkerId, command: &WorkerCommand, wrapper: Vec<OsString>) -> Script {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let variable = |entry: &CString| {
        let (name, value) = rankrun_core::worker_command::split_entry(entry.as_bytes());
        (name.to_owned(), ScriptValue::Exactly(value.to_owned()))
    };
    let arguments = command.argv.iter().skip(1);
    let mut comment = vec![
        format!("Runs local rank {} of a job that waits for it, once.", worker.local_rank),
        "Words that are given to it stand before the command: `sh THIS gdb --args`.".to_owned(),
        "It holds the whole environment of the launch: keep it private.".to_owned(),
    ];
    comment.extend(command.cpus.as_deref().map(binding_script));
    Script {
        comment,
        folder: std::env::current_dir().map(PathBuf::into_os_string).unwrap_or_default(),
        environment: command.envp.iter().map(variable).collect(),
        wrapper,
        command: [&command.path].into_iter().chain(arguments).map(|word| text(word.as_bytes())).collect(),
    }
}

/// The result of a call on a file. Its file system may not answer, and signals wait meanwhile.
fn call_with_limit<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let call = BlockingCall::start("script", move |_| call())?;
    call.wait(FILE_LIMIT).ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Creates a new file that only our user can access.
fn write_private_file(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(text)
}
