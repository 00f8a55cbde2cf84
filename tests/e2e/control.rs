//! The control socket of a running job, and `rankrun ls`, `status`, `stop` and `restart`.
#![expect(clippy::disallowed_methods, reason = "a client of another user is started")]

mod clients;
mod full;
mod hanging;
mod restarts;
mod stops;
mod waiting;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{Job, Launch, Name, Outcome, Process, Scratch, is_rankrun, is_stopped};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

/// A runtime folder that jobs and commands share.
pub(super) struct Runtime(pub(super) Scratch);

impl Runtime {
    /// `None` under another launcher, which has no control socket.
    pub(super) fn new() -> Option<Self> {
        let scratch = is_rankrun().then(Scratch::new)?;
        assert!(scratch.folder("runtime", 0o700).ends_with("runtime"));
        Some(Self(scratch))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("runtime")
    }

    fn launch(&self, workers: usize) -> Launch {
        Launch::standalone(Name::Rankrun, workers).env("XDG_RUNTIME_DIR", self.path())
    }

    /// A job whose workers say `ready` and wait.
    fn job(&self, options: &[&str]) -> Job {
        let launch = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", self.path());
        let launch = launch.args(["--nproc-per-node", "2"]).args(options.iter().copied());
        self.start_until_ready(launch.shell("echo ready; exec sleep 1000"), 2)
    }

    /// Starts a job, and waits until its workers say `ready` and its socket exists.
    fn start_until_ready(&self, launch: Launch, workers: usize) -> Job {
        let job = launch.start();
        job.wait_for_lines("ready", workers);
        job.wait_until("the job has a socket", || self.socket().is_some());
        job
    }

    /// Stops a job over its socket; nothing of it may be left.
    #[track_caller]
    fn stop(&self, job: Job, id: &str) -> Outcome {
        self.ask(&["stop", id]).expect_exit_code(0);
        let outcome = job.wait();
        outcome.expect_exit_code(143);
        self.expect_empty();
        outcome
    }

    /// A command that looks for a job also finds those in `/tmp`, so the arguments name it.
    pub(super) fn ask(&self, arguments: &[&str]) -> Outcome {
        Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", self.path()).args(arguments.iter().copied()).run()
    }

    fn status(&self, arguments: &[&str]) -> Value {
        let outcome = self.ask(arguments);
        outcome.expect_exit_code(0);
        serde_json::from_str(&outcome.stdout()).unwrap_or_else(|error| panic!("{error}: {outcome}"))
    }

    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join("rankrun")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// The socket of the only job.
    fn socket(&self) -> Option<PathBuf> {
        let sockets = self.folders().into_iter().map(|folder| folder.join("control.sock"));
        sockets.filter(|path| path.exists() && !path.to_string_lossy().contains(".new-")).max()
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(self.socket().expect("a job runs")).expect("the job listens");
        client.set_read_timeout(Some(LIMIT)).expect("a time is a time");
        client
    }

    /// The id of the only job.
    pub(super) fn job_id(&self) -> String {
        let folder = self.socket().and_then(|path| Some(path.parent()?.file_name()?.to_owned()));
        folder.expect("a job runs").to_string_lossy().into_owned()
    }

    #[track_caller]
    fn expect_empty(&self) {
        let entries = fs::read_dir(self.path()).expect("the test made the folder");
        let entries_left: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        assert!(entries_left.is_empty(), "{entries_left:?} with {:?}", self.folders());
    }
}

fn request(name: &str) -> String {
    format!("{{\"version\":1,\"request\":\"{name}\"}}\n")
}

