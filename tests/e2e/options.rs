//! Options that decide where workers meet, what they see, how they run, and which signals they get.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use harness::{Job, Launch, Name, Scratch, field, free_port, is_rankrun, is_torchrun, is_zombie_or_gone};
use nix::sys::signal::Signal;
use rankrun_core::device::affinity::format_ranges;
use rankrun_core::device::cpu_list::parse_cpu_list;

use crate::store_foreign_clients::assert_store_serves;

/// The value of a variable that the only worker told.
#[track_caller]
fn worker_variable(job: &Job, name: &str) -> String {
    let line = job.wait_for_line(&format!("env0 {name}="));
    line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value")
}

/// The CPUs in the line of a process's status.
fn cpus_in(status: &str) -> Vec<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("it is there");
    parse_cpu_list(list).expect("a list of CPUs")
}

#[test]
fn worker_is_bound_to_its_share_of_the_cores() {
    if !is_rankrun() {
        return;
    }
    let allowed = cpus_in(&fs::read_to_string("/proc/self/status").expect("Linux"));
    let shared: Vec<u32> = allowed.into_iter().take(2).collect();
    let list = format_ranges(&shared);
    let launch = Launch::standalone(Name::Rankrun, shared.len()).args(["--bind-cores", &list, "--tee", "3"]);
    let command = "grep Cpus_allowed_list: /proc/self/status; echo omp=$OMP_NUM_THREADS";
    let outcome = launch.without_env("OMP_NUM_THREADS").args(["--no-python", "sh", "-c", command]).run();
    outcome.expect_exit_code(0);
    for (local_rank, cpu) in shared.iter().enumerate() {
        let prefix = format!("[default{local_rank}]:");
        let lines = outcome.lines_with(&prefix);
        let status: String = lines.iter().map(|line| line.replacen(&prefix, "", 1) + "\n").collect();
        assert_eq!(cpus_in(&status), [*cpu], "{outcome}");
        assert!(status.contains("omp=1\n"), "{outcome}");
    }
    let launch = Launch::standalone(Name::Rankrun, shared.len() + 1).args(["--bind-cores", &list]);
    let problem = format!("{} workers cannot share {}", shared.len() + 1, shared.len());
    launch.worker(["alive"]).run().expect_exit_code(1).expect_stderr(&problem).expect_absent("alive rank");
}

/// A dynamic rendezvous at this port. Its only worker waits.
#[track_caller]
fn start_c10d_job(name: Name, port: u16, more: impl Fn(Launch) -> Launch) -> Job {
    let endpoint = format!("localhost:{port}");
    let launch = Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
    more(launch).stdin_open().worker(["env", "read"]).start()
}

#[track_caller]
fn assert_succeeds(mut job: Job) {
    job.type_text("\n");
    job.wait().expect_exit_code(0);
}

#[test]
fn c10d_rendezvous_and_workers_have_separate_stores() {
    for name in Name::both() {
        let port = free_port();
        let job = start_c10d_job(*name, port, |launch| launch.args(["--rdzv-id", "night-7"]));
        assert_eq!(worker_variable(&job, "TORCHELASTIC_RUN_ID"), "night-7");
        assert_eq!(worker_variable(&job, "TORCHELASTIC_USE_AGENT_STORE"), "True");
        let master = worker_variable(&job, "MASTER_PORT");
        assert_ne!(master, port.to_string());
        assert_store_serves(&format!("localhost:{port}"));
        assert_store_serves(&format!("{}:{master}", worker_variable(&job, "MASTER_ADDR")));
        assert_succeeds(job);
    }
}

