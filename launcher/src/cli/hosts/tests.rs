//! Command lines of several hosts → what each host is told.

use super::*;
use crate::cli::{Command, interpret};
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::posix::Signal;

fn world() -> FakeWorld {
    FakeWorld::default().file("/job/x.py", b"impo").link("/proc/self/exe", "/opt/rankrun")
}

fn answer(world: FakeWorld, line: &str, environment: &[(&str, &str)]) -> Result<Command, CliError> {
    let argv: Vec<OsString> = line.split('|').map(OsString::from).collect();
    interpret(&argv, &world.facts(environment))
}

fn fleet(line: &str, environment: &[(&str, &str)]) -> FleetSpec {
    let world = world().file("/job/hosts", b"a slots=2\nb:3\n");
    match answer(world, line, environment) {
        Ok(Command::Fleet(fleet)) => *fleet,
        other => panic!("{line}: {other:?}"),
    }
}

/// The words of each node, without the run id.
fn words(fleet: &FleetSpec) -> Vec<String> {
    let of_node = |node| {
        let words = fleet.node_launch(node, ("10.0.0.1", 4000)).words.into_iter();
        words.filter(|word| !word.starts_with("--rdzv-id=")).collect::<Vec<_>>().join(" ")
    };
    (0..fleet.nodes.len()).map(of_node).collect()
}

#[test]
fn each_host_gets_options_and_its_slots() {
    let fleet = fleet("rankrun|--hosts|a,b:4|--max-restarts|2|-v|x.py|--hosts|c", &[]);
    let behind = "--master-addr=10.0.0.1 --master-port=4000 -- x.py --hosts c";
    assert_eq!(
        words(&fleet),
        [
            format!("--max-restarts=2 --verbose --log-from=first-failure --nnodes=2 --node-rank=0 {behind}"),
            format!(
                "--max-restarts=2 --verbose --log-from=first-failure --nproc-per-node=4 --nnodes=2 --node-rank=1 {behind}"
            ),
        ]
    );
    assert_eq!((fleet.launcher.as_str(), fleet.directory.as_str()), ("/opt/rankrun", "/job"));
    assert_eq!(fleet.connect_limit, CONNECT_LIMIT);
}

#[test]
fn excluded_hosts_take_no_part() {
    let fleet = fleet("rankrun|--hosts|a.cluster,me@b,c|--exclude-node|a,b|x.py", &[]);
    let hosts: Vec<&str> = fleet.nodes.iter().map(|node| node.host.destination.as_str()).collect();
    assert_eq!((hosts, words(&fleet)), (vec!["c"], vec!["-- x.py".to_owned()]));
    let refused = answer(world(), "rankrun|--hosts|a,b|--exclude-node|b,a|x.py", &[]).unwrap_err();
    assert!(refused.to_string().contains("`--exclude-node` excludes every host"), "{refused}");
}

#[test]
fn task_of_step_starts_no_hosts() {
    let step = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NODELIST", "a,b"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ];
    let refused = answer(world(), "rankrun|--hosts|a,b|x.py", &step).unwrap_err().to_string();
    let expected = "`--hosts` is given, and `SLURM_STEP_NUM_TASKS` says that this is one of 2 tasks";
    assert!(refused.contains(expected), "{refused}");
    // The batch script runs once.
    assert_eq!(fleet("rankrun|--hosts|a,b|x.py", &[("SLURM_JOB_ID", "7")]).nodes.len(), 2);
}

#[test]
fn signals_are_those_of_one_host() {
    let forward = |line| fleet(line, &[]).signals.forward;
    assert_eq!(forward("rankrun|--hosts|a,b|x.py"), [Signal::SIGUSR1, Signal::SIGUSR2]);
    assert_eq!(forward("rankrun|--hosts|a,b|--signals-to-handle|SIGTERM,SIGUSR1|x.py"), [Signal::SIGUSR2]);
}

#[test]
fn hostfile_slots_are_counted_unless_typed() {
    let slots = |line, environment: &[(&str, &str)]| {
        let fleet = fleet(line, environment);
        fleet.nodes.iter().map(|node| node.words.join(" ")).collect::<Vec<_>>()
    };
    let of_file = ["--nproc-per-node=2", "--nproc-per-node=3"];
    assert_eq!(slots("rankrun|--hostfile|hosts|x.py", &[]), of_file);
    assert_eq!(slots("rankrun|--hostfile|hosts|x.py", &[("PET_NPROC_PER_NODE", "7")]), of_file);
    assert_eq!(slots("rankrun|--hostfile|hosts|-np|1|x.py", &[]), ["", ""]);
}

