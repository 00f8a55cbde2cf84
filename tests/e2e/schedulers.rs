//! Launchers that a scheduler or `mpirun` starts once for each task: two jobs instead of one are never started in
//! silence.

use std::fs;

use harness::{Launch, Name, Outcome, Scratch, fixture, free_port, is_rankrun};

/// A variable of a task's environment.
type Variables = &'static [(&'static str, &'static str)];

/// `srun -N2 --ntasks-per-node=1`, the second task.
const STEP: Variables = &[
    ("SLURM_JOB_ID", "7"),
    ("SLURM_NNODES", "2"),
    ("SLURM_NODEID", "1"),
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "th[1-2]"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
];
/// `mpirun` of Open MPI on two hosts.
const OPEN_MPI: Variables =
    &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
/// `mpiexec` of MPICH, with two tasks on this host.
const HYDRA: Variables = &[("MPI_LOCALNRANKS", "2"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
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

#[test]
fn step_of_several_tasks_without_nnodes_is_refused() {
    for (variables, variable, start) in [
        (STEP, "SLURM_STEP_NUM_TASKS", "`srun -N2 -n2 "),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "`mpirun "),
        (HYDRA, "PMI_SIZE", "without `mpiexec`"),
    ] {
        let outcome = run(Name::Rankrun, variables, &[]);
        assert_refused(&outcome);
        outcome.expect_stderr("error: ").expect_stderr(variable).expect_stderr("2 tasks");
        outcome.expect_stderr("hint: ").expect_stderr(start).expect_stderr("`--nnodes 1`");
    }
}

/// Without `--nnodes` a node of an endpoint is a job of its own, and the others wait for it in vain.
#[test]
fn step_of_several_tasks_with_an_endpoint_alone_is_refused() {
    let endpoint = format!("--rdzv-endpoint=localhost:{}", free_port());
    for options in [&["--rdzv-backend=c10d", &endpoint][..], &[&endpoint], &["--master-addr=localhost"]] {
        let outcome = run(Name::Rankrun, STEP, options);
        assert_refused(&outcome);
        outcome.expect_stderr("`--nnodes 1`");
    }
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

/// `srun` hands the environment of a worker on to the tasks of a new step.
#[test]
fn step_started_by_worker_is_refused() {
    let launch = launch(Name::Rankrun, STEP).env("TORCHELASTIC_RUN_ID", "none").env("RANK", "0");
    let launch = launch.env("RANKRUN_NESTING", format!("{}:0=1", u32::MAX));
    assert_refused(&launch.worker(["print=started"]).run());
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
                 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST='th[1-2]'";
    let mpi = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_RANK=$task";
    let nodelist =
        format!("#!/bin/sh\n[ \"$*\" = 'show hostnames th[1-2]' ] && echo {endpoint} && echo th2\n");
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

/// The command line between the first backticks of the hint, run by a shell.
#[test]
fn command_in_refusal_hint_starts_one_job() {
    for variables in [STEP, OPEN_MPI] {
        let scratch = Scratch::new();
        let path = format!("{}:/usr/bin:/bin", scheduler_stubs(&scratch));
        let out = scratch.at("out");
        let show = format!("echo rank $RANK of $WORLD_SIZE: \"$@\" >> {out}");
        let script = scratch.file("it's $a", &format!("#!/bin/sh\n{show}\n"), 0o755);
        let refusal = launch(Name::Rankrun, variables).args(["--role", "a b"]);
        // It lives as long as the folder with the launcher that the line names.
        let refusal = refusal.args([script.as_str(), "--lr", "it's \"1\"", "$RANK"]).run();
        let text = refusal.expect_exit_code(1).stderr();
        let hint = text.split("hint: ").nth(1).expect("a hint");
        let line = hint.split('`').nth(1).expect("a line in backticks").to_owned();
        // The launcher that the harness names is an argument of no use; the line names the one that was refused.
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
