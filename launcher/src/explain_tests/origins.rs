//! Where the value of each setting is from, and which places lost.

use super::*;

/// A line of the settings behind its name, as `--all` has it.
fn setting_text(config: &'static str, options: &str, environment: &[(&str, &str)], name: &str) -> String {
    let world = FakeWorld::default().machine(rankrun_core::device::fake::cuda(1));
    let line = format!("rankrun explain --all {options} x.py").replace("  ", " ");
    let (question, facts) = question_in(world.file("/job/c.toml", config.as_bytes()), &line, environment);
    let text = String::from_utf8(render(&of(&question, &facts), &question, Style::Plain)).unwrap();
    let settings = text.split("\n\n").find(|section| section.starts_with("settings\n")).unwrap();
    let line = settings.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.map_or_else(String::new, |line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
}

#[test]
fn part_of_endpoint_names_the_place_that_lost() {
    let config = "[launch]\nrdzv-endpoint = \"f:1\"\n";
    let endpoint = [("PET_RDZV_ENDPOINT", "h:7")];
    let place = "--master-addr a --master-port 3";
    for (options, environment, name, text) in [
        (place, &endpoint[..], "master-addr", "h PET_RDZV_ENDPOINT, over --master-addr"),
        (place, &endpoint, "master-port", "7 PET_RDZV_ENDPOINT, over --master-port"),
        ("--config c.toml", &endpoint, "rdzv-endpoint", "h:7 PET_RDZV_ENDPOINT, over c.toml:2"),
        ("--config c.toml", &endpoint, "master-addr", "h PET_RDZV_ENDPOINT, over c.toml:2"),
        ("--master-addr a", &[], "master-addr", "127.0.0.1 default, over --master-addr"),
        (
            "--rdzv-endpoint= --master-port 3",
            &[],
            "rendezvous",
            "static command line, --master-port, over --rdzv-endpoint",
        ),
        (
            "--standalone --rdzv-backend c10d",
            &[],
            "rendezvous",
            "standalone command line, --standalone, over --rdzv-backend",
        ),
        ("--standalone --rdzv-id 7", &[], "rdzv-id", "(fresh at launch) default, over --rdzv-id"),
        (
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h --rdzv-conf last_call_timeout=4,join_timeout=600",
            &[("RANKRUN_JOIN_TIMEOUT", "600")],
            "join-timeout",
            "10m command line, --rdzv-conf, over RANKRUN_JOIN_TIMEOUT",
        ),
    ] {
        assert_eq!(
            setting_text(config, options, environment, name),
            text,
            "{options} {environment:?} {name}"
        );
    }
}

#[test]
fn setting_with_two_names_names_each_place_that_lost() {
    let config = "[launch]\nvirtual-local-rank = true\ncheck-devices = true\n[stop]\ngrace = 9\n[stop.grace-for]\n\
                  failure = 20\n";
    let grace = [("RANKRUN_GRACE", "4"), ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")];
    let exclude = [("RANKRUN_EXCLUDE_UNHEALTHY", "1")];
    let level = [("RANKRUN_VERBOSE", "1"), ("LOGLEVEL", "INFO")];
    for (options, environment, name, text) in [
        (
            "--grace 1 --shutdown-timeout 2",
            &grace[..],
            "grace",
            "2s command line, --shutdown-timeout, over --grace and RANKRUN_GRACE and c.toml:5 and \
             TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        ),
        (
            "--shutdown-timeout 2 --grace 1",
            &[],
            "shutdown-timeout",
            "1s command line, --grace, over --shutdown-timeout and c.toml:5",
        ),
        ("", &grace[..1], "grace-for.failure", "4s RANKRUN_GRACE, over c.toml:7"),
        ("", &[], "grace-for.failure", "20s c.toml:7"),
        ("", &[], "grace-for.signal", "- default"),
        (
            "--device-visibility all",
            &[],
            "virtual-local-rank",
            "no command line, --device-visibility, over c.toml:2",
        ),
        ("", &[], "device-visibility", "own c.toml:2"),
        (
            "--check-devices",
            &exclude,
            "check-devices",
            "exclude RANKRUN_EXCLUDE_UNHEALTHY, over --check-devices and c.toml:3",
        ),
        ("-vv", &level, "verbose", "2 command line, over RANKRUN_VERBOSE and LOGLEVEL"),
        ("", &level[1..], "verbose", "INFO LOGLEVEL"),
        ("", &grace[..1], "shutdown-timeout", "4s RANKRUN_GRACE, over c.toml:5"),
    ] {
        let options = format!("--config c.toml {options}");
        let options = options.trim();
        assert_eq!(
            setting_text(config, options, environment, name),
            text,
            "{options} {environment:?} {name}"
        );
    }
    assert_eq!(setting_text("", "--device-visibility own", &[], "virtual-local-rank"), "no default");
}

#[test]
fn flag_that_is_switched_off_names_its_place() {
    let config = "[launch]\nquiet = true\noversubscribe = false\nstandalone = true\n";
    for (options, environment, name, text) in [
        ("", &[("RANKRUN_QUIET", "0")][..], "quiet", "no RANKRUN_QUIET, over c.toml:2"),
        (
            " --quiet --quiet",
            &[("RANKRUN_QUIET", "0")],
            "quiet",
            "yes command line, over RANKRUN_QUIET and c.toml:2",
        ),
        ("", &[], "quiet", "yes c.toml:2"),
        ("", &[], "oversubscribe", "no c.toml:3"),
        ("", &[("RANKRUN_OVERSUBSCRIBE", "1")], "oversubscribe", "yes RANKRUN_OVERSUBSCRIBE, over c.toml:3"),
        ("", &[("PET_STANDALONE", "0")], "standalone", "no PET_STANDALONE, over c.toml:4"),
        ("", &[("PET_STANDALONE", "0")], "rendezvous", "standalone default"),
    ] {
        let options = format!("--config c.toml{options}");
        assert_eq!(setting_text(config, &options, environment, name), text, "{environment:?} {name}");
    }
}

/// The whole answer, to people and as JSON.
#[test]
fn option_given_twice_in_variable_and_in_config_shows_each_place() {
    let config = "[launch]\nquiet = true\nrole = \"a\"\n[restart]\nmax-restarts = 3\n[stop]\ngrace = 9\n\
                  [stop.grace-for]\nfailure = 20\n";
    let options =
        "--config c.toml --max-restarts 1 --max_restarts 2 --grace 4 --shutdown-timeout 5 --stop-signal INT";
    let environment = [
        ("PET_MAX_RESTARTS", "7"),
        ("RANKRUN_GRACE", "8"),
        ("RANKRUN_QUIET", "0"),
        ("PET_ROLE", "b"),
        ("RANKRUN_STOP_SIGNAL", "TERM"),
    ];
    assert_text("places", config, &format!("{options} x.py"), &environment);
    let world = FakeWorld::default().file("/job/c.toml", config.as_bytes());
    let (question, facts) =
        question_in(world, &format!("rankrun explain --json {options} x.py"), &environment);
    let json = as_json(&of(&question, &facts), &question);
    let settings = json["settings"].as_array().unwrap();
    let restarts: Vec<_> = settings.iter().filter(|setting| setting["name"] == "max-restarts").collect();
    let typed = serde_json::json!({"kind": "option", "name": "--max-restarts"});
    let expected = serde_json::json!({
        "name": "max-restarts",
        "value": "2",
        "source": typed,
        "default": null,
        "has_effect": true,
        "overrides": [
            typed,
            {"kind": "variable", "name": "PET_MAX_RESTARTS"},
            {"kind": "file", "path": "c.toml", "line": 5},
        ],
    });
    assert_eq!(restarts, [&expected]);
    let lease = settings.iter().find(|setting| setting["name"] == "lease").unwrap();
    assert_eq!(
        (&lease["value"], &lease["default"]),
        (&serde_json::Value::Null, &"5; torchrun's launchers have 15".into())
    );
}

#[test]
fn setting_said_twice_names_what_it_overrides() {
    let config =
        || FakeWorld::default().file("/job/c.toml", b"[launch]\ngrace = 9\nlog-dir = \"l\"\nquiet = true\n");
    let overrides = |line: &str, environment: &[(&str, &str)], name: &str| {
        let (question, facts) = question_in(config(), line, environment);
        let setting =
            of(&question, &facts).settings.into_iter().find(|setting| setting.name == name).unwrap();
        (setting.source, setting.overrides)
    };
    let file = |line| SettingOrigin::File { path: "c.toml".to_owned(), line };
    let line = "rankrun explain --config c.toml x.py";
    let grace = [("RANKRUN_GRACE", "5")];
    assert_eq!(overrides(line, &grace, "grace"), (by_variable("RANKRUN_GRACE"), vec![file(2)]));
    assert_eq!(overrides(line, &[("RANKRUN_GRACE", "")], "grace"), (file(2), vec![]));
    let typed = "rankrun explain --config c.toml --grace 1 x.py";
    let both = vec![by_variable("RANKRUN_GRACE"), file(2)];
    assert_eq!(overrides(typed, &grace, "grace"), (option("--grace"), both));
    // An empty folder is the default one, and hides the file's.
    let empty = "rankrun explain --config c.toml --log-dir= x.py";
    assert_eq!(
        overrides(empty, &[], "log-dir"),
        (SettingOrigin::Default, vec![option("--log-dir"), file(3)])
    );
}

#[test]
fn setting_that_launch_does_not_use_is_marked() {
    let standalone = "--standalone --rdzv-backend c10d --rdzv-endpoint a:1";
    let run_path = "--run-path --module --no-python";
    let c10d = "--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint h:1";
    let conf = [("PET_RDZV_CONF", "join_timeout=7"), ("RANKRUN_JOIN_TIMEOUT", "8")];
    let two_keys = [("PET_RDZV_CONF", "join_timeout=7,is_host=1"), ("RANKRUN_JOIN_TIMEOUT", "8")];
    for (options, environment, name, text) in [
        (standalone, &[][..], "standalone", "yes command line"),
        (standalone, &[], "rdzv-backend", "c10d command line; no effect"),
        (standalone, &[], "rdzv-endpoint", "a:1 command line; no effect"),
        (run_path, &[], "run-path", "yes command line"),
        (run_path, &[], "module", "yes command line; no effect"),
        (run_path, &[], "no-python", "yes command line; no effect"),
        ("--run-path", &[("PET_MODULE", "1")], "module", "yes PET_MODULE; no effect"),
        ("", &[("LOGLEVEL", "bogus")], "verbose", "bogus LOGLEVEL; no effect"),
        ("-v", &[("LOGLEVEL", "bogus")], "verbose", "1 command line, over LOGLEVEL"),
        (c10d, &conf, "rdzv-conf", "join_timeout=7 PET_RDZV_CONF; no effect"),
        (c10d, &conf, "join-timeout", "8s RANKRUN_JOIN_TIMEOUT, over PET_RDZV_CONF"),
        (c10d, &conf[..1], "rdzv-conf", "join_timeout=7 PET_RDZV_CONF"),
        (c10d, &two_keys, "rdzv-conf", "join_timeout=7,is_host=1 PET_RDZV_CONF"),
        ("", &conf[1..], "join-timeout", "8 RANKRUN_JOIN_TIMEOUT; no effect"),
        (
            "--device-type cpu",
            &[("RANKRUN_DEVICE_ORDER", "pci")],
            "device-order",
            "pci RANKRUN_DEVICE_ORDER; no effect",
        ),
        ("", &[("RANKRUN_DEVICE_ORDER", "pci")], "device-order", "pci RANKRUN_DEVICE_ORDER"),
    ] {
        assert_eq!(setting_text("", options, environment, name), text, "{options} {environment:?} {name}");
    }
    let (question, facts) = question("rankrun explain --json --standalone --rdzv-endpoint a:1 x.py", &[]);
    let json = as_json(&of(&question, &facts), &question);
    let settings = json["settings"].as_array().unwrap().iter();
    let idle: Vec<_> = settings.filter(|setting| setting["has_effect"] == false).collect();
    assert_eq!(idle.iter().map(|setting| &setting["name"]).collect::<Vec<_>>(), ["rdzv-endpoint"]);
}

#[test]
fn setting_without_value_shows_its_default() {
    let torchs = [("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")];
    let line = setting_text("", "", &torchs, "shutdown-timeout");
    assert_eq!(line, "7s TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    for (options, name, text) in [
        ("", "store-limit", "1GiB default"),
        ("", "device-order", "as-listed default"),
        ("", "check-devices", "no default"),
        ("", "progress-dir", "- default"),
        ("--rdzv-conf=", "rdzv-conf", "'' command line; no effect"),
        ("", "stop-signal-to", "auto default"),
        ("torchrun", "stop-signal-to", "group default"),
        ("", "log-line-prefix-template", "'[${role_name}${local_rank}]:' default"),
        ("", "leftover-grace", "30s default"),
        ("torchrun", "leftover-grace", "keep default"),
        ("", "shutdown-timeout", "30s default"),
    ] {
        assert_eq!(setting_text("", options, &[], name), text, "{options} {name}");
    }
}
