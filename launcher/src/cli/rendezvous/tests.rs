use std::ffi::OsString;

use super::*;
use crate::cli::{Command, Launch, interpret};
use crate::facts::fake::FakeWorld;

const UUID: &str = "00000000-0000-0000-0000-000000000007";

fn try_launch(line: &str, environment: &[(&str, &str)]) -> Result<Launch, CliError> {
    let argv: Vec<OsString> = line.split(' ').chain(["--no-python", "true"]).map(OsString::from).collect();
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    match interpret(&argv, &FakeWorld::new().program("/usr/bin/true").facts(&environment))? {
        Command::Launch(launch) => Ok(*launch),
        other => panic!("{other:?}"),
    }
}

/// The rendezvous, and which settings have no effect.
fn chosen(line: &str, environment: &[(&str, &str)]) -> (RendezvousSpec, Vec<String>) {
    let launch = try_launch(line, environment).unwrap();
    let said = launch.notices.iter().map(|notice| notice.to_string());
    let said = said.map(|text| text.split(" has no effect").next().unwrap_or_default().replace('`', ""));
    (launch.spec.rendezvous, said.collect())
}

fn standalone(run_id: &str) -> RendezvousSpec {
    RendezvousSpec::Standalone { run_id: RunId(run_id.to_owned()), local_addr: None, worker_store: false }
}

fn fixed(run_id: &str, addr: &str, port: u16) -> RendezvousSpec {
    RendezvousSpec::Static { run_id: RunId(run_id.to_owned()), addr: addr.to_owned(), port }
}

#[test]
fn without_a_port_a_job_is_standalone() {
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
fn with_a_port_a_job_is_static() {
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
fn the_published_address_and_the_owner_of_the_store() {
    let spec = |line: &str, value: &str| chosen(line, &[("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)]).0;
    let run_id = || RunId(UUID.to_owned());
    assert_eq!(
        spec("torchrun --local-addr h", "1"),
        RendezvousSpec::Standalone { run_id: run_id(), local_addr: Some("h".to_owned()), worker_store: true }
    );
    assert_eq!(spec("torchrun --standalone --local-addr=", "true"), standalone(UUID));
}

#[test]
fn what_torchrun_refuses_is_refused() {
    for (line, message) in [
        ("torchrun --rdzv-backend=", "`--rdzv-backend` is ``, which is not the name of a rendezvous backend"),
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
        ("torchrun --master-port 5 --master-addr=", "`--master-addr` is ``, which is not a host name or"),
        (
            "torchrun --master-port 5 --node-rank 1",
            "`--node-rank` is `1`, which is not 0, the only node rank",
        ),
        (
            "torchrun --master-port 5 --rdzv-conf timeout=5",
            "`--rdzv-conf` = `timeout=5` is not supported yet",
        ),
        ("torchrun --standalone --nnodes 2", "`--nnodes` = `2` is not supported yet"),
    ] {
        let error = try_launch(line, &[]).unwrap_err();
        assert!(error.to_string().starts_with(message), "`{line}`: {error}");
        assert_eq!(error.exit_code(), 1);
    }
    assert!(try_launch("torchrun --standalone --rdzv-backend=", &[]).is_ok());
    assert!(try_launch("torchrun --rdzv-conf a=1=2,a=3", &[]).is_ok());
}
