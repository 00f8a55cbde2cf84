//! Servers that the launcher needs and that do not answer: a name server, a file system, the rendezvous store. A signal
//! ends the launcher all the same, and a line says what was waited for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use harness::{Job, Launch, Name, Scratch, Store, can_use_namespaces, fixture, is_rankrun, print_notice};
use nix::sys::signal::Signal;

/// Far below the launch's own limit, on a machine under load.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(10);

/// A network in which the only name server never answers. Its files are those of the C library.
const SILENT_NAME_SERVER: &str = r#"
    ip link set lo up || exit 97
    printf 'nameserver 127.0.0.1\noptions timeout:30 attempts:5\n' >"$TMPDIR/resolv.conf"
    echo '127.0.0.1 localhost' >"$TMPDIR/hosts"
    echo 'hosts: files dns' >"$TMPDIR/nsswitch.conf"
    for file in resolv.conf hosts nsswitch.conf; do
        [ ! -e "/etc/$file" ] || mount --bind "$TMPDIR/$file" "/etc/$file" || exit 97
    done
    exec "$@""#;

#[track_caller]
fn with_silent_name_server(launch: Launch) -> Launch {
    let unshare = ["unshare", "--net", "--mount", "--propagation", "private"];
    let launch = launch.under(unshare).under(["sh", "-c", SILENT_NAME_SERVER, "sh"]);
    launch.under([fixture("hanging_server").into_os_string(), "names".into()])
}

/// A launch in a mount namespace where `folder` is on a file system without a server.
#[track_caller]
pub(crate) fn with_silent_folder(launch: Launch, folder: &str) -> Launch {
    let launch = launch.under(["unshare", "--mount", "--propagation", "private"]);
    launch.under([fixture("hanging_server").into_os_string(), "folder".into(), folder.into()])
}

/// Moves a folder to a file system that is not a local disk for the launcher, inside the namespace of the launch.
const NO_LOCAL_DISK: &str = r#"
    folder=$1; shift
    cp -a "$folder" "$folder.copy" && mount -t ramfs ramfs "$folder" && cp -a "$folder.copy/." "$folder" || exit 97
    exec "$@""#;

/// As [`with_silent_folder`] for `hang`. What is in `folder` does not count as files on a local disk: they may be covered
/// by `hang` later.
#[track_caller]
pub(crate) fn with_network_folder(launch: Launch, hang: &str, folder: &str) -> Launch {
    with_silent_folder(launch, hang).under(["sh", "-c", NO_LOCAL_DISK, "sh", folder])
}

pub(crate) fn lacks_fuse() -> bool {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => !can_use_namespaces() || !is_rankrun(),
        Err(error) => {
            print_notice(&format!("skipped: no file system can be made to hang here: /dev/fuse: {error}"));
            true
        }
    }
}

/// The launcher ends at once by SIGTERM; it has waited for this.
#[track_caller]
fn stop_waiting_launcher(job: Job, wait: &str) -> harness::Outcome {
    job.wait_for_line(&format!("waiting for {wait}; a signal ends the wait"));
    job.signal(Signal::SIGTERM);
    let _ = job.ends_within(AT_ONCE);
    let outcome = job.wait();
    outcome.expect_stderr(&format!("gave up waiting for {wait}")).expect_absent("panicked");
    outcome
}

#[test]
fn silent_name_server_leaves_signals_answered() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let launch = Launch::new(*name).args(["--master-addr", "nowhere", "--master-port", "29500"]);
        let job = with_silent_name_server(launch.worker(["exit=0"])).start();
        let outcome = stop_waiting_launcher(job, "a name server to resolve `nowhere`");
        match name {
            Name::Rankrun => outcome.expect_exit_code(143),
            Name::Torchrun | Name::Reference => outcome.expect_signal(Signal::SIGTERM),
        };
    }
}

#[test]
fn silent_log_folder_leaves_signals_answered() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let folder = scratch.folder("logs", 0o700);
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--log-dir", &folder, "--redirects", "3"]);
        let job = with_silent_folder(launch.worker(["exit=0"]), &folder).start();
        let outcome = stop_waiting_launcher(job, &format!("the file system of the log folder `{folder}`"));
        match name {
            Name::Rankrun => outcome.expect_exit_code(143),
            Name::Torchrun | Name::Reference => outcome.expect_signal(Signal::SIGTERM),
        };
    }
}

