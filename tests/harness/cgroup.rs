//! A memory cgroup of a test's own, where the machine lets one be made.
#![expect(clippy::disallowed_methods, reason = "the cgroup waits for its last process")]

use std::env::temp_dir;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::settings::print_notice;

/// For so long a process that was killed may take to leave.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// See the module; removed with the processes that are left in it.
#[derive(Debug)]
pub struct MemoryCgroup {
    folder: PathBuf,
    is_v2: bool,
    /// Held by the outermost cgroup of a test.
    alone: Option<File>,
}

/// Until it is dropped, no other test has the kernel kill for lack of memory: the kernel counts for the whole machine, and
/// the launcher reads that count after a SIGKILL.
///
/// # Panics
/// When the temporary folder takes no file.
#[must_use]
pub fn memory_kills_alone() -> File {
    let file =
        File::create(temp_dir().join("rankrun-e2e-memory-kills")).expect("the temporary folder takes a file");
    file.lock().expect("the file can be locked");
    file
}

impl MemoryCgroup {
    /// An empty cgroup without a limit of its own, below the mount's root. Nothing, with a sentence, where the kernel or the
    /// mount refuses it.
    #[must_use]
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("rr-e2e-{}-{}", id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let alone = memory_kills_alone();
        let made = Self::below("/sys/fs/cgroup/memory", &name, false)
            .or_else(|| Self::below("/sys/fs/cgroup", &name, true));
        let Some(mut made) = made else {
            print_notice("skipped: no memory cgroup can be made here");
            return None;
        };
        made.alone = Some(alone);
        Some(made)
    }

    fn below(mount: &str, name: &str, is_v2: bool) -> Option<Self> {
        let folder = Path::new(mount).join(name);
        fs::create_dir(&folder).ok()?;
        let made = Self { folder, is_v2, alone: None };
        let limit = made.folder.join(made.limit_file());
        limit.exists().then_some(made)
    }

    const fn limit_file(&self) -> &'static str {
        if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// With this limit in MiB; swap does not help.
    ///
    /// # Panics
    /// When the kernel refuses it.
    #[must_use]
    pub fn limited(self, mib: u64) -> Self {
        let bytes = (mib << 20).to_string();
        fs::write(self.folder.join(self.limit_file()), &bytes).expect("the cgroup takes a limit");
        // Without swap there are no such files.
        let _ = match self.is_v2 {
            true => fs::write(self.folder.join("memory.swap.max"), "0"),
            false => fs::write(self.folder.join("memory.memsw.limit_in_bytes"), &bytes),
        };
        self
    }

    /// A cgroup in this one, without a limit of its own.
    ///
    /// # Panics
    /// When the kernel refuses it.
    #[must_use]
    pub fn child(&self) -> Self {
        if self.is_v2 {
            fs::write(self.folder.join("cgroup.subtree_control"), "+memory").expect("memory is delegated");
        }
        let folder = self.folder.join("child");
        fs::create_dir(&folder).expect("the cgroup takes another one");
        Self { folder, is_v2: self.is_v2, alone: None }
    }

    /// For [`crate::Launch::under`]: the launcher enters it and stays.
    #[must_use]
    pub fn entered(&self) -> [String; 4] {
        let line = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.folder.display());
        ["sh", "-c", &line, "sh"].map(str::to_owned)
    }

    /// Its processes.
    fn pids(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let until = Instant::now() + LEAVES_WITHIN;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < until {
            for pid in self.pids() {
                let _ = kill(pid, Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