#[test]
fn status_shows_each_worker_and_list_shows_each_job() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&["--rdzv-id", "my-run", "--max-restarts", "3"]);
    let id = runtime.job_id();
    job.wait_until("both workers sleep", || {
        let status = runtime.status(&["status", "--json"]);
        let ranks = status["ranks"].as_array().expect("ranks");
        ranks.iter().all(|rank| rank["state"] == "sleeping")
    });
    let status = runtime.status(&["status", "--json"]);
    assert_eq!(status["job"], id.as_str());
    assert_eq!((&status["run_id"], &status["state"]), (&"my-run".into(), &"running".into()));
    assert_eq!(status["launcher_pid"], job.pid());
    assert_eq!((&status["restarts"], &status["max_restarts"]), (&0.into(), &3.into()));
    let ranks = status["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    for (rank, found) in ranks.iter().enumerate() {
        assert_eq!((&found["rank"], &found["device"]), (&rank.into(), &format!("cpu:{rank}").into()));
        assert_eq!(found["state"], "sleeping");
        assert!(found["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{found}");
        assert!(found["cpu_seconds"].is_number() && found["last_output_age_seconds"].is_number(), "{found}");
        let pid = found["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        assert!(Process::open(pid).is_some(), "{found}");
    }
    for name in [id.as_str(), &id[..8], "my-run", &job.pid().to_string()] {
        assert_eq!(runtime.status(&["status", name, "--json"])["job"], id.as_str(), "{name}");
    }
    runtime.ask(&["status", &id]).expect_exit_code(0).expect_stdout("RANK  DEVICE").expect_stdout(&id);
    runtime.ask(&["status", "my-run", "--check"]).expect_exit_code(0);
    let listed = runtime.status(&["ls", "--json"]);
    assert!(listed.as_array().is_some_and(|jobs| jobs.iter().any(|job| job["job"] == id.as_str())));
    runtime.ask(&["ls"]).expect_exit_code(0).expect_stdout("RUN ID").expect_stdout("my-run");
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
    runtime.expect_empty();
    let gone = runtime.ask(&["status", &id]);
    gone.expect_exit_code(3).expect_stderr("no running job has the id").expect_stderr("`rankrun ls` lists");
    runtime.ask(&["status", &id, "--check"]).expect_exit_code(3);
}

#[test]
fn job_under_torchrun_name_leaves_nothing_in_runtime_folder() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = Launch::standalone(Name::Torchrun, 1).env("XDG_RUNTIME_DIR", runtime.path());
    let temporary = launch.temporary();
    let job = launch.shell("echo ready; exec sleep 1000").start();
    job.wait_for_line("ready");
    // A signal that was handled is behind the place where the socket would be made.
    job.signal(Signal::SIGUSR1);
    job.wait().expect_absent("control");
    runtime.expect_empty();
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("rankrun-");
    assert!(!fs::read_dir(temporary).into_iter().flatten().flatten().any(|entry| named(&entry)));
}

#[test]
fn folder_is_removed_at_every_end_of_the_job() {
    let Some(runtime) = Runtime::new() else { return };
    runtime.launch(2).shell("true").run().expect_exit_code(0);
    runtime.expect_empty();
    runtime.launch(2).shell("exit 3").run().expect_exit_code(3);
    runtime.expect_empty();
    for signal in [Signal::SIGKILL, Signal::SIGABRT] {
        let job = runtime.job(&[]);
        let agent = job.only_child_of(job.pid());
        job.signal_to(agent, signal);
        job.wait().expect_exit_code(1);
        runtime.expect_empty();
    }
    let job = runtime.job(&[]);
    let agent = Process::open(job.only_child_of(job.pid())).unwrap();
    job.signal(Signal::SIGKILL);
    job.ends_within(LIMIT);
    assert!(agent.reaped_within(LIMIT));
    drop(job.wait());
    runtime.expect_empty();
}

/// As a crash of both processes leaves it: a socket without a listener.
fn leave_dead_folder(runtime: &Runtime) -> PathBuf {
    let parent = runtime.path().join("rankrun");
    fs::create_dir_all(&parent).expect("the scratch folder takes it");
    let folder = parent.join("11111111-2222-4333-8444-555555555555");
    fs::create_dir(&folder).expect("the scratch folder takes it");
    for path in [&parent, &folder] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("the scratch folder takes it");
    }
    drop(
        std::os::unix::net::UnixListener::bind(folder.join("control.sock"))
            .expect("the scratch folder takes it"),
    );
    folder
}

