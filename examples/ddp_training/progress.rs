//! How far the training is: a bar on a terminal, otherwise lines.

#![expect(clippy::disallowed_methods, reason = "a shell: it tells how fast the training is")]

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rankrun_examples::console;

/// Tells of steps.
pub(crate) struct Progress {
    begun: Instant,
    /// Steps that were taken before.
    first: u64,
    restarts: u32,
    /// Only on a terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of a training that begins after step `first`.
    pub(crate) fn new(first: u64, steps: u64, restarts: u32) -> Self {
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        let bar = is_terminal.then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            // First the style: each other call draws the bar.
            let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(first);
            bar
        });
        Self { begun: Instant::now(), first, restarts, bar }
    }

    /// A step was taken. With an accuracy there is a line of it, too.
    pub(crate) fn step(&self, step: u64, loss: f64, accuracy: Option<f64>) -> io::Result<()> {
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

    /// No step follows.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Steps in a second; of no time, none are known.
fn rate(steps: u64, seconds: f64) -> String {
    let rate = if seconds > 0.0 { steps as f64 / seconds } else { 0.0 };
    if rate < 100.0 { format!("{rate:.1} steps/s") } else { format!("{rate:.0} steps/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_as_many_digits_as_one_reads() {
        assert_eq!(
            [rate(5, 2.0), rate(5000, 2.0), rate(0, 0.0)],
            ["2.5 steps/s", "2500 steps/s", "0.0 steps/s"]
        );
    }
}
