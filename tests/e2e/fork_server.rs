//! torchrun as the harness forks it, beside one that was executed.

use harness::{Launch, Name, is_soak};

/// What a process shows of itself but for its memory, times, ids and sockets. The shell that lists its own descriptors has no
/// pipe of its own then, which it might or might not have closed.
const SHOW: &str = "\
show() {
    cat /proc/$1/comm
    readlink /proc/$1/cwd /proc/$1/root
    for open in /proc/$1/fd/*; do readlink $open; done > $TMPDIR/open
    grep -E '^(/|pipe)' $TMPDIR/open | tr -d 0-9 | sort
    grep -E '^(Umask|Groups|ShdPnd|Sig|Cap|No|Seccomp|Cpus|Mems)' /proc/$1/status | grep -v SigQ
    cat /proc/$1/limits /proc/$1/oom_score_adj /proc/$1/cgroup
    ps -o ni=,tty= -p $1
}
show $PPID
ps -o pgid=,sid= -p $PPID
show $$
env | sort
";

fn shown(launch: Launch) -> Vec<String> {
    let launch = launch.cwd("/usr").env("PET_MAX_RESTARTS", "2").stdin("text");
    let outcome = launch.args(["--no-python", "sh", "-c", &SHOW.replace('$', "$$")]).run();
    outcome.expect_exit_code(0);
    // Another one in each run.
    let masked = ["MASTER_PORT=", "TORCHELASTIC_RUN_ID=", "TORCHELASTIC_ERROR_FILE=", "RANKRUN_E2E_MARK="];
    let folders = ["HOME=", "TMPDIR="];
    let lines = outcome.stdout_lines().into_iter();
    lines
        .map(|line| {
            let changing = masked.iter().chain(&folders).find(|name| line.starts_with(**name));
            changing.map_or(line, |name| (*name).to_owned())
        })
        .collect()
}

#[test]
fn forked_torchrun_equals_executed_torchrun() {
    if is_soak() {
        // None is forked.
        return;
    }
    let forked = shown(Launch::standalone(Name::Reference, 1));
    // A wrapper is executed, and executes torchrun.
    let executed = shown(Launch::standalone(Name::Reference, 1).under(["env"]));
    assert!(forked.len() > 80, "{forked:#?}");
    assert_eq!(forked, executed);
}
