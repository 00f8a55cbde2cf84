//! The outside world, read once or on demand: environment, working folder, CPUs, files, terminals, randomness.
//!
//! All code that decides about a launch asks `Facts`, and does not touch the system otherwise. The environment is a
//! snapshot; the rest is asked on demand, since a launch pays for every question. Tests use a fake `World`.

mod accelerator_sign;
mod core_topology;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::device::visibility::AskCuda;
use crate::device::{CudaOrder, DeviceType, Machine, ProbeScope};
use crate::device_assignment::NodeFacts;

/// The shim's variable with the Python that was to be the launcher. It is not a setting, and workers do not get it.
const CALLING_PYTHON: &str = "RANKRUN_SHIM_PYTHON";
/// Where programs are looked for when `PATH` is not set, as Python does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The kind of file at a path, symbolic links followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// No file, or one that this process may not see.
    Missing,
    /// The path is a folder (directory).
    Directory,
    /// The path is a regular file.
    File,
    /// The path is a pipe, socket or device.
    Other,
}

/// An access to a file that may be permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The file can be opened for reading.
    Read,
    /// Write it, or make files in it.
    Write,
    /// The file can be executed as a program.
    Execute,
}

/// One of the launcher's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardStream {
    /// Standard input, which is descriptor 0.
    Input,
    /// Standard output, which is descriptor 1.
    Output,
    /// Standard error, which is descriptor 2.
    Error,
}

/// Questions about the machine; `System` answers them through the kernel.
pub trait World {
    /// The working folder, where it can be named.
    fn working_folder(&self) -> Option<PathBuf>;
    /// How many CPUs this process may run on, by its affinity mask.
    fn affinity_cpu_count(&self) -> usize;
    /// The kind of file that exists at `path`.
    fn kind(&self, path: &Path) -> FileKind;
    /// Whether we have `permission` on `path`.
    fn has_permission(&self, permission: Permission, path: &Path) -> bool;
    /// The first bytes of the file, up to this number; none where it cannot be read.
    fn read_first_bytes(&self, path: &Path, most: usize) -> Vec<u8>;
    /// The whole file, if it is one and has at most this number of bytes.
    ///
    /// # Errors
    /// It cannot be read, is something else, or is larger.
    fn read_file(&self, path: &Path, most: u64) -> io::Result<Vec<u8>>;
    /// The names in a folder that are text, up to this number, in no order; none where it cannot be read.
    fn list_names(&self, folder: &Path, most: usize) -> Vec<String>;
    /// The path without symbolic links; the path itself where that cannot be found out.
    fn resolve_links(&self, path: &Path) -> PathBuf;
    /// Whether a standard stream is a terminal.
    fn is_terminal(&self, stream: StandardStream) -> bool;
    /// The name of this host.
    fn host_name(&self) -> String;
    /// Effective user id of this process.
    fn user_id(&self) -> u32;
    /// The process id of the launcher.
    fn process_id(&self) -> u32;
    /// Whether a shell with job control started this process: it gives each command line a process group of its own.
    fn is_shell_job(&self) -> bool;
    /// Whether this process was started by that one or below it; true where that cannot be seen.
    fn descends_from(&self, process: u32) -> bool;
    /// Whether another process listens on this TCP port, so that no store can.
    fn is_port_in_use(&self, port: u16) -> bool;
    /// The time of day, since 1970 (UTC).
    fn unix_time(&self) -> Duration;
    /// A random UUID, another one each time.
    fn fresh_uuid(&self) -> uuid::Uuid;
    /// The accelerators, and the further facts of `ask`; questions without an answer within `limit` are in
    /// [`Machine::troubles`].
    fn probe_devices(&self, ask: ProbeScope, limit: Duration) -> Machine;
    /// The CUDA driver's devices in its order under `CUDA_DEVICE_ORDER=FASTEST_FIRST`, or the reason for a missing
    /// answer.
    fn cuda_order(&self, limit: Duration) -> CudaOrder;
    /// The CPUs of this process's affinity mask, in ascending order; none where the kernel does not tell.
    fn allowed_cpus(&self) -> Vec<u32>;
}

/// The environment as it was at the start, and the world to ask for the rest.
pub struct Facts {
    environment: Vec<(OsString, OsString)>,
    calling_python: Option<PathBuf>,
    world: Rc<dyn World>,
    /// The result of discovery, so that a second reading of the same words starts no probe.
    discovered: RefCell<Option<(ProbeScope, Machine)>>,
}

impl Facts {
    /// A given environment in a given world.
    #[must_use]
    pub fn new(mut environment: Vec<(OsString, OsString)>, world: Box<dyn World>) -> Self {
        let at = environment.iter().position(|(name, _)| name == CALLING_PYTHON);
        let calling_python = at.map(|at| environment.remove(at).1.into());
        Self { environment, calling_python, world: world.into(), discovered: RefCell::new(None) }
    }

    /// The Python that was started as a launcher and became us, if the shim is there.
    #[must_use]
    pub fn calling_python(&self) -> Option<&Path> {
        self.calling_python.as_deref()
    }

    /// The whole environment, in its order: the workers inherit it.
    #[must_use]
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// Sets these variables, or removes those without a value.
    pub fn change_environment(&mut self, changes: &[(String, Option<OsString>)]) {
        for (name, value) in changes {
            self.environment.retain(|(key, _)| key != name.as_str());
            self.environment.extend(value.clone().map(|value| (name.into(), value)));
        }
    }

    /// The same world with these variables set, or removed where there is no value.
    #[must_use]
    pub fn with_environment(&self, changes: &[(String, Option<OsString>)]) -> Self {
        let mut facts = Self {
            environment: self.environment.clone(),
            calling_python: self.calling_python.clone(),
            world: Rc::clone(&self.world),
            discovered: self.discovered.clone(),
        };
        facts.change_environment(changes);
        facts
    }

