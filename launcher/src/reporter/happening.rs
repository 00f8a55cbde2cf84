//! What people are told while the job runs, one line each. Pure.

use rankrun_contract::rank::{LocalRank, RestartCount};

use crate::agent::message::{Happening, Impatience};
use crate::process::signal_name;

/// The line for one happening; `max_restarts` is the job's budget.
#[must_use]
pub fn render(happening: &Happening, max_restarts: RestartCount) -> String {
    match happening {
        Happening::WorkerFailed { end, others: 0 } => {
            format!("local rank {} (pid {}) failed: {}", end.local_rank, end.pid, end.exit)
        }
        Happening::WorkerFailed { end, others } => format!(
            "local rank {} (pid {}) failed: {}; stopping the {others} other{}",
            end.local_rank,
            end.pid,
            end.exit,
            plural(*others)
        ),
        Happening::Stopping { signal, live } => {
            format!("{signal}: stopping {live} worker{}; the second signal kills", plural(*live))
        }
        Happening::Killing { local_ranks, because } => {
            let because = match because {
                Impatience::GraceOver => "still alive after the grace",
                Impatience::SecondSignal => "told a second time",
            };
            format!("killing {}: {because}", ranks(local_ranks))
        }
        Happening::CannotEnd { local_ranks } => format!(
            "{} survived {} for 5 s, probably stuck in the kernel: giving up",
            ranks(local_ranks),
            signal_name(libc::SIGKILL)
        ),
        Happening::Restarting { used } => {
            format!("starting all workers again (restart {used} of {max_restarts})")
        }
    }
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn ranks(local_ranks: &[LocalRank]) -> String {
    let list: Vec<String> = local_ranks.iter().map(ToString::to_string).collect();
    format!("local rank{} {}", plural(list.len()), list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn numbers_are_grammatical() {
        let render = |happening| super::render(&happening, RestartCount(3));
        assert_eq!(
            render(Happening::Stopping { signal: Signal::SIGINT, live: 1 }),
            "SIGINT: stopping 1 worker; the second signal kills"
        );
        assert_eq!(
            render(Happening::Killing {
                local_ranks: vec![LocalRank(0), LocalRank(2)],
                because: Impatience::GraceOver
            }),
            "killing local ranks 0, 2: still alive after the grace"
        );
        assert_eq!(
            render(Happening::Restarting { used: RestartCount(1) }),
            "starting all workers again (restart 1 of 3)"
        );
    }
}
