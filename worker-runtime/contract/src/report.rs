//! The worker's error file.
