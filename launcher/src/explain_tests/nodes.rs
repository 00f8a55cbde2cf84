//! The plan of a launch on several nodes.

use super::*;

const AGREED: LaunchValue = LaunchValue::AtLaunch(Pending::Agreed);
const FIXED: &str = "rankrun explain --nnodes 3 --node-rank 1 --master-addr h --nproc-per-node 2 x.py";
const DYNAMIC: &str = "rankrun explain --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint h:7 --rdzv-id 7 --lease 2 \
                       --rdzv-conf last_call_timeout=4 --iface eth0 --port-range 5-9 --store-limit 2GiB x.py";

/// The settings of these names, as text.
fn values_and_sources(
    explanation: &Explanation,
    names: &[&str],
) -> Vec<(Option<LaunchValue>, SettingOrigin)> {
    let of = |name: &&str| explanation.settings.iter().find(|setting| setting.name == *name);
    let found = names.iter().map(|name| of(name).unwrap_or_else(|| panic!("no {name}")));
    found.map(|setting| (setting.value.clone(), setting.source.clone())).collect()
}

#[test]
fn values_agreed_by_nodes_are_marked() {
    let fixed = explained(FIXED, &[]);
    for (name, value, source) in [
        ("RANK", AGREED, SettingOrigin::Launcher),
        ("ROLE_RANK", AGREED, SettingOrigin::Launcher),
        ("RANKRUN_ROUND", AGREED, SettingOrigin::Launcher),
        ("WORLD_SIZE", AGREED, option("--nproc-per-node")),
        ("LOCAL_WORLD_SIZE", known("2"), option("--nproc-per-node")),
        ("GROUP_RANK", known("1"), option("--node-rank")),
        ("GROUP_WORLD_SIZE", known("3"), option("--nnodes")),
        ("MASTER_ADDR", known("h"), option("--master-addr")),
        ("MASTER_PORT", known("29500"), SettingOrigin::Default),
    ] {
        let found = variable(&fixed, name);
        assert_eq!((found.value, found.source), (value, source), "{name}");
    }
    assert_eq!(fixed.ranks.iter().map(|worker| worker.rank).collect::<Vec<_>>(), [None, None]);
    let first = explained(&FIXED.replace("--node-rank 1", "--node-rank 0"), &[]);
    assert_eq!(first.ranks.iter().map(|worker| worker.rank).collect::<Vec<_>>(), [Some(0), Some(1)]);

    let dynamic = explained(DYNAMIC, &[]);
    for name in [
        "RANK",
        "WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANKRUN_ROUND",
    ] {
        assert_eq!(variable(&dynamic, name).value, AGREED, "{name}");
    }
    let interface = variable(&dynamic, "GLOO_SOCKET_IFNAME");
    assert_eq!((interface.value, interface.source), (known("eth0"), option("--iface")));
    assert_eq!(variable(&dynamic, "TP_SOCKET_IFNAME").value, known("eth0"));
    let agreed = (Some(AGREED), SettingOrigin::Default);
    assert_eq!(values_and_sources(&dynamic, &["master-addr", "master-port"]), [agreed.clone(), agreed]);
    assert_eq!((&dynamic.store.host, &dynamic.store.port), (&AGREED, &AGREED));
    let same = explained(&DYNAMIC.replace("2:4", "2"), &[]);
    assert_eq!(variable(&same, "GROUP_WORLD_SIZE").value, known("2"));
}

