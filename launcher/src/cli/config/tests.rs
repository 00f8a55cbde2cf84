use std::ffi::OsString;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cli::{Command, Launch, interpret};
use bytesize::ByteSize;
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::RendezvousSpec;
use rankrun_core::spec::rendezvous::PortRange;
use rankrun_core::spec::stop::{GraceFor, LeftoverPolicy, StopPolicy};

const FILE: &str = r#"
# A job that runs for weeks.
[launch]
nproc-per-node = 3
device_type = "cpu"
tee = "3"
role = "trainer"
quiet = true
verbose = 1

[restart]
max-restarts = 5
window = "1h"
delay = 10
factor = 1.5
jitter = 0.25
reset-after = "30m"

[[restart.rules]]
exit = [3, "10-19"]
then = "fail"

[[restart.rules]]
signal = "KILL"
rank = 2
then = "restart"

[[restart.rules]]
cause = "oom"
node = 0
then = "fail"

[[restart.rules]]
exit = 0x2a
then = "requeue"

[stop]
grace = 2.5
"#;

fn try_launch(file: &'static str, options: &str, environment: &[(&str, &str)]) -> Result<Launch, CliError> {
    let world = FakeWorld::default().file("/job/x.py", b"impo").program("/usr/bin/python");
    let world = world.file("/job/rankrun.toml", file.as_bytes());
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let line = format!("rankrun {options} x.py");
    let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match interpret(&argv, &world.facts(&environment))? {
        Command::Launch(launch) => Ok(*launch),
        other => panic!("{other:?}"),
    }
}

fn launch(options: &str, environment: &[(&str, &str)]) -> Launch {
    try_launch(FILE, &format!("--config rankrun.toml {options}"), environment).unwrap()
}

/// The message and the hint.
fn refusal(file: &'static str) -> (String, String) {
    let error = try_launch(file, "--config rankrun.toml", &[]).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn config_file_sets_launch_options() {
    let spec = launch("", &[]).spec;
    assert_eq!((spec.workers.get(), spec.role.as_str(), spec.max_restarts.0), (3, "trainer", 5));
    assert_eq!(spec.stop.grace.as_secs_f64(), 2.5);
    let rules: Vec<String> = spec.restart.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        ["exit=3/10-19:fail", "signal=KILL+rank=2:restart", "oom+node=0:fail", "exit=42:requeue"]
    );
    let backoff = spec.restart.backoff.unwrap();
    assert_eq!((backoff.delay.as_secs(), backoff.factor, backoff.jitter), (10, 1.5, 0.25));
    assert_eq!(spec.restart.window.map(|window| window.as_secs()), Some(3_600));
    assert_eq!(spec.restart.reset_after.map(|enough| enough.as_secs()), Some(1_800));
    assert_eq!(launch("", &[]).verbosity, rankrun_core::spec::Verbosity::Info);
}

#[test]
fn unnamed_config_file_is_not_read() {
    let launch = try_launch("this is not TOML", "--nproc-per-node 1 --device-type cpu", &[]).unwrap();
    assert_eq!(launch.spec.max_restarts.0, 0);
    let by_variable = try_launch(FILE, "", &[("RANKRUN_CONFIG", "/job/rankrun.toml")]).unwrap();
    assert_eq!(by_variable.spec.workers.get(), 3);
}

#[test]
fn command_line_and_variables_override_config_file() {
    assert_eq!(launch("--max-restarts 7", &[]).spec.max_restarts.0, 7);
    assert_eq!(launch("", &[("PET_MAX_RESTARTS", "6")]).spec.max_restarts.0, 6);
    assert_eq!(launch("", &[("RANKRUN_GRACE", "4")]).spec.stop.grace.as_secs(), 4);
    assert_eq!(launch("", &[("PET_SHUTDOWN_TIMEOUT", "4")]).spec.stop.grace.as_secs(), 4);
    assert_eq!(launch("--shutdown-timeout 5", &[]).spec.stop.grace.as_secs(), 5);
    let rules = launch("--restart-rules exit=9:fail", &[]).spec.restart.rules;
    assert_eq!(rules.len(), 1, "rules are one value");
    assert_eq!(launch("--max-restarts 0", &[]).spec.max_restarts.0, 0, "to look at a failure, say");
    let verbosity = launch("", &[("RANKRUN_VERBOSE", "0")]).verbosity;
    assert_eq!(verbosity, rankrun_core::spec::Verbosity::Warn);
}

