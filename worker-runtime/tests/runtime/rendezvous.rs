//! The records that ranks exchange before they are a group: backend, version, and invalid ones.

use std::ffi::OsString;
use std::process::ExitCode;
use std::thread;

use rankrun_contract::env::BACKEND;
use rankrun_worker::process_group::{Backend, BackendChoice, Conflict};
use rankrun_worker::{GroupError, GroupOptions, Rank, TcpStore, WorkerContext};

use crate::process::start;
use crate::server::Server;
use crate::world::{AMPLE, env, join, options};

const PLACE: &str = "rankrun/group/default/life 0/1";

/// What rank 1 of two ends with when rank 0 has said this.
fn answer_to(record: &[u8]) -> GroupError {
    let server = Server::start();
    let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
    store.set("record/0", record).unwrap();
    join(&server, 1, 2, AMPLE).unwrap_err()
}

fn with_cause(error: &GroupError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Joins as two ranks that want this.
fn choices(choices: [BackendChoice; 2]) -> [Result<Backend, GroupError>; 2] {
    let server = Server::start();
    let join = |rank: u32, choice| {
        let options = GroupOptions { backend: Some(choice), ..options(AMPLE) };
        let mut group = WorkerContext::new(env(&server, rank, 2)).process_group(&options)?;
        group.barrier()?;
        Ok(group.backend())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| join(1, choices[1]));
        [join(0, choices[0]), other.join().unwrap()]
    })
}

#[test]
fn version_mismatch_names_rank_and_versions() {
    for version in [1, 4] {
        let error = answer_to(format!("rankrun group {version}\nin words that are not ours").as_bytes());
        assert_eq!(
            with_cause(&error),
            format!(
                "the ranks cannot form a group: rank 0 speaks version {version} of the protocol and rank 1 \
                 version 3"
            )
        );
        assert_eq!(error.hint(), Some("build all ranks with the same version of rankrun"));
    }
}

#[test]
fn invalid_store_entry_is_shown_and_refused() {
    for record in [&b""[..], b"hello", &[0xff; 100_000], b"rankrun group 3\nbackend gloo\nhost here\n"] {
        let error = answer_to(record).to_string();
        assert!(error.starts_with("the store key `record/0` holds `"), "{error}");
        assert!(error.ends_with("`, which is not an entry of this group") && error.len() < 500, "{error}");
    }
}

#[test]
fn backend_mismatch_is_error_on_both_ranks() {
    for error in choices([BackendChoice::Tcp, BackendChoice::Auto]).map(Result::unwrap_err) {
        let expected = "the ranks cannot form a group: rank 0 requests the backend `tcp` and rank 1 `auto`";
        assert_eq!(with_cause(&error), expected);
        assert_eq!(
            error.hint(),
            Some("give all ranks the same `RANKRUN_BACKEND` or `GroupOptions::backend`")
        );
    }
}

#[test]
fn shared_memory_across_hosts_is_refused() {
    let server = Server::start();
    let store = TcpStore::connect("127.0.0.1", server.port(), AMPLE).unwrap().with_prefix(PLACE);
    store.set("record/0", b"rankrun group 3\nbackend shm\nhost elsewhere\n").unwrap();
    let options = GroupOptions { backend: Some(BackendChoice::Shm), ..options(AMPLE) };
    let error = WorkerContext::new(env(&server, 1, 2)).process_group(&options).unwrap_err();
    let conflict = Conflict::Hosts { ranks: [Rank(0), Rank(1)] };
    assert!(matches!(&error, GroupError::Conflict(actual) if *actual == conflict), "{error}");
}

#[test]
fn requested_backend_runs_calls() {
    assert_eq!(choices([BackendChoice::Tcp; 2]).map(Result::unwrap), [Backend::Tcp; 2]);
}

#[cfg(not(feature = "nccl"))]
#[test]
fn missing_backend_is_named() {
    for error in choices([BackendChoice::Nccl; 2]).map(Result::unwrap_err) {
        assert_eq!(error.to_string(), "this program is built without the backend `nccl`");
        assert_eq!(error.hint(), Some("choose the backend `auto` or `tcp`"));
    }
}

/// What a started rank does: outside a launcher, where a user may have set the variable.
pub(crate) fn main() -> ExitCode {
    rankrun_worker::run(|context| -> Result<(), GroupError> {
        let mut group = context.process_group(&GroupOptions::default())?;
        assert_eq!(group.backend(), Backend::Memory);
        group.barrier()
    })
}

#[test]
fn environment_sets_backend_and_invalid_value_is_named() {
    let run = |value: &str| {
        let ended = start("meet", [(BACKEND, OsString::from(value))]).wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    for value in ["auto", "tcp", "shm"] {
        assert_eq!(run(value).0, Some(0), "{value}");
    }
    for value in ["gloo", "", "TCP", "tcp "] {
        let (code, error) = run(value);
        let expected = format!(
            "error: the environment variable `RANKRUN_BACKEND` is invalid\n  caused by: `{value}` is not a backend of \
             process groups: `auto`, `shm`, `tcp` or `nccl`"
        );
        assert!(code == Some(1) && error.contains(&expected), "{error}");
    }
    // There may be none, but that it was asked for is understood.
    let (code, error) = run("nccl");
    let reasons = [
        "without the backend `nccl`",
        "NCCL cannot be loaded",
        "the CUDA driver cannot be loaded",
        "shows no device",
        "no current",
    ];
    assert!(code == Some(1) && reasons.iter().any(|reason| error.contains(reason)), "{error}");
}
