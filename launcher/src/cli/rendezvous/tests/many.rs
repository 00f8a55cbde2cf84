//! Jobs of several nodes.

use std::time::Duration;

use super::*;

fn range(min: u32, max: u32) -> NodeRange {
    NodeRange { min: NodeCount::new(min).unwrap(), max: NodeCount::new(max).unwrap() }
}

fn refusal(line: &str, environment: &[(&str, &str)]) -> String {
    let error = try_launch(line, environment).expect_err(line);
    assert_eq!(error.exit_code(), 1, "{line}: {error}");
    assert!(error.hint().is_some(), "{line}: {error}");
    error.to_string()
}

fn times(line: &str) -> RoundTimes {
    match try_launch(line, &[]).unwrap().spec.rendezvous {
        RendezvousSpec::C10d { times, .. } | RendezvousSpec::Static { times, .. } => times,
        RendezvousSpec::Standalone { .. } => panic!("`{line}` has no times"),
    }
}

#[test]
fn static_rendezvous_is_hosted_by_node_rank_0() {
    for (line, spec) in [
        ("--nnodes 2", fixed_of(2, 0, ("none", "127.0.0.1", 29_500))),
        ("--nnodes 2 --node-rank 1", fixed_of(2, 1, ("none", "127.0.0.1", 29_500))),
        ("--nnodes 2:2 --master-addr h --master-port 5", fixed_of(2, 0, ("none", "h", 5))),
        ("--nnodes 3 --node-rank 2 --rdzv-endpoint [::1]:7 --rdzv-id j", fixed_of(3, 2, ("j", "::1", 7))),
        (
            "--nnodes= 2_0 --rdzv-backend static".replace("= ", "=").as_str(),
            fixed_of(20, 0, ("none", "127.0.0.1", 29_500)),
        ),
    ] {
        for name in ["rankrun", "torchrun"] {
            assert_eq!(chosen(&format!("{name} {line}"), &[]), (spec.clone(), vec![]), "`{line}`");
        }
    }
    let variables = [("PET_NNODES", "4"), ("PET_NODE_RANK", "3"), ("PET_MASTER_ADDR", "h")];
    assert_eq!(chosen("torchrun --role a", &variables).0, fixed_of(4, 3, ("none", "h", 29_500)));
    let (spec, said) = chosen("torchrun --nnodes 1:3", &[]);
    assert_eq!(spec, fixed_of(3, 0, ("none", "127.0.0.1", 29_500)));
    assert_eq!(said, ["--nnodes is 1:3, and a static rendezvous waits for all 3 nodes"]);
    let (spec, said) = chosen("torchrun --nnodes 2 --local-addr a", &[]);
    assert!(matches!(spec, RendezvousSpec::Static { local_addr: Some(addr), .. } if addr == "a"));
    assert_eq!(said, [""; 0]);
}

