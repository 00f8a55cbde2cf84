//! Options that decide where workers meet, what they see, how they run, and which signals they get.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use harness::{Job, Launch, Name, Scratch, field, free_port, is_zombie_or_gone, only_ours, oracle};
use nix::sys::signal::Signal;

use crate::store_abuse::serves;

/// The value of a variable that the only worker told.
#[track_caller]
fn told(job: &Job, name: &str) -> String {
    let line = job.line(&format!("env0 {name}="));
    line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value")
}

/// A dynamic rendezvous at this port. Its only worker waits.
#[track_caller]
fn c10d(name: Name, port: u16, more: impl Fn(Launch) -> Launch) -> Job {
    let endpoint = format!("localhost:{port}");
    let launch = Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
    more(launch).stdin_open().worker(["env", "read"]).start()
}

#[track_caller]
fn ends_well(mut job: Job) {
    job.type_text("\n");
    job.wait().exits(0);
}

#[test]
fn a_dynamic_rendezvous_has_two_stores() {
    for name in Name::both() {
        let port = free_port();
        let job = c10d(*name, port, |launch| launch.args(["--rdzv-id", "night-7"]));
        assert_eq!(told(&job, "TORCHELASTIC_RUN_ID"), "night-7");
        assert_eq!(told(&job, "TORCHELASTIC_USE_AGENT_STORE"), "True");
        let master = told(&job, "MASTER_PORT");
        assert_ne!(master, port.to_string());
        serves(&format!("localhost:{port}"));
        serves(&format!("{}:{master}", told(&job, "MASTER_ADDR")));
        ends_well(job);
    }
}

#[test]
fn the_workers_may_open_their_store_themselves() {
    for name in Name::both() {
        let port = free_port();
        let job = c10d(*name, port, |launch| launch.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"));
        assert_eq!(told(&job, "TORCHELASTIC_USE_AGENT_STORE"), "False");
        let master: u16 = told(&job, "MASTER_PORT").parse().expect("a port");
        TcpListener::bind(("0.0.0.0", master)).expect("the port is free");
        serves(&format!("localhost:{port}"));
        ends_well(job);
    }
}

#[test]
fn the_workers_are_told_the_local_address() {
    for name in Name::both() {
        let job = c10d(*name, free_port(), |launch| launch.args(["--local-addr", "127.0.0.1"]));
        assert_eq!(told(&job, "MASTER_ADDR"), "127.0.0.1");
        assert_eq!(told(&job, "TORCHELASTIC_RUN_ID"), "none");
        ends_well(job);
    }
}

#[test]
fn an_empty_run_id_is_made_up() {
    for name in Name::both() {
        let job = c10d(*name, free_port(), |launch| launch.args(["--rdzv-id="]));
        let run_id = told(&job, "TORCHELASTIC_RUN_ID");
        assert!(!run_id.is_empty() && run_id.bytes().all(|byte| byte.is_ascii_digit()), "{run_id}");
        job.text(&run_id);
        ends_well(job);
    }
}

#[test]
fn a_dynamic_rendezvous_outlives_a_restart() {
    for name in Name::both() {
        let port = free_port();
        let endpoint = format!("localhost:{port}");
        let launch = Launch::new(*name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
        let launch = launch.args(["--max-restarts", "1"]).stdin_open();
        let mut job = launch.worker(["alive", "life0:exit=3", "env", "read"]).start();
        job.line("life=1");
        serves(&format!("localhost:{port}"));
        serves(&format!("{}:{}", told(&job, "MASTER_ADDR"), told(&job, "MASTER_PORT")));
        job.type_text("\n");
        job.wait().exits(0);
    }
}

#[test]
fn a_static_endpoint_is_what_the_workers_see() {
    for name in Name::both() {
        let port = free_port();
        let endpoint = format!("localhost:{port}");
        let launch = Launch::new(*name).args(["--rdzv-endpoint", &endpoint, "--rdzv-conf", "timeout=60"]);
        let job = launch.stdin_open().worker(["env", "read"]).start();
        assert_eq!(told(&job, "MASTER_ADDR"), "localhost");
        assert_eq!(told(&job, "MASTER_PORT"), port.to_string());
        assert_eq!(told(&job, "TORCHELASTIC_RUN_ID"), "none");
        serves(&endpoint);
        ends_well(job);
    }
}

/// Two workers with a device each: what they see, as `LOCAL_RANK RANK CUDA HIP ${local_rank}`.
#[track_caller]
fn seen(launch: Launch) -> Vec<String> {
    let line = "echo $LOCAL_RANK $RANK <$CUDA_VISIBLE_DEVICES> <$HIP_VISIBLE_DEVICES> ${local_rank}";
    let launch = launch.args(["--virtual-local-rank"]);
    let outcome = launch.shell(&line.replace('<', "'<'").replace('>', "'>'")).run();
    outcome.exits(0);
    let mut lines = outcome.out_lines();
    lines.sort();
    lines
}

#[test]
fn each_worker_sees_one_device() {
    for name in Name::both() {
        let launch = || Launch::standalone(*name, 2).env("OMP_NUM_THREADS", "1");
        let cuda = launch().env("CUDA_VISIBLE_DEVICES", "3, 5");
        assert_eq!(seen(cuda), ["0 0 <3> <> 0", "0 1 <5> <> 1"]);
        let hip = launch().env("CUDA_VISIBLE_DEVICES", "7").env("HIP_VISIBLE_DEVICES", "4,6,8");
        assert_eq!(seen(hip), ["0 0 <4> <4> 0", "0 1 <6> <6> 1"]);
        assert_eq!(seen(launch()), ["0 0 <0> <> 0", "0 1 <1> <> 1"]);
    }
}

#[test]
fn a_worker_without_a_device_is_named() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("CUDA_VISIBLE_DEVICES", "3");
        let outcome = launch.args(["--virtual-local-rank"]).worker(["print=started"]).run();
        outcome.exits(1).complains("CUDA_VISIBLE_DEVICES").complains("1").never_says("started");
        if !oracle() {
            outcome.complains("local rank 1").complains("hint:");
        }
    }
}