const NODES: &str = r#"
[nodes]
nnodes = "2:4"
backend = "c10d"
endpoint = "node0:29400"
id = 7
join-timeout = "20m"
last_call = 5
lease = 2.5
local-addr = "10.0.0.7"
iface = "ib0"
port-range = "29500-29599"
store-limit = "2GiB"
"#;

#[test]
fn config_file_sets_rendezvous() {
    let spec = |options: &str, environment: &[(&str, &str)]| {
        let options = format!("--config rankrun.toml --device-type cpu {options}");
        try_launch(NODES, &options, environment).unwrap().spec
    };
    let found = spec("", &[]);
    let RendezvousSpec::C10d { run_id, host, port, local_addr, nodes, times, .. } = found.rendezvous else {
        panic!("{:?}", found.rendezvous);
    };
    assert_eq!((run_id.0.as_str(), host.as_str(), port), ("7", "node0", 29_400));
    assert_eq!((local_addr.as_deref(), nodes.to_string().as_str()), (Some("10.0.0.7"), "2:4"));
    let seconds = [times.join, times.last_call, times.lease].map(|time| time.as_secs_f64());
    assert_eq!(seconds, [1200.0, 5.0, 2.5]);
    let PortRange { first, last } = found.network.ports.unwrap();
    assert_eq!((found.network.iface.as_deref(), first, last), (Some("ib0"), 29_500, 29_599));
    assert_eq!(found.network.store_limit, Some(ByteSize(2 << 30)));
    // What is typed and what a variable says come before it, and one node alone may be tried.
    let alone = spec("--standalone --nnodes 1", &[]).rendezvous;
    assert!(matches!(alone, RendezvousSpec::Standalone { .. }), "{alone:?}");
    let times = |environment: &[(&str, &str)]| match spec("--lease 9", environment).rendezvous {
        RendezvousSpec::C10d { times, .. } => [times.lease.as_secs(), times.join.as_secs()],
        other => panic!("{other:?}"),
    };
    assert_eq!(times(&[]), [9, 1200]);
    assert_eq!(times(&[("RANKRUN_JOIN_TIMEOUT", "6")]), [9, 6]);
    assert_eq!(times(&[("PET_RDZV_CONF", "join_timeout=7")]), [9, 7]);
}

const GRACES: &str = r#"
[launch]
device-type = "cpu"
nproc-per-node = 1
time-limit = "2h"
start_timeout = 60

[restart]
max-restarts = 1

[stop]
grace = "1m"
leftover = "2m"

[stop.grace-for]
signal = 20
failure = "1.5s"
restart = 0
time_limit = "00:02:00"
"#;

#[test]
fn config_file_sets_grace_per_stop_cause() {
    let stop = |options: &str, environment: &[(&str, &str)]| {
        let options = format!("--config rankrun.toml {options}");
        try_launch(GRACES, &options, environment).unwrap().spec.stop
    };
    let seconds = Duration::from_secs;
    let grace_for = GraceFor {
        signal: Some(seconds(20)),
        failure: Some(Duration::from_millis(1_500)),
        restart: Some(Duration::ZERO),
        time_limit: Some(seconds(120)),
        start_timeout: None,
    };
    assert_eq!(stop("", &[]), StopPolicy { grace: seconds(60), grace_for });
    assert_eq!(stop("", &[("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9")]).grace_for, grace_for, "a default");
    for (options, environment) in [
        ("--grace 3", &[][..]),
        ("--shutdown-timeout 3", &[]),
        ("", &[("RANKRUN_GRACE", "3")]),
        ("", &[("PET_SHUTDOWN_TIMEOUT", "3")]),
    ] {
        let found = stop(options, environment);
        let whole = StopPolicy { grace: seconds(3), grace_for: GraceFor::default() };
        assert_eq!(found, whole, "`--grace` covers every stop: {options} {environment:?}");
    }
    let leftovers = try_launch(GRACES, "--config rankrun.toml", &[]).unwrap().spec.leftovers;
    assert_eq!(leftovers, LeftoverPolicy::End { grace: seconds(120) });
    assert!(
        try_launch(GRACES, "--config rankrun.toml --max-restarts 0", &[]).is_ok(),
        "to look at a failure"
    );
}