#[test]
fn pod_index_is_node_rank_of_static_job_unless_one_is_given() {
    let index = |index| [("JOB_COMPLETION_INDEX", index), ("PET_NNODES", "3"), ("PET_MASTER_ADDR", "h")];
    let rank = |line: &str, environment: &[(&str, &str)]| match try_launch(line, environment) {
        Ok(Launch { spec, .. }) => match spec.rendezvous {
            RendezvousSpec::Static { node_rank, .. } => Some(node_rank.0),
            RendezvousSpec::C10d { node_rank, .. } => node_rank.map(|rank| rank.0),
            RendezvousSpec::Standalone { .. } => None,
        },
        Err(error) => panic!("`{line}`: {error}"),
    };
    assert_eq!(rank("rankrun --role a", &index("2")), Some(2));
    assert_eq!(rank("rankrun --role a", &index("")), Some(0), "an empty value says nothing");
    // torchrun reads no such variable.
    assert_eq!(rank("torchrun --role a", &index("2")), Some(0));
    assert_eq!(rank("rankrun --node-rank 1", &index("2")), Some(1));
    assert_eq!(rank("rankrun --node-rank 1", &index("seven")), Some(1));
    assert_eq!(rank("rankrun --role a", &[&index("2")[..], &[("PET_NODE_RANK", "1")]].concat()), Some(1));
    // Pods that are jobs of their own, and nodes that are ordered by their addresses.
    assert_eq!(rank("rankrun --nnodes 1", &index("7")), None);
    assert_eq!(rank("rankrun --nnodes 1 --master-port 5", &index("7")), Some(0));
    assert_eq!(rank("rankrun --rdzv-backend c10d --rdzv-endpoint h", &index("7")), None);
    for (value, text) in [
        ("3", "`JOB_COMPLETION_INDEX` is `3`, and the node ranks of a job of 3 nodes are 0 to 2"),
        ("99999999999", "`JOB_COMPLETION_INDEX` is `99999999999`, and the node ranks of a job of 3 nodes"),
        ("-1", "`JOB_COMPLETION_INDEX` is `-1`, which is not the index of a pod, a whole number from 0"),
        ("1 ", "`JOB_COMPLETION_INDEX` is `1 `, which is not the index of a pod"),
        ("$(INDEX)", "`JOB_COMPLETION_INDEX` is `$(INDEX)`, which is not the index of a pod"),
    ] {
        let error = try_launch("rankrun --role a", &index(value)).expect_err(value);
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`--node-rank N`")), "{:?}", error.hint());
    }
}

#[test]
fn c10d_rendezvous_uses_endpoint() {
    let line = "--rdzv-backend c10d --rdzv-endpoint h --rdzv-id j --local-addr a --nnodes";
    let c10d = |line: &str| match chosen(line, &[]) {
        (RendezvousSpec::C10d { nodes, is_host, node_rank, local_addr, .. }, said) => {
            assert_eq!(local_addr.as_deref(), Some("a"));
            (nodes, is_host, node_rank.map(|rank| rank.0), said)
        }
        other => panic!("{other:?}"),
    };
    let (same, none) = (range(2, 2), Vec::<String>::new);
    assert_eq!(c10d(&format!("torchrun {line} 2")), (same, None, None, none()));
    assert_eq!(c10d(&format!("rankrun {line} 1:4")), (range(1, 4), None, None, none()));
    for (word, yes) in [("Yes", true), ("1", true), ("F", false), ("no", false), ("0", false)] {
        let found = c10d(&format!("rankrun {line} 2 --rdzv-conf is_host={word}"));
        assert_eq!(found, (same, Some(yes), None, none()), "{word}");
    }
    // A spare may have a rank that is none among the running nodes.
    assert_eq!(c10d(&format!("rankrun {line} 2 --node-rank 7")), (same, None, Some(7), none()));
    let ignored = vec!["--node-rank".to_owned()];
    assert_eq!(c10d(&format!("torchrun {line} 2 --node-rank 7")), (same, None, None, ignored.clone()));
    assert_eq!(c10d(&format!("rankrun {line} 1 --node-rank 7")), (NodeRange::ONE, None, None, ignored));
    let (_, said) = chosen("rankrun --nnodes 2 --rdzv-backend c10d", &[]);
    assert_eq!(
        said,
        [
            "no --rdzv-endpoint is given: this node meets others at localhost:29400; on other machines it needs the name of this one"
        ]
    );
}