#[test]
fn folder_of_dead_job_is_removed_by_list_and_gc() {
    let Some(runtime) = Runtime::new() else { return };
    let folder = leave_dead_folder(&runtime);
    runtime.ask(&["ls"]).expect_exit_code(0).expect_absent("11111111");
    runtime.expect_empty();
    leave_dead_folder(&runtime);
    runtime.ask(&["gc", "--dry-run"]).expect_stdout("11111111");
    assert!(folder.exists());
    let outcome = runtime.ask(&["gc", "--json"]);
    outcome.expect_stdout("\"control_socket\"").expect_stdout("11111111");
    runtime.expect_empty();
    leave_dead_folder(&runtime);
    let gone = runtime.ask(&["stop", "1111"]);
    gone.expect_exit_code(3).expect_stderr("no running job has the id, run id or launcher pid `1111`");
}

#[test]
fn abuse_of_the_socket_does_not_reach_the_job() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&[]);
    let mut garbage = runtime.connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n\xff\0\n").unwrap();
    let mut line = String::new();
    BufReader::new(&garbage).read_line(&mut line).unwrap();
    assert!(line.contains("a request is one line of JSON"), "{line}");
    let mut endless = runtime.connect();
    let sent = (0..16_384).take_while(|_| endless.write_all(&[b'x'; 65_536]).is_ok()).count();
    assert!(sent < 256, "{sent} blocks of a gigabyte were taken");
    let idle: Vec<UnixStream> = (0..1000).map(|_| runtime.connect()).collect();
    drop(idle);
    let id = runtime.job_id();
    job.wait_until("the job answers", || {
        UnixStream::connect(runtime.socket().unwrap()).is_ok_and(|mut client| {
            let mut line = String::new();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            let sent = client.write_all(request("status").as_bytes());
            sent.is_ok()
                && BufReader::new(&client).read_line(&mut line).is_ok()
                && line.contains("\"status\"")
        })
    });
    runtime.stop(job, &id).expect_absent("panic");
}

const CONNECT: &str = "import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
# The job may refuse and close before it reads.
try:
    client.sendall(b'{\"version\":1,\"request\":\"stop\"}\\n')
except BrokenPipeError:
    pass
print(client.makefile().readline())";

/// The folders keep others out. If their modes are opened, the peer's credentials do.
#[test]
fn other_user_is_refused_by_mode_and_by_credentials() {
    let Some(runtime) = Runtime::new() else { return };
    let job = runtime.job(&[]);
    let socket = runtime.socket().unwrap();
    let connect = || {
        let mut client = Command::new("python3");
        client.arg("-c").arg(CONNECT).arg(&socket).uid(54_321).gid(54_321).current_dir("/");
        let output = client.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(connect().contains("PermissionError"), "{}", connect());
    for path in socket.ancestors().take(4) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let answer = connect();
    assert!(answer.contains("the job is another user's"), "{answer}");
    fs::set_permissions(runtime.path().join("rankrun"), fs::Permissions::from_mode(0o700)).unwrap();
    let other = Launch::new(Name::Rankrun).user(54_321).cwd("/").env("XDG_RUNTIME_DIR", runtime.path());
    other.args(["status", "--check"]).run().expect_exit_code(3).expect_stderr("no job of this user runs");
    runtime.ask(&["status", &runtime.job_id(), "--check"]).expect_exit_code(0);
    job.signal(Signal::SIGTERM);
    job.wait().expect_exit_code(143);
}

#[test]
fn socket_is_below_temporary_folder_without_runtime_folder() {
    if !is_rankrun() {
        return;
    }
    let launch = Launch::standalone(Name::Rankrun, 1).user(54_322).cwd("/");
    let temporary = launch.temporary();
    let place = temporary.join("rankrun-54322");
    let job = launch.shell("echo ready; exec sleep 1000").start();
    job.wait_for_line("ready");
    job.wait_until("the job has a folder", || place.is_dir());
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    // The only job of this user needs no name.
    for command in ["status", "stacks"] {
        let asked =
            Launch::new(Name::Rankrun).user(54_322).cwd("/").env("TMPDIR", &temporary).args([command]);
        asked.run().expect_exit_code(0).expect_stdout("0");
    }
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143);
    assert!(!place.exists());
}

