//! From the failure of a rank to the first step of its next life: ours under rankrun, PyTorch's under torchrun.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Says to this program that a launcher has started it as a rank that is to fail.
pub(crate) const FAIL: &str = "RANKRUN_BENCH_FAIL";

const ROUNDS: usize = 5;

/// Longer than a restart takes; torchrun's workers may wait longer for a peer that is gone.
const PATIENCE: &str = "60";

/// Prints the medians of both, or why there are none.
pub(crate) fn compare(world: u32, python: Option<&OsString>) {
    let Some(rankrun) = launcher() else {
        println!(
            "failure to first step: SKIPPED: no `rankrun` beside this bench; `cargo build --release` makes it"
        );
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ddp/torch_ddp.py");
    let (mut ours, mut torch) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let own = [env::current_exe().expect("this program has a path").into_os_string()];
        ours.push(time(&rankrun, world, &own).expect("rankrun starts its workers again"));
        if let Some(python) = python {
            let torchrun = Path::new(python).with_file_name("torchrun");
            torch.extend(time(&torchrun, world, &[script.clone().into_os_string(), "restart".into()]));
        }
    }
    ours.sort();
    torch.sort();
    let ours = ours[ROUNDS / 2];
    let Some(median) = torch.get(torch.len() / 2) else {
        println!("failure to first step: rankrun {ours:.1?}");
        return;
    };
    let ratio = median.as_secs_f64() / ours.as_secs_f64();
    println!(
        "failure to first step: rankrun {ours:.1?} ({ROUNDS} of {ROUNDS} restarts), torchrun {median:.1?} ({} of {ROUNDS}), ratio {ratio:.0}",
        torch.len()
    );
}

/// The launcher of the same build.
fn launcher() -> Option<PathBuf> {
    let deps = env::current_exe().ok()?;
    Some(deps.parent()?.parent()?.join("rankrun")).filter(|path| path.exists())
}

/// `None` where the job fails or takes too long.
fn time(launcher: &Path, world: u32, program: &[OsString]) -> Option<Duration> {
    let output = Command::new("timeout")
        .arg(PATIENCE)
        .arg(launcher)
        .args(["--standalone", "--nproc-per-node", &world.to_string(), "--max-restarts", "1"])
        .args(program)
        .env(FAIL, "1")
        .env("OMP_NUM_THREADS", "1")
        .stderr(Stdio::null())
        .output()
        .expect("`timeout` starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let at = |what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(what))?;
        Some(Duration::from_nanos(line.trim().parse().ok()?))
    };
    at("step ")?.checked_sub(at("failed ")?).filter(|_| output.status.success())
}