#[test]
fn rendezvous_timeouts_come_from_rdzv_conf_or_options() {
    let (c10d, fixed) = ("rankrun --rdzv-backend c10d --nnodes 1:2", "rankrun --nnodes 2");
    // Under our own name the store's host may come as late as any other node.
    let usual = RoundTimes { connect: RoundTimes::default().join, ..RoundTimes::default() };
    assert_eq!(times(c10d), usual);
    assert_eq!(times(fixed), RoundTimes::static_defaults());
    let keys = "join_timeout=1,last_call_timeout=2,close_timeout=3,keep_alive_interval=4,keep_alive_max_attempt=5,\
                cas_backoff_max_seconds=.5,read_timeout=6,heartbeat_timeout=7,heartbeat=x,timeout=x";
    let seconds = Duration::from_secs;
    assert_eq!(
        times(&format!("{c10d} --rdzv-conf {keys}")),
        RoundTimes {
            join: seconds(1),
            last_call: seconds(2),
            close: seconds(3),
            keep_alive: seconds(4),
            keep_alive_attempts: 5,
            cas_backoff: Duration::from_millis(500),
            read: seconds(6),
            connect: seconds(6),
            lease: usual.lease,
        }
    );
    let waits = RoundTimes { join: seconds(9), read: seconds(9), connect: seconds(9), ..usual };
    assert_eq!(times(&format!("{fixed} --rdzv-conf timeout=9,join_timeout=x")), waits);
    let huge = times(&format!(
        "{c10d} --rdzv-conf join_timeout=99999999999999999999,keep_alive_max_attempt=9999999999"
    ));
    assert_eq!((huge.join, huge.keep_alive_attempts), (rankrun_core::spec::MAX_DURATION, u32::MAX));

    let ours = times(&format!("{c10d} --lease 2s --join-timeout 2m --last-call 1.5"));
    assert_eq!((ours.lease, ours.join, ours.connect), (seconds(2), seconds(120), seconds(120)));
    assert_eq!(ours.last_call, Duration::from_millis(1500));
    let waits = RoundTimes { join: seconds(120), read: seconds(120), connect: seconds(120), ..usual };
    assert_eq!(times(&format!("{fixed} --join-timeout 2m")), waits);
    // What is typed counts before a variable, whichever of the two it is.
    let launch = |line: &str, variable| match try_launch(line, &[variable]).unwrap().spec.rendezvous {
        RendezvousSpec::C10d { times, .. } => times.join,
        other => panic!("{other:?}"),
    };
    let conf = ("PET_RDZV_CONF", "join_timeout=7");
    assert_eq!(launch(&format!("{c10d} --join-timeout 5"), conf), seconds(5));
    let option = ("RANKRUN_JOIN_TIMEOUT", "5");
    assert_eq!(launch(&format!("{c10d} --rdzv-conf join_timeout=7"), option), seconds(7));
    assert_eq!(launch("torchrun --rdzv-backend c10d", option), seconds(5));
}

#[test]
fn invalid_multi_node_settings_are_refused() {
    let many = "which is not a number of nodes from 1 to 65536, or MIN:MAX";
    for (line, text) in [
        ("--nnodes 65537", format!("`--nnodes` is `65537`, {many}")),
        ("--nnodes 1:99999999999999999999", format!("`--nnodes` is `1:99999999999999999999`, {many}")),
        ("--nnodes 2:1", format!("`--nnodes` is `2:1`, {many}")),
        ("--nnodes 0:2", format!("`--nnodes` is `0:2`, {many}")),
        ("--nnodes 1:2:3", format!("`--nnodes` is `1:2:3`, {many}")),
        ("--nnodes=", format!("`--nnodes` is empty, {many}")),
        (
            "--nnodes 2 --node-rank 2",
            "`--node-rank` is `2`, and the node ranks of a job of 2 nodes are 0 to 1".to_owned(),
        ),
        (
            "--nnodes 2 --node-rank -1",
            "`--node-rank` is `-1`, and the node ranks of a job of 2 nodes".to_owned(),
        ),
        (
            "--nnodes 2 --rdzv-endpoint h:1 --node-rank 5",
            "`--node-rank` is `5`, and the node ranks".to_owned(),
        ),
        (
            "--nnodes 2 --master-port 0",
            "`--master-port` is `0`, which is not a port from 1 to 65535".to_owned(),
        ),
        (
            "--nnodes 2 --rdzv-endpoint h:0",
            "`--rdzv-endpoint` is `h:0`, which is not HOST:PORT with".to_owned(),
        ),
        (
            "--standalone --nnodes 2",
            "`--nnodes` is `2`, and no other node can find a store on a free port".to_owned(),
        ),
        (
            "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint localhost:0",
            "`--nnodes` is `2:3`, and no other node can find a store on a free port".to_owned(),
        ),
        (
            "--standalone --rdzv-conf is_host=0",
            "`--rdzv-conf` has the item `is_host=0`, and a job of one node has no other node".to_owned(),
        ),
    ] {
        for name in ["rankrun", "torchrun"] {
            let said = refusal(&format!("{name} {line}"), &[]);
            assert!(said.starts_with(&text), "`{line}`: {said}");
        }
    }
    let said = refusal("torchrun --standalone", &[("PET_NNODES", "2")]);
    assert!(said.starts_with("`PET_NNODES` is `2`, and no other node"), "{said}");
    // Where one node is enough nothing is waited for in vain.
    for name in ["rankrun", "torchrun"] {
        let (spec, said) = chosen(&format!("{name} --standalone --nnodes 1:4"), &[]);
        assert_eq!(spec, standalone(UUID));
        assert_eq!(said, ["--nnodes is 1:4, and no other node can find a store on a free port"]);
    }
}