#[test]
fn node_rank_of_pod_index_has_its_origin() {
    let variable_of = |name: &str| SettingOrigin::Variable { name: name.to_owned() };
    let index = [("JOB_COMPLETION_INDEX", "2")];
    let from_pod = explained(&FIXED.replace("--node-rank 1 ", ""), &index);
    let origin = variable_of("JOB_COMPLETION_INDEX");
    assert_eq!(values_and_sources(&from_pod, &["node-rank"]), [(Some(known("2")), origin.clone())]);
    let rank = variable(&from_pod, "GROUP_RANK");
    assert_eq!((rank.value, rank.source), (known("2"), origin.clone()));
    // It loses to an option, and says nothing under the name torchrun or of a job without static ranks.
    let given = explained(FIXED, &index);
    assert_eq!(values_and_sources(&given, &["node-rank"]), [(Some(known("1")), option("--node-rank"))]);
    let line = given.settings.iter().find(|setting| setting.name == "node-rank").unwrap();
    assert_eq!(line.overrides, [origin]);
    let as_torchrun = FIXED.replace("--node-rank 1 ", "").replace("explain", "explain torchrun");
    for (line, value) in [(as_torchrun.as_str(), Some(known("0"))), (DYNAMIC, None)] {
        let found = values_and_sources(&explained(line, &index), &["node-rank"]);
        assert_eq!(found, [(value, SettingOrigin::Default)], "{line}");
    }
}

#[test]
fn multi_node_interfaces_are_listed_with_reason() {
    let names = ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"];
    let without = DYNAMIC.replace("--iface eth0 ", "");
    for line in [FIXED, &without] {
        let (question, facts) = question(line, &[("GLOO_SOCKET_IFNAME", "")]);
        let explanation = of(&question, &facts);
        for name in names {
            let found = variable(&explanation, name);
            assert_eq!(found.value, LaunchValue::AtLaunch(Pending::Interface), "{name}");
            let SettingOrigin::Because { reason } = found.source else { panic!("{:?}", found.source) };
            assert!(reason.starts_with("several hosts"), "{reason}");
        }
        let text = String::from_utf8(rendered(&explanation, &question, ExplainForm::Full)).unwrap();
        let line = text.lines().find(|line| line.contains("TP_SOCKET_IFNAME")).expect("a line");
        assert!(line.contains(" (interface of the way to the store) "), "{line}");
        assert!(line.ends_with(" several hosts: a host's own name may mean 127.0.0.1"), "{line}");
    }
    // The user's own value stays, and one host needs none.
    let listed = |line: &str, environment: &[(&str, &str)]| -> Vec<&str> {
        let variables = explained(line, environment).ranks.remove(0).variables;
        variables.iter().map(|variable| variable.name).filter(|name| names.contains(name)).collect()
    };
    assert_eq!(listed(FIXED, &[("GLOO_SOCKET_IFNAME", "ib0")]), ["TP_SOCKET_IFNAME"]);
    assert!(listed("rankrun explain x.py", &[]).is_empty());
}

#[test]
fn each_node_setting_names_its_source() {
    let names =
        ["nnodes", "node-rank", "join-timeout", "last-call", "lease", "iface", "port-range", "store-limit"];
    let values = |values: [(Option<&str>, SettingOrigin); 8]| {
        values.map(|(value, source)| (value.map(known), source)).to_vec()
    };
    let environment = [("RANKRUN_JOIN_TIMEOUT", "1m")];
    assert_eq!(
        values_and_sources(&explained(DYNAMIC, &environment), &names),
        values([
            (Some("2:4"), option("--nnodes")),
            (None, SettingOrigin::Default),
            (Some("1m"), by_variable("RANKRUN_JOIN_TIMEOUT")),
            (Some("4s"), option("--rdzv-conf")),
            (Some("2s"), option("--lease")),
            (Some("eth0"), option("--iface")),
            (Some("5-9"), option("--port-range")),
            (Some("2.0 GiB"), option("--store-limit")),
        ])
    );
    assert_eq!(
        values_and_sources(&explained(FIXED, &[]), &names[..5]),
        values([
            (Some("3"), option("--nnodes")),
            (Some("1"), option("--node-rank")),
            (Some("15m"), SettingOrigin::Default),
            (None, SettingOrigin::Default),
            (Some("5s"), SettingOrigin::Default),
            (None, SettingOrigin::Default),
            (None, SettingOrigin::Default),
            (None, SettingOrigin::Default),
        ])[..5]
    );
    let alone = explained("rankrun explain x.py", &[]);
    assert_eq!(values_and_sources(&alone, &["nnodes"]), [(Some(known("1")), SettingOrigin::Default)]);
    assert_eq!(values_and_sources(&alone, &names[1..]), vec![(None, SettingOrigin::Default); 7]);
}

