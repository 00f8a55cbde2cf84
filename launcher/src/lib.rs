//! The rankrun launcher: a native, drop-in replacement of torchrun.
//!
//! | room | what it does |
//! |---|---|
//! | `cli` | argv and environment → [`rankrun_core::spec::LaunchSpec`] |

mod cli;
#[cfg(test)]
mod explain_tests;
mod fleet;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::SigSet;

use rankrun_contract::env::{ERROR_FILE, JOB};
use rankrun_contract::rank::JobId;

use crate::cli::other_launcher::{self, OtherCommand, OtherProgram};
use crate::cli::{Attach, CliError, Command, Launch};
use crate::fleet::{add_node_changes, receive_command_line, run_fleet};
use rankrun_core::exit_code::{ExitStatus, LAUNCHER_FAILED, code_of_signal};
use rankrun_core::facts::{Facts, StandardStream};
use rankrun_core::gc;
use rankrun_core::notice::Notice;
use rankrun_core::spec::{CliFlavor, LaunchSpec};
use rankrun_core::ssh::protocol::NODE_AGENT;
use rankrun_host::agent::AgentSetup;
use rankrun_host::blocking::BlockingCall;
use rankrun_host::console::{Console, Cursor};
use rankrun_host::control::folder::RuntimeFolders;
use rankrun_host::error::LaunchError;
use rankrun_host::process::attach::ATTACH;
use rankrun_host::process::guard::{self, ForkSide, Guard, GuardEnd};
use rankrun_host::process::heap;
use rankrun_host::process::inherited;
use rankrun_host::process::job_limit;
use rankrun_host::process::link::{GuardLink, ToGuard};
use rankrun_host::process::parent_pid;
use rankrun_host::process::probe::{self, TellOfWait};
use rankrun_host::process::proc::{can_scan_processes, proc_is_mounted};
use rankrun_host::process::replace::become_program;
use rankrun_host::process::reserve;
use rankrun_host::process::signal::{self, HandledSignals, raise_with_default_action};
use rankrun_host::process::spawn::InheritedState;
use rankrun_host::process::watchdog::Watchdog;
use rankrun_host::reporter::program::foreign_python;
use rankrun_host::reporter::user_log::UserLog;
use rankrun_host::ssh::node::Lifeline;
use rankrun_host::stacks::{parse_python_reader_argument, run_python_reader};
use rankrun_host::system::gather_facts;
use rankrun_host::{agent, process, reporter};
use rankrun_tools::explain::{ExplainRequest, ReadAs, Style};
use rankrun_tools::inspect::InspectRequest;
use rankrun_tools::shim::ShimRequest;
use rankrun_tools::{control, explain, inspect, litter, shim};

/// The guard waits no longer for the file system of the folder that a killed agent has left.
const CONTROL_FOLDER_TIMEOUT: Duration = Duration::from_secs(1);

/// The whole program: reads the command line, runs the job, and returns the exit status.
///
/// Called once, on the main thread, before any other thread exists: it forks.
#[must_use]
pub fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    if let Some(question) = first.as_deref().and_then(probe::parse_probe_argument) {
        return probe::run_probe(question);
    }
    if let Some(pid) = first.as_deref().and_then(parse_python_reader_argument) {
        return run_python_reader(pid);
    }
    if first.as_deref().is_some_and(|argument| argument == NODE_AGENT) {
        return match receive_command_line() {
            Ok((argv, lifeline)) => run_command(argv, false, Some(lifeline)),
            Err(code) => code,
        };
    }
    // A worker that is started by hand keeps the descriptors of its shell, and its wrapper handles no signal yet.
    let is_attach = first.is_some_and(|argument| argument.as_bytes().starts_with(ATTACH.as_bytes()));
    run_command(std::env::args_os().collect(), is_attach, None)
}

