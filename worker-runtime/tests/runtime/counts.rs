//! How much a run does: `RANKRUN_SOAK=1` asks for the large counts.

#[expect(clippy::disallowed_methods, reason = "a test is told here how much to do")]
pub(crate) fn is_soak() -> bool {
    std::env::var_os("RANKRUN_SOAK").is_some_and(|value| value == "1")
}

/// One of two counts: of the usual run, or of a soak.
pub(crate) fn times(usually: usize, soak: usize) -> usize {
    if is_soak() { soak } else { usually }
}
