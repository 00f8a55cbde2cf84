//! Dump files as NCCL's watchdog leaves them, on a machine with three GPUs that are not there. NCCL itself needs a GPU.

use std::fs;
use std::time::Duration;

use harness::{Launch, Machine, Name, Scratch, checkout, is_rankrun, schema_problems};
use serde_json::{Value, json};

/// Each rank writes its dump: of a real job, a gigabyte, or a pickle that would call something. Rank 0 then fails.
const WORKER: &str = r#"
import os, shutil, sys, time

rank, stem, mode = int(os.environ["RANK"]), os.environ["TORCH_FR_DUMP_TEMP_FILE"], sys.argv[2]
part = f"{stem}{rank}.part"
if mode == "good":
    shutil.copy(f"{sys.argv[1]}/missing-{rank}.pickle", part)
else:
    with open(part, "wb") as file:
        if rank == 0:
            file.truncate(1 << 30)
        file.write(b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00exittR." if rank == 1 else b"\x80\x02]")
os.rename(part, f"{stem}{rank}")
while not all(os.path.exists(f"{stem}{other}") for other in range(3)):
    time.sleep(0.01)
print("fails", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if rank == 0:
    os._exit(3)
time.sleep(3600)
"#;

fn launch(scratch: &Scratch, mode: &str, options: &[&str]) -> Launch {
    let script = scratch.file("worker.py", WORKER, 0o644);
    let dumps = checkout().join("launcher/core/src/hang/flight_recorder/recorded");
    let logs = scratch.folder("logs", 0o755);
    let launch = Launch::standalone(Name::Rankrun, 3).on(&Machine::gpus(3)).args(options);
    let launch = launch.args(["--log-dir".to_owned(), logs]);
    launch.args([script, dumps.display().to_string(), mode.to_owned()])
}

#[test]
fn failure_report_names_collective_of_dumps() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.at("report.json");
    let outcome = launch(&scratch, "good", &["--report", &path]).run();
    outcome.expect_exit_code(3).expect_stderr(
        "  waits     ranks 0, 1 wait in all_reduce #5; rank 2 has not called it (by the dumps of PyTorch's flight recorders)",
    );
    let report: Value =
        serde_json::from_str(&fs::read_to_string(path).expect("it is written")).expect("it is JSON");
    let schema = fs::read_to_string(checkout().join("docs/report.schema.json")).expect("it is there");
    assert_eq!(schema_problems(&serde_json::from_str(&schema).expect("it is JSON"), &report), [""; 0]);
    assert_eq!(report["failure"]["kind"], "exit");
    let wait = &report["failure"]["hang"]["waits"][0];
    assert_eq!((&wait["waiting"], &wait["missing"]), (&json!([0, 1]), &json!([2])), "{report}");
}

#[test]
fn dumps_that_lie_delay_no_restart_and_no_end() {
    if !is_rankrun() {
        return;
    }
    let scratch = Scratch::new();
    let job = launch(&scratch, "bad", &["--max-restarts", "1"]).start();
    job.wait_for_lines("fails 1", 3);
    job.ends_within(Duration::from_secs(2));
    let outcome = job.wait();
    outcome
        .expect_stderr("flight_recorder_rank_0` is not read: 1073741824 bytes are more than 16777216")
        .expect_stderr("has the opcode GLOBAL at byte 2, which data does not need")
        .expect_absent("  waits ");
}