#[test]
fn variables_of_options_become_words_unless_nodes_have_their_own() {
    let variables = [("PET_NNODES", "9"), ("PET_MAX_RESTARTS", "1"), ("RANKRUN_QUIET", "0")];
    let fleet = fleet("rankrun|--hosts|a|x.py", &variables);
    assert_eq!(words(&fleet), ["--max-restarts=1 -- x.py"]);
}

#[test]
fn c10d_nodes_get_endpoint_and_time_limits_answer() {
    let fleet = fleet("rankrun|--hosts|a,b|--rdzv-backend|c10d|--join-timeout|5s|x.py", &[]);
    assert!(words(&fleet)[0].contains("--rdzv-backend=c10d"));
    assert!(words(&fleet)[1].contains("--node-rank=1 --rdzv-endpoint=10.0.0.1:4000"));
    assert_eq!(fleet.connect_limit, Duration::from_secs(5));
}

#[test]
fn exports_are_names_and_values() {
    let line = "rankrun|--hosts|a|--export|A,B=x,y=z|--export|C=|x.py";
    let fleet = fleet(line, &[("A", "1"), ("B", "2"), ("C", "3")]);
    let shown: Vec<String> =
        fleet.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown, ["A=1", "B=x,y=z", "C="]);
    assert!(fleet.ssh_command(0).iter().all(|word| !word.contains("x,y")));
}

#[test]
fn ssh_command_is_split_as_by_shell() {
    let fleet = fleet("rankrun|--hosts|a|--ssh|ssh -p 2222 -i 'my key'|x.py", &[]);
    assert_eq!(fleet.ssh, ["ssh", "-p", "2222", "-i", "my key"]);
}

#[test]
fn mistakes_name_option_and_way_out() {
    for (line, part) in [
        ("--hosts|a,a", "`--hosts` is `a,a`, which names the host `a` twice"),
        ("--hosts|a:0", "`--hosts` is `a:0`, which gives the host `a` no slot"),
        ("--hosts|a,localhost", "names `localhost` among other hosts"),
        ("--hosts|a|--hostfile|hosts", "exclude each other"),
        ("--hostfile|nothing", "`--hostfile` is `nothing`, which cannot be read"),
        ("--hostfile|bad", "the host file `bad`, line 2 gives the host `b` no slot"),
        ("--hosts|a|--nnodes|2", "`--nnodes` is given, and `--hosts` says it for each node"),
        ("--hosts|a|--node-rank|0", "`--node-rank` is given"),
        ("--hosts|a|--standalone", "`--standalone` is given"),
        ("--hosts|a|--leave-out|0", "needs a terminal"),
        ("--hosts|a,b|--exclude-node-after|1/2", "all hosts of the list belong to the job"),
        ("--hosts|a|--export|NOTHING", "and `NOTHING` is not set"),
        ("--hosts|a|--export|,A", "where `` is not the name"),
        ("--hosts|a|--ssh|", "`--ssh`"),
        ("--hosts|a|--ssh|ssh; true", "`;` is an operator of the shell"),
        ("--hosts|a,b|--master-addr|127.0.0.1", "which each host takes for itself"),
        ("--hosts|a,b|--master-port|0", "not a port from 1 to 65535"),
        ("--export|PATH", "`--export` is given, but no host is"),
    ] {
        let world = world().file("/job/bad", b"a slots=2\nb slots=0\n");
        let error = answer(world, &format!("rankrun|{line}|x.py"), &[]).unwrap_err();
        assert!(error.to_string().contains(part), "{line}: {error}");
        assert!(error.hint().is_some(), "{line}");
    }
    let error = answer(world(), "rankrun|explain|--hosts|a|x.py", &[]).unwrap_err().to_string();
    assert!(error.contains("each host explains its own launch"), "{error}");
    assert_eq!(answer(world(), "torchrun|--hosts|a|x.py", &[]).unwrap_err().exit_code(), 2);
}
