//! Progress of the training: a bar on a terminal, otherwise lines.

#![expect(clippy::disallowed_methods, reason = "a shell: it tells how fast the training is")]

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankrun_examples::console::{self, OutputError};

/// Prints steps.
pub(crate) struct Progress {
    begun: Instant,
    /// Steps before this run.
    first: u64,
    restarts: u32,
    /// The bar, on a terminal only.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Progress of a training that begins after step `first`.
    pub(crate) fn new(first: u64, steps: u64, restarts: u32) -> Self {
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        let bar = is_terminal.then(|| {
            let style = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}");
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            // The style comes first: every other call draws the bar.
            let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(first);
            bar
        });
        Self { begun: Instant::now(), first, restarts, bar }
    }

    /// Notes a step; prints a line if there is an accuracy.
    pub(crate) fn step(&self, step: u64, loss: f64, accuracy: Option<f64>) -> Result<(), OutputError> {
        let rate = rate(step - self.first, self.begun.elapsed().as_secs_f64());
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            bar.set_message(format!("{rate}, loss {loss:.4}, restarts {}", self.restarts));
        }
        let Some(accuracy) = accuracy else { return Ok(()) };
        let line = format!("step {step}: loss {loss:.6}, accuracy {accuracy:.4}, {rate}");
        match &self.bar {
            Some(bar) => bar.suspend(|| console::line(&line)),
            None => console::line(&line),
        }
    }

    /// Notes that no step follows.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Steps per second; empty without time.
fn rate(steps: u64, seconds: f64) -> String {
    let rate = if seconds > 0.0 { steps as f64 / seconds } else { 0.0 };
    if rate < 100.0 { format!("{rate:.1} steps/s") } else { format!("{rate:.0} steps/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_below_100_has_one_decimal() {
        assert_eq!(
            [rate(5, 2.0), rate(5000, 2.0), rate(0, 0.0)],
            ["2.5 steps/s", "2500 steps/s", "0.0 steps/s"]
        );
    }
}
