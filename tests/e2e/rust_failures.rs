//! How a program in Rust ends under the launcher: its exit code, its backtrace, and the devices that it refuses.

use harness::{Launch, Machine, Name, example};

/// The library of the compiler for kernels, by the name under which programs open it.
const COMPILER: &str = "libnvrtc.so";

fn failing_training_launch(name: Name, options: &[&str]) -> Launch {
    let launch = Launch::standalone(name, 2).args(["--no-python"]).args(options.iter().copied());
    launch.args([example("ddp_training")]).args(["--fail-at", "3", "--fail-rank", "1"])
}

#[test]
fn panic_backtrace_of_a_worker_is_shown_once() {
    let both = |backtrace| Name::both().iter().map(move |name| (*name, backtrace));
    for (name, backtrace) in ["0", "1", "full"].into_iter().flat_map(both) {
        let launch = failing_training_launch(name, &[]).args(["--fail-how", "panic"]);
        let launch = launch.env("RUST_BACKTRACE", backtrace);
        let outcome = launch.run();
        outcome.expect_exit_code(1).expect_stderr("panic: panicked before step 3, as asked");
        let everything = format!("{}{}", outcome.stdout(), outcome.stderr());
        assert_eq!(everything.matches("fault::Fault::trigger").count(), 1, "{backtrace}\n{outcome}");
        // On the stream of the worker, and in its report.
        assert_eq!(everything.matches("panicked before step 3").count(), 2, "{backtrace}\n{outcome}");
        let has_machinery = everything.contains("rust_begin_unwind");
        assert_eq!(has_machinery, backtrace == "full", "{backtrace}\n{outcome}");
    }
}

#[test]
fn panic_backtrace_before_restart_is_on_worker_stderr() {
    for (backtrace, shown) in [("1", 1), ("0", 0)] {
        let launch = failing_training_launch(Name::Rankrun, &["--max-restarts", "1"]);
        let launch = launch.args(["--fail-how", "panic", "--steps", "5"]).env("RUST_BACKTRACE", backtrace);
        let outcome = launch.run();
        outcome.expect_exit_code(0).expect_stderr("panicked before step 3").expect_stderr("restart 1 of 1");
        assert_eq!(
            outcome.stderr().matches("fault::Fault::trigger").count(),
            shown,
            "{backtrace}\n{outcome}"
        );
    }
}

#[test]
fn worker_error_exit_code_matches_restart_rule() {
    let outcome = failing_training_launch(Name::Rankrun, &[]).args(["--fail-code", "42"]).run();
    outcome.expect_exit_code(42).expect_stderr("rank 1 failed first: exit code 42");
    let rules = ["--max-restarts", "3", "--restart-rules", "exit=42:requeue"];
    let outcome = failing_training_launch(Name::Rankrun, &rules).args(["--fail-code", "42"]).run();
    outcome.expect_exit_code(75).expect_stderr("`exit=42:requeue`");
    let outcome = failing_training_launch(Name::Rankrun, &rules).args(["--fail-code", "7"]).run();
    outcome.expect_exit_code(0).expect_stderr("restart 1 of 3");
}

#[test]
fn given_gpu_without_compiler_is_refused_and_not_replaced() {
    let machine = Machine::gpus(2).computing().without_library(COMPILER);
    let start = |flags: &[&str], (program, length): (&str, [&str; 2])| {
        let launch = Launch::standalone(Name::Rankrun, 2).on(&machine).args(flags.iter().copied());
        launch.args([example(program)]).args(length).run()
    };
    for program in [("ddp_training", ["--steps", "2"]), ("data_parallel", ["--rows", "30"])] {
        let outcome = start(&[], program);
        outcome
            .expect_exit_code(1)
            .expect_stderr("NVRTC, which compiles the GPU kernels, cannot be loaded")
            .expect_stderr("hint: install CUDA's toolkit");
        outcome.expect_absent("device cpu:");
        start(&["--device-type", "cpu"], program).expect_exit_code(0).expect_stdout("device cpu:1");
    }
}

#[test]
fn cuda_requested_by_cpu_worker_is_refused() {
    // There are GPUs, which the launcher does not give.
    let machine = Machine::gpus(2).computing();
    let launch = Launch::standalone(Name::Rankrun, 2).on(&machine).args(["--device-type", "cpu"]);
    let outcome = launch.args([example("ddp_training")]).args(["--steps", "2", "--device", "cuda"]).run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("this worker is to compute on a CUDA device, and the launcher gives it `cpu:");
    outcome.expect_stderr("hint: start it with `rankrun --device-type cuda`").expect_absent("device cuda:");
}

#[test]
fn bench_without_backend_uses_job_environment() {
    for (backend, expected) in [("tcp", "# backend tcp, 2 ranks"), ("shm", "# backend shm, 2 ranks")] {
        let launch = Launch::standalone(Name::Rankrun, 2).env("RANKRUN_BACKEND", backend);
        let outcome = launch.args([example("allreduce_bench")]).args(["--max", "8"]).run();
        outcome.expect_exit_code(0).expect_stdout(expected);
    }
    let launch = Launch::standalone(Name::Rankrun, 2).on(&Machine::gpus(2).computing());
    let launch = launch.env("RANKRUN_BACKEND", "nccl").args([example("allreduce_bench")]);
    launch.args(["--max", "8"]).run().expect_exit_code(0).expect_stdout("# backend nccl, 2 ranks");
}
