use std::ffi::OsString;

use rankrun_contract::rank::NodeRank;

use super::*;
use crate::cli::{Command, Launch, interpret};
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::rendezvous::NodeRange;

const UUID: &str = "00000000-0000-0000-0000-000000000007";

fn try_launch(line: &str, environment: &[(&str, &str)]) -> Result<Launch, CliError> {
    let argv: Vec<OsString> = line.split(' ').chain(["--no-python", "true"]).map(OsString::from).collect();
    let mut environment = environment.to_vec();
    environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
    match interpret(&argv, &FakeWorld::default().program("/usr/bin/true").facts(&environment))? {
        Command::Launch(launch) => Ok(*launch),
        other => panic!("{other:?}"),
    }
}

/// The rendezvous without what names its host, and which settings have no effect.
fn chosen(line: &str, environment: &[(&str, &str)]) -> (RendezvousSpec, Vec<String>) {
    let mut launch = try_launch(line, environment).unwrap();
    if let RendezvousSpec::C10d { named_by, .. } | RendezvousSpec::Static { named_by, .. } =
        &mut launch.spec.rendezvous
    {
        *named_by = None;
    }
    let said = launch.notices.iter().map(|notice| notice.to_string());
    let said = said.map(|text| text.split(" has no effect").next().unwrap_or_default().replace('`', ""));
    (launch.spec.rendezvous, said.collect())
}

fn standalone(run_id: &str) -> RendezvousSpec {
    RendezvousSpec::Standalone { run_id: RunId(run_id.to_owned()), local_addr: None, worker_store: false }
}

fn fixed(run_id: &str, addr: &str, port: u16) -> RendezvousSpec {
    fixed_of(1, 0, (run_id, addr, port))
}

fn fixed_of(nodes: u32, node_rank: u32, (run_id, addr, port): (&str, &str, u16)) -> RendezvousSpec {
    RendezvousSpec::Static {
        run_id: RunId(run_id.to_owned()),
        addr: addr.to_owned(),
        port,
        named_by: None,
        local_addr: None,
        nodes: NodeCount::new(nodes).unwrap(),
        node_rank: NodeRank(node_rank),
        times: RoundTimes::static_defaults(),
    }
}

#[test]
fn job_without_port_is_standalone() {
    for (line, run_id, without_effect) in [
        ("torchrun --role a", UUID, vec![]),
        ("torchrun --nnodes 1 --node-rank 0 --master-addr 127.0.0.1", UUID, vec![]),
        ("torchrun --rdzv-id 7", UUID, vec!["--rdzv-id"]),
        ("torchrun --rdzv-id=", UUID, vec![]),
        ("torchrun --master-addr h --node-rank 1", UUID, vec!["--master-addr", "--node-rank"]),
        ("torchrun --rdzv-conf join_timeout=5", UUID, vec!["--rdzv-conf"]),
        ("rankrun --rdzv-id 7", "7", vec![]),
        ("rankrun --rdzv-id=", UUID, vec![]),
        ("rankrun --standalone --rdzv-id 7", UUID, vec!["--rdzv-id"]),
        ("torchrun --standalone --rdzv-backend c10d --rdzv-endpoint localhost:0", UUID, vec![]),
        (
            "torchrun --standalone --rdzv-backend etcd --rdzv-endpoint h:1",
            UUID,
            vec!["--rdzv-backend", "--rdzv-endpoint"],
        ),
        (
            "torchrun --standalone --master-port 5 --master-addr h",
            UUID,
            vec!["--master-addr", "--master-port"],
        ),
    ] {
        assert_eq!(
            chosen(line, &[]),
            (standalone(run_id), without_effect.into_iter().map(str::to_owned).collect()),
            "`{line}`"
        );
    }
    let (_, said) = chosen("torchrun --role a", &[("PET_MASTER_ADDR", "h"), ("PET_RDZV_ID", "j")]);
    assert_eq!(said, ["PET_RDZV_ID", "PET_MASTER_ADDR"]);
}

