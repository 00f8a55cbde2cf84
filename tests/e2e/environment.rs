//! What each worker finds in its environment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};

use harness::{Launch, Name, Outcome, free_port, only_ours, oracle};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

type Variables = BTreeMap<String, String>;

/// What torchrun 2.15 sets in a plain job of several workers.
const OF_TORCHRUN: [&str; 19] = [
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
const OF_OURS: [&str; 4] = ["RANKRUN_JOB", "RANKRUN_GENERATION", "RANKRUN_DEVICE", "RANKRUN_NESTING"];

/// What [`Launch`] itself gives, and what Python adds where there is no locale.
const GIVEN: [&str; 8] =
    ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "TERM", "RUST_BACKTRACE", "RANKRUN_E2E_MARK", "LC_CTYPE"];

#[track_caller]
fn of_rank(outcome: &Outcome, rank: usize) -> Variables {
    let prefix = format!("env{rank} ");
    let lines = outcome.out_lines();
    let variables = lines.iter().filter_map(|line| line.strip_prefix(&prefix)?.split_once('='));
    let variables: Variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert!(!variables.is_empty(), "rank {rank} said nothing\n{outcome}");
    variables
}

#[track_caller]
fn alone(launch: Launch) -> Variables {
    let outcome = launch.worker(["env"]).run();
    outcome.exits(0);
    of_rank(&outcome, 0)
}

#[test]
fn every_variable_has_its_value() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--role", "trainer", "--max-restarts", "3"]);
        let outcome = launch.worker(["env"]).run();
        outcome.exits(0);
        for rank in 0..2 {
            let variables = of_rank(&outcome, rank);
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
fn nothing_else_is_added_and_nothing_is_missing() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["env"]).run();
        outcome.exits(0);
        let mut expected: BTreeSet<&str> = OF_TORCHRUN.into();
        if !oracle() {
            expected.extend(OF_OURS);
        }
        for rank in 0..2 {
            let variables = of_rank(&outcome, rank);
            let names: BTreeSet<&str> = variables.keys().map(String::as_str).collect();
            let added: BTreeSet<&str> = names.into_iter().filter(|name| !GIVEN.contains(name)).collect();
            assert_eq!(added, expected, "rank {rank}\n{outcome}");
        }
    }
}

#[test]
fn our_own_variables_mark_the_job() {
    if !only_ours() {
        return;
    }
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).worker(["env"]).run();
        let (first, second) = (of_rank(&outcome, 0), of_rank(&outcome, 1));
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
    assert_eq!(lengths, [8, 4, 4, 4, 12], "`{text}` is no UUID");
}

#[test]
fn the_launcher_overwrites_what_the_user_had() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("RANK", "9").env("MASTER_ADDR", "z.invalid");
        let variables = alone(launch.env("TORCHELASTIC_USE_AGENT_STORE", "False"));
        assert_eq!(variables["RANK"], "0");
        assert_ne!(variables["MASTER_ADDR"], "z.invalid");
        assert_eq!(variables["TORCHELASTIC_USE_AGENT_STORE"], "True");
    }
}

#[test]
fn other_variables_of_the_user_reach_the_workers() {
    for name in Name::both() {
        let variables = alone(Launch::standalone(*name, 1).env("PET_NNODES", "1").env("MY_DATA", "a b=c"));
        assert_eq!(variables["PET_NNODES"], "1");
        assert_eq!(variables["MY_DATA"], "a b=c");
    }
}

#[test]
fn under_torchruns_name_several_workers_get_one_openmp_thread() {
    let outcome = Launch::standalone(Name::Torchrun, 2).worker(["env"]).run();
    outcome.exits(0).complains("Setting OMP_NUM_THREADS environment variable for each process to be 1 in");
    assert_eq!(of_rank(&outcome, 1)["OMP_NUM_THREADS"], "1");
}