/// Reads the command line and does what it says; `lifeline` is the connection to the launcher of all hosts.
fn run_command(mut argv: Vec<OsString>, is_attach: bool, lifeline: Option<Lifeline>) -> ExitCode {
    // Another launcher's own program would inherit the preparations.
    let is_unprepared = is_attach || other_launcher::is_for_other_program(&argv);
    let startup = if is_unprepared { Startup::unprepared() } else { Startup::prepare(lifeline) };
    let mut facts = gather_facts(wait_announcer(&argv));
    let mut node_changes = Vec::new();
    let (read_as, remarks) = match other_launcher::translate(&argv, &facts) {
        Ok(None) => (None, Vec::new()),
        Ok(Some(OtherCommand::Launch(translation))) => {
            let read_as = translation.read_as(&argv);
            facts.change_environment(&translation.environment);
            argv.splice(1.., translation.words);
            node_changes = translation.nodes;
            (Some(read_as), translation.remarks)
        }
        Ok(Some(OtherCommand::Print(text))) => return reporter::print(text.as_bytes()),
        Ok(Some(OtherCommand::Run(program))) => return run_other_program(&program, &facts),
        Err(error) => {
            let may_original_work = facts.calling_python().is_some() && error.is_refusal();
            let parent_file = parent_error_file(other_launcher::is_query(&argv), &facts);
            return report_refusal((&error, None), may_original_work, parent_file);
        }
    };
    match cli::interpret(&argv, &facts) {
        Ok(Command::Launch(mut launch)) => {
            launch.notices.splice(..0, remarks.into_iter().map(Notice::OfOtherLauncher));
            let foreign_python = argv.first().and_then(|argv0| foreign_python(argv0, &facts));
            run_launch(*launch, &facts, foreign_python, startup)
        }
        Ok(Command::Excluded(name)) => reporter::report_excluded_node(&name),
        Ok(Command::Fleet(mut fleet)) => {
            for remark in remarks {
                reporter::print_message(&Notice::OfOtherLauncher(remark).to_string());
            }
            add_node_changes(&mut fleet, node_changes);
            run_fleet(&fleet)
        }
        Ok(Command::Explain(mut question)) => {
            question.notices.splice(..0, remarks.into_iter().map(Notice::OfOtherLauncher));
            question.read_as = read_as;
            run_explain(&question, &facts)
        }
        Ok(Command::Inspect(question)) => run_inspect(&question, &facts),
        Ok(Command::Gc(request)) => run_gc(&request, &argv[0], &facts),
        Ok(Command::Attach(attach)) => run_attached(&attach, &facts),
        Ok(Command::Control(command)) => run_control(&command, &facts),
        Ok(Command::Print(text)) => reporter::print(text.as_bytes()),
        Ok(Command::Shim(request)) => run_shim(&request, &argv[0], &facts),
        Err(error) => {
            let may_original_work =
                facts.calling_python().is_some() && (read_as.is_some() || error.is_not_supported());
            let parent_file = parent_error_file(cli::asks(&argv), &facts);
            report_refusal((&error, read_as.as_ref()), may_original_work, parent_file)
        }
    }
}

/// The file that the parent reads errors of a launch from. A query command does not write it.
fn parent_error_file(is_query: bool, facts: &Facts) -> Option<&Path> {
    facts.filled_variable(ERROR_FILE).filter(|_| !is_query).map(Path::new)
}

/// Becomes another launcher's own program.
fn run_other_program(program: &OtherProgram, facts: &Facts) -> ExitCode {
    let mark = (other_launcher::HANDED_OVER.into(), "1".into());
    let environment: Vec<_> = facts.environment().iter().cloned().chain([mark]).collect();
    let Err(source) = become_program(&program.path, &program.argv, &environment);
    let error = LaunchError::Setup { what: "run the other launcher's own program", source };
    reporter::report_error(&error, None)
}

/// Refuses the command line. Under a shim a further hint is how to start the original launcher, if that may have the
/// feature.
fn report_refusal(
    (error, read_as): (&CliError, Option<&ReadAs>),
    may_original_work: bool,
    parent_file: Option<&Path>,
) -> ExitCode {
    let mut text = error.render();
    if let Some(read_as) = read_as.filter(|read_as| read_as.explains(&text)) {
        text.push_str(&format!("note: the command line was read as `{}`\n", read_as.command_line()));
    }
    if may_original_work {
        text.push_str(shim::BYPASS_HINT);
        text.push('\n');
    }
    let setting_error = match error {
        CliError::Usage { .. } => None,
        error => Some(error as &dyn std::error::Error),
    };
    reporter::report_refused_command_line(&text, setting_error, parent_file);
    ExitCode::from(error.exit_code())
}

/// The steps before the command line is read: reading it may start probes, and take long.
struct Startup {
    /// Whether inherited descriptors are hidden from probes and workers.
    close_on_exec_result: io::Result<()>,
    /// The signal mask that was in force before, where it was changed.
    mask: Option<SigSet>,
    /// The connection to the launcher of all hosts, which may stop this one.
    lifeline: Option<Lifeline>,
}

impl Startup {
    fn prepare(lifeline: Option<Lifeline>) -> Self {
        signal::ignore_file_size_signal();
        Self {
            close_on_exec_result: inherited::set_close_on_exec(),
            mask: signal::block_stop_signals_at_start(),
            lifeline,
        }
    }

    const fn unprepared() -> Self {
        Self { close_on_exec_result: Ok(()), mask: None, lifeline: None }
    }
}

/// Under the name torchrun only torchrun's own lines are expected.
fn wait_announcer(argv: &[OsString]) -> TellOfWait {
    match cli::cli_flavor(argv.first().map_or(OsStr::new(""), OsString::as_os_str)) {
        CliFlavor::Rankrun => reporter::print_probe_wait,
        CliFlavor::Torchrun => |_, _| {},
    }
}

