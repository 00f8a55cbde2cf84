//! What each worker finds in its environment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};

use harness::{Launch, Name, Outcome, free_port, is_rankrun, is_torchrun};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

type Variables = BTreeMap<String, String>;

/// What torchrun 2.15 sets in a plain job of several workers.
const TORCHRUN_VARIABLES: [&str; 19] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
];

/// What only we add.
const RANKRUN_VARIABLES: [&str; 4] =
    ["RANKRUN_JOB", "RANKRUN_GENERATION", "RANKRUN_DEVICE", "RANKRUN_NESTING"];

/// What [`Launch`] itself gives, and what Python adds where there is no locale.
const HARNESS_VARIABLES: [&str; 8] =
    ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "TERM", "RUST_BACKTRACE", "RANKRUN_E2E_MARK", "LC_CTYPE"];

#[track_caller]
fn variables_of_rank(outcome: &Outcome, rank: usize) -> Variables {
    let prefix = format!("env{rank} ");
    let lines = outcome.stdout_lines();
    let variables = lines.iter().filter_map(|line| line.strip_prefix(&prefix)?.split_once('='));
    let variables: Variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert!(!variables.is_empty(), "rank {rank} said nothing\n{outcome}");
    variables
}

#[track_caller]
fn run_single_worker(launch: Launch) -> Variables {
    let outcome = launch.worker(["env"]).run();
    outcome.expect_exit_code(0);
    variables_of_rank(&outcome, 0)
}

#[test]
fn torchrun_variables_have_expected_values() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--role", "trainer", "--max-restarts", "3"]);
        let outcome = launch.worker(["env"]).run();
        outcome.expect_exit_code(0);
        for rank in 0..2 {
            let variables = variables_of_rank(&outcome, rank);
            let expected = [
                ("RANK", rank.to_string()),
                ("LOCAL_RANK", rank.to_string()),
                ("WORLD_SIZE", "2".into()),
                ("LOCAL_WORLD_SIZE", "2".into()),
                ("GROUP_RANK", "0".into()),
                ("GROUP_WORLD_SIZE", "1".into()),
                ("ROLE_NAME", "trainer".into()),
                ("ROLE_RANK", rank.to_string()),
                ("ROLE_WORLD_SIZE", "2".into()),
                ("TORCHELASTIC_RESTART_COUNT", "0".into()),
                ("TORCHELASTIC_MAX_RESTARTS", "3".into()),
                ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
                ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT".into()),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".into()),
            ];
            for (variable, value) in expected {
                assert_eq!(variables.get(variable), Some(&value), "{variable} of rank {rank}\n{outcome}");
            }
            let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
            assert!(error_file.ends_with(&format!("/attempt_0/{rank}/error.json")), "{error_file}");
        }
    }
}

#[test]
fn worker_variables_are_exactly_the_documented_ones() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["env"]).run();
        outcome.expect_exit_code(0);
        let mut expected: BTreeSet<&str> = TORCHRUN_VARIABLES.into();
        if !is_torchrun() {
            expected.extend(RANKRUN_VARIABLES);
        }
        if *name == Name::Rankrun && is_rankrun() {
            expected.extend(["RANKRUN_HEARTBEAT", "RANKRUN_PROGRESS_PAGE"]);
        }
        for rank in 0..2 {
            let variables = variables_of_rank(&outcome, rank);
            let names: BTreeSet<&str> = variables.keys().map(String::as_str).collect();
            let added: BTreeSet<&str> =
                names.into_iter().filter(|name| !HARNESS_VARIABLES.contains(name)).collect();
            assert_eq!(added, expected, "rank {rank}\n{outcome}");
        }
    }
}

#[test]
fn rankrun_variables_identify_job_and_generation() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["env"]).run();
        let (first, second) = (variables_of_rank(&outcome, 0), variables_of_rank(&outcome, 1));
        assert_eq!(first["RANKRUN_JOB"], second["RANKRUN_JOB"]);
        assert_uuid(&first["RANKRUN_JOB"]);
        assert_eq!(first["RANKRUN_GENERATION"], "0");
        let (device, other) = (first.get("RANKRUN_DEVICE"), second.get("RANKRUN_DEVICE"));
        assert!(device.is_none() || device != other, "{outcome}");
    }
}

#[track_caller]
fn assert_uuid(text: &str) {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    assert_eq!(lengths, [8, 4, 4, 4, 12], "`{text}` is not a UUID");
}

#[test]
fn launcher_variables_overwrite_user_variables() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("RANK", "9").env("MASTER_ADDR", "z.invalid");
        let variables = run_single_worker(launch.env("TORCHELASTIC_USE_AGENT_STORE", "False"));
        assert_eq!(variables["RANK"], "0");
        assert_ne!(variables["MASTER_ADDR"], "z.invalid");
        assert_eq!(variables["TORCHELASTIC_USE_AGENT_STORE"], "True");
    }
}