#[test]
fn under_our_own_name_several_workers_share_the_cpus() {
    let mask = sched_getaffinity(Pid::this()).expect("a process may ask for its own CPUs");
    let cpus = (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu) == Ok(true)).count();
    let outcome = Launch::standalone(Name::Rankrun, 2).worker(["env"]).run();
    let threads = (cpus / 2).max(1).to_string();
    assert_eq!(of_rank(&outcome, 1)["OMP_NUM_THREADS"], threads);
    outcome.exits(0).complains(&format!("`OMP_NUM_THREADS={threads}`: {cpus} CPU"));

    let one_cpu = Launch::standalone(Name::Rankrun, 2).under(["taskset", "--cpu-list", "0"]);
    let outcome = one_cpu.worker(["env"]).run();
    outcome.exits(0).complains("`OMP_NUM_THREADS=1`: 1 CPU for 2 workers");
    assert_eq!(of_rank(&outcome, 0)["OMP_NUM_THREADS"], "1");
}

#[test]
fn one_worker_keeps_its_openmp_threads() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["env"]).run();
        outcome.exits(0).never_says("OMP_NUM_THREADS");
    }
}

#[test]
fn the_users_openmp_threads_are_kept() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).env("OMP_NUM_THREADS", "5").env("RANKRUN_QUIET", "1");
        let outcome = launch.worker(["env"]).run();
        assert_eq!(of_rank(&outcome, 1)["OMP_NUM_THREADS"], "5");
        assert_eq!(outcome.err(), "", "a warning for nothing");
    }
}

#[test]
fn the_users_nccl_error_handling_is_kept() {
    for name in Name::both() {
        let variables = alone(Launch::standalone(*name, 1).env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"));
        assert_eq!(variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
    }
}

#[test]
fn the_library_of_nccl_is_what_rust_workers_load() {
    if !only_ours() {
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
        assert_eq!(alone(launch)["RANKRUN_NCCL"], file);
    }
    // Without the option the user's own stands.
    let launch = Launch::standalone(Name::Rankrun, 1).env("RANKRUN_NCCL", "/of/the/user");
    assert_eq!(alone(launch)["RANKRUN_NCCL"], "/of/the/user");
    let nowhere = Launch::standalone(Name::Rankrun, 1).args(["--nccl-lib", "/nowhere/libnccl.so.2"]);
    let outcome = nowhere.worker(["env"]).run();
    outcome.exits(1).complains("`--nccl-lib` is `/nowhere/libnccl.so.2`, which is not a file");
    let explain = Launch::new(Name::Rankrun).args(["explain", "--nccl-lib", &file]);
    let outcome = explain.worker(["env"]).run();
    let line = outcome.exits(0).out_lines().into_iter().find(|line| line.contains("RANKRUN_NCCL"));
    let line = line.unwrap_or_else(|| panic!("nothing is said of it\n{outcome}"));
    assert!(line.contains(&file) && line.contains("--nccl-lib"), "{line}");
}

#[test]
fn a_master_port_is_what_the_workers_see() {
    for name in Name::both() {
        let port = free_port().to_string();
        let variables = alone(Launch::new(*name).args(["--master-port", &port]));
        assert_eq!(variables["MASTER_ADDR"], "127.0.0.1");
        assert_eq!(variables["MASTER_PORT"], port);
        assert_eq!(variables["TORCHELASTIC_RUN_ID"], "none");
    }
}

#[test]
fn a_run_id_counts_beside_a_master_port() {
    for name in Name::both() {
        let port = free_port().to_string();
        let launch = Launch::new(*name).args(["--master-port", &port, "--rdzv-id", "night-7"]);
        assert_eq!(alone(launch)["TORCHELASTIC_RUN_ID"], "night-7");
    }
}

#[test]
fn without_any_option_the_run_id_is_random() {
    for name in Name::both() {
        let variables = alone(Launch::new(*name));
        assert_uuid(&variables["TORCHELASTIC_RUN_ID"]);
        assert_ne!(variables["MASTER_PORT"], "29500");
    }
}

#[test]
fn torchrun_drops_an_id_and_an_address_without_a_port() {
    let options = ["--rdzv-id", "7", "--master-addr", "h.invalid"];
    let variables = alone(Launch::new(Name::Torchrun).args(options));
    assert_uuid(&variables["TORCHELASTIC_RUN_ID"]);
    assert_ne!(variables["MASTER_ADDR"], "h.invalid");
}

#[test]
fn we_take_an_id_at_its_word() {
    assert_eq!(alone(Launch::new(Name::Rankrun).args(["--rdzv-id", "7"]))["TORCHELASTIC_RUN_ID"], "7");
}

#[test]
fn a_job_of_one_node_is_on_the_loopback() {
    if only_ours() {
        for name in Name::both() {
            assert_eq!(alone(Launch::standalone(*name, 1))["MASTER_ADDR"], "127.0.0.1");
        }
    }
}

#[test]
fn a_local_address_is_what_the_workers_see() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).args(["--local-addr", "localhost"]);
        assert_eq!(alone(launch)["MASTER_ADDR"], "localhost");
    }
}