#[test]
fn empty_run_id_is_refused_for_several_nodes() {
    for line in ["--nnodes 3", "--nnodes 3 --rdzv-endpoint h:7", "--nnodes 3 --rdzv-backend c10d"] {
        for name in ["rankrun", "torchrun"] {
            let words = "is empty, and each of 3 nodes would make up a run id that no other node has";
            let said = refusal(&format!("{name} {line} --rdzv-id="), &[]);
            assert_eq!(said, format!("`--rdzv-id` {words}"), "{name} {line}");
            let said = refusal(&format!("{name} {line}"), &[("PET_RDZV_ID", "")]);
            assert_eq!(said, format!("`PET_RDZV_ID` {words}"), "{name} {line}");
        }
    }
    let line = "--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint h --rdzv-id=";
    let said = refusal(&format!("rankrun {line}"), &[]);
    assert!(said.contains("each of 1 to 4 nodes would"), "each would do the whole of it: {said}");
    let (_, said) = chosen(&format!("torchrun {line}"), &[]);
    assert_eq!(said, ["the run id is empty, so it is 7"], "torchrun does the same");
}

#[test]
fn settings_for_wrong_node_count_are_refused() {
    let c10d = "--rdzv-backend c10d --rdzv-endpoint h:1";
    for (line, text) in [
        (format!("--nnodes 2 {c10d} --start-timeout 5"), "`--start-timeout` needs the launcher's own store"),
        (format!("{c10d} --lease 1.9"), "`--lease` is `1.9`, which is not a time of 2 s or more"),
        (format!("{c10d} --lease 0"), "`--lease` is `0`, which is not a time of 2 s or more"),
        (format!("{c10d} --lease soon"), "`--lease` is `soon`, which is not a time of 2 s or more"),
        (format!("{c10d} --join-timeout 0"), "`--join-timeout` is `0`, which is not a time above 0"),
        ("--lease 5".to_owned(), "`--lease` is given, but `--nnodes` above 1 is not"),
        (
            "--master-port 5 --join-timeout 5".to_owned(),
            "`--join-timeout` is given, but `--nnodes` above 1 is not",
        ),
        ("--nnodes 2 --last-call 5".to_owned(), "`--last-call` is given, but `--rdzv-backend c10d` is not"),
        (
            format!("--nnodes 2 {c10d} --join-timeout 5 --rdzv-conf join_timeout=6"),
            "`--join-timeout` is `5s`, and `--rdzv-conf` is `join_timeout=6`: both say the same thing, and differ",
        ),
        (
            format!("{c10d} --nnodes 2 --node-rank -1"),
            "`--node-rank` is `-1`, which is not a node rank from 0",
        ),
        (
            format!("{c10d} --local-addr a/b"),
            "`--local-addr` is `a/b`, which is not a host name or an address",
        ),
        (
            "--nnodes 2 --restart-rules node=2:fail".to_owned(),
            "`--restart-rules` has the rule `node=2:fail`, which can never match: the node ranks are 0 to 1",
        ),
    ] {
        let said = refusal(&format!("rankrun {line}"), &[]);
        assert!(said.starts_with(text), "`{line}`: {said}");
    }
    // A variable holds for many jobs, and other nodes have other ranks.
    let variables = [("RANKRUN_LEASE", "5"), ("RANKRUN_LAST_CALL", "5"), ("RANKRUN_JOIN_TIMEOUT", "5")];
    for line in ["torchrun --role a", "rankrun --role a", "rankrun --nnodes 2"] {
        assert!(try_launch(line, &variables).is_ok(), "{line}");
    }
    let rules =
        "rankrun --nnodes 2 --restart-rules rank=9+node=1:fail,rank=9:requeue,node=0:fail,node=1:requeue";
    assert!(try_launch(rules, &[]).is_ok());
    assert!(refusal(&format!("{rules},exit=3:fail"), &[]).contains("can never match"));
    assert!(
        try_launch("rankrun --nnodes 2 --rdzv-backend c10d --rdzv-conf join_timeout=5 --join-timeout 5", &[])
            .is_ok()
    );
}

