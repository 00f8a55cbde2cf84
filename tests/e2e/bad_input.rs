//! What cannot be done is said, with the value and a hint, before any worker starts.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use harness::{Launch, Name, Outcome, Scratch, only_ours, oracle};

/// A refusal: this status, the value in an `error:` line, and no worker.
#[track_caller]
fn refused(launch: impl Fn(Name) -> Launch, code: i32, value: &str) {
    for name in Name::both() {
        let scratch = Scratch::new();
        let trace = scratch.at("started");
        let outcome = launch(*name).worker([format!("touch={trace}")]).run();
        complained(&outcome, code, value);
        assert!(!Path::new(&trace).exists(), "a worker started\n{outcome}");
    }
}

#[track_caller]
fn complained(outcome: &Outcome, code: i32, value: &str) {
    outcome.exits(code);
    if oracle() {
        // torchrun prints a traceback where we print a line.
        return;
    }
    let line = outcome.err().lines().find(|line| line.contains("error:")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("no `error:` line\n{outcome}"));
    assert!(line.contains(value), "the error does not name `{value}`: {line}\n{outcome}");
    outcome.never_says("panicked").never_says("Traceback");
    if !line.starts_with("torchrun: error:") {
        // torchrun's parser has no hints, and its text is kept.
        outcome.complains("hint:");
    }
    assert_eq!(outcome.out(), "", "an error belongs on stderr");
}

#[test]
fn an_unknown_option() {
    refused(|name| Launch::standalone(name, 1).args(["--unknown"]), 2, "--unknown");
}

#[test]
fn unknown_options_are_called_what_torchrun_calls_them() {
    let outcome = Launch::new(Name::Torchrun).args(["--unknown", "x.py"]).run();
    outcome.exits(2).complains("unrecognized arguments: --unknown");
}

#[test]
fn no_workers_at_all() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "0"]), 1, "0");
}

#[test]
fn fewer_than_no_workers() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node=-1"]), 1, "-1");
}

#[test]
fn a_number_of_workers_that_is_none() {
    refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "abc"]), 1, "abc");
}

#[test]
fn fewer_than_no_restarts() {
    refused(|name| Launch::standalone(name, 1).args(["--max-restarts=-1"]), 1, "-1");
}

#[test]
fn a_program_that_does_not_exist() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "/nonexistent/train"]).run();
        complained(&outcome, 1, "/nonexistent/train");
    }
}

#[test]
fn a_program_that_is_not_in_the_path() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "no-such-program"]).run();
        complained(&outcome, 1, "no-such-program");
    }
}

#[test]
fn a_script_that_does_not_exist() {
    let outcome = Launch::standalone(Name::Rankrun, 2).args(["/nonexistent/train.py"]).run();
    complained(&outcome, 1, "/nonexistent/train.py");
}

#[test]
fn a_program_without_run_permission() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let script = scratch.file("train", "#!/bin/sh\necho started\n", 0o644);
        let outcome = Launch::standalone(*name, 2).args(["--no-python", &script]).run();
        complained(&outcome, 1, &script);
        outcome.never_says("started");
    }
}

