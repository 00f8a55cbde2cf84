//! What copying the workers' output costs: `rankrun` and torchrun 2.15, `--tee 3` of eight workers.
//!
//! `cargo bench -p rankrun --bench tee [-- ROUNDS [LINES]]`. Each worker writes so many lines (100,000), half of them
//! to each stream: one line a write, as Python does, or as fast as it can, in large blocks. Launchers and loads take
//! turns within one run, so that they see the same machine. Figures are medians over the rounds, ratios medians of
//! the ratios of each round. "Flow" is the time from the first line to the end: without the start of the launcher,
//! with its end. The launcher's CPU time is that of the whole job less what its workers say they took. Each line is
//! looked at: a piece of a line, or a line out of its order, is counted. torchrun is found as in `common`.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::zombie_processes,
    reason = "a bench program starts programs, reads clocks, prints, and may panic; wait4 reaps"
)]
#![expect(unsafe_code, reason = "wait4 is the only call that says what a child's descendants took")]

mod common;

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use common::{RANKRUN, median, torchrun};

const WORKERS: usize = 8;
const DEFAULT_ROUNDS: usize = 5;
const DEFAULT_LINES: usize = 100_000;
const WORKER: &str = "--worker";
/// Bytes of a line behind its numbers.
const FILLER: &str = "loss 0.69314718 accuracy 0.50000000 lr 0.00100000 step time 0.123 s";
const BLOCK: usize = 64 * 1024;

/// How a worker writes.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    Lines,
    Blocks,
}

const LOADS: [(Load, &str); 3] =
    [(Load::Nothing, "nothing"), (Load::Lines, "a line a write"), (Load::Blocks, "64 KiB a write")];

/// One launch from its start to its end.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    /// From the first line to the end.
    flow: f64,
    /// User and system time of the launcher.
    cpu: f64,
    /// Lines that came whole and in their order.
    good: usize,
    /// What else came.
    bad: usize,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, load, lines, folder] = &arguments[..]
        && mode == WORKER
    {
        return work(load, lines.parse().unwrap(), Path::new(folder));
    }
    let number = |at: usize| arguments.get(at).and_then(|argument| argument.parse().ok());
    let rounds = number(0).unwrap_or(DEFAULT_ROUNDS);
    let lines = number(1).unwrap_or(DEFAULT_LINES);
    let mut launchers = vec![("rankrun", PathBuf::from(RANKRUN))];
    launchers.extend(torchrun().map(|path| ("torchrun 2.15", path)));

    // By launcher, load and round.
    let mut costs = vec![[const { Vec::new() }; LOADS.len()]; launchers.len()];
    for _ in 0..rounds {
        for at in 0..LOADS.len() {
            for ((_, launcher), costs) in launchers.iter().zip(&mut costs) {
                costs[at].push(measure(launcher, LOADS[at], lines));
            }
        }
    }
    let names: Vec<&str> = launchers.iter().map(|(name, _)| *name).collect();
    print_table(&names, &costs, lines);
}

