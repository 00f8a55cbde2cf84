//! What a launch costs: `rankrun`, torchrun 2.15 and a bare loop, eight times `/bin/true` each; a script of PyTorch
//! with eight ranks under both launchers; what the hook of Python workers costs; and what it costs to look for
//! accelerators.
//!
//! `cargo bench -p rankrun --bench launch [-- ROUNDS]`. The three take turns within one run, so that they see
//! the same machine; the figures are medians, and the ratios are medians of the ratios of each turn. torchrun is found
//! as in `common`; without it its row is left out.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::zombie_processes,
    reason = "a bench program starts programs, reads clocks, prints, and may panic; wait4 reaps"
)]
#![expect(unsafe_code, reason = "wait4 is the only call that says how much memory a child took")]

mod common;

use std::env;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rankrun_core::device::ProbeScope;
use rankrun_host::device_probe::PROBE_ARGUMENT;
use rankrun_host::process::probe;

use common::{RANKRUN, median, torchrun};

const WORKERS: usize = 8;
const DEFAULT_ROUNDS: usize = 20;
const SCRIPT_ROUNDS: usize = 5;
const SCRIPT: &str = "
import torch, torch.distributed as dist
dist.init_process_group('gloo')
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
";
const BARE_LOOP: &str = "--bare-loop";

/// One launch from the start of the launcher to its end.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    /// Of the largest process; kilobytes.
    peak_memory: i64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument.starts_with(PROBE_ARGUMENT)) {
        // A probe is the program that asks, started again.
        return rankrun::main();
    }
    if arguments.iter().any(|argument| argument == BARE_LOOP) {
        bare_loop();
        return ExitCode::SUCCESS;
    }
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(DEFAULT_ROUNDS);
    let mut contenders = vec![("bare loop", bare_loop_command()), ("rankrun", rankrun_command())];
    contenders.extend(torchrun().map(|path| ("torchrun 2.15", launch_command(path))));

    let costs = measure_in_turn(rounds, contenders.iter_mut().map(|(_, command)| command).collect());
    print_table(&contenders.iter().map(|(name, _)| *name).collect::<Vec<_>>(), &costs);
    print_script();
    print_hooks(rounds);
    print_discovery(rounds);
    ExitCode::SUCCESS
}

/// A real script: the workers import PyTorch, meet, and call `all_reduce` once over gloo.
fn print_script() {
    let Some(torchrun) = torchrun() else { return };
    let script = env::temp_dir().join(format!("rankrun-bench-{}.py", std::process::id()));
    std::fs::write(&script, SCRIPT).unwrap();
    let python = torchrun.with_file_name("python");
    let mut commands = [PathBuf::from(RANKRUN), torchrun].map(|launcher| {
        let mut command = Command::new(launcher);
        command.env("PYTHON_EXEC", &python).env("OMP_NUM_THREADS", "1");
        command.args(["--nproc-per-node", &WORKERS.to_string()]).arg(&script);
        command
    });
    let walls = measure_in_turn(SCRIPT_ROUNDS, commands.iter_mut().collect()).into_iter().map(walls_of);
    let walls: Vec<Vec<f64>> = walls.collect();
    let _ = std::fs::remove_file(&script);
    println!(
        "\n| {WORKERS} x `init_process_group`, `all_reduce` | wall, median of {SCRIPT_ROUNDS} | rankrun's time |"
    );
    println!("|---|---|---|");
    for (name, at) in [("rankrun", 0), ("torchrun 2.15", 1)] {
        println!(
            "| {name} | {:.2} s | {} |",
            median(walls[at].iter().copied()),
            ratio(&walls[0], &walls[at])
        );
    }
}

/// What the hook costs: the launcher alone, as `-S` leaves it out in Python, and together with Python.
fn print_hooks(rounds: usize) {
    println!("\n| {WORKERS} x python3 | without the hook | with it | difference, per worker |");
    println!("|---|---|---|---|");
    for program in [&["python3", "-S", "-c", "pass"][..], &["python3", "-c", "pass"]] {
        let mut commands = [&["--no-hooks"][..], &[]].map(|hooks| {
            let mut command = Command::new(RANKRUN);
            command.args(["--nproc-per-node", &WORKERS.to_string()]).args(hooks);
            command.arg("--no-python").args(program);
            command
        });
        let costs = measure_in_turn(rounds, commands.iter_mut().collect());
        let walls: Vec<Vec<f64>> = costs.into_iter().map(walls_of).collect();
        let differences = walls[1].iter().zip(&walls[0]).map(|(with, without)| with - without);
        let difference = median(differences) / WORKERS as f64 * 1e3;
        let [without, with] = [0, 1].map(|at| median(walls[at].iter().copied()) * 1e3);
        println!("| `{}` | {without:.2} ms | {with:.2} ms | {difference:.2} ms |", program.join(" "));
    }
}