    /// One variable; an empty value is a value.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    /// One variable, where an empty value counts as none.
    #[must_use]
    pub fn filled_variable(&self, name: &str) -> Option<&OsStr> {
        self.variable(name).filter(|value| !value.is_empty())
    }

    /// The world behind these facts, for probes.
    #[must_use]
    pub fn world(&self) -> &dyn World {
        self.world.as_ref()
    }

    /// The accelerators; asked of the machine once, and again only for another question.
    #[must_use]
    pub fn discover(&self, ask: ProbeScope, limit: Duration) -> Machine {
        if let Some((cached_scope, machine)) = &*self.discovered.borrow()
            && *cached_scope == ask
        {
            return machine.clone();
        }
        let machine = self.world.probe_devices(ask, limit);
        *self.discovered.borrow_mut() = Some((ask, machine.clone()));
        machine
    }

    /// The facts that an assignment of devices depends on, with the answers of these probes.
    #[must_use]
    pub fn node_facts<'a>(
        &'a self,
        discover: &'a dyn Fn(ProbeScope) -> Machine,
        cuda_order: AskCuda<'a>,
    ) -> NodeFacts<'a> {
        let world = self.world();
        let has_node = |kind: &DeviceType| accelerator_sign::has_node(world, *kind);
        let device_nodes: Vec<DeviceType> = DeviceType::ALL.into_iter().filter(has_node).collect();
        NodeFacts {
            environment: &self.environment,
            user_id: world.user_id(),
            cpu_count: world.affinity_cpu_count(),
            allowed_cpus: world.allowed_cpus(),
            has_accelerator_sign: !device_nodes.is_empty()
                || accelerator_sign::has_library(world, self.variable("LD_LIBRARY_PATH")),
            device_nodes,
            topology: self,
            discover,
            cuda_order,
        }
    }

    /// Whether there is something at `path`.
    #[must_use]
    pub fn exists(&self, path: &Path) -> bool {
        self.world.kind(path) != FileKind::Missing
    }

    /// Whether `path` is a regular file.
    #[must_use]
    pub fn is_file(&self, path: &Path) -> bool {
        self.world.kind(path) == FileKind::File
    }

    /// Whether `path` is a regular file that we may execute.
    #[must_use]
    pub fn is_executable(&self, path: &Path) -> bool {
        self.world.kind(path) == FileKind::File && self.world.has_permission(Permission::Execute, path)
    }

    /// The working folder for a message; empty where it has no name.
    #[must_use]
    pub fn working_folder(&self) -> PathBuf {
        self.world.working_folder().unwrap_or_default()
    }

    /// The path from the root, symbolic links kept; as it is where the working folder has no name.
    #[must_use]
    pub fn absolute(&self, path: &Path) -> PathBuf {
        match self.world.working_folder() {
            Some(folder) if path.is_relative() => folder.join(path),
            _ => path.to_owned(),
        }
    }

    /// The folders of `PATH` in order; an empty item is the working folder.
    #[must_use]
    pub fn search_path(&self) -> Vec<PathBuf> {
        let path = self.variable("PATH").unwrap_or_else(|| OsStr::new(DEFAULT_PATH));
        let item = |item: &[u8]| match item {
            [] => PathBuf::from("."),
            name => PathBuf::from(OsStr::from_bytes(name)),
        };
        path.as_bytes().split(|byte| *byte == b':').map(item).collect()
    }

    /// The first executable file of that name in the folders of `PATH`.
    #[must_use]
    pub fn find_in_path(&self, name: &OsStr) -> Option<PathBuf> {
        self.search_path()
            .into_iter()
            .map(|folder| folder.join(name))
            .find(|candidate| self.is_executable(candidate))
    }
}

#[cfg(any(test, feature = "fakes"))]
pub mod fake;

#[cfg(test)]
mod tests {
    use super::fake::FakeWorld;
    use super::*;

    #[test]
    fn duplicate_variable_uses_first_value() {
        let facts = FakeWorld::default().facts(&[("A", "1"), ("A", "2"), ("B", "")]);
        assert_eq!(facts.variable("A"), Some(OsStr::new("1")));
        assert_eq!(facts.variable("B"), Some(OsStr::new("")));
        assert_eq!(facts.filled_variable("B"), None);
        assert_eq!(facts.variable("C"), None);
    }

    #[test]
    fn calling_python_is_removed_from_worker_environment() {
        let facts =
            FakeWorld::default().facts(&[("A", "1"), ("RANKRUN_SHIM_PYTHON", "/env/python"), ("B", "2")]);
        assert_eq!(facts.calling_python(), Some(Path::new("/env/python")));
        let names: Vec<_> = facts.environment().iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["A", "B"]);
    }

    #[test]
    fn path_is_searched_in_order_for_executable_files() {
        let world = FakeWorld::default()
            .folder("/a/tool")
            .file("/b/tool", b"")
            .program("/c/tool")
            .program("/d/tool")
            .program("/job/here")
            .program("/usr/bin/env");
        let facts = world.clone().facts(&[("PATH", "/a:/b:/c:/d:")]);
        assert_eq!(facts.find_in_path(OsStr::new("tool")), Some(PathBuf::from("/c/tool")));
        assert_eq!(facts.find_in_path(OsStr::new("here")), Some(PathBuf::from("./here")));
        assert_eq!(facts.find_in_path(OsStr::new("env")), None);
        assert_eq!(world.facts(&[]).find_in_path(OsStr::new("env")), Some(PathBuf::from("/usr/bin/env")));
    }
}