/// The worker: writes its lines, then says what CPU time that took.
fn work(load: &str, lines: usize, folder: &Path) {
    let rank: usize = env::var("RANK").unwrap().parse().unwrap();
    let (stdout, stderr) = (io::stdout().lock(), io::stderr().lock());
    if load == LOADS[1].1 {
        write_lines(stdout, stderr, rank, lines);
    } else if load == LOADS[2].1 {
        let (mut out, mut err) = (Vec::with_capacity(2 * BLOCK), Vec::with_capacity(2 * BLOCK));
        write_blocks((stdout, &mut out), (stderr, &mut err), rank, lines);
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let cpu = [usage.user_time(), usage.system_time()].map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
    fs::write(folder.join(rank.to_string()), (cpu[0] + cpu[1]).to_string()).unwrap();
}

fn write_lines(mut stdout: impl Write, mut stderr: impl Write, rank: usize, lines: usize) {
    for number in 0..lines / 2 {
        let line = format!("{rank} {number} {FILLER}\n");
        stdout.write_all(line.as_bytes()).unwrap();
        stderr.write_all(line.as_bytes()).unwrap();
    }
}

fn write_blocks(
    (mut stdout, out): (impl Write, &mut Vec<u8>),
    (mut stderr, err): (impl Write, &mut Vec<u8>),
    rank: usize,
    lines: usize,
) {
    for number in 0..lines / 2 {
        for block in [&mut *out, &mut *err] {
            writeln!(block, "{rank} {number} {FILLER}").unwrap();
        }
        if out.len() > BLOCK || number + 1 == lines / 2 {
            stdout.write_all(out).unwrap();
            stderr.write_all(err).unwrap();
            out.clear();
            err.clear();
        }
    }
}

fn measure(launcher: &Path, (_, load): (Load, &str), lines: usize) -> Cost {
    let folder = env::temp_dir().join(format!("rankrun-bench-tee-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(launcher);
    command.args(["--standalone", "--nproc-per-node", &WORKERS.to_string(), "--tee", "3", "--log-dir"]);
    command.arg(folder.join("logs")).arg("--no-python").arg(env::current_exe().unwrap());
    command.args([WORKER, load, &lines.to_string()]).arg(&folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let readers = [thread::spawn(|| collect(stdout)), thread::spawn(|| collect(stderr))];
    let (status, total) = wait(child.id());
    let wall = start.elapsed();
    assert_eq!(status, 0, "{command:?} failed");
    let [(out, first), (err, _)] = readers.map(|reader| reader.join().unwrap());
    // On standard output there are only lines of the workers.
    let flow = start + wall - first.unwrap_or(start);
    let [out, err] = [count_lines(&out), count_lines(&err)];
    let workers: Duration = (0..WORKERS)
        .map(|rank| fs::read_to_string(folder.join(rank.to_string())).unwrap().parse().unwrap())
        .map(Duration::from_micros)
        .sum();
    fs::remove_dir_all(&folder).unwrap();
    let cpu = total.saturating_sub(workers).as_secs_f64();
    let (wall, flow) = (wall.as_secs_f64(), flow.as_secs_f64());
    Cost { wall, flow, cpu, good: out.0 + err.0, bad: out.1 + err.1 }
}

/// All that comes, and when the first of it came.
fn collect(mut stream: impl Read) -> (Vec<u8>, Option<Instant>) {
    let (mut bytes, mut first) = (vec![0; BLOCK], None);
    let mut len = 0;
    loop {
        match stream.read(&mut bytes[len..]).unwrap() {
            0 => break,
            count => len += count,
        }
        first = first.or_else(|| Some(Instant::now()));
        if bytes.len() - len < BLOCK {
            bytes.resize(2 * bytes.len(), 0);
        }
    }
    bytes.truncate(len);
    (bytes, first)
}

/// How many lines are whole and in their order, and how many are not.
fn count_lines(text: &[u8]) -> (usize, usize) {
    let mut next = [0; WORKERS];
    let (mut good, mut bad) = (0, 0);
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        match numbers_of(line) {
            Some((rank, number)) => {
                let expected = next[rank] == number;
                good += usize::from(expected);
                bad += usize::from(!expected);
                next[rank] = number + 1;
            }
            // Else it is what the launcher itself says.
            None => bad += usize::from(line.starts_with(b"[")),
        }
    }
    (good, bad)
}

fn numbers_of(line: &[u8]) -> Option<(usize, usize)> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("[default")?;
    let (prefix, line) = line.split_once("]:")?;
    let mut fields = line.strip_suffix('\n')?.splitn(3, ' ');
    let (rank, number) = (fields.next()?, fields.next()?.parse().ok()?);
    (rank == prefix && fields.next()? == FILLER).then_some((rank.parse().ok()?, number))
}

/// The exit status, and the CPU time of the process and all it waited for.
fn wait(pid: u32) -> (i32, Duration) {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: both places are valid for the kernel to write to; `usage` is read only after success.
    let usage = unsafe {
        let pid = i32::try_from(pid).unwrap();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()), pid);
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    (status, time(usage.ru_utime) + time(usage.ru_stime))
}

fn print_table(names: &[&str], costs: &[[Vec<Cost>; LOADS.len()]], lines: usize) {
    println!("--tee 3, {WORKERS} workers x {lines} lines, {} rounds, interleaved\n", costs[0][0].len());
    println!(
        "| worker writes | launcher | wall | lines/s | flow | lines/s | CPU of launcher | not whole or lost |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (load, (kind, what)) in LOADS.iter().enumerate() {
        let wanted = if matches!(kind, Load::Nothing) { 0 } else { WORKERS * lines };
        for (name, costs) in names.iter().zip(costs) {
            let costs = &costs[load];
            let lost: usize = costs.iter().map(|cost| cost.bad + wanted.saturating_sub(cost.good)).sum();
            let (wall, flow) =
                (median(costs.iter().map(|cost| cost.wall)), median(costs.iter().map(|cost| cost.flow)));
            println!(
                "| {what} | {name} | {wall:.3} s | {:.0} | {flow:.3} s | {:.0} | {:.3} s | {lost} |",
                wanted as f64 / wall,
                wanted as f64 / flow,
                median(costs.iter().map(|cost| cost.cpu)),
            );
        }
    }
    let [our_costs, torchrun_costs] = costs else { return };
    println!();
    for (load, (_, what)) in LOADS.iter().enumerate().skip(1) {
        let ratio = |of: fn(&Cost) -> f64| {
            // Of each round, since its launches saw the same machine.
            median(
                our_costs[load]
                    .iter()
                    .zip(&torchrun_costs[load])
                    .map(|(ours, torchruns)| of(torchruns) / of(ours)),
            )
        };
        println!(
            "{what}: {:.1} x torchrun's throughput ({:.1} x once it flows), {:.1} x less CPU",
            ratio(|cost| cost.wall),
            ratio(|cost| cost.flow),
            ratio(|cost| cost.cpu),
        );
    }
}
