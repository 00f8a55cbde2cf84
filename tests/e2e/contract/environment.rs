//! Appendix A, "Environment".

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Outcome, Scratch, field, free_port};

use super::pair::{Pair, run_both_expect_equal};
use super::report::path_below_run;

type Variables = BTreeMap<String, String>;

/// What [`Launch`] gives to every launcher, and what Python adds where there is no locale.
const HARNESS_VARIABLES: [&str; 8] =
    ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "TERM", "RUST_BACKTRACE", "RANKRUN_E2E_MARK", "LC_CTYPE"];

/// Section 2.1 of the contract: what a worker of a plain job of several finds.
const TORCHRUN_VARIABLES: [&str; 19] = [
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "WORLD_SIZE",
];

/// All that a launcher laid over the environment of this rank. Ours adds `RANKRUN_*` under every name.
#[track_caller]
fn launcher_variables(outcome: &Outcome, rank: usize) -> Variables {
    let prefix = format!("env{rank} ");
    let lines = outcome.stdout_lines();
    let all = lines.iter().filter_map(|line| line.strip_prefix(&prefix)?.split_once('='));
    let set_by_launcher =
        all.filter(|(name, _)| !HARNESS_VARIABLES.contains(name) && !name.starts_with("RANKRUN_"));
    let set_by_launcher: Variables =
        set_by_launcher.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert!(!set_by_launcher.is_empty(), "rank {rank} said nothing\n{outcome}");
    set_by_launcher
}

/// The variables with a word for each value that is another one in each run. The address is a name of the machine
/// with torchrun, and 127.0.0.1 with ours.
#[track_caller]
fn normalized_variables(outcome: &Outcome, rank: usize) -> Variables {
    let mut variables = launcher_variables(outcome, rank);
    for (name, value) in &mut variables {
        match name.as_str() {
            "MASTER_ADDR" => "ADDRESS".clone_into(value),
            "MASTER_PORT" if value.parse().is_ok_and(|port: u16| port > 0 && port != 29_500) => {
                "PORT".clone_into(value);
            }
            "TORCHELASTIC_RUN_ID" if is_uuid(value) => "UUID".clone_into(value),
            "TORCHELASTIC_ERROR_FILE" if !value.is_empty() => *value = path_below_run(value),
            _ => {}
        }
    }
    variables
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.chars().all(|letter| letter == '-' || letter.is_ascii_hexdigit())
}

#[track_caller]
fn env_pair(launch: impl Fn(Name) -> Launch + Sync) -> Pair {
    Pair::run_both(|name| {
        let outcome = launch(name).worker(["env", "ids"]).run();
        outcome.expect_exit_code(0);
        outcome
    })
}

/// Two workers without any option.
pub(super) fn two_workers_pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| env_pair(|name| Launch::standalone(name, 2)))
}

/// A launch without any option.
fn no_option_pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| env_pair(Launch::new))
}

/// Two workers under a launcher with some of the variables already in its environment.
fn preset_env_pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        env_pair(|name| {
            let launch = Launch::standalone(name, 2).env("RANK", "9").env("MASTER_ADDR", "z.invalid");
            let launch = launch.env("TORCHELASTIC_USE_AGENT_STORE", "False").env("OMP_NUM_THREADS", "5");
            launch.env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        })
    })
}

#[test]
fn env_complete() {
    let ranks =
        two_workers_pair().expect_equal(|outcome| [0, 1].map(|rank| normalized_variables(outcome, rank)));
    for (rank, found) in ranks.iter().enumerate() {
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, TORCHRUN_VARIABLES);
        let own = ["RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"];
        let shared = found.iter().filter(|(name, _)| !own.contains(&name.as_str()));
        assert!(shared.clone().all(|(name, value)| ranks[0][name] == *value), "{ranks:?}");
        for name in &own[..3] {
            assert_eq!(found[*name], rank.to_string());
        }
        assert_eq!(found["TORCHELASTIC_ERROR_FILE"], format!("attempt_0/{rank}/error.json"));
        assert_eq!((found["WORLD_SIZE"].as_str(), found["LOCAL_WORLD_SIZE"].as_str()), ("2", "2"));
        assert_eq!(found["TORCHELASTIC_USE_AGENT_STORE"], "True");
        assert_eq!((found["MASTER_PORT"].as_str(), found["TORCHELASTIC_RUN_ID"].as_str()), ("PORT", "UUID"));
    }
    for outcome in [&two_workers_pair().rankrun, &two_workers_pair().torchrun] {
        let of = |name: &str| [0, 1].map(|rank| launcher_variables(outcome, rank)[name].clone());
        for name in ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"] {
            let [first, second] = of(name);
            assert_eq!(first, second, "{name} differs between the ranks\n{outcome}");
        }
    }
}

