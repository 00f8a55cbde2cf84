//! `docs/differences.md`: where we depart from torchrun 2.15 on purpose. What no other file tests is tested here, beside
//! torchrun itself; and every test that the document names must exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::{Job, Launch, Name, Outcome, Scratch, free_port, is_rankrun};
use nix::sys::signal::Signal;

use crate::contract::list_tests;

/// What torchrun 2.15 does.
#[track_caller]
fn run_reference(launch: impl Fn(Name) -> Launch, steps: &[&str]) -> Outcome {
    launch(Name::Reference).worker(steps.iter().copied()).run()
}

#[test]
fn abbreviation_ambiguous_in_torchrun_is_accepted() {
    let launch = |name| Launch::new(name).args(["--standalone", "--nproc", "2"]);
    for name in [Name::Torchrun, Name::Reference] {
        launch(name)
            .worker(["alive"])
            .run()
            .expect_exit_code(2)
            .expect_stderr("ambiguous option: --nproc could match");
    }
    let outcome = launch(Name::Rankrun).worker(["alive"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("alive rank=").len(), 2, "{outcome}");
}

#[test]
fn lowercase_log_level_is_accepted() {
    let launch = |name| Launch::standalone(name, 1).env("LOGLEVEL", "debug");
    run_reference(launch, &["alive"])
        .expect_exit_code(1)
        .expect_stderr("Unknown level: 'debug'")
        .expect_absent("alive rank=");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        launch(*name).worker(["alive"]).run().expect_exit_code(0).expect_stdout("alive rank=0");
    }
}

#[test]
fn run_id_with_slash_is_accepted() {
    let launch = |name| {
        let port = free_port().to_string();
        Launch::new(name).args(["--master-port", &port, "--rdzv-id", "night/7"])
    };
    run_reference(launch, &["alive"]).expect_exit_code(1).expect_absent("alive rank=");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        launch(*name)
            .worker(["env"])
            .run()
            .expect_exit_code(0)
            .expect_stdout("TORCHELASTIC_RUN_ID=night/7\n");
    }
}

#[test]
fn master_port_zero_sets_chosen_port() {
    let launch = |name| Launch::new(name).args(["--master-port", "0"]);
    run_reference(launch, &["env"]).expect_exit_code(0).expect_stdout(" MASTER_PORT=0\n");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome = launch(*name).worker(["env"]).run();
        outcome.expect_exit_code(0).expect_stdout(" MASTER_PORT=").expect_absent(" MASTER_PORT=0");
    }
}

#[test]
fn standalone_with_two_nodes_is_refused_without_waiting() {
    let launch = |name| {
        // torchrun waits for so long; by itself for ten minutes.
        let options = ["--standalone", "--nnodes", "2", "--rdzv-conf", "join_timeout=3"];
        Launch::new(name).args(options)
    };
    run_reference(launch, &["alive"])
        .expect_exit_code(1)
        .expect_stderr("RendezvousTimeoutError")
        .expect_absent("alive rank=");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome = launch(*name).worker(["alive"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("`--nnodes` is `2`")
            .expect_stderr("hint:")
            .expect_absent("alive rank=");
    }
}

#[test]
fn ipv6_endpoint_without_brackets_is_refused() {
    let launch = |name, endpoint| {
        let conf = ["--rdzv-conf", "read_timeout=3,join_timeout=3"];
        Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]).args(conf)
    };
    run_reference(|name| launch(name, "::1"), &["alive"]).expect_exit_code(1).expect_absent("alive rank=");
    if is_rankrun() {
        let outcome = launch(Name::Rankrun, "::1").worker(["alive"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("stands in brackets, as in `[::1]:29400`")
            .expect_absent("alive rank=");
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
fn advertised_port(job: &Job) -> u16 {
    let line = job.wait_for_line(" MASTER_PORT=");
    line.rsplit('=').next().and_then(|port| port.parse().ok()).expect("a port is a number")
}

#[test]
fn single_node_store_listens_on_loopback_only() {
    let listening = |name| {
        let mut job = Launch::standalone(name, 1).stdin_open().worker(["env", "read"]).start();
        let found = listeners(advertised_port(&job));
        job.close_stdin();
        job.wait().expect_exit_code(0);
        found
    };
    let everywhere = ["0".repeat(8), "0".repeat(32)];
    let torchrun_addresses = listening(Name::Reference);
    assert!(torchrun_addresses.iter().any(|address| everywhere.contains(address)), "{torchrun_addresses:?}");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        assert_eq!(listening(*name), ["0100007F".to_owned()].into());
    }
}

#[test]
fn signal_during_start_reaches_started_workers() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 32).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["alive", "forever"]).start();
        job.wait_for_line("alive rank=");
        job.signal(Signal::SIGTERM);
        // This also checks that no process is left.
        job.wait().expect_exit_code(name.code(143));
    }
}