#[test]
fn identical_worker_shortcut_has_no_effect() {
    let identical = [("TORCH_ELASTIC_WORKER_IDENTICAL", "1")];
    for line in ["torchrun --nnodes 2", "rankrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h"] {
        assert_eq!(chosen(line, &identical).1, ["TORCH_ELASTIC_WORKER_IDENTICAL"]);
    }
    assert_eq!(chosen("torchrun --role a", &identical).1, [""; 0]);
    assert_eq!(chosen("torchrun --nnodes 2", &[("TORCH_ELASTIC_WORKER_IDENTICAL", "0")]).1, [""; 0]);
}

#[test]
fn invalid_endpoint_is_refused_by_rankrun_and_torchrun() {
    let none = "which is not HOST or HOST:PORT, with a port from 0 to 65535 and an IPv6 address in brackets";
    for endpoint in [
        "tcp://h:1",
        "h:",
        "h:x",
        "h:-1",
        "h:+1",
        "h:65536",
        "h:000001",
        "h:1.5",
        ":1",
        "[]",
        "[]:1",
        "[h",
        "h]:1",
        "[::1]:",
        "[::1]x:1",
        "[a]:[b]",
        "h/:1",
        "h:1/",
        "h%eth0:1",
        "a,b:1",
        "h:1,h:2",
        "h@x:1",
        "h\u{7f}:1",
        "[fe80::1%eth0]:1",
        "h:１",
    ] {
        for name in ["rankrun", "torchrun"] {
            for backend in ["static", "c10d"] {
                let line = format!("{name} --nnodes 2 --rdzv-backend {backend} --rdzv-endpoint={endpoint}");
                let expected = format!("`--rdzv-endpoint` is `{endpoint}`, {none}");
                assert_eq!(refusal(&line, &[]), expected, "{line}");
            }
        }
    }
    for endpoint in ["::1", "::", "fd00::2:7", "2001:db8::1:29400"] {
        let line = |name| format!("{name} --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {endpoint}");
        let said = refusal(&line("rankrun"), &[]);
        let expected = "which is not clear: an IPv6 address stands in brackets, as in `[::1]:29400`";
        assert_eq!(said, format!("`--rdzv-endpoint` is `{endpoint}`, {expected}"));
        // torchrun takes the last part for the port, and what is left may be a host.
        let torchruns = try_launch(&line("torchrun"), &[]).is_ok();
        assert_eq!(torchruns, !endpoint.starts_with("::"), "{endpoint}");
    }
    let said = refusal("torchrun --nnodes 2 --rdzv-backend c10d", &[("PET_RDZV_ENDPOINT", "a b:1")]);
    assert!(said.starts_with("`PET_RDZV_ENDPOINT` is `a b:1`, which is not HOST or HOST:PORT"), "{said}");
}