#[test]
fn env_overwrites() {
    let first = preset_env_pair().expect_equal(|outcome| normalized_variables(outcome, 0));
    assert_eq!((first["RANK"].as_str(), first["TORCHELASTIC_USE_AGENT_STORE"].as_str()), ("0", "True"));
    for outcome in [&preset_env_pair().rankrun, &preset_env_pair().torchrun] {
        outcome.expect_absent("z.invalid");
    }
}

/// Whether the launcher speaks of the variable that it sets.
fn has_omp_warning(outcome: &Outcome) -> bool {
    outcome.stderr().contains("OMP_NUM_THREADS")
}

#[test]
fn omp_default() {
    let values = two_workers_pair().expect_equal(|outcome| {
        (launcher_variables(outcome, 1)["OMP_NUM_THREADS"].clone(), has_omp_warning(outcome))
    });
    assert_eq!(values, ("1".to_owned(), true));
    let values = no_option_pair().expect_equal(|outcome| {
        (launcher_variables(outcome, 0).contains_key("OMP_NUM_THREADS"), has_omp_warning(outcome))
    });
    assert_eq!(values, (false, false));
}

#[test]
fn omp_kept() {
    let observed = preset_env_pair().expect_equal(|outcome| {
        (launcher_variables(outcome, 1)["OMP_NUM_THREADS"].clone(), has_omp_warning(outcome))
    });
    assert_eq!(observed, ("5".to_owned(), false));
}

#[test]
fn nccl_async() {
    let value = |outcome: &Outcome| launcher_variables(outcome, 0)["TORCH_NCCL_ASYNC_ERROR_HANDLING"].clone();
    assert_eq!(two_workers_pair().expect_equal(value), "1");
    assert_eq!(preset_env_pair().expect_equal(value), "0");
}

#[test]
fn static_master() {
    let port = [free_port(), free_port()].map(|port| port.to_string());
    let mine = |name| if name == Name::Reference { &port[0] } else { &port[1] };
    let pair = env_pair(|name| Launch::new(name).args(["--master-port", mine(name)]));
    for (outcome, port) in [(&pair.rankrun, &port[1]), (&pair.torchrun, &port[0])] {
        let found = launcher_variables(outcome, 0);
        assert_eq!((&found["MASTER_PORT"], found["MASTER_ADDR"].as_str()), (port, "127.0.0.1"));
    }
    assert_eq!(pair.expect_equal(|outcome| normalized_variables(outcome, 0))["TORCHELASTIC_RUN_ID"], "none");
}

#[test]
fn implicit_standalone() {
    let found = no_option_pair().expect_equal(|outcome| normalized_variables(outcome, 0));
    assert_eq!((found["MASTER_PORT"].as_str(), found["TORCHELASTIC_RUN_ID"].as_str()), ("PORT", "UUID"));
}

/// Where a worker says that its store is.
#[track_caller]
fn wait_for_master_port(job: &Job) -> u16 {
    let line = job.wait_for_line(" MASTER_PORT=");
    line.rsplit('=').next().and_then(|port| port.parse().ok()).expect("a port is a number")
}

/// Whether a store answers there as section 6.2 of the contract says.
#[track_caller]
fn is_store_at(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a listener is there");
    // Where no name server answers, torch's store looks up our address for 10 s first.
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a timeout");
    stream.write_all(b"\x00\xCE\xF7\x85\x3C").expect("the store reads");
    stream.write_all(b"\x0D\x39\x05\x00\x00").expect("the store reads");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).is_ok() && answer == *b"\x39\x05\x00\x00"
}

