//! PyTorch's torchrun, forked from one process of this test process that has imported PyTorch (`fork_server.py`).
//!
//! Importing PyTorch is most of what a start of torchrun costs. What a job sees is the same as after an `execve`: arguments,
//! environment, working directory, standard streams, signals, process group, session. With `RANKRUN_SOAK=1` each torchrun is
//! a program of its own.
#![expect(clippy::disallowed_methods, reason = "the harness starts the programs under test")]

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::launch::reset_signals;
use crate::place::{python, python_modules};

/// The process that forks, and the socket to it.
#[derive(Debug)]
struct ForkServer {
    requests: OwnedFd,
    /// It ends at the end of its socket, when this process does.
    _process: Child,
}

/// What torchrun is started with.
pub(crate) struct ForkRequest<'launch> {
    pub(crate) args: &'launch [OsString],
    pub(crate) env: &'launch BTreeMap<OsString, OsString>,
    pub(crate) cwd: PathBuf,
    /// Standard input, output and error.
    pub(crate) streams: [OwnedFd; 3],
}

/// Variables that neither the import of PyTorch nor the loader of programs reads, and beginnings of such.
const READ_AFTER_IMPORT: [&str; 15] = [
    "PATH",
    "TMPDIR",
    "HOME",
    "TERM",
    "RUST_BACKTRACE",
    "PYTHON_EXEC",
    "CUDA_VISIBLE_DEVICES",
    // The import does read it, for computations, and torchrun does none.
    "OMP_NUM_THREADS",
    "RANK",
    "MASTER_ADDR",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "RANKRUN_E2E_MARK",
    // Those that the fork server has.
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
];
const PREFIXES_READ_AFTER_IMPORT: [&str; 2] = ["PET_", "TORCHELASTIC_"];

/// Whether a torchrun with this environment does the same if it is forked.
pub(crate) fn can_fork_with(variables: &BTreeMap<OsString, OsString>) -> bool {
    let is_read_later = |name: &str| {
        READ_AFTER_IMPORT.contains(&name)
            || PREFIXES_READ_AFTER_IMPORT.iter().any(|prefix| name.starts_with(prefix))
    };
    let own_modules = python_modules(&[]);
    variables.keys().all(|name| name.to_str().is_some_and(is_read_later))
        && variables.get(OsStr::new("LD_LIBRARY_PATH")) == env::var_os("LD_LIBRARY_PATH").as_ref()
        && variables.get(OsStr::new("PYTHONPATH")).is_none_or(|folders| *folders == own_modules)
}

/// Forks a torchrun; its pid.
///
/// # Panics
/// When the fork server does not start.
pub(crate) fn fork_torchrun(request: &ForkRequest) -> i32 {
    let count = (request.args.len() + 1).to_string();
    let program = torchrun();
    let mut fields =
        vec![count.as_bytes(), request.cwd.as_os_str().as_bytes(), program.as_os_str().as_bytes()];
    fields.extend(request.args.iter().map(|argument| argument.as_bytes()));
    let variables: Vec<Vec<u8>> =
        request.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
    fields.extend(variables.iter().map(Vec::as_slice));
    ask(&fields.join(&0), &request.streams)
}

/// The status of a forked torchrun that has ended.
pub(crate) fn reap_forked(pid: i32) -> ExitStatus {
    ExitStatus::from_raw(ask(pid.to_string().as_bytes(), &[]))
}

/// PyTorch's own.
pub(crate) fn torchrun() -> PathBuf {
    python().with_file_name("torchrun")
}

/// The number that the fork server answers.
fn ask(request: &[u8], streams: &[OwnedFd]) -> i32 {
    static SERVER: OnceLock<Mutex<ForkServer>> = OnceLock::new();
    let server = SERVER.get_or_init(|| Mutex::new(start_server()));
    // A test that failed has left no half of a message.
    let server = server.lock().unwrap_or_else(PoisonError::into_inner);
    let streams: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !streams.is_empty() {
        assert!(
            ancillary.push(SendAncillaryMessage::ScmRights(&streams)),
            "there is space for three descriptors"
        );
    }
    let request = [IoSlice::new(request)];
    rustix::net::sendmsg(&server.requests, &request, &mut ancillary, SendFlags::NOSIGNAL)
        .expect("the fork server lives");
    let mut answer = [0; 32];
    let (length, _) =
        rustix::net::recv(&server.requests, &mut answer, RecvFlags::empty()).expect("the fork server lives");
    let answer = str::from_utf8(&answer[..length]).expect("the answer is text");
    answer.parse().unwrap_or_else(|_| panic!("the fork server has ended: `{answer}`"))
}

fn start_server() -> ForkServer {
    let (requests, servers) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("the machine has sockets");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("harness/fork_server.py");
    let mut command = Command::new(python());
    command.arg(script).stdin(servers).env_clear().env("HOME", "/nonexistent");
    command.env("PYTHONPATH", python_modules(&[]));
    for name in ["PATH", "LD_LIBRARY_PATH"] {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    reset_signals(&mut command);
    ForkServer { requests, _process: command.spawn().expect("Python starts") }
}
