//! Whether a rule about restarts is left anything by those before it. Pure.
//!
//! What can happen is a rank and an end: a code, a signal, or an end that was not the worker's own, which only rules
//! without a code and a signal are about. Ranks that no rule names are all alike.

use std::collections::BTreeSet;

use rankrun_contract::rank::LocalWorldSize;

use crate::spec::restart::{Conditions, RestartRule};

/// Of codes, then of signals, then of ends that are not the worker's own.
const ENDS: usize = SIGNALS + 65 + 1;
const SIGNALS: usize = 256;

/// The rules before this one that together fit all that it fits; nothing where it is left something.
pub(super) fn covered_by<'rules>(
    rule: &RestartRule,
    before: &'rules [RestartRule],
    workers: LocalWorldSize,
) -> Option<Vec<&'rules RestartRule>> {
    let named: BTreeSet<u32> =
        before.iter().chain([rule]).filter_map(|rule| rule.when.rank).map(|rank| rank.0).collect();
    let others = (0..workers.get()).find(|rank| !named.contains(rank));
    let mut takers = vec![false; before.len()];
    for rank in named.into_iter().chain(others) {
        for end in (1..ENDS).filter(|end| fits(&rule.when, rank, *end)) {
            let taker = before.iter().position(|earlier| fits(&earlier.when, rank, end))?;
            takers[taker] = true;
        }
    }
    Some(before.iter().zip(takers).filter(|(_, takes)| *takes).map(|(earlier, _)| earlier).collect())
}

fn fits(when: &Conditions, rank: u32, end: usize) -> bool {
    let code = u8::try_from(end).ok();
    when.rank.is_none_or(|named| named.0 == rank)
        && when.exit.is_none_or(|codes| code.is_some_and(|code| codes.contains(code)))
        && when.signal.is_none_or(|signal| SIGNALS + signal as usize == end)
}
