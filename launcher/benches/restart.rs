//! What a worker's death costs: `rankrun` and torchrun 2.15, `--standalone`; and what many restarts leave in rankrun.
//!
//! `cargo bench -p rankrun --bench restart [-- ROUNDS [STUBBORN [WORKERS [RESTARTS]]]]`. Rank 0 of two workers ends with
//! status 1, and time runs from there: until its peer has the stop signal, until the launcher has ended, until the first
//! instruction of the next generation; and, in STUBBORN rounds (1, since torchrun takes half a minute), until a launcher has
//! ended whose worker ignores the signal and is to be killed after two seconds. With more workers the last of them
//! counts. Workers are this program, and write down the time themselves (CLOCK_MONOTONIC, which is one for all
//! processes). Launchers take turns within one run, so that they see the same machine. Figures are medians over the
//! rounds, ratios medians of the ratios of each round. torchrun looks at its workers every 100 ms, therefore deaths come
//! spread over that time. Without a torchrun, found as in `common`, its figures are left out.
//!
//! Then one worker is started again RESTARTS times (1,000), and looks after ten and after all at the two processes of
//! the launcher that started it.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench program starts programs, reads clocks, prints, and may panic"
)]
#![expect(unsafe_code, reason = "the standard library has no clock that two processes can compare")]

mod common;

use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use nix::unistd::{getppid, mkfifo, pause};

use common::{RANKRUN, median, torchrun};

const DEFAULT_ROUNDS: usize = 10;
const DEFAULT_STUBBORN: usize = 1;
const DEFAULT_WORKERS: usize = 2;
const DEFAULT_RESTARTS: usize = 1_000;
/// The first look at what a launcher holds.
const EARLY: usize = 10;
/// A launcher that has just started its workers is at rest after that time.
const REST: Duration = Duration::from_millis(300);
const WORKER: &str = "--worker";
const KILL_AFTER: &str = "2";

/// What the workers do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Rank 0 dies after this pause, and the others end when they are told to.
    EndsOnSignal(Duration),
    /// Rank 0 dies, and the others ignore what they are told.
    Ignore,
    /// All die, and look at the launcher in the early and in this generation.
    Again(usize),
}

/// The times of one launch; seconds from the death of rank 0.
#[derive(Clone, Copy)]
struct LaunchTimes {
    peer_signalled: f64,
    launcher_ended: f64,
    next_generation: f64,
}

/// The figures of one launcher.
struct Figures {
    name: &'static str,
    path: PathBuf,
    /// For each of [`SPANS`], a figure for each round.
    spans: [Vec<f64>; SPANS.len()],
}

const SPANS: [&str; 4] = [
    "its peer has the stop signal",
    "the launcher has ended",
    "the next generation's first instruction",
    "the launcher has ended, where the peer ignores SIGTERM and the grace is 2 s",
];

fn main() -> ExitCode {
    let began = now();
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, way, number, folder] = &arguments[..]
        && mode == WORKER
    {
        return work(began, Way::read(way, number), Path::new(folder));
    }
    let number = |at: usize| arguments.get(at).and_then(|argument| argument.parse::<usize>().ok());
    let rounds = number(0).unwrap_or(DEFAULT_ROUNDS);
    let stubborn = number(1).unwrap_or(DEFAULT_STUBBORN);
    let workers = number(2).unwrap_or(DEFAULT_WORKERS).max(2);
    let restarts = number(3).unwrap_or(DEFAULT_RESTARTS).max(EARLY);

    let spans = [const { Vec::new() }; SPANS.len()];
    let mut all = vec![Figures { name: "rankrun", path: PathBuf::from(RANKRUN), spans: spans.clone() }];
    all.extend(torchrun().map(|path| Figures { name: "torchrun 2.15", path, spans }));
    for round in 0..rounds {
        let way = Way::EndsOnSignal(REST + Duration::from_millis(round as u64 * 37 % 100));
        for figures in &mut all {
            let last_generation = launch(&figures.path, workers, 0, way);
            let restarted = launch(&figures.path, workers, 1, way);
            let times =
                [last_generation.peer_signalled, last_generation.launcher_ended, restarted.next_generation];
            figures.spans.iter_mut().zip(times).for_each(|(span, time)| span.push(time));
        }
    }
    for _ in 0..stubborn {
        for figures in &mut all {
            figures.spans[3].push(launch(&figures.path, workers, 0, Way::Ignore).launcher_ended);
        }
    }
    println!("a worker of {workers} dies, {rounds} rounds ({stubborn} of the last), interleaved\n");
    print_spans(&all);
    println!("\none worker, rankrun after restarts\n");
    print_holdings(restarts);
    ExitCode::SUCCESS
}

