//! The folder of a job's control socket: its place, its permissions, and the folders that dead jobs have left.
//!
//! A folder gets its name when its socket listens. So a folder of that name without a listener is of a dead job.
#![expect(clippy::disallowed_methods, reason = "the age of a folder is read from the clock")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rankrun_contract::rank::JobId;
use rustix::fs::{Access, access};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket, socket_with,
};
use uuid::Uuid;

use self::refusal::refusal_of;
pub use self::refusal::{FolderError, FolderRefusal, SearchError};
use crate::blocking::{BlockingCall, CallStep};

mod refusal;

/// A job that takes longer for an answer hangs, or is stopped.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A file system that takes longer for a runtime folder hangs.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(3);
const SOCKET_NAME: &str = "control.sock";
/// Of a folder whose socket does not listen so far.
const NEW_PREFIX: &str = ".new-";
/// An agent needs far less to listen in its new folder, also on a slow file system.
const NEW_LIMIT: Duration = Duration::from_secs(60);
/// `sun_path` of sockaddr_un(7), less the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;
/// Jobs that end at the same time remove the empty parent folder between two calls here, perhaps many times.
const MAKE_ATTEMPTS: usize = 100;

/// The folders that hold jobs of this user, the preferred one first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeFolders(Vec<RuntimeFolder>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct RuntimeFolder {
    path: PathBuf,
    /// Another user's `/run/user/UID` is not ours, even if `sudo` has kept its variable. `/tmp` is every user's.
    needs_own_parent: bool,
}

impl RuntimeFolders {
    /// The folders by the variables of this environment.
    #[must_use]
    pub fn of_environment(environment: &[(OsString, OsString)]) -> Self {
        let value = |wanted: &str| {
            let found = environment.iter().find(|(name, value)| name == wanted && !value.is_empty());
            found.map(|(_, value)| value.as_os_str())
        };
        Self::of(value("XDG_RUNTIME_DIR"), value("TMPDIR"), rustix::process::geteuid().as_raw())
    }

    /// The folders by these variables, for this user.
    #[must_use]
    pub fn of(runtime_dir: Option<&OsStr>, temporary: Option<&OsStr>, uid: u32) -> Self {
        let absolute = |value: Option<&OsStr>| value.map(PathBuf::from).filter(|path| path.is_absolute());
        let own = |parent: PathBuf| RuntimeFolder { path: parent.join("rankrun"), needs_own_parent: true };
        let shared = |parent: PathBuf| RuntimeFolder {
            path: parent.join(format!("rankrun-{uid}")),
            needs_own_parent: false,
        };
        let mut folders: Vec<RuntimeFolder> = absolute(runtime_dir).map(own).into_iter().collect();
        folders.push(own(PathBuf::from(format!("/run/user/{uid}"))));
        folders.extend(absolute(temporary).map(shared));
        folders.push(shared(PathBuf::from("/tmp")));
        let mut distinct: Vec<RuntimeFolder> = Vec::new();
        for folder in folders {
            if !distinct.contains(&folder) {
                distinct.push(folder);
            }
        }
        Self(distinct)
    }

    /// The paths, for people.
    #[must_use]
    pub fn display(&self) -> String {
        let paths: Vec<String> = self.0.iter().map(|folder| format!("`{}`", folder.path.display())).collect();
        paths.join(", ")
    }

    /// The folders of all jobs, and the refused places that a job would prefer.
    ///
    /// # Errors
    /// The file system of a place does not answer, or no thread is left.
    pub fn find_job_folders(self) -> Result<FoundFolders, SearchError> {
        let call = BlockingCall::start("runtime-folders", move |step| self.search(step));
        let call = call.map_err(SearchError::Thread)?;
        call.wait(SEARCH_TIMEOUT).ok_or_else(|| SearchError::Silent { path: call.step() })
    }

