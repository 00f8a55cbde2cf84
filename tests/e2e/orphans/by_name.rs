//! A kill by name ends one of the launcher's two processes, and the other one sweeps.

use std::time::Duration;

use harness::{Launch, Name, can_use_namespaces, is_rankrun, is_soak, print_notice};

/// A loop of `$rounds` jobs, each killed by `$kill`. Each has a grandchild in a session of its own. Counts the rounds in
/// which that grandchild lives on for 2 s at least.
const ROUNDS: &str = r#"
    said="$TMPDIR/said" round=0 left=0
    while [ $round -lt $rounds ]; do
        round=$((round + 1)); : > "$said"
        "$@" > "$said" 2>&1 & guard=$!
        until grep -q ready "$said"; do sleep 0.01; done
        $kill
        wait $guard 2> "$TMPDIR/wait"
        tries=0
        while pgrep -x sleep > "$TMPDIR/found" && [ $tries -lt 200 ]; do tries=$((tries + 1)); sleep 0.01; done
        if [ $tries -eq 200 ]; then left=$((left + 1)); pkill -9 -x sleep; fi
    done
    echo "rounds=$round left=$left""#;

/// In a container of its own: the kill would meet every launcher of this machine.
#[track_caller]
fn assert_kill_leaves_nothing(kill: &str) {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let rounds = if is_soak() { 200 } else { 10 };
    let script = format!("rounds={rounds} kill='{kill}'; {ROUNDS}");
    let container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script, "sh"];
    let launch = Launch::standalone(Name::Rankrun, 1).under(container);
    let launch = if is_soak() { launch.limit(Duration::from_secs(600)) } else { launch };
    let outcome = launch.shell("setsid --fork sleep 1111; echo ready; exec sleep 2222").run();
    outcome.expect_exit_code(0).expect_stdout(&format!("rounds={rounds} left=0\n"));
    if is_soak() {
        print_notice(&format!("`{kill}`: {rounds} of {rounds} kills left nothing"));
    }
}

#[test]
fn pkill_rankrun_leaves_no_grandchild() {
    assert_kill_leaves_nothing("pkill -9 rankrun");
}

#[test]
fn killall_rankrun_leaves_no_grandchild() {
    assert_kill_leaves_nothing("killall -9 rankrun");
}

/// A loop of `$rounds` jobs. Guard and agent of each are killed together, a little later than in the job before.
/// `$1` is the launcher's program. An agent is gone when its last thread is (`l`): until then it has the workers' children, which
/// `gc` leaves to it.
const BOTH: &str = r#"
    said="$TMPDIR/said" round=0 left=0 doubtful=0 ended=0
    while [ $round -lt $rounds ]; do
        round=$((round + 1)); : > "$said"
        "$@" > "$said" 2>&1 & guard=$!
        until agent=$(pgrep -x rr-agent -P $guard); do :; done
        sleep 0.00$((round * 7 % 10)); [ $((round % 2)) -eq 0 ] || until grep -q ready "$said"; do :; done
        kill -STOP $guard $agent; kill -9 $agent $guard
        wait $guard 2> "$TMPDIR/wait"
        while ps -o stat= -p $agent | grep -qv '^Z[^l]*$'; do sleep 0.01; done
        "$1" gc --json > "$TMPDIR/collected" || left=$((left + 1))
        if grep -q '"environment"' "$TMPDIR/collected"; then doubtful=$((doubtful + 1)); fi
        ended=$((ended + $(grep -c '"inherited"' "$TMPDIR/collected")))
        if ps -o stat=,args= -C sleep | grep -v ^Z; then left=$((left + 1)); pkill -9 -x sleep; fi
    done
    echo "rounds=$round left=$left doubtful=$doubtful"; [ $ended -gt 0 ] && echo "some ended""#;

/// Only the workers die with both processes; what they have started at any moment, gc ends without a doubt.
#[test]
fn guard_and_agent_killed_together_leave_only_what_gc_ends() {
    if !can_use_namespaces() || !is_rankrun() {
        return;
    }
    let rounds = if is_soak() { 400 } else { 20 };
    let script = format!("mount -t tmpfs tmpfs /dev/shm || exit 97; rounds={rounds}; {BOTH}");
    let spaces = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    let container = spaces.into_iter().chain(["sh", "-c", &script, "sh"]);
    let launch = Launch::standalone(Name::Rankrun, 2).under(container);
    let line = "sleep 1111 & setsid --fork sleep 1112; setsid --fork setsid --fork sleep 1113; echo ready; exec sleep 2222";
    let outcome = launch.limit(Duration::from_secs(600)).shell(line).run();
    outcome
        .expect_exit_code(0)
        .expect_stdout(&format!("rounds={rounds} left=0 doubtful=0\n"))
        .expect_stdout("some ended\n");
    if is_soak() {
        print_notice(&format!("both killed: {rounds} of {rounds} kills left nothing behind `gc`"));
    }
}
