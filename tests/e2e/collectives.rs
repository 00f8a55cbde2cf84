//! Rust workers that are killed in the midst of collectives: the others name them, the launcher starts all again, and the job ends
//! with the right sums and leaves nothing.

use std::time::Duration;

use harness::{
    Job, Launch, Name, Random, Scratch, can_use_namespaces, example, field, fixture, is_rankrun, is_soak,
};
use nix::sys::signal::Signal;

const WORLD: usize = 4;

/// At the least; a job goes on until its last generation.
const STEPS: i64 = 100;

/// How long a generation may be before its kill: each collective has its turn.
const MAX_KILL_DELAY: Duration = Duration::from_millis(200);

/// In a mount namespace with so small a `/dev/shm`; tells what is left there and in the temporary folder.
const SMALL_SHM_SCRIPT: &str = r#"
    mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 97
    "$@"
    status=$?
    find /dev/shm "$TMPDIR" -mindepth 1 -printf 'left behind: %p\n'
    exit $status"#;

/// Kills a worker of this generation at a random moment; all others say that it is the one they miss.
#[track_caller]
fn kill_random_worker(job: &Job, attempt: u64, random: &mut Random) {
    let workers = job.wait_for_lines(&format!("under way attempt={attempt} "), WORLD);
    let number = |line: &str, name: &str| field(line, name).and_then(|text| text.parse::<i32>().ok());
    let victim = &workers[usize::try_from(random.below(WORLD as u64)).expect("below a usize")];
    let (rank, pid) = (number(victim, "rank"), number(victim, "pid").expect("each rank says its pid"));
    random.pause(MAX_KILL_DELAY);
    job.signal_to(pid, Signal::SIGKILL);
    for line in job.wait_for_lines(&format!("missed attempt={attempt} "), WORLD - 1) {
        assert_eq!(number(&line, "lost"), rank, "{victim} was killed: {line}\n{job}");
    }
}

#[track_caller]
fn assert_survives_kills(backend: &str) {
    if !is_rankrun() {
        return;
    }
    let mut random = Random::seeded();
    let (kills, scratch) = (if is_soak() { 100 } else { 5 }, Scratch::new());
    let launch = Launch::standalone(Name::Rankrun, WORLD).env("RANKRUN_BACKEND", backend);
    let launch = launch.args(["--max-restarts", &kills.to_string()]);
    let launch = launch.limit(Duration::from_secs(60 + 5 * kills));
    // The launcher's signal, which follows a kill, would end the others before they name the rank that they miss.
    let launch = launch.worker(["deaf", &format!("train={},{kills},{STEPS}", scratch.at(""))]);
    let launch = match can_use_namespaces() {
        true => launch.under([
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            SMALL_SHM_SCRIPT,
            "sh",
        ]),
        false => launch,
    };
    let job = launch.start();
    (0..kills).for_each(|attempt| kill_random_worker(&job, attempt, &mut random));
    let outcome = job.wait();
    outcome.expect_exit_code(0).expect_absent("left behind").expect_absent("is wrong");
    let results = outcome.lines_with("trained rank=");
    assert_eq!(results.len(), WORLD, "{outcome}");
    for line in &results {
        let number = |name| field(line, name).and_then(|text| text.parse::<i64>().ok()).expect("a number");
        let (steps, world) = (number("steps"), WORLD as i64);
        let total: i64 = (0..steps).map(|time| world * (world - 1) / 2 + world * time).sum();
        assert!(steps >= STEPS && number("total") == total, "{total}: {line}\n{outcome}");
    }
    assert_eq!(outcome.lines_with(&format!("backend={backend}")).len(), WORLD * (kills as usize + 1));
}

#[test]
fn shm_job_survives_worker_kills() {
    assert_survives_kills("shm");
}

#[test]
fn tcp_job_survives_worker_kills() {
    assert_survives_kills("tcp");
}

/// Three workers, of which the kernel makes no file in memory for rank 1.
fn launch_with_rank1_memfd_blocked<'a>(program: &'a str, args: &[&'a str]) -> Launch {
    let line = r#"[ $RANK = 1 ] || exec "$@"; exec "$0" EPERM memfd_create "$@""#;
    let launch = Launch::standalone(Name::Rankrun, 3).args(["--no-python", "sh", "-c", line]);
    launch
        .args([fixture("seccomp-exec").to_string_lossy().into_owned(), program.to_owned()])
        .args(args.iter().copied())
}

#[test]
fn rank_without_memfd_create_falls_back_to_tcp() {
    if !is_rankrun() {
        return;
    }
    let worker = fixture("worker").to_string_lossy().into_owned();
    let outcome = launch_with_rank1_memfd_blocked(&worker, &["reduce=5"]).run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("world=3 times=5 backend=mixed").len(), 3, "{outcome}");
    // Those that ask for it need it of rank 0 only.
    let outcome = launch_with_rank1_memfd_blocked(&worker, &["reduce=5"]).env("RANKRUN_BACKEND", "shm").run();
    outcome.expect_exit_code(0);
    assert_eq!(outcome.lines_with("world=3 times=5 backend=shm").len(), 3, "{outcome}");
}

#[test]
fn memfd_create_refused_with_shm_backend_names_system_call() {
    if !is_rankrun() {
        return;
    }
    let bench = example("allreduce_bench").to_string_lossy().into_owned();
    let filter = fixture("seccomp-exec").to_string_lossy().into_owned();
    let launch =
        Launch::standalone(Name::Rankrun, 2).args(["--no-python", &filter, "EPERM", "memfd_create", &bench]);
    let outcome = launch.args(["--backend", "shm", "--max", "64"]).run();
    outcome.expect_exit_code(1).expect_stderr("the kernel refuses `memfd_create`, which shared memory needs");
    outcome.expect_stderr(
        "hint: permit the system call `memfd_create` (seccomp), or choose the backend `auto` or `tcp`",
    );
}
