//! The channels between the agent and the rendezvous task. The agent polls a descriptor, the task awaits.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::rendezvous::RendezvousEvent;
use crate::rendezvous::error::RendezvousError;
use rankrun_core::rendezvous::{RendezvousCommand, ShutdownKind};

/// A message of the handle to the task.
#[derive(Debug)]
pub(super) enum TaskCommand {
    /// A command of the agent.
    Command(RendezvousCommand),
    /// Leave the rendezvous, and end.
    ShutDown {
        /// How to leave.
        kind: ShutdownKind,
        /// The agent does not wait for the task any longer than this.
        until: Instant,
    },
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct AgentChannel {
    commands: UnboundedSender<TaskCommand>,
    events: RefCell<UnboundedReceiver<RendezvousEvent>>,
    /// Readable while `events` may have an event.
    wake: Arc<EventFd>,
    /// The agent was told that the task has ended.
    is_end_reported: Cell<bool>,
}

/// The task's end of the events.
#[derive(Debug)]
pub(super) struct EventSender {
    /// `None` only while this is dropped.
    events: Option<UnboundedSender<RendezvousEvent>>,
    wake: Arc<EventFd>,
}

/// Both ends of both channels.
///
/// # Errors
/// No descriptor is left.
pub(super) fn channels() -> io::Result<(AgentChannel, UnboundedReceiver<TaskCommand>, EventSender)> {
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    let (commands, received_commands) = unbounded_channel();
    let (sent_events, events) = unbounded_channel();
    let is_end_reported = Cell::new(false);
    let agent =
        AgentChannel { commands, events: RefCell::new(events), wake: Arc::clone(&wake), is_end_reported };
    Ok((agent, received_commands, EventSender { events: Some(sent_events), wake }))
}

impl AgentChannel {
    pub(super) fn send(&self, command: TaskCommand) {
        // A task that has ended needs no command.
        let _ = self.commands.send(command);
    }

    /// The next event, if there is one. After the end of the task one last event says so.
    pub(super) fn receive(&self) -> Option<RendezvousEvent> {
        let mut events = self.events.borrow_mut();
        let first = events.try_recv();
        let next = first.or_else(|error| {
            // Cleared before the second look: an event that comes later wakes the agent again.
            let _ = self.wake.read();
            if error == TryRecvError::Empty { events.try_recv() } else { Err(error) }
        });
        match next {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => None,
            // The task ends early only by a fault of this program. The agent must not wait for ever.
            Err(TryRecvError::Disconnected) => (!self.is_end_reported.replace(true)).then(|| {
                let source = io::Error::other("its task has ended");
                let what = "go on with the rendezvous";
                RendezvousEvent::Failed(RendezvousError::System { what, source })
            }),
        }
    }
}

impl AsFd for AgentChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl EventSender {
    /// Sends an event, and wakes the agent.
    pub(super) fn send(&self, event: RendezvousEvent) {
        let Some(events) = &self.events else { return };
        // An agent that has gone needs no event.
        if events.send(event).is_ok() {
            let _ = self.wake.write(1);
        }
    }
}

impl Drop for EventSender {
    /// Wakes the agent, which then sees that the task has ended: so the channel is closed first.
    fn drop(&mut self) {
        drop(self.events.take());
        let _ = self.wake.write(1);
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(agent: &AgentChannel) -> bool {
        poll(&mut [PollFd::new(agent.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn descriptor_is_readable_until_all_events_are_received() {
        let (agent, _commands, events) = channels().unwrap();
        assert!(!is_readable(&agent));
        (0..3).for_each(|_| events.send(RendezvousEvent::AllSucceeded));
        for _ in 0..3 {
            assert!(is_readable(&agent));
            assert!(matches!(agent.receive(), Some(RendezvousEvent::AllSucceeded)));
        }
        assert!(agent.receive().is_none());
        assert!(!is_readable(&agent));
    }

    #[test]
    fn end_of_task_is_reported_once_after_its_events() {
        let (agent, commands, events) = channels().unwrap();
        events.send(RendezvousEvent::AllSucceeded);
        drop((commands, events));
        assert!(is_readable(&agent));
        assert!(matches!(agent.receive(), Some(RendezvousEvent::AllSucceeded)));
        assert!(matches!(agent.receive(), Some(RendezvousEvent::Failed(_))));
        assert!(agent.receive().is_none());
    }

    #[test]
    fn commands_of_dropped_agent_are_received_before_its_end() {
        let (agent, mut commands, _events) = channels().unwrap();
        agent.send(TaskCommand::Command(RendezvousCommand::Succeeded));
        drop(agent);
        assert!(matches!(commands.try_recv(), Ok(TaskCommand::Command(RendezvousCommand::Succeeded))));
        assert!(matches!(commands.try_recv(), Err(TryRecvError::Disconnected)));
    }
}
