//! Runtime folders for tests.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rankrun_contract::rank::JobId;
use rankrun_host::control::folder::{JobFolder, RuntimeFolders};

/// A place of its own, removed at the end.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-command-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn folders(&self) -> RuntimeFolders {
        RuntimeFolders::of(Some(self.0.as_os_str()), None, 4_000_000_000)
    }

    pub(super) fn job(&self) -> (JobFolder, UnixListener) {
        let job = JobId(uuid::Uuid::new_v4().to_string());
        let (folder, listener) = JobFolder::make(&self.folders(), &job).unwrap();
        listener.set_nonblocking(false).unwrap();
        (folder, listener)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