#[test]
fn job_with_master_port_is_static() {
    for (line, spec) in [
        ("torchrun --master-port 29500", fixed("none", "127.0.0.1", 29_500)),
        ("torchrun --master-port 0", fixed("none", "127.0.0.1", 0)),
        ("torchrun --master-port 5 --master-addr h_1.x-y --rdzv-id j", fixed("j", "h_1.x-y", 5)),
        ("torchrun --master-port 5 --master-addr [::1]", fixed("none", "::1", 5)),
        ("torchrun --master-port 5 --master-addr ::1", fixed("none", "::1", 5)),
        ("rankrun --master-port 5 --nnodes 1 --rdzv-backend static", fixed("none", "127.0.0.1", 5)),
    ] {
        assert_eq!(chosen(line, &[]), (spec, vec![]), "`{line}`");
    }
    assert_eq!(chosen("torchrun --role a", &[("PET_MASTER_PORT", "6")]).0, fixed("none", "127.0.0.1", 6));
    let (spec, said) = chosen("torchrun --master-port 5 --rdzv-id=", &[]);
    assert_eq!(spec, fixed("7", "127.0.0.1", 5));
    assert_eq!(said, ["the run id is empty, so it is 7"]);
    assert_eq!(chosen("torchrun --master-port 5 --local-addr h", &[]).1, ["--local-addr"]);
    assert_eq!(
        chosen("torchrun --master-port 5", &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")]).0,
        fixed("none", "127.0.0.1", 5)
    );
}

#[test]
fn job_with_endpoint_is_static() {
    for (line, spec) in [
        ("torchrun --rdzv-endpoint h:7", fixed("none", "h", 7)),
        ("torchrun --rdzv-endpoint=[::1]:7 --rdzv-backend static --rdzv-id j", fixed("j", "::1", 7)),
        ("torchrun --rdzv-endpoint h:0 --rdzv-conf join_timeout=x,rank=x", fixed("none", "h", 0)),
    ] {
        assert_eq!(chosen(line, &[]), (spec, vec![]), "`{line}`");
    }
    let (spec, said) = chosen("torchrun --rdzv-endpoint h:7 --master-port 5 --master-addr a", &[]);
    assert_eq!(spec, fixed("none", "h", 7));
    assert_eq!(said, ["--master-addr", "--master-port"]);
    assert_eq!(chosen("torchrun --role a", &[("PET_RDZV_ENDPOINT", " h:7 ")]).0, fixed("none", "h", 7));
}

#[test]
fn c10d_backend_gives_one_node_rendezvous() {
    let c10d = |run_id: &str, host: &str, port: u16| RendezvousSpec::C10d {
        run_id: RunId(run_id.to_owned()),
        host: host.to_owned(),
        port,
        named_by: None,
        local_addr: None,
        worker_store: false,
        nodes: NodeRange::ONE,
        is_host: None,
        node_rank: None,
        times: RoundTimes::default(),
    };
    // Under our own name the store's host may come as late as any other node.
    let as_rankrun = |mut spec| {
        if let RendezvousSpec::C10d { times, .. } = &mut spec {
            times.connect = times.join;
        }
        spec
    };
    for (line, spec) in [
        ("torchrun --rdzv-backend c10d", c10d("none", "localhost", 29_400)),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint h --rdzv-id j", c10d("j", "h", 29_400)),
        ("rankrun --rdzv-backend c10d --rdzv-endpoint h:7 --nnodes 1:1", as_rankrun(c10d("none", "h", 7))),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint [::1]:0", c10d("none", "::1", 0)),
        (
            "torchrun --rdzv-backend c10d --rdzv-conf store_type=TCP,timeout=x",
            c10d("none", "localhost", 29_400),
        ),
    ] {
        assert_eq!(chosen(line, &[]), (spec, vec![]), "`{line}`");
    }
    let (spec, said) = chosen("torchrun --rdzv-backend c10d --rdzv-id= --master-port 5 --node-rank 1", &[]);
    assert_eq!(spec, c10d("7", "localhost", 29_400));
    assert_eq!(said, ["--master-port", "--node-rank", "the run id is empty, so it is 7"]);
    assert_eq!(
        chosen(
            "torchrun --rdzv-backend c10d --local-addr a",
            &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"), ("PET_RDZV_ENDPOINT", "h:7")]
        )
        .0,
        RendezvousSpec::C10d {
            run_id: RunId("none".to_owned()),
            host: "h".to_owned(),
            port: 7,
            named_by: None,
            local_addr: Some("a".to_owned()),
            worker_store: true,
            nodes: NodeRange::ONE,
            is_host: None,
            node_rank: None,
            times: RoundTimes::default(),
        }
    );
}

#[test]
fn rdzv_conf_values_are_type_checked() {
    let positive = "whose value is not a whole number above 0";
    let c10d = ["--rdzv-backend c10d", "--standalone", "--role a"];
    let fixed = ["--rdzv-endpoint h:1", "--master-port 5"];
    for (conf, problem) in [
        ("join_timeout=abc", positive),
        ("join_timeout=0.5", positive),
        ("last_call_timeout=0", positive),
        ("close_timeout=-1", positive),
        ("heartbeat_timeout=x", positive),
        ("read_timeout=0", positive),
        ("keep_alive_interval=0", positive),
        ("keep_alive_max_attempt=0", positive),
        ("cas_backoff_max_seconds=inf", "whose value is not a number of seconds from 0 up"),
        ("cas_backoff_max_seconds=x", "whose value is not a number of seconds from 0 up"),
        ("is_host=2", "whose value is neither `true` nor `false`"),
        ("store_type=redis", "whose value is neither `tcp` nor `file`"),
        ("a=1,join_timeout=5,join_timeout=x", positive),
    ] {
        for mode in c10d {
            let error = try_launch(&format!("torchrun {mode} --rdzv-conf {conf}"), &[]).unwrap_err();
            let item = conf.rsplit(',').next().unwrap_or_default();
            assert_eq!(error.to_string(), format!("`--rdzv-conf` has the item `{item}`, {problem}"));
            assert_eq!(error.exit_code(), 1);
        }
        for mode in fixed {
            assert!(try_launch(&format!("torchrun {mode} --rdzv-conf {conf}"), &[]).is_ok(), "{conf}");
        }
    }
    for conf in ["timeout=x", "timeout=0", "timeout=1.5"] {
        for mode in fixed {
            let error = try_launch(&format!("torchrun {mode} --rdzv-conf {conf}"), &[]).unwrap_err();
            assert_eq!(error.to_string(), format!("`--rdzv-conf` has the item `{conf}`, {positive}"));
        }
        for mode in c10d {
            assert!(try_launch(&format!("torchrun {mode} --rdzv-conf {conf}"), &[]).is_ok(), "{conf}");
        }
    }
    let fine =
        "join_timeout=+1_0,heartbeat=x,join_timeout=5,cas_backoff_max_seconds=.5,is_host=T,store_type=tcp";
    assert!(try_launch(&format!("torchrun --rdzv-backend c10d --rdzv-conf {fine}"), &[]).is_ok());
    let error = try_launch("torchrun --rdzv-backend c10d --rdzv-conf store_type=File", &[]).unwrap_err();
    assert_eq!(error.to_string(), "`--rdzv-conf` = `store_type=File` is not supported yet");
}

#[test]
fn local_addr_and_worker_store_are_resolved() {
    let spec = |line: &str, value: &str| chosen(line, &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)]).0;
    let run_id = || RunId(UUID.to_owned());
    assert_eq!(
        spec("torchrun --local-addr h", "1"),
        RendezvousSpec::Standalone { run_id: run_id(), local_addr: Some("h".to_owned()), worker_store: true }
    );
    assert_eq!(spec("torchrun --standalone --local-addr=", "true"), standalone(UUID));
}

