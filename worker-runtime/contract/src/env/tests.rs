//! The environment of a worker, whole and with parts missing.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn worker_env(rank: u32, world: u32) -> WorkerEnv {
    let world_size = WorldSize::new(world).unwrap();
    WorkerEnv {
        rank: Rank(rank),
        local_rank: LocalRank(rank),
        world_size,
        local_world_size: LocalWorldSize(world_size.0),
        node_rank: NodeRank(0),
        node_count: NodeCount::ONE,
        role: Role { name: "trainer".to_owned(), rank: Rank(rank), world_size },
        master: Master { addr: "127.0.0.1".to_owned(), port: 29_500, uses_agent_store: true },
        restart_count: RestartCount(1),
        max_restarts: RestartCount(3),
        run_id: RunId("j".to_owned()),
        error_file: Some(PathBuf::from("/tmp/e.json")),
        signals_to_handle: "SIGTERM".to_owned(),
        rankrun: Some(RankrunEnv {
            job: JobId("uuid".to_owned()),
            generation: Generation(2),
            round: Some(7),
            device: Some(Device::Cuda(1)),
        }),
    }
}

fn parse_env(vars: &HashMap<&'static str, OsString>) -> Result<Option<WorkerEnv>, EnvError> {
    WorkerEnv::from_vars(|name| vars.get(name).cloned())
}

proptest! {
    #[test]
    fn written_env_parses_unchanged(world in 1u32..2048, seed in 0u32..2048) {
        let env = worker_env(seed % world, world);
        let vars: HashMap<_, _> = env.to_vars().into_iter().collect();
        prop_assert_eq!(parse_env(&vars), Ok(Some(env)));
    }
}

#[test]
fn env_without_launcher_is_none() {
    assert_eq!(parse_env(&HashMap::new()), Ok(None));
    let own = [(MASTER_ADDR, "here"), (MASTER_PORT, "1"), (ERROR_FILE, "/tmp/e.json"), (ROLE_NAME, "x")];
    assert_eq!(parse_env(&own.map(|(name, value)| (name, value.into())).into()), Ok(None));
}

#[test]
fn missing_variable_is_named() {
    let whole: HashMap<_, _> = worker_env(0, 2).to_vars().into_iter().collect();
    for &name in whole.keys() {
        let mut vars = whole.clone();
        vars.remove(name);
        match name {
            // It is not there under every version of torchrun, where the launcher looked at no device, on one node.
            SIGNALS_TO_HANDLE | DEVICE | ROUND => assert!(matches!(parse_env(&vars), Ok(Some(_))), "{name}"),
            _ => assert_eq!(parse_env(&vars), Err(EnvError::Missing { name })),
        }
    }
    for name in LAUNCHER_VARIABLES {
        let alone = HashMap::from([(name, OsString::from("1"))]);
        assert!(matches!(parse_env(&alone), Err(EnvError::Missing { .. })), "{name}");
    }
}

#[test]
fn launched_worker_without_rank_or_world_size_is_error() {
    let vars = HashMap::from([(RUN_ID, OsString::from("x"))]);
    assert_eq!(parse_env(&vars), Err(EnvError::Missing { name: RANK }));
}

#[test]
fn worker_without_variables_of_its_job_is_none() {
    let mut vars: HashMap<_, _> = worker_env(0, 1).to_vars().into_iter().collect();
    vars.retain(|name, _| !DISTRIBUTED_VARIABLES.contains(name));
    assert!(vars.contains_key(JOB) && vars.contains_key(ERROR_FILE));
    assert_eq!(parse_env(&vars), Ok(None));
}

#[test]
fn optional_variables_have_defaults() {
    let vars = [(RANK, "1"), (WORLD_SIZE, "2"), (LOCAL_RANK, "1"), (MASTER_ADDR, "a"), (MASTER_PORT, "9")];
    let env = parse_env(&vars.map(|(name, value)| (name, value.into())).into()).unwrap().unwrap();
    assert_eq!((env.rank, env.local_rank, env.node_count), (Rank(1), LocalRank(1), NodeCount::ONE));
    assert_eq!((env.role.name.as_str(), env.run_id.0.as_str()), ("default", "none"));
    assert!(!env.master.uses_agent_store);
}

#[test]
fn invalid_variable_is_named() {
    for (name, value) in [
        (RANK, "-1"),
        (WORLD_SIZE, "0"),
        (MASTER_PORT, "65536"),
        (LOCAL_RANK, "x"),
        (RANK, "2"),
        (DEVICE, "gpu"),
    ] {
        let mut vars: HashMap<_, _> = worker_env(0, 2).to_vars().into_iter().collect();
        vars.insert(name, value.into());
        let error = parse_env(&vars).expect_err("an invalid value was accepted").to_string();
        assert!(error.contains(name), "{error}");
    }
}
