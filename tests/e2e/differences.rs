//! `docs/differences.md`: where we depart from torchrun 2.15 on purpose. What no other file tests is tested here, beside
//! torchrun itself; and every test that the document names must exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::{Job, Launch, Name, Outcome, Scratch, free_port, only_ours};
use nix::sys::signal::Signal;

use crate::contract::tests_here;

/// What torchrun 2.15 does.
#[track_caller]
fn torchruns(launch: impl Fn(Name) -> Launch, steps: &[&str]) -> Outcome {
    launch(Name::Reference).worker(steps.iter().copied()).run()
}

#[test]
fn an_abbreviation_of_one_option_is_enough() {
    let launch = |name| Launch::new(name).args(["--standalone", "--nproc", "2"]);
    for name in [Name::Torchrun, Name::Reference] {
        launch(name).worker(["alive"]).run().exits(2).complains("ambiguous option: --nproc could match");
    }
    let outcome = launch(Name::Rankrun).worker(["alive"]).run();
    outcome.exits(0);
    assert_eq!(outcome.lines_with("alive rank=").len(), 2, "{outcome}");
}

#[test]
fn a_log_level_may_be_in_small_letters() {
    let launch = |name| Launch::standalone(name, 1).env("LOGLEVEL", "debug");
    torchruns(launch, &["alive"]).exits(1).complains("Unknown level: 'debug'").never_says("alive rank=");
    for name in Name::both().iter().filter(|_| only_ours()) {
        launch(*name).worker(["alive"]).run().exits(0).says("alive rank=0");
    }
}

#[test]
fn a_run_id_may_hold_a_slash() {
    let launch = |name| {
        let port = free_port().to_string();
        Launch::new(name).args(["--master-port", &port, "--rdzv-id", "night/7"])
    };
    torchruns(launch, &["alive"]).exits(1).never_says("alive rank=");
    for name in Name::both().iter().filter(|_| only_ours()) {
        launch(*name).worker(["env"]).run().exits(0).says("TORCHELASTIC_RUN_ID=night/7\n");
    }
}

#[test]
fn a_free_master_port_is_told() {
    let launch = |name| Launch::new(name).args(["--master-port", "0"]);
    torchruns(launch, &["env"]).exits(0).says(" MASTER_PORT=0\n");
    for name in Name::both().iter().filter(|_| only_ours()) {
        let outcome = launch(*name).worker(["env"]).run();
        outcome.exits(0).says(" MASTER_PORT=").never_says(" MASTER_PORT=0");
    }
}

#[test]
fn a_store_that_nobody_can_find_is_not_waited_at() {
    let launch = |name| {
        // torchrun waits for so long; by itself for ten minutes.
        let options = ["--standalone", "--nnodes", "2", "--rdzv-conf", "join_timeout=3"];
        Launch::new(name).args(options)
    };
    torchruns(launch, &["alive"]).exits(1).complains("RendezvousTimeoutError").never_says("alive rank=");
    for name in Name::both().iter().filter(|_| only_ours()) {
        let outcome = launch(*name).worker(["alive"]).run();
        outcome.exits(1).complains("`--nnodes` is `2`").complains("hint:").never_says("alive rank=");
    }
}

#[test]
fn an_ipv6_endpoint_needs_brackets() {
    let launch = |name, endpoint| {
        let conf = ["--rdzv-conf", "read_timeout=3,join_timeout=3"];
        Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]).args(conf)
    };
    torchruns(|name| launch(name, "::1"), &["alive"]).exits(1).never_says("alive rank=");
    if only_ours() {
        let outcome = launch(Name::Rankrun, "::1").worker(["alive"]).run();
        outcome.exits(1).complains("stands in brackets, as in `[::1]:29400`").never_says("alive rank=");
    }
}

/// The addresses with a listener on the port, as the kernel writes them.
fn listeners(port: u16) -> BTreeSet<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let mut found = BTreeSet::new();
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, ..] = fields[..] else { continue };
        let address = local.strip_suffix(&format!(":{port:04X}"));
        found.extend(address.filter(|_| state == "0A").map(str::to_owned));
    }
    found
}

#[track_caller]
fn port_told(job: &Job) -> u16 {
    let line = job.line(" MASTER_PORT=");
    line.rsplit('=').next().and_then(|port| port.parse().ok()).expect("a port is a number")
}

