//! What a worker leaves behind when it fails.

#![expect(clippy::disallowed_methods, reason = "the test reads error files with Python")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use rankrun_contract::env::{ERROR_FILE, RANK};
use rankrun_contract::report::{self, ErrorReport};

use crate::process::start;
use crate::server::Server;
use crate::world::env;

#[derive(Debug, thiserror::Error)]
#[error("the batch `é` is bad")]
struct BadBatch(#[source] std::io::Error);

/// What a started rank does.
pub(crate) fn main(role: &str) -> ExitCode {
    rankrun_worker::run(|context| {
        assert!(context.world_size().get() > 0);
        match role {
            "panic" => panic!("the weights are gone: {}", context.rank()),
            "panic in a thread" => {
                let helper = std::thread::spawn(|| panic!("a helper fell over"));
                helper.join().map_err(|_| panic!("a helper is gone")).map(drop)
            }
            "error" => Err(BadBatch(std::io::Error::other("torn file"))),
            _ => Ok(()),
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
fn a_panic_is_reported_with_its_backtrace() {
    let ended = Ended::of("panic", &[("RUST_BACKTRACE", "0")]);
    assert_eq!(ended.output.status.code(), Some(1), "{}", ended.stderr());
    let report = ended.report();
    assert_eq!(report.message, "panic: the weights are gone: 1");
    let call_stack = report.callstack.unwrap();
    let beginning = "panic: the weights are gone: 1\nat worker-runtime/tests/runtime/report.rs:";
    assert!(call_stack.starts_with(beginning), "{call_stack}");
    assert!(call_stack.contains("runtime::report::main"), "{call_stack}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(report.unix_seconds.unwrap().abs_diff(now) < 600);
    let stderr = ended.stderr();
    assert!(stderr.contains("rank 1: panic: the weights are gone: 1\n  at worker-runtime/"), "{stderr}");
    assert!(!stderr.contains("runtime::report::main"), "{stderr}");
}

#[test]
fn an_error_is_reported_with_its_causes() {
    let ended = Ended::of("error", &[]);
    assert_eq!(ended.output.status.code(), Some(1));
    let report = ended.report();
    assert_eq!(report.message, "the batch `é` is bad: torn file");
    assert_eq!(report.callstack.as_deref(), Some("error: the batch `é` is bad\ncaused by: torn file"));
    assert!(ended.stderr().contains("rank 1: error: the batch `é` is bad\n  caused by: torn file\n"));
}

#[test]
fn the_first_failure_is_the_one_reported() {
    let ended = Ended::of("panic in a thread", &[]);
    assert_eq!(ended.output.status.code(), Some(1));
    assert_eq!(ended.report().message, "panic: a helper fell over");
    assert!(ended.stderr().contains("a helper is gone"));
}

#[test]
fn success_leaves_nothing_behind() {
    let ended = Ended::of("fine", &[]);
    assert_eq!(ended.output.status.code(), Some(0), "{}", ended.stderr());
    assert!(!ended.file.exists());
}

#[test]
fn an_absurd_variable_ends_the_worker_and_is_named() {
    let ended = Ended::of("fine", &[(RANK, "-1")]);
    assert_eq!(ended.output.status.code(), Some(1));
    let message = ended.report().message;
    assert_eq!(message.matches("`-1` is not").count(), 1, "{message}");
    let expected = "the environment variable `RANK` is absurd\n  caused by: `-1` is not";
    assert!(ended.stderr().contains(expected), "{}", ended.stderr());
}

#[test]
fn a_file_that_cannot_be_written_is_said() {
    let ended = Ended::of("error", &[(ERROR_FILE, "/nowhere/at/all.json")]);
    assert_eq!(ended.output.status.code(), Some(1));
    assert!(
        ended.stderr().contains("cannot write the error file `/nowhere/at/all.json`"),
        "{}",
        ended.stderr()
    );
}

#[test]
fn python_reads_the_fields_that_torch_expects() {
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