fn run_shim(request: &ShimRequest, argv0: &OsStr, facts: &Facts) -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| argv0.into());
    match shim::run(request, argv0, program, facts) {
        Ok(text) => reporter::print(text.as_bytes()),
        Err(error) => reporter::report_error(&error, error.hint()),
    }
}

fn run_launch(launch: Launch, facts: &Facts, foreign_python: Option<OsString>, begun: Startup) -> ExitCode {
    let Startup { close_on_exec_result: closed, mask, lifeline } = begun;
    let handled = HandledSignals::of(&launch.spec.signals, launch.spec.cli_flavor);
    let job = JobId(uuid::Uuid::new_v4().to_string());
    reserve::open_reserve();
    // In this order: the agent inherits the signals that the guard blocks before the fork.
    let mask = signal::block_after(mask, &handled);
    let split = mask.and_then(|mask| Ok((mask, guard::fork_guard(&handled, &job)?)));
    match split {
        Ok((_, ForkSide::Guard(guard))) => {
            if let Some(Err(source)) = lifeline.map(Lifeline::watch) {
                let error = LaunchError::Setup { what: "watch the connection to the launcher", source };
                // The agent ends with this process.
                return reporter::report_launch_error(&error, launch.spec.parent_error_file.as_deref());
            }
            exit_with(supervise_agent(*guard, &launch.spec, (&job, facts)))
        }
        Ok((mask, ForkSide::Agent(link, watch))) => {
            heap::tune_heap();
            let original = InheritedState { mask, handled, file_limits: inherited::raise_file_limit() };
            let agent = AgentStart {
                launch,
                facts,
                foreign_python,
                close_on_exec_result: closed,
                link: &link,
                watch,
            };
            agent.run(job, original);
            inherited::close_all_and_exit()
        }
        Err(source) => {
            let error = LaunchError::Setup { what: "start the agent", source };
            reporter::report_launch_error(&error, launch.spec.parent_error_file.as_deref())
        }
    }
}

fn run_explain(question: &ExplainRequest, facts: &Facts) -> ExitCode {
    let spec = &question.spec;
    let handled = HandledSignals::of(&spec.signals, spec.cli_flavor);
    match explain::explain(question, facts, &handled) {
        Ok(explanation) => reporter::print(&explain::render(&explanation, question, output_style(facts))),
        Err(error) => reporter::report_launch_error(&error, None),
    }
}

/// Whether an answer goes to a terminal with colours (`NO_COLOR`: no-color.org).
fn output_style(facts: &Facts) -> Style {
    let is_terminal = facts.world().is_terminal(StandardStream::Output);
    let colours =
        is_terminal && cursor_support(facts) == Cursor::Moves && facts.filled_variable("NO_COLOR").is_none();
    if colours { Style::Coloured } else { Style::Plain }
}

fn run_inspect(question: &InspectRequest, facts: &Facts) -> ExitCode {
    let can_draw = cursor_support(facts) == Cursor::Moves;
    match inspect::inspect(question, facts, output_style(facts), can_draw) {
        Ok(answer) => match (reporter::print(&answer.text), answer.status) {
            (printed, ExitStatus::SUCCESS) => printed,
            (_, status) => exit_with(status),
        },
        Err(error) => reporter::report_error(&error, error.hint()),
    }
}

fn run_gc(request: &gc::GcRequest, argv0: &OsStr, facts: &Facts) -> ExitCode {
    match process::gc::collect(request) {
        Ok(mut collected) => {
            // The processes first: they may still write into these folders.
            let (paths, unsearched) = litter::collect_left_paths(request.mode, argv0, facts);
            collected.paths = paths;
            let printed = reporter::print(gc::render(&collected, request).as_bytes());
            match unsearched {
                Some(error) => reporter::report_error(&error, Some(error.hint())),
                None if collected.is_clean() => printed,
                None => ExitCode::from(LAUNCHER_FAILED),
            }
        }
        Err(error) => reporter::report_error(&error, Some(error.hint())),
    }
}