#[test]
fn single_worker_runs_as_without_launcher() {
    if !is_rankrun() {
        return;
    }
    for (name, workers, has_variables) in
        [(Name::Rankrun, 1, false), (Name::Torchrun, 1, false), (Name::Rankrun, 2, true)]
    {
        let launch = Launch::standalone(name, workers).env("RANKRUN_DISTRIBUTED", "auto");
        let inherited = ["RANK", "WORLD_SIZE", "ROLE_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"];
        let launch = inherited.into_iter().fold(launch, |launch, name| launch.env(name, "9"));
        let outcome = launch.args(["--no-python", "env"]).run();
        outcome.expect_exit_code(0).expect_stdout("RANKRUN_JOB=").expect_stdout("TORCHELASTIC_ERROR_FILE=");
        let describes_job = |line: &&str| {
            let prefixes = ["RANK=", "LOCAL_", "WORLD_SIZE=", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"];
            prefixes.iter().any(|prefix| line.starts_with(prefix))
                && !line.starts_with("TORCHELASTIC_ERROR_FILE")
        };
        let stdout = outcome.stdout();
        let lines: Vec<&str> = stdout.lines().filter(describes_job).collect();
        assert_eq!(lines.len(), if has_variables { 32 } else { 0 }, "{lines:?}");
    }
}

/// A single worker joins no store, so the limit of the start does not count.
#[test]
fn rust_worker_without_variables_of_its_job_is_a_world_of_one() {
    let launch =
        Launch::standalone(Name::Rankrun, 1).args(["--distributed", "auto", "--start-timeout", "0.1"]);
    let outcome = launch.worker(["alive"]).run();
    outcome.expect_exit_code(0).expect_stdout("alive rank=0");
}

#[test]
fn disabled_store_sharing_leaves_master_port_free() {
    for name in Name::both() {
        let port = free_port();
        let job = start_c10d_job(*name, port, |launch| launch.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"));
        assert_eq!(worker_variable(&job, "TORCHELASTIC_USE_AGENT_STORE"), "False");
        let master: u16 = worker_variable(&job, "MASTER_PORT").parse().expect("a port");
        TcpListener::bind(("0.0.0.0", master)).expect("the port is free");
        assert_store_serves(&format!("localhost:{port}"));
        assert_succeeds(job);
    }
}

#[test]
fn local_addr_is_master_addr_of_workers() {
    for name in Name::both() {
        let job = start_c10d_job(*name, free_port(), |launch| launch.args(["--local-addr", "127.0.0.1"]));
        assert_eq!(worker_variable(&job, "MASTER_ADDR"), "127.0.0.1");
        assert_eq!(worker_variable(&job, "TORCHELASTIC_RUN_ID"), "none");
        assert_succeeds(job);
    }
}

#[test]
fn empty_rdzv_id_is_generated() {
    for name in Name::both() {
        let job = start_c10d_job(*name, free_port(), |launch| launch.args(["--rdzv-id="]));
        let run_id = worker_variable(&job, "TORCHELASTIC_RUN_ID");
        assert!(!run_id.is_empty() && run_id.bytes().all(|byte| byte.is_ascii_digit()), "{run_id}");
        job.wait_for_text(&run_id);
        assert_succeeds(job);
    }
}

#[test]
fn c10d_stores_survive_worker_restart() {
    for name in Name::both() {
        let port = free_port();
        let endpoint = format!("localhost:{port}");
        let launch = Launch::new(*name).args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
        let launch = launch.args(["--max-restarts", "1"]).stdin_open();
        let mut job = launch.worker(["alive", "attempt0:exit=3", "env", "read"]).start();
        job.wait_for_line("attempt=1");
        assert_store_serves(&format!("localhost:{port}"));
        assert_store_serves(&format!(
            "{}:{}",
            worker_variable(&job, "MASTER_ADDR"),
            worker_variable(&job, "MASTER_PORT")
        ));
        job.type_text("\n");
        job.wait().expect_exit_code(0);
    }
}

#[test]
fn static_endpoint_is_master_addr_and_port_of_workers() {
    for name in Name::both() {
        let port = free_port();
        let endpoint = format!("localhost:{port}");
        let launch = Launch::new(*name).args(["--rdzv-endpoint", &endpoint, "--rdzv-conf", "timeout=60"]);
        let job = launch.stdin_open().worker(["env", "read"]).start();
        assert_eq!(worker_variable(&job, "MASTER_ADDR"), "localhost");
        assert_eq!(worker_variable(&job, "MASTER_PORT"), port.to_string());
        assert_eq!(worker_variable(&job, "TORCHELASTIC_RUN_ID"), "none");
        assert_store_serves(&endpoint);
        assert_succeeds(job);
    }
}

/// Two workers with a device each: what they see, as `LOCAL_RANK RANK CUDA HIP ${local_rank}`.
#[track_caller]
fn visible_devices(launch: Launch) -> Vec<String> {
    let line = "echo $LOCAL_RANK $RANK <$CUDA_VISIBLE_DEVICES> <$HIP_VISIBLE_DEVICES> ${local_rank}";
    let launch = launch.args(["--virtual-local-rank"]);
    let outcome = launch.shell(&line.replace('<', "'<'").replace('>', "'>'")).run();
    outcome.expect_exit_code(0);
    let mut lines = outcome.stdout_lines();
    lines.sort();
    lines
}

#[test]
fn virtual_local_rank_shows_each_worker_one_device() {
    for name in Name::both() {
        let launch = || Launch::standalone(*name, 2).env("OMP_NUM_THREADS", "1");
        let cuda = launch().env("CUDA_VISIBLE_DEVICES", "3, 5");
        assert_eq!(visible_devices(cuda), ["0 0 <3> <> 0", "0 1 <5> <> 1"]);
        let hip = launch().env("CUDA_VISIBLE_DEVICES", "7").env("HIP_VISIBLE_DEVICES", "4,6,8");
        assert_eq!(visible_devices(hip), ["0 0 <4> <4> 0", "0 1 <6> <6> 1"]);
        assert_eq!(visible_devices(launch()), ["0 0 <0> <> 0", "0 1 <1> <> 1"]);
    }
}

#[test]
fn virtual_local_rank_without_device_names_local_rank() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("CUDA_VISIBLE_DEVICES", "3");
        let outcome = launch.args(["--virtual-local-rank"]).worker(["print=started"]).run();
        outcome
            .expect_exit_code(1)
            .expect_stderr("CUDA_VISIBLE_DEVICES")
            .expect_stderr("1")
            .expect_absent("started");
        if !is_torchrun() {
            outcome.expect_stderr("local rank 1").expect_stderr("hint:");
        }
    }
}

