//! Ctrl-Z, `fg` and `bg` in a real shell on a terminal, and SIGSTOP from outside.

use std::thread::yield_now;
use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Process, Scratch, field, is_rankrun, is_sleeping, is_stopped};
use nix::sys::signal::Signal;

const CTRL_Z: &str = "\u{1a}";

/// What `$?` is for a job that Ctrl-Z has stopped.
const STOPPED_STATUS: &str = "status=148";

/// Far above what anything here takes.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// A shell with job control. The launch runs in its foreground as soon as it is typed.
struct Shell {
    job: Job,
}

impl Shell {
    /// `launch` is complete but for its start.
    #[track_caller]
    fn start(launch: Launch) -> Self {
        let line = "printf '%s\\n' \"$@\" > \"$HOME/words\"; exec bash --noprofile --noediting --rcfile \"$HOME/rc\" -i";
        let launch = launch.under(["sh", "-c", line, "sh"]).terminal();
        let home = launch.temporary().with_file_name("home");
        let rc = "mapfile -t words < \"$HOME/words\"; unset HISTFILE; PS1='ready> '\n";
        std::fs::write(home.join("rc"), rc).expect("the folder is the test's own");
        let job = launch.start();
        job.wait_for_text("ready>");
        Self { job }
    }

    /// In a job's status line the number stands there; what is typed has none.
    fn type_command(&mut self, command: &str) {
        self.job.type_text(&format!("{command}; echo status=$?\n"));
    }

    #[track_caller]
    fn start_job(mut self, workers: usize) -> Self {
        self.type_command("\"${words[@]}\"");
        self.job.wait_for_lines("alive rank=", workers);
        self
    }

    fn guard_pid(&self) -> i32 {
        self.job.only_child_of(self.job.pid())
    }

    fn agent_pid(&self) -> i32 {
        self.job.only_child_of(self.guard_pid())
    }

    /// All that the job is made of but the agent, which is never stopped.
    fn processes_except_agent(&self) -> Vec<Process> {
        let (shell, agent) = (self.job.pid(), self.agent_pid());
        let mut all = self.job.processes();
        all.retain(|process| process.pid != shell && process.pid != agent);
        all
    }

    /// Types the `times`th Ctrl-Z and returns the processes that it has stopped.
    #[track_caller]
    fn suspend(&mut self, times: usize) -> Vec<Process> {
        self.job.type_text(CTRL_Z);
        self.job.wait_for_lines(STOPPED_STATUS, times);
        let all = self.processes_except_agent();
        // A process that is told to stop needs a moment on a processor for it.
        self.wait_until("all are stopped", || all.iter().all(|process| is_stopped(process.pid)));
        all
    }

    #[track_caller]
    fn wait_until_continued(&self) {
        let all = self.processes_except_agent();
        self.wait_until("all go on", || !all.iter().any(|process| is_stopped(process.pid)));
    }

    #[track_caller]
    fn wait_until(&self, what: &str, happened: impl Fn() -> bool) {
        let limit = self.job.elapsed() + STEP_TIMEOUT;
        while !happened() {
            assert!(self.job.elapsed() < limit, "never seen: {what}\n{}", self.job);
            yield_now();
        }
    }

    #[track_caller]
    fn expect_job_status(mut self, status: i32) {
        self.job.wait_for_line(&format!("status={status}"));
        self.job.type_text("exit 0\n");
        self.job.wait().expect_exit_code(0);
    }
}

#[test]
fn ctrl_z_stops_guard_and_workers_until_fg_or_bg() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let gate = Gate::closed();
        let launch = Launch::standalone(*name, 2).worker(["alive", &gate.step(), "print=over", "exit=0"]);
        let mut shell = Shell::start(launch).start_job(2);
        for times in 1..=2 {
            assert_eq!(shell.suspend(times).len(), 3, "{}", shell.job);
            shell.type_command("fg");
            shell.wait_until_continued();
        }
        shell.suspend(3);
        shell.type_command("bg");
        shell.wait_until_continued();
        gate.open(2);
        shell.job.wait_for_lines("over", 2);
        shell.type_command("wait %1; echo end=$?");
        shell.job.wait_for_line("end=0");
        shell.expect_job_status(0);
    }
}

/// It is suspended for three times the limit.
#[test]
fn suspended_and_continued_job_is_not_a_hang() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--hang-timeout", "1"]);
    let mut shell = Shell::start(launch.worker(["alive", "march=go-on,40,50"])).start_job(2);
    shell.suspend(1);
    std::thread::sleep(Duration::from_secs(3));
    shell.type_command("fg");
    shell.wait_until_continued();
    shell.job.wait_for_lines("marched rank=", 2);
    shell.job.wait_for_line("status=0");
    assert!(!shell.job.to_string().contains("no progress"), "{}", shell.job);
    shell.expect_job_status(0);
}

