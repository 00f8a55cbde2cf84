//! `rankrun gc`: the leftovers of jobs without a launcher. The tests run in a container of their own, since gc looks at
//! every process of the user.

use harness::{Job, Launch, Name, Outcome, Scratch, can_use_namespaces, is_rankrun};

fn should_skip() -> bool {
    !can_use_namespaces() || !is_rankrun()
}

/// The whole launcher is killed in one instant. The agent's death continues the guard, however the guard is stopped,
/// and the guard then ends the leftovers. So no process may run between the two kills, even on a busy machine. The
/// orphans have no parent of the job once the agent is a zombie, and the kernel has killed the worker itself.
const CRASH_SCRIPT: &str = "kill -STOP $guard; until ps -o stat= -p $guard | grep -q T; do sleep 0.01; done; \
                     agent=$(ps -o pid= --ppid $guard); chrt --fifo --pid 1 $$; kill -KILL $agent $guard; \
                     chrt --other --pid 0 $$; wait $guard; \
                     while ps -o stat= -p $agent | grep -qv Z; do sleep 0.01; done; \
                     while ps -o args= -C sleep | grep -q 2222; do sleep 0.01; done";

/// A launcher in a container with a shell as its first process. The shell starts it, waits for a line, and goes on with
/// `then`, where `$1` is the launcher's program and `$guard` its pid.
#[track_caller]
fn start_in_container(then: &str, line: &str) -> Job {
    // Other tests leave folders in the machine's own.
    let memory = "mount -t tmpfs tmpfs /dev/shm || exit 97";
    let script = format!("{memory}; exec 3<&0; \"$@\" & guard=$!; read line <&3; {then}");
    let spaces = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    let wrapper = spaces.into_iter().chain(["sh", "-c", &script, "sh"]);
    let launch = Launch::standalone(Name::Rankrun, 1).stdin_open().under(wrapper);
    launch.shell(&format!("{line}; echo ready; exec sleep 2222")).start()
}

#[track_caller]
fn continue_when_ready(mut job: Job) -> Outcome {
    job.wait_for_line("ready");
    job.type_text("\n");
    job.wait()
}

#[test]
fn processes_left_by_crash_are_listed_and_ended() {
    if should_skip() {
        return;
    }
    let then = format!(
        "{CRASH_SCRIPT}; \"$1\" gc --dry-run; \"$1\" gc; echo status=$?; \"$1\" gc; echo still: $(ps -o args= -C sleep)"
    );
    let line = "RANKRUN_KEEP=1 setsid --fork sleep 3333; setsid --fork sleep 1111";
    let outcome = continue_when_ready(start_in_container(&then, line));
    outcome
        .expect_exit_code(0)
        .expect_stdout("1 process left; `rankrun gc` ends them")
        .expect_stdout("1 process ended\n")
        .expect_stdout("2 paths removed\nstatus=0\n");
    assert_eq!(outcome.lines_with("  sleep 1111").len(), 2, "{outcome}");
    outcome.expect_stdout("nothing is left of jobs without a launcher\nstill: sleep 3333\n");
}

/// As `sbatch --export=ALL` and `at` do: a process that no worker has started gets a worker's whole environment. `$1` is the
/// launcher's program.
const LEAK_SCRIPT: &str = r#"(set -a; . "$TMPDIR/leaked"; set +a; exec setsid sleep 3333) & \
                      until pgrep -xf "sleep 3333"; do sleep 0.01; done;"#;

#[test]
fn process_with_leaked_mark_is_ended_only_with_force() {
    if should_skip() {
        return;
    }
    let list_sleeps = "echo still: $(ps -o args= -C sleep | sort)";
    let then = format!(
        r#"{CRASH_SCRIPT}; {LEAK_SCRIPT} "$1" gc; echo status=$?; {list_sleeps}; "$1" gc --dry-run --json; {list_sleeps}; "$1" gc --force; {list_sleeps}"#
    );
    let outcome = continue_when_ready(start_in_container(
        &then,
        "env | grep ^RANKRUN_JOB= > $$TMPDIR/leaked; setsid --fork sleep 1111",
    ));
    outcome
        .expect_exit_code(0)
        .expect_stdout("1 process ended\n")
        .expect_stdout("`rankrun gc --force` ends it too\n");
    outcome.expect_stdout("status=0\nstill: sleep 3333\n");
    outcome
        .expect_stdout("\"command\": \"sleep 3333\"")
        .expect_stdout("\"evidence\": \"environment\"")
        .expect_stdout("\"fate\": \"listed\"");
    outcome
        .expect_stdout("]\n}\nstill: sleep 3333\n")
        .expect_stdout("  sleep 3333\n1 process ended\nstill:\n");
}

