//! One start of a launcher, described.
#![expect(
    clippy::disallowed_methods,
    reason = "the harness starts the programs under test and reads the clock"
)]
#![expect(unsafe_code, reason = "signals are set between fork and exec")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, io, process};

use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::fork_server::{ForkRequest, can_fork_with, fork_torchrun, torchrun};
use crate::job::{Input, Job, Start, StartedProcess};
use crate::machine::{Machine, Opening};
use crate::outcome::Outcome;
use crate::place::{Scratch, copy_program, fixture, python, python_modules};
use crate::screen::Size;
use crate::settings::{is_soak, is_torchrun};
use crate::transcript::{Stream, Transcript};

/// The name under which the launcher is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// Our own.
    Rankrun,
    /// torchrun's: a link to the same binary, or the real one (`RANKRUN_E2E_ORACLE=1`).
    Torchrun,
    /// PyTorch's torchrun itself, to compare with.
    Reference,
}

impl Name {
    /// Each name in turn; only torchrun's when the real one is under test.
    #[must_use]
    pub fn both() -> &'static [Self] {
        if is_torchrun() { &[Self::Torchrun] } else { &[Self::Rankrun, Self::Torchrun] }
    }

    /// The names for a behaviour in which they cannot differ: one of them, and both with `RANKRUN_SOAK=1`.
    #[must_use]
    pub fn for_shared_behaviour() -> &'static [Self] {
        if is_soak() { Self::both() } else { &Self::both()[..1] }
    }

    /// The exit status where our own name says `own`: torchrun knows only 1.
    #[must_use]
    pub const fn code(self, own: i32) -> i32 {
        match self {
            Self::Rankrun => own,
            Self::Torchrun | Self::Reference => 1,
        }
    }

    fn is_reference(self) -> bool {
        self == Self::Reference || (self == Self::Torchrun && is_torchrun())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Console {
    Pipes,
    Terminal(Option<Size>),
}

#[derive(Debug)]
enum Stdin {
    Null,
    Open,
    File(File),
}

/// A launcher's command line, environment and streams. The environment is a small fixed one: nothing of the
/// developer's own reaches the job.
#[derive(Debug)]
pub struct Launch {
    name: Name,
    program: Option<PathBuf>,
    wrapper: Vec<OsString>,
    args: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
    stdin: Stdin,
    console: Console,
    limit: Duration,
    user: Option<u32>,
    has_own_process_group: bool,
    scratch: Scratch,
}

impl Launch {
    /// The launcher without any argument.
    ///
    /// # Panics
    /// When the scratch folder cannot be made.
    #[must_use]
    pub fn new(name: Name) -> Self {
        let scratch = Scratch::new();
        // A foreign user must be able to write here.
        let temporary = scratch.folder("tmp", 0o777);
        let mut launch = Self {
            name,
            program: None,
            wrapper: Vec::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            stdin: Stdin::Null,
            console: Console::Pipes,
            limit: Duration::from_secs(90),
            user: None,
            has_own_process_group: false,
            scratch,
        };
        let home = launch.scratch.folder("home", 0o777);
        for name in ["PATH", "LD_LIBRARY_PATH"] {
            if let Some(value) = env::var_os(name) {
                launch = launch.env(name, value);
            }
        }
        launch.env("TMPDIR", temporary).env("HOME", home).env("TERM", "xterm").env("RUST_BACKTRACE", "1")
    }

    /// Puts the launcher into a process group of its own, as a shell does. SIGTSTP then stops it also where the tests
    /// themselves run without a shell: the kernel stops no process of an orphaned process group.
    #[must_use]
    pub const fn in_own_process_group(mut self) -> Self {
        self.has_own_process_group = true;
        self
    }

    /// `--standalone --nproc-per-node COUNT`.
    #[must_use]
    pub fn standalone(name: Name, count: usize) -> Self {
        Self::new(name).args(["--standalone", "--nproc-per-node", &count.to_string()])
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The last arguments: the worker fixture and the steps that it takes.
    #[must_use]
    pub fn worker<S: Into<OsString>>(self, steps: impl IntoIterator<Item = S>) -> Self {
        self.args(["--no-python".into(), fixture("worker").into_os_string()]).args(steps)
    }

    /// The last arguments: a line for `sh -c`. `$` is written `$$`, as in any argument of torchrun's; under our own name,
    /// where no `$$` is replaced, the shell gets the same line.
    #[must_use]
    pub fn shell(self, line: &str) -> Self {
        let line = match self.name {
            Name::Rankrun => line.replace("$$", "$"),
            Name::Torchrun | Name::Reference => line.to_owned(),
        };
        self.args(["--no-python", "sh", "-c", &line])
    }

    /// A variable of the launcher's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Takes a variable away.
    #[must_use]
    pub fn without_env(mut self, name: &str) -> Self {
        self.env.remove(&OsString::from(name));
        self
    }

    /// Workers written in Python get the one that has PyTorch.
    #[must_use]
    pub fn with_torch(self) -> Self {
        self.env("PYTHON_EXEC", python())
            .env("PYTHONPATH", python_modules(&[]))
            .limit(Duration::from_secs(300))
    }

    /// On a machine with these accelerators: their libraries are found, and nothing else is changed.
    #[must_use]
    pub fn on(self, machine: &Machine) -> Self {
        let (folder, description) = machine.install(&self.scratch);
        let mut path = OsString::from(folder);
        if let Some(rest) = self.env.get(&OsString::from("LD_LIBRARY_PATH")).filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        let launch = self.env("LD_LIBRARY_PATH", path).env(fake_machine::VARIABLE, description);
        match machine.orders() {
            Some(orders) => launch.env(fake_gpu::VARIABLE, orders),
            None => launch,
        }
    }

    /// Where the description of the machine lies ([`Machine::describe`]).
    #[must_use]
    pub fn machine_file(&self) -> String {
        self.scratch.at("machine")
    }

    /// To wait until a process opens a vendor's library; [`Outcome::opened`] is then empty.
    #[must_use]
    pub fn opening(&self) -> Opening {
        Opening::new(&self.machine_file())
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// This program in place of the launcher: another launcher, or a link to ours.
    #[must_use]
    pub fn program_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Started by this program, which gets the launcher's command line as its last arguments.
    #[must_use]
    pub fn under<A: Into<OsString>>(mut self, wrapper: impl IntoIterator<Item = A>) -> Self {
        self.wrapper.extend(wrapper.into_iter().map(Into::into));
        self
    }

    /// Started with this user and group id.
    #[must_use]
    pub const fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    /// What the launcher reads.
    ///
    /// # Panics
    /// When the text cannot be kept in a file.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        let path = self.scratch.file("stdin", text, 0o644);
        self.stdin = Stdin::File(File::open(path).expect("the file was just written"));
        self
    }

    /// A pipe that the test writes with [`Job::type_text`].
    #[must_use]
    pub fn stdin_open(mut self) -> Self {
        self.stdin = Stdin::Open;
        self
    }

    /// All three streams are a terminal, and the launcher is in its foreground.
    #[must_use]
    pub const fn terminal(mut self) -> Self {
        self.console = Console::Terminal(None);
        self
    }

    /// As [`Self::terminal`], with a size.
    #[must_use]
    pub const fn terminal_of(mut self, size: Size) -> Self {
        self.console = Console::Terminal(Some(size));
        self
    }

    /// The time after which everything is killed and the test fails.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The temporary folder that the launcher sees (`TMPDIR`).
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.scratch.path().join("tmp")
    }

    /// Starts it and waits for its end; fails if a process of the job is left then.
    #[must_use]
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.start().wait()
    }

    /// Starts it.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(mut self) -> Job {
        let mark = fresh_mark();
        self.env.insert(mark.0.into(), (&mark.1).into());
        let started = Instant::now();
        let transcript = Arc::new(Transcript::default());
        let (process, input) = match self.console {
            Console::Pipes if self.can_fork() => self.forked(&transcript),
            Console::Pipes => self.on_pipes(&transcript),
            Console::Terminal(size) => on_terminal(self.command(), size, &transcript),
        };
        let mark = format!("{}={}", mark.0, mark.1);
        let (limit, is_reference, scratch) = (self.limit, self.name.is_reference(), self.scratch);
        Job::new(Start { process, transcript, input, mark, started, limit, is_reference, scratch })
    }

    fn command(&self) -> Command {
        let mut line = Vec::new();
        if matches!(self.console, Console::Terminal(_)) {
            // A session leader opens its controlling terminal; the pid stays, as a child is not a group leader.
            line.extend(["setsid".into(), "--ctty".into()]);
        }
        line.extend(self.wrapper.iter().cloned());
        line.push(self.program().into_os_string());
        line.extend(self.args.iter().cloned());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).env_clear().envs(&self.env);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        if self.has_own_process_group {
            command.process_group(0);
        }
        reset_signals(&mut command);
        command
    }

    fn program(&self) -> PathBuf {
        if let Some(program) = &self.program {
            return program.clone();
        }
        if self.name.is_reference() {
            return torchrun();
        }
        let name = if self.name == Name::Torchrun { "torchrun" } else { "rankrun" };
        let link = PathBuf::from(self.scratch.folder("bin", 0o755)).join(name);
        let launcher = fixture("launcher-under-test");
        if self.user.is_some() {
            // The build folder may be closed to a foreign user.
            copy_program(&launcher, &link);
        } else {
            symlink(&launcher, &link).expect("the scratch folder takes a link");
        }
        link
    }

    /// PyTorch's torchrun is forked, unless a program of its own sees another thing.
    fn can_fork(&self) -> bool {
        let is_plain = self.wrapper.is_empty() && self.user.is_none();
        self.name == Name::Reference && is_plain && !is_soak() && can_fork_with(&self.env)
    }

    fn forked(&mut self, transcript: &Arc<Transcript>) -> (StartedProcess, Option<Input>) {
        let pipe = || std::io::pipe().expect("the machine has pipes");
        let (stdin, input) = match self.take_stdin() {
            Stdin::Null => (File::open("/dev/null").expect("the machine has it").into(), None),
            Stdin::Open => {
                let (reader, writer) = pipe();
                (reader.into(), Some(OwnedFd::from(writer).into()))
            }
            Stdin::File(file) => (file.into(), None),
        };
        let ((out_reader, out), (err_reader, err)) = (pipe(), pipe());
        let cwd = self.cwd.clone().unwrap_or_else(|| env::current_dir().expect("the tests have a folder"));
        let streams = [stdin, out.into(), err.into()];
        let pid = fork_torchrun(&ForkRequest { args: &self.args, env: &self.env, cwd, streams });
        transcript.follow(Stream::Out, out_reader);
        transcript.follow(Stream::Err, err_reader);
        (StartedProcess::Forked(pid), input)
    }

    fn take_stdin(&mut self) -> Stdin {
        std::mem::replace(&mut self.stdin, Stdin::Null)
    }

    fn on_pipes(&mut self, transcript: &Arc<Transcript>) -> (StartedProcess, Option<Input>) {
        let mut command = self.command();
        match self.take_stdin() {
            Stdin::Null => command.stdin(Stdio::null()),
            Stdin::Open => command.stdin(Stdio::piped()),
            Stdin::File(file) => command.stdin(file),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(&mut command);
        transcript.follow(Stream::Out, child.stdout.take().expect("stdout is a pipe"));
        transcript.follow(Stream::Err, child.stderr.take().expect("stderr is a pipe"));
        let input = child.stdin.take().map(|stdin| Input::from(OwnedFd::from(stdin)));
        (StartedProcess::Spawned(child), input)
    }
}