/// A script for `--run-path`, and the launch of it.
fn run_path(name: Name, scratch: &Scratch, text: &str) -> (Launch, String) {
    let script = scratch.file("train.py", text, 0o644);
    let launch = Launch::standalone(name, 1).with_torch().args(["--run-path"]);
    (launch, script)
}

#[test]
fn a_script_runs_as_main() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let text = "import sys; print(__name__, sys.argv, flush=True); sys.exit(0)\n";
        let (launch, script) = run_path(*name, &scratch, text);
        let outcome = launch.args(["--no-python", "-m", &script, "--lr", "${local_rank}"]).run();
        outcome.exits(0).says(&format!("__main__ ['{script}', '--lr', '0']\n"));
    }
}

#[test]
fn what_a_script_raises_is_recorded() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let (launch, script) = run_path(*name, &scratch, "raise ValueError('out of data')\n");
        let logs = scratch.folder("logs", 0o755);
        let outcome = launch.args(["--log-dir", &logs, &script]).run();
        outcome.exits(1);
        let report = fs::read_to_string(only_file(Path::new(&logs), "attempt_0/0/error.json"))
            .unwrap_or_else(|error| panic!("no report: {error}\n{outcome}"));
        assert!(report.contains("ValueError: out of data"), "{report}");
    }
}

/// A file of the only run in a log folder.
#[track_caller]
fn only_file(logs: &Path, name: &str) -> PathBuf {
    let mut runs = fs::read_dir(logs).expect("the folder can be read");
    runs.next().expect("a run made its folder").expect("the folder can be read").path().join(name)
}

#[test]
fn a_signal_on_the_list_stops_the_job() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", " SIGTERM ,SIGUSR1"]);
        let job = launch.worker(["catch=SIGUSR1", "env", "alive", "signal=SIGUSR1", "exit=0"]).start();
        job.lines("alive rank=", 2);
        job.signal(Signal::SIGUSR1);
        let outcome = job.wait();
        outcome.exits(name.code(128 + Signal::SIGUSR1 as i32));
        outcome.says("TORCHELASTIC_SIGNALS_TO_HANDLE= SIGTERM ,SIGUSR1\n");
        assert_eq!(outcome.lines_with("got SIGUSR1 rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn a_name_that_is_no_signal_is_said() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--signals-to-handle", "SIGTERM,SIGFOO"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.line("alive rank=");
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.exits(name.code(143)).complains("SIGFOO").says("got SIGTERM rank=0");
    }
}

