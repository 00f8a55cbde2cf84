//! Numbers, defaults and precedence.

use std::ffi::OsString;

use super::*;
use crate::cli::{Command, interpret};
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::stop::LeftoverPolicy;
use rankrun_core::spec::{EventLog, RendezvousSpec};

fn world() -> FakeWorld {
    FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python")
}

fn try_launch(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Result<Launch, CliError> {
    let mut environment = environment.to_vec();
    environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
    let argv: Vec<OsString> =
        line.split('|').map(|word| OsString::from(word.trim_start_matches(' '))).collect();
    match interpret(&argv, &world.facts(&environment))? {
        Command::Launch(launch) => Ok(*launch),
        other => panic!("{other:?}"),
    }
}

/// Options separated by `|`, with a script behind them.
fn launch(options: &str, environment: &[(&str, &str)]) -> Launch {
    try_launch(world(), &format!("torchrun|{options}|x.py"), environment).unwrap()
}

fn refusal(options: &str, environment: &[(&str, &str)]) -> (u8, String) {
    let error = try_launch(world(), &format!("torchrun|{options}|x.py"), environment).unwrap_err();
    (error.exit_code(), error.to_string())
}

fn workers(world: FakeWorld, value: &str) -> Result<u32, CliError> {
    let line = format!("torchrun|--nproc-per-node={value}|x.py");
    try_launch(world, &line, &[("OMP_NUM_THREADS", "5")]).map(|launch| launch.spec.workers.get())
}

#[test]
fn worker_count_accepts_numbers_cpu_and_auto() {
    for (value, count) in [("2", 2), (" 2 ", 2), ("+2", 2), ("1_0", 10), ("cpu", 5), ("auto", 5)] {
        assert_eq!(workers(world().cpus(5), value), Ok(count), "`{value}`");
    }
    for value in ["0", "-1", "abc", "1.5", "99999999999999999999", "4194305", "CPU", "Auto"] {
        let error = workers(world(), value).unwrap_err();
        assert_eq!(error.exit_code(), 1);
        let text = format!("`--nproc-per-node` is `{value}`, which is not a number of workers from 1 to");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    let empty = workers(world(), "").unwrap_err().to_string();
    assert!(empty.starts_with("`--nproc-per-node` is empty, which is not a number of workers"), "{empty}");
    for value in ["mtia", "privateuseone"] {
        let error = workers(world(), value).unwrap_err();
        assert_eq!(error.to_string(), format!("`--nproc-per-node` = `{value}` is not supported yet"));
        assert!(error.hint().unwrap().contains("--nproc-per-node 8"));
    }
}

#[test]
fn command_line_overrides_variable_overrides_default() {
    let three = [("PET_NPROC_PER_NODE", "3"), ("PET_ROLE", "")];
    assert_eq!(launch("--standalone", &three).spec.workers.get(), 3);
    assert_eq!(launch("--standalone", &three).spec.role, "");
    assert_eq!(launch("--nproc-per-node=1|--role=a|--role=b", &three).spec.workers.get(), 1);
    assert_eq!(launch("--nproc-per-node=1|--role=a|--role=b", &three).spec.role, "b");
    assert_eq!(launch("--max-restarts= +1_0 ", &[]).spec.max_restarts, RestartCount(10));
    assert_eq!(launch("--standalone", &[("PET_MAX_RESTARTS", "2")]).spec.max_restarts, RestartCount(2));
    // The short names and our own prefix are not variables of torchrun's options.
    let nothing = [("PET_R", "9"), ("PET_T", "9"), ("PET_M", "1"), ("RANKRUN_NPROC_PER_NODE", "7")];
    assert_eq!(launch("--standalone", &nothing).spec, launch("--standalone", &[]).spec);
}

#[test]
fn variable_values_are_type_checked_like_options() {
    for (name, value) in [
        ("PET_MAX_RESTARTS", "abc"),
        ("PET_MASTER_PORT", ""),
        ("PET_NODE_RANK", "x"),
        ("PET_MONITOR_INTERVAL", "x"),
        ("PET_SHUTDOWN_TIMEOUT", "1.5"),
    ] {
        let (code, text) = refusal("--standalone", &[(name, value)]);
        assert_eq!(code, 2, "{name}");
        assert!(text.contains(&format!("value: '{value}'")), "{text}");
    }
    assert_eq!(refusal("--max-restarts=-1", &[]).0, 1);
    for (value, shown) in [("true", "`true`"), ("", "empty"), ("yes", "`yes`")] {
        for name in
            ["PET_STANDALONE", "PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK"]
        {
            let (code, text) = refusal("--standalone", &[(name, value)]);
            assert_eq!((code, text), (1, format!("`{name}` is {shown}, which is not a whole number")));
        }
    }
    let flags =
        [("PET_STANDALONE", "2"), ("PET_MASTER_PORT", "5"), ("PET_NO_PYTHON", "0"), ("PET_RUN_PATH", "0")];
    let launch = launch("--role=a", &flags);
    assert!(matches!(launch.spec.rendezvous, RendezvousSpec::Standalone { .. }));
}

#[test]
fn out_of_range_numbers_are_refused() {
    for option in [
        "--max-restarts=-1",
        "--max-restarts=4294967296",
        "--monitor-interval=0",
        "--monitor-interval=-1",
        "--monitor-interval=nan",
        "--shutdown-timeout=-1",
        "--master-port=-1",
        "--master-port=65536",
        "--nnodes=2:1",
        "--nnodes=1:2:3",
        "--nnodes=0",
        "--nnodes=0:1",
        "--nnodes=x",
        "--nnodes=",
    ] {
        let (code, text) = refusal(option, &[]);
        assert!(code == 1 && text.contains("which is not"), "`{option}`: {code} {text}");
    }
    for option in ["--monitor-interval=0.1", "--monitor-interval=inf", "--nnodes=1:1", "--nnodes= 1 "] {
        assert_eq!(launch(option, &[]).spec, launch("--standalone", &[]).spec, "`{option}`");
    }
}

/// No time is longer.
const A_CENTURY: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

#[test]
fn last_given_grace_applies() {
    let grace = |line: &str, environment: &[(&str, &str)]| {
        let launch = try_launch(world(), &format!("{line}|x.py"), environment).unwrap();
        launch.spec.stop.grace.as_secs_f64()
    };
    let torch = ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7");
    let pet = ("PET_SHUTDOWN_TIMEOUT", "8");
    let ours = ("RANKRUN_GRACE", "0.5");
    for (line, environment, seconds) in [
        ("torchrun|--standalone", vec![], 30.0),
        ("torchrun|--standalone", vec![torch], 7.0),
        ("torchrun|--standalone", vec![torch, pet], 8.0),
        ("torchrun|--standalone", vec![torch, pet, ours], 0.5),
        ("torchrun|--shutdown-timeout=0", vec![torch, pet, ours], 0.0),
        ("rankrun|--grace=2.5|--shutdown-timeout=3", vec![], 3.0),
        ("rankrun|--shutdown-timeout=3|--grace=2.5", vec![ours], 2.5),
        ("rankrun|--shutdown-timeout=99999999999999999999", vec![], A_CENTURY),
        ("rankrun|--grace=1e99", vec![], A_CENTURY),
        ("rankrun|--grace=1m30s", vec![], 90.0),
    ] {
        assert_eq!(grace(line, &environment).to_bits(), seconds.to_bits(), "`{line}` {environment:?}");
    }
    for value in ["soon", "", "-1", "1.5"] {
        assert_eq!(refusal("--standalone", &[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", value)]).0, 1, "`{value}`");
    }
    for value in ["-1", "inf", "nan", "soon"] {
        assert_eq!(refusal("--standalone", &[("RANKRUN_GRACE", value)]).0, 1, "`{value}`");
    }
}

#[test]
fn leftovers_are_kept_by_torchrun_and_ended_by_rankrun() {
    let leftovers = |line: &str, environment: &[(&str, &str)]| {
        try_launch(world(), &format!("{line}|x.py"), environment).unwrap().spec.leftovers
    };
    let ours = ("RANKRUN_LEFTOVER_GRACE", "0.5");
    let end = |seconds| LeftoverPolicy::End { grace: Duration::from_secs_f64(seconds) };
    for (line, environment, policy) in [
        ("torchrun|--standalone", vec![], LeftoverPolicy::Keep),
        ("torchrun|--standalone", vec![ours], end(0.5)),
        ("rankrun|--standalone", vec![], end(30.0)),
        ("rankrun|--leftover-grace=2", vec![ours], end(2.0)),
        ("rankrun|--leftover-grace=2h", vec![], end(7200.0)),
    ] {
        assert_eq!(leftovers(line, &environment), policy, "`{line}` {environment:?}");
    }
    assert_eq!(refusal("--standalone", &[("RANKRUN_LEFTOVER_GRACE", "-1")]).0, 1);
    assert_eq!(refusal("--standalone", &[("RANKRUN_LEFTOVER_GRACE", "soon")]).0, 1);
}

#[test]
fn omp_num_threads_defaults_to_one() {
    let two = launch("--nproc-per-node=2", &[]);
    assert!(two.spec.devices.omp_threads == Some(1));
    assert_eq!(two.notices, [Notice::SingleOmpThread]);
    for (options, environment) in
        [("--nproc-per-node=1", vec![]), ("--nproc-per-node=2", vec![("OMP_NUM_THREADS", "")])]
    {
        let launch = launch(options, &environment);
        assert!(launch.spec.devices.omp_threads.is_none() && launch.notices.is_empty());
    }
}

#[test]
fn rankrun_divides_cpus_among_omp_threads() {
    let ours = |cpus: usize, count: &str, environment: &[(&str, &str)]| {
        let line = format!("rankrun|--nproc-per-node={count}|x.py");
        let launch = try_launch(world().cpus(cpus), &line, environment).unwrap();
        let said: Vec<String> = launch.notices.iter().map(ToString::to_string).collect();
        (launch.spec.devices.omp_threads, said)
    };
    let line = |text: &str| vec![format!("each worker gets `OMP_NUM_THREADS={text}")];
    assert_eq!(ours(8, "2", &[]), (Some(4), line("4`: 8 CPUs for 2 workers")));
    assert_eq!(ours(7, "2", &[]), (Some(3), line("3`: 7 CPUs for 2 workers")));
    assert_eq!(ours(1, "3", &[]), (Some(1), line("1`: 1 CPU for 3 workers")));
    assert_eq!(ours(8, "1", &[]), (None, vec![]));
    assert_eq!(ours(8, "2", &[("OMP_NUM_THREADS", "6")]), (None, vec![]));
}

#[test]
fn plugins_and_etcd_are_refused_as_option_and_variable() {
    for (option, variable, value, message) in [
        ("--logs-specs=a", "", "", "`a`, a plug-in that only Python could load"),
        ("--event-log-handler=a", "PET_EVENT_LOG_HANDLER", "", "a plug-in that only Python could load"),
        ("--rdzv-backend=mine", "PET_RDZV_BACKEND", "mine", "`mine`, a plug-in that only Python could load"),
        ("--numa-binding=node", "", "", "`node`, and binding needs an accelerator"),
        ("--rdzv-backend=etcd", "PET_RDZV_BACKEND", "etcd-v2", "not supported yet"),
        ("--rdzv-conf=store_type=file", "PET_RDZV_CONF", "store_type=File", "not supported yet"),
    ] {
        let name = option.split('=').next().unwrap_or_default();
        let refused = |option: &str, environment: &[(&str, &str)]| {
            let error = try_launch(world(), &format!("torchrun|{option}|x.py"), environment).unwrap_err();
            assert!(error.hint().is_some(), "{option}: {error}");
            (error.exit_code(), error.to_string())
        };
        let (code, text) = refused(option, &[]);
        assert!(code == 1 && text.contains(message) && text.contains(name), "{code} {text}");
        if !variable.is_empty() {
            let (code, text) = refused("--role=a", &[(variable, value)]);
            assert!(code == 1 && text.contains(message) && text.contains(variable), "{code} {text}");
        }
    }
}

#[test]
fn explicit_torchrun_defaults_change_nothing() {
    let defaults = "--event-log-handler=null|--log-line-prefix-template=|--local-ranks-filter=|\
                    --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT|--rdzv-backend=static|\
                    --rdzv-endpoint=|--rdzv-conf=|--node-rank=0|--nnodes=1";
    assert_eq!(launch(defaults, &[]), launch("--standalone", &[]));
    assert_eq!(launch("--event-log-handler=dynamic_rendezvous", &[]), launch("--standalone", &[]));
    assert_eq!(launch("--event-log-handler=console", &[]).spec.events, EventLog::Console);
    for (option, variable) in [("--start-method=fork", "--start-method"), ("--role=a", "PET_START_METHOD")] {
        // argparse checks no choice that stands in a variable.
        let environment = [("PET_START_METHOD", "foo")];
        let launch = launch(option, if variable.starts_with('P') { &environment } else { &[] });
        let said: Vec<String> = launch.notices.iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("`{variable}` has no effect: every worker is a fresh process")]);
    }
    assert_eq!(launch("--start-method=spawn", &[]).notices, [], "it is the default");
    assert_eq!(launch("--role=a", &[("PET_START_METHOD", "spawn")]).notices, []);
    assert_eq!(refusal("--start-method=foo", &[]).0, 2);
}

#[test]
fn watchdog_and_error_file_are_set_only_by_variables() {
    for (value, seconds) in [
        ("2", Some(2.0)),
        (" 0.5 ", Some(0.5)),
        ("1e3", Some(1000.0)),
        ("0", None),
        ("-1", None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
    ] {
        let launch = launch("--standalone", &[("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", value)]);
        assert_eq!(launch.spec.dstate_timeout, seconds.map(Duration::from_secs_f64), "`{value}`");
        assert_eq!(launch.notices, []);
    }
    let error_file =
        |value: &str| launch("--standalone", &[("TORCHELASTIC_ERROR_FILE", value)]).spec.parent_error_file;
    assert_eq!(error_file("/a/error.json"), Some(PathBuf::from("/a/error.json")));
    assert_eq!(error_file(""), None);
}

#[test]
fn bad_variable_is_named_by_rankrun_and_torchrun() {
    for name in ["torchrun", "rankrun"] {
        for (variable, value) in [
            ("PET_MAX_RESTARTS", "x"),
            ("PET_MASTER_PORT", ""),
            ("PET_NODE_RANK", "x"),
            ("PET_MONITOR_INTERVAL", "x"),
            ("PET_SHUTDOWN_TIMEOUT", "1.5"),
            ("PET_NPROC_PER_NODE", "x"),
            ("PET_NNODES", "x"),
            ("PET_RDZV_ENDPOINT", "a/b"),
            ("PET_RDZV_CONF", "a"),
            ("PET_REDIRECTS", "0:9"),
            ("PET_TEE", "a:1"),
            ("PET_LOCAL_RANKS_FILTER", "x"),
            ("PET_MODULE", "x"),
        ] {
            let error = try_launch(world(), &format!("{name}|x.py"), &[(variable, value)]).unwrap_err();
            assert!(error.render().contains(variable), "{name}: {error}");
        }
    }
}