fn run_control(command: &control::command::ControlCommand, facts: &Facts) -> ExitCode {
    let write = |text: &str| reporter::print(text.as_bytes()) == ExitCode::SUCCESS;
    match control::command::run(command, facts, output_style(facts), &write) {
        Ok(status) => exit_with(status),
        Err(error) => {
            let _ = reporter::report_error(&error, Some(&error.hint()));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs the wrapper of a worker that is started by hand.
fn run_attached(attach: &Attach, facts: &Facts) -> ExitCode {
    if let Some(job) = facts.filled_variable(JOB).and_then(OsStr::to_str) {
        job_limit::set_job_mark(&JobId(job.to_owned()));
    }
    match process::attach::run_attached(&attach.socket, &attach.command, reporter::print_message) {
        Ok(status) => exit_with(status),
        Err(error) => reporter::report_error(&error, error.hint()),
    }
}

struct AgentStart<'a> {
    launch: Launch,
    facts: &'a Facts,
    foreign_python: Option<OsString>,
    /// Whether inherited descriptors are hidden from the workers.
    close_on_exec_result: io::Result<()>,
    link: &'a GuardLink,
    watch: Watchdog,
}

impl AgentStart<'_> {
    fn run(self, job: JobId, original: InheritedState) {
        let console = match Console::of_process(cursor_support(self.facts)) {
            Ok(console) => console,
            Err(source) => {
                let error = LaunchError::Setup { what: "open the console", source };
                let _ = reporter::report_launch_error(&error, self.launch.spec.parent_error_file.as_deref());
                let _ = self.link.send_to_guard(ToGuard::Finish(ExitStatus::Code(LAUNCHER_FAILED)));
                return;
            }
        };
        let kind = (self.launch.spec.cli_flavor, self.launch.verbosity);
        let launcher = parent_pid();
        reporter::trace_to(console.clone(), kind, launcher);
        self.log_missing_features();
        let no_color = self.facts.filled_variable("NO_COLOR").is_some();
        let user_log = UserLog::new(console, kind, launcher, no_color);
        for notice in &self.launch.notices {
            user_log.notice(notice);
        }
        let environment = self.facts.environment().to_vec();
        let (spec, foreign_python, watch) = (self.launch.spec, self.foreign_python, self.watch);
        let setup = AgentSetup {
            spec,
            environment,
            job,
            inherited: original,
            launcher_pid: launcher,
            foreign_python,
            watchdog: watch,
        };
        agent::run(setup, self.link, user_log);
    }

    /// In places that lock a launcher down; under `-v`.
    fn log_missing_features(&self) {
        if let Err(error) = &self.close_on_exec_result {
            tracing::info!("workers may inherit open files of the launcher's parent: {error}");
        }
        let warns = self.launch.spec.cli_flavor == CliFlavor::Rankrun;
        if warns && inherited::is_file_size_limit_zero() {
            tracing::warn!(
                "the limit on file sizes is 0 (`ulimit -f`): neither the launcher nor its workers can write to a file"
            );
        }
        if warns && !proc_is_mounted() {
            tracing::warn!(
                "`/proc` is not mounted: what workers leave behind cannot be ended, and no driver's library is asked for \
                 devices"
            );
        } else if !can_scan_processes() {
            tracing::info!("`/proc` does not show our processes: what workers leave behind cannot be ended");
        }
    }
}

fn cursor_support(facts: &Facts) -> Cursor {
    match facts.filled_variable("TERM") {
        Some(term) if term != "dumb" => Cursor::Moves,
        _ => Cursor::Stays,
    }
}

fn supervise_agent(guard: Guard, spec: &LaunchSpec, (job, facts): (&JobId, &Facts)) -> ExitStatus {
    let parent_file = spec.parent_error_file.as_deref();
    match guard.supervise(&reporter::report_unanswered_signal) {
        Ok(GuardEnd::AgentFinished(status)) => status,
        Ok(GuardEnd::AgentLost { exit, killed_for, leftover: leftovers }) => {
            remove_control_folder(spec, job, facts);
            reporter::report_agent_lost((exit, killed_for), leftovers.as_deref(), parent_file);
            match (spec.cli_flavor, killed_for) {
                (CliFlavor::Rankrun, Some(signal)) => ExitStatus::of_signal(signal),
                (CliFlavor::Rankrun | CliFlavor::Torchrun, _) => ExitStatus::Code(LAUNCHER_FAILED),
            }
        }
        Err(source) => {
            let error = LaunchError::Setup { what: "wait for the agent", source };
            let _ = reporter::report_launch_error(&error, parent_file);
            ExitStatus::Code(LAUNCHER_FAILED)
        }
    }
}

/// The agent cannot. A file system that does not answer is left behind.
fn remove_control_folder(spec: &LaunchSpec, job: &JobId, facts: &Facts) {
    if spec.cli_flavor == CliFlavor::Rankrun {
        let (places, job) = (RuntimeFolders::of_environment(facts.environment()), job.clone());
        let removal = BlockingCall::start("control-folder", move |_| places.remove_job(&job));
        let _ = removal.map(|call| call.wait(CONTROL_FOLDER_TIMEOUT));
    }
}

fn exit_with(status: ExitStatus) -> ExitCode {
    match status {
        ExitStatus::Code(code) => ExitCode::from(code),
        ExitStatus::Signal(signal) => {
            raise_with_default_action(signal);
            // PID 1 of a container cannot die by a signal of its own.
            ExitCode::from(code_of_signal(signal))
        }
    }
}