#[test]
fn stopped_job_with_daemons_ends_on_signal() {
    if !is_rankrun() {
        return;
    }
    for (name, signal, status) in
        [(Name::Rankrun, "TERM", 143), (Name::Rankrun, "HUP", 129), (Name::Torchrun, "TERM", 1)]
    {
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "signal", "exit=0"];
        // The helpers ignore the signal, so they have the whole grace.
        let launch = Launch::standalone(name, 2).env("RANKRUN_GRACE", "2");
        // Helpers say that they are alive too.
        let mut shell = Shell::start(launch.worker(steps)).start_job(6);
        let all = shell.suspend(1);
        assert_eq!(all.len(), 7, "{}", shell.job);
        // The shell's own `kill` continues a stopped job after the signal.
        shell.type_command(&format!("kill -{signal} %1"));
        shell.job.wait_for_lines(&format!("got SIG{signal} rank="), 2);
        shell.job.expect_processes_gone(&all, STEP_TIMEOUT);
        shell.type_command("wait %1; echo end=$?");
        shell.job.wait_for_line(&format!("end={status}"));
        shell.expect_job_status(0);
    }
}

#[test]
fn shell_exit_ends_stopped_job() {
    if !is_rankrun() {
        return;
    }
    let steps = ["catch", "helper=daemon", "alive", "forever"];
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--grace", "0"]).worker(steps);
    let mut shell = Shell::start(launch).start_job(2);
    let all = shell.suspend(1);
    // The first one only warns.
    shell.job.type_text("exit\nexit\n");
    shell.job.expect_processes_gone(&all, STEP_TIMEOUT);
    let _ = shell.job.wait();
}

#[test]
fn launcher_killed_while_stopped_leaves_no_processes() {
    if !is_rankrun() {
        return;
    }
    for victim in [Shell::guard_pid, Shell::agent_pid] {
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "forever"];
        let mut shell = Shell::start(Launch::standalone(Name::Rankrun, 2).worker(steps)).start_job(6);
        let mut all = shell.suspend(1);
        all.extend(Process::open(shell.agent_pid()));
        shell.job.signal_to(victim(&shell), Signal::SIGKILL);
        shell.job.expect_processes_gone(&all, STEP_TIMEOUT);
        shell.job.type_text("exit\nexit\n");
        let _ = shell.job.wait();
    }
}

#[test]
fn signal_to_agent_ends_stopped_job() {
    if !is_rankrun() {
        return;
    }
    // As from a service manager that signals all processes of a control group.
    let steps = ["catch", "alive", "signal", "exit=0"];
    let mut shell = Shell::start(Launch::standalone(Name::Rankrun, 2).worker(steps)).start_job(2);
    let all = shell.suspend(1);
    shell.job.signal_to(shell.agent_pid(), Signal::SIGTERM);
    shell.job.wait_for_lines("got SIGTERM rank=", 2);
    shell.job.expect_processes_gone(&all, STEP_TIMEOUT);
    shell.type_command("wait %1; echo end=$?");
    shell.job.wait_for_line("end=143");
    shell.expect_job_status(0);
}

/// An agent that answers late, because it was frozen itself, undoes no Ctrl-Z.
#[test]
fn late_agent_answer_leaves_job_stopped() {
    if !is_rankrun() {
        return;
    }
    let steps = ["catch", "alive", "signal", "exit=0"];
    let mut shell = Shell::start(Launch::standalone(Name::Rankrun, 1).worker(steps)).start_job(1);
    let (guard, agent) = (shell.guard_pid(), shell.agent_pid());
    shell.job.signal_to(agent, Signal::SIGSTOP);
    shell.wait_until("the agent is frozen", || is_stopped(agent));
    shell.job.type_text(CTRL_Z);
    shell.job.wait_for_line(STOPPED_STATUS);
    shell.job.signal_to(agent, Signal::SIGCONT);
    let all = shell.processes_except_agent();
    // It waits once it has answered.
    shell.wait_until("all are stopped", || {
        all.iter().all(|process| is_stopped(process.pid)) && is_sleeping(agent)
    });
    assert!(is_stopped(guard), "the guard goes on\n{}", shell.job);
    shell.type_command("fg");
    shell.wait_until_continued();
    shell.job.type_text("\u{3}");
    shell.expect_job_status(130);
}

/// One signal is enough: the guard continues the agent, and the workers keep their grace.
#[test]
fn sigterm_ends_job_whose_agent_is_frozen() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let job = Launch::standalone(*name, 1).worker(["catch", "alive", "signal", "exit=0"]).start();
        job.wait_for_line("alive rank=0");
        let agent = job.only_child_of(job.pid());
        job.signal_to(agent, Signal::SIGSTOP);
        job.wait_until("the agent is frozen", || is_stopped(agent));
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143)).expect_stdout("got SIGTERM rank=0");
        outcome.expect_stderr("the launcher's agent does not answer SIGTERM: it is continued");
    }
}

