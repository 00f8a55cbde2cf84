//! How a round forms: which nodes enter, how long the last call lasts, and when the round is complete. Changes only a
//! draft of the state; the caller writes it.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::StateSnapshot;
use crate::rendezvous::ranks::assign;
use crate::rendezvous::state::{Node, RendezvousState, Timestamp};

impl StateSnapshot<'_> {
    /// Enters nodes into the incomplete round, and completes it if it is due (contract 5.4, rows 11 and 12, for all
    /// waiting nodes).
    pub(super) fn advance_forming_round(&self, draft: &mut RendezvousState) {
        let mut with_all = draft.clone();
        self.enter_waiting_nodes(&mut with_all, |_| true);
        self.complete_if_due(&mut with_all);
        if !with_all.complete {
            // A torchrun spare gets a new deadline only if it enters by itself. With an old deadline it would end the
            // last call too early.
            self.enter_waiting_nodes(draft, |spare| self.is_ours(spare));
            self.complete_if_due(draft);
        } else {
            *draft = with_all;
        }
    }

    fn complete_if_due(&self, draft: &mut RendezvousState) {
        if draft.participants.len() < self.min() {
            return;
        }
        let is_old = draft.deadline.is_some();
        if !is_old {
            draft.deadline = Some(self.new_deadline());
        }
        let is_full = draft.participants.len() == self.max();
        let is_over = || is_old && self.is_last_call_over();
        if draft.participants.len() <= self.max()
            && (is_full || self.are_all_members_present(draft) || is_over())
        {
            self.complete(draft);
        }
    }

    /// Deadline of a last call that begins now. It differs from the previous deadline, which may have passed: a new
    /// deadline is how a node sees that a last call is a new one. Two nodes may reckon the same time from the same
    /// heartbeat, so each adds up to a millisecond of its own, which is the same for one pair of nodes in a thousand.
    fn new_deadline(&self) -> Timestamp {
        let last_call = i64::try_from(self.local_node.times.last_call.as_micros()).unwrap_or(i64::MAX);
        let mut hasher = DefaultHasher::new();
        self.local_node.node.hash(&mut hasher);
        let own = i64::try_from(hasher.finish() % 1_000).unwrap_or_default();
        let deadline = Timestamp(self.torch_time().0.saturating_add(last_call).saturating_add(own));
        let same = self.view.state.deadline == Some(deadline);
        Timestamp(deadline.0.saturating_add(i64::from(same)))
    }

    /// Enters the wait list, the spares that `may_enter`, and this node, while there are free places. Members of the
    /// previous round enter first.
    fn enter_waiting_nodes(&self, draft: &mut RendezvousState, may_enter: impl Fn(&Node) -> bool) {
        let node = &self.local_node.node;
        let rank_before = |node: &Node| {
            let before = self.view.ranks.and_then(|ranks| ranks.of.get(node));
            before.copied().unwrap_or(i64::MAX)
        };
        let waiting = draft.wait_list.iter().map(|node| (rank_before(node), 0, node.clone()));
        let spares = draft.redundancy_list.iter().filter(|node| may_enter(node));
        let spares = spares.map(|node| (i64::MAX, 1, node.clone()));
        let mut others: Vec<_> = waiting.chain(spares).collect();
        let is_new = !draft.participants.contains(node) && !others.iter().any(|(.., other)| other == node);
        others.extend(is_new.then(|| (rank_before(node), 2, node.clone())));
        others.sort();
        let free_places = self.max().saturating_sub(draft.participants.len());
        for (.., other) in others.drain(..free_places.min(others.len())) {
            draft.wait_list.remove(&other);
            draft.redundancy_list.remove(&other);
            draft.participants.insert(other, 0);
        }
        if is_new && !draft.participants.contains(node) {
            draft.redundancy_list.insert(node.clone());
        }
    }

    fn is_last_call_over(&self) -> bool {
        let seen = self.view.failure_detector.last_call_observed_at(self.view.state);
        seen.is_some_and(|seen| self.now.saturating_duration_since(seen) >= self.local_node.times.last_call)
    }

    /// Whether all nodes of the previous round are here, so that the last call can end. A rankrun agent in no list has
    /// left for good. A torchrun agent may be changing lists until its heartbeat limit is over.
    fn are_all_members_present(&self, draft: &RendezvousState) -> bool {
        let Some(before) = self.view.ranks.filter(|ranks| ranks.round + 1 == draft.round) else {
            return false;
        };
        let has_gone = |node: &Node| {
            self.is_ours(node) || self.view.failure_detector.has_died(node) || self.is_dead(node)
        };
        before.of.keys().all(|node| {
            draft.participants.contains(node) || (has_gone(node) && !draft.wait_list.contains(node))
        })
    }

    fn complete(&self, draft: &mut RendezvousState) {
        let order: Vec<Node> = draft.participants.nodes().cloned().collect();
        draft.participants = assign(&order, self.view.agents, self.view.ranks);
        draft.complete = true;
        draft.deadline = None;
        self.admit_waiting_nodes(draft);
    }

    /// Makes every node that waits for a full round a spare. torchrun agents would otherwise stop their workers for it
    /// again and again.
    pub(super) fn admit_waiting_nodes(&self, draft: &mut RendezvousState) {
        if draft.complete && draft.participants.len() >= self.max() {
            draft.redundancy_list.append(&mut draft.wait_list);
        }
    }
}