#[test]
fn unrelated_user_variables_reach_workers() {
    for name in Name::both() {
        let variables =
            run_single_worker(Launch::standalone(*name, 1).env("PET_NNODES", "1").env("MY_DATA", "a b=c"));
        assert_eq!(variables["PET_NNODES"], "1");
        assert_eq!(variables["MY_DATA"], "a b=c");
    }
}

#[test]
fn omp_threads_of_several_workers_are_one_under_torchrun_name() {
    let outcome = Launch::standalone(Name::Torchrun, 2).worker(["env"]).run();
    outcome
        .expect_exit_code(0)
        .expect_stderr("Setting OMP_NUM_THREADS environment variable for each process to be 1 in");
    assert_eq!(variables_of_rank(&outcome, 1)["OMP_NUM_THREADS"], "1");
}

#[test]
fn omp_threads_of_several_workers_divide_cpus_under_rankrun_name() {
    let mask = sched_getaffinity(Pid::this()).expect("a process may ask for its own CPUs");
    let cpus = (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu) == Ok(true)).count();
    let outcome = Launch::standalone(Name::Rankrun, 2).worker(["env"]).run();
    let threads = (cpus / 2).max(1).to_string();
    assert_eq!(variables_of_rank(&outcome, 1)["OMP_NUM_THREADS"], threads);
    outcome.expect_exit_code(0).expect_stderr(&format!("`OMP_NUM_THREADS={threads}`: {cpus} CPU"));

    let one_cpu = Launch::standalone(Name::Rankrun, 2).under(["taskset", "--cpu-list", "0"]);
    let outcome = one_cpu.worker(["env"]).run();
    outcome.expect_exit_code(0).expect_stderr("`OMP_NUM_THREADS=1`: 1 CPU for 2 workers");
    assert_eq!(variables_of_rank(&outcome, 0)["OMP_NUM_THREADS"], "1");
}

#[test]
fn omp_threads_of_single_worker_are_not_set() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["env"]).run();
        outcome.expect_exit_code(0).expect_absent("OMP_NUM_THREADS");
    }
}

#[test]
fn omp_threads_set_by_user_are_kept() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("OMP_NUM_THREADS", "5").env("RANKRUN_QUIET", "1");
        let outcome = launch.worker(["env"]).run();
        assert_eq!(variables_of_rank(&outcome, 1)["OMP_NUM_THREADS"], "5");
        assert_eq!(outcome.stderr(), "", "a warning for nothing");
    }
}

#[test]
fn nccl_error_handling_set_by_user_is_kept() {
    for name in Name::both() {
        let variables =
            run_single_worker(Launch::standalone(*name, 1).env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"));
        assert_eq!(variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
    }
}

#[test]
fn nccl_lib_option_sets_library_of_rust_workers() {
    if !is_rankrun() {
        return;
    }
    // No program loads it here: any file will do.
    let file = std::env::current_exe().expect("this program is a file").display().to_string();
    for (name, option, variable) in [
        (Name::Rankrun, Some(file.as_str()), None),
        (Name::Rankrun, None, Some(file.as_str())),
        (Name::Torchrun, None, Some(file.as_str())),
    ] {
        let launch = Launch::standalone(name, 1).args(option.iter().flat_map(|path| ["--nccl-lib", path]));
        let launch = launch.env("RANKRUN_NCCL", "/of/the/user");
        let launch = variable.into_iter().fold(launch, |launch, path| launch.env("RANKRUN_NCCL_LIB", path));
        assert_eq!(run_single_worker(launch)["RANKRUN_NCCL"], file);
    }
    // Without the option the user's own stands.
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_NCCL", "/of/the/user");
    assert_eq!(run_single_worker(launch)["RANKRUN_NCCL"], "/of/the/user");
    let nowhere = Launch::standalone(Name::Rankrun, 1).args(["--nccl-lib", "/nowhere/libnccl.so.2"]);
    let outcome = nowhere.worker(["env"]).run();
    outcome.expect_exit_code(1).expect_stderr("`--nccl-lib` is `/nowhere/libnccl.so.2`, which is not a file");
    let explain = Launch::new(Name::Rankrun).args(["explain", "--nccl-lib", &file]);
    let outcome = explain.worker(["env"]).run();
    let line =
        outcome.expect_exit_code(0).stdout_lines().into_iter().find(|line| line.contains("RANKRUN_NCCL"));
    let line = line.unwrap_or_else(|| panic!("nothing is said of it\n{outcome}"));
    assert!(line.contains(&file) && line.contains("--nccl-lib"), "{line}");
}

#[test]
fn master_port_option_reaches_workers() {
    for name in Name::both() {
        let port = free_port().to_string();
        let variables = run_single_worker(Launch::new(*name).args(["--master-port", &port]));
        assert_eq!(variables["MASTER_ADDR"], "127.0.0.1");
        assert_eq!(variables["MASTER_PORT"], port);
        assert_eq!(variables["TORCHELASTIC_RUN_ID"], "none");
    }
}

#[test]
fn run_id_with_master_port_is_kept() {
    for name in Name::both() {
        let port = free_port().to_string();
        let launch = Launch::new(*name).args(["--master-port", &port, "--rdzv-id", "night-7"]);
        assert_eq!(run_single_worker(launch)["TORCHELASTIC_RUN_ID"], "night-7");
    }
}

#[test]
fn run_id_without_options_is_random() {
    for name in Name::both() {
        let variables = run_single_worker(Launch::new(*name));
        assert_uuid(&variables["TORCHELASTIC_RUN_ID"]);
        assert_ne!(variables["MASTER_PORT"], "29500");
    }
}

#[test]
fn run_id_without_port_is_ignored_under_torchrun_name() {
    let options = ["--rdzv-id", "7", "--master-addr", "h.invalid"];
    let variables = run_single_worker(Launch::new(Name::Torchrun).args(options));
    assert_uuid(&variables["TORCHELASTIC_RUN_ID"]);
    assert_ne!(variables["MASTER_ADDR"], "h.invalid");
}

#[test]
fn run_id_without_port_is_kept_under_rankrun_name() {
    assert_eq!(
        run_single_worker(Launch::new(Name::Rankrun).args(["--rdzv-id", "7"]))["TORCHELASTIC_RUN_ID"],
        "7"
    );
}

#[test]
fn single_node_job_uses_loopback_address() {
    if is_rankrun() {
        for name in Name::both() {
            assert_eq!(run_single_worker(Launch::standalone(*name, 1))["MASTER_ADDR"], "127.0.0.1");
        }
    }
}

#[test]
fn local_addr_option_reaches_workers() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--local-addr", "localhost"]);
        assert_eq!(run_single_worker(launch)["MASTER_ADDR"], "localhost");
    }
}