/// What a launch pays that asks for the accelerators of this machine.
fn print_discovery(rounds: usize) {
    let everything = ProbeScope { state: true, links: true, cpus: true };
    println!("\n| discovery | devices | wall, median | min |");
    println!("|---|---|---|---|");
    for (name, ask) in [("which there are", ProbeScope::default()), ("all about them", everything)] {
        let mut devices = 0;
        let mut discover = || {
            let start = Instant::now();
            devices = probe::discover(ask, Duration::from_secs(10), |_, _| {}).accelerators.len();
            start.elapsed().as_secs_f64()
        };
        // The first one only warms the caches.
        discover();
        let walls: Vec<f64> = (0..rounds).map(|_| discover()).collect();
        let least = walls.iter().copied().fold(f64::MAX, f64::min);
        println!("| {name} | {devices} | {:.2} ms | {:.2} ms |", median(walls) * 1e3, least * 1e3);
    }
}

fn bare_loop() {
    let children: Vec<_> = (0..WORKERS).map(|_| Command::new("/bin/true").spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn bare_loop_command() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg(BARE_LOOP);
    command
}

fn rankrun_command() -> Command {
    launch_command(PathBuf::from(RANKRUN))
}

fn launch_command(launcher: PathBuf) -> Command {
    let mut command = Command::new(launcher);
    command.args(["--nproc-per-node", &WORKERS.to_string(), "--no-python", "/bin/true"]);
    command
}

/// What each command costs, in turns; the first turn only warms the caches.
fn measure_in_turn(rounds: usize, mut commands: Vec<&mut Command>) -> Vec<Vec<Cost>> {
    let mut costs = vec![Vec::new(); commands.len()];
    for round in 0..=rounds {
        for (command, costs) in commands.iter_mut().zip(&mut costs) {
            let cost = measure(command);
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    costs
}

/// In seconds.
fn walls_of(costs: Vec<Cost>) -> Vec<f64> {
    costs.into_iter().map(|cost| cost.wall.as_secs_f64()).collect()
}

fn measure(command: &mut Command) -> Cost {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().unwrap();
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: both places are valid for the kernel to write to; `usage` is read only after success.
    let usage = unsafe {
        let pid = i32::try_from(child.id()).unwrap();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()), pid);
        usage.assume_init()
    };
    let wall = start.elapsed();
    assert_eq!(status, 0, "{command:?} failed");
    Cost { wall, peak_memory: usage.ru_maxrss }
}

fn print_table(names: &[&str], costs: &[Vec<Cost>]) {
    let walls = |at: usize| costs[at].iter().map(|cost| cost.wall.as_secs_f64()).collect::<Vec<_>>();
    let memories = |at: usize| costs[at].iter().map(|cost| cost.peak_memory as f64).collect::<Vec<_>>();
    let rankrun = names.iter().position(|name| *name == "rankrun").unwrap();
    println!("{WORKERS} x /bin/true, {} rounds, interleaved\n", costs[0].len());
    println!("| launcher | wall, median | min | rankrun's time | peak memory | rankrun's memory |");
    println!("|---|---|---|---|---|---|");
    for (at, name) in names.iter().enumerate() {
        println!(
            "| {name} | {:.2} ms | {:.2} ms | {} | {:.1} MiB | {} |",
            median(walls(at)) * 1e3,
            walls(at).into_iter().fold(f64::MAX, f64::min) * 1e3,
            ratio(&walls(rankrun), &walls(at)),
            median(memories(at)) / 1024.0,
            ratio(&memories(rankrun), &memories(at)),
        );
    }
}

fn ratio(our_times: &[f64], torchrun_times: &[f64]) -> String {
    let ratio = median(our_times.iter().zip(torchrun_times).map(|(ours, torchruns)| ours / torchruns));
    if ratio < 0.5 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2} x") }
}