const PRINT_SESSION_LEADER: &str = "import os; print('leads', os.getsid(0) == os.getpid(), flush=True)\n";

#[test]
fn run_path_worker_leads_its_own_session() {
    let scratch = Scratch::new();
    let script = scratch.file("session.py", PRINT_SESSION_LEADER, 0o644);
    let launch = |name| Launch::standalone(name, 1).with_torch().args(["--run-path", &script]).run();
    launch(Name::Reference).expect_exit_code(0).expect_stdout("leads False\n");
    if is_rankrun() {
        launch(Name::Rankrun).expect_exit_code(0).expect_stdout("leads True\n");
    }
}

fn entry_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder exists");
    entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn empty_log_tree_is_removed() {
    let launch = |name| Launch::standalone(name, 1);
    let torchrun_outcome = run_reference(launch, &["alive"]);
    let entries = entry_names(&torchrun_outcome.temporary());
    assert!(entries.iter().any(|name| name.starts_with("torchelastic_")), "{entries:?}");
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let outcome = launch(*name).worker(["alive"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(entry_names(&outcome.temporary()), [""; 0]);
    }
}

#[test]
fn missing_script_starts_no_worker() {
    for name in Name::both().iter().filter(|_| is_rankrun()) {
        let launch = Launch::standalone(*name, 2).env("PYTHON_EXEC", "/bin/echo").args(["nowhere.py"]);
        let outcome = launch.run();
        outcome.expect_exit_code(1).expect_stderr("`nowhere.py` does not exist");
        assert_eq!(outcome.stdout(), "", "{outcome}");
    }
}

#[test]
fn error_files_without_log_dir_are_kept_in_memory() {
    for (name, folder) in [(Name::Rankrun, "/dev/shm/torchelastic_"), (Name::Torchrun, "/tmp/torchelastic_")]
    {
        let outcome = Launch::standalone(name, 1).without_env("TMPDIR").worker(["env"]).run();
        outcome.expect_exit_code(0).expect_stdout(&format!(" TORCHELASTIC_ERROR_FILE={folder}"));
    }
}

/// The words in backticks that are paths of tests.
fn quoted_test_paths(text: &str) -> BTreeSet<&str> {
    let is_path = |token: &&str| {
        let mut letters = token.chars();
        token.contains("::") && letters.all(|letter| letter.is_ascii_alphanumeric() || "_:".contains(letter))
    };
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Pages with a table of differences: path, number of tests at least, first words of the header, and the folder of the unit
/// tests that the page names.
const PAGES: [(&str, usize, &str, &str); 3] = [
    ("docs/differences.md", 30, "| torchrun 2.15 |", ""),
    ("docs/accelerate.md", 15, "| accelerate 1.15 |", "launcher/src/cli/other_launcher/accelerate"),
    ("docs/deepspeed.md", 15, "| what |", "launcher/src/cli/other_launcher/deepspeed"),
];

#[test]
fn each_difference_names_existing_tests() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the workspace");
    let here = list_tests();
    let is_in_file = |path: String, test: &str| {
        let text = fs::read_to_string(checkout.join(path));
        text.is_ok_and(|text| text.contains(&format!("\nfn {test}() {{")))
    };
    for (page, count, header, unit_folder) in PAGES {
        let text = fs::read_to_string(checkout.join(page)).expect("the document is there");
        // A table of options may stand before.
        let from = text.find(header).expect("the document has the table");
        let rows: Vec<&str> =
            text[from..].lines().filter(|line| line.starts_with("| ") && !line.starts_with(header)).collect();
        let named: BTreeSet<&str> = rows.iter().flat_map(|row| quoted_test_paths(row)).collect();
        assert!(named.len() > count, "{page} names only {named:?}");
        for path in named {
            let (kind, rest) = path.split_once("::").unwrap_or(("", path));
            let is_there = match (kind, rest.rsplit_once("::")) {
                ("pytorch", Some((file, test))) => is_in_file(format!("tests/pytorch/{file}.rs"), test),
                ("unit", Some((file, test))) => {
                    is_in_file(format!("{unit_folder}/{}.rs", file.replace("::", "/")), test)
                }
                _ => here.iter().any(|test| test == path),
            };
            assert!(is_there, "{page} names `{path}`, which is not a test");
        }
        for row in rows {
            assert!(!quoted_test_paths(row).is_empty(), "no test of {page} is named in\n{row}");
        }
    }
}
