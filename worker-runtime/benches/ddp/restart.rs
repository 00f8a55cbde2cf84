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

/// How often a restart is tried until it works: torchrun's workers meet in the store of those before, and may find what is gone.
const TRIES: usize = 4;

/// Prints the medians of both, or why there are none.
pub(crate) fn compare(world: u32, python: Option<&OsString>) {
    let Some(rankrun) = launcher() else {
        println!(
            "failure to first step: SKIPPED: no `rankrun` beside this bench; `cargo build --release` makes it"
        );
        return;
    };
    let own = [env::current_exe().expect("this program has a path").into_os_string()];
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ddp/torch_ddp.py");
    let theirs = [script.into_os_string(), "restart".into()];
    let (mut ours, mut torch) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        ours.take(|| time(&rankrun, world, &own));
        if let Some(python) = python {
            let torchrun = Path::new(python).with_file_name("torchrun");
            torch.take(|| time(&torchrun, world, &theirs));
        }
    }
    println!("failure to first step: rankrun {}, torchrun {}", ours.show(), torch.show());
    if let (Some(ours), Some(torch)) = (ours.median(), torch.median()) {
        println!("ratio of medians: {:.0}", torch.as_secs_f64() / ours.as_secs_f64());
    }
}

/// How long restarts took that worked, and how often one was tried.
#[derive(Default)]
struct Times {
    took: Vec<Duration>,
    tries: usize,
}

impl Times {
    fn take(&mut self, mut time: impl FnMut() -> Option<Duration>) {
        for _ in 0..TRIES {
            self.tries += 1;
            if let Some(time) = time() {
                self.took.push(time);
                return;
            }
        }
    }

    fn median(&mut self) -> Option<Duration> {
        self.took.sort();
        self.took.get(self.took.len() / 2).copied()
    }

    fn show(&mut self) -> String {
        let median = self.median().map_or("-".to_owned(), |median| format!("{median:.1?}"));
        format!("{median} ({} of {} restarts worked)", self.took.len(), self.tries)
    }
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