#[test]
fn unreachable_host_is_refused_by_rankrun_and_torchrun() {
    let neither = "neither a name nor an IPv6 address";
    let many = "an address of many machines, where no connection arrives";
    let alone = "an address that means nothing without its interface, which cannot be given";
    for (host, problem) in [
        ("th1:29400", neither),
        ("256.0.0.1", "not an IPv4 address"),
        ("--", "not a host name"),
        ("255.255.255.255", many),
        ("224.0.0.1", many),
        ("[ff02::1]", many),
        ("[fe80::2]", alone),
    ] {
        let bare = host.trim_matches(['[', ']']);
        for name in ["rankrun", "torchrun"] {
            for backend in ["static", "c10d"] {
                let line = format!("{name} --nnodes 2 --rdzv-backend {backend} --rdzv-endpoint={host}:29400");
                let expected =
                    format!("`--rdzv-endpoint` is `{host}:29400`, whose host `{bare}` is {problem}");
                assert_eq!(refusal(&line, &[]), expected);
            }
            let which = if host == bare { "which".to_owned() } else { format!("whose host `{bare}`") };
            let expected = format!("`--master-addr` is `{host}`, {which} is {problem}");
            assert_eq!(refusal(&format!("{name} --nnodes 2 --master-addr={host}"), &[]), expected);
        }
        let said = refusal("torchrun --nnodes 2", &[("PET_MASTER_ADDR", host)]);
        assert!(said.starts_with(&format!("`PET_MASTER_ADDR` is `{host}`, ")), "{said}");
        let line = "rankrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h";
        let said = refusal(&format!("{line} --local-addr={host}"), &[]);
        assert!(said.starts_with(&format!("`--local-addr` is `{host}`, ")), "{said}");
    }
    for (addr, name) in
        [("`a b`", "rankrun"), ("`http://th1`", "torchrun"), ("`user@h`", "rankrun"), ("empty", "torchrun")]
    {
        let said = refusal(
            &format!("{name} --nnodes 2"),
            &[("PET_MASTER_ADDR", addr.trim_matches('`').trim_start_matches("empty"))],
        );
        let expected = format!("`PET_MASTER_ADDR` is {addr}, which is not a host name or an address");
        assert_eq!(said, expected);
    }
}

/// torchrun's node that hosts reaches itself there, and so does one beside another that hosts.
#[test]
fn wildcard_endpoint_requires_hosting_node() {
    for host in ["0.0.0.0", "[::]"] {
        let dynamic = format!("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:29400");
        let said = refusal(&format!("rankrun {dynamic}"), &[]);
        assert!(said.ends_with("the node would look for the store here, and not open it"), "{said}");
        assert!(try_launch(&format!("rankrun {dynamic} --rdzv-conf is_host=1"), &[]).is_ok());
        assert!(try_launch(&format!("torchrun {dynamic}"), &[]).is_ok());
        for name in ["rankrun", "torchrun"] {
            assert!(try_launch(&format!("{name} --nnodes 2 --master-addr {host}"), &[]).is_ok());
        }
    }
}

#[test]
fn pods_of_one_job_need_address_of_first_one() {
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("PET_NNODES", "2"), ("PET_MASTER_PORT", "29500")];
    for (line, variable) in [
        ("rankrun --role a", "PET_MASTER_ADDR=train-0.train`"),
        ("rankrun --rdzv-backend c10d", "PET_RDZV_ENDPOINT=train-0.train:29400`"),
    ] {
        let error = try_launch(line, &pod).expect_err(line);
        assert!(error.to_string().starts_with("`JOB_COMPLETION_INDEX` is `1`, and `PET_"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains(variable)), "{:?}", error.hint());
    }
    assert!(try_launch("torchrun --role a", &pod).is_ok());
    assert!(try_launch("rankrun --nnodes 1", &pod).is_ok());
}
