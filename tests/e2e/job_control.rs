//! Ctrl-Z, `fg` and `bg` in a real shell on a terminal, and SIGSTOP from outside.

use std::thread::yield_now;
use std::time::Duration;

use harness::{Gate, Job, Launch, Name, Process, Scratch, field, is_asleep, is_rankrun, is_stopped};
use nix::sys::signal::Signal;

const CTRL_Z: &str = "\u{1a}";

/// What `$?` is for a job that Ctrl-Z has stopped.
const STOPPED: &str = "status=148";

/// Far above what anything here takes.
const PROMPT: Duration = Duration::from_secs(30);

/// A shell with job control. The launch runs in its foreground as soon as it is typed.
struct Shell {
    job: Job,
}

impl Shell {
    /// `launch` is complete but for its start.
    #[track_caller]
    fn of(launch: Launch) -> Self {
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
    fn types(&mut self, command: &str) {
        self.job.type_text(&format!("{command}; echo status=$?\n"));
    }

    #[track_caller]
    fn runs(mut self, workers: usize) -> Self {
        self.types("\"${words[@]}\"");
        self.job.wait_for_lines("alive rank=", workers);
        self
    }

    fn guard(&self) -> i32 {
        self.job.only_child_of(self.job.pid())
    }

    fn agent(&self) -> i32 {
        self.job.only_child_of(self.guard())
    }

    /// All that the job is made of but the agent, which is never stopped.
    fn all_but_the_agent(&self) -> Vec<Process> {
        let (shell, agent) = (self.job.pid(), self.agent());
        let mut all = self.job.processes();
        all.retain(|process| process.pid != shell && process.pid != agent);
        all
    }

    /// Types the `times`th Ctrl-Z and returns the processes that it has stopped.
    #[track_caller]
    fn stops(&mut self, times: usize) -> Vec<Process> {
        self.job.type_text(CTRL_Z);
        self.job.wait_for_lines(STOPPED, times);
        let all = self.all_but_the_agent();
        // A process that is told to stop needs a moment on a processor for it.
        self.until("all are stopped", || all.iter().all(|process| is_stopped(process.pid)));
        all
    }

    #[track_caller]
    fn goes_on(&self) {
        let all = self.all_but_the_agent();
        self.until("all go on", || !all.iter().any(|process| is_stopped(process.pid)));
    }

    #[track_caller]
    fn until(&self, what: &str, happened: impl Fn() -> bool) {
        let limit = self.job.elapsed() + PROMPT;
        while !happened() {
            assert!(self.job.elapsed() < limit, "never seen: {what}\n{}", self.job);
            yield_now();
        }
    }

    #[track_caller]
    fn ends(mut self, status: i32) {
        self.job.wait_for_line(&format!("status={status}"));
        self.job.type_text("exit 0\n");
        self.job.wait().expect_exit_code(0);
    }
}

#[test]
fn ctrl_z_stops_everybody_and_fg_continues() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let gate = Gate::closed();
        let launch = Launch::standalone(*name, 2).worker(["alive", &gate.step(), "print=over", "exit=0"]);
        let mut shell = Shell::of(launch).runs(2);
        for times in 1..=2 {
            assert_eq!(shell.stops(times).len(), 3, "{}", shell.job);
            shell.types("fg");
            shell.goes_on();
        }
        shell.stops(3);
        shell.types("bg");
        shell.goes_on();
        gate.open(2);
        shell.job.wait_for_lines("over", 2);
        shell.types("wait %1; echo end=$?");
        shell.job.wait_for_line("end=0");
        shell.ends(0);
    }
}

#[test]
fn a_stopped_job_ends_by_a_signal_and_whoever_left_the_group_too() {
    if !is_rankrun() {
        return;
    }
    for (name, signal, status) in
        [(Name::Rankrun, "TERM", 143), (Name::Rankrun, "HUP", 129), (Name::Torchrun, "TERM", 1)]
    {
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "signal", "exit=0"];
        // Helpers say that they are alive too.
        let mut shell = Shell::of(Launch::standalone(name, 2).worker(steps)).runs(6);
        let all = shell.stops(1);
        assert_eq!(all.len(), 7, "{}", shell.job);
        // The shell's own `kill` continues a stopped job after the signal.
        shell.types(&format!("kill -{signal} %1"));
        shell.job.wait_for_lines(&format!("got SIG{signal} rank="), 2);
        shell.job.expect_processes_gone(&all, PROMPT);
        shell.types("wait %1; echo end=$?");
        shell.job.wait_for_line(&format!("end={status}"));
        shell.ends(0);
    }
}

#[test]
fn a_shell_that_leaves_takes_its_stopped_job_with_it() {
    if !is_rankrun() {
        return;
    }
    let steps = ["catch", "helper=daemon", "alive", "forever"];
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--grace", "0"]).worker(steps);
    let mut shell = Shell::of(launch).runs(2);
    let all = shell.stops(1);
    // The first one only warns.
    shell.job.type_text("exit\nexit\n");
    shell.job.expect_processes_gone(&all, PROMPT);
    let _ = shell.job.wait();
}

#[test]
fn killed_while_stopped_nobody_is_left() {
    if !is_rankrun() {
        return;
    }
    for victim in [Shell::guard, Shell::agent] {
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "forever"];
        let mut shell = Shell::of(Launch::standalone(Name::Rankrun, 2).worker(steps)).runs(6);
        let mut all = shell.stops(1);
        all.extend(Process::open(shell.agent()));
        shell.job.signal_to(victim(&shell), Signal::SIGKILL);
        shell.job.expect_processes_gone(&all, PROMPT);
        shell.job.type_text("exit\nexit\n");
        let _ = shell.job.wait();
    }
}