/// Both ends of a new terminal. A process that another test starts meanwhile does not inherit them.
fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

fn on_terminal(
    mut command: Command,
    size: Option<Size>,
    transcript: &Arc<Transcript>,
) -> (StartedProcess, Option<Input>) {
    let (master, slave) = open_terminal().expect("the machine has a free terminal");
    if let Some(size) = size.map(crate::screen::window_size) {
        rustix::termios::tcsetwinsize(&master, size).expect("the terminal takes a size");
    }
    let stream = || File::from(slave.try_clone().expect("the terminal can be shared"));
    command.stdin(stream()).stdout(stream()).stderr(stream());
    let child = spawn(&mut command);
    let reader = master.try_clone().expect("the terminal can be shared");
    transcript.follow(Stream::Out, File::from(reader));
    (StartedProcess::Spawned(child), Some(Input::from(master)))
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

fn fresh_mark() -> (&'static str, String) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    ("RANKRUN_E2E_MARK", format!("{}-{number}", process::id()))
}

/// The parent of the tests may ignore some, as a shell's background job or `nohup` does.
pub(crate) fn reset_signals(command: &mut Command) {
    // SAFETY: `signal` is async-signal-safe, and the default action is not a handler.
    unsafe { command.pre_exec(handle_all_signals) };
}

fn handle_all_signals() -> std::io::Result<()> {
    for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: the default action is not a handler.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    Ok(())
}
