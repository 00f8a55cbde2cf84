//! Ranks as processes, with the fake.
use rankrun_worker::{GroupError, WorkerContext};
pub(super) fn scene(_: &WorkerContext, _: &str) -> Result<(), GroupError> {
    Ok(())
}
