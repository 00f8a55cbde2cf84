//! How a program in Rust ends under the launcher: its exit code, its backtrace, and the devices that it refuses.

use harness::{Launch, Machine, Name, example};

/// The library of the compiler for kernels, by the name under which programs open it.
const COMPILER: &str = "libnvrtc.so";

fn failing_training(name: Name, options: &[&str]) -> Launch {
    let launch = Launch::standalone(name, 2).args(["--no-python"]).args(options.iter().copied());
    launch.args([example("ddp_training")]).args(["--fail-at", "3", "--fail-rank", "1"])
}

#[test]
fn panic_backtrace_of_a_worker_is_shown_once() {
    let both = |backtrace| Name::both().iter().map(move |name| (*name, backtrace));
    for (name, backtrace) in ["0", "1", "full"].into_iter().flat_map(both) {
        let launch = failing_training(name, &[]).args(["--fail-how", "panic"]);
        let launch = launch.env("RUST_BACKTRACE", backtrace);
        let outcome = launch.run();
        outcome.exits(1).complains("panic: panicked before step 3, as asked");
        let everything = format!("{}{}", outcome.out(), outcome.err());
        assert_eq!(everything.matches("fault::Fault::strike").count(), 1, "{backtrace}\n{outcome}");
        // On the stream of the worker, and in its report.
        assert_eq!(everything.matches("panicked before step 3").count(), 2, "{backtrace}\n{outcome}");
        let has_machinery = everything.contains("rust_begin_unwind");
        assert_eq!(has_machinery, backtrace == "full", "{backtrace}\n{outcome}");
    }
}

#[test]
fn panic_backtrace_before_a_restart_is_on_the_stream_of_the_worker() {
    for (backtrace, shown) in [("1", 1), ("0", 0)] {
        let launch = failing_training(Name::Rankrun, &["--max-restarts", "1"]);
        let launch = launch.args(["--fail-how", "panic", "--steps", "5"]).env("RUST_BACKTRACE", backtrace);
        let outcome = launch.run();
        outcome.exits(0).complains("panicked before step 3").complains("restart 1 of 1");
        assert_eq!(outcome.err().matches("fault::Fault::strike").count(), shown, "{backtrace}\n{outcome}");
    }
}

#[test]
fn error_exit_code_of_a_worker_meets_its_rule() {
    let outcome = failing_training(Name::Rankrun, &[]).args(["--fail-code", "42"]).run();
    outcome.exits(42).complains("rank 1 failed first: exit code 42");
    let rules = ["--max-restarts", "3", "--restart-rules", "exit=42:requeue"];
    let outcome = failing_training(Name::Rankrun, &rules).args(["--fail-code", "42"]).run();
    outcome.exits(75).complains("`exit=42:requeue`");
    let outcome = failing_training(Name::Rankrun, &rules).args(["--fail-code", "7"]).run();
    outcome.exits(0).complains("restart 1 of 3");
}

#[test]
fn given_gpu_without_compiler_is_refused_and_not_replaced() {
    let machine = Machine::gpus(2).computing().without_library(COMPILER);
    let start = |flags: &[&str], program: &str| {
        let launch = Launch::standalone(Name::Rankrun, 2).on(&machine).args(flags.iter().copied());
        launch.args([example(program)]).args(["--steps", "2"]).run()
    };
    for program in ["ddp_training", "data_parallel"] {
        let outcome = start(&[], program);
        outcome.exits(1).complains("there is no NVRTC").complains("hint: install CUDA's toolkit");
        outcome.never_says("device cpu:");
        start(&["--device-type", "cpu"], program).exits(0).says("device cpu:1");
    }
}

#[test]
fn cuda_asked_of_a_worker_with_a_cpu_is_refused() {
    // There are GPUs, which the launcher does not give.
    let machine = Machine::gpus(2).computing();
    let launch = Launch::standalone(Name::Rankrun, 2).on(&machine).args(["--device-type", "cpu"]);
    let outcome = launch.args([example("ddp_training")]).args(["--steps", "2", "--device", "cuda"]).run();
    outcome.exits(1).complains("this worker is to compute on a CUDA device, and the launcher gives it `cpu:");
    outcome.complains("hint: start it with `rankrun --device-type cuda`").never_says("device cuda:");
}

#[test]
fn bench_without_backend_follows_the_environment_of_the_job() {
    for (backend, expected) in [("tcp", "# backend tcp, 2 ranks"), ("shm", "# backend shm, 2 ranks")] {
        let launch = Launch::standalone(Name::Rankrun, 2).env("RANKRUN_BACKEND", backend);
        let outcome = launch.args([example("allreduce_bench")]).args(["--max", "8"]).run();
        outcome.exits(0).says(expected);
    }
    let launch = Launch::standalone(Name::Rankrun, 2).on(&Machine::gpus(2).computing());
    let launch = launch.env("RANKRUN_BACKEND", "nccl").args([example("allreduce_bench")]);
    launch.args(["--max", "8"]).run().exits(0).says("# backend nccl, 2 ranks");
}
