//! Records the decisions of a run, as a hash and as a readable transcript.

use super::World;
use crate::rendezvous::round::RoundStep;
use crate::rendezvous::simulation::agent::Phase;
use crate::rendezvous::simulation::torch::TorchStep;
use crate::rendezvous::state::{Node, RendezvousState};

impl World<'_> {
    pub(super) fn record_step(&mut self, slot: usize, step: &RoundStep) {
        let agent = self.agents[slot].as_ref().expect("it acts");
        let what = match step {
            RoundStep::Write { state, notifies } => {
                let lists = state.participants.len() * 64 + state.wait_list.len() * 8;
                1 + 2 * u64::from(*notifies) + 4 * (lists + state.redundancy_list.len()) as u64
            }
            RoundStep::Wait { .. } => 2,
            RoundStep::Joined => 4,
            RoundStep::Changed(_) => 6,
            _ => 8,
        };
        let round = agent.known.round * 2 + u64::from(agent.known.complete);
        for part in [self.now, slot as u64, what, round] {
            self.trace = (self.trace ^ part).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
        self.write_transcript(|world| {
            let agent = world.agents[slot].as_ref().expect("it acts");
            let phase = match &agent.phase {
                Phase::Running { round, .. } => format!("runs {round}"),
                phase => format!("{phase:?}"),
            };
            let step = match step {
                RoundStep::Wait { .. } => "waits".to_owned(),
                RoundStep::Write { state, .. } => format!("writes {}", describe_state(state)),
                step => format!("{step:?}"),
            };
            format!("{} {phase} in {}: {step}", agent.me.node, describe_state(&agent.known))
        });
    }

    pub(super) fn write_transcript(&mut self, what: impl FnOnce(&Self) -> String) {
        if let Some(transcript) = self.transcript.take() {
            transcript.push(format!("{:>6} ms  {}", self.now, what(self)));
            self.transcript = Some(transcript);
        }
    }
}

pub(super) fn describe_move(step: &TorchStep) -> String {
    match step {
        TorchStep::Write(state) => format!("writes {}", describe_state(state)),
        step => format!("{step:?}"),
    }
}

/// A state in one line of text.
pub(super) fn describe_state(state: &RendezvousState) -> String {
    let names =
        |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(Node::to_string).collect::<Vec<_>>().join(" ");
    let members: Vec<_> = state.participants.iter().map(|(node, rank)| format!("{node}={rank}")).collect();
    format!(
        "[round {}{}{}{}; {}; waiting {}; spare {}]",
        state.round,
        if state.complete { " complete" } else { "" },
        if state.closed { " closed" } else { "" },
        if state.deadline.is_some() { " last call" } else { "" },
        members.join(" "),
        names(&mut state.wait_list.iter()),
        names(&mut state.redundancy_list.iter()),
    )
}