#[test]
fn store_sharing_disabled_leaves_port_free_for_workers() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        let mut job = launch.stdin_open().worker(["env", "read"]).start();
        job.wait_for_line("TORCHELASTIC_USE_AGENT_STORE=False");
        let line = job.wait_for_line(" MASTER_PORT=");
        let port: u16 = line.rsplit('=').next().and_then(|port| port.parse().ok()).expect("a port");
        // The worker would open its store here.
        TcpListener::bind(("0.0.0.0", port)).expect("the port is free");
        job.type_text("\n");
        job.wait().expect_exit_code(0);
    }
}

#[test]
fn store_listens_at_master_addr_and_port() {
    for name in Name::both() {
        let mut job = Launch::standalone(*name, 1).stdin_open().worker(["env", "read"]).start();
        let port = job.wait_for_line(" MASTER_PORT=");
        let host = job.wait_for_line(" MASTER_ADDR=");
        let of = |line: &str| line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value");
        TcpStream::connect(format!("{}:{}", of(&host), of(&port))).expect("the store accepts");
        job.type_text("\n");
        job.wait().expect_exit_code(0);
    }
}

#[test]
fn error_file_variable_without_log_tree_is_empty() {
    for name in Name::both() {
        let variables = run_single_worker(Launch::standalone(*name, 1).args(["--log-dir", "/dev/null"]));
        assert_eq!(variables["TORCHELASTIC_ERROR_FILE"], "");
    }
}

#[test]
fn relative_log_dir_stays_relative_under_torchrun_name() {
    let launch = Launch::standalone(Name::Torchrun, 1);
    let here = launch.temporary();
    let variables = run_single_worker(launch.cwd(here).args(["--log-dir", "logs"]));
    let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
    assert!(error_file.starts_with("logs/"), "{error_file}");
}

#[test]
fn relative_log_dir_becomes_absolute_under_rankrun_name() {
    let launch = Launch::standalone(Name::Rankrun, 1);
    let here = launch.temporary();
    let expected = here.join("logs").to_string_lossy().into_owned();
    let variables = run_single_worker(launch.cwd(here).args(["--log-dir", "logs"]));
    let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
    assert!(error_file.starts_with(&expected), "{error_file}");
}

#[test]
fn concurrent_jobs_have_different_ports() {
    let name = Name::both()[0];
    let start = || Launch::standalone(name, 1).stdin_open().worker(["env", "read"]).start();
    let jobs = [start(), start()];
    let ports = jobs.each_ref().map(|job| job.wait_for_line(" MASTER_PORT="));
    assert_ne!(ports[0], ports[1]);
    for mut job in jobs {
        job.close_stdin();
        job.wait().expect_exit_code(0);
    }
}
