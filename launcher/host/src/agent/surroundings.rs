//! What hints need to know of the machine after a failure: other interpreters, listening processes,
//! `/dev/shm`. It reads only after a job has failed, and runs no program.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::process::exec_problem;
use crate::process::listener::listener_of_port;
use crate::reporter::causes::{Listener, NeverExecutable, OtherPython, Surroundings};
use rankrun_core::spec::Entrypoint;

const MAX_PYTHONS: usize = 16;

/// The surroundings of the workers of this launch.
pub(super) struct WorkerSurroundings<'a> {
    pub(super) environment: &'a [(OsString, OsString)],
    pub(super) entrypoint: &'a Entrypoint,
}

impl WorkerSurroundings<'_> {
    fn value(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    fn python(&self) -> Option<(&Path, Option<&Path>)> {
        match self.entrypoint {
            Entrypoint::Script { python, script } | Entrypoint::RunPath { python, script } => {
                Some((python.as_path(), Some(Path::new(script))))
            }
            Entrypoint::Module { python, .. } => Some((python.as_path(), None)),
            Entrypoint::Program { .. } => None,
        }
    }

    /// Where a user may have another interpreter: active environments, those beside the script, `PATH`.
    fn candidate_pythons(&self) -> Vec<PathBuf> {
        let beside = self.python().and_then(|(_, script)| script?.parent().map(Path::to_owned));
        let folders = beside.into_iter().chain([PathBuf::from(".")]);
        let local = folders.flat_map(|folder| [".venv", "venv"].map(|name| folder.join(name).join("bin")));
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| self.value(name));
        let active = active.filter(|value| !value.is_empty()).map(|value| Path::new(value).join("bin"));
        let path = self.value("PATH").unwrap_or_default();
        let path = path.as_bytes().split(|byte| *byte == b':').filter(|folder| !folder.is_empty());
        let path = path.map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
        let folders = active.chain(local).chain(path);
        folders.flat_map(|folder| ["python", "python3"].map(|name| folder.join(name))).collect()
    }
}

impl Surroundings for WorkerSurroundings<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.value(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn other_pythons(&self, module: &str) -> Vec<OtherPython> {
        let mut seen: BTreeSet<PathBuf> =
            self.python().map(|(python, _)| identity(python)).into_iter().collect();
        let mut others = Vec::new();
        for path in self.candidate_pythons() {
            let is_new = is_program(&path) && seen.insert(identity(&path));
            if is_new && others.len() < MAX_PYTHONS {
                let path = std::path::absolute(&path).unwrap_or(path);
                others.push(OtherPython { has_module: has_module(&path, module), path });
            }
        }
        others
    }

    fn local_module_file(&self, module: &str) -> Option<String> {
        let (_, script) = self.python()?;
        // Python finds modules in the working folder with `-m`, and for a script in that folder.
        let folder = script?.parent().filter(|folder| !folder.as_os_str().is_empty())?;
        let same = fs::canonicalize(folder).ok() == fs::canonicalize(".").ok();
        let file = format!("{module}.py");
        let is_package = || Path::new(module).join("__init__.py").is_file();
        match same {
            true => None,
            false if Path::new(&file).is_file() => Some(file),
            false => is_package().then(|| format!("{module}/")),
        }
    }

    fn listener(&self, port: u16) -> Option<Listener> {
        listener_of_port(port).map(|(pid, name)| Listener { pid: pid.as_raw(), name })
    }

    fn shared_memory(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs("/dev/shm").ok()?;
        stat.f_blocks.checked_mul(stat.f_frsize)
    }

    fn never_executable(&self, path: &Path) -> Option<NeverExecutable> {
        if path.is_dir() {
            return Some(NeverExecutable::Folder);
        }
        exec_problem::is_on_noexec_mount(path).then_some(NeverExecutable::Mount)
    }

    fn has_carriage_return(&self, script: &Path) -> bool {
        let head = exec_problem::head(script).unwrap_or_default();
        exec_problem::interpreter(&head).is_some_and(|(_, is_crlf)| is_crlf)
    }
}