#[test]
fn unknown_config_key_error_names_line() {
    for (file, text, hint) in [
        (
            "[launch]\nmax-restart = 3\n",
            "`rankrun.toml`, line 2: `launch.max-restart` is not a known key",
            "`max-restarts`?",
        ),
        (
            "[launch]\n\nversion = true\n",
            "`rankrun.toml`, line 3: `launch.version` is not a known key",
            "long names",
        ),
        (
            "[restart]\nwindows = 3\n",
            "`rankrun.toml`, line 2: `restart.windows` is not a known key",
            "`window`?",
        ),
        (
            "[stop]\ngracious = 3\n",
            "`rankrun.toml`, line 2: `stop.gracious` is not a known key",
            "there are grace, leftover, grace-for",
        ),
        (
            "[stop.grace-for]\nsignals = 3\n",
            "`rankrun.toml`, line 2: `stop.grace-for.signals` is not a known key",
            "`signal`?",
        ),
        ("[nodes]\nleash = 3\n", "`rankrun.toml`, line 2: `nodes.leash` is not a known key", "`lease`?"),
        (
            "[nodes]\nflags = 3\n",
            "`rankrun.toml`, line 2: `nodes.flags` is not a known key",
            "there are nnodes, node-rank, backend, endpoint, id, join-timeout, last-call, lease, exclude, exclude-after, local-addr, iface, port-range, store-limit",
        ),
        ("\n[lunch]\n", "`rankrun.toml`, line 2: `lunch` is not a known key", "`launch`?"),
        (
            "[[restart.rules]]\nexits = 3\n",
            "`rankrun.toml`, line 2: `restart.rules.exits` is not a known key",
            "`exit`?",
        ),
    ] {
        let (message, advice) = refusal(file);
        assert_eq!(message, text);
        assert!(advice.contains(hint), "{advice}");
    }
}

#[test]
fn key_in_another_table_gets_its_table_as_hint() {
    for (file, hint) in [
        ("[nodes]\nrules = 3\n", "it belongs in `[restart]`"),
        ("[launch]\ndelay = 3\n", "it belongs in `[restart]`"),
        ("[restart]\nrole = 3\n", "it belongs in `[launch]`"),
        ("[launch]\ngrace-for = {}\n", "it belongs in `[stop]`"),
        ("grace = 3\n", "it belongs in `[stop]`"),
        ("devices = 3\n", "it belongs in `[launch]`"),
        ("[restart]\nrestart_window = 3\n", "write `window` in `[restart]`"),
        ("[stop]\nrdzv-endpoint = 3\n", "write `endpoint` in `[nodes]`"),
    ] {
        let (message, advice) = refusal(file);
        assert!(message.ends_with(" is not a known key"), "{message}");
        assert_eq!(advice, hint, "{file}");
    }
}

#[test]
fn first_of_two_config_errors_is_the_upper_one() {
    let (message, _) = refusal("[launch]\nzebra = 1\nant = 2\n");
    assert!(message.contains("line 2"), "{message}");
}

#[test]
fn restart_rule_hint_has_form_of_a_file() {
    for rule in ["exit = 3", "exit = 3\nthen = \"x\""] {
        let file: &'static str = format!("[launch]\nmax-restarts = 1\n[[restart.rules]]\n{rule}\n").leak();
        let (message, hint) = refusal(file);
        assert!(hint.starts_with("write `then = \"fail\"`"), "{message}: {hint}");
    }
}

