//! How the agent and the thread speak: a queue in each direction, and a descriptor that is readable as long as it is not
//! empty.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::{RendezvousCommand, RendezvousEnd, RendezvousEvent, ShutdownKind};

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Command {
    /// What the agent wants.
    Wish(RendezvousCommand),
    /// To go.
    End {
        /// How.
        parting: ShutdownKind,
        /// Nobody waits for the thread any longer.
        until: Instant,
    },
}

/// One end of a queue whose descriptor counts what is in it.
#[derive(Debug)]
struct Counted<T> {
    queue: mpsc::Receiver<T>,
    count: Arc<EventFd>,
}

/// The other.
#[derive(Debug)]
struct Counting<T> {
    queue: mpsc::Sender<T>,
    count: Arc<EventFd>,
}

/// Whether there is a next item.
#[derive(Debug)]
pub(super) enum Next<T> {
    /// There is.
    Item(T),
    /// Not yet.
    Nothing,
    /// Never again: the other end is gone.
    Never,
}

fn counted<T>() -> io::Result<(Counting<T>, Counted<T>)> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_SEMAPHORE;
    let count = Arc::new(EventFd::from_flags(flags)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Counting { queue: sender, count: Arc::clone(&count) }, Counted { queue: receiver, count }))
}

impl<T> Counting<T> {
    /// Behind the item, so that whoever sees the count finds the item.
    fn send(&self, item: T) {
        // Where the other end is gone nobody wants it.
        if self.queue.send(item).is_ok() {
            let _ = self.count.write(1);
        }
    }
}

impl<T> Counted<T> {
    fn next(&self) -> Next<T> {
        let first = self.queue.try_recv();
        // One count for each item. A count without an item is taken too, and then an item may have come meanwhile.
        let _ = self.count.read();
        match first.or_else(|_| self.queue.try_recv()) {
            Ok(item) => Next::Item(item),
            Err(mpsc::TryRecvError::Empty) => Next::Nothing,
            Err(mpsc::TryRecvError::Disconnected) => Next::Never,
        }
    }
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct Mailbox {
    commands: Counting<Command>,
    news: Counted<RendezvousEvent>,
    /// The agent knows that the thread is gone.
    is_gone: Cell<bool>,
}

impl Mailbox {
    pub(super) fn send(&self, command: Command) {
        self.commands.send(command);
    }

    pub(super) fn receive(&self) -> Option<RendezvousEvent> {
        match self.news.next() {
            Next::Item(news) => Some(news),
            Next::Nothing => None,
            // Only after a fault of ours; the agent must not wait for ever.
            Next::Never => (!self.is_gone.replace(true)).then(|| {
                let source = io::Error::other("its thread has ended");
                RendezvousEvent::Over(RendezvousEnd::Failed(RendezvousError::System {
                    what: "go on with the rendezvous",
                    source,
                }))
            }),
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.count.as_fd()
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Wakes the thread, which then sees that nobody is there: so the queue has to go first.
        self.commands.queue = mpsc::channel().0;
        let _ = self.commands.count.write(1);
    }
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Outlet {
    commands: Counted<Command>,
    news: Counting<RendezvousEvent>,
}

impl Outlet {
    pub(super) fn next(&self) -> Next<Command> {
        self.commands.next()
    }

    pub(super) fn tell(&self, news: RendezvousEvent) {
        self.news.send(news);
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.commands.count.as_fd()
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.news.queue = mpsc::channel().0;
        let _ = self.news.count.write(1);
    }
}

/// Both ends.
///
/// # Errors
/// No descriptor is left.
pub(super) fn channels() -> io::Result<(Mailbox, Outlet)> {
    let (commands, inbox) = counted()?;
    let (news, received) = counted()?;
    Ok((Mailbox { commands, news: received, is_gone: Cell::new(false) }, Outlet { commands: inbox, news }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_channel_ends_the_wait_of_the_other_end() {
        let (mailbox, outlet) = channels().unwrap();
        outlet.tell(RendezvousEvent::AllSucceeded);
        drop(outlet);
        assert!(matches!(mailbox.receive(), Some(RendezvousEvent::AllSucceeded)));
        assert!(matches!(mailbox.receive(), Some(RendezvousEvent::Over(RendezvousEnd::Failed(_)))));
        assert!(mailbox.receive().is_none());

        let (mailbox, outlet) = channels().unwrap();
        mailbox.send(Command::Wish(RendezvousCommand::Succeeded));
        drop(mailbox);
        assert!(matches!(outlet.next(), Next::Item(Command::Wish(RendezvousCommand::Succeeded))));
        assert!(matches!(outlet.next(), Next::Never));
    }
}