#[test]
fn store_host_is_described_without_dns_lookup() {
    let host = |line: &str| explained(line, &[]).nodes.map(|nodes| nodes.store_opened_by);
    for (options, text) in [
        ("--rdzv-endpoint h:7", "the first launcher on the machine `h`"),
        ("--rdzv-endpoint localhost:7", "the first launcher on this machine"),
        ("--rdzv-endpoint [::1]:7", "the first launcher on this machine"),
        ("--rdzv-endpoint h:7 --rdzv-conf is_host=1", "this node"),
        ("--rdzv-endpoint localhost:7 --rdzv-conf is_host=0", "another node"),
    ] {
        let line = format!("rankrun explain --rdzv-backend c10d {options} x.py");
        assert_eq!(host(&line).as_deref(), Some(text), "{options}");
    }
    assert_eq!(host(FIXED).as_deref(), Some("the node with rank 0"));
    assert_eq!(host(&FIXED.replace("rank 1", "rank 0")).as_deref(), Some("this node"));
    assert_eq!(host("rankrun explain --master-port 5 x.py"), None);
}

#[test]
fn nodes_are_described_in_text_and_json() {
    let (mut question, facts) = question(DYNAMIC, &[]);
    let explanation = of(&question, &facts);
    let text = String::from_utf8(render(&explanation, &question, Style::Plain)).unwrap();
    for line in [
        "  store           of the node that gets rank 0",
        "  agents meet at  h, port 7",
        "  nodes           2 to 4",
        "  they meet in    a store that is opened by the first launcher on the machine `h`",
        "  waits for them  up to 600 s until there are 2, then 4 s for more",
        "  lost            a node that sends no heartbeat for 2 s is lost",
        "  reached by      eth0",
        "  listens on      ports 5 to 9",
        "rank ? (local rank 0, cpu:0)",
        "  RANK                             (agreed by the nodes)",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
    let json = as_json(&explanation, &question);
    assert_eq!(
        json["nodes"],
        serde_json::json!({
            "min": 2, "max": 4, "rendezvous": "c10d", "node_rank": null,
            "store_opened_by": "the first launcher on the machine `h`",
            "join_timeout_seconds": 600.0, "last_call_seconds": 4.0, "lease_seconds": 2.0,
            "local_addr": null, "interface": "eth0", "ports": {"first": 5, "last": 9},
        })
    );
    assert_eq!(json["store"]["host"]["at_launch"], "agreed_by_the_nodes");
    assert_eq!(json["ranks"][0]["rank"], serde_json::Value::Null);
    question.form = ExplainForm::Script(LocalRank(0));
    let script = String::from_utf8(render(&explanation, &question, Style::Plain)).unwrap();
    assert!(script.contains("It expects the store at $MASTER_ADDR:$MASTER_PORT"), "{script}");
    assert!(script.contains("`WORLD_SIZE` is not set: the nodes of the job agree on it"), "{script}");
}

#[test]
fn numbers_of_machine_come_from_scheduler_where_each_task_is_a_rank() {
    let step = [
        ("SLURM_JOB_ID", "9"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "n[1-2]"),
        ("SLURM_NODEID", "1"),
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
    ];
    let task = explained("rankrun explain x.py", &step);
    for (name, value, source) in
        [("GROUP_RANK", "1", "SLURM_NODEID"), ("GROUP_WORLD_SIZE", "2", "SLURM_STEP_NUM_NODES")]
    {
        let found = variable(&task, name);
        let source = SettingOrigin::Variable { name: source.to_owned() };
        assert_eq!((found.value, found.source), (known(value), source), "{name}");
    }
}
