//! A kill by name ends one of the launcher's two processes, and the other one sweeps.

use harness::{Launch, Name, namespaces, only_ours, soak, tell};

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
fn nothing_is_left_by(kill: &str) {
    if !namespaces() || !only_ours() {
        return;
    }
    let rounds = if soak() { 200 } else { 10 };
    let script = format!("rounds={rounds} kill='{kill}'; {ROUNDS}");
    let container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script, "sh"];
    let launch = Launch::standalone(Name::Rankrun, 1).under(container);
    let outcome = launch.shell("setsid --fork sleep 1111; echo ready; exec sleep 2222").run();
    outcome.exits(0).says(&format!("rounds={rounds} left=0\n"));
    if soak() {
        tell(&format!("`{kill}`: {rounds} of {rounds} kills left nothing"));
    }
}

#[test]
fn pkill_of_our_name_leaves_no_grandchild() {
    nothing_is_left_by("pkill -9 rankrun");
}

#[test]
fn killall_of_our_name_leaves_no_grandchild() {
    nothing_is_left_by("killall -9 rankrun");
}