#[test]
fn signals_that_no_launcher_can_handle_are_said() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", "SIGKILL,SIGCHLD,SIGWINCH"]);
        let outcome = launch.shell("true").run();
        outcome.exits(0);
        assert_eq!(outcome.lines_with("which a launcher cannot handle").len(), 3, "{outcome}");
    }
}

#[test]
fn under_our_own_name_other_signals_go_on_to_the_workers() {
    let signals = ["catch=SIGUSR1,SIGUSR2", "alive", "signal=SIGUSR1", "signal=SIGUSR2"];
    let launch = Launch::standalone(Name::Rankrun, 2).stdin_open();
    let mut job = launch.worker(signals.into_iter().chain(["read", "print=trained"])).start();
    job.lines("alive rank=", 2);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        job.signal(signal);
        job.lines(&format!("got {signal} rank="), 2);
    }
    job.close_stdin();
    let outcome = job.wait();
    outcome.exits(0);
    assert_eq!(outcome.lines_with("trained").len(), 2, "{outcome}");
}

#[test]
fn a_signal_for_the_workers_reaches_nobody_whom_they_have_started() {
    let signals = ["catch=SIGUSR1", "helper=plain", "alive", "signal=SIGUSR1", "read", "exit=3"];
    let mut job = Launch::standalone(Name::Rankrun, 1).stdin_open().worker(signals).start();
    let line = job.line("who=plain");
    let helper = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
    job.line("alive rank=0");
    job.signal(Signal::SIGUSR1);
    job.line("got SIGUSR1 rank=0");
    assert!(!is_zombie_or_gone(helper), "{job}");
    job.close_stdin();
    job.wait().exits(3);
}

#[test]
fn options_that_name_a_worker_are_of_this_launch_alone() {
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_STDIN", "0").env("RANKRUN_GRACE", "3");
    let outcome = launch.worker(["env"]).run();
    outcome.exits(0).says(" RANKRUN_GRACE=3").never_says("RANKRUN_STDIN");
}

/// As SLURM does it: a warning, and the end right behind it.
#[test]
fn a_signal_for_the_workers_does_not_hide_the_one_behind_it() {
    let launch = Launch::standalone(Name::Rankrun, 1);
    let job = launch.worker(["catch=SIGUSR1,SIGTERM", "alive", "signal=SIGTERM", "exit=0"]).start();
    job.line("alive rank=");
    job.signal(Signal::SIGUSR1);
    job.signal(Signal::SIGTERM);
    job.wait().exits(143).says("got SIGTERM rank=0");
}

#[test]
fn under_torchruns_name_other_signals_end_it() {
    let job = Launch::standalone(Name::Torchrun, 2).worker(["alive", "forever"]).start();
    job.lines("alive rank=", 2);
    job.signal(Signal::SIGUSR1);
    job.wait().dies_of(Signal::SIGUSR1);
}

#[test]
fn an_interrupt_that_is_not_on_the_list_is_a_stop() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", "SIGTERM"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.lines("alive rank=", 2);
        job.signal(Signal::SIGINT);
        let outcome = job.wait();
        match name {
            Name::Rankrun => outcome.exits(130),
            Name::Torchrun | Name::Reference => outcome.dies_of(Signal::SIGINT),
        };
        assert_eq!(outcome.lines_with("got SIGTERM rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn torchs_events_need_no_handler_of_their_own() {
    for name in Name::both() {
        for handler in ["null", "dynamic_rendezvous", "console"] {
            let args: [OsString; 2] = ["--event-log-handler".into(), handler.into()];
            Launch::standalone(*name, 1).args(args).shell("true").run().exits(0);
        }
    }
}