#[test]
fn without_sharing_the_port_is_left_to_the_workers() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        let mut job = launch.stdin_open().worker(["env", "read"]).start();
        job.line("TORCHELASTIC_USE_AGENT_STORE=False");
        let line = job.line(" MASTER_PORT=");
        let port: u16 = line.rsplit('=').next().and_then(|port| port.parse().ok()).expect("a port");
        // The worker would open its store here.
        TcpListener::bind(("0.0.0.0", port)).expect("the port is free");
        job.type_text("\n");
        job.wait().exits(0);
    }
}

#[test]
fn the_store_listens_where_the_workers_are_told() {
    for name in Name::both() {
        let mut job = Launch::standalone(*name, 1).stdin_open().worker(["env", "read"]).start();
        let port = job.line(" MASTER_PORT=");
        let host = job.line(" MASTER_ADDR=");
        let of = |line: &str| line.split_once('=').map(|(_, value)| value.to_owned()).expect("a value");
        TcpStream::connect(format!("{}:{}", of(&host), of(&port))).expect("the store accepts");
        job.type_text("\n");
        job.wait().exits(0);
    }
}

#[test]
fn without_a_log_tree_the_error_file_is_empty() {
    for name in Name::both() {
        let variables = alone(Launch::standalone(*name, 1).args(["--log-dir", "/dev/null"]));
        assert_eq!(variables["TORCHELASTIC_ERROR_FILE"], "");
    }
}

#[test]
fn a_relative_log_folder_stays_relative_as_under_torchrun() {
    let launch = Launch::standalone(Name::Torchrun, 1);
    let here = launch.temporary();
    let variables = alone(launch.cwd(here).args(["--log-dir", "logs"]));
    let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
    assert!(error_file.starts_with("logs/"), "{error_file}");
}

#[test]
fn a_relative_log_folder_can_be_found_from_anywhere() {
    let launch = Launch::standalone(Name::Rankrun, 1);
    let here = launch.temporary();
    let expected = here.join("logs").to_string_lossy().into_owned();
    let variables = alone(launch.cwd(here).args(["--log-dir", "logs"]));
    let error_file = &variables["TORCHELASTIC_ERROR_FILE"];
    assert!(error_file.starts_with(&expected), "{error_file}");
}

#[test]
fn each_job_has_a_port_of_its_own() {
    let name = Name::both()[0];
    let start = || Launch::standalone(name, 1).stdin_open().worker(["env", "read"]).start();
    let jobs = [start(), start()];
    let ports = jobs.each_ref().map(|job| job.line(" MASTER_PORT="));
    assert_ne!(ports[0], ports[1]);
    for mut job in jobs {
        job.close_stdin();
        job.wait().exits(0);
    }
}
