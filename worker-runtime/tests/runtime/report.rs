//! The report of a failed worker: error file, standard error and exit status.

#![expect(clippy::disallowed_methods, reason = "the test reads error files with Python")]

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use rankrun_contract::env::{ERROR_FILE, RANK};
use rankrun_contract::report::{self, ErrorReport};
#[cfg(any(feature = "cuda", feature = "nccl"))]
use rankrun_worker::cuda::CudaMissing;
use rankrun_worker::data_parallel::DeviceError;
use rankrun_worker::ddp::DdpError;
use rankrun_worker::diagnostic::{Details, Diagnostic};
#[cfg(feature = "nccl")]
use rankrun_worker::process_group::nccl::NcclMissing;
use rankrun_worker::{ExitError, GroupError, StoreError};

use crate::process::start;
use crate::server::Server;
use crate::world::env;

#[derive(Debug, thiserror::Error)]
#[error("the batch `é` is bad")]
struct BadBatch(#[source] std::io::Error);

/// A program's own error, which hides the type of ours.
#[derive(Debug, thiserror::Error)]
enum ProgramError {
    #[error(transparent)]
    Library(Box<dyn Error + Send + Sync>),
    #[error("the first step failed")]
    Step(#[source] Box<Self>),
    #[error("{}the license server is away", Details(self))]
    NoLicense,
}

impl Diagnostic for ProgramError {
    fn exit_code(&self) -> Option<u8> {
        matches!(self, Self::NoLicense).then_some(42)
    }
}

/// An error of the library within one of the program, as its `?` makes it.
fn wrapped(error: impl Error + Send + Sync + 'static) -> ProgramError {
    ProgramError::Step(Box::new(ProgramError::Library(Box::new(error))))
}

/// How a started rank fails.
fn failure(which: &str) -> Box<dyn Error> {
    match which {
        "torn file" => Box::new(BadBatch(std::io::Error::other("torn file"))),
        "license" => Box::new(ProgramError::Library(Box::new(ProgramError::NoLicense))),
        "code 7" => Box::new(ExitError::new(7, wrapped(ProgramError::NoLicense))),
        "code 0" => ExitError::new(0, "no data").into(),
        #[cfg(feature = "nccl")]
        "no nccl" => Box::new(wrapped(NcclMissing { searched: Vec::new() })),
        #[cfg(any(feature = "cuda", feature = "nccl"))]
        "no cuda" => Box::new(wrapped(CudaMissing::NoLibrary(Vec::new()))),
        "no parameter" => Box::new(wrapped(DdpError::NoSync)),
        "no device" => Box::new(wrapped(DeviceError::None)),
        "no socket" => {
            let cause = std::io::Error::from_raw_os_error(nix::libc::EMFILE);
            Box::new(wrapped(DdpError::from(GroupError::from(StoreError::NoSocket(cause)))))
        }
        other => panic!("there is no failure `{other}`"),
    }
}

/// A frame of its own in each backtrace.
#[inline(never)]
fn lose_weights(rank: impl std::fmt::Display) -> ! {
    panic!("the weights are gone: {rank}")
}

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    rankrun_worker::run(|context| {
        assert!(context.world_size().get() > 0);
        match role {
            "panic" => lose_weights(context.rank()),
            "panic in a thread" => {
                let helper = std::thread::spawn(|| panic!("a helper fell over"));
                helper.join().map_err(|_| panic!("a helper is gone")).map(drop)
            }
            "error" => Err(failure("torn file")),
            role => role.strip_prefix("error: ").map_or(Ok(()), |which| Err(failure(which))),
        }
    })
}

struct Ended {
    output: Output,
    file: PathBuf,
    _folder: Folder,
}

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("rankrun-report-{}-{}", std::process::id(), uuid::Uuid::new_v4());
        let folder = Self(std::env::temp_dir().join(name));
        std::fs::create_dir(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Ended {
    fn of(role: &str, overlay: &[(&'static str, &str)]) -> Self {
        let folder = Folder::new();
        let file = folder.0.join("error.json");
        let mut vars = env(&Server::start(), 1, 2).to_vars();
        vars.push((ERROR_FILE, file.clone().into_os_string()));
        vars.extend(overlay.iter().map(|&(name, value)| (name, OsString::from(value))));
        Self { output: start(role, vars).wait_with_output().unwrap(), file, _folder: folder }
    }

    fn report(&self) -> ErrorReport {
        report::parse(&std::fs::read(&self.file).expect("an error file")).expect("a report")
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

#[test]
fn panic_is_reported_with_its_backtrace() {
    let ended = Ended::of("panic", &[("RUST_BACKTRACE", "0")]);
    assert_eq!(ended.output.status.code(), Some(1), "{}", ended.stderr());
    let report = ended.report();
    assert_eq!(report.message, "panic: the weights are gone: 1");
    let call_stack = report.callstack.unwrap();
    let beginning = "panic: the weights are gone: 1\nat worker-runtime/tests/runtime/report.rs:";
    assert!(call_stack.starts_with(beginning), "{call_stack}");
    assert!(call_stack.contains("runtime::report::lose_weights"), "{call_stack}");
    for machinery in ["report_panic", "rust_begin_unwind", "rankrun_worker::report", "_start"] {
        assert!(!call_stack.contains(machinery), "{machinery}: {call_stack}");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(report.unix_seconds.unwrap().abs_diff(now) < 600);
    let stderr = ended.stderr();
    assert!(stderr.contains("rank 1: panic: the weights are gone: 1\n  at worker-runtime/"), "{stderr}");
    assert!(!stderr.contains("runtime::report::lose_weights"), "{stderr}");
}

/// The rank ends, whatever stands in the place of its error file.
#[test]
fn fifo_or_device_as_error_file_is_refused() {
    let folder = Folder::new();
    let fifo = folder.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap();
    for (path, reason) in [
        (fifo, "a FIFO (a pipe) is not a regular file"),
        ("/dev/zero", "a device is not a regular file"),
        ("/dev", "a folder is not a regular file"),
    ] {
        for role in ["error", "panic"] {
            let ended = Ended::of(role, &[(ERROR_FILE, path)]);
            assert_eq!(ended.output.status.code(), Some(1), "{}", ended.stderr());
            let error_text = format!("rank 1: error: cannot write the error file `{path}`: {reason}");
            assert!(ended.stderr().contains(&error_text), "{}", ended.stderr());
        }
    }
    assert!(!Ended::of("error", &[(ERROR_FILE, "/dev/null")]).stderr().contains("error file"));
}

#[test]
fn panic_backtrace_is_in_the_error_file_or_on_standard_error() {
    let frame = "runtime::report::lose_weights";
    let output = Ended::of("panic", &[("RUST_BACKTRACE", "1")]);
    assert!(output.report().callstack.is_some_and(|text| text.contains(frame)));
    assert!(!output.stderr().contains(frame), "the launcher shows the file: {}", output.stderr());
    for no_file in ["", "/nowhere/at/all.json"] {
        let alone = Ended::of("panic", &[("RUST_BACKTRACE", "1"), (ERROR_FILE, no_file)]);
        assert!(alone.stderr().contains(frame), "`{no_file}`: {}", alone.stderr());
    }
}

#[test]
fn full_backtrace_setting_keeps_all_frames() {
    let ended = Ended::of("panic", &[("RUST_BACKTRACE", "full")]);
    let call_stack = ended.report().callstack.unwrap();
    assert!(call_stack.contains("report_panic") && call_stack.contains("rust_begin_unwind"), "{call_stack}");
}

#[test]
fn error_exit_code_becomes_worker_exit_code() {
    for (which, code) in [("license", 42), ("code 7", 7), ("code 0", 1), ("torn file", 1)] {
        let ended = Ended::of(&format!("error: {which}"), &[]);
        assert_eq!(ended.output.status.code(), Some(code), "{which}: {}", ended.stderr());
    }
    let stderr = Ended::of("error: code 7", &[]).stderr();
    assert!(
        stderr.contains("error: the first step failed\n  caused by: the license server is away\n"),
        "{stderr}"
    );
}

#[test]
fn hint_survives_program_error_type() {
    for (which, hint) in [
        #[cfg(feature = "nccl")]
        ("no nccl", "install NCCL"),
        #[cfg(any(feature = "cuda", feature = "nccl"))]
        ("no cuda", "install NVIDIA's driver"),
        ("no parameter", "call it after the last pass"),
        ("no device", "name at least one"),
        ("no socket", "raise the worker's limit of open files"),
    ] {
        let stderr = Ended::of(&format!("error: {which}"), &[]).stderr();
        assert_eq!(stderr.matches("\n  hint: ").count(), 1, "{which}: {stderr}");
        assert!(stderr.contains(&format!("\n  hint: {hint}")), "{which}: {stderr}");
    }
}

#[test]
fn error_is_reported_with_its_causes() {
    let ended = Ended::of("error", &[]);
    assert_eq!(ended.output.status.code(), Some(1));
    let report = ended.report();
    assert_eq!(report.message, "the batch `é` is bad: torn file");
    assert_eq!(report.callstack.as_deref(), Some("error: the batch `é` is bad\ncaused by: torn file"));
    assert!(ended.stderr().contains("rank 1: error: the batch `é` is bad\n  caused by: torn file\n"));
}

#[test]
fn first_failure_is_reported() {
    let ended = Ended::of("panic in a thread", &[]);
    assert_eq!(ended.output.status.code(), Some(1));
    assert_eq!(ended.report().message, "panic: a helper fell over");
    assert!(ended.stderr().contains("a helper is gone"));
}

#[test]
fn success_writes_no_error_file() {
    let ended = Ended::of("fine", &[]);
    assert_eq!(ended.output.status.code(), Some(0), "{}", ended.stderr());
    assert!(!ended.file.exists());
}

#[test]
fn invalid_variable_fails_worker_and_is_named() {
    let ended = Ended::of("fine", &[(RANK, "-1")]);
    assert_eq!(ended.output.status.code(), Some(1));
    let message = ended.report().message;
    assert_eq!(message.matches("`-1` is not").count(), 1, "{message}");
    let expected = "the environment variable `RANK` is invalid\n  caused by: `-1` is not";
    assert!(ended.stderr().contains(expected), "{}", ended.stderr());
}

#[test]
fn unwritable_error_file_is_reported() {
    let ended = Ended::of("error", &[(ERROR_FILE, "/nowhere/at/all.json")]);
    assert_eq!(ended.output.status.code(), Some(1));
    assert!(
        ended.stderr().contains("cannot write the error file `/nowhere/at/all.json`"),
        "{}",
        ended.stderr()
    );
}

#[test]
fn error_file_has_fields_expected_by_torch() {
    let ended = Ended::of("error", &[]);
    let program = "import json, sys
data = json.load(open(sys.argv[1], encoding='ascii'))
detail = data['message']
assert detail['message'] == 'the batch `\\u00e9` is bad: torn file', detail
assert detail['extraInfo']['py_callstack'].endswith('\\ncaused by: torn file'), detail
assert int(detail['extraInfo']['timestamp']) > 1_600_000_000, detail";
    let python = Command::new("python3").args(["-c", program]).arg(&ended.file).output().unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
}
