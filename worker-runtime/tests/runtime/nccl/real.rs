//! The real NCCL of the PyPI wheel, on a machine without a GPU: `RANKRUN_TEST_PYTHON` or the Python that `tests/run` installs has it.

#![expect(clippy::disallowed_methods, reason = "a test looks for the wheel, and measures")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rankrun_worker::process_group::nccl::{Communicator, Nccl};
use rankrun_worker::{Rank, WorldSize};

use super::place::run_scene;

/// The folder `bin` of the Python that has PyTorch.
fn bin() -> Option<PathBuf> {
    let named = std::env::var_os("RANKRUN_TEST_PYTHON").map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let installed = cache.map(|cache| cache.join("rankrun/venv-torch-2.15.0/bin/python"));
    let python = named.or(installed).filter(|python| python.exists())?;
    Some(python.parent()?.to_owned())
}

pub(super) fn scene() {
    println!("scene:");
    let start = Instant::now();
    let nccl = Nccl::load(None).unwrap();
    println!("loaded in {} ms", start.elapsed().as_millis());
    println!("NCCL {} from {}", nccl.version(), nccl.path().display());
    let start = Instant::now();
    let (one, other) = (nccl.unique_id().unwrap(), nccl.unique_id().unwrap());
    println!("two ids in {} ms", start.elapsed().as_millis());
    assert!(one != other && one.0 != [0; 128]);
    match Communicator::init(&nccl, &one, (Rank(0), WorldSize::ONE), Duration::from_secs(20)) {
        Ok(communicator) => println!("made {communicator:?}"),
        Err(error) => println!("{error}\n{}", error.hint().unwrap_or_default()),
    }
}

#[test]
fn real_nccl_gives_ids_and_reports_missing_gpu() {
    let Some(bin) = bin() else {
        assert!(std::env::var_os("CI").is_none(), "no Python with PyTorch: `tests/run` installs one");
        eprintln!("skipped: no Python with PyTorch, whose NCCL this test takes");
        return;
    };
    let empty = |name: &'static str| (name, OsString::new());
    let mut vars: Vec<_> =
        ["RANKRUN_NCCL", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"].map(empty).into();
    vars.push(("PATH", bin.into_os_string()));
    let output = run_scene("real", vars);
    let lines: Vec<_> = output.lines().collect();
    assert!(
        lines[1].starts_with("NCCL 2.") && lines[1].ends_with("nvidia/nccl/lib/libnccl.so.2"),
        "{output}"
    );
    let took = lines[2].strip_prefix("two ids in ").and_then(|rest| rest.strip_suffix(" ms"));
    // It makes an id without a question to the network, which would wait for a time-out of seconds.
    assert!(took.unwrap().parse::<u32>().unwrap() < 2_000, "{output}");
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let error = "`ncclCommInitRankConfig` failed: a CUDA call failed (ncclUnhandledCudaError, 1): ";
    assert!(
        lines[3].starts_with(error) && lines[3].contains("CUDA driver version is insufficient"),
        "{output}"
    );
    assert_eq!(lines[4], "check with `nvidia-smi` that the GPU and its driver support this NCCL");
}
