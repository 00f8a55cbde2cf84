//! The real machine, asked through the kernel: the [`World`] of a launch. It answers the questions of
//! `rankrun_core::facts` from files, the environment and the probes, and draws no conclusion from them.
#![expect(clippy::disallowed_methods, reason = "the environment and the time of day are read here")]

mod affinity;

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::unistd::{AccessFlags, access, getpgrp, getsid};

use crate::console::is_terminal;
use crate::process::probe::{self, TellOfWait};
use crate::process::proc;
use crate::regular_file;
use rankrun_core::device::{CudaOrder, Machine, ProbeScope};
use rankrun_core::facts::{Facts, FileKind, Permission, StandardStream, World};

/// Reads the facts of this process on this machine. A slow device discovery is announced to the user.
#[must_use]
pub fn gather_facts(tell_of_wait: TellOfWait) -> Facts {
    Facts::new(std::env::vars_os().collect(), Box::new(System { tell_of_wait }))
}

/// The real system, asked through the kernel.
#[derive(Debug, Clone, Copy)]
pub struct System {
    tell_of_wait: TellOfWait,
}

impl System {
    /// The wait for the probes is not announced.
    pub const SILENT: Self = Self { tell_of_wait: |_, _| {} };
}

impl World for System {
    fn working_folder(&self) -> Option<PathBuf> {
        std::env::current_dir().ok()
    }

    fn affinity_cpu_count(&self) -> usize {
        match self.allowed_cpus().len() {
            // A sandbox may refuse the system call; std has other ways.
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get),
            count => count,
        }
    }

    fn kind(&self, path: &Path) -> FileKind {
        match std::fs::metadata(path) {
            Err(_) => FileKind::Missing,
            Ok(found) if found.is_dir() => FileKind::Directory,
            Ok(found) if found.is_file() => FileKind::File,
            Ok(_) => FileKind::Other,
        }
    }

    fn has_permission(&self, permission: Permission, path: &Path) -> bool {
        let flags = match permission {
            Permission::Read => AccessFlags::R_OK,
            Permission::Write => AccessFlags::W_OK,
            Permission::Execute => AccessFlags::X_OK,
        };
        access(path, flags).is_ok()
    }

    fn read_first_bytes(&self, path: &Path, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        match regular_file::open_to_read(path).and_then(|file| file.take(most as u64).read_to_end(&mut bytes))
        {
            Ok(_) => bytes,
            Err(_) => Vec::new(),
        }
    }

    fn read_file(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        regular_file::open_to_read(path)?.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::other(format!("it has more than {most} bytes")));
        }
        Ok(bytes)
    }

    fn list_names(&self, folder: &Path, most: usize) -> Vec<String> {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        entries.take(most).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    fn resolve_links(&self, path: &Path) -> PathBuf {
        std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }

    fn is_terminal(&self, stream: StandardStream) -> bool {
        match stream {
            StandardStream::Input => is_terminal(std::io::stdin().as_fd()),
            StandardStream::Output => is_terminal(std::io::stdout().as_fd()),
            StandardStream::Error => is_terminal(std::io::stderr().as_fd()),
        }
    }

    fn host_name(&self) -> String {
        short_hostname()
    }

    fn user_id(&self) -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn process_id(&self) -> u32 {
        std::process::id()
    }

    fn is_shell_job(&self) -> bool {
        // The leader of a session leads the process group with its number.
        getsid(None).is_ok_and(|session| session != getpgrp())
    }

    fn descends_from(&self, process: u32) -> bool {
        proc::descends_from(process)
    }

    fn is_port_in_use(&self, port: u16) -> bool {
        let bound = std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, port));
        bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    }

    fn unix_time(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn fresh_uuid(&self) -> uuid::Uuid {
        uuid::Uuid::new_v4()
    }

    fn probe_devices(&self, ask: ProbeScope, limit: Duration) -> Machine {
        probe::discover(ask, limit, self.tell_of_wait)
    }

    fn cuda_order(&self, limit: Duration) -> CudaOrder {
        probe::cuda_order(limit, self.tell_of_wait)
    }

    fn allowed_cpus(&self) -> Vec<u32> {
        affinity::own_cpus().unwrap_or_default()
    }
}

/// The name of this machine, without its domain.
#[must_use]
pub fn short_hostname() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| "localhost".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_system_reports_own_process() {
        let facts = gather_facts(|_, _| {});
        assert!(facts.world().affinity_cpu_count() >= 1);
        assert_eq!(facts.world().allowed_cpus().len(), facts.world().affinity_cpu_count());
        let own = std::env::current_exe().unwrap();
        assert!(facts.is_executable(&own));
        assert_eq!(facts.world().read_first_bytes(&own, 4), b"\x7fELF");
        let parent = std::os::unix::process::parent_id();
        assert!(facts.world().descends_from(parent) && !facts.world().descends_from(u32::MAX));
        assert!(!facts.world().descends_from(facts.world().process_id()));
        assert_eq!(facts.world().kind(Path::new("/")), FileKind::Directory);
        assert_eq!(facts.world().kind(Path::new("/dev/null")), FileKind::Other);
        assert!(!facts.exists(Path::new("/no/such/file")));
    }
}
