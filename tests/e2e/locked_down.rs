//! Places where little is permitted: the job runs, and `-v` names what is lost.

use std::time::Duration;

use harness::{Launch, Name, Scratch, can_use_namespaces, fixture, is_rankrun};
use nix::sys::signal::Signal;

/// A mount namespace in which no file system can be written, proved before the launcher starts.
const READ_ONLY: &str = r#"
    while read -r _ target _; do
        case "$target" in
            /proc | /proc/*) ;;
            *) mount -o remount,bind,ro "$target" 2>/dev/null || true ;;
        esac
    done </proc/self/mounts
    for folder in / /tmp /dev/shm "$TMPDIR" "$HOME" .; do
        if [ -d "$folder" ] && touch "$folder/probe" 2>/dev/null; then
            echo "still writable: $folder" >&2
            exit 97
        fi
    done
    exec "$@""#;

#[track_caller]
fn on_read_only_root(launch: Launch) -> Launch {
    launch.under(["unshare", "--mount", "--propagation", "private", "sh", "-c", READ_ONLY, "sh"])
}

/// A container needs namespaces; the test fails where they are refused, unless the switch says so.
fn must_skip() -> bool {
    !can_use_namespaces() || !is_rankrun()
}

#[test]
fn read_only_root_job_restarts_and_succeeds() {
    if must_skip() {
        return;
    }
    for name in Name::both() {
        let launch = on_read_only_root(Launch::standalone(*name, 2).args(["--max-restarts", "1"]));
        let outcome = launch
            .worker(["env", "print=attempt {attempt}", "rank1:attempt<1:exit=4", "attempt<1:forever"])
            .run();
        outcome.expect_exit_code(0).expect_stdout("attempt 1").expect_stdout("TORCHELASTIC_ERROR_FILE=\n");
    }
}

#[test]
fn read_only_root_with_verbose_names_temporary_folder() {
    if !must_skip() {
        let launch = Launch::standalone(Name::Rankrun, 1);
        let temporary = launch.temporary().to_string_lossy().into_owned();
        on_read_only_root(launch.args(["-v"]))
            .worker(["alive"])
            .run()
            .expect_exit_code(0)
            .expect_stderr(&temporary);
    }
}

#[test]
fn log_dir_on_read_only_root_is_refused() {
    if !must_skip() {
        let launch = on_read_only_root(Launch::standalone(Name::Rankrun, 1).args(["--log-dir", "/logs"]));
        launch
            .worker(["print=started"])
            .run()
            .expect_exit_code(1)
            .expect_stderr("/logs")
            .expect_absent("started");
    }
}

#[test]
fn launcher_killed_on_read_only_root_leaves_no_processes() {
    if !must_skip() {
        let launch = on_read_only_root(Launch::standalone(Name::Rankrun, 2));
        let job = launch.worker(["catch", "helper=daemon", "alive", "forever"]).start();
        job.wait_for_lines("alive rank=", 4);
        job.signal(Signal::SIGKILL);
        job.expect_no_processes_within(Duration::from_secs(1));
    }
}

#[test]
fn job_without_home_and_temporary_folder_succeeds() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).without_env("HOME").without_env("TERM");
        // torchrun takes the next candidate; ours does too, or goes without.
        launch.env("TMPDIR", "/nonexistent").worker(["alive"]).run().expect_exit_code(0);
    }
}

#[test]
fn user_without_passwd_entry_runs_job() {
    if !is_rankrun() {
        return;
    }
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 2).user(54_321).without_env("HOME").cwd("/");
        let outcome = launch.shell("echo user $$(id -u) rank $RANK").run();
        outcome.expect_exit_code(0).expect_stdout("user 54321 rank 0\n").expect_stdout("user 54321 rank 1\n");
    }
}

#[test]
fn agent_killed_as_plain_user_leaves_no_processes() {
    if !is_rankrun() {
        return;
    }
    let line = "trap '' TERM; setsid --fork sleep 1000; echo alive; while :; do sleep 1000; done";
    let job = Launch::standalone(Name::Rankrun, 2).user(54_321).cwd("/").shell(line).start();
    job.wait_for_lines("alive", 2);
    let agent = job.only_child_of(job.pid());
    job.signal_to(agent, Signal::SIGKILL);
    job.expect_no_processes_within(Duration::from_secs(1));
}

#[test]
fn missing_runtime_folder_is_ignored_silently() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).env("XDG_RUNTIME_DIR", "/nonexistent/run");
        let outcome = launch.env("RANKRUN_QUIET", "1").worker(["alive"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stderr(), "", "what is lost is only said under -v");
    }
}

#[test]
fn runtime_folder_longer_than_socket_path_is_ignored_silently() {
    let scratch = Scratch::new();
    let folder = scratch.folder(&"x".repeat(200), 0o700);
    for name in Name::for_shared_behaviour() {
        let launch = Launch::standalone(*name, 1).env("XDG_RUNTIME_DIR", folder.clone());
        let outcome = launch.env("RANKRUN_QUIET", "1").worker(["alive"]).run();
        outcome.expect_exit_code(0);
        assert_eq!(outcome.stderr(), "", "what is lost is only said under -v");
    }
}

/// A launch for which the kernel refuses what containers often refuse.
#[track_caller]
fn with_refused_system_calls(launch: Launch, errno: &str) -> Launch {
    let wrapper = fixture("seccomp-exec").into_os_string();
    // Every filter answers clone3 with ENOSYS: with any other error glibc starts no thread, in any program.
    let clone3 = if errno == "ENOSYS" { ",clone3" } else { "" };
    launch.under([wrapper, errno.into(), format!("pidfd_open,close_range,ptrace{clone3}").into()])
}

const REFUSAL_ERRNOS: [&str; 2] = ["ENOSYS", "EPERM"];

#[test]
fn restart_succeeds_with_refused_system_calls() {
    if !is_rankrun() {
        return;
    }
    for errno in REFUSAL_ERRNOS {
        for name in Name::for_shared_behaviour() {
            let launch =
                with_refused_system_calls(Launch::standalone(*name, 2).args(["--max-restarts", "1"]), errno);
            let outcome =
                launch.worker(["alive", "fds", "rank1:attempt<1:exit=4", "attempt<1:forever"]).run();
            outcome.expect_exit_code(0).expect_stdout("attempt=1");
            for line in outcome.lines_with("fds rank=") {
                let mut open: Vec<&str> = harness::field(&line, "open").expect("a list").split(',').collect();
                open.sort_unstable();
                assert_eq!(open, ["0", "1", "2"], "{outcome}");
            }
        }
    }
}

#[test]
fn sigterm_stops_job_with_refused_system_calls() {
    if !is_rankrun() {
        return;
    }
    for errno in REFUSAL_ERRNOS {
        let launch = Launch::standalone(Name::Rankrun, 2).args(["--shutdown-timeout", "1"]);
        let job = with_refused_system_calls(launch, errno)
            .worker(["catch", "helper=daemon", "alive", "forever"])
            .start();
        job.wait_for_lines("alive rank=", 4);
        job.signal(Signal::SIGTERM);
        job.wait().expect_exit_code(143);
    }
}

#[test]
fn launcher_killed_with_refused_system_calls_leaves_no_processes() {
    if !is_rankrun() {
        return;
    }
    for errno in REFUSAL_ERRNOS {
        for kill_agent in [false, true] {
            let launch = with_refused_system_calls(Launch::standalone(Name::Rankrun, 2), errno);
            let job = launch.worker(["catch", "helper=daemon", "alive", "forever"]).start();
            job.wait_for_lines("alive rank=", 4);
            let victim = if kill_agent { job.only_child_of(job.pid()) } else { job.pid() };
            job.signal_to(victim, Signal::SIGKILL);
            job.expect_no_processes_within(Duration::from_secs(1));
        }
    }
}
