//! The same command under both launchers, and what they must agree on.

use std::fmt::Debug;
use std::panic::resume_unwind;
use std::thread;

use harness::{Name, Outcome};

/// What ours did under the name torchrun, and what PyTorch's own did.
pub(super) struct Pair {
    /// Ours.
    pub(super) rankrun: Outcome,
    /// PyTorch's.
    pub(super) torchrun: Outcome,
}

impl Pair {
    /// Runs it for both at the same time.
    pub(super) fn run_both(run: impl Fn(Name) -> Outcome + Sync) -> Self {
        thread::scope(|scope| {
            let rankrun = scope.spawn(|| run(Name::Torchrun));
            let torchrun = scope.spawn(|| run(Name::Reference));
            let [rankrun, torchrun] =
                [rankrun.join(), torchrun.join()].map(|end| end.unwrap_or_else(|why| resume_unwind(why)));
            Self { rankrun, torchrun }
        })
    }

    /// What both show of themselves; fails unless it is the same.
    #[track_caller]
    pub(super) fn expect_equal<T: PartialEq + Debug>(&self, extract: impl Fn(&Outcome) -> T) -> T {
        let (rankrun, torchrun) = (extract(&self.rankrun), extract(&self.torchrun));
        assert_eq!(
            rankrun, torchrun,
            "ours differs from torchrun\nours: {}\ntorchrun: {}",
            self.rankrun, self.torchrun
        );
        torchrun
    }
}

/// What both launchers do, which must be the same.
#[track_caller]
pub(super) fn run_both_expect_equal<T: PartialEq + Debug + Send>(run: impl Fn(Name) -> T + Sync) -> T {
    let [rankrun, torchrun] = thread::scope(|scope| {
        let both = [Name::Torchrun, Name::Reference].map(|name| {
            let run = &run;
            scope.spawn(move || run(name))
        });
        both.map(|end| end.join().unwrap_or_else(|why| resume_unwind(why)))
    });
    assert_eq!(rankrun, torchrun, "ours differs from torchrun");
    torchrun
}

/// The exit status, and the lines of standard output in alphabetical order, since ranks speak at the same time.
pub(super) fn status_and_out(outcome: &Outcome) -> (Option<i32>, Vec<String>) {
    let mut lines = outcome.stdout_lines();
    lines.sort();
    (outcome.status.code(), lines)
}

/// The exit status, standard output, and the last line of standard error.
pub(super) fn status_and_last_error(outcome: &Outcome) -> (Option<i32>, String, String) {
    let last = outcome.stderr().trim_end().lines().last().unwrap_or_default().to_owned();
    (outcome.status.code(), outcome.stdout(), last)
}
