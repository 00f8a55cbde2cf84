//! Whether a rule about restarts can still match behind the rules before it. Pure.
//!
//! What can happen is a node, a rank and an end: a code, a signal, or an end that was not the worker's own, which only
//! rules without a code and a signal are about; some ends have a cause that a rule can name. Ranks and nodes that no rule names are all alike.

use std::collections::BTreeSet;

use rankrun_core::posix::Signal;
use rankrun_core::spec::restart::{Conditions, FailureCause, RestartRule};

/// Of codes, then of signals, then of ends that are not the worker's own, and of causes.
const ENDS: usize = CAUSES + FailureCause::KEYWORDS.len();
const SIGNALS: usize = 256;
const CAUSES: usize = SIGNALS + 65 + 1;

/// The rules before this one that together fit all that it fits; nothing where it is left something. Where other nodes
/// have workers too, how many `ranks` there are is not known.
pub(super) fn covered_by<'rules>(
    rule: &RestartRule,
    before: &'rules [RestartRule],
    ranks: Option<u32>,
    nodes: u32,
) -> Option<Vec<&'rules RestartRule>> {
    let all = || before.iter().chain([rule]);
    let ranks = with_one_more(all().filter_map(|rule| rule.when.rank).map(|rank| rank.0), ranks);
    let nodes = with_one_more(all().filter_map(|rule| rule.when.node).map(|node| node.0), Some(nodes));
    let mut takers = vec![false; before.len()];
    for place in nodes.iter().flat_map(|node| ranks.iter().map(|rank| (*node, *rank))) {
        for end in (1..ENDS).filter(|end| fits(&rule.when, place, *end)) {
            let taker = before.iter().position(|earlier| fits(&earlier.when, place, end))?;
            takers[taker] = true;
        }
    }
    Some(before.iter().zip(takers).filter(|(_, takes)| *takes).map(|(earlier, _)| earlier).collect())
}

/// The named ones, and one that stands for all others, if there are any below `count`.
fn with_one_more(named: impl Iterator<Item = u32>, count: Option<u32>) -> BTreeSet<u32> {
    let named: BTreeSet<u32> = named.collect();
    let other = (0..count.unwrap_or(u32::MAX)).find(|number| !named.contains(number));
    named.into_iter().chain(other).collect()
}

fn fits(when: &Conditions, (node, rank): (u32, u32), end: usize) -> bool {
    let code = u8::try_from(end).ok();
    when.rank.is_none_or(|named| named.0 == rank)
        && when.node.is_none_or(|named| named.0 == node)
        && when.exit.is_none_or(|codes| code.is_some_and(|code| codes.contains(code)))
        && when.signal.is_none_or(|signal| SIGNALS + signal as usize == signal_of(end))
        && when.cause.is_none_or(|cause| cause_of(end) == Some(cause))
}

fn cause_of(end: usize) -> Option<FailureCause> {
    let (_, cause) = FailureCause::KEYWORDS.get(end.checked_sub(CAUSES)?)?;
    Some(*cause)
}

/// The kernel kills by SIGKILL for lack of memory.
fn signal_of(end: usize) -> usize {
    if cause_of(end) == Some(FailureCause::Oom) { SIGNALS + Signal::SIGKILL as usize } else { end }
}
