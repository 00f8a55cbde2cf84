//! The worker runtime of rankrun.