#[test]
fn job_with_long_runtime_path_is_reached() {
    let Some(runtime) = Runtime::new() else { return };
    let deep = runtime.0.folder(&"x".repeat(150), 0o700);
    let launch = Launch::standalone(Name::Rankrun, 1).env("XDG_RUNTIME_DIR", &deep);
    let job = launch.shell("echo ready; exec sleep 1000").start();
    job.wait_for_line("ready");
    let place = PathBuf::from(&deep).join("rankrun");
    job.wait_until("the job has a folder", || place.is_dir());
    let pid = job.pid().to_string();
    let stop = Launch::new(Name::Rankrun).env("XDG_RUNTIME_DIR", &deep).args(["stop", &pid, "--wait"]);
    stop.run().expect_exit_code(0);
    job.wait().expect_exit_code(143);
}

#[test]
fn runtime_folder_that_others_may_read_is_used_and_made_private() {
    let Some(runtime) = Runtime::new() else { return };
    let folder = PathBuf::from(runtime.0.folder("runtime/rankrun", 0o755));
    let job = runtime.job(&[]);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let id = runtime.job_id();
    // By a person, meanwhile.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    runtime.ask(&["ls"]).expect_exit_code(0).expect_stdout(&id);
    runtime.stop(job, &id);
}

/// The commands of a user whose only runtime folder is in `/tmp`.
fn commands_of_user(uid: u32) -> Launch {
    let launch = Launch::new(Name::Rankrun).user(uid).cwd("/").env("HOME", "/proc");
    launch.env("XDG_RUNTIME_DIR", "/proc").env("TMPDIR", "/proc")
}

/// The refusal is told once by a job without `-v`, and by each command instead of "no job".
#[track_caller]
fn expect_refused(place: &Path, uid: u32, reason: &str) {
    let refusal = format!("the runtime folder `{}` is not used: {reason}", place.display());
    let options = ["--nproc-per-node", "1", "--max-restarts", "1"];
    let worker = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo worked";
    let outcome = commands_of_user(uid).args(options).shell(worker).run();
    outcome.expect_exit_code(0).expect_stdout("worked");
    let lines = outcome.lines_with("no control socket, so `rankrun status` does not see this job");
    assert!(matches!(&lines[..], [line] if line.contains(&refusal)), "{outcome}");
    for words in [&["ls"][..], &["ls", "--json"], &["status"], &["status", "--check"], &["stop", "my-job"]] {
        let answer = commands_of_user(uid).args(words.iter().copied()).run();
        answer.expect_exit_code(3).expect_stderr("no job").expect_stderr(&refusal).expect_stderr("hint: ");
        answer.expect_absent("no job of this user runs");
    }
}

#[test]
fn refused_runtime_folder_is_named_by_job_and_commands() {
    if !is_rankrun() {
        return;
    }
    let place = Path::new("/tmp/rankrun-54323");
    fs::write(place, "").unwrap();
    expect_refused(place, 54_323, "it is not a folder");
    fs::remove_file(place).unwrap();
    fs::create_dir(place).unwrap();
    std::os::unix::fs::chown(place, Some(54_325), None).unwrap();
    expect_refused(place, 54_323, "it belongs to another user (uid 54325)");
    std::os::unix::fs::chown(place, Some(54_323), None).unwrap();
    fs::set_permissions(place, fs::Permissions::from_mode(0o777)).unwrap();
    expect_refused(place, 54_323, "other users may write to it (mode 777)");
    fs::remove_dir(place).unwrap();
}

/// As by Ctrl-Z: the agent itself goes on.
#[test]
fn suspended_job_answers_and_is_stopped() {
    let Some(runtime) = Runtime::new() else { return };
    let launch = runtime.launch(1).in_own_process_group();
    let job = runtime.start_until_ready(launch.shell("echo ready; exec sleep 1000"), 1);
    let id = runtime.job_id();
    let pid = runtime.status(&["status", &id, "--json"])["ranks"][0]["pid"].as_i64().unwrap();
    let worker = i32::try_from(pid).unwrap();
    job.signal(Signal::SIGTSTP);
    job.wait_until("the worker is suspended", || is_stopped(worker));
    let status = runtime.status(&["status", &id, "--json"]);
    assert_eq!((&status["state"], &status["ranks"][0]["state"]), (&"suspended".into(), &"stopped".into()));
    runtime.stop(job, &id);
}