/// A program of this machine whose loader has another path, of at most the same length.
fn program_with_loader(scratch: &Scratch, loader: &str) -> String {
    let mut program = std::fs::read("/bin/true").expect("a program can be read");
    let at = program.windows(4).position(|bytes| bytes == b"/lib").expect("a program has a loader");
    let path = [loader.as_bytes(), b"\0"].concat();
    program[at..at + path.len()].copy_from_slice(&path);
    scratch.binary("program", &program, 0o700)
}

#[test]
fn silent_interpreter_or_loader_leaves_signals_answered() {
    // Short enough for a loader.
    let hang = "/mnt";
    if lacks_fuse() || !Path::new(hang).is_dir() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("script", "#!/mnt/py\n", 0o700);
    let behind_script = scratch.file("behind-script", &format!("#!{script}\n"), 0o700);
    let program = program_with_loader(&scratch, "/mnt/ld");
    for (program, file) in [(&script, "/mnt/py"), (&behind_script, "/mnt/py"), (&program, "/mnt/ld")] {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--no-python", program]);
        let job = with_silent_folder(launch, hang).start();
        let wait = format!("the file system of `{file}`, which the program `{program}` needs");
        stop_waiting_launcher(job, &wait).expect_exit_code(143);
    }
}

/// A restart that waits for its program: the second generation of the program is on a file system that hangs.
#[track_caller]
fn restart_with_silent_program(scratch: &Scratch, workers: usize) -> (Job, String) {
    let (hang, folder) = (scratch.folder("hang", 0o700), scratch.folder("programs", 0o700));
    let program = format!("{folder}/program");
    std::fs::copy("/bin/true", &program).expect("a program can be copied");
    let cover = format!("'{}' cover '{hang}' '{folder}'; exit 3", fixture("hanging_server").display());
    // The program of each rank was executed before rank 0 covers it.
    let running = format!("{}/running", scratch.path().display());
    let others = format!("[ $LOCAL_RANK = 0 ] || {{ : >'{running}'; exec sleep infinity; }}");
    let wait = format!("[ $LOCAL_WORLD_SIZE = 1 ] || until [ -e '{running}' ]; do sleep 0.01; done");
    let text = format!("#!/bin/sh\n{others}\n{wait}\n{cover}\n");
    let script = scratch.file("programs/script", &text, 0o700);
    let launch = Launch::standalone(Name::Rankrun, workers);
    let launch = launch.args(["--max-restarts", "1", "--restart-delay", "1", "--no-python", &script]);
    (with_network_folder(launch, &hang, &folder).start(), script)
}

#[test]
fn silent_program_folder_leaves_signals_answered() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (job, script) = restart_with_silent_program(&scratch, 1);
    let outcome = stop_waiting_launcher(job, &format!("the file system of the program `{script}`"));
    // No worker of the second generation runs.
    outcome.expect_exit_code(143).expect_absent("to stop");
}

#[test]
fn ranks_that_wait_for_their_restart_are_not_called_external() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (job, script) = restart_with_silent_program(&scratch, 2);
    let outcome = stop_waiting_launcher(job, &format!("the file system of the program `{script}`"));
    outcome.expect_exit_code(143).expect_absent("left out");
    outcome.expect_stderr("0, 1  -    waits to start  no ");
    outcome.expect_stderr("hint: ranks 0, 1 are not started yet: the launcher waits for a file system");
}

/// A worker that fails after its log folder has stopped to answer.
fn fail_without_log_folder(launch: Launch, hang: &str, logs: &str) -> Job {
    let cover = format!(
        "'{}' cover '{hang}' \"$$(dirname $TORCHELASTIC_ERROR_FILE)\"",
        fixture("hanging_server").display()
    );
    with_network_folder(launch.shell(&format!("{cover} || exit 9; exit 3")), hang, logs).start()
}

#[test]
fn log_folder_that_falls_silent_is_skipped_at_end() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (hang, logs) = (scratch.folder("hang", 0o700), scratch.folder("logs", 0o700));
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).args(["--log-dir", &logs, "--redirects", "3"]);
        let outcome = fail_without_log_folder(launch, &hang, &logs).wait();
        outcome.expect_exit_code(if *name == Name::Rankrun { 3 } else { 1 });
        outcome.expect_stderr("does not answer").expect_stderr(&logs).expect_absent("panicked");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the PATH of the tests, and a folder behind it")]
