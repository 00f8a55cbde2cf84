//! What `rankrun explain` says of command lines.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use crate::cli::{Command as Answer, interpret};
use rankrun_core::facts::Facts;
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::notice::Notice;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::SignalSpec;
use rankrun_host::process::signal::HandledSignals;
use rankrun_tools::explain::{
    EndpointSummary, ExplainForm, ExplainRequest, Explanation, LaunchValue, Pending, ReadAs, SettingOrigin,
    StreamTarget, Style, Text, Variable, explain, render,
};

#[test]
fn text_shows_what_another_launchers_line_was_read_as() {
    let (mut question, facts) = question("rankrun explain --nproc-per-node 2 x.py", &[]);
    let value = |value: &str| Some(Text(value.into()));
    let environment = [("OLD", None), ("LOCAL_SIZE", value("2")), ("NAME", value("a b"))];
    question.read_as = Some(ReadAs {
        environment: environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        command: ["rankrun", "--nproc-per-node", "2", "x.py"].map(|word| Text(word.into())).to_vec(),
    });
    let explanation = of(&question, &facts);
    let text = String::from_utf8(render(&explanation, &question, Style::Plain)).unwrap();
    let block = "  env -u OLD \\\n  LOCAL_SIZE=2 \\\n  NAME='a b' \\\n  rankrun --nproc-per-node 2 x.py\n";
    assert!(text.contains(block), "{text}");
    question.form = ExplainForm::Json;
    let json: serde_json::Value =
        serde_json::from_slice(&render(&explanation, &question, Style::Plain)).unwrap();
    assert_eq!(json["read_as"]["environment"]["OLD"], serde_json::Value::Null);
    assert_eq!(json["read_as"]["command"][1], "--nproc-per-node");
}

fn question(line: &str, environment: &[(&str, &str)]) -> (ExplainRequest, Facts) {
    question_in(FakeWorld::default(), line, environment)
}

