//! Where things are: folders of a test, the programs under test, Python.
#![expect(
    clippy::disallowed_methods,
    reason = "the tools of a test run are found through its environment, and started"
)]

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::{env, io, process};

use crate::settings::{is_soak, print_notice};

/// A folder of one test, removed with all that is in it.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A fresh, empty folder that any user may enter.
    ///
    /// # Panics
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("rr-e2e-{}-{number}", process::id()));
        // A test that was killed has left its folder, and its pid is another test's now.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("the folder is ours");
        Self { path }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or folder in it, as text for a command line.
    ///
    /// # Panics
    /// When the temporary folder's name is not UTF-8.
    #[must_use]
    pub fn at(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("the temporary folder has a plain name").to_owned()
    }

    /// A new file in it.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn file(&self, name: &str, text: &str, mode: u32) -> String {
        self.binary(name, text.as_bytes(), mode)
    }

    /// A new file in it, of any bytes.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn binary(&self, name: &str, text: &[u8], mode: u32) -> String {
        let path = self.at(name);
        if mode & 0o111 == 0 {
            fs::write(&path, text).expect("the scratch folder is writable");
        } else {
            let source = format!("{path}.source");
            fs::write(&source, text).expect("the scratch folder is writable");
            copy_program(Path::new(&source), Path::new(&path));
        }
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("the file is ours");
        path
    }

    /// A new folder in it.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn folder(&self, name: &str, mode: u32) -> String {
        let path = self.at(name);
        fs::create_dir_all(&path).expect("the scratch folder is writable");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("the folder is ours");
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A worker that is just being killed may still write: what is left is only litter.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies a program, in a process of its own: a file cannot be executed while a process has it open to write (ETXTBSY),
/// and a child of another test holds this process's open files until its `execve`.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().expect("`cp` is installed");
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}

/// The folder into which Cargo put the programs: above the test's own `deps/`.
fn built() -> PathBuf {
    let test = env::current_exe().expect("a process knows its own program");
    let folder = test.parent().and_then(Path::parent).expect("Cargo runs tests from <target>/<profile>/deps");
    folder.to_owned()
}

fn program(name: &str, builder: &str) -> PathBuf {
    let path = built().join(name);
    assert!(path.is_file(), "{} is missing: build it first with `{builder}`", path.display());
    path
}

/// A program of this package.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    program(name, "cargo build --package rankrun-e2e")
}

/// A shared library of a package below `tests/fakes/`: Cargo keeps what this package depends on beside the test.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn library(name: &str) -> PathBuf {
    program(&format!("deps/lib{name}.so"), "cargo build --package rankrun-e2e")
}

/// A program of the package `rankrun-examples`.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    program(name, "cargo build --workspace")
}

/// The checkout that is tested.
///
/// # Panics
/// Never in a checkout.
#[must_use]
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are below the root")
}

/// A file below `examples/` in the checkout.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn example_source(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples").join(name);
    assert!(path.is_file(), "{} is missing from the checkout", path.display());
    path
}

/// The Python that has PyTorch 2.15: `RANKRUN_TEST_PYTHON`, else the one that `tests/run` installs.
///
/// # Panics
/// When there is none, or the run is one without PyTorch (`RANKRUN_E2E_NO_TORCH=1`).
#[must_use]
pub fn python() -> PathBuf {
    assert!(
        env::var_os("RANKRUN_E2E_NO_TORCH").is_none(),
        "this test needs PyTorch: name it in tests/e2e/needs-torch.txt"
    );
    let python = python_path();
    assert!(
        python.is_file(),
        "no PyTorch at {}: run `tests/run` once, or name a Python that has it in RANKRUN_TEST_PYTHON",
        python.display()
    );
    python
}

/// The value of `PYTHONPATH` with which that Python spends less time on PyTorch's modules, behind these folders; with
/// `RANKRUN_SOAK=1` only these.
///
/// # Panics
/// Never: no folder of the tests has a colon in its name.
#[must_use]
pub fn python_modules(folders: &[PathBuf]) -> OsString {
    let quick = (!is_soak()).then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("harness/python"));
    env::join_paths(folders.iter().cloned().chain(quick)).expect("no folder has a colon in its name")
}

/// Where [`python`] is, whether or not it is there.
pub(crate) fn python_path() -> PathBuf {
    let installed = || cache().join("venv-torch-2.15.0/bin/python");
    env::var_os("RANKRUN_TEST_PYTHON").map_or_else(installed, PathBuf::from)
}