#[test]
fn config_value_type_error_names_line() {
    for (file, text) in [
        (
            "[launch]\nmax-restarts = \"3\"\n",
            "line 2: `launch.max-restarts` is `\"3\"`, which is not a whole number",
        ),
        (
            "[launch]\nmax-restarts = 1.5\n",
            "line 2: `launch.max-restarts` is `1.5`, which is not a whole number",
        ),
        ("[launch]\nquiet = 1\n", "line 2: `launch.quiet` is `1`, which is not true or false"),
        ("[launch]\nrole = [1]\n", "line 2: `launch.role` is `[1]`, which is not a text or a number"),
        (
            "[launch]\nstdin = \"some\"\n",
            "line 2: `launch.stdin` is `\"some\"`, which is not a local rank, `all` or `none`",
        ),
        (
            "[nodes]\nnnodes = 1.5\nlease = true\n",
            "line 3: `nodes.lease` is `true`, which is not a text or a number",
        ),
        ("[nodes]\nnode-rank = \"0\"\n", "line 2: `nodes.node-rank` is `\"0\"`, which is not a whole number"),
        ("[stop]\ngrace = true\n", "line 2: `stop.grace` is `true`, which is not a text or a number"),
        ("[stop]\ngrace-for = 3\n", "line 2: `stop.grace-for` is `3`, which is not a table"),
        (
            "[stop.grace-for]\nsignal = [1]\n",
            "line 2: `stop.grace-for.signal` is `[1]`, which is not a text or a number",
        ),
        (
            "[stop.grace-for]\ntime-limit = 1\ntime_limit = 2\n[launch]\ntime-limit = 9\n",
            "line 3: `stop.grace-for.time_limit` says what `stop.grace-for.time-limit` in line 2 says",
        ),
        (
            "[launch]\nshutdown-timeout = 1\n[stop]\ngrace = 2\n",
            "line 4: `stop.grace` says what `launch.shutdown-timeout` in line 2 says",
        ),
        ("restart = 3\n", "line 1: `restart` is `3`, which is not a table"),
        ("[restart]\nrules = 3\n", "line 2: `restart.rules` is `3`, which is not a list of tables"),
        ("[[restart.rules]]\nthen = 3\n", "line 2: `restart.rules.then` is `3`, which is not a text"),
        (
            "[[restart.rules]]\nrank = 1.0\n",
            "line 2: `restart.rules.rank` is `1.0`, which is not a whole number",
        ),
        (
            "[launch]\ndevice-type = \"gpu\"\n",
            "line 2: `launch.device-type` is `gpu`, which is not one of `cuda`, `rocm`, `xpu`, `hpu`, `npu`, `mps`, `cpu`",
        ),
        (
            "[launch]\nmax-restarts = 1\n[restart]\nmax-restarts = 2\n",
            "line 4: `restart.max-restarts` says what `launch.max-restarts` in line 2 says",
        ),
    ] {
        assert_eq!(refusal(file).0, format!("`rankrun.toml`, {text}"));
    }
}

/// A slip is seen in the first job, and not in the first one without the option.
#[test]
fn overridden_config_values_are_checked_too() {
    for (file, options, text) in [
        (
            "[nodes]\nlease = \"soon\"\n",
            "--lease 9",
            "line 2: `nodes.lease` is `soon`, which is not a time of 2 s",
        ),
        ("[stop]\ngrace = -1\n", "--grace 9", "line 2: `stop.grace` is `-1`, which is not a time"),
        (
            "[restart]\nwindow = 0\n",
            "--restart-window 9 --max-restarts 1",
            "line 2: `restart.window` is `0`, which is not a time above 0",
        ),
        (
            "[nodes]\nport-range = \"9-5\"\n",
            "--port-range 9-12",
            "line 2: `nodes.port-range` is `9-5`, which",
        ),
        (
            "[launch]\nstop-signal = \"KILL\"\n",
            "--stop-signal INT",
            "line 2: `launch.stop-signal` is `KILL`, which",
        ),
        (
            "[launch]\nwarn-signal = \"A\"\n",
            "--time-limit 99 --warn-signal INT",
            "line 2: `launch.warn-signal` is `A`, which",
        ),
        ("[launch]\nstore-limit = 4\n", "--store-limit 4GiB", "line 2: `launch.store-limit` is `4`, which"),
        (
            "[[restart.rules]]\nthen = \"no\"\n",
            "--restart-rules any:fail",
            "line 2: `restart.rules.then` has the rule `any:no`",
        ),
    ] {
        let error = try_launch(file, &format!("--config rankrun.toml {options}"), &[]).unwrap_err();
        assert_eq!((error.exit_code(), error.usage()), (1, None));
        assert!(error.to_string().starts_with(&format!("`rankrun.toml`, {text}")), "{error}");
    }
}

