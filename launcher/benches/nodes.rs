//! What a restart and a join cost over several hosts: `rankrun` and torchrun 2.15, with an agent on each.
//!
//! `cargo bench -p rankrun --bench nodes [-- ROUNDS [JOINS]]`, as root: the hosts are network namespaces of this machine
//! (`tests/hosts/hosts.sh`). Two jobs run on four hosts, one of each launcher, and take turns within one run: the worker
//! with rank 2 is killed, and time runs from there until the first instruction of the last worker of the next generation. The
//! workers' own part is measured beside it: from SIGTERM to a worker until it is reaped, and from a start until the first
//! instruction. Workers are this program, and tell the time themselves (CLOCK_MONOTONIC, which is one for all processes).
//! Figures are medians of ROUNDS (10), ratios medians of the ratios of each round.
//!
//! Then a fresh agent comes to a job that runs on one host and has room: from the start of its process until the first
//! instruction of its worker, JOINS (10) times; torchrun's at most three times, with
//! `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, as its join ends the job otherwise. Without a torchrun, found as in `common`, its
//! figures are left out.
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
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo, pause};

use common::{RANKRUN, median, torchrun};

const DEFAULT_ROUNDS: usize = 10;
const DEFAULT_JOINS: usize = 10;
const HOSTS: usize = 4;
/// torchrun needs seconds for a start.
const MOST_JOINS_OF_TORCHRUN: usize = 3;
/// Whose worker is killed.
const KILLED: usize = 2;
const WORKER: &str = "--worker";
/// In front of a command: tells the time, and becomes the command.
const TIMED: &str = "--timed";

fn main() -> ExitCode {
    let began = now();
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match &arguments[..] {
        [word, pipe] if word == WORKER => {
            let rank = env::var("RANK").unwrap_or_default();
            report(Path::new(pipe), &rank, began);
            loop {
                pause();
            }
        }
        [word, pipe, program, words @ ..] if word == TIMED => {
            report(Path::new(pipe), "agent", began);
            panic!("{}", Command::new(program).args(words).exec());
        }
        _ => {}
    }
    let number = |at: usize| arguments.get(at).and_then(|argument| argument.parse::<usize>().ok());
    let (rounds, joins) = (number(0).unwrap_or(DEFAULT_ROUNDS), number(1).unwrap_or(DEFAULT_JOINS));
    let hosts = Hosts::up();
    print_restarts(&hosts, rounds.max(1));
    print_joins(&hosts, joins.max(1));
    ExitCode::SUCCESS
}

fn print_restarts(hosts: &Hosts, rounds: usize) {
    let mut ours = Job::start(hosts, Path::new(RANKRUN), 29_400);
    let mut torchrun_job = torchrun().map(|path| Job::start(hosts, &path, 29_500));
    let (mut own, mut mine, mut its) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        own.push(measure_workers_own_time(hosts));
        mine.push(ours.restart());
        its.extend(torchrun_job.as_mut().map(Job::restart));
    }
    println!("a worker of {HOSTS} hosts is killed, until all have new ones; medians of {rounds} rounds\n");
    println!("| launcher | in all | beyond the workers' own stop and start |");
    println!("| --- | ---: | ---: |");
    let beyond = |all: &[f64]| all.iter().zip(&own).map(|(all, own)| all - own).collect::<Vec<_>>();
    print_row("rankrun", &[&mine, &beyond(&mine)]);
    if !its.is_empty() {
        print_row("torchrun 2.15", &[&its, &beyond(&its)]);
        let ratio = |its: &[f64], mine: &[f64]| median(its.iter().zip(mine).map(|(its, mine)| its / mine));
        let beyond = ratio(&beyond(&its), &beyond(&mine));
        println!("| ratio | {:.0} times | {beyond:.0} times |", ratio(&its, &mine));
    }
    println!("\na worker's own stop and start take {}\n", shown(&own));
}