#[test]
fn a_port_in_use() {
    let taken = TcpListener::bind(("0.0.0.0", 0)).expect("the machine has a free port");
    let port = taken.local_addr().expect("a bound socket has an address").port().to_string();
    refused(|name| Launch::new(name).args(["--master-port", &port]), 1, &port);
    if only_ours() {
        // Without a setting that it hosts the store, the agent takes a listener there for the store of another agent.
        let endpoint = format!("localhost:{port}");
        let host = ["--rdzv-conf", "is_host=1"];
        let options = [&["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint][..], &host].concat();
        refused(|name| Launch::new(name).args(options.clone()), 1, &port);
    }
}

#[test]
fn a_log_folder_below_a_file() {
    let scratch = Scratch::new();
    let folder = format!("{}/logs", scratch.file("file", "", 0o644));
    refused(|name| Launch::standalone(name, 1).args(["--log-dir", &folder]), 1, &folder);
}

#[test]
fn a_log_folder_that_cannot_be_written() {
    // Root may write any folder of a plain file system, but no folder can be made here.
    refused(|name| Launch::standalone(name, 1).args(["--log-dir", "/proc/logs"]), 1, "/proc/logs");
}

#[test]
fn maps_of_streams_that_are_none() {
    for map in ["0:9", "a:1", "0:1,,"] {
        refused(|name| Launch::standalone(name, 1).args(["--redirects", map]), 1, map);
        refused(|name| Launch::standalone(name, 1).env("PET_TEE", map), 1, "PET_TEE");
    }
}

#[test]
fn a_filter_that_names_no_ranks() {
    refused(|name| Launch::standalone(name, 1).args(["--local-ranks-filter", "0,x"]), 1, "0,x");
}

#[test]
fn copies_of_lines_without_a_file() {
    let options = ["--log-dir", "/dev/null", "--duplicate-stdout-filters", "a"];
    refused(|name| Launch::standalone(name, 1).args(options), 1, "--duplicate-stdout-filters");
}

#[test]
fn an_endpoint_that_is_none() {
    for endpoint in ["tcp://localhost:7", "localhost:x", "localhost:65536", "localhost"] {
        refused(|name| Launch::new(name).args(["--rdzv-endpoint", endpoint]), 1, endpoint);
    }
    if !only_ours() {
        return;
    }
    // torchrun starts Python for each of these, and says the same; `cli` has more of them.
    for endpoint in
        ["localhost:", ":7", "[::1", "[::1]x:7", "local/host:7", "localhost:7,localhost:8", "a b:7"]
    {
        let options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint];
        refused(|name| Launch::new(name).args(options), 1, endpoint);
    }
}

#[test]
fn numbers_of_nodes_and_ranks_that_cannot_be() {
    if !only_ours() {
        return;
    }
    // torchrun waits for others first.
    for (options, named) in [
        (
            ["--nnodes", "2", "--node-rank", "2"],
            "`--node-rank` is `2`, and the node ranks of a job of 2 nodes",
        ),
        (["--nnodes", "2", "--node-rank", "-1"], "`--node-rank` is `-1`"),
        (["--nnodes", "2", "--master-port", "0"], "`--master-port` is `0`"),
        (["--nnodes", "70000", "--node-rank", "1"], "`--nnodes` is `70000`"),
    ] {
        refused(|name| Launch::new(name).args(options), 1, named);
    }
}

#[test]
fn settings_of_the_rendezvous_that_are_none() {
    for conf in ["join_timeout=0.5", "read_timeout=0", "is_host=maybe", "a", "run_id=7"] {
        let launch = |name| Launch::new(name).args(["--rdzv-backend", "c10d"]).args(["--rdzv-conf", conf]);
        refused(launch, 1, conf);
    }
    refused(|name| Launch::new(name).args(["--master-port", "0"]).env("PET_RDZV_CONF", "timeout=x"), 1, "x");
}

#[test]
fn plug_ins_written_in_python() {
    refused(|name| Launch::standalone(name, 1).args(["--logs-specs", "mine"]), 1, "mine");
    refused(|name| Launch::standalone(name, 1).args(["--event-log-handler", "mine"]), 1, "mine");
    refused(|name| Launch::new(name).args(["--rdzv-backend", "mine"]), 1, "mine");
}

#[test]
fn cpus_near_an_accelerator() {
    refused(|name| Launch::standalone(name, 1).args(["--numa-binding", "node"]), 1, "--numa-binding");
    refused(|name| Launch::standalone(name, 1).args(["--numa-binding", "near"]), 2, "near");
}

#[test]
fn a_bad_variable_is_named() {
    for name in Name::both() {
        for (variable, value, code) in
            [("PET_MAX_RESTARTS", "x", 2), ("PET_STANDALONE", "yes", 1), ("PET_NPROC_PER_NODE", "x", 1)]
        {
            let outcome = Launch::new(*name).env(variable, value).worker(["print=started"]).run();
            complained(&outcome, code, value);
            outcome.never_says("started");
            if !oracle() {
                outcome.complains(&format!("`{variable}` is `{value}`, which is not"));
            }
        }
    }
}

#[test]
fn a_value_that_is_no_text() {
    if only_ours() {
        let role = OsString::from_vec(b"--role=a\xff".to_vec());
        refused(|name| Launch::standalone(name, 1).args([role.clone()]), 1, "--role");
        let port = OsString::from_vec(b"--master-port=\xff".to_vec());
        refused(|name| Launch::standalone(name, 1).args([port.clone()]), 2, "--master-port");
    }
}
