//! What a simulated agent does with its knowledge: it asks the round logic, and carries out the step.

use std::rc::Rc;

use super::hashing::{describe_move, describe_state};
use super::{Incarnation, JOIN, NetworkEvent, World, at, origin};
use crate::rendezvous::round::{RoundStep, RoundView, is_spare};
use crate::rendezvous::simulation::agent::{Phase, Then, Why};
use crate::rendezvous::simulation::invariants::Broken;
use crate::rendezvous::simulation::store::Request;
use crate::rendezvous::simulation::torch::{self, Move, Task};
use crate::rendezvous::state::Node;

impl World<'_> {
    /// Continues the agent when its workers have ended.
    pub(in crate::rendezvous::simulation) fn wait_for_workers(&mut self, seat: usize) {
        let now = self.now;
        let Some(agent) = &self.agents[seat] else { return };
        if let Phase::Stopping { until, .. } = agent.phase {
            self.wake_at(seat, until.max(now));
        }
    }

    pub(super) fn wake_at(&mut self, seat: usize, moment: u64) {
        let now = self.now;
        let Some(agent) = &mut self.agents[seat] else { return };
        if agent.wake_at < now || agent.wake_at > moment || agent.wake_at == now && moment > now {
            agent.wake_at = moment;
            let who = self.incarnation_of(seat);
            self.schedule_event(moment, NetworkEvent::Wakes { who });
        }
    }

    pub(super) fn wake(&mut self, who: Incarnation) -> Result<(), Broken> {
        let seat = who.0;
        let (now, stop) = (self.now, u64::from(self.setup.stops[seat]));
        let is_torch = self.setup.is_torch(seat);
        let Some(agent) = self.agent(who) else { return Ok(()) };
        if !is_torch {
            agent.schedule_lease_stop(now, stop);
        }
        if let Phase::Stopping { until, then, round } = agent.phase
            && until <= now
        {
            agent.before = Some(round);
            agent.torch.has_left = false;
            agent.phase = match then {
                Then::Join => Phase::Joining { deadline: now + JOIN },
                Then::Leave => Phase::Parting { closes: false },
                Then::Close => Phase::Parting { closes: true },
                Then::End => Phase::Ended(Why::Closed),
            };
        }
        self.wait_for_workers(seat);
        if is_torch {
            self.request_state(seat, false);
            return Ok(());
        }
        self.act(seat)
    }

    /// Carries out the next step of the round logic, unless an answer is under way.
    pub(super) fn act(&mut self, seat: usize) -> Result<(), Broken> {
        if self.setup.is_torch(seat) {
            return self.act_as_torch(seat);
        }
        let (now, wall) = (self.now, self.wall(seat));
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.pending.is_none()) else {
            return Ok(());
        };
        if agent.known.closed && matches!(agent.phase, Phase::Running { .. }) {
            agent.stop(now, u64::from(self.setup.stops[seat]), Then::End);
            self.wait_for_workers(seat);
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
        self.record_step(seat, &step);
        self.perform(seat, step)
    }

    fn perform(&mut self, seat: usize, step: RoundStep) -> Result<(), Broken> {
        let now = self.now;
        let agent = self.agents[seat].as_mut().expect("it acts");
        let end = match step {
            RoundStep::Write { state, rings } => {
                let request = Request::Write { state: Rc::new(state), expected: agent.version, rings };
                self.send_request(seat, request);
                return Ok(());
            }
            RoundStep::Wait { until } => {
                let until = until.saturating_duration_since(origin()).as_millis();
                self.wake_at(seat, u64::try_from(until).expect("small").max(now + 1));
                return Ok(());
            }
            // Others may have continued without it: the agent must read again that it is a member.
            RoundStep::Joined if agent.doubted_until > now && !agent.is_cut_off(now) => {
                let until = agent.doubted_until;
                self.wake_at(seat, until);
                return Ok(());
            }
            RoundStep::Joined if agent.is_cut_off(now) => {
                self.request_state(seat, true);
                return Ok(());
            }
            RoundStep::Joined => return self.start(seat),
            RoundStep::Changed(_) => {
                agent.stop(now, u64::from(self.setup.stops[seat]), Then::Join);
                self.wait_for_workers(seat);
                return self.act(seat);
            }
            RoundStep::TimedOut => {
                self.check_timeout()?;
                Why::TimedOut
            }
            RoundStep::Closed => Why::Closed,
            RoundStep::NotNeeded => Why::NotNeeded,
            RoundStep::Taken { ref by } => {
                self.check_refusal(by)?;
                Why::Taken
            }
            RoundStep::Done if matches!(agent.phase, Phase::Parting { closes: true }) => Why::HasClosed,
            RoundStep::Done => {
                self.check_left(seat)?;
                Why::Left
            }
        };
        self.agents[seat].as_mut().expect("it acts").phase = Phase::Ended(end);
        Ok(())
    }

    fn start(&mut self, seat: usize) -> Result<(), Broken> {
        self.check_start(seat)?;
        let agent = self.agents[seat].as_mut().expect("it acts");
        let members: Rc<[Node]> = agent.known.participants.nodes().cloned().collect();
        agent.phase = Phase::Running { round: agent.known.round, members };
        agent.before = Some(agent.known.round);
        self.act(seat)
    }

    fn act_as_torch(&mut self, seat: usize) -> Result<(), Broken> {
        let (now, wall) = (self.now, self.wall(seat));
        let stop = u64::from(self.setup.stops[seat]);
        let Some(agent) = self.agents[seat].as_mut().filter(|agent| agent.pending.is_none()) else {
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
                agent.stop(now, stop, Then::Join);
                self.wait_for_workers(seat);
                return Ok(());
            }
            Phase::Running { .. } => Task::Run,
            Phase::Parting { .. } => Task::Close,
            Phase::Stopping { .. } | Phase::Ended(_) => return Ok(()),
        };
        let known = Rc::clone(&agent.known);
        let step = torch::next(&known, &agent.me, task, &mut agent.torch, wall);
        self.write_transcript(|_| {
            format!("n{seat} (torchrun) {}: {}", describe_state(&known), describe_move(&step))
        });
        let agent = self.agents[seat].as_mut().expect("it acts");
        match step {
            Move::Write(state) => {
                let request = Request::Write { state: Rc::new(state), expected: agent.version, rings: false };
                self.send_request(seat, request);
            }
            // The agent reads at every tick anyway.
            Move::Sleep => {}
            Move::Finish if task == Task::Close => agent.phase = Phase::Ended(Why::HasClosed),
            Move::Finish => return self.start(seat),
            Move::TimedOut => agent.phase = Phase::Ended(Why::TimedOut),
            Move::Closed => agent.phase = Phase::Ended(Why::Closed),
        }
        Ok(())
    }
}