#[test]
fn the_store_of_one_node_is_on_the_loopback_alone() {
    let listening = |name| {
        let mut job = Launch::standalone(name, 1).stdin_open().worker(["env", "read"]).start();
        let found = listeners(port_told(&job));
        job.close_stdin();
        job.wait().exits(0);
        found
    };
    let everywhere = ["0".repeat(8), "0".repeat(32)];
    let theirs = listening(Name::Reference);
    assert!(theirs.iter().any(|address| everywhere.contains(address)), "{theirs:?}");
    for name in Name::both().iter().filter(|_| only_ours()) {
        assert_eq!(listening(*name), ["0100007F".to_owned()].into());
    }
}

#[test]
fn a_signal_while_workers_start_reaches_whoever_has_started() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 32).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["alive", "forever"]).start();
        job.line("alive rank=");
        job.signal(Signal::SIGTERM);
        // This also checks that no process is left.
        job.wait().exits(name.code(143));
    }
}

const SESSION: &str = "import os; print('leads', os.getsid(0) == os.getpid(), flush=True)\n";

#[test]
fn a_run_path_worker_leads_a_session_of_its_own() {
    let scratch = Scratch::new();
    let script = scratch.file("session.py", SESSION, 0o644);
    let launch = |name| Launch::standalone(name, 1).with_torch().args(["--run-path", &script]).run();
    launch(Name::Reference).exits(0).says("leads False\n");
    if only_ours() {
        launch(Name::Rankrun).exits(0).says("leads True\n");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder exists");
    entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_log_tree_that_stayed_empty_is_removed() {
    let launch = |name| Launch::standalone(name, 1);
    let theirs = torchruns(launch, &["alive"]);
    let left = names_in(&theirs.temporary());
    assert!(left.iter().any(|name| name.starts_with("torchelastic_")), "{left:?}");
    for name in Name::both().iter().filter(|_| only_ours()) {
        let outcome = launch(*name).worker(["alive"]).run();
        outcome.exits(0);
        assert_eq!(names_in(&outcome.temporary()), [""; 0]);
    }
}

#[test]
fn a_script_that_does_not_exist_starts_nothing() {
    for name in Name::both().iter().filter(|_| only_ours()) {
        let launch = Launch::standalone(*name, 2).env("PYTHON_EXEC", "/bin/echo").args(["nowhere.py"]);
        let outcome = launch.run();
        outcome.exits(1).complains("`nowhere.py` does not exist");
        assert_eq!(outcome.out(), "", "{outcome}");
    }
}

#[test]
fn error_files_alone_are_kept_in_memory() {
    for (name, folder) in [(Name::Rankrun, "/dev/shm/torchelastic_"), (Name::Torchrun, "/tmp/torchelastic_")]
    {
        let outcome = Launch::standalone(name, 1).without_env("TMPDIR").worker(["env"]).run();
        outcome.exits(0).says(&format!(" TORCHELASTIC_ERROR_FILE={folder}"));
    }
}

/// The words in backticks that are paths of tests.
fn tests_named(text: &str) -> BTreeSet<&str> {
    let is_path = |word: &&str| {
        let mut letters = word.chars();
        word.contains("::") && letters.all(|letter| letter.is_ascii_alphanumeric() || "_:".contains(letter))
    };
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

#[test]
fn every_test_that_the_document_names_exists() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace");
    let text = fs::read_to_string(checkout.join("docs/differences.md")).expect("the document is there");
    let (named, here) = (tests_named(&text), tests_here());
    assert!(named.len() > 30, "the document names only {named:?}");
    for path in named {
        let is_there = match path.strip_prefix("pytorch::").and_then(|path| path.split_once("::")) {
            Some((file, test)) => {
                let text = fs::read_to_string(checkout.join(format!("tests/pytorch/{file}.rs")));
                text.is_ok_and(|text| text.contains(&format!("\nfn {test}() {{")))
            }
            None => here.iter().any(|test| test == path),
        };
        assert!(is_there, "docs/differences.md names `{path}`, which is no test");
    }
    for line in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| torchrun 2.15 |")) {
        assert!(!tests_named(line).is_empty() || line.starts_with("|--"), "no test is named in\n{line}");
    }
}
