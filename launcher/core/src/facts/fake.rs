//! A world made by hand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::device::CudaDevice;

/// One thing in the fake file system.
#[derive(Debug, Clone)]
pub struct Entry {
    kind: FileKind,
    readable: bool,
    executable: bool,
    bytes: &'static [u8],
    target: Option<PathBuf>,
}

/// What is at which path, and how many CPUs there are.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "a test sets each fact by itself")]
pub struct FakeWorld {
    entries: BTreeMap<PathBuf, Entry>,
    cpus: usize,
    allowed: Option<Vec<u32>>,
    machine: Machine,
    cuda_order: CudaOrder,
    queries: QueryLog,
    is_inside: bool,
    ports_in_use: Vec<u16>,
    has_terminal: bool,
    is_shell_job: bool,
}

/// What was asked of the hardware, in order; clones of a world write into one list.
pub type QueryLog = Rc<RefCell<Vec<Question>>>;

/// One look at the hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    Discover(ProbeScope, Duration),
    CudaOrder(Duration),
}

impl Default for FakeWorld {
    fn default() -> Self {
        let nothing = Self {
            entries: BTreeMap::new(),
            cpus: 3,
            allowed: None,
            machine: Machine::default(),
            cuda_order: Err("there is no driver".to_owned()),
            queries: QueryLog::default(),
            is_inside: true,
            ports_in_use: Vec::new(),
            has_terminal: false,
            is_shell_job: false,
        };
        nothing.folder("/job").folder("/tmp")
    }
}

impl FakeWorld {
    fn add(mut self, path: &str, kind: FileKind, executable: bool, bytes: &'static [u8]) -> Self {
        let entry = Entry { kind, readable: true, executable, bytes, target: None };
        self.entries.insert(PathBuf::from(path), entry);
        self
    }

    pub fn folder(self, path: &str) -> Self {
        self.add(path, FileKind::Directory, true, b"")
    }

    pub fn file(self, path: &str, bytes: &'static [u8]) -> Self {
        self.add(path, FileKind::File, false, bytes)
    }

    pub fn unreadable(mut self, path: &str) -> Self {
        self = self.file(path, b"");
        if let Some(entry) = self.entries.get_mut(Path::new(path)) {
            entry.readable = false;
        }
        self
    }

    pub fn device(self, path: &str) -> Self {
        self.add(path, FileKind::Other, false, b"")
    }

    pub fn program(self, path: &str) -> Self {
        self.add(path, FileKind::File, true, b"\x7fELF")
    }

    pub fn script(self, path: &str) -> Self {
        self.starts_with(path, b"#!/bin/sh\n")
    }

    /// An executable file that begins with these bytes.
    pub fn starts_with(self, path: &str, bytes: &'static [u8]) -> Self {
        self.add(path, FileKind::File, true, bytes)
    }

    /// This process descends from no other.
    pub fn elsewhere(mut self) -> Self {
        self.is_inside = false;
        self
    }

    /// The standard streams are a terminal.
    pub fn terminal(mut self) -> Self {
        self.has_terminal = true;
        self
    }

    /// A shell with job control started the launcher.
    pub fn shell_job(mut self) -> Self {
        self.is_shell_job = true;
        self
    }

    /// A server answers on this port.
    pub fn port_in_use(mut self, port: u16) -> Self {
        self.ports_in_use.push(port);
        self
    }

    /// A program at `path` that is a link to `target`.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self = self.program(path);
        if let Some(entry) = self.entries.get_mut(Path::new(path)) {
            entry.target = Some(PathBuf::from(target));
        }
        self
    }

    pub fn cpus(mut self, cpus: usize) -> Self {
        self.cpus = cpus;
        self
    }

    /// The CPUs of the affinity mask.
    pub fn allowed(mut self, cpus: &[u32]) -> Self {
        self.cpus = cpus.len();
        self.allowed = Some(cpus.to_vec());
        self
    }

    /// What will have been asked of the hardware.
    pub fn asked(&self) -> QueryLog {
        Rc::clone(&self.queries)
    }

    /// What discovery finds.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }

    /// What the CUDA driver answers.
    pub fn cuda_order(mut self, devices: Vec<CudaDevice>) -> Self {
        self.cuda_order = Ok(devices);
        self
    }

    /// The facts of this world with these variables.
    pub fn facts(self, environment: &[(&str, &str)]) -> Facts {
        let environment = environment.iter().map(|(key, value)| (key.into(), value.into())).collect();
        Facts::new(environment, Box::new(self))
    }

    fn entry(&self, path: &Path) -> Option<&Entry> {
        if path.as_os_str().is_empty() {
            return None;
        }
        let relative = path.strip_prefix(".").unwrap_or(path);
        self.entries.get(&Path::new("/job").join(relative))
    }
}

impl World for FakeWorld {
    fn working_folder(&self) -> Option<PathBuf> {
        Some(PathBuf::from("/job"))
    }

    fn affinity_cpu_count(&self) -> usize {
        self.cpus
    }

    fn kind(&self, path: &Path) -> FileKind {
        self.entry(path).map_or(FileKind::Missing, |entry| entry.kind)
    }

    fn has_permission(&self, permission: Permission, path: &Path) -> bool {
        self.entry(path).is_some_and(|entry| match permission {
            Permission::Read => entry.readable,
            Permission::Write => true,
            Permission::Execute => entry.executable,
        })
    }

    fn read_first_bytes(&self, path: &Path, most: usize) -> Vec<u8> {
        self.entry(path).map_or_else(Vec::new, |entry| entry.bytes.iter().copied().take(most).collect())
    }

    fn read_file(&self, path: &Path, _most: u64) -> io::Result<Vec<u8>> {
        let entry = self.entry(path).ok_or(io::ErrorKind::NotFound)?;
        if entry.readable { Ok(entry.bytes.to_vec()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    fn list_names(&self, folder: &Path, most: usize) -> Vec<String> {
        let folder = if folder.as_os_str().is_empty() { Path::new("/job") } else { folder };
        let here = self.entries.keys().filter(|path| path.parent() == Some(folder)).take(most);
        here.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
    }

    fn resolve_links(&self, path: &Path) -> PathBuf {
        let target = self.entry(path).and_then(|entry| entry.target.clone());
        target.unwrap_or_else(|| path.to_owned())
    }

    fn is_terminal(&self, _stream: StandardStream) -> bool {
        self.has_terminal
    }

    fn host_name(&self) -> String {
        "here".to_owned()
    }

    fn user_id(&self) -> u32 {
        1000
    }

    fn process_id(&self) -> u32 {
        4711
    }

    fn is_shell_job(&self) -> bool {
        self.is_shell_job
    }

    fn descends_from(&self, _process: u32) -> bool {
        self.is_inside
    }

    fn is_port_in_use(&self, port: u16) -> bool {
        self.ports_in_use.contains(&port)
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_800_000_000)
    }

    fn fresh_uuid(&self) -> uuid::Uuid {
        uuid::Uuid::from_u128(7)
    }

    fn probe_devices(&self, ask: ProbeScope, limit: Duration) -> Machine {
        self.queries.borrow_mut().push(Question::Discover(ask, limit));
        self.machine.clone()
    }

    fn cuda_order(&self, limit: Duration) -> CudaOrder {
        self.queries.borrow_mut().push(Question::CudaOrder(limit));
        self.cuda_order.clone()
    }

    fn allowed_cpus(&self) -> Vec<u32> {
        self.allowed.clone().unwrap_or_else(|| (0..).take(self.cpus).collect())
    }
}