#[test]
fn rendezvous_host_origin_is_recorded() {
    let named_by = |line: &str, environment: &[(&str, &str)]| match try_launch(line, environment)
        .unwrap()
        .spec
        .rendezvous
    {
        RendezvousSpec::C10d { named_by, .. } | RendezvousSpec::Static { named_by, .. } => named_by,
        RendezvousSpec::Standalone { .. } => panic!("`{line}` names no host"),
    };
    for (line, expected) in [
        ("rankrun --nnodes 2 --master-addr h", Some("`--master-addr`")),
        ("torchrun --nnodes 2 --rdzv-endpoint h:1", Some("`--rdzv-endpoint`")),
        ("rankrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h", Some("`--rdzv-endpoint`")),
        ("rankrun --nnodes 2", None),
        ("rankrun --nnodes 2 --rdzv-backend c10d", None),
    ] {
        assert_eq!(named_by(line, &[]).as_deref(), expected, "`{line}`");
    }
    let variable = named_by("torchrun --nnodes 2", &[("PET_MASTER_ADDR", "h")]);
    assert_eq!(variable.as_deref(), Some("`PET_MASTER_ADDR`"));
}

#[test]
fn invalid_rendezvous_is_refused_like_torchrun() {
    for (line, message) in [
        (
            "torchrun --rdzv-backend=",
            "`--rdzv-backend` is empty, which is not the name of a rendezvous backend",
        ),
        ("torchrun --rdzv-conf a", "`--rdzv-conf` has the item `a`, which has no value"),
        ("torchrun --rdzv-conf a=1,,b=2", "`--rdzv-conf` has the item ``, which has no key"),
        ("torchrun --rdzv-conf a=", "`--rdzv-conf` has the item `a=`, which has no value"),
        ("torchrun --standalone --rdzv-conf =1", "`--rdzv-conf` has the item `=1`, which has no key"),
        (
            "torchrun --rdzv-conf run_id=1",
            "`--rdzv-conf` has the item `run_id=1`, whose key has an option of its own",
        ),
        (
            "torchrun --master-port 5 --master-addr a/b",
            "`--master-addr` is `a/b`, which is not a host name or",
        ),
        ("torchrun --master-port 5 --master-addr=", "`--master-addr` is empty, which is not a host name or"),
        (
            "torchrun --master-port 5 --node-rank 1",
            "`--node-rank` is `1`, which is not 0, the only node rank",
        ),
        ("torchrun --rdzv-endpoint h", "`--rdzv-endpoint` is `h`, which is not HOST:PORT"),
        ("torchrun --rdzv-endpoint [::1]", "`--rdzv-endpoint` is `[::1]`, which is not HOST:PORT"),
        ("torchrun --rdzv-endpoint h:x", "`--rdzv-endpoint` is `h:x`, which is not HOST or HOST:PORT"),
        (
            "torchrun --rdzv-backend c10d --rdzv-endpoint tcp://h:1",
            "`--rdzv-endpoint` is `tcp://h:1`, which is not HOST or HOST:PORT",
        ),
        ("torchrun --rdzv-endpoint h:1 --node-rank 1", "`--node-rank` is `1`, which is not 0"),
    ] {
        let error = try_launch(line, &[]).unwrap_err();
        assert!(error.to_string().starts_with(message), "`{line}`: {error}");
        assert_eq!(error.exit_code(), 1);
    }
    assert!(try_launch("torchrun --standalone --rdzv-backend=", &[]).is_ok());
    assert!(try_launch("torchrun --rdzv-conf a=1=2,a=3", &[]).is_ok());
}

mod many;