fn print_joins(hosts: &Hosts, joins: usize) {
    println!("a fresh agent comes to a job of one host, until its worker runs\n");
    println!("| launcher | median | min | max | of |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let mine: Vec<f64> = (0..joins).map(|_| join(hosts, Path::new(RANKRUN))).collect();
    print_spread("rankrun", &mine);
    if let Some(path) = torchrun() {
        let its: Vec<f64> = (0..joins.min(MOST_JOINS_OF_TORCHRUN)).map(|_| join(hosts, &path)).collect();
        print_spread("torchrun 2.15", &its);
        println!("| ratio | {:.0} times | | | |", median(its) / median(mine));
    }
}

fn print_row(name: &str, columns: &[&[f64]]) {
    let columns: Vec<_> = columns.iter().map(|times| shown(times)).collect();
    println!("| {name} | {} |", columns.join(" | "));
}

fn print_spread(name: &str, times: &[f64]) {
    let of = |pick: fn(f64, f64) -> f64| times.iter().copied().reduce(pick).unwrap_or_default() * 1e3;
    let (least, most) = (of(f64::min), of(f64::max));
    println!("| {name} | {} | {least:.1} ms | {most:.1} ms | {} |", shown(times), times.len());
}

fn shown(seconds: &[f64]) -> String {
    format!("{:.1} ms", median(seconds.iter().copied()) * 1e3)
}

/// Hosts th1 to th4, until the value goes, or this process.
struct Hosts {
    id: String,
    folder: PathBuf,
    /// Takes the hosts away once its standard input ends, however that comes.
    keeper: Child,
}

impl Hosts {
    fn up() -> Self {
        // Six letters at most.
        let letter = |place: u32| char::from(b'a' + (std::process::id() / 26_u32.pow(place) % 26) as u8);
        let id: String = ['n', letter(0), letter(1), letter(2), letter(3)].into_iter().collect();
        let folder = env::temp_dir().join(format!("rankrun-bench-nodes-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", "cat >/dev/null; \"$0\" down; rm -rf \"$1\""]).arg(script()).arg(&folder);
        let keeper = keeper.env("TH_ID", &id).stdin(Stdio::piped()).process_group(0).spawn().unwrap();
        let hosts = Self { id, folder, keeper };
        let up = Command::new(script()).args(["up", &HOSTS.to_string()]).env("TH_ID", &hosts.id).status();
        assert!(up.unwrap().success(), "hosts are made by root, of namespaces, with ip and nft");
        hosts
    }

    /// This program on a host.
    fn command(&self, host: usize) -> Command {
        let mut command = Command::new(script());
        command.args(["exec", &host.to_string()]).arg(env::current_exe().unwrap()).env("TH_ID", &self.id);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn reports(&self) -> Reports {
        Reports::new(&self.folder)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/hosts/hosts.sh")
}

/// What one process has told.
struct Report {
    process: String,
    pid: i32,
    time: f64,
}

/// A pipe with a name, in which processes of all hosts tell that they have begun.
struct Reports {
    path: PathBuf,
    lines: BufReader<File>,
}

impl Reports {
    fn new(folder: &Path) -> Self {
        let path = folder.join(format!("reports-{}", now()));
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        // Open for writing too: it does not end when a writer goes.
        let lines = BufReader::new(File::options().read(true).write(true).open(&path).unwrap());
        Self { path, lines }
    }

    fn next(&mut self) -> Report {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let fields: Vec<_> = line.split_whitespace().collect();
        let [process, pid, time] = fields[..] else { panic!("not a report: `{line}`") };
        Report { process: process.to_owned(), pid: pid.parse().unwrap(), time: time.parse().unwrap() }
    }
}

/// In one write, which other processes' do not mingle with.
fn report(pipe: &Path, process: &str, time: f64) {
    let line = format!("{process} {} {time}\n", std::process::id());
    File::options().write(true).open(pipe).unwrap().write_all(line.as_bytes()).unwrap();
}

/// One agent on each host, with one worker each.
struct Job {
    agents: Vec<Child>,
    reports: Reports,
    /// By rank.
    workers: Vec<Report>,
}

impl Job {
    fn start(hosts: &Hosts, launcher: &Path, port: u16) -> Self {
        let mut reports = hosts.reports();
        let nodes = HOSTS.to_string();
        let agent = |host| agent(hosts, launcher, (host, port), &nodes, &reports.path).spawn().unwrap();
        let agents = (1..=HOSTS).map(agent).collect();
        // Of each agent and of each worker.
        let all: Vec<_> = (0..2 * HOSTS).map(|_| reports.next()).collect();
        let workers = by_rank(all.into_iter().filter(|report| report.process != "agent").collect());
        Self { agents, reports, workers }
    }

    /// Kills a worker; seconds until the last of the next generation begins.
    fn restart(&mut self) -> f64 {
        let began = now();
        kill(Pid::from_raw(self.workers[KILLED].pid), Signal::SIGKILL).unwrap();
        self.workers = by_rank((0..HOSTS).map(|_| self.reports.next()).collect());
        self.workers.iter().map(|worker| worker.time).fold(f64::NAN, f64::max) - began
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.agents.iter_mut().for_each(end);
    }
}

fn by_rank(mut workers: Vec<Report>) -> Vec<Report> {
    workers.sort_by_key(|worker| worker.process.parse::<usize>().unwrap());
    assert!(
        workers.iter().enumerate().all(|(rank, worker)| worker.process == rank.to_string()),
        "no right ranks"
    );
    workers
}

/// By SIGTERM, and reaped.
fn end(child: &mut Child) {
    let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
    let _ = child.wait();
}

/// An agent on this host, of a job with the store on that port of the first one.
fn agent(hosts: &Hosts, launcher: &Path, (host, port): (usize, u16), nodes: &str, pipe: &Path) -> Command {
    let mut command = hosts.command(host);
    command.arg(TIMED).arg(pipe).arg(launcher);
    let endpoint = format!("th1:{port}");
    command.args([
        "--nnodes",
        nodes,
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "1000",
        "--rdzv-id",
        "bench",
    ]);
    command.args(["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]);
    command.args(["--rdzv-conf", "last_call_timeout=1"]);
    command.arg("--no-python").arg(env::current_exe().unwrap()).arg(WORKER).arg(pipe);
    command
}

/// One worker's own stop and start, in seconds.
fn measure_workers_own_time(hosts: &Hosts) -> f64 {
    let mut reports = hosts.reports();
    let mut worker = || {
        let began = now();
        let mut command = Command::new(env::current_exe().unwrap());
        let child = command.arg(WORKER).arg(&reports.path).env("RANK", "0").spawn().unwrap();
        (child, reports.next().time - began)
    };
    let (mut child, start) = worker();
    let start_call = now();
    end(&mut child);
    start + (now() - start_call)
}

/// A second agent comes to a job of one; seconds from its start until its worker begins.
fn join(hosts: &Hosts, launcher: &Path) -> f64 {
    let mut reports = hosts.reports();
    let start = |reports: &mut Reports, host| {
        let mut command = agent(hosts, launcher, (host, 29_400), "1:2", &reports.path);
        if launcher != Path::new(RANKRUN) {
            command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        }
        (command.spawn().unwrap(), reports.next())
    };
    let (mut first, _) = start(&mut reports, 1);
    assert_eq!(reports.next().process, "0");
    let (mut second, began) = start(&mut reports, 2);
    // The newcomer comes after the node that is there already, which has the worker with rank 0.
    let workers = by_rank(vec![reports.next(), reports.next()]);
    end(&mut second);
    end(&mut first);
    workers[1].time - began.time
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
