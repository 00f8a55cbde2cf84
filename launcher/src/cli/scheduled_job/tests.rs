//! Environments of tasks, and what follows from them.

mod mpi;

use std::ffi::OsString;

use crate::cli::{Command, interpret};
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::spec::rendezvous::NodeRange;
use rankrun_core::spec::{LaunchSpec, RendezvousSpec};

type Environment = Vec<(&'static str, &'static str)>;

/// Slurm 22.05, `srun -N2 --ntasks-per-node=1 --gpus-per-node=4` in a batch script, the second task.
const TASK_PER_NODE: [(&str, &str); 14] = [
    ("SLURM_JOB_ID", "2"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_JOB_NUM_NODES", "2"),
    ("SLURM_NNODES", "2"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "th[1-2]"),
    ("SLURM_NODEID", "1"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_NTASKS_PER_NODE", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ("SLURM_GPUS_ON_NODE", "4"),
    ("SLURM_STEP_GPUS", "0,1,2,3"),
];

/// `srun -N2 -n5`, the second of the four tasks of the first node.
const TASK_PER_RANK: [(&str, &str); 11] = [
    ("SLURM_JOB_ID", "9"),
    ("SLURM_STEP_ID", "3"),
    ("SLURM_NNODES", "2"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "gpu[07,09]"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_NUM_TASKS", "5"),
    ("SLURM_STEP_TASKS_PER_NODE", "4,1"),
    ("SLURM_RESTART_COUNT", "1"),
];

/// Open MPI 4.1, `mpirun -np 4 --map-by ppr:2:node`, the last task.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
];

/// MPICH 4.0, `mpiexec -n 2` on one host.
const HYDRA: [(&str, &str); 4] =
    [("PMI_SIZE", "2"), ("PMI_RANK", "1"), ("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "1")];

fn spec(options: &str, environment: &[(&'static str, &'static str)]) -> Result<LaunchSpec, String> {
    spec_in(FakeWorld::default(), options, environment)
}

fn spec_in(
    world: FakeWorld,
    options: &str,
    environment: &[(&'static str, &'static str)],
) -> Result<LaunchSpec, String> {
    let mut environment = environment.to_vec();
    environment.extend([("PATH", "/usr/bin"), ("RANKRUN_QUIET", "1")]);
    let facts = world.program("/usr/bin/true").facts(&environment);
    let words = ["rankrun"].into_iter().chain(options.split_whitespace()).chain(["--no-python", "true"]);
    let argv: Vec<OsString> = words.map(OsString::from).collect();
    match interpret(&argv, &facts) {
        Ok(Command::Launch(launch)) => Ok(launch.spec),
        Ok(other) => panic!("{other:?} is not a launch"),
        Err(error) => Err(error.render()),
    }
}

/// Id, address, port, nodes, node rank of a static rendezvous.
fn place(spec: &LaunchSpec) -> (String, String, u16, u32, u32) {
    match &spec.rendezvous {
        RendezvousSpec::Static { run_id, addr, port, nodes, node_rank, .. } => {
            (run_id.0.clone(), addr.clone(), *port, nodes.get(), node_rank.0)
        }
        other => panic!("{other:?} is not static"),
    }
}

fn with(
    environment: &[(&'static str, &'static str)],
    changes: &[(&'static str, &'static str)],
) -> Environment {
    let kept = environment.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    kept.chain(changes).copied().filter(|(_, value)| !value.is_empty()).collect()
}

#[test]
fn task_per_node_needs_no_option() {
    let spec = spec("", &TASK_PER_NODE).unwrap();
    assert_eq!(place(&spec), ("2.0".to_owned(), "th1".to_owned(), 20_122, 2, 1));
    assert_eq!(spec.node_task, None);
    let RendezvousSpec::Static { named_by, .. } = &spec.rendezvous else { panic!("it is static") };
    assert_eq!(named_by.as_deref(), Some("`SLURM_STEP_NODELIST`"));
}

#[test]
fn task_per_rank_is_node_of_one_worker_with_numbers_of_its_machine() {
    let spec = spec("", &TASK_PER_RANK).unwrap();
    let (run_id, addr, port, nodes, node_rank) = place(&spec);
    assert_eq!((run_id.as_str(), addr.as_str(), nodes, node_rank), ("9.3-restart1", "gpu07", 5, 1));
    let first = super::slurm::port(9, 3, 0);
    assert_ne!(port, first, "another incarnation has another port");
    let task = spec.node_task.unwrap();
    let given = (task.local_rank.0, task.local_world_size.get(), task.node_rank.0, task.nodes.get());
    assert_eq!((given, spec.workers.get()), ((1, 4, 0, 2), 1));
}

#[test]
fn first_host_of_arbitrary_tasks_must_be_named() {
    let arbitrary = with(&TASK_PER_RANK, &[("SLURM_DISTRIBUTION", "arbitrary")]);
    let said = spec("", &arbitrary).unwrap_err();
    assert!(
        said.contains("nothing says on which node the first one is") && said.contains("-m block"),
        "{said}"
    );
    assert_eq!(place(&spec("--master-addr gpu09", &arbitrary).unwrap()).1, "gpu09");
    let c10d = "--rdzv-backend c10d --nnodes 2";
    let said = spec(&format!("{c10d} --master-addr gpu09"), &arbitrary).unwrap_err();
    assert!(said.contains("--rdzv-endpoint"), "{said}");
    assert!(spec(&format!("{c10d} --rdzv-endpoint gpu09"), &arbitrary).is_ok());
    // Node 0 hosts there, and not task 0.
    let nodes = with(&TASK_PER_NODE, &[("SLURM_DISTRIBUTION", "arbitrary")]);
    assert_eq!(place(&spec("", &nodes).unwrap()).1, "th1");
    let cyclic = with(&TASK_PER_RANK, &[("SLURM_DISTRIBUTION", "cyclic")]);
    assert_eq!(place(&spec("", &cyclic).unwrap()).1, "gpu07");
}

#[test]
fn settings_of_the_user_win() {
    let endpoint = spec("--rdzv-endpoint head:7 --rdzv-id mine", &TASK_PER_NODE).unwrap();
    assert_eq!(place(&endpoint), ("mine".to_owned(), "head".to_owned(), 7, 2, 1));
    let port = spec("--master-port 4000 --nnodes 2", &TASK_PER_NODE).unwrap();
    assert_eq!(place(&port), ("2.0".to_owned(), "th1".to_owned(), 4000, 2, 1));
    for one in ["--nnodes 1", "--standalone", "--nnodes 1:1"] {
        let alone = spec(one, &TASK_PER_RANK).unwrap();
        assert!(matches!(alone.rendezvous, RendezvousSpec::Standalone { .. }), "{one}");
    }
    let elastic = spec("--rdzv-backend c10d --nnodes 1:2", &TASK_PER_NODE).unwrap();
    match &elastic.rendezvous {
        RendezvousSpec::C10d { host, port, is_host, nodes: NodeRange { min, max }, .. } => {
            let found = (host.as_str(), *port, *is_host, min.get(), max.get());
            assert_eq!(found, ("th1", 20_122, Some(false), 1, 2));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_node_that_is_not_excluded_hosts() {
    let hosts_there = |options: &str, changes: &[_]| {
        let options = format!("--rdzv-backend c10d --nnodes 1:2 {options}");
        match spec(&options, &with(&TASK_PER_NODE, changes)).unwrap().rendezvous {
            RendezvousSpec::C10d { host, is_host, .. } => (host, is_host),
            other => panic!("{other:?}"),
        }
    };
    let first = [("SLURM_NODEID", "0"), ("SLURM_PROCID", "0")];
    assert_eq!(hosts_there("--exclude-node th1", &[]), ("th2".to_owned(), Some(true)));
    assert_eq!(hosts_there("--exclude-node th2.cluster", &first), ("th1".to_owned(), Some(true)));
    assert_eq!(hosts_there("--exclude-node other", &[]), ("th1".to_owned(), Some(false)));
    for (options, environment, parts) in [
        (
            "--rdzv-backend c10d --nnodes 1:2 --exclude-node th1,th2",
            &TASK_PER_NODE[..],
            ["`--exclude-node` is `th1,th2`", "leaves 0 of the 2 nodes of `SLURM_STEP_NODELIST`"],
        ),
        ("--exclude-node th1", &TASK_PER_NODE, ["leaves 1 of the 2 nodes", "needs 2"]),
        ("--rdzv-backend c10d --exclude-node gpu07", &TASK_PER_RANK, ["leaves 1 of the 2 nodes", "needs 2"]),
    ] {
        let said = spec(options, environment).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{options}: {said}");
    }
    // Another step may bring the others.
    assert!(spec("--rdzv-backend c10d --nnodes 2:4 --exclude-node th1", &TASK_PER_NODE).is_ok());
}

#[test]
fn tasks_of_one_node_meet_on_the_loopback() {
    let one =
        [("SLURM_STEP_NUM_NODES", "1"), ("SLURM_STEP_NODELIST", "gpu07"), ("SLURM_STEP_NUM_TASKS", "4")];
    let one = with(&TASK_PER_RANK, &[one[0], one[1], one[2], ("SLURM_STEP_TASKS_PER_NODE", "4")]);
    let (_, addr, _, nodes, node_rank) = place(&spec("", &one).unwrap());
    assert_eq!((addr.as_str(), nodes, node_rank), ("127.0.0.1", 4, 1));
}

#[test]
fn local_rank_is_zero_where_task_has_own_devices() {
    let resolve = |devices: &[_]| spec("", &with(&TASK_PER_RANK, devices));
    let local_rank = |devices: &[_]| resolve(devices).unwrap().node_task.unwrap().local_rank.0;
    assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "4"), ("SLURM_STEP_GPUS", "0,1,2,3")]), 1);
    assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "4"), ("SLURM_STEP_GPUS", "1")]), 0);
    assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "4"), ("CUDA_VISIBLE_DEVICES", "2")]), 0);
    assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "8"), ("CUDA_VISIBLE_DEVICES", "2,3")]), 0);
    // More tasks than devices, with one for each.
    assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "2"), ("CUDA_VISIBLE_DEVICES", "0")]), 0);
    for none in ["-1", "NoDevFiles"] {
        assert_eq!(local_rank(&[("SLURM_GPUS_ON_NODE", "2"), ("CUDA_VISIBLE_DEVICES", none)]), 1);
    }
    // `--gpu-bind=mask_gpu:0xf,0xf,0xf0,0xf0`: each pair of tasks sees the same four.
    let said = resolve(&[("SLURM_GPUS_ON_NODE", "8"), ("CUDA_VISIBLE_DEVICES", "0,1,2,3")]).unwrap_err();
    let parts =
        ["`CUDA_VISIBLE_DEVICES` is `0,1,2,3`", "`SLURM_GPUS_ON_NODE` is `8`: 4 tasks", "--gpu-bind=none"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn contradictions_are_refused_with_both_values() {
    for (environment, options, parts) in [
        (&TASK_PER_NODE[..], "--nnodes 4", ["`--nnodes` is `4`", "`SLURM_STEP_NUM_NODES` says 2 nodes"]),
        (&TASK_PER_NODE, "--nnodes 4", ["`--nnodes` is `4`", "`--rdzv-backend c10d --nnodes 2:4`"]),
        // The static rendezvous would wait for four.
        (&TASK_PER_NODE, "--nnodes 2:4", ["`--nnodes` is `2:4`", "`--rdzv-backend c10d --nnodes 2:4`"]),
        (&TASK_PER_NODE, "--nnodes 3:4 --rdzv-backend c10d", ["`--nnodes` is `3:4`", "--nnodes 2:4"]),
        (&TASK_PER_NODE, "--node-rank 0", ["`--node-rank` is `0`", "`SLURM_NODEID` is `1`"]),
        (&TASK_PER_RANK, "--nnodes 5", ["`--nnodes` is `5`", "`SLURM_STEP_NUM_NODES` says 2 nodes"]),
        (&TASK_PER_RANK, "--nnodes 1:2", ["`--nnodes` is `1:2`", "for each rank the number is fixed"]),
        (
            &TASK_PER_RANK,
            "--nproc-per-node 4",
            ["`--nproc-per-node` is `4`", "`SLURM_STEP_TASKS_PER_NODE` says 4 tasks on this node"],
        ),
        (&TASK_PER_RANK, "--total-workers 8", ["`--total-workers` is `8`", "`SLURM_STEP_NUM_TASKS` is `5`"]),
    ] {
        let said = spec(options, environment).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{options}: {said}");
    }
    for (environment, options) in [
        (&TASK_PER_NODE[..], "--nnodes 2 --node-rank 1 --nproc-per-node 4"),
        (&TASK_PER_NODE, "--nnodes 2:4 --rdzv-backend c10d"),
        (&TASK_PER_NODE, "--nnodes 1:2"),
        (&TASK_PER_RANK, "--nnodes 2 --node-rank 0 --nproc-per-node 1"),
        (&TASK_PER_RANK, "--total-workers 5"),
    ] {
        assert!(spec(options, environment).is_ok(), "{options}");
    }
}

#[test]
fn missing_or_wrong_variable_is_named() {
    for (changes, parts) in [
        (("SLURM_NODEID", ""), ["`SLURM_NODEID` is not set", "one of 2 tasks"]),
        (("SLURM_STEP_NODELIST", ""), ["`SLURM_STEP_NODELIST` is not set", "one of 2 tasks"]),
        (("SLURM_STEP_NODELIST", "th[1-"), ["`SLURM_STEP_NODELIST` is `th[1-`", "not a list of hosts"]),
        (("SLURM_STEP_NODELIST", "th[1-3]"), ["which are 3 hosts", "`SLURM_STEP_NUM_NODES` is `2`"]),
        (("SLURM_NODEID", "2"), ["`SLURM_NODEID` is `2`", "`SLURM_STEP_NUM_NODES` is `2`"]),
        (("SLURM_PROCID", "7"), ["`SLURM_PROCID` is `7`", "`SLURM_STEP_NUM_TASKS` is `2`"]),
        (("SLURM_STEP_NUM_TASKS", "1"), ["`SLURM_STEP_NUM_TASKS` is `1`", "`SLURM_STEP_NUM_NODES` is `2`"]),
        (("SLURM_STEP_NUM_NODES", "3"), ["`SLURM_STEP_NUM_TASKS` is `2`", "`SLURM_STEP_NUM_NODES` is `3`"]),
        (("SLURM_JOB_ID", "x"), ["`SLURM_JOB_ID` is `x`", "not a number"]),
        (("SLURM_HET_SIZE", "2"), ["`SLURM_HET_SIZE` is `2`", "heterogeneous"]),
    ] {
        let environment = with(&TASK_PER_NODE, &[changes]);
        let said = spec("", &environment).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{changes:?}: {said}");
        assert!(spec("--nnodes 1", &environment).is_ok(), "{changes:?}");
        assert!(spec("--nnodes 2 --master-addr th1 --node-rank 0", &environment).is_ok(), "{changes:?}");
        assert!(spec("--nnodes 2 --master-addr th1", &environment).is_err(), "{changes:?}");
    }
    let said = spec("", &with(&TASK_PER_RANK, &[("SLURM_LOCALID", "4")])).unwrap_err();
    assert!(
        said.contains("`SLURM_LOCALID` is `4`") && said.contains("`SLURM_STEP_TASKS_PER_NODE` is `4`"),
        "{said}"
    );
}

/// Half of the variables, as a container leaves them that drops some.
#[test]
fn any_variable_of_step_needs_its_partners() {
    for (environment, changes, parts) in [
        (
            &TASK_PER_NODE[..],
            &[("SLURM_STEP_NUM_TASKS", "")][..],
            ["`SLURM_STEP_NUM_TASKS` is not set", "`SLURM_STEP_TASKS_PER_NODE` says"],
        ),
        (
            &TASK_PER_NODE,
            &[("SLURM_STEP_NUM_TASKS", "two")],
            ["`SLURM_STEP_NUM_TASKS` is `two`", "not a number"],
        ),
        (
            &TASK_PER_NODE,
            &[("SLURM_STEP_NUM_TASKS", " ")],
            ["`SLURM_STEP_NUM_TASKS` is not set", "a task of"],
        ),
        (&TASK_PER_NODE, &[("SLURM_PROCID", "")], ["`SLURM_PROCID` is not set", "one of 2 tasks"]),
        (&TASK_PER_NODE, &[("SLURM_STEP_ID", "")], ["`SLURM_STEP_ID` is not set", "one of 2 tasks"]),
        (&TASK_PER_NODE, &[("SLURM_STEP_ID", "-1")], ["`SLURM_STEP_ID` is `-1`", "not a number"]),
        (&TASK_PER_NODE, &[("SLURM_STEP_ID", "batch")], ["`SLURM_STEP_ID` is `batch`", "not a number"]),
        (&[], &[("SLURM_PROCID", "1")], ["`SLURM_STEP_NUM_TASKS` is not set", "`SLURM_PROCID` says"]),
        (
            &OPEN_MPI,
            &[("OMPI_COMM_WORLD_SIZE", "")],
            ["`OMPI_COMM_WORLD_SIZE` is not set", "`OMPI_COMM_WORLD_LOCAL_SIZE` says"],
        ),
        (&OPEN_MPI, &[("OMPI_COMM_WORLD_SIZE", "x")], ["`OMPI_COMM_WORLD_SIZE` is `x`", "not a number"]),
        (
            &OPEN_MPI,
            &[("OMPI_COMM_WORLD_LOCAL_SIZE", "")],
            ["`OMPI_COMM_WORLD_LOCAL_SIZE` is not set", "one of 4 tasks"],
        ),
        (
            &[],
            &[("OMPI_COMM_WORLD_RANK", "1")],
            ["`OMPI_COMM_WORLD_SIZE` is not set", "`OMPI_COMM_WORLD_RANK` says"],
        ),
        (&[], &[("PMI_RANK", "1")], ["`PMI_SIZE` is not set", "`PMI_RANK` says"]),
        (&[], &[("PMI_SIZE", "many")], ["`PMI_SIZE` is `many`", "not a number"]),
    ] {
        let environment = with(environment, changes);
        let said = spec("", &environment).unwrap_err();
        assert!(parts.iter().all(|part| said.contains(part)), "{changes:?}: {said}");
        for options in [
            "--nnodes 1",
            "--standalone",
            "--nnodes 2 --node-rank 0 --master-addr th1",
            "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint th1:29500",
        ] {
            assert!(spec(options, &environment).is_ok(), "{changes:?}: {options}");
        }
    }
}

#[test]
fn script_or_shell_of_allocation_is_not_a_step() {
    let is_alone = |world: FakeWorld, environment: &[_]| {
        let spec = spec_in(world, "", environment).unwrap();
        matches!(spec.rendezvous, RendezvousSpec::Standalone { .. })
    };
    let terminal = || FakeWorld::default().terminal();
    let script = [("SLURM_JOB_ID", "2"), ("SLURM_PROCID", "0"), ("SLURM_TASKS_PER_NODE", "3,1")];
    assert!(is_alone(FakeWorld::default(), &script));
    // `salloc` with `use_interactive_step`.
    let shell = with(&TASK_PER_NODE, &[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1")]);
    assert!(is_alone(terminal(), &shell));
    // The other tasks of `srun --pty bash` have ended.
    let pty = with(&TASK_PER_RANK, &[("SLURM_PTY_PORT", "39653")]);
    assert!(is_alone(terminal().shell_job(), &pty));
    // `srun` in that shell passes the port on; behind `srun --pty` a program or a script is the task itself.
    assert!(!is_alone(FakeWorld::default().shell_job(), &pty));
    assert!(!is_alone(terminal(), &pty));
    assert!(!is_alone(terminal().shell_job(), &TASK_PER_RANK));
    // `sbatch` in a task passes all of it on.
    let of_other_job = [("SLURM_JOB_NODELIST", "n7"), ("SLURM_JOB_NUM_NODES", "1")];
    assert!(is_alone(FakeWorld::default(), &with(&TASK_PER_RANK, &of_other_job)));
    let of_this_job = [("SLURM_JOB_NODELIST", "gpu[07-09]")];
    assert!(!is_alone(FakeWorld::default(), &with(&TASK_PER_RANK, &of_this_job)));
    // A container that has some of the only task's variables.
    let only = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_NNODES", "1")];
    assert!(is_alone(FakeWorld::default(), &only));
    let facts =
        terminal().shell_job().program("/usr/bin/true").facts(&[&pty[..], &[("PATH", "/usr/bin")]].concat());
    let argv: Vec<OsString> = ["rankrun", "--no-python", "true"].map(OsString::from).to_vec();
    let Ok(Command::Launch(launch)) = interpret(&argv, &facts) else { panic!("a launch") };
    let said: String = launch.notices.iter().map(ToString::to_string).collect();
    assert!(said.contains("`srun -N2 -n2 --ntasks-per-node=1 --overlap rankrun "), "{said}");
}

/// OpenPBS, `pbsdsh` in a job of two chunks with a slot each.
const PBS: [(&str, &str); 4] = [
    ("PBS_JOBID", "1234.head"),
    ("PBS_NODENUM", "1"),
    ("PBS_TASKNUM", "00000002"),
    ("PBS_NODEFILE", "/pbs/nodes"),
];

#[test]
fn task_of_pbsdsh_is_node() {
    let two = || FakeWorld::default().file("/pbs/nodes", b"n1\nn2\n");
    let spec = spec_in(two(), "", &PBS).unwrap();
    let (run_id, addr, _, nodes, node_rank) = place(&spec);
    assert_eq!((run_id.as_str(), addr.as_str(), nodes, node_rank), ("1234", "n1", 2, 1));
    let script = with(&PBS, &[("PBS_NODENUM", "0"), ("PBS_TASKNUM", "1")]);
    let script = spec_in(two(), "", &script).unwrap();
    assert!(matches!(script.rendezvous, RendezvousSpec::Standalone { .. }));
    let slots = FakeWorld::default().file("/pbs/nodes", b"n1\nn1\nn2\nn2\n");
    let said = spec_in(slots, "", &PBS).unwrap_err();
    assert!(said.contains("4 slots on 2 hosts") && said.contains("mpiprocs=1"), "{said}");
    let said = spec_in(FakeWorld::default(), "", &PBS).unwrap_err();
    assert!(said.contains("`PBS_NODEFILE` is `/pbs/nodes`"), "{said}");
}

#[test]
fn end_of_job_is_time_limit() {
    let limit = |options, environment: &[_]| {
        spec(options, environment).map(|spec| spec.time_limit.map(|limit| limit.limit.as_secs()))
    };
    let ends = with(&TASK_PER_NODE, &[("SLURM_JOB_END_TIME", "1800003600")]);
    assert_eq!(limit("", &ends), Ok(Some(3600)));
    assert_eq!(limit("--time-limit 60", &ends), Ok(Some(60)));
    assert_eq!(limit("--warn-signal USR1@60", &ends), Ok(Some(3600)));
    for wrong in ["soon", "1700000000"] {
        assert_eq!(limit("", &with(&TASK_PER_NODE, &[("SLURM_JOB_END_TIME", wrong)])), Ok(None), "{wrong}");
    }
    assert!(limit("--warn-signal USR1@60", &TASK_PER_NODE).is_err());
}

#[test]
fn name_torchrun_learns_nothing_from_slurm() {
    let facts = FakeWorld::default().program("/usr/bin/true");
    let mut environment = TASK_PER_NODE.to_vec();
    environment.extend([("PATH", "/usr/bin"), ("SLURM_JOB_END_TIME", "1800003600")]);
    let argv: Vec<OsString> = ["torchrun", "--no-python", "true"].map(OsString::from).to_vec();
    let Ok(Command::Launch(launch)) = interpret(&argv, &facts.facts(&environment)) else {
        panic!("a launch")
    };
    assert!(matches!(launch.spec.rendezvous, RendezvousSpec::Standalone { .. }));
    assert_eq!(launch.spec.time_limit, None);
}