fn question_in(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> (ExplainRequest, Facts) {
    let world = world.file("/job/x.py", b"impo").program("/usr/bin/python3").program("/usr/bin/tool");
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let facts = world.facts(&environment);
    let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    match interpret(&argv, &facts) {
        Ok(Answer::Explain(question)) => (*question, facts),
        other => panic!("`{line}`: {other:?}"),
    }
}

fn of(question: &ExplainRequest, facts: &Facts) -> Explanation {
    let handled = HandledSignals::of(&SignalSpec::torchrun(), CliFlavor::Torchrun);
    explain(question, facts, &handled).unwrap()
}

fn explained(line: &str, environment: &[(&str, &str)]) -> Explanation {
    let (question, facts) = question(line, environment);
    of(&question, &facts)
}

/// As `--format json` has it.
fn as_json(explanation: &Explanation, question: &ExplainRequest) -> serde_json::Value {
    serde_json::from_slice(&rendered(explanation, question, ExplainForm::Json)).unwrap()
}

/// In another form than the one that was asked for.
fn rendered(explanation: &Explanation, question: &ExplainRequest, form: ExplainForm) -> Vec<u8> {
    render(explanation, &ExplainRequest { form, ..question.clone() }, Style::Plain)
}

/// A variable of the first worker.
fn variable(explanation: &Explanation, name: &str) -> Variable {
    explanation.ranks[0].variables.iter().find(|variable| variable.name == name).unwrap().clone()
}

fn known(text: &str) -> LaunchValue {
    LaunchValue::Known(text.into())
}

fn option(name: &str) -> SettingOrigin {
    SettingOrigin::Option { name: name.to_owned() }
}

fn by_variable(name: &str) -> SettingOrigin {
    SettingOrigin::Variable { name: name.to_owned() }
}

#[test]
fn each_value_names_its_source() {
    let environment = [("PET_ROLE", "actor"), ("RANK", "9"), ("TMPDIR", "/tmp")];
    let line = "rankrun explain --nproc-per-node 2 --max-restarts 3 --master-port 29511 x.py";
    let explanation = explained(line, &environment);
    for (name, value, source) in [
        ("RANK", "0", SettingOrigin::Launcher),
        ("WORLD_SIZE", "2", option("--nproc-per-node")),
        ("ROLE_NAME", "actor", by_variable("PET_ROLE")),
        ("TORCHELASTIC_MAX_RESTARTS", "3", option("--max-restarts")),
        ("MASTER_ADDR", "127.0.0.1", SettingOrigin::Default),
        ("MASTER_PORT", "29511", option("--master-port")),
        ("TORCHELASTIC_RUN_ID", "none", SettingOrigin::Default),
        ("TORCHELASTIC_USE_AGENT_STORE", "True", SettingOrigin::Default),
        ("OMP_NUM_THREADS", "1", SettingOrigin::Default),
    ] {
        let found = variable(&explanation, name);
        assert_eq!((found.value, found.source), (known(value), source), "{name}");
    }
    assert_eq!(variable(&explanation, "RANK").was, Some(Text("9".into())));
    assert_eq!(variable(&explanation, "TORCHELASTIC_ERROR_FILE").source, by_variable("TMPDIR"));
    assert_eq!(variable(&explanation, "WORLD_SIZE").was, None);
}

#[test]
fn single_worker_is_explained_without_variables_of_its_job() {
    let line = "rankrun explain --distributed auto x.py";
    let explanation =
        explained(line, &[("RANK", "9"), ("MASTER_PORT", "1"), ("TORCHELASTIC_ERROR_FILE", "/e")]);
    let worker = &explanation.ranks[0];
    assert_eq!(worker.unset, ["RANK", "MASTER_PORT"]);
    let names: Vec<&str> = worker.variables.iter().map(|variable| variable.name).collect();
    assert!(names.contains(&"RANKRUN_JOB") && names.contains(&"TORCHELASTIC_ERROR_FILE"), "{names:?}");
    for name in ["RANK", "WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"] {
        assert!(!names.contains(&name), "{name}");
    }
}

/// The table lists the options that decide; here the launch itself is asked.
#[test]
fn setting_source_is_the_deciding_one() {
    for (name, options, environment, value, source) in [
        ("grace", "--grace 1.5", None, "1s 500ms", option("--grace")),
        ("grace", "--grace 1 --shutdown-timeout 2", None, "2s", option("--shutdown-timeout")),
        ("grace", "", Some(("RANKRUN_GRACE", "3")), "3s", by_variable("RANKRUN_GRACE")),
        ("grace", "", Some(("PET_SHUTDOWN_TIMEOUT", "4")), "4s", by_variable("PET_SHUTDOWN_TIMEOUT")),
        (
            "grace",
            "",
            Some(("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")),
            "5s",
            by_variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        ),
        ("grace", "", None, "30s", SettingOrigin::Default),
        ("leftover-grace", "--leftover-grace 1.5", None, "1s 500ms", option("--leftover-grace")),
        ("leftover-grace", "", None, "30s", SettingOrigin::Default),
        ("start-timeout", "--start-timeout 2.5", None, "2s 500ms", option("--start-timeout")),
        ("time-limit", "--time-limit 1h30m", None, "1h 30m", option("--time-limit")),
        ("time-limit", "", Some(("RANKRUN_TIME_LIMIT", "1:30")), "1m 30s", by_variable("RANKRUN_TIME_LIMIT")),
        ("warn-signal", "--time-limit 9 --warn-signal USR1@5", None, "SIGUSR1@5s", option("--warn-signal")),
        (
            "store",
            "",
            Some(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")),
            "rank 0",
            by_variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
        ),
        ("store", "", Some(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")), "agent", SettingOrigin::Default),
        ("log-dir", "--log-dir logs", None, "/job/logs", option("--log-dir")),
        ("log-dir", "--log-dir=", None, "/tmp", SettingOrigin::Default),
        ("log-dir", "", Some(("TMP", "/tmp")), "/tmp", by_variable("TMP")),
        ("master-addr", "--local-addr h", None, "h", option("--local-addr")),
        ("master-addr", "--local-addr=", None, "127.0.0.1", SettingOrigin::Default),
        ("master-addr", "--master-addr h", None, "127.0.0.1", SettingOrigin::Default),
        ("master-addr", "--master-addr h --master-port 1", None, "h", option("--master-addr")),
        ("tee", "-t 0:3", None, "0:3", option("--tee")),
        ("stdin", "", Some(("RANKRUN_STDIN", "none")), "none", by_variable("RANKRUN_STDIN")),
        (
            "python",
            "",
            Some(("PYTHON_EXEC", "/usr/bin/python3")),
            "/usr/bin/python3",
            by_variable("PYTHON_EXEC"),
        ),
        ("python", "", None, "/usr/bin/python3", SettingOrigin::Default),
        ("leave-out", "--leave-out 0", None, "0", option("--leave-out")),
        ("bind-cores", "--bind-cores all", None, "all", option("--bind-cores")),
        ("distributed", "--distributed auto", None, "auto", option("--distributed")),
        ("distributed", "", None, "always", SettingOrigin::Default),
        ("nproc-per-node", "--total-workers 2", None, "2", option("--total-workers")),
        ("total-workers", "--total-workers 2", None, "2", option("--total-workers")),
        ("wrap", "--wrap 0:tool --wrap all:tool", None, "0:tool; all:tool", option("--wrap")),
        ("wrap", "", Some(("RANKRUN_WRAP", "0:tool -o r%r")), "0:tool -o r%r", by_variable("RANKRUN_WRAP")),
    ] {
        let line = format!("rankrun explain {options} x.py").replace("  ", " ");
        let explanation = explained(&line, environment.as_slice());
        assert_eq!(setting_of(&explanation, name), (Some(known(value)), source), "{name}: {line}");
    }
}

fn setting_of(explanation: &Explanation, name: &str) -> (Option<LaunchValue>, SettingOrigin) {
    let setting = explanation.settings.iter().find(|setting| setting.name == name).unwrap();
    (setting.value.clone(), setting.source.clone())
}

#[test]
fn values_known_only_at_launch_are_marked() {
    let explanation = explained("rankrun explain -r 1 x.py", &[]);
    let pattern = |file: &str| {
        let folder = PathBuf::from("/tmp/torchelastic_????????/*_????????/attempt_0");
        LaunchValue::AtLaunch(Pending::Path(if file.is_empty() { folder } else { folder.join(file) }))
    };
    for (name, value) in [
        ("MASTER_PORT", LaunchValue::AtLaunch(Pending::FreePort)),
        ("TORCHELASTIC_RUN_ID", LaunchValue::AtLaunch(Pending::RunId)),
        ("RANKRUN_JOB", LaunchValue::AtLaunch(Pending::Mark)),
        ("TORCHELASTIC_ERROR_FILE", pattern("0/error.json")),
    ] {
        assert_eq!(variable(&explanation, name).value, value, "{name}");
        let entry = explanation.ranks[0].environment.iter().find(|entry| entry.name.0 == name);
        assert_eq!(entry.map(|entry| &entry.value), Some(&value), "{name}");
    }
    assert_eq!(explanation.log_folder, Some(pattern("")));
    assert_eq!(explanation.ranks[0].stdout, StreamTarget::File { file: pattern("0/stdout.log") });
    assert_eq!(explanation.ranks[0].stderr, StreamTarget::Console { prefix: None, file: None });
}

#[test]
fn server_for_trainer_is_shown_for_rank_0_alone() {
    let line = "rankrun explain --nproc-per-node 2 --progress trainer x.py";
    let explanation = explained(line, &[("https_proxy", "a"), ("all_proxy", "b"), ("NO_PROXY", "c")]);
    let url = variable(&explanation, "KUBEFLOW_TRAINER_SERVER_URL");
    assert_eq!((url.value, url.source), (known("http://127.0.0.1:PORT/"), option("--progress")));
    let token = variable(&explanation, "KUBEFLOW_TRAINER_SERVER_TOKEN").value;
    let LaunchValue::AtLaunch(Pending::Path(token)) = token else { panic!("{token:?}") };
    assert!(token.ends_with("progress-0/trainer.token"), "{}", token.display());
    assert_eq!(variable(&explanation, "no_proxy").value, known("c,127.0.0.1"));
    let has_server = |explanation: &Explanation, rank: usize| {
        let mut names = explanation.ranks[rank].variables.iter().map(|variable| variable.name);
        names.any(|name| name.starts_with("KUBEFLOW_"))
    };
    assert!(!has_server(&explanation, 1));
    assert!(!has_server(&explained(line, &[("KUBEFLOW_TRAINER_SERVER_URL", "https://kubeflow")]), 0));
    let (question, facts) = question(line, &[]);
    let script = rendered(&of(&question, &facts), &question, ExplainForm::Script(LocalRank(0)));
    assert!(!String::from_utf8(script).unwrap().contains("KUBEFLOW_"));
}

#[test]
fn log_folder_contains_given_run_id_or_is_none() {
    let explanation = explained("rankrun explain --rdzv-id a/b --log-dir /l x.py", &[]);
    let folder = PathBuf::from("/l/a_b_????????/attempt_0");
    assert_eq!(explanation.log_folder, Some(LaunchValue::AtLaunch(Pending::Path(folder))));
    let explanation = explained("rankrun explain --log-dir /dev/null -r 3 x.py", &[]);
    assert_eq!(explanation.log_folder, None);
    assert_eq!(variable(&explanation, "TORCHELASTIC_ERROR_FILE").value, known(""));
    assert_eq!(explanation.ranks[0].stdout, StreamTarget::File { file: known("/dev/null") });
}

#[test]
fn environment_is_complete_in_launch_order() {
    let explanation = explained("rankrun explain x.py", &[("RANK", "9"), ("A", "1"), ("A", "2")]);
    let names: Vec<&str> =
        explanation.ranks[0].environment.iter().map(|entry| entry.name.0.to_str().unwrap()).collect();
    assert_eq!(names[..4], ["A", "A", "PATH", "LOCAL_RANK"]);
    assert_eq!(names.iter().filter(|name| **name == "RANK").count(), 1);
}

#[test]
fn c10d_rendezvous_shows_endpoint_and_port() {
    let store = explained("rankrun explain --rdzv-backend c10d --rdzv-endpoint h x.py", &[]).store;
    assert_eq!(store.port, LaunchValue::AtLaunch(Pending::FreePort));
    assert_eq!(store.endpoint, Some(EndpointSummary { host: "h".to_owned(), port: known("29400") }));
}

#[test]
fn explanation_json_has_expected_shape() {
    let (mut question, facts) = question("rankrun explain --nproc-per-node 2 --stdin 1 tool", &[("B", "1")]);
    question.spec.stop.grace = Duration::from_millis(1500);
    question.spec.args = vec![OsStr::from_bytes(b"\xff").to_owned()];
    question.form = ExplainForm::Json;
    let json: serde_json::Value =
        serde_json::from_slice(&render(&of(&question, &facts), &question, Style::Plain)).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["name"], "rankrun");
    assert_eq!(json["working_folder"], "/job");
    assert_eq!(json["signals"]["grace_seconds"], 1.5);
    assert_eq!(json["store"]["port"]["at_launch"], "free_port");
    let worker = &json["ranks"][0];
    assert_eq!(worker["program"], "/usr/bin/tool");
    assert_eq!(worker["argv"][0], "tool");
    assert_eq!(worker["argv"][1]["bytes"], serde_json::json!([255]));
    assert_eq!((&worker["stdin"], &json["ranks"][1]["stdin"]), (&"nothing".into(), &"launcher".into()));
    assert_eq!(worker["stdout"], serde_json::json!({"to": "console", "prefix": null, "file": null}));
    assert_eq!(
        worker["error_file"]["pattern"].as_str().map(|text| text.ends_with("/0/error.json")),
        Some(true)
    );
    assert_eq!(worker["environment"][0], serde_json::json!({"name": "B", "value": "1"}));
    let source = serde_json::json!({"kind": "option", "name": "--nproc-per-node"});
    let world_size = worker["variables"].as_array().unwrap().iter().find(|row| row["name"] == "WORLD_SIZE");
    assert_eq!(world_size.unwrap()["source"], source);
}

#[test]
fn explanation_text_lists_settings_and_ranks() {
    let line = "rankrun explain --nproc-per-node 2 --leave-out 1 --master-port 29511 -t 1 x.py";
    let (mut question, facts) = question(line, &[("ROLE_NAME", "x")]);
    question.spec.args.push("it's".into());
    question.notices = vec![Notice::SingleOmpThread];
    let text = String::from_utf8(render(&of(&question, &facts), &question, Style::Plain)).unwrap();
    assert!(text.contains("\nwarning: Setting OMP_NUM_THREADS "), "{text}");
    for line in [
        "rankrun would start 2 workers on this node; nothing was started",
        "  nproc-per-node  2       command line",
        "  store           127.0.0.1, port 29511, opened by agent",
        "  SIGKILL         30 s after a stop began",
        "  ROLE_NAME                        default                        default, was x",
        "  WORLD_SIZE                       2                              --nproc-per-node",
        "rank 1 (local rank 1, cpu:1, started by hand)",
        r"  runs        /usr/bin/python3 -u x.py 'it'\''s'",
        "  stderr      console",
        "  stderr      the terminal that starts it",
        "  RANK                     1",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    assert!(!text.contains('\x1b'));
    let coloured = render(&of(&question, &facts), &question, Style::Coloured);
    assert!(String::from_utf8(coloured).unwrap().contains("\x1b[1;33mwarning:\x1b[0m"));
}

/// Compares the whole text with a file; `RANKRUN_UPDATE=1` writes it anew.
#[track_caller]
#[expect(clippy::disallowed_methods, reason = "a test that rewrites its files")]
fn assert_text(name: &str, config: &'static str, words: &str, environment: &[(&str, &str)]) {
    let world = FakeWorld::default().file("/job/c.toml", config.as_bytes());
    let (question, facts) = question_in(world, &format!("rankrun explain {words}"), environment);
    let text = String::from_utf8(render(&of(&question, &facts), &question, Style::Plain)).unwrap();
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/explain_tests/{}.txt"), name);
    if std::env::var_os("RANKRUN_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{name}");
}

#[test]
fn explanation_text_matches_reference_file() {
    let config = "[launch]\ngrace = 9\nmax-restarts = 3\nstdin = \"none\"\n[restart]\ndelay = \"1s\"\n";
    let options = "--config c.toml --max-restarts 2 --nproc-per-node 2 x.py --lr 0.1";
    let environment = [("RANKRUN_GRACE", "5"), ("PET_MAX_RESTARTS", "1"), ("PET_ROLE", "trainer")];
    assert_text("brief", config, options, &environment);
    assert_text("all", config, &format!("--all {options}"), &environment);
}

#[test]
fn devices_and_cpus_are_listed_per_rank() {
    let mut machine = rankrun_core::device::fake::cuda(2);
    let id = |id: u32| rankrun_core::device::Cpu { id, package: 0, siblings: vec![id], cache: vec![id] };
    let node = |id: u32| rankrun_core::device::NumaNode { id, cpus: vec![2 * id, 2 * id + 1] };
    machine.cpus = Some(rankrun_core::device::CpuLayout {
        nodes: vec![node(0), node(1)],
        cpus: (0..4).map(id).collect(),
    });
    machine.accelerators[0].numa_node = Some(0);
    machine.accelerators[1].numa_node = Some(1);
    let (name, pci) = (machine.accelerators[1].name.clone(), machine.accelerators[1].pci.unwrap());
    let uuid = machine.accelerators[1].uuid.clone();
    let world = FakeWorld::default().machine(machine).cpus(4);
    let line = "rankrun explain --devices 1,0 --numa-binding node x.py";
    let (mut question, facts) = question_in(world, line, &[("CUDA_VISIBLE_DEVICES", "0,1"), ("A", "1")]);
    let explanation = of(&question, &facts);
    let text = String::from_utf8(rendered(&explanation, &question, ExplainForm::Full)).unwrap();
    let device = format!(
        "  device      GPU 1 {name} ({pci}), NUMA node 1, by --devices 1 within CUDA_VISIBLE_DEVICES"
    );
    for line in [
        "rank 0 (local rank 0, cuda:0)",
        device.as_str(),
        "  CPUs        2-3",
        "  devices 1,0 command line",
        "  device-type cuda default",
        "  device-visibility all default",
        "  numa-binding node command line",
        "  check-devices no default",
    ] {
        let split = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(text.lines().any(|found| split(found) == split(line)), "no `{line}` in\n{text}");
    }
    assert!(!text.contains("warning: rank"), "{text}");
    let visible = variable(&explanation, "CUDA_VISIBLE_DEVICES");
    assert_eq!((visible.value, visible.source), (known("1,0"), option("--devices")));
    assert_eq!(visible.was, Some(Text("0,1".into())));
    let json = as_json(&explanation, &question);
    let card = &json["ranks"][0]["card"];
    assert_eq!((&card["index"], &card["name"], &card["uuid"]), (&"1".into(), &name.into(), &uuid.into()));
    assert_eq!(card["pci"], pci.to_string());
    assert_eq!(card["chosen_by"], "--devices 1 within CUDA_VISIBLE_DEVICES");
    assert_eq!(json["ranks"][0]["cpus"], serde_json::json!([2, 3]));
    question.form = ExplainForm::Script(LocalRank(0));
    let script = String::from_utf8(render(&explanation, &question, Style::Plain)).unwrap();
    assert!(script.contains("# A launch binds it to the CPUs 2-3"), "{script}");
}

#[test]
fn signals_section_has_what_workers_get() {
    let signals = |options: &str| {
        let environment = options.strip_suffix(" auto").map(|_| ("RANKRUN_STOP_SIGNAL_TO", "auto"));
        let options = options.trim_end_matches(" auto");
        let (question, facts) = question(&format!("rankrun explain{options} x.py"), environment.as_slice());
        let explanation = of(&question, &facts);
        let text = String::from_utf8(rendered(&explanation, &question, ExplainForm::Full)).unwrap();
        let rows: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  workers get")).collect();
        let json = as_json(&explanation, &question);
        let json = ["worker_signal", "worker_signal_to"].map(|name| json["signals"][name].clone());
        (rows.concat().trim().to_owned(), json)
    };
    let auto = "; Python and rankrun-worker programs alone, others with their group";
    let given = format!("the signal that stops the job{auto}");
    let int = format!("SIGINT, whichever signal stops the job{auto}");
    for (options, text, signal, target) in [
        ("", given.as_str(), None, "auto"),
        (" torchrun", "", None, "group"),
        (" torchrun auto", &given, None, "auto"),
        (" --stop-signal INT", &int, Some("SIGINT"), "auto"),
        (" --stop-signal-to group", "", None, "group"),
        (" --stop-signal-to rank", "the signal that stops the job, each rank alone", None, "rank"),
        (
            " --stop-signal USR1 --stop-signal-to rank",
            "SIGUSR1, whichever signal stops the job, each rank alone",
            Some("SIGUSR1"),
            "rank",
        ),
    ] {
        let json = [serde_json::json!(signal), serde_json::json!(target)];
        assert_eq!(signals(options), (text.to_owned(), json), "{options}");
    }
}

#[test]
fn single_worker_has_no_common_section() {
    let (question, facts) = question("rankrun explain x.py", &[]);
    let text = String::from_utf8(render(&of(&question, &facts), &question, Style::Plain)).unwrap();
    assert!(text.starts_with("rankrun would start 1 worker on"), "{text}");
    assert!(!text.contains("every rank"), "{text}");
    let workers = LocalWorldSize::new(1).unwrap();
    assert_eq!(question.spec.workers, workers);
    assert_eq!(question.spec.external_worker, None::<LocalRank>);
}

mod nodes;
mod origins;
