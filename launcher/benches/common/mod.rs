//! Shared by the bench programs: the launchers to measure, and the statistics.

use std::env;
use std::path::PathBuf;

/// Our own launcher, as optimised as the bench program.
pub(super) const RANKRUN: &str = env!("CARGO_BIN_EXE_rankrun");

/// torchrun 2.15: `$RANKRUN_BENCH_TORCHRUN`, else the one in the tests' virtual environment.
pub(super) fn torchrun() -> Option<PathBuf> {
    let cache = || {
        env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
    };
    env::var_os("RANKRUN_BENCH_TORCHRUN")
        .map(PathBuf::from)
        .or_else(|| Some(cache()?.join("rankrun/venv-torch-2.15.0/bin/torchrun")))
        .filter(|path| path.exists())
}

/// The one in the middle; of an even number the upper one.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