/// The wheel that `tests/run` builds: `RANKRUN_TEST_WHEEL`.
#[must_use]
pub fn wheel() -> Option<PathBuf> {
    let wheel = env::var_os("RANKRUN_TEST_WHEEL").map(PathBuf::from);
    if wheel.is_none() {
        print_notice("skipped: no RANKRUN_TEST_WHEEL; `tests/run` builds one");
    }
    wheel
}

/// The folders of the MPI launchers that `tests/mpi` installs: those in `RANKRUN_TEST_MPI`.
///
/// # Panics
/// When the folder cannot be read.
#[must_use]
pub fn mpi_folders() -> Vec<PathBuf> {
    let Some(folder) = env::var_os("RANKRUN_TEST_MPI").map(PathBuf::from) else {
        print_notice("skipped: no RANKRUN_TEST_MPI; `tests/mpi` installs MPI launchers");
        return Vec::new();
    };
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    entries.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).collect()
}

/// The folder of the frameworks of `tests/pytorch/frameworks.txt` for that Python:
/// `RANKRUN_TEST_FRAMEWORKS`, else the folder that `tests/run` installs.
///
/// # Panics
/// When they are not there.
#[must_use]
pub fn frameworks() -> PathBuf {
    let folder = env::var_os("RANKRUN_TEST_FRAMEWORKS").map_or_else(installed_frameworks, PathBuf::from);
    assert!(
        folder.join("transformers").is_dir() && folder.join("pytorch_lightning").is_dir(),
        "no transformers and pytorch_lightning in {}: run `tests/run` once, or name a folder that has them in \
         RANKRUN_TEST_FRAMEWORKS",
        folder.display()
    );
    folder
}

/// Compiled packages fit one version of Python, so that the folder is named after it too.
fn installed_frameworks() -> PathBuf {
    let pins = include_str!("../pytorch/frameworks.txt");
    let pinned = |package: &str| pins.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
    let version = |package: &str| pinned(package).unwrap_or_else(|| panic!("`{package}` is not pinned"));
    let tag = Command::new(python())
        .args(["-c", "import sys; print(sys.implementation.cache_tag, end='')"])
        .output();
    let tag = String::from_utf8(tag.expect("Python starts").stdout).expect("a tag is text");
    let (transformers, lightning) = (version("transformers"), version("pytorch-lightning"));
    cache().join(format!("frameworks-{transformers}-{lightning}-{tag}"))
}

/// Where `tests/run` installs.
fn cache() -> PathBuf {
    let chosen = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache");
    chosen.unwrap_or_else(usual).join("rankrun")
}

/// A TCP port of the loopback that is free, and that no other call gets while this process lives, in any test process of
/// this machine. It is below the range from which the kernel takes ports by itself.
///
/// # Panics
/// When none of twelve thousand ports is free.
#[must_use]
pub fn free_port() -> u16 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    // Where each process begins matters little: a port that another one has is left out.
    let first = u16::try_from(process::id() % 120).unwrap_or_default() * 100;
    let next = || FIRST_PORT + (first + CALLS.fetch_add(1, Ordering::Relaxed) % PORTS) % PORTS;
    let is_free = |port: &u16| reserve(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let tried = usize::from(PORTS);
    std::iter::repeat_with(next).take(tried).find(is_free).expect("the loopback has a free port")
}

const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// Reserves a port against other test processes until this one ends: the kernel gives an abstract socket's name once in a
/// network namespace, and takes it back when the process is gone.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let name = SocketAddr::from_abstract_name(format!("rankrun-e2e-port-{port}"));
    let Ok(listener) = name.and_then(|name| UnixListener::bind_addr(&name)) else { return false };
    RESERVED.lock().expect("no call panics with the lock").push(listener);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes are two callers of the kernel: a second socket of that name stands for the other process.
    #[test]
    fn port_reserved_by_other_process_is_skipped() {
        let port = free_port();
        assert!(!reserve(port), "port {port} is given twice");
        let ports: Vec<_> = (0..50).map(|_| free_port()).collect();
        assert!(ports.iter().all(|other| *other != port && !reserve(*other)), "{port}: {ports:?}");
        assert!(ports.iter().all(|port| (FIRST_PORT..FIRST_PORT + PORTS).contains(port)));
    }
}