/// True for an ELF program. A script that chooses an interpreter (pyenv) would have to run to show its
/// packages.
fn is_program(path: &Path) -> bool {
    exec_problem::head(path).is_some_and(|head| head.starts_with(b"\x7fELF"))
}

/// The folder of a venv, since all venvs link to one file; else the file.
fn identity(python: &Path) -> PathBuf {
    let file = fs::canonicalize(python).unwrap_or_else(|_| python.to_owned());
    match venv_folder(python) {
        Some(folder) => fs::canonicalize(&folder).unwrap_or(folder),
        None => file,
    }
}

fn venv_folder(python: &Path) -> Option<PathBuf> {
    let folder = python.parent()?.join("..");
    folder.join("pyvenv.cfg").is_file().then_some(folder)
}

/// True if the module is among the packages of that interpreter.
fn has_module(python: &Path, module: &str) -> bool {
    let prefix = venv_folder(python).or_else(|| {
        let file = fs::canonicalize(python).ok()?;
        Some(file.parent()?.parent()?.to_owned())
    });
    let Some(prefix) = prefix else { return false };
    let versions = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| entry.file_name().as_bytes().starts_with(b"python3")).map(|entry| entry.path())
    };
    // Debian has packages for all versions in `lib/python3`, and those of pip in `local`.
    let versions = ["lib", "lib64", "local/lib"].map(|name| prefix.join(name)).into_iter().flat_map(versions);
    let mut packages =
        versions.flat_map(|folder| ["site-packages", "dist-packages"].map(|name| folder.join(name)));
    packages.any(|folder| {
        folder.join(module).join("__init__.py").is_file() || folder.join(format!("{module}.py")).is_file()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates an environment that contains the module `torch`.
    fn environment(folder: &Path, name: &str, module: &str) -> PathBuf {
        let prefix = folder.join(name);
        fs::create_dir_all(prefix.join("bin")).unwrap();
        let packages = prefix.join("lib/python3.11/site-packages").join(module);
        fs::create_dir_all(&packages).unwrap();
        fs::write(packages.join("__init__.py"), "").unwrap();
        fs::write(prefix.join("pyvenv.cfg"), "").unwrap();
        // Any program serves as interpreter here: none is run.
        let python = prefix.join("bin/python");
        symlink(std::env::current_exe().unwrap(), &python).unwrap();
        python
    }

    #[test]
    fn other_pythons_are_found_with_module_flag() {
        let folder = std::env::temp_dir().join(format!("rankrun-pythons-{}", std::process::id()));
        let [used, active, beside] = ["used", "active", "work/.venv"].map(|name| {
            let module = if name == "used" { "numpy" } else { "torch" };
            environment(&folder, name, module)
        });
        fs::create_dir_all(folder.join("shims")).unwrap();
        fs::write(folder.join("shims/python"), "#!/bin/sh\n").unwrap();
        let script = folder.join("work/train.py").into_os_string();
        let path = |name: &str| folder.join(name).into_os_string();
        let mut search = path("used/bin");
        search.push(":");
        search.push(path("shims"));
        let variables = [("VIRTUAL_ENV".into(), path("active")), ("PATH".into(), search)];
        let entrypoint = Entrypoint::Script { python: used, script };
        let surroundings = WorkerSurroundings { environment: &variables, entrypoint: &entrypoint };
        let found = surroundings.other_pythons("torch");
        let with = |has_module| move |path: PathBuf| OtherPython { path, has_module };
        assert_eq!(found, [active, beside].map(with(true)));
        assert!(surroundings.other_pythons("nothing").iter().all(|other| !other.has_module));
        assert_eq!(surroundings.variable("VIRTUAL_ENV").as_deref(), folder.join("active").to_str());
        assert_eq!(surroundings.variable("NOTHING"), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn shared_memory_and_own_listener_are_found() {
        let entrypoint = Entrypoint::Program { path: "/bin/true".into(), name: "true".into() };
        let surroundings = WorkerSurroundings { environment: &[], entrypoint: &entrypoint };
        assert_eq!(surroundings.shared_memory().is_some(), Path::new("/dev/shm").is_dir());
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(surroundings.listener(port).map(|found| found.pid), Some(own));
        drop(socket);
        assert_eq!(surroundings.listener(port), None);
    }
}
