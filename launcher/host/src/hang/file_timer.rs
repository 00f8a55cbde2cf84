//! The FIFO of PyTorch's file timers (contract 3.10): a thread of its own reads it for the life of the launcher, and names
//! the processes whose timers have expired. The agent signals them, if they are of the job.
#![expect(clippy::disallowed_methods, reason = "timers are compared with the clock")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::logs::tree::{held_folder_pattern, make_held_folder};
use rankrun_core::hang::file_timer::{FileTimers, MAX_REQUEST};
use rankrun_core::posix::{Pid, Signal};
use rankrun_core::worker_command::TIMER_FILE;

/// torchrun puts a number behind this name.
const FIFO: &str = "watchdog_timer";
const ENABLE: &str = "TORCHELASTIC_ENABLE_FILE_TIMER";
/// How often timers are compared with the clock, as torchrun does.
const LOOK_MILLISECONDS: u8 = 100;
/// So many expired timers are handed out at once: the agent looks at signals between two lots.
const MAX_EXPIRED: usize = 64;
/// Between two reads, so that a flood of requests costs little.
const READ_MILLISECONDS: u8 = 10;

/// Where the FIFO is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerPlace {
    /// The path that the user names.
    Named(PathBuf),
    /// A folder for temporary files, in which the FIFO gets a folder of its own: `rankrun gc` removes that after a kill of the
    /// launcher.
    Temporary(PathBuf),
}

impl TimerPlace {
    /// The path of the FIFO as a shell pattern.
    #[must_use]
    pub fn pattern(&self) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Temporary(folder) => held_folder_pattern(folder).join(FIFO),
        }
    }
}

/// Where the FIFO is to be, if this environment asks for one.
#[must_use]
pub fn timer_place(environment: &[(OsString, OsString)]) -> Option<TimerPlace> {
    let value = |wanted: &str| {
        let found = environment.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_os_str())
    };
    value(ENABLE).filter(|value| *value == "1")?;
    let folder = value("TMPDIR").filter(|folder| !folder.is_empty()).unwrap_or(OsStr::new("/tmp"));
    let named = value(TIMER_FILE).map(|path| TimerPlace::Named(path.into()));
    Some(named.unwrap_or_else(|| TimerPlace::Temporary(folder.into())))
}

/// The agent's end of the thread. The FIFO is removed, and the thread ends, when this is dropped.
#[derive(Debug)]
pub(crate) struct FileTimerServer {
    path: PathBuf,
    /// That of the FIFO alone, and its lock.
    folder: Option<(PathBuf, Option<File>)>,
    ended: Arc<EventFd>,
    expired: Receiver<(Pid, Signal)>,
    has_expired: Arc<EventFd>,
    /// One line tells of timers of processes that are not of this job.
    foreign_reported: Once,
}

impl FileTimerServer {
    /// Makes the FIFO, in place of a file of the user's name for it, and reads it.
    ///
    /// # Errors
    /// The FIFO cannot be made, or no descriptor or no thread is left.
    pub(crate) fn start(place: TimerPlace) -> io::Result<Self> {
        let (path, folder) = match place {
            TimerPlace::Named(path) => (path, None),
            TimerPlace::Temporary(place) => {
                let made = make_held_folder(&place)?;
                (made.0.join(FIFO), Some(made))
            }
        };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?,
        }
        // For writing too, so that it is never at its end.
        let fifo = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        let new_event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new);
        let (ended, has_expired) = (new_event()?, new_event()?);
        let (outbox, expired) = channel();
        let (stop, ready) = (Arc::clone(&ended), Arc::clone(&has_expired));
        let reader =
            TimerReader { fifo, partial: Vec::new(), timers: FileTimers::default(), has_bad_request: false };
        thread::Builder::new()
            .name("file-timers".to_owned())
            .spawn(move || reader.run(&stop, &outbox, &ready))?;
        Ok(Self { path, folder, ended, expired, has_expired, foreign_reported: Once::new() })
    }

    /// The path for workers.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when [`Self::take_expired`] has something.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.has_expired.as_fd()
    }

    /// The processes with an expired timer, and the signal of each.
    pub(crate) fn take_expired(&self) -> Vec<(Pid, Signal)> {
        let _ = self.has_expired.read();
        let expired: Vec<_> = self.expired.try_iter().take(MAX_EXPIRED).collect();
        if expired.len() == MAX_EXPIRED {
            let _ = self.has_expired.write(1);
        }
        expired
    }

    /// A timer of this process has expired, which is not of this job.
    pub(crate) fn report_foreign(&self, pid: Pid) {
        let text = "has expired, which is not a process of this job; further ones are ignored";
        self.foreign_reported.call_once(|| tracing::warn!("a timer of pid {pid} {text}"));
    }
}