#[test]
fn invalid_toml_error_names_line() {
    for (file, line) in [("[launch]\nrole = \n", 2), ("[launch\n", 1), ("[launch]\nrole = 1\nrole = 2\n", 3)]
    {
        let (message, _) = refusal(file);
        assert!(message.starts_with(&format!("`rankrun.toml`, line {line}: ")), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let missing = try_launch("", "--config missing.toml", &[]).unwrap_err().to_string();
    assert!(missing.starts_with("the configuration file `missing.toml` cannot be read: "), "{missing}");
}

#[test]
fn config_contradiction_error_names_line() {
    for (file, text) in [
        ("[restart]\nwindow = \"1h\"\n", "line 2: `restart.window` is given, but `--max-restarts` is not"),
        (
            "[restart]\nmax-restarts = 0\nwindow = \"1h\"\n",
            "line 3: `restart.window` is given, but `restart.max-restarts` in line 2 is `0`",
        ),
        ("[restart]\nfactor = 2\n", "line 2: `restart.factor` is given, but `--restart-delay` is not"),
        (
            "[restart]\nmax-restarts = 1\ndelay = 9\nmax-delay = 3\n",
            "line 4: `restart.max-delay` is `3s`, which is not as long as the first delay",
        ),
        (
            "[stop]\ngrace-for = { failure = -1 }\n",
            "line 2: `stop.grace-for.failure` is `-1`, which is not a time such as `90` (seconds), `1.5s`, `5m`, `1h30m` or `1-12:00:00`",
        ),
        (
            "[stop.grace-for]\ntime-limit = 9\n",
            "line 2: `stop.grace-for.time-limit` is given, but `--time-limit` is not",
        ),
        (
            "[stop.grace-for]\nstart-timeout = 9\n",
            "line 2: `stop.grace-for.start-timeout` is given, but `--start-timeout` is not",
        ),
        (
            "[stop.grace-for]\nrestart = 9\n[restart]\nmax-restarts = 0\n",
            "line 2: `stop.grace-for.restart` is given, but `restart.max-restarts` in line 4 is `0`",
        ),
        (
            "[launch]\ntime-limit = 60\nwarn-signal = \"USR1\"\n",
            "line 3: `launch.warn-signal` is `USR1`, and `launch.time-limit` in line 2 is `1m`: the workers would be warned at their start",
        ),
        (
            "[launch]\ntime-limit = \"1h\"\n[restart]\nmax-restarts = 3\ndelay = \"2h\"\n",
            "line 5: `restart.delay` is `2h`, and `launch.time-limit` in line 2 is `1h`: the job would be over before the first restart",
        ),
        (
            "[[restart.rules]]\nthen = \"restart\"\n",
            "line 2: `restart.rules.then` has the rule `any:restart`, but without `--max-restarts` above 0 nothing restarts",
        ),
        (
            "[restart]\nmax-restarts = -1\n",
            "line 2: `restart.max-restarts` is `-1`, which is not a number of restarts from 0 to 4294967295",
        ),
        (
            "[[restart.rules]]\nexit = 0\nthen = \"fail\"\n",
            "line 2: `restart.rules.exit` has the rule `exit=0:fail`, which can never match: exit code 0 is not a failure",
        ),
        (
            "[[restart.rules]]\nexit = 3\n",
            "line 1: `restart.rules` has the rule `exit=3`, which does not say what follows",
        ),
        (
            "[[restart.rules]]\nthen = \"fail\"\n[[restart.rules]]\nexit = 3\nthen = \"fail\"\n",
            "line 3: `restart.rules` has the rule `exit=3:fail`, which can never match: `any:fail` before it takes all it would",
        ),
    ] {
        assert_eq!(refusal(file).0, format!("`rankrun.toml`, {text}"));
    }
}

proptest! {
    #[test]
    fn any_config_text_does_not_panic(text: String) {
        let _ = parse(OsStr::new("x"), &text);
    }

    #[test]
    fn any_config_table_does_not_panic(name in "launch|nodes|restart|stop|restart.rules", key in "[a-z-]{1,8}|rules|exit|grace", value in ".{0,9}") {
        for text in [format!("[{name}]\n{key} = {value}\n"), format!("[[{name}]]\n{key} = {value}\n")] {
            let _ = parse(OsStr::new("x"), &text);
        }
    }
}
