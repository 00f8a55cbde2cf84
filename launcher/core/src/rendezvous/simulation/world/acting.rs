//! What a simulated agent does with its knowledge: it asks the round logic, and carries out the step.

use std::rc::Rc;

use super::hashing::{describe_move, describe_state};
use super::{Incarnation, JOIN, NetworkEvent, World, at, origin};
use crate::rendezvous::round::{RoundStep, RoundView, is_spare};
use crate::rendezvous::simulation::agent::{AfterWorkers, AgentEnd, Phase};
use crate::rendezvous::simulation::invariants::Broken;
use crate::rendezvous::simulation::store::Request;
use crate::rendezvous::simulation::torch::{self, Task, TorchStep};
use crate::rendezvous::state::Node;

impl World<'_> {
    /// Continues the agent when its workers have ended.
    pub(in crate::rendezvous::simulation) fn wait_for_workers(&mut self, slot: usize) {
        let now = self.now;
        let Some(agent) = &self.agents[slot] else { return };
        if let Phase::Stopping { until, .. } = agent.phase {
            self.wake_at(slot, until.max(now));
        }
    }

    pub(super) fn wake_at(&mut self, slot: usize, moment: u64) {
        let now = self.now;
        let Some(agent) = &mut self.agents[slot] else { return };
        if agent.wake_at < now || agent.wake_at > moment || agent.wake_at == now && moment > now {
            agent.wake_at = moment;
            let incarnation = self.incarnation_of(slot);
            self.schedule_event(moment, NetworkEvent::Wakes { incarnation });
        }
    }

    pub(super) fn wake(&mut self, incarnation: Incarnation) -> Result<(), Broken> {
        let slot = incarnation.0;
        let (now, stop) = (self.now, u64::from(self.setup.stops[slot]));
        let is_torch = self.setup.is_torch(slot);
        let Some(agent) = self.agent(incarnation) else { return Ok(()) };
        if !is_torch {
            agent.schedule_lease_stop(now, stop);
        }
        if let Phase::Stopping { until, then, round } = agent.phase
            && until <= now
        {
            agent.before = Some(round);
            agent.torch.has_left = false;
            agent.phase = match then {
                AfterWorkers::Join => Phase::Joining { deadline: now + JOIN },
                AfterWorkers::Leave => Phase::Leaving { closes: false },
                AfterWorkers::Close => Phase::Leaving { closes: true },
                AfterWorkers::End => Phase::Ended(AgentEnd::Closed),
            };
        }
        self.wait_for_workers(slot);
        if is_torch {
            self.request_state(slot, false);
            return Ok(());
        }
        self.act(slot)
    }

    /// Carries out the next step of the round logic, unless an answer is under way.
    pub(super) fn act(&mut self, slot: usize) -> Result<(), Broken> {
        if self.setup.is_torch(slot) {
            return self.act_as_torch(slot);
        }
        let (now, wall) = (self.now, self.wall(slot));
        let Some(agent) = self.agents[slot].as_mut().filter(|agent| agent.pending.is_none()) else {
            return Ok(());
        };
        if agent.known.closed && matches!(agent.phase, Phase::Running { .. }) {
            agent.stop(now, u64::from(self.setup.stops[slot]), AfterWorkers::End);
            self.wait_for_workers(slot);
            return Ok(());
        }
        if let Phase::Joining { deadline } = &mut agent.phase
            && is_spare(&agent.known, &agent.me.node)
        {
            *deadline = now + JOIN;
        }
        let Some(goal) = agent.goal(at) else { return Ok(()) };
        let ranks = agent.ranks.as_deref();
        let view = RoundView {
            state: &agent.known,
            failure_detector: &agent.failure_detector,
            agents: &self.descriptors,
            ranks,
        };
        let step = self.machine.next(&view, &agent.me, goal, (at(now), wall));
        self.record_step(slot, &step);
        self.perform(slot, step)
    }

    fn perform(&mut self, slot: usize, step: RoundStep) -> Result<(), Broken> {
        let now = self.now;
        let agent = self.agents[slot].as_mut().expect("it acts");
        let end = match step {
            RoundStep::Write { state, notifies } => {
                let request = Request::Write { state: Rc::new(state), expected: agent.version, notifies };
                self.send_request(slot, request);
                return Ok(());
            }
            RoundStep::Wait { until } => {
                let until = until.saturating_duration_since(origin()).as_millis();
                self.wake_at(slot, u64::try_from(until).expect("small").max(now + 1));
                return Ok(());
            }
            // Others may have continued without it: the agent must read again that it is a member.
            RoundStep::Joined if agent.doubted_until > now && !agent.is_cut_off(now) => {
                let until = agent.doubted_until;
                self.wake_at(slot, until);
                return Ok(());
            }
            RoundStep::Joined if agent.is_cut_off(now) => {
                self.request_state(slot, true);
                return Ok(());
            }
            RoundStep::Joined => return self.start(slot),
            RoundStep::Changed(_) => {
                agent.stop(now, u64::from(self.setup.stops[slot]), AfterWorkers::Join);
                self.wait_for_workers(slot);
                return self.act(slot);
            }
            RoundStep::TimedOut => {
                self.check_timeout()?;
                AgentEnd::TimedOut
            }
            RoundStep::Closed => AgentEnd::Closed,
            RoundStep::NotNeeded => AgentEnd::NotNeeded,
            RoundStep::Taken { ref by } => {
                self.check_refusal(by)?;
                AgentEnd::Taken
            }
            RoundStep::Done if matches!(agent.phase, Phase::Leaving { closes: true }) => AgentEnd::HasClosed,
            RoundStep::Done => {
                self.check_left(slot)?;
                AgentEnd::Left
            }
        };
        self.agents[slot].as_mut().expect("it acts").phase = Phase::Ended(end);
        Ok(())
    }

    fn start(&mut self, slot: usize) -> Result<(), Broken> {
        self.check_start(slot)?;
        let agent = self.agents[slot].as_mut().expect("it acts");
        let members: Rc<[Node]> = agent.known.participants.nodes().cloned().collect();
        agent.phase = Phase::Running { round: agent.known.round, members };
        agent.before = Some(agent.known.round);
        self.act(slot)
    }

    fn act_as_torch(&mut self, slot: usize) -> Result<(), Broken> {
        let (now, wall) = (self.now, self.wall(slot));
        let stop = u64::from(self.setup.stops[slot]);
        let Some(agent) = self.agents[slot].as_mut().filter(|agent| agent.pending.is_none()) else {
            return Ok(());
        };
        if let Phase::Joining { deadline } = &mut agent.phase
            && is_spare(&agent.known, &agent.me.node)
        {
            *deadline = now + JOIN;
        }
        let task = match &agent.phase {
            Phase::Joining { deadline } => {
                let left = i64::try_from(*deadline).expect("small") - i64::try_from(now).expect("small");
                Task::Join { left }
            }
            Phase::Running { .. } if !agent.known.wait_list.is_empty() => {
                agent.stop(now, stop, AfterWorkers::Join);
                self.wait_for_workers(slot);
                return Ok(());
            }
            Phase::Running { .. } => Task::Run,
            Phase::Leaving { .. } => Task::Close,
            Phase::Stopping { .. } | Phase::Ended(_) => return Ok(()),
        };
        let known = Rc::clone(&agent.known);
        let step = torch::next(&known, &agent.me, task, &mut agent.torch, wall);
        self.write_transcript(|_| {
            format!("n{slot} (torchrun) {}: {}", describe_state(&known), describe_move(&step))
        });
        let agent = self.agents[slot].as_mut().expect("it acts");
        match step {
            TorchStep::Write(state) => {
                let request =
                    Request::Write { state: Rc::new(state), expected: agent.version, notifies: false };
                self.send_request(slot, request);
            }
            // The agent reads at every tick anyway.
            TorchStep::Sleep => {}
            TorchStep::Finish if task == Task::Close => agent.phase = Phase::Ended(AgentEnd::HasClosed),
            TorchStep::Finish => return self.start(slot),
            TorchStep::TimedOut => agent.phase = Phase::Ended(AgentEnd::TimedOut),
            TorchStep::Closed => agent.phase = Phase::Ended(AgentEnd::Closed),
        }
        Ok(())
    }
}