/// A script for `--run-path`, and the launch of it.
fn run_path_launch(name: Name, scratch: &Scratch, text: &str) -> (Launch, String) {
    let script = scratch.file("train.py", text, 0o644);
    let launch = Launch::standalone(name, 1).with_torch().args(["--run-path"]);
    (launch, script)
}

#[test]
fn run_path_script_runs_as_main() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let text = "import sys; print(__name__, sys.argv, flush=True); sys.exit(0)\n";
        let (launch, script) = run_path_launch(*name, &scratch, text);
        let outcome = launch.args(["--no-python", "-m", &script, "--lr", "${local_rank}"]).run();
        outcome.expect_exit_code(0).expect_stdout(&format!("__main__ ['{script}', '--lr', '0']\n"));
    }
}

#[test]
fn run_path_exception_is_recorded_in_error_file() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let (launch, script) = run_path_launch(*name, &scratch, "raise ValueError('out of data')\n");
        let logs = scratch.folder("logs", 0o755);
        let outcome = launch.args(["--log-dir", &logs, &script]).run();
        outcome.expect_exit_code(1);
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
fn listed_signal_stops_the_job() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", " SIGTERM ,SIGUSR1"]);
        let job = launch.worker(["catch=SIGUSR1", "env", "alive", "signal=SIGUSR1", "exit=0"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGUSR1);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(128 + Signal::SIGUSR1 as i32));
        outcome.expect_stdout("TORCHELASTIC_SIGNALS_TO_HANDLE= SIGTERM ,SIGUSR1\n");
        assert_eq!(outcome.lines_with("got SIGUSR1 rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn unknown_signal_name_is_reported() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--signals-to-handle", "SIGTERM,SIGFOO"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.wait_for_line("alive rank=");
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143)).expect_stderr("SIGFOO").expect_stdout("got SIGTERM rank=0");
    }
}

