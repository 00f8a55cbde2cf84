//! NCCL without a GPU: a fake library, and the real one of the PyPI wheel where there is no device.
//!
//! The fake reads its orders from the environment, and NCCL's library and the driver's are found once per process: every scene
//! is played by a process of its own.
#![expect(unsafe_code, reason = "device memory is raw memory, which in these tests is the process's own")]
#![expect(clippy::print_stdout, reason = "a scene tells its test what happened")]

mod ddp;
mod endings;
mod loader;
mod machine;
mod place;
mod ranks;
mod real;
mod scenes;

use std::process::ExitCode;

/// The main program of a scene.
pub(crate) fn main(role: &str) -> ExitCode {
    let name = role.strip_prefix("nccl: ").unwrap();
    match name {
        "load" => scenes::load(),
        "streams" => scenes::streams(),
        "cuda" => scenes::cuda(),
        "world of one" => scenes::world_of_one(),
        "one call" => scenes::one_call(),
        "only join" => scenes::only_join(),
        "real" => real::scene(),
        "wrong memory" => scenes::wrong_memory(),
        _ => return rankrun_worker::run(|context| ranks::scene(context, name)),
    }
    ExitCode::SUCCESS
}