impl Way {
    fn words(self) -> [String; 2] {
        let (way, number) = match self {
            Self::EndsOnSignal(pause) => ("obey", pause.as_millis().to_string()),
            Self::Ignore => ("ignore", "0".to_owned()),
            Self::Again(last) => ("again", last.to_string()),
        };
        [way.to_owned(), number]
    }

    fn read(way: &str, number: &str) -> Self {
        match way {
            "obey" => Self::EndsOnSignal(Duration::from_millis(number.parse().unwrap())),
            "ignore" => Self::Ignore,
            "again" => Self::Again(number.parse().unwrap()),
            _ => panic!("no such worker: {way}"),
        }
    }
}

/// A folder in which the workers of one launch meet and leave what they saw.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("rankrun-bench-restart-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        mkfifo(&folder.join("ready"), Mode::S_IRWXU).unwrap();
        Self(folder)
    }

    /// The latest time that these workers wrote down under this name; NaN where there is none.
    fn latest(&self, name: &str, ranks: std::ops::Range<usize>) -> f64 {
        let times = ranks.filter_map(|rank| fs::read_to_string(self.0.join(format!("{name}{rank}"))).ok());
        times.map(|time| time.parse().unwrap()).fold(f64::NAN, f64::max)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn launch(launcher: &Path, workers: usize, restarts: usize, way: Way) -> LaunchTimes {
    let place = Place::new();
    let status = run(launcher, workers, restarts, way, &place);
    let end = now();
    assert_eq!(status, if restarts == 0 { 1 } else { 0 }, "{} failed", launcher.display());
    let died = place.latest("died", 0..1);
    assert!(!died.is_nan(), "rank 0 of {} did not die", launcher.display());
    LaunchTimes {
        peer_signalled: place.latest("told", 1..workers) - died,
        launcher_ended: end - died,
        next_generation: place.latest("began", 0..workers) - died,
    }
}

fn run(launcher: &Path, workers: usize, restarts: usize, way: Way, place: &Place) -> i32 {
    let mut command = Command::new(launcher);
    command.args(["--standalone", "--shutdown-timeout", KILL_AFTER]);
    command.args(["--nproc-per-node", &workers.to_string(), "--max-restarts", &restarts.to_string()]);
    command.arg("--no-python").arg(env::current_exe().unwrap()).arg(WORKER).args(way.words()).arg(&place.0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().code().unwrap()
}

/// The worker.
fn work(began: f64, way: Way, folder: &Path) -> ExitCode {
    let [rank, generation]: [usize; 2] =
        ["RANK", "TORCHELASTIC_RESTART_COUNT"].map(|name| env::var(name).unwrap().parse().unwrap());
    let write = |name: &str, time: f64| fs::write(folder.join(format!("{name}{rank}")), time.to_string());
    if let Way::Again(last) = way {
        if generation == EARLY || generation == last {
            record_holdings(&folder.join(format!("held{generation}")));
        }
        return ExitCode::FAILURE;
    }
    if generation > 0 {
        write("began", began).unwrap();
        return ExitCode::SUCCESS;
    }
    let ready = folder.join("ready");
    if rank == 0 {
        let peers: usize = env::var("WORLD_SIZE").unwrap().parse::<usize>().unwrap() - 1;
        // Open for writing too: else it ends when the first peer has come and gone.
        File::options().read(true).write(true).open(ready).unwrap().read_exact(&mut vec![0; peers]).unwrap();
        thread::sleep(if let Way::EndsOnSignal(pause) = way { pause } else { REST });
        write("died", now()).unwrap();
        return ExitCode::FAILURE;
    }
    let stop = SigSet::from(Signal::SIGTERM);
    stop.thread_block().unwrap();
    File::options().write(true).open(ready).unwrap().write_all(&[0]).unwrap();
    if way == Way::Ignore {
        pause();
    }
    stop.wait().unwrap();
    write("told", now()).unwrap();
    ExitCode::SUCCESS
}

/// Writes down the memory and the descriptors of the agent and the guard of this worker.
fn record_holdings(path: &Path) {
    thread::sleep(REST);
    let agent = getppid().as_raw();
    let guard: i32 = field(&fs::read_to_string(format!("/proc/{agent}/status")).unwrap(), "PPid:");
    let open_descriptors = [agent, guard].map(|pid| {
        // Counted page by page; what `status` says may be some dozens off.
        let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        let zombies = children_of(pid).into_iter().filter(|child| is_zombie(*child)).count();
        let [resident, own] = ["Rss:", "Anonymous:"].map(|name| field::<u64>(&memory, name));
        format!("{resident} KiB | {own} KiB | {} | {zombies}", descriptors.unwrap().count())
    });
    fs::write(path, open_descriptors.join("\n")).unwrap();
}

/// The number that follows this word.
fn field<T: std::str::FromStr<Err: std::fmt::Debug>>(status: &str, name: &str) -> T {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

fn children_of(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("children")).unwrap());
    lists
        .flat_map(|list| list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("\nState:\tZ"))
}

/// Seconds of a clock that all processes share.
fn now() -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the place is valid for the kernel to write to; it is read only after success.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr()), 0);
        time.assume_init()
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn print_spans(all: &[Figures]) {
    let names: Vec<String> =
        all.iter().map(|figures| format!("{}: median | min | max", figures.name)).collect();
    println!("| from its death until | {} | rankrun's time |", names.join(" | "));
    println!("|---|{}---|", "---|".repeat(3 * all.len()));
    for (at, what) in SPANS.iter().enumerate().filter(|(at, _)| !all[0].spans[*at].is_empty()) {
        let figures: Vec<String> = all.iter().map(|figures| shown(&figures.spans[at])).collect();
        let ratio = match all {
            [our_figures, torchrun_figures] => {
                let ratios = our_figures.spans[at]
                    .iter()
                    .zip(&torchrun_figures.spans[at])
                    .map(|(ours, torchruns)| ours / torchruns);
                format!("1/{:.0}", 1.0 / median(ratios))
            }
            _ => String::new(),
        };
        println!("| {what} | {} | {ratio} |", figures.join(" | "));
    }
}

fn shown(seconds: &[f64]) -> String {
    let of = |pick: fn(f64, f64) -> f64| seconds.iter().copied().reduce(pick).unwrap_or_default();
    let figures = [median(seconds.iter().copied()), of(f64::min), of(f64::max)];
    figures.map(|seconds| format!("{:.2} ms", seconds * 1e3)).join(" | ")
}

fn print_holdings(restarts: usize) {
    let place = Place::new();
    run(Path::new(RANKRUN), 1, restarts, Way::Again(restarts), &place);
    println!("| restarts | process | resident | without files | descriptors | zombies |");
    println!("|---|---|---|---|---|---|");
    for generation in [EARLY, restarts] {
        let descriptors = fs::read_to_string(place.0.join(format!("held{generation}"))).unwrap();
        for (process, descriptors) in ["agent", "guard"].iter().zip(descriptors.lines()) {
            println!("| {generation} | {process} | {descriptors} |");
        }
    }
}