    /// The step names the folder that is being read.
    fn search(&self, step: &CallStep) -> FoundFolders {
        let mut found = FoundFolders::default();
        let mut is_usable = false;
        for folder in &self.0 {
            step.set(folder.path.display().to_string());
            match folder.check() {
                Ok(()) => {
                    found.jobs.extend(folder.entries(""));
                    found.unnamed.extend(folder.entries(NEW_PREFIX));
                }
                // A job of this environment has its folder in a place before this one.
                Err(FolderError::Refused(refusal)) if !is_usable => found.refused.push(refusal),
                Err(FolderError::Refused(_) | FolderError::Io(_)) => {}
            }
            is_usable |= folder.allows_jobs();
        }
        found.jobs.sort_by(|one, other| one.job.cmp(&other.job));
        found
    }

    /// Removes the folder of this job, wherever it is. Nothing there is as good.
    pub fn remove_job(&self, job: &JobId) {
        for folder in &self.0 {
            for name in [job.0.clone(), format!("{NEW_PREFIX}{}", job.0)] {
                let _ = JobFolder { job: job.0.clone(), path: folder.path.join(name) }.remove();
            }
        }
    }
}

/// The job folders in all places.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FoundFolders {
    /// Those of jobs, alive or dead, by job id.
    pub jobs: Vec<JobFolder>,
    /// Those of agents that do not listen so far, or were killed before.
    unnamed: Vec<JobFolder>,
    /// Runtime folders that no job uses.
    pub refused: Vec<FolderRefusal>,
}

impl FoundFolders {
    /// Folders without a listener: those of dead jobs, and those of agents that were killed before they listened.
    #[must_use]
    pub fn into_dead(self, now: SystemTime) -> Vec<JobFolder> {
        let named = self.jobs.into_iter().filter(JobFolder::is_dead);
        named.chain(self.unnamed.into_iter().filter(|folder| folder.is_abandoned(now))).collect()
    }
}

impl RuntimeFolder {
    /// Makes the folder, readable for this user alone.
    fn make(&self) -> Result<(), FolderError> {
        self.check_parent()?;
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        self.check()?;
        Ok(self.tighten()?)
    }

    fn check_parent(&self) -> io::Result<()> {
        let Some(parent) = self.path.parent().filter(|_| self.needs_own_parent) else { return Ok(()) };
        let is_own =
            refusal_of(parent, &fs::symlink_metadata(parent)?).is_none_or(|refusal| refusal.is_own());
        let refused = || format!("`{}` is not a folder of this user", parent.display());
        if is_own { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, refused())) }
    }

    /// Refuses a folder in which other users may have put a socket.
    fn check(&self) -> Result<(), FolderError> {
        self.check_parent()?;
        refusal_of(&self.path, &fs::symlink_metadata(&self.path)?)
            .map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// Keeps other users from reading a folder to which they could not write.
    fn tighten(&self) -> io::Result<()> {
        if fs::symlink_metadata(&self.path)?.permissions().mode() & 0o077 == 0 {
            return Ok(());
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)?
            .set_permissions(Permissions::from_mode(0o700))
    }

    /// True if a job would have its folder here.
    fn allows_jobs(&self) -> bool {
        let parent_allows = || {
            let parent = self.path.parent();
            parent.is_some_and(|parent| access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok())
        };
        match self.check() {
            Ok(()) => true,
            Err(FolderError::Refused(_)) => false,
            Err(FolderError::Io(error)) => error.kind() == io::ErrorKind::NotFound && parent_allows(),
        }
    }

    /// The folders in it with this prefix and a job id.
    fn entries(&self, prefix: &str) -> Vec<JobFolder> {
        if self.check().is_err() {
            return Vec::new();
        }
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| {
                let name = entry.file_name();
                let job = name.to_str()?.strip_prefix(prefix).filter(|job| Uuid::try_parse(job).is_ok())?;
                Some(JobFolder { job: job.to_owned(), path: entry.path() })
            })
            .collect()
    }
}

/// The folder of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFolder {
    /// The job id.
    pub job: String,
    /// The path of the folder.
    pub path: PathBuf,
}

