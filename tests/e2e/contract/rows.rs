//! The rows of appendix A, and the proof that each has a test: here, in another test binary, or not yet.
#![expect(clippy::disallowed_methods, reason = "a test binary is asked for its own tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use harness::print_notice;

/// Where a row is tested.
#[derive(Debug, Clone, Copy)]
enum Tested {
    /// By the function of this binary that has the row's name, in the module of its table.
    Here,
    /// By a function of another test binary.
    By { file: &'static str, test: &'static str },
    /// With the work that this names.
    Later(&'static str),
}

use Tested::{By, Here, Later};

/// Section 3.10 of the contract: the timers that workers write into a FIFO. It has no row of its own.
const WATCHDOG: Tested = Later("watchdog");

const COMMAND_LINE: [&str; 20] = [
    "help",
    "no-script",
    "unknown-option",
    "underscore",
    "mixed-spelling",
    "prefix-ok",
    "script-args-verbatim",
    "dashdash-before",
    "dashdash-after",
    "pet-default",
    "pet-loses",
    "pet-flag",
    "pet-bad-int",
    "bad-nnodes",
    "bad-nproc",
    "auto-no-gpu",
    "bad-tee",
    "no-python-module",
    "macro",
    "python-exec",
];

const ENVIRONMENT: [(&str, Tested); 14] = [
    ("env-complete", Here),
    ("env-overwrites", Here),
    ("omp-default", Here),
    ("omp-kept", Here),
    ("nccl-async", Here),
    ("static-master", Here),
    ("implicit-standalone", Here),
    ("c10d-master", Here),
    ("no-share", Here),
    ("local-addr", Here),
    ("hetero", Here),
    ("virtual", Here),
    ("virtual-short", Here),
    ("devnull-log", Here),
];

const PROCESSES: [(&str, Tested); 25] = [
    ("own-session", Here),
    ("stdin-shared", Here),
    ("ok", Here),
    ("fail", Here),
    ("fail-signal", Here),
    ("fail-stops-peers", Here),
    ("term", Here),
    ("int", Here),
    ("hup", Here),
    ("quit", Here),
    ("usr1-listed", Here),
    ("term-early", Here),
    ("grace", Here),
    ("grace-zero", Here),
    ("grace-on-failure", Here),
    ("double-term", Here),
    ("kill-agent", Here),
    ("spawn-half", Here),
    ("group-of-dead", Here),
    ("missing-program", Here),
    ("restart", Here),
    ("restart-exhausted", Here),
    ("restart-gloo", By { file: "tests/pytorch/restart.rs", test: "killed_worker_of_two_is_restarted" }),
    ("state-d", Here),
    ("watchdog", WATCHDOG),
];

const LOGS: [&str; 15] = [
    "tree",
    "raw-bytes",
    "prefix",
    "template",
    "map",
    "filter",
    "duplicate",
    "tee-latency",
    "tee-whole-lines",
    "record",
    "parent-file",
    "text-message",
    "bad-json",
    "no-others",
    "events",
];

/// All of several agents.
const RENDEZVOUS: [&str; 18] = [
    "two-nodes",
    "same-machine-host",
    "node-order",
    "elastic-min",
    "elastic-max",
    "join-timeout",
    "no-store",
    "static-two",
    "static-no-peer",
    "spare",
    "spare-takes-over",
    "closed",
    "fail-restarts-all",
    "scale-up",
    "replace",
    "peer-fails",
    "clock-skew",
    "mixed",
];

const CONFORMANCE: &str = "launcher/host/src/store/tests/conformance.rs";
const TORCHS_CLIENTS: &str = "tests/pytorch/store.rs";

/// Driven from outside the launcher: with raw bytes, and with torch's own clients.
const STORE: [(&str, Tested); 17] = [
    ("all-codes", By { file: TORCHS_CLIENTS, test: "torch_client_operations_match_torch_server" }),
    ("pipelined", By { file: CONFORMANCE, test: "pipelined_requests_are_answered_in_order" }),
    ("bytewise", By { file: CONFORMANCE, test: "requests_sent_byte_by_byte_are_answered" }),
    ("limits", By { file: CONFORMANCE, test: "lengths_and_counts_above_their_limits_close_the_connection" }),
    ("get-absent", By { file: CONFORMANCE, test: "get_of_absent_key_is_empty" }),
    ("wait-multi", By { file: CONFORMANCE, test: "wait_for_several_keys_is_answered_when_all_are_set" }),
    ("wait-duplicate", By { file: CONFORMANCE, test: "wait_with_duplicate_key_is_answered_after_one_set" }),
    ("wait-timeout", By { file: CONFORMANCE, test: "cancelled_wait_leaves_connection_usable" }),
    ("wait-crossing", By { file: CONFORMANCE, test: "cancel_crossing_answer_is_answered_after_it" }),
    ("cancel-idle", By { file: CONFORMANCE, test: "cancel_without_wait_is_answered" }),
    ("compare-set", By { file: CONFORMANCE, test: "compare_set_has_four_cases" }),
    ("add-text", By { file: CONFORMANCE, test: "add_parses_text_like_torch" }),
    ("queue-wake-one", By { file: CONFORMANCE, test: "queue_push_wakes_one_of_two_waiters" }),
    ("barrier-late", By { file: CONFORMANCE, test: "barrier_opens_at_last_arrival_and_stays_open" }),
    ("unknown-code", By { file: CONFORMANCE, test: "unknown_request_code_closes_connection" }),
    ("gloo", By { file: TORCHS_CLIENTS, test: "gloo_workers_train_over_store_repeatedly" }),
    (
        "many",
        By {
            file: "launcher/host/src/store/tests/abuse.rs",
            test: "one_thousand_clients_are_answered_within_two_seconds",
        },
    ),
];

/// Every row as (table, name, where it is tested).
fn rows() -> Vec<(&'static str, &'static str, Tested)> {
    let all_here = |table, names: &'static [&'static str]| names.iter().map(move |name| (table, *name, Here));
    let mut rows: Vec<_> = all_here("command_line", &COMMAND_LINE).chain(all_here("logs", &LOGS)).collect();
    rows.extend(ENVIRONMENT.map(|(name, tested)| ("environment", name, tested)));
    rows.extend(PROCESSES.map(|(name, tested)| ("processes", name, tested)));
    rows.extend(all_here("rendezvous", &RENDEZVOUS));
    rows.extend(STORE.map(|(name, tested)| ("store", name, tested)));
    rows
}

