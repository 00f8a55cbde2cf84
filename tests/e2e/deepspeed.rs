//! `rankrun deepspeed`: what its workers get, and how it ends. `tests/pytorch/deepspeed.rs` compares with the real tool.

use std::fs;
use std::os::unix::fs::symlink;

use harness::{Launch, Machine, Name, Outcome, Scratch, fixture, free_port, is_rankrun};

/// Prints what a worker gets, in one line.
const SHOW: &str = "#!/bin/sh
echo \"args=$* rank=$RANK/$WORLD_SIZE local=$LOCAL_RANK/$LOCAL_SIZE cross=$CROSS_RANK/$CROSS_SIZE \
master=$MASTER_ADDR:$MASTER_PORT devices=$CUDA_VISIBLE_DEVICES extra=$EXTRA\"
";

struct Deepspeed {
    scratch: Scratch,
    port: String,
}

impl Deepspeed {
    fn new() -> Self {
        Self { scratch: Scratch::new(), port: free_port().to_string() }
    }

    /// On a free port, so that jobs of other tests are not in the way.
    fn launch(&self, line: &str) -> Launch {
        let launch = Launch::new(Name::Rankrun).args(["deepspeed", "--master_port", &self.port]);
        launch.args(line.split(' ')).env("DS_ACCELERATOR", "cpu")
    }

    /// The last arguments: a program that shows what it gets.
    fn show(&self, launch: Launch) -> Outcome {
        launch.args(["--no_python".into(), self.scratch.file("show", SHOW, 0o755)]).args(["a", "b"]).run()
    }

    /// The lines of the workers, by rank, for this list of devices.
    fn lines(&self, ids: &str, extra: &str) -> Vec<String> {
        let count = ids.split(',').count();
        let port = &self.port;
        let line = |rank| {
            format!(
                "args=--local_rank={rank} a b rank={rank}/{count} local={rank}/{count} cross=0/1 \
                 master=127.0.0.1:{port} devices={ids} extra={extra}"
            )
        };
        (0..count).map(line).collect()
    }
}

fn sorted_lines(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.expect_exit_code(0).lines_with("args=");
    lines.sort();
    lines
}

#[test]
fn deepspeed_workers_get_variables_and_argument() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    for (line, ids) in [("--num_gpus 3", "0,1,2"), ("--include localhost:3,1", "3,1"), ("-q", "0,1,2,3")] {
        let outcome = deepspeed.show(deepspeed.launch(line).env("LOCAL_SIZE", "4"));
        assert_eq!(sorted_lines(&outcome), deepspeed.lines(ids, ""), "{line}\n{outcome}");
        outcome.expect_absent("spawned");
    }
}

#[test]
fn deepspeed_cpu_workers_see_no_gpu() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let outcome = deepspeed.show(deepspeed.launch("--num_gpus 2").on(&Machine::gpus(2)));
    outcome.expect_exit_code(0).expect_stdout("local=1/2").expect_stdout("devices= ");
}

#[test]
fn deepspeed_include_keeps_order_of_devices() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let machine = Machine::gpus(4);
    let rows = [
        ("--include localhost:3,1", None, "3,1"),
        ("--exclude localhost:0", None, "1,2,3"),
        ("--num_gpus 2", Some("3"), "0,1"),
        ("-q", Some("3,1"), "3,1"),
        ("-q", None, "0,1,2,3"),
    ];
    for (line, visible, ids) in rows {
        let launch = deepspeed.launch(line).without_env("DS_ACCELERATOR").on(&machine);
        let launch = launch.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        let launch =
            visible.into_iter().fold(launch, |launch, list| launch.env("CUDA_VISIBLE_DEVICES", list));
        let outcome = deepspeed.show(launch);
        assert_eq!(sorted_lines(&outcome), deepspeed.lines(ids, ""), "{line} {visible:?}\n{outcome}");
        let has_notice = outcome.stderr().contains("`CUDA_VISIBLE_DEVICES=3` is not used");
        assert_eq!(has_notice, visible == Some("3"), "{outcome}");
    }
    let uuid = machine.uuid(2);
    let launch = deepspeed.launch(&format!("--include localhost:{uuid},0"));
    let outcome = deepspeed.show(launch.without_env("DS_ACCELERATOR").on(&machine));
    assert_eq!(sorted_lines(&outcome), deepspeed.lines("2,0", ""), "{outcome}");
}

#[test]
fn deepspeed_env_file_reaches_workers() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let file = deepspeed.scratch.file(".deepspeed_env", "EXTRA=from file\n", 0o644);
    let launch = deepspeed.launch("--num_gpus 1").env("DS_ENV_FILE", file);
    assert_eq!(sorted_lines(&deepspeed.show(launch)), deepspeed.lines("0", "from file"));
}

#[test]
fn deepspeed_exit_code_is_that_of_first_failing_worker() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    for (step, code) in [("rank1:exit=7", 7), ("rank1:die=SIGKILL", 137)] {
        let launch = deepspeed.launch("--num_gpus 2 --no_python --no_local_rank");
        let launch = launch.args([fixture("worker").into_os_string()]).args([step, "rank0:forever"]);
        launch.run().expect_exit_code(code);
    }
}

#[test]
fn deepspeed_name_of_binary_replaces_first_word() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    for name in ["deepspeed", "ds"] {
        let link = deepspeed.scratch.at(name);
        symlink(fixture("launcher-under-test"), &link).expect("the scratch folder takes a link");
        let launch = Launch::new(Name::Rankrun).program_at(link).env("DS_ACCELERATOR", "cpu");
        let outcome = deepspeed.show(launch.args(["--num_gpus", "2", "--master_port", &deepspeed.port]));
        assert_eq!(sorted_lines(&outcome), deepspeed.lines("0,1", ""), "{name}\n{outcome}");
    }
}

#[test]
fn deepspeed_rank_logs_leave_console_silent() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let logs = deepspeed.scratch.at("logs");
    let outcome = deepspeed.show(deepspeed.launch("--num_gpus 2").args(["--enable_each_rank_log", &logs]));
    outcome.expect_exit_code(0);
    assert_eq!(outcome.stdout(), "");
    let runs: Vec<_> = fs::read_dir(&logs).expect("the folder is made").flatten().collect();
    let [run] = &runs[..] else { panic!("one run: {runs:?}") };
    for rank in 0..2 {
        let log = fs::read_to_string(run.path().join(format!("attempt_0/{rank}/stdout.log")));
        assert!(log.expect("each rank has a log").contains(&format!("rank={rank}/2")));
    }
}

#[test]
fn deepspeed_busy_port_is_named() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", deepspeed.port.parse().expect("a port")));
    let listener = listener.expect("the port is free");
    let outcome = deepspeed.show(deepspeed.launch("--num_gpus 2"));
    drop(listener);
    outcome.expect_exit_code(1).expect_stderr(&format!("cannot listen on `127.0.0.1:{}`", deepspeed.port));
}

#[test]
fn explain_shows_translated_deepspeed_launch() {
    if !is_rankrun() {
        return;
    }
    let deepspeed = Deepspeed::new();
    let launch = Launch::new(Name::Rankrun).args(["explain", "deepspeed", "--num_gpus", "2", "--save_pid"]);
    let outcome = deepspeed.show(launch.env("DS_ACCELERATOR", "cpu"));
    outcome.expect_exit_code(0).expect_stdout("--local_rank=1 a b").expect_stdout("port 29500");
}