impl JobFolder {
    /// Connects; a full queue of the listener is waited for so long.
    ///
    /// # Errors
    /// The kernel's, or no folder of a job.
    pub fn connect(&self, limit: Duration) -> io::Result<UnixStream> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
        self.with_socket_path(|path| Ok(connect_socket(&socket, &SocketAddrUnix::new(path)?)?))?;
        Ok(UnixStream::from(socket))
    }

    /// Makes the folder in the first place that allows it, with a listening, nonblocking socket. Removes what agents
    /// have left there that were killed meanwhile.
    ///
    /// # Errors
    /// No descriptor is left, or the first place that is refused, else the error of the last place.
    pub fn make(places: &RuntimeFolders, job: &JobId) -> Result<(Self, UnixListener), FolderError> {
        let mut failure = FolderError::Io(io::ErrorKind::NotFound.into());
        for place in &places.0 {
            for _ in 0..MAKE_ATTEMPTS {
                let made = place.make().and_then(|()| Ok(Self::make_in(&place.path, job)?));
                let error = match made {
                    Ok(made) => {
                        let mut unnamed = place.entries(NEW_PREFIX);
                        unnamed.retain(|folder| folder.is_abandoned(SystemTime::now()));
                        unnamed.iter().for_each(|folder| drop(folder.remove()));
                        return Ok(made);
                    }
                    Err(error) => error,
                };
                // The place is not at fault. Elsewhere a command with another TMPDIR would not find the job.
                if matches!(&error, FolderError::Io(error) if error.raw_os_error() == Some(libc::EMFILE)) {
                    return Err(error);
                }
                let is_gone =
                    matches!(&error, FolderError::Io(error) if error.kind() == io::ErrorKind::NotFound);
                if matches!(failure, FolderError::Io(_)) {
                    failure = error;
                }
                if !is_gone || !place.path.parent().is_some_and(Path::exists) {
                    break;
                }
            }
        }
        Err(failure)
    }

    fn make_in(parent: &Path, job: &JobId) -> io::Result<(Self, UnixListener)> {
        let new = Self { job: job.0.clone(), path: parent.join(format!("{NEW_PREFIX}{}", job.0)) };
        let named = Self { job: job.0.clone(), path: parent.join(&job.0) };
        DirBuilder::new().mode(0o700).create(&new.path)?;
        let listening = new.with_socket_path(|path| UnixListener::bind(path));
        let result = listening.and_then(|listener| {
            listener.set_nonblocking(true)?;
            fs::rename(&new.path, &named.path)?;
            Ok(listener)
        });
        match result {
            Ok(listener) => Ok((named, listener)),
            Err(error) => {
                let _ = new.remove();
                Err(error)
            }
        }
    }

    /// Calls with a path of the socket that fits into an address. A long one goes by way of `/proc`.
    pub(super) fn with_socket_path<T>(&self, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let path = self.path.join(SOCKET_NAME);
        if path.as_os_str().len() <= MAX_SOCKET_PATH {
            return call(&path);
        }
        let folder: File = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&self.path)?;
        call(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", folder.as_raw_fd())))
    }

    /// True if no process listens.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let refused = |error: io::Error| {
            matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        };
        self.connect(ANSWER_TIMEOUT).err().is_some_and(refused)
    }

    /// True for a folder that has not got its name for a long time: its agent was killed.
    fn is_abandoned(&self, now: SystemTime) -> bool {
        self.modified().and_then(|at| now.duration_since(at).ok()).is_some_and(|age| age >= NEW_LIMIT)
    }

    /// When the folder was made.
    #[must_use]
    pub fn modified(&self) -> Option<SystemTime> {
        fs::symlink_metadata(&self.path).ok()?.modified().ok()
    }

    /// Removes the socket, the folder, and the parent if this was its last job.
    ///
    /// # Errors
    /// The kernel's first refusal.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(SOCKET_NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let removed = fs::remove_dir(&self.path);
        let is_gone = removed.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::NotFound);
        if let Some(parent) = self.path.parent().filter(|_| is_gone) {
            // Other jobs may be in it.
            let _ = fs::remove_dir(parent);
        }
        removed
    }
}

#[cfg(test)]
mod tests;
