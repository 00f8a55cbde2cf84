//! What cannot be done is said, with the value and a hint, before any worker starts.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use harness::{Launch, Name, Outcome, Scratch, is_rankrun, is_torchrun};

/// A refusal: this status, the value in an `error:` line, and no worker.
#[track_caller]
fn assert_refused(launch: impl Fn(Name) -> Launch, code: i32, value: &str) {
    for name in Name::both() {
        let scratch = Scratch::new();
        let trace = scratch.at("started");
        let outcome = launch(*name).worker([format!("touch={trace}")]).run();
        assert_error_names(&outcome, code, value);
        assert!(!Path::new(&trace).exists(), "a worker started\n{outcome}");
    }
}

#[track_caller]
fn assert_error_names(outcome: &Outcome, code: i32, value: &str) {
    outcome.expect_exit_code(code);
    if is_torchrun() {
        // torchrun prints a traceback where we print a line.
        return;
    }
    let line = outcome.stderr().lines().find(|line| line.contains("error:")).map(str::to_owned);
    let line = line.unwrap_or_else(|| panic!("no `error:` line\n{outcome}"));
    assert!(line.contains(value), "the error does not name `{value}`: {line}\n{outcome}");
    outcome.expect_absent("panicked").expect_absent("Traceback");
    if !line.starts_with("torchrun: error:") {
        // torchrun's parser has no hints, and its text is kept.
        outcome.expect_stderr("hint:");
    }
    assert_eq!(outcome.stdout(), "", "an error belongs on stderr");
}

#[test]
fn unknown_option_is_usage_error() {
    assert_refused(|name| Launch::standalone(name, 1).args(["--unknown"]), 2, "--unknown");
}

#[test]
fn unknown_option_under_torchrun_name_has_argparse_message() {
    let outcome = Launch::new(Name::Torchrun).args(["--unknown", "x.py"]).run();
    outcome.expect_exit_code(2).expect_stderr("unrecognized arguments: --unknown");
}

#[test]
fn nproc_zero_is_refused() {
    assert_refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "0"]), 1, "0");
}

#[test]
fn nproc_negative_is_refused() {
    assert_refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node=-1"]), 1, "-1");
}

#[test]
fn nproc_not_a_number_is_refused() {
    assert_refused(|name| Launch::new(name).args(["--standalone", "--nproc-per-node", "abc"]), 1, "abc");
}

#[test]
fn max_restarts_negative_is_refused() {
    assert_refused(|name| Launch::standalone(name, 1).args(["--max-restarts=-1"]), 1, "-1");
}

#[test]
fn missing_program_is_named() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "/nonexistent/train"]).run();
        assert_error_names(&outcome, 1, "/nonexistent/train");
    }
}

#[test]
fn program_not_in_path_is_named() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).args(["--no-python", "no-such-program"]).run();
        assert_error_names(&outcome, 1, "no-such-program");
    }
}

#[test]
fn missing_script_is_named() {
    let outcome = Launch::standalone(Name::Rankrun, 2).args(["/nonexistent/train.py"]).run();
    assert_error_names(&outcome, 1, "/nonexistent/train.py");
}

#[test]
fn program_without_run_permission_is_named() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let script = scratch.file("train", "#!/bin/sh\necho started\n", 0o644);
        let outcome = Launch::standalone(*name, 2).args(["--no-python", &script]).run();
        assert_error_names(&outcome, 1, &script);
        outcome.expect_absent("started");
    }
}

