//! Folders with libraries, and processes that see only these.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};

use crate::process;

/// A folder that is removed at the end.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-nccl-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// With the fake under the names of NCCL and the driver.
    pub(super) fn with_fakes() -> Self {
        let folder = Self::new();
        folder.link("libnccl.so.2").link("libcuda.so.1");
        folder
    }

    /// The fake under this name.
    pub(super) fn link(&self, name: &str) -> &Self {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(fake(), path).unwrap();
        self
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(super) fn path(&self, name: &str) -> OsString {
        self.0.join(name).into_os_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The fake, which Cargo keeps beside the tests.
pub(super) fn fake() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libfake_gpu.so");
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

/// Variables of a process that sees the libraries of `folder`, of which the fake does as `orders` say.
pub(super) fn library_vars(folder: &Path, orders: &str) -> Vec<(&'static str, OsString)> {
    vec![
        ("LD_LIBRARY_PATH", folder.into()),
        ("FAKE_GPU", orders.into()),
        ("RANKRUN_NCCL", "".into()),
        ("VIRTUAL_ENV", "".into()),
        ("CONDA_PREFIX", "".into()),
        ("PATH", "".into()),
    ]
}

pub(super) fn start(scene: &str, vars: Vec<(&'static str, OsString)>) -> Child {
    process::start(&format!("nccl: {scene}"), vars)
}

/// What a scene printed.
pub(super) fn run_scene(scene: &str, vars: Vec<(&'static str, OsString)>) -> String {
    let Output { status, stdout, stderr } = start(scene, vars).wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "`{scene}` ended with {status}: {stdout}{stderr}");
    // The harness of the started process speaks too.
    stdout.lines().skip_while(|line| !line.ends_with("scene:")).skip(1).collect::<Vec<_>>().join("\n")
}

/// A scene with the fakes in their places.
pub(super) fn run_scene_with(scene: &str, orders: &str) -> String {
    let folder = Folder::with_fakes();
    run_scene(scene, library_vars(&folder.0, orders))
}
