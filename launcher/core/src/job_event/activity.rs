//! What a running worker does, as the table of ranks shows it.

use std::time::Duration;

/// The run state of a process and its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// One is on a CPU, or waits for one.
    Running,
    /// All processes sleep, and can be interrupted.
    Waiting,
    /// One process is in uninterruptible sleep in the kernel.
    Uninterruptible,
    /// One is stopped by a signal or a debugger.
    Stopped,
    /// The process has ended, and its parent has not reaped it.
    Ended,
}

/// The last line of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastOutput {
    /// The worker's last line of output.
    Line {
        /// Without line end and control characters.
        text: String,
        /// The time since its last bytes.
        age: Duration,
    },
    /// The worker has written nothing so far.
    Empty,
    /// The launcher does not see its output.
    Unavailable,
}

impl LastOutput {
    /// Of two streams of one worker.
    #[must_use]
    pub fn newer(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Line { age, .. }, Self::Line { age: age_of_other, .. }) if age_of_other < age => other,
            (Self::Line { .. }, _) | (_, Self::Unavailable) => self,
            (Self::Empty | Self::Unavailable, _) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, seconds: u64) -> LastOutput {
        LastOutput::Line { text: text.to_owned(), age: Duration::from_secs(seconds) }
    }

    #[test]
    fn last_output_is_the_newer_line_of_both_streams() {
        let (nothing, not_seen) = (LastOutput::Empty, LastOutput::Unavailable);
        for (one, other, newer) in [
            (line("a", 5), line("b", 3), line("b", 3)),
            (line("a", 3), line("b", 5), line("a", 3)),
            (line("a", 3), nothing.clone(), line("a", 3)),
            (nothing.clone(), line("b", 5), line("b", 5)),
            (not_seen.clone(), line("b", 5), line("b", 5)),
            (not_seen.clone(), nothing.clone(), nothing.clone()),
            (nothing.clone(), not_seen.clone(), nothing),
            (not_seen.clone(), not_seen.clone(), not_seen),
        ] {
            assert_eq!(one.newer(other), newer);
        }
    }
}
