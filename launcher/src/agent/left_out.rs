//! The worker that `--leave-out` leaves to a person: writes its script, lets its wrapper in, and tells it when the
//! others have ended. It is never signalled: whatever runs there belongs to the person.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rankrun_contract::rank::JobId;

use crate::cli::ATTACH;
use crate::error::LaunchError;
use crate::explain::quote::for_shell;
use crate::explain::script::{Script, Word, binding};
use crate::placement::WorkerId;
use crate::process::by_hand::{Door, Reported, socket_name};
use crate::process::command::Command;

/// A worker that waits for its person, in one generation; its script goes when this goes.
#[derive(Debug)]
pub(super) struct LeftOut {
    worker: WorkerId,
    door: Door,
    script: PathBuf,
}

impl LeftOut {
    /// Writes the script and waits for its wrapper from now on.
    ///
    /// # Errors
    /// The script cannot be written, or there is no socket.
    pub(super) fn prepare(
        worker: WorkerId,
        job: &JobId,
        command: &Command,
        script: &Path,
    ) -> Result<Self, LaunchError> {
        let name = socket_name(job, worker);
        let setup = |what| move |source| LaunchError::Setup { what, source };
        let door = Door::open(&name).map_err(setup("open a socket for the worker that is left out"))?;
        let launcher = std::env::current_exe().map_err(setup("find the launcher's own program"))?;
        let wrapper = vec![launcher.into_os_string(), format!("{ATTACH}{name}").into()];
        // Under the name torchrun the log folder may be a relative one.
        let script = std::path::absolute(script).unwrap_or_else(|_| script.to_owned());
        let text = script_of(worker, command, wrapper).render();
        write(&script, &text).map_err(|source| LaunchError::Script { path: script.clone(), source })?;
        Ok(Self { worker, door, script })
    }

    /// Which worker it is.
    pub(super) const fn worker(&self) -> WorkerId {
        self.worker
    }

    /// What to do now, in two lines.
    pub(super) fn hint(&self) -> String {
        let script = for_shell(self.script.as_os_str());
        format!(
            "rankrun: local rank {} is left out and the others wait for it; start it in another terminal:\n  sh {}",
            self.worker.local_rank,
            String::from_utf8_lossy(&script)
        )
    }

    /// Readable when [`Self::receive`] has something to do.
    pub(super) fn as_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.door.as_fds()
    }

    /// What the worker did.
    pub(super) fn receive(&mut self) -> Vec<Reported> {
        self.door.receive()
    }

    /// Nobody waits for it any more.
    pub(super) fn release(&mut self, why: &str) {
        self.door.release(why);
    }
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.script);
    }
}

fn script_of(worker: WorkerId, command: &Command, wrapper: Vec<OsString>) -> Script {
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let variable = |entry: &CString| {
        let (name, value) = crate::explain::split(entry.as_bytes());
        (name.to_owned(), Word::Exactly(value.to_owned()))
    };
    let arguments = command.argv.iter().skip(1);
    let mut comment = vec![
        format!("Runs local rank {} of a job that waits for it, once.", worker.local_rank),
        "Words that are given to it stand before the command: `sh THIS gdb --args`.".to_owned(),
        "It holds the whole environment of the launch: mind who reads it.".to_owned(),
    ];
    comment.extend(command.cpus.as_deref().map(binding));
    Script {
        comment,
        folder: std::env::current_dir().map(PathBuf::into_os_string).unwrap_or_default(),
        environment: command.envp.iter().map(variable).collect(),
        wrapper,
        command: [&command.path].into_iter().chain(arguments).map(|word| text(word.as_bytes())).collect(),
    }
}

/// A new file for our user alone.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o700).open(path)?;
    file.write_all(text)
}