impl Drop for FileTimerServer {
    fn drop(&mut self) {
        let _ = self.ended.write(1);
        let _ = fs::remove_file(&self.path);
        let _ = self.folder.as_ref().map(|(folder, _)| fs::remove_dir(folder));
    }
}

#[derive(Debug)]
struct TimerReader {
    fifo: File,
    /// The start of a line whose end has not come.
    partial: Vec<u8>,
    timers: FileTimers,
    has_bad_request: bool,
}

impl TimerReader {
    fn run(mut self, stop: &EventFd, outbox: &Sender<(Pid, Signal)>, ready: &EventFd) {
        loop {
            let timeout =
                if self.timers.is_empty() { PollTimeout::NONE } else { PollTimeout::from(LOOK_MILLISECONDS) };
            let mut fds = [self.fifo.as_fd(), stop.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) if fds[1].any().unwrap_or(true) => return,
                Ok(_) | Err(Errno::EINTR) => {}
                // The loop must not spin.
                Err(_) => thread::sleep(Duration::from_millis(LOOK_MILLISECONDS.into())),
            }
            self.read_requests();
            for expired in self.timers.take_expired(SystemTime::now()) {
                let _ = outbox.send(expired);
                let _ = ready.write(1);
            }
            let _ = poll(
                &mut [PollFd::new(stop.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(READ_MILLISECONDS),
            );
        }
    }

    fn read_requests(&mut self) {
        let mut chunk = [0; 16 << 10];
        let Ok(length) = self.fifo.read(&mut chunk) else { return };
        self.partial.extend_from_slice(&chunk[..length]);
        let Some(end) = memchr::memrchr(b'\n', &self.partial) else {
            self.partial.truncate(MAX_REQUEST + 1);
            return;
        };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        for line in lines[..end].split(|byte| *byte == b'\n') {
            if let Err(error) = self.timers.record(line)
                && !std::mem::replace(&mut self.has_bad_request, true)
            {
                tracing::warn!("a line for `{TIMER_FILE}` is ignored, as are further bad ones: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::error_folder::find_dead;
    use std::io::Write;

    #[test]
    fn place_is_of_variable_or_temporary() {
        let environment = |extra: &[(&str, &str)]| -> Vec<(OsString, OsString)> {
            extra.iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        let of = |extra: &[(&str, &str)]| timer_place(&environment(extra));
        assert_eq!(of(&[(TIMER_FILE, "/a")]), None);
        assert_eq!(of(&[(ENABLE, "0")]), None);
        assert_eq!(of(&[(ENABLE, "1"), (TIMER_FILE, "/a")]), Some(TimerPlace::Named("/a".into())));
        assert_eq!(of(&[(ENABLE, "1"), ("TMPDIR", "/b")]), Some(TimerPlace::Temporary("/b".into())));
        assert_eq!(of(&[(ENABLE, "1"), ("TMPDIR", "")]), Some(TimerPlace::Temporary("/tmp".into())));
    }

    #[test]
    fn expired_timer_is_reported_and_fifo_is_removed() {
        let path = std::env::temp_dir().join(format!("rankrun-file-timer-{}", std::process::id()));
        fs::write(&path, "a file of another launcher").unwrap();
        let server = FileTimerServer::start(TimerPlace::Named(path.clone())).unwrap();
        let request = "garbage\n{\"version\": 1, \"pid\": 77, \"scope_id\": \"a\", \"expiration_time\": 1.5, \"signal\": 9}\n";
        OpenOptions::new().write(true).open(&path).unwrap().write_all(request.as_bytes()).unwrap();
        poll(&mut [PollFd::new(server.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        assert_eq!(server.take_expired(), [(Pid::from_raw(77), Signal::SIGKILL)]);
        drop(server);
        assert!(!path.exists());
    }

    /// The kernel drops the lock with the launcher.
    #[test]
    fn folder_of_unnamed_fifo_is_removed_or_left_to_gc() {
        let place = std::env::temp_dir().join(format!("rankrun-timer-folder-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        let mut server = FileTimerServer::start(TimerPlace::Temporary(place.clone())).unwrap();
        assert!(server.path().exists());
        assert_eq!(find_dead(&place).len(), 0, "the launcher is alive");
        drop(server.folder.as_mut().and_then(|(_, lock)| lock.take()));
        assert_eq!(find_dead(&place).len(), 1);
        drop(server);
        fs::remove_dir(place).unwrap();
    }
}