/// A descendant of a worker that has cleared its session, its group and its parent is known by its limit.
#[test]
fn daemonized_worker_descendant_is_ended() {
    if should_skip() {
        return;
    }
    let then = format!(r#"{CRASH_SCRIPT}; "$1" gc --json; echo status=$? still: $(ps -o args= -C sleep)"#);
    let line = "setsid --fork setsid --fork sh -c 'cd /; exec sleep 1111'";
    let outcome = continue_when_ready(start_in_container(&then, line));
    outcome
        .expect_stdout("\"evidence\": \"inherited\"")
        .expect_stdout("\"fate\": \"ended\"")
        .expect_stdout("status=0 still:\n");
}

#[test]
fn leftover_ignoring_sigterm_is_killed() {
    if should_skip() {
        return;
    }
    let then = format!("{CRASH_SCRIPT}; \"$1\" gc --json; echo status=$? still: $(ps -o args= -C sleep)");
    let outcome = continue_when_ready(start_in_container(&then, "trap '' TERM; setsid --fork sleep 1111"));
    outcome
        .expect_stdout("\"command\": \"sleep 1111\"")
        .expect_stdout("\"fate\": \"killed\"")
        .expect_stdout("status=0 still:\n");
}

/// A stopped process cannot act on SIGTERM.
#[test]
fn stopped_leftover_is_ended_by_sigterm() {
    if should_skip() {
        return;
    }
    let then = format!("{CRASH_SCRIPT}; \"$1\" gc --json");
    let line = "setsid --fork sleep 1111; until kill -STOP `ps -o pid= -C sleep`; do :; done";
    let outcome = continue_when_ready(start_in_container(&then, line));
    outcome.expect_stdout("\"command\": \"sleep 1111\"").expect_stdout("\"fate\": \"ended\"");
}

/// torchrun is a script: gc knows it by its name alone, and a name protects no process.
#[test]
fn script_named_torchrun_is_not_a_rankrun_launcher() {
    if should_skip() {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("torchrun", "#!/bin/sh\nsleep 3333\n:\n", 0o755);
    let then = format!(
        "RANKRUN_JOB=a53e0cbe-7f01-4d6c-a5b0-4c1f2c9f1d11 setsid {script} & \
         until ps -o args= -C sleep | grep -q 3333; do sleep 0.01; done; \
         \"$1\" gc --dry-run; kill -TERM $guard; wait $guard; echo status=$?"
    );
    let outcome = continue_when_ready(start_in_container(&then, ":"));
    outcome
        .expect_stdout("sleep 3333")
        .expect_stdout("2 processes carry the mark")
        .expect_stdout("status=143\n");
}

#[test]
fn running_job_is_not_touched() {
    if should_skip() {
        return;
    }
    // `setsid --fork` returns before its child is `sleep`.
    let then = "until ps -o args= -C sleep | grep -q 1111; do sleep 0.01; done; \"$1\" gc; \
                echo still: $(ps -o args= -C sleep | sort); kill -TERM $guard; wait $guard; echo status=$?";
    let outcome = continue_when_ready(start_in_container(then, "setsid --fork sleep 1111"));
    outcome
        .expect_stdout("nothing is left of jobs")
        .expect_stdout("still: sleep 1111 sleep 2222\n")
        .expect_stdout("status=143\n");
}

#[test]
fn unknown_gc_option_is_usage_error() {
    if !is_rankrun() {
        return;
    }
    let outcome = Launch::new(Name::Rankrun).args(["gc", "--all"]).run();
    outcome
        .expect_exit_code(2)
        .expect_stderr("`rankrun gc` does not know `--all`")
        .expect_stderr("`--dry-run` only lists it");
}
