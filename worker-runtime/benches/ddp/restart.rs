//! From the failure of a rank to the first step after the restart: ours under
//! rankrun, PyTorch's under torchrun, in turns.
//!
//! Each is tried [`ROUNDS`] times; medians are over successful restarts, with their number beside. torchrun
//! 2.15 reuses the store of the previous generation, with gloo addresses that are gone, so that some restarts
//! fail or hang. It is therefore measured a second time with the variable that has rank 0 make a new store,
//! and the ratio is to that.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::peers;

/// Says to this program that a launcher has started it as a rank that is to fail.
pub(crate) const FAIL: &str = "RANKRUN_BENCH_FAIL";

const ROUNDS: usize = 10;

/// Longer than a whole job takes, in seconds; torchrun's workers may wait longer for a peer that is gone.
const PATIENCE: &str = "30";

/// Has PyTorch's ranks not meet in the store of torchrun, which outlives them.
const NEW_STORE: (&str, &str) = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");

/// A launcher with a program that fails once.
struct Contender {
    name: &'static str,
    launcher: PathBuf,
    program: Vec<OsString>,
    variables: Vec<(&'static str, &'static str)>,
    /// How long the restarts took that worked.
    took: Vec<Duration>,
}

/// Prints what all have taken, or why there is nothing to measure.
pub(crate) fn compare(world: u32, python: Option<&OsStr>) {
    let Some(rankrun) = launcher() else {
        println!(
            "failure to first step: SKIPPED: no `rankrun` beside this bench; `cargo build --release` makes it"
        );
        return;
    };
    let mut all = vec![ours(rankrun)];
    all.extend(python.into_iter().flat_map(|python| theirs(Path::new(python))));
    for _ in 0..ROUNDS {
        for contender in &mut all {
            let time = contender.restart(world);
            contender.took.extend(time);
        }
    }
    println!("\nfailure to first step, {ROUNDS} restarts of each");
    for contender in &mut all {
        println!("{}", contender.row());
    }
    if let [our_figures, .., torchrun_figures] = &mut all[..]
        && let (Some(our_figures), Some(median)) = (our_figures.median(), torchrun_figures.median())
    {
        println!(
            "{} / rankrun: {:.0}",
            torchrun_figures.name,
            median.as_secs_f64() / our_figures.as_secs_f64()
        );
    }
}

fn ours(launcher: PathBuf) -> Contender {
    let program = vec![env::current_exe().expect("this program has a path").into_os_string()];
    Contender { name: "rankrun", launcher, program, variables: Vec::new(), took: Vec::new() }
}

fn theirs(python: &Path) -> [Contender; 2] {
    let script = peers::bench_file("ddp/torch_ddp.py");
    [("torchrun", vec![]), ("torchrun, new store", vec![NEW_STORE])].map(|(name, variables)| Contender {
        name,
        launcher: python.with_file_name("torchrun"),
        program: vec![script.clone().into_os_string(), "restart".into()],
        variables,
        took: Vec::new(),
    })
}

impl Contender {
    /// `None` where the job fails or takes too long before that step. How it ends after that is not a matter of the restart: threads of
    /// gloo may abort a process of PyTorch on its way out.
    fn restart(&self, world: u32) -> Option<Duration> {
        let output = Command::new("timeout")
            .arg(PATIENCE)
            .arg(&self.launcher)
            .args(["--standalone", "--nproc-per-node", &world.to_string(), "--max-restarts", "1"])
            .args(&self.program)
            .envs(self.variables.iter().copied())
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
        at("step ")?.checked_sub(at("failed ")?)
    }

    fn median(&mut self) -> Option<Duration> {
        peers::median(&mut self.took)
    }

    fn row(&mut self) -> String {
        let median = peers::column(self.median(), |median| format!("{median:.1?}"));
        format!("{:<20}{median:>10}   {} of {ROUNDS} worked", self.name, self.took.len())
    }
}

/// The launcher of the same build.
fn launcher() -> Option<PathBuf> {
    let deps = env::current_exe().ok()?;
    Some(deps.parent()?.parent()?.join("rankrun")).filter(|path| path.exists())
}
