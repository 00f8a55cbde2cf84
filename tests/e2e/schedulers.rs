//! Launchers that a scheduler or `mpirun` starts once for each task: they are one job, and two jobs instead of one are never
//! started in silence. The environments are recorded ones; `slurm` has a real Slurm.

use std::fs;

use harness::{Job, Launch, Name, Outcome, Scratch, fixture, free_port, is_rankrun};

use crate::nodes::placements_of;

/// A variable of a task's environment.
type Variables = &'static [(&'static str, &'static str)];

/// `srun -N2 --ntasks-per-node=1`, the second task.
const STEP: Variables = &[
    ("SLURM_JOB_ID", "7"),
    ("SLURM_NNODES", "2"),
    ("SLURM_NODEID", "1"),
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "localhost,localhost"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
];
/// `mpirun` of Open MPI on two hosts.
const OPEN_MPI: Variables =
    &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
/// `mpiexec` of MPICH, with two tasks on this host.
const HYDRA: Variables =
    &[("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "1"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
/// A script of `sbatch -N2`: no task of a step.
const BATCH: Variables = &[
    ("SLURM_JOB_ID", "7"),
    ("SLURM_NNODES", "2"),
    ("SLURM_NODEID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURM_TASKS_PER_NODE", "1(x2)"),
];

fn launch(name: Name, variables: Variables) -> Launch {
    let launch = Launch::new(name).args(["--nproc-per-node", "1"]);
    variables.iter().fold(launch, |launch, (name, value)| launch.env(name, *value))
}

fn run(name: Name, variables: Variables, options: &[&str]) -> Outcome {
    launch(name, variables).args(options.iter().copied()).worker(["print=started"]).run()
}

#[track_caller]
fn assert_refused(outcome: &Outcome) {
    outcome.expect_exit_code(1);
    assert_eq!(outcome.stdout(), "", "{outcome}");
}

/// Both tasks of a step on this machine, with workers that meet.
#[track_caller]
fn run_both_tasks(tasks: [Variables; 2]) -> Vec<String> {
    let job_id = free_port().to_string();
    let start = |variables: Variables| -> Job {
        let launch = launch(Name::Rankrun, variables).env("SLURM_JOB_ID", &job_id);
        launch.worker(["place", "sum", "print=finished"]).start()
    };
    let outcomes: Vec<Outcome> = tasks.map(start).into_iter().map(Job::wait).collect();
    for outcome in &outcomes {
        outcome.expect_exit_code(0).expect_stdout("finished");
    }
    placements_of(&outcomes)
}

#[test]
fn tasks_of_step_are_one_job() {
    const FIRST: Variables = &[
        ("SLURM_NODEID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "localhost,localhost"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
    ];
    let two_nodes = ["0 of 2, node 0 of 2", "1 of 2, node 1 of 2"];
    assert_eq!(run_both_tasks([FIRST, STEP]), two_nodes);
    const FIRST_OF_MPI: Variables =
        &[("MPI_LOCALNRANKS", "2"), ("MPI_LOCALRANKID", "0"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    let one_node = ["0 of 2, node 0 of 1", "1 of 2, node 0 of 1"];
    assert_eq!(run_both_tasks([FIRST_OF_MPI, HYDRA]), one_node);
}

#[test]
fn tasks_of_mpi_without_address_are_refused() {
    let outcome = run(Name::Rankrun, OPEN_MPI, &[]);
    assert_refused(&outcome);
    outcome.expect_stderr("error: ").expect_stderr("`OMPI_COMM_WORLD_SIZE`").expect_stderr("2 tasks");
    outcome.expect_stderr("hint: ").expect_stderr("--master-addr").expect_stderr("`--nnodes 1`");
}

#[test]
fn step_with_missing_variable_or_contradiction_is_refused() {
    let outcome = launch(Name::Rankrun, STEP).without_env("SLURM_NODEID").worker(["print=started"]).run();
    assert_refused(&outcome);
    outcome.expect_stderr("`SLURM_NODEID` is not set").expect_stderr("`--nnodes 1`");
    let outcome = run(Name::Rankrun, STEP, &["--nnodes", "4"]);
    assert_refused(&outcome);
    outcome.expect_stderr("`--nnodes` is `4`").expect_stderr("`SLURM_STEP_NUM_NODES` says 2 nodes");
}

#[test]
fn step_of_several_tasks_with_nnodes_starts() {
    for variables in [STEP, OPEN_MPI, HYDRA] {
        for options in [&["--nnodes", "1"][..], &["--nnodes=1:1"], &["--standalone"]] {
            run(Name::Rankrun, variables, options).expect_exit_code(0).expect_stdout("started\n");
        }
    }
    let by_variable = launch(Name::Rankrun, STEP).env("PET_NNODES", "1").worker(["print=started"]).run();
    by_variable.expect_exit_code(0).expect_stdout("started\n");
    let scratch = Scratch::new();
    let config = scratch.file("rankrun.toml", "[nodes]\nnnodes = 1\n", 0o644);
    run(Name::Rankrun, STEP, &["--config", &config]).expect_exit_code(0).expect_stdout("started\n");
}

#[test]
fn step_of_one_task_starts_without_warning() {
    const ONE: Variables = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_NNODES", "2"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ];
    for variables in [ONE, &[("OMPI_COMM_WORLD_SIZE", "1")], &[("PMI_SIZE", "1")]] {
        for name in Name::both() {
            let outcome = run(*name, variables, &[]);
            outcome.expect_exit_code(0).expect_stdout("started\n").expect_absent("srun").expect_absent("mpi");
        }
    }
}

/// It has the step's variables, and its launcher has settled the number of nodes.
#[test]
fn launcher_inside_worker_ignores_step_variables() {
    let launch = launch(Name::Rankrun, STEP).args(["--nnodes", "1"]);
    let rankrun = fixture("launcher-under-test");
    let inner = format!("{} --nproc-per-node 2 --no-python echo inner", rankrun.display());
    let outcome = launch.shell(&inner).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("inner").len(), 2, "{outcome}");
}

/// `srun` hands the environment of a worker on to the tasks of a new step, which are not inside the worker.
#[test]
fn step_started_by_worker_is_a_job_of_its_own() {
    let explain = Launch::new(Name::Rankrun).args(["explain", "--no-python", "true"]);
    let explain = STEP.iter().fold(explain, |explain, (name, value)| explain.env(name, *value));
    let explain = explain.env("TORCHELASTIC_RUN_ID", "none").env("RANK", "0");
    let outcome = explain.env("RANKRUN_NESTING", format!("{}:0=1", u32::MAX)).run();
    outcome.expect_exit_code(0).expect_stdout("SLURM_STEP_NUM_NODES");
}

#[test]
fn larger_allocation_without_step_warns_in_one_line() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let outcome = run(*name, BATCH, &[]);
        outcome.expect_exit_code(0).expect_stdout("started\n");
        assert_eq!(outcome.lines_with("allocation").len(), 1, "{outcome}");
        outcome.expect_stderr("2 nodes").expect_stderr("srun -N2 -n2 ");
        run(*name, BATCH, &["--nnodes", "1"]).expect_exit_code(0).expect_absent("allocation");
    }
}

#[test]
fn step_under_torchrun_name_warns_and_starts() {
    if !is_rankrun() {
        return;
    }
    for (variables, variable) in
        [(STEP, "SLURM_STEP_NUM_TASKS"), (OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), (HYDRA, "PMI_SIZE")]
    {
        let outcome = run(Name::Torchrun, variables, &[]);
        outcome.expect_exit_code(0).expect_stdout("started\n");
        assert_eq!(outcome.lines_with(variable).len(), 1, "{outcome}");
        run(Name::Torchrun, variables, &["--nnodes", "1"]).expect_exit_code(0).expect_absent(variable);
    }
}

/// Programs that start a command once for each of two tasks on this host, and say where the tasks meet.
fn scheduler_stubs(scratch: &Scratch) -> String {
    let bin = scratch.folder("bin", 0o755);
    let endpoint = format!("localhost:{}", free_port());
    let tasks = |own: usize, variables: &str| {
        format!(
            "#!/bin/sh\nshift {own}\nfor task in 0 1; do\n  env {variables} \"$@\" &\n  pids=\"$pids $!\"\ndone\n\
             for pid in $pids; do wait $pid || failed=1; done\nexit ${{failed:-0}}\n"
        )
    };
    let slurm = "SLURM_JOB_ID=7 SLURM_PROCID=$task SLURM_NODEID=$task SLURM_STEP_NUM_TASKS=2 \
                 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=localhost,localhost";
    let mpi = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=$task";
    let nodelist = format!(
        "#!/bin/sh\n[ \"$*\" = 'show hostnames localhost,localhost' ] && echo {endpoint} && echo th2\n"
    );
    for (name, text) in [
        ("srun", tasks(3, slurm)),
        ("mpirun", tasks(2, mpi)),
        ("scontrol", nodelist),
        ("hostname", format!("#!/bin/sh\necho {endpoint}\n")),
    ] {
        let _ = scratch.file(&format!("bin/{name}"), &text, 0o755);
    }
    bin
}

/// The command line between the first backticks behind these words, run by a shell.
#[test]
fn command_in_notice_starts_one_job() {
    if !is_rankrun() {
        return;
    }
    for (name, variables) in [(Name::Torchrun, STEP), (Name::Torchrun, OPEN_MPI), (Name::Rankrun, BATCH)] {
        let scratch = Scratch::new();
        let path = format!("{}:/usr/bin:/bin", scheduler_stubs(&scratch));
        let out = scratch.at("out");
        let show = format!("echo rank $RANK of $WORLD_SIZE: \"$@\" >> {out}");
        let script = scratch.file("it's $a", &format!("#!/bin/sh\n{show}\n"), 0o755);
        let separate = launch(name, variables).args(["--role", "a b", "--no-python"]);
        // It lives as long as the folder with the launcher that the line names.
        let separate = separate.args([script.as_str(), "--lr", "it's \"1\"", "$RANK"]).run();
        let text = separate.expect_exit_code(0).stderr();
        let notice = text.split("started by ").nth(1).expect("a notice");
        let line = notice.split('`').nth(1).expect("a line in backticks").to_owned();
        fs::remove_file(&out).expect("the separate job has run");
        // The launcher that the harness names is an argument of no use; the line names the one that was started.
        let shell = Launch::new(Name::Rankrun).under(["sh", "-c", &line, "sh"]).env("PATH", path);
        shell.run().expect_exit_code(0);
        let mut ranks: Vec<String> =
            fs::read_to_string(&out).unwrap_or_default().lines().map(str::to_owned).collect();
        ranks.sort();
        let arguments = "--lr it's \"1\" $RANK";
        let expected = ["0", "1"].map(|rank| format!("rank {rank} of 2: {arguments}"));
        assert_eq!(ranks, expected, "{line}");
    }
}