#[test]
fn a_signal_to_the_agent_ends_a_stopped_job() {
    if !is_rankrun() {
        return;
    }
    // As from a service manager that signals all processes of a control group.
    let steps = ["catch", "alive", "signal", "exit=0"];
    let mut shell = Shell::of(Launch::standalone(Name::Rankrun, 2).worker(steps)).runs(2);
    let all = shell.stops(1);
    shell.job.signal_to(shell.agent(), Signal::SIGTERM);
    shell.job.wait_for_lines("got SIGTERM rank=", 2);
    shell.job.expect_processes_gone(&all, PROMPT);
    shell.types("wait %1; echo end=$?");
    shell.job.wait_for_line("end=143");
    shell.ends(0);
}

/// An agent that answers late, because it was frozen itself, undoes no Ctrl-Z.
#[test]
fn a_late_answer_of_the_agent_continues_nobody() {
    if !is_rankrun() {
        return;
    }
    let steps = ["catch", "alive", "signal", "exit=0"];
    let mut shell = Shell::of(Launch::standalone(Name::Rankrun, 1).worker(steps)).runs(1);
    let (guard, agent) = (shell.guard(), shell.agent());
    shell.job.signal_to(agent, Signal::SIGSTOP);
    shell.until("the agent is frozen", || is_stopped(agent));
    shell.job.type_text(CTRL_Z);
    shell.job.wait_for_line(STOPPED);
    shell.job.signal_to(agent, Signal::SIGCONT);
    let all = shell.all_but_the_agent();
    // It waits once it has answered.
    shell.until("all are stopped", || all.iter().all(|process| is_stopped(process.pid)) && is_asleep(agent));
    assert!(is_stopped(guard), "the guard goes on\n{}", shell.job);
    shell.types("fg");
    shell.goes_on();
    shell.job.type_text("\u{3}");
    shell.ends(130);
}

/// The shell keeps the launcher stopped, and the time limit ends the job all the same.
#[test]
fn the_time_limit_ends_a_stopped_job() {
    if !is_rankrun() {
        return;
    }
    for (name, status) in [(Name::Rankrun, 124), (Name::Torchrun, 1)] {
        let launch = Launch::standalone(name, 2).env("RANKRUN_TIME_LIMIT", "6");
        let steps = ["catch", "helper=plain", "helper=daemon", "alive", "signal", "exit=0"];
        let mut shell = Shell::of(launch.worker(steps)).runs(6);
        let all = shell.stops(1);
        shell.job.wait_for_lines("got SIGTERM rank=", 2);
        shell.job.expect_processes_gone(&all, PROMPT);
        shell.types("wait %1; echo end=$?");
        shell.job.wait_for_line(&format!("end={status}"));
        shell.ends(0);
    }
}

#[test]
fn a_stop_that_is_under_way_is_stopped_and_goes_on() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let steps = ["catch", "alive", "signal", &gate.step(), "exit=0"];
    let mut shell = Shell::of(Launch::standalone(Name::Rankrun, 2).worker(steps)).runs(2);
    shell.job.type_text("\u{3}");
    shell.job.wait_for_lines("got SIGINT rank=", 2);
    shell.stops(1);
    shell.types("fg");
    gate.open(2);
    shell.ends(130);
}

#[test]
fn the_wait_for_leftovers_can_be_stopped() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let line =
        format!("setsid --fork sh -c 'read x < {}; echo uploaded'; echo alive rank=0", gate.path().display());
    let mut shell = Shell::of(Launch::standalone(Name::Rankrun, 1).shell(&line)).runs(1);
    shell.job.wait_for_line("for what they left behind");
    assert!(shell.stops(1).len() >= 2, "{}", shell.job);
    shell.types("fg");
    shell.goes_on();
    gate.open(1);
    // The byte is no line: its end is.
    drop(gate);
    shell.ends(0);
}

#[test]
fn what_was_ignored_at_the_start_stays_ignored() {
    if !is_rankrun() {
        return;
    }
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["alive", &gate.step(), "exit=0"]);
    let mut shell = Shell::of(launch);
    shell.types("(trap '' TSTP; exec \"${words[@]}\")");
    shell.job.wait_for_line("alive rank=0");
    shell.job.type_text(CTRL_Z);
    shell.job.wait_for_text("^Z");
    gate.open(1);
    shell.ends(0);
}

/// Another process of the pipeline reads the terminal from the background: the whole process group gets SIGTTIN.
#[test]
fn a_pipeline_in_the_background_is_stopped_as_one() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let (gate, reader) = (Gate::new(&scratch, "gate"), Gate::new(&scratch, "reader"));
    let launch = Launch::standalone(Name::Rankrun, 1).worker(["eprint=alive rank=0", &gate.step(), "exit=0"]);
    let mut shell = Shell::of(launch);
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
    shell.until("guard and worker are stopped", stopped);
    shell.types("fg");
    shell.job.type_text("\n");
    gate.open(1);
    shell.ends(0);
}

#[test]
fn a_worker_that_is_stopped_gets_to_see_the_signal() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
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
fn a_worker_that_was_stopped_for_a_while_goes_on() {
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