#[test]
fn c10d_master() {
    let pair = Pair::run_both(|name| {
        let (scratch, endpoint) = (Scratch::new(), free_port());
        let gate = Gate::new(&scratch, "gate");
        let launch = Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-id", "J"]);
        let launch = launch.args(["--rdzv-endpoint", &format!("localhost:{endpoint}")]);
        let job = launch.worker(["env", &gate.step()]).start();
        let master = wait_for_master_port(&job);
        assert_ne!(master, endpoint, "workers have a store of their own\n{job}");
        assert!(is_store_at(endpoint) && is_store_at(master), "no store answers\n{job}");
        gate.open(1);
        job.wait()
    });
    let (code, found) =
        pair.expect_equal(|outcome| (outcome.status.code(), normalized_variables(outcome, 0)));
    assert_eq!((code, found["TORCHELASTIC_RUN_ID"].as_str()), (Some(0), "J"));
}

#[test]
fn no_share() {
    let pair = Pair::run_both(|name| {
        let gate = Gate::closed();
        let launch = Launch::standalone(name, 1).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        let job = launch.worker(["env", &gate.step()]).start();
        // Where the worker of rank 0 would open its store.
        TcpListener::bind(("0.0.0.0", wait_for_master_port(&job))).expect("the port is free");
        gate.open(1);
        job.wait()
    });
    let (code, found) =
        pair.expect_equal(|outcome| (outcome.status.code(), normalized_variables(outcome, 0)));
    assert_eq!((code, found["TORCHELASTIC_USE_AGENT_STORE"].as_str()), (Some(0), "False"));
}

#[test]
fn local_addr() {
    let pair = env_pair(|name| {
        let launch = Launch::new(name).args(["--rdzv-backend", "c10d", "--rdzv-id", "J"]);
        let launch = launch.args(["--rdzv-endpoint", &format!("localhost:{}", free_port())]);
        // Not 127.0.0.1, which is what ours would say anyway.
        launch.args(["--local-addr", "127.0.0.2"])
    });
    assert_eq!(
        pair.expect_equal(|outcome| launcher_variables(outcome, 0)["MASTER_ADDR"].clone()),
        "127.0.0.2"
    );
}

#[test]
fn r#virtual() {
    let pair = env_pair(|name| {
        let launch = Launch::standalone(name, 2).env("CUDA_VISIBLE_DEVICES", "3,5");
        launch.args(["--virtual-local-rank"])
    });
    let ranks = pair.expect_equal(|outcome| [0, 1].map(|rank| normalized_variables(outcome, rank)));
    for (rank, device) in [(0, "3"), (1, "5")] {
        let found = &ranks[rank];
        assert_eq!((found["LOCAL_RANK"].as_str(), found["CUDA_VISIBLE_DEVICES"].as_str()), ("0", device));
        assert_eq!(found["TORCHELASTIC_ERROR_FILE"], format!("attempt_0/{rank}/error.json"));
    }
}

#[test]
fn virtual_short() {
    let pair = Pair::run_both(|name| {
        let launch = Launch::standalone(name, 2).env("CUDA_VISIBLE_DEVICES", "3");
        launch.args(["--virtual-local-rank"]).worker(["env"]).run()
    });
    assert_eq!(pair.expect_equal(|outcome| outcome.status.code()), Some(1));
}

#[test]
fn devnull_log() {
    let pair = env_pair(|name| Launch::standalone(name, 1).args(["--log-dir", "/dev/null"]));
    assert_eq!(pair.expect_equal(|outcome| normalized_variables(outcome, 0))["TORCHELASTIC_ERROR_FILE"], "");
}

#[test]
fn hetero() {
    let found = run_both_expect_equal(|name| {
        let endpoint = format!("localhost:{}", free_port());
        let own = |workers, role, address| {
            let launch =
                Launch::new(name).args(["--nnodes", "2", "--nproc-per-node", workers, "--role", role]);
            let launch = launch.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
            launch.args(["--local-addr", address]).worker(["place"]).start()
        };
        // Ranks follow the addresses: the first has rank 0.
        let jobs = [own("1", "b", "127.0.0.1"), own("2", "a", "localhost")];
        let outcomes = jobs.map(Job::wait);
        let lines = outcomes.iter().flat_map(|outcome| outcome.expect_exit_code(0).lines_with("place rank="));
        let keys = ["rank", "world", "node", "local", "role", "role_rank", "role_world"];
        let describe = |line: String| keys.map(|key| field(&line, key).unwrap_or("?").to_owned()).join(" ");
        let mut all: Vec<_> = lines.map(describe).collect();
        all.sort();
        all
    });
    assert_eq!(found, ["0 3 0 0 b 0 1", "1 3 1 0 a 0 2", "2 3 1 1 a 1 2"]);
}