#[test]
fn port_in_use_is_refused() {
    let taken = TcpListener::bind(("0.0.0.0", 0)).expect("the machine has a free port");
    let port = taken.local_addr().expect("a bound socket has an address").port().to_string();
    assert_refused(|name| Launch::new(name).args(["--master-port", &port]), 1, &port);
    if is_rankrun() {
        // Without a setting that it hosts the store, the agent takes a listener there for the store of another agent.
        let endpoint = format!("localhost:{port}");
        let host = ["--rdzv-conf", "is_host=1"];
        let options = [&["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint][..], &host].concat();
        assert_refused(|name| Launch::new(name).args(options.clone()), 1, &port);
    }
}

#[test]
fn log_dir_below_file_is_refused() {
    let scratch = Scratch::new();
    let folder = format!("{}/logs", scratch.file("file", "", 0o644));
    assert_refused(|name| Launch::standalone(name, 1).args(["--log-dir", &folder]), 1, &folder);
    let file = scratch.at("file");
    assert_refused(|name| Launch::standalone(name, 1).args(["--log-dir", &file]), 1, &file);
}

#[test]
fn unwritable_log_dir_is_refused() {
    // Root may write any folder of a plain file system, but no folder can be made here.
    assert_refused(|name| Launch::standalone(name, 1).args(["--log-dir", "/proc/logs"]), 1, "/proc/logs");
}

#[test]
fn invalid_stream_map_is_refused() {
    for map in ["0:9", "a:1", "0:1,,"] {
        assert_refused(|name| Launch::standalone(name, 1).args(["--redirects", map]), 1, map);
        assert_refused(|name| Launch::standalone(name, 1).env("PET_TEE", map), 1, "PET_TEE");
    }
}

#[test]
fn local_ranks_filter_not_a_number_is_refused() {
    assert_refused(|name| Launch::standalone(name, 1).args(["--local-ranks-filter", "0,x"]), 1, "0,x");
}

#[test]
fn duplicate_filter_without_log_dir_is_refused() {
    let options = ["--log-dir", "/dev/null", "--duplicate-stdout-filters", "a"];
    assert_refused(|name| Launch::standalone(name, 1).args(options), 1, "--duplicate-stdout-filters");
}

#[test]
fn invalid_rdzv_endpoint_is_refused() {
    for endpoint in ["tcp://localhost:7", "localhost:x", "localhost:65536", "localhost"] {
        assert_refused(|name| Launch::new(name).args(["--rdzv-endpoint", endpoint]), 1, endpoint);
    }
    if !is_rankrun() {
        return;
    }
    // torchrun starts Python for each of these, and says the same; `cli` has more of them.
    for endpoint in
        ["localhost:", ":7", "[::1", "[::1]x:7", "local/host:7", "localhost:7,localhost:8", "a b:7"]
    {
        let options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint];
        assert_refused(|name| Launch::new(name).args(options), 1, endpoint);
    }
}

#[test]
fn impossible_node_count_rank_or_port_is_refused() {
    if !is_rankrun() {
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
        assert_refused(|name| Launch::new(name).args(options), 1, named);
    }
}

#[test]
fn invalid_rdzv_conf_is_refused() {
    for conf in ["join_timeout=0.5", "read_timeout=0", "is_host=maybe", "a", "run_id=7"] {
        let launch = |name| Launch::new(name).args(["--rdzv-backend", "c10d"]).args(["--rdzv-conf", conf]);
        assert_refused(launch, 1, conf);
    }
    assert_refused(
        |name| Launch::new(name).args(["--master-port", "0"]).env("PET_RDZV_CONF", "timeout=x"),
        1,
        "x",
    );
}

#[test]
fn python_plugins_are_refused() {
    assert_refused(|name| Launch::standalone(name, 1).args(["--logs-specs", "mine"]), 1, "mine");
    assert_refused(|name| Launch::standalone(name, 1).args(["--event-log-handler", "mine"]), 1, "mine");
    assert_refused(|name| Launch::new(name).args(["--rdzv-backend", "mine"]), 1, "mine");
}

#[test]
fn unsupported_numa_binding_is_refused() {
    assert_refused(|name| Launch::standalone(name, 1).args(["--numa-binding", "node"]), 1, "--numa-binding");
    assert_refused(|name| Launch::standalone(name, 1).args(["--numa-binding", "near"]), 2, "near");
}

#[test]
fn invalid_variable_is_named() {
    for name in Name::both() {
        for (variable, value, code) in
            [("PET_MAX_RESTARTS", "x", 2), ("PET_STANDALONE", "yes", 1), ("PET_NPROC_PER_NODE", "x", 1)]
        {
            let outcome = Launch::new(*name).env(variable, value).worker(["print=started"]).run();
            assert_error_names(&outcome, code, value);
            outcome.expect_absent("started");
            if !is_torchrun() {
                outcome.expect_stderr(&format!("`{variable}` is `{value}`, which is not"));
            }
        }
    }
}

#[test]
fn option_value_not_utf8_is_refused() {
    if is_rankrun() {
        let role = OsString::from_vec(b"--role=a\xff".to_vec());
        assert_refused(|name| Launch::standalone(name, 1).args([role.clone()]), 1, "--role");
        let port = OsString::from_vec(b"--master-port=\xff".to_vec());
        assert_refused(|name| Launch::standalone(name, 1).args([port.clone()]), 2, "--master-port");
    }
}