/// The tests of this binary, as paths.
pub(crate) fn list_tests() -> Vec<String> {
    let own = env::current_exe().expect("a process knows its own program");
    let output = Command::new(own).args(["--list", "--format", "terse"]).output().expect("it starts again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are text");
    // A name that is a word of Rust's has its `r#` in the list.
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(|path| path.replace("r#", "")).collect()
}

/// The tests that appendix A asks for in this binary.
fn expected_row_tests() -> Vec<String> {
    let here = rows().into_iter().filter(|(.., tested)| matches!(tested, Here));
    let mut paths: Vec<_> =
        here.map(|(table, row, _)| format!("contract::{table}::{}", row.replace('-', "_"))).collect();
    paths.sort();
    paths
}

#[test]
fn rows_and_tests_match_one_to_one() {
    let of_rows = |path: &String| path.starts_with("contract::") && !path.starts_with("contract::rows::");
    let mut found: Vec<_> = list_tests().into_iter().filter(of_rows).collect();
    found.sort();
    let expected = expected_row_tests();
    let missing: Vec<_> = expected.iter().filter(|path| !found.contains(path)).collect();
    let unknown: Vec<_> = found.iter().filter(|path| !expected.contains(path)).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:#?}");
    assert!(unknown.is_empty(), "tests without a row: {unknown:#?}");
    assert_eq!(found, expected, "a name is there twice");
}

#[test]
fn tests_in_other_binaries_exist() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace");
    for (table, row, tested) in rows() {
        if let By { file, test } = tested {
            let text = fs::read_to_string(checkout.join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
            let is_there = text.contains(&format!("\nfn {test}() {{"));
            assert!(is_there, "{table} {row}: {file} has no test `{test}`");
        }
    }
}

#[test]
fn untested_rows_name_pending_work() {
    let mut waiting: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, row, tested) in rows() {
        if let Later(work) = tested {
            waiting.entry(work).or_default().push(row);
        }
    }
    for (work, rows) in waiting {
        print_notice(&format!("not tested before `{work}`: {}", rows.join(", ")));
    }
}

/// `tests/run e2e` leaves these out by a part of their path.
#[test]
fn needs_torch_list_names_existing_tests() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace");
    let text = fs::read_to_string(checkout.join("tests/e2e/needs-torch.txt")).expect("the list is there");
    let here = list_tests();
    for part in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(here.iter().any(|path| path.contains(part)), "no test has `{part}` in its path");
    }
}

#[test]
fn row_names_are_unique() {
    let mut names = BTreeSet::new();
    for (table, row, _) in rows() {
        assert!(names.insert((table, row)), "{table} has two rows `{row}`");
    }
}
