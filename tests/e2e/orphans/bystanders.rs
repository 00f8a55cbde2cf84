//! The launcher leaves processes outside of the job alone, however much they look like its own.
#![expect(clippy::disallowed_methods, reason = "the test starts bystanders, and reads the clock")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Job, Launch, Name, Process, Random, field, fixture, is_rankrun, is_soak};
use nix::sys::signal::Signal;

use super::SWEEP_TIMEOUT;

/// As the workers are called.
const STEPS: [&str; 6] = ["catch", "helper=daemon", "alive", "rank0:read", "rank0:exit=3", "forever"];

/// A process that is called as the workers are, and that the test started.
struct Outsider(Child);

impl Outsider {
    fn start() -> Self {
        let mut command = Command::new(fixture("worker"));
        command
            .args(STEPS.iter().filter(|step| !step.starts_with("rank0:exit") && !step.starts_with("helper")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        // What workers have in theirs, but of another job.
        command.env("RANK", "0").env("TORCHELASTIC_RUN_ID", "none").env("RANKRUN_JOB", "not-this-one");
        Self(command.spawn().expect("the fixture starts"))
    }

    fn is_alive(&self) -> bool {
        Process::open(self.0.id().cast_signed()).is_some_and(|process| process.is_alive())
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A launcher beside a process that its shell has started, which is the launcher's sibling, or its child where the
/// shell has become the launcher.
fn launch_beside_sibling(launch: Launch, becomes: &str) -> Launch {
    let worker = fixture("worker").display().to_string();
    let sibling = format!("env -u RANKRUN_E2E_MARK {worker} catch alive=sibling forever");
    let line = format!("exec 3<&0\n{sibling} < /dev/null 3<&- &\n{becomes}");
    launch.under(["sh", "-c", &line, "sh"])
}

/// How a job comes to its end.
#[derive(Debug, Clone, Copy)]
enum End {
    KilledGuard,
    KilledAgent,
    Signalled,
    Failure,
    Restart,
}

fn end_job(end: End, job: &mut Job, launcher: &Process) {
    match end {
        End::KilledGuard => launcher.signal(Signal::SIGKILL),
        End::KilledAgent => {
            let agent = find_agent(job, launcher.pid);
            agent.signal(Signal::SIGKILL);
        }
        End::Signalled => launcher.signal(Signal::SIGTERM),
        End::Failure => job.type_text("\n"),
        End::Restart => {
            job.type_text("\n");
            job.wait_for_line(" attempt=1 ");
            launcher.signal(Signal::SIGTERM);
        }
    }
}

/// Not the sibling, which may be a child of the same process.
#[track_caller]
fn find_agent(job: &Job, launcher: i32) -> Process {
    let children = job.children_of(launcher).into_iter().filter_map(Process::open);
    let is_agent = |process: &Process| {
        std::fs::read_to_string(format!("/proc/{}/comm", process.pid))
            .is_ok_and(|name| name.trim() == "rr-agent")
    };
    children.into_iter().find(is_agent).expect("the launcher has an agent")
}

#[test]
fn processes_outside_job_survive_its_end() {
    if !is_rankrun() {
        return;
    }
    let outsider = Outsider::start();
    let mut random = Random::seeded();
    for round in 0..if is_soak() { 100 } else { 10 } {
        let end = [End::KilledGuard, End::KilledAgent, End::Signalled, End::Failure, End::Restart][round % 5];
        let becomes_launcher = round / 5 % 2 == 1;
        let restarts = if matches!(end, End::Restart) { "1" } else { "0" };
        let launch = Launch::standalone(Name::Rankrun, 2).stdin_open();
        let launch = launch.args(["--grace", "0.05", "--max-restarts", restarts]);
        // What a shell starts in the background reads nothing, unless it is told what.
        let waits = "\"$@\" <&3 3<&- &\nexec 3<&-\necho launcher pid=$!\nwait $!";
        let line = if becomes_launcher { "exec 3<&-\nexec \"$@\"" } else { waits };
        let launch = launch_beside_sibling(launch, line);
        let mut job = launch.worker(STEPS).start();
        job.wait_for_lines("alive rank=", 5);
        let wait_for_pid = |what: &str| {
            field(&job.wait_for_line(what), "pid").and_then(|pid| pid.parse().ok()).expect("a pid")
        };
        let sibling = Process::open(wait_for_pid("process=sibling")).expect("it lives");
        let launcher = if becomes_launcher { job.pid() } else { wait_for_pid("launcher pid=") };
        let launcher = Process::open(launcher).expect("it lives");
        random.pause(Duration::from_millis(10));
        end_job(end, &mut job, &launcher);
        // Before a SIGKILL the stacks of the workers may take two seconds more.
        let limit = SWEEP_TIMEOUT + Duration::from_secs(3);
        let _ = launcher.ended_by(Instant::now() + limit);
        job.expect_no_processes_within(limit);
        assert!(sibling.is_alive(), "{end:?} took the sibling with it\n{job}");
        assert!(outsider.is_alive(), "{end:?} took an outsider with it\n{job}");
        sibling.signal(Signal::SIGKILL);
    }
}
