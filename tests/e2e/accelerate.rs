//! `rankrun accelerate launch`, without PyTorch. What a worker gets beside the real tool is in `tests/pytorch/accelerate.rs`.

use std::net::TcpListener;

use harness::{Launch, Machine, Name, Outcome, Scratch, fixture, free_port, is_rankrun};
use nix::sys::signal::Signal;

/// `rankrun accelerate launch` with these options.
fn accelerate(options: &str) -> Launch {
    Launch::new(Name::Rankrun).args(["accelerate", "launch"]).args(options.split_whitespace())
}

/// The binary under another name.
fn called(name: &str) -> Launch {
    Launch::new(Name::Rankrun).under(["bash", "-c", &format!("exec -a {name} \"$@\""), "bash"])
}

/// The values of a variable in the workers, by rank.
fn values(outcome: &Outcome, variable: &str) -> Vec<String> {
    let mut lines = outcome.lines_with(&format!(" {variable}="));
    lines.sort();
    lines.iter().filter_map(|line| Some(line.split_once('=')?.1.to_owned())).collect()
}

#[test]
fn workers_get_variables_under_each_name() {
    if !is_rankrun() {
        return;
    }
    let options = ["--multi_gpu", "--num-processes=2", "--mixed_precision", "bf16"];
    for launch in [
        Launch::new(Name::Rankrun).args(["accelerate", "launch"]),
        called("accelerate").args(["launch"]),
        called("/usr/bin/accelerate-launch"),
    ] {
        let outcome = launch.args(options).worker(["env"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(values(&outcome, "ACCELERATE_MIXED_PRECISION"), ["bf16", "bf16"], "{outcome}");
        assert_eq!(values(&outcome, "WORLD_SIZE"), ["2", "2"], "{outcome}");
    }
}

#[test]
fn cpu_launch_starts_every_process_asked_for() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let file =
        scratch.file("c.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n", 0o644);
    for options in ["--cpu --num_processes 2".to_owned(), format!("--config_file {file}")] {
        let outcome = accelerate(&options).worker(["env"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(values(&outcome, "RANK"), ["0", "1"], "{outcome}");
        assert_eq!(values(&outcome, "ACCELERATE_USE_CPU"), ["True", "True"], "{outcome}");
    }
    let outcome = accelerate("--num_processes 2").worker(["env"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(values(&outcome, "ACCELERATE_USE_CPU"), ["False", "False"], "no accelerator\n{outcome}");
}

#[test]
fn exit_code_is_that_of_worker_after_restarts() {
    if !is_rankrun() {
        return;
    }
    let launch = accelerate("--multi_gpu --num_processes 2 --max_restarts 1");
    let outcome = launch.worker(["attempt0:exit=3", "exit=7"]).run();
    outcome.expect_exit_code(7).expect_stderr("restart 1 of 1");
}

#[test]
fn processes_are_divided_among_machines_without_loss() {
    if !is_rankrun() {
        return;
    }
    let port = free_port();
    let machine = |rank: usize| {
        let place = format!("--machine_rank {rank} --main_process_ip 127.0.0.1 --main_process_port {port}");
        accelerate(&format!("--multi_gpu --num_machines 2 --num_processes 5 {place}")).worker(["env"])
    };
    let first = machine(0).start();
    let second = machine(1).run();
    let first = first.wait();
    assert_eq!(values(first.expect_exit_code(0), "RANK"), ["0", "1", "2"], "{first}");
    assert_eq!(values(second.expect_exit_code(0), "RANK"), ["3", "4"], "{second}");
    assert_eq!(values(&second, "WORLD_SIZE"), ["5", "5"], "{second}");
}

#[test]
fn gpu_ids_are_absolute_and_keep_their_order() {
    if !is_rankrun() {
        return;
    }
    let launch =
        accelerate("--multi_gpu --gpu_ids 2,0").on(&Machine::gpus(4)).env("CUDA_VISIBLE_DEVICES", "3,1");
    let outcome = launch.worker(["env"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(values(&outcome, "CUDA_VISIBLE_DEVICES"), ["2,0", "2,0"], "{outcome}");
    let outcome = accelerate("--multi_gpu --gpu_ids 0,9").on(&Machine::gpus(4)).worker(["env"]).run();
    outcome.expect_exit_code(1).expect_stderr("no cuda device has the index 9");
    let outcome = accelerate("--multi_gpu --num_processes 5").on(&Machine::gpus(4)).worker(["env"]).run();
    outcome.expect_exit_code(1).expect_stderr("oversubscribe");
}

#[test]
fn port_in_use_is_replaced_by_a_free_one() {
    if !is_rankrun() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("the machine has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let launch = accelerate(&format!("--multi_gpu --num_processes 2 --main_process_port {port}"));
    let outcome = launch.worker(["env"]).run();
    outcome.expect_exit_code(0).expect_stderr(&format!("port {port} of `--main_process_port` is in use"));
    assert!(values(&outcome, "MASTER_PORT").iter().all(|taken| *taken != port.to_string()), "{outcome}");
}

#[test]
fn mistake_in_file_is_one_error_with_its_line() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.file("c.yaml", "distributed_type: MULTI_GPU\nnum_proceses: 2\n", 0o644);
    let outcome = accelerate(&format!("--config_file {file}")).worker(["env"]).run();
    outcome.expect_exit_code(1);
    let expected = format!(
        "error: `{file}`, line 2: `num_proceses` is not a key of accelerate\n\nhint: did you mean `num_processes`?\n"
    );
    assert_eq!(outcome.stderr(), expected);
    let outcome = accelerate("--num_proc 2").worker(["env"]).run();
    outcome.expect_exit_code(2).expect_stderr("did you mean `--num_processes`?");
}

#[test]
fn explain_shows_translated_launch() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::new(Name::Rankrun).args(["explain", "--json", "accelerate", "launch", "--use_fsdp"]);
    let outcome = launch.args(["--num_processes", "2"]).worker(["env"]).run();
    outcome.expect_exit_code(0).expect_stdout("ACCELERATE_USE_FSDP").expect_stdout("nproc-per-node");
    let launch = Launch::new(Name::Rankrun).args(["explain", "accelerate", "config"]);
    launch.run().expect_exit_code(1).expect_stderr("rankrun explain accelerate launch");
}

/// A program that says what it got: words, a descriptor of its parent, and signals. It forks nothing, since a shell that
/// forks blocks signals for a moment.
const REAL: &str = "#!/bin/sh\necho \"real $*\"\n[ -e /proc/self/fd/7 ] && echo descriptor\n\
                    while read -r line; do\ncase $line in SigBlk:*|SigIgn:*) echo \"$line\" ;; esac\n\
                    done </proc/$$/status\nexit 5\n";

#[test]
fn other_command_runs_own_program_untouched() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.folder("ours", 0o755), scratch.folder("theirs", 0o755));
    let link = format!("{ours}/accelerate");
    std::os::unix::fs::symlink(fixture("launcher-under-test"), &link).expect("the folder takes a link");
    let _ = scratch.file("theirs/accelerate", REAL, 0o755);
    let path = format!("{ours}:{theirs}:/usr/bin:/bin");
    for name in ["rankrun", "accelerate"] {
        let shell = format!("exec 7</dev/null; shift; exec -a {name} {link} \"$@\"");
        let words: &[&str] = if name == "rankrun" { &["accelerate", "config"] } else { &["config"] };
        let launch =
            Launch::new(Name::Rankrun).under(["bash", "-c", &shell, "bash"]).args(words.iter().copied());
        let outcome = launch.args(["--config_file", "x"]).env("PATH", &path).run();
        outcome
            .expect_exit_code(5)
            .expect_stdout("real config --config_file x\n")
            .expect_stdout("descriptor\n");
        for key in ["SigBlk:", "SigIgn:"] {
            let lines = outcome.lines_with(key);
            let set =
                lines.first().and_then(|line| u64::from_str_radix(line.split_whitespace().last()?, 16).ok());
            let ours =
                [Signal::SIGPIPE, Signal::SIGXFSZ, Signal::SIGTERM].map(|signal| 1 << (signal as u32 - 1));
            assert!(set.is_some_and(|set| ours.iter().all(|bit| set & bit == 0)), "{key}\n{outcome}");
        }
    }
}

#[test]
fn wrapper_around_rankrun_is_refused_at_second_hand_over() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("wrapper", 0o755);
    let rankrun = fixture("launcher-under-test");
    let wrapper = format!("#!/bin/sh\nexec {} accelerate \"$@\"\n", rankrun.display());
    let _ = scratch.file("wrapper/accelerate", &wrapper, 0o755);
    let path = format!("{folder}:/usr/bin:/bin");
    let outcome = Launch::new(Name::Rankrun).args(["accelerate", "env"]).env("PATH", path).run();
    outcome.expect_exit_code(1).expect_stderr("the `accelerate` of PATH is a wrapper around rankrun");
}

#[test]
fn missing_own_program_is_an_error_with_the_way_out() {
    if !is_rankrun() {
        return;
    }
    let empty = Scratch::new().folder("empty", 0o755);
    let outcome = Launch::new(Name::Rankrun).args(["accelerate", "env"]).env("PATH", empty).run();
    outcome.expect_exit_code(1).expect_stderr("pip install accelerate");
}

#[test]
fn refused_translation_is_written_to_parent_error_file() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.at("error.json");
    let launch = accelerate("--config_file absent.yaml").env("TORCHELASTIC_ERROR_FILE", &file);
    launch.worker(["env"]).run().expect_exit_code(1).expect_stderr("absent.yaml");
    let text = std::fs::read_to_string(&file).expect("the launcher writes it");
    assert!(text.contains("absent.yaml"), "{text}");
    std::fs::remove_file(&file).expect("it is there");
    let explain =
        Launch::new(Name::Rankrun).args(["explain", "accelerate", "launch", "--config_file", "absent.yaml"]);
    explain.env("TORCHELASTIC_ERROR_FILE", &file).worker(["env"]).run().expect_exit_code(1);
    assert!(!std::path::Path::new(&file).exists(), "a query writes none");
}