fn silent_folder_in_path_costs_no_more_than_the_hint() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let hang = scratch.folder("hang", 0o700);
    let script = scratch.file("train.py", "import nosuchmodule\n", 0o600);
    let path = std::env::var("PATH").expect("the tests have a PATH");
    let launch =
        Launch::standalone(Name::Rankrun, 1).env("PATH", format!("{path}:{hang}/bin")).args([script]);
    let job = with_silent_folder(launch, &hang).start();
    let _ = job.ends_within(AT_ONCE);
    let outcome = job.wait();
    outcome.expect_exit_code(1).expect_stderr("rank 0").expect_stderr("No module named 'nosuchmodule'");
    outcome.expect_absent("has no module `nosuchmodule`");
}

#[test]
fn silent_parent_error_file_leaves_signals_answered() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let hang = scratch.folder("hang", 0o700);
    let file = format!("{hang}/error.json");
    let wait = format!("the file system of the error file `{file}`");
    for name in Name::both() {
        let launch = || Launch::standalone(*name, 1).env("TORCHELASTIC_ERROR_FILE", &*file);
        let failing = launch().worker(["error-file={\"message\": \"boom\"}", "exit=3"]);
        let code = if *name == Name::Rankrun { 3 } else { 1 };
        stop_waiting_launcher(with_silent_folder(failing, &hang).start(), &wait).expect_exit_code(code);
        // A job that was told to end does not wait for long.
        let job = with_silent_folder(launch().worker(["alive", "forever"]), &hang).start();
        job.wait_for_line("alive rank=0");
        job.signal(Signal::SIGTERM);
        let _ = job.ends_within(AT_ONCE);
        let outcome = job.wait();
        outcome.expect_exit_code(if *name == Name::Rankrun { 143 } else { 1 });
        outcome.expect_stderr(&format!("gave up waiting for {wait}"));
    }
}

#[test]
fn silent_report_folder_leaves_signals_answered() {
    if lacks_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let hang = scratch.folder("hang", 0o700);
    let file = format!("{hang}/report.json");
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--report", &file]).worker(["exit=0"]);
    let wait = format!("the file system of the report `{file}`");
    stop_waiting_launcher(with_silent_folder(launch, &hang).start(), &wait).expect_exit_code(143);
}

/// A store whose answers come at one byte a second.
fn open_slow_store(store: &Store) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the machine has a free port");
    let port = listener.local_addr().expect("a bound socket has an address").port();
    let target = store.endpoint();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&target).expect("the store listens");
            relay_slowly(client, server).expect("sockets have second handles");
        }
    });
    port
}

fn relay_slowly(client: TcpStream, mut server: TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    // Either copy ends when its peer closes.
    thread::spawn(move || io::copy(&mut from, &mut to));
    let mut client = client;
    let second = TcpListener::bind("127.0.0.1:0")?;
    let mut clock = TcpStream::connect(second.local_addr()?)?;
    clock.set_read_timeout(Some(Duration::from_secs(1)))?;
    thread::spawn(move || {
        let _never_sends = second;
        let mut byte = [0];
        while server.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {
            // The clock's peer is silent: the read ends after a second.
            let _ = clock.read(&mut [0]);
        }
    });
    Ok(())
}

#[test]
fn store_of_one_byte_a_second_leaves_signals_answered() {
    if !is_rankrun() {
        return;
    }
    let store = Store::open();
    let port = open_slow_store(&store);
    let endpoint = format!("127.0.0.1:{port}");
    let dynamic =
        ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--rdzv-conf", "is_host=0"];
    let port = port.to_string();
    let fixed = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", &port];
    for (name, options) in Name::both().iter().flat_map(|name| [(name, &dynamic[..]), (name, &fixed[..])]) {
        let job = Launch::new(*name).args(options).worker(["exit=0"]).start();
        job.wait_for_line("wait");
        job.signal(Signal::SIGTERM);
        let _ = job.ends_within(AT_ONCE);
        let outcome = job.wait();
        outcome.expect_absent("panicked").expect_stderr(&endpoint);
        match name {
            Name::Rankrun => outcome.expect_exit_code(143),
            Name::Torchrun | Name::Reference => outcome.expect_signal(Signal::SIGTERM),
        };
    }
}