#[test]
fn unhandleable_signals_are_reported() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", "SIGKILL,SIGCHLD,SIGWINCH"]);
        let outcome = launch.shell("true").run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.lines_with("which a launcher cannot handle").len(), 3, "{outcome}");
    }
}

#[test]
fn unlisted_signals_are_forwarded_under_rankrun_name() {
    let signals = ["catch=SIGUSR1,SIGUSR2", "alive", "signal=SIGUSR1", "signal=SIGUSR2"];
    let launch = Launch::standalone(Name::Rankrun, 2).stdin_open();
    let mut job = launch.worker(signals.into_iter().chain(["read", "print=trained"])).start();
    job.wait_for_lines("alive rank=", 2);
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        job.signal(signal);
        job.wait_for_lines(&format!("got {signal} rank="), 2);
    }
    job.close_stdin();
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("trained").len(), 2, "{outcome}");
}

#[test]
fn forwarded_signal_does_not_reach_worker_children() {
    let signals = ["catch=SIGUSR1", "helper=plain", "alive", "signal=SIGUSR1", "read", "exit=3"];
    let mut job = Launch::standalone(Name::Rankrun, 1).stdin_open().worker(signals).start();
    let line = job.wait_for_line("process=plain");
    let helper = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
    job.wait_for_line("alive rank=0");
    job.signal(Signal::SIGUSR1);
    job.wait_for_line("got SIGUSR1 rank=0");
    assert!(!is_zombie_or_gone(helper), "{job}");
    job.close_stdin();
    job.wait().expect_exit_code(3);
}

#[test]
fn stdin_variable_is_not_passed_to_workers() {
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_STDIN", "0").env("RANKRUN_GRACE", "3");
    let outcome = launch.worker(["env"]).run();
    outcome.expect_exit_code(0).expect_stdout(" RANKRUN_GRACE=3").expect_absent("RANKRUN_STDIN");
}

/// As SLURM does it: a warning, and the end right behind it.
#[test]
fn stop_signal_right_after_forwarded_signal_is_handled() {
    let launch = Launch::standalone(Name::Rankrun, 1);
    let job = launch.worker(["catch=SIGUSR1,SIGTERM", "alive", "signal=SIGTERM", "exit=0"]).start();
    job.wait_for_line("alive rank=");
    job.signal(Signal::SIGUSR1);
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143).expect_stdout("got SIGTERM rank=0");
}

#[test]
fn unlisted_signal_ends_launcher_under_torchrun_name() {
    let job = Launch::standalone(Name::Torchrun, 2).worker(["alive", "forever"]).start();
    job.wait_for_lines("alive rank=", 2);
    job.signal(Signal::SIGUSR1);
    job.wait().expect_signal(Signal::SIGUSR1);
}

#[test]
fn unlisted_sigint_stops_the_job() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--signals-to-handle", "SIGTERM"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        job.wait_for_lines("alive rank=", 2);
        job.signal(Signal::SIGINT);
        let outcome = job.wait();
        match name {
            Name::Rankrun => outcome.expect_exit_code(130),
            Name::Torchrun | Name::Reference => outcome.expect_signal(Signal::SIGINT),
        };
        assert_eq!(outcome.lines_with("got SIGTERM rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn torch_event_handlers_are_accepted() {
    for name in Name::both() {
        for handler in ["null", "dynamic_rendezvous", "console"] {
            let args: [OsString; 2] = ["--event-log-handler".into(), handler.into()];
            Launch::standalone(*name, 1).args(args).shell("true").run().expect_exit_code(0);
        }
    }
}
