//! Workers that answer as NCCL's RAS subsystem does, on a machine with two GPUs that are not there. NCCL itself needs a GPU.

use std::time::Duration;

use harness::{Launch, Machine, Name, Scratch, is_rankrun};
use nix::sys::signal::Signal;

/// The arguments: a folder for the pids, and what the server answers. With `moves` the counts grow for 4 s, else they stand still.
const WORKER: &str = r#"
import json, os, socket, sys, threading, time

rank, folder, mode = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
host, port = os.environ["NCCL_RAS_ADDR"].split(":")
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((host, int(port)))
server.listen()
with open(f"{folder}/{rank}.part", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")

def status():
    base = int(time.monotonic() * 10) if mode == "moves" else 9
    ahead = 0 if mode == "equal" else 1
    counts = [{"AllReduce": base + ahead}, {"AllReduce": base}]
    if mode == "desync":
        counts[1]["Broadcast"] = 1
    ranks = [
        {"rank": at, "host": "127.0.0.1", "pid": int(open(f"{folder}/{at}").read()), "collective_counts": counts[at]}
        for at in range(2)
    ]
    return json.dumps({"communicators": [{"hash": "0x1", "size": 2, "ranks": ranks, "missing_ranks": []}]})

def answer(client):
    if mode == "garbage":
        client.sendall(b"\x00HTTP/1.1 400\r\n")
        return
    lines = client.makefile("rw")
    for line in lines:
        if mode == "silent":
            continue
        command = line.strip().upper()
        if command.endswith("STATUS"):
            lines.write(status())
            lines.flush()
            return
        print("SERVER PROTOCOL 2" if command.startswith("CLIENT") else "OK", file=lines, flush=True)

def serve():
    while True:
        client, _ = server.accept()
        try:
            answer(client)
        except OSError:
            pass
        client.close()

threading.Thread(target=serve, daemon=True).start()
print("serves", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if mode in ("moves", "equal"):
    time.sleep(4)
    os._exit(0)
time.sleep(3600)
"#;

fn launch(scratch: &Scratch, mode: &str) -> Launch {
    let script = scratch.file("worker.py", WORKER, 0o644);
    let options = ["--hang-timeout", "1", "--first-step-timeout", "1"];
    let launch = Launch::standalone(Name::Rankrun, 2).on(&Machine::gpus(2)).args(options);
    launch.args([script, scratch.folder("pids", 0o777), mode.to_owned()])
}

#[test]
fn rank_with_fewer_calls_than_the_others_is_found() {
    if !is_rankrun() {
        return;
    }
    for (mode, sentence) in [
        ("stands", "rank 0 waits in all_reduce #10 (worker.py:55); rank 1 has made no progress for "),
        (
            "desync",
            "rank 0 calls all_reduce (worker.py:55), rank 1 calls broadcast (worker.py:55) as #10; no progress for ",
        ),
    ] {
        let scratch = Scratch::new();
        let outcome = launch(&scratch, mode).run();
        outcome.expect_exit_code(1).expect_stderr(sentence);
    }
}

#[test]
fn counts_that_move_or_agree_are_no_hang() {
    if !is_rankrun() {
        return;
    }
    for mode in ["moves", "equal"] {
        let scratch = Scratch::new();
        launch(&scratch, mode).run().expect_exit_code(0).expect_absent("rank 0 waits in");
    }
}

#[test]
fn server_that_lies_or_never_answers_delays_no_stop() {
    if !is_rankrun() {
        return;
    }
    for mode in ["garbage", "silent"] {
        let scratch = Scratch::new();
        let job = launch(&scratch, mode).start();
        job.wait_for_lines("serves 0", 2);
        job.wait_for_line("finds nothing to watch");
        job.signal(Signal::SIGTERM);
        job.ends_within(Duration::from_secs(2));
        job.wait().expect_absent("rank 0 waits in");
    }
}

#[test]
fn address_of_the_user_and_switch_are_kept() {
    if !is_rankrun() {
        return;
    }
    let show = |name: &str, value: &str, options: &[&str]| {
        let launch = Launch::standalone(Name::Rankrun, 1).on(&Machine::gpus(1)).args(options);
        let launch = if name.is_empty() { launch } else { launch.env(name, value) };
        let code = "import os; print('address', os.environ.get('NCCL_RAS_ADDR'))";
        let scratch = Scratch::new();
        let script = scratch.file("show.py", code, 0o644);
        let outcome = launch.args([script]).run();
        outcome.expect_exit_code(0);
        outcome.lines_with("address ").concat()
    };
    assert!(show("", "", &[]).contains("address 127.0.0.1:"));
    assert!(show("NCCL_RAS_ADDR", "localhost:7", &[]).contains("address localhost:7"));
    assert!(show("NCCL_RAS_ENABLE", "0", &[]).contains("address None"));
    assert!(show("", "", &["--no-hooks"]).contains("address None"));
    assert!(show("", "", &["--device-type", "cpu"]).contains("address None"));
}