/// The shell keeps the launcher stopped, and the time limit ends the job all the same.
#[test]
fn time_limit_ends_stopped_job() {
    if !is_rankrun() {
        return;
    }
    for (name, status) in [(Name::Rankrun, 124), (Name::Torchrun, 1)] {
        let launch = Launch::standalone(name, 2).env("RANKRUN_TIME_LIMIT", "6").env("RANKRUN_GRACE", "2");
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "signal", "exit=0"];
        let mut shell = Shell::start(launch.worker(steps)).start_job(6);
        let all = shell.suspend(1);
        shell.job.wait_for_lines("got SIGTERM rank=", 2);
        shell.job.expect_processes_gone(&all, STEP_TIMEOUT);
        shell.type_command("wait %1; echo end=$?");
        shell.job.wait_for_line(&format!("end={status}"));
        shell.expect_job_status(0);
    }
}

#[test]
fn ctrl_z_during_shutdown_suspends_it_until_fg() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let steps = ["catch", "alive", "signal", &gate.step(), "exit=0"];
    let mut shell = Shell::start(Launch::standalone(Name::Rankrun, 2).worker(steps)).start_job(2);
    shell.job.type_text("\u{3}");
    shell.job.wait_for_lines("got SIGINT rank=", 2);
    shell.suspend(1);
    shell.type_command("fg");
    gate.open(2);
    shell.expect_job_status(130);
}

#[test]
fn ctrl_z_during_leftover_wait_suspends_it_until_fg() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let line =
        format!("setsid --fork sh -c 'read x < {}; echo uploaded'; echo alive rank=0", gate.path().display());
    let mut shell = Shell::start(Launch::standalone(Name::Rankrun, 1).shell(&line)).start_job(1);
    shell.job.wait_for_line("for what they left behind");
    assert!(shell.suspend(1).len() >= 2, "{}", shell.job);
    shell.type_command("fg");
    shell.wait_until_continued();
    gate.open(1);
    // The byte does not complete a line.
    drop(gate);
    shell.expect_job_status(0);
}

#[test]
fn sigtstp_ignored_at_start_stays_ignored() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["alive", &gate.step(), "exit=0"]);
    let mut shell = Shell::start(launch);
    shell.type_command("(trap '' TSTP; exec \"${words[@]}\")");
    shell.job.wait_for_line("alive rank=0");
    shell.job.type_text(CTRL_Z);
    shell.job.wait_for_text("^Z");
    gate.open(1);
    shell.expect_job_status(0);
}

/// Another process of the pipeline reads the terminal from the background: the whole process group gets SIGTTIN.
#[test]
fn background_pipeline_reading_terminal_is_stopped_as_one() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (gate, reader) = (Gate::new(&scratch, "gate"), Gate::new(&scratch, "reader"));
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["eprint=alive rank=0", &gate.step(), "exit=0"]);
    let mut shell = Shell::start(launch);
    let reads = format!("{{ head -c 1 {} > /dev/null; read x < /dev/tty; cat; }}", reader.path().display());
    shell.job.type_text(&format!("\"${{words[@]}}\" | {reads} &\n"));
    shell.job.wait_for_line("alive rank=0");
    reader.open(1);
    let stopped = || {
        let all = shell.job.processes();
        let workers = all.iter().filter(|process| process.command.contains("eprint="));
        let is_launcher = |process: &&Process| process.command.contains("--standalone");
        let (launchers, workers): (Vec<_>, Vec<_>) = workers.partition(is_launcher);
        launchers.iter().any(|process| is_stopped(process.pid))
            && !workers.is_empty()
            && workers.iter().all(|process| is_stopped(process.pid))
    };
    shell.wait_until("guard and worker are stopped", stopped);
    shell.type_command("fg");
    shell.job.type_text("\n");
    gate.open(1);
    shell.expect_job_status(0);
}

#[test]
fn stopped_worker_receives_termination_signal() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 2).args(["--shutdown-timeout", "3600"]);
        let job = launch.worker(["catch", "alive", "signal", "exit=0"]).start();
        for line in job.wait_for_lines("alive rank=", 2) {
            let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
            job.signal_to(pid, Signal::SIGSTOP);
        }
        job.signal(Signal::SIGTERM);
        let outcome = job.wait();
        outcome.expect_exit_code(name.code(143));
        assert_eq!(outcome.lines_with("got SIGTERM rank=").len(), 2, "{outcome}");
    }
}

#[test]
fn worker_stopped_and_continued_runs_to_success() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).stdin_open();
    let mut job = launch.worker(["alive", "read", "exit=0"]).start();
    let line = job.wait_for_line("alive rank=0");
    let pid = field(&line, "pid").and_then(|pid| pid.parse().ok()).expect("a pid");
    job.signal_to(pid, Signal::SIGSTOP);
    while !is_stopped(pid) {
        yield_now();
    }
    job.type_text("\n");
    job.signal_to(pid, Signal::SIGCONT);
    job.wait().expect_exit_code(0);
}
