//! Turns at writing the state. If many agents write at once, all but one lose and try again, so the work would grow with
//! the square of their number. An agent that has lost takes a ticket, and writes after the ticket before. The
//! compare-and-set still decides. An agent that does not pass its ticket on is waited for until the next heartbeat is
//! due, and no longer.

use crate::rendezvous::c10d::StoreFailure;

use super::rendezvous_task::RendezvousTask;

/// A ticket whose turn has come.
#[derive(Debug)]
#[must_use]
pub(super) struct WriteTicket(i64);

impl RendezvousTask {
    /// Takes a ticket, waits for its turn, and reads the state again.
    pub(super) async fn take_write_ticket(&mut self) -> Result<Option<WriteTicket>, StoreFailure> {
        // The wait may be long among many agents, which judge this one by its heartbeats alone.
        self.send_due_heartbeat().await?;
        let until = self.next_tick;
        let Some(backend) = &mut self.backend else { return Ok(None) };
        let client = backend.request_client();
        let number = client.add(&self.plan.keys.write_ticket_counter(), 1).await?;
        // The first ticket has none before it.
        if number > 1 {
            let before = self.plan.keys.write_ticket(number - 1);
            client.wait(&[&before], until).await?;
            client.delete(&before).await?;
        }
        self.read_store().await?;
        Ok(Some(WriteTicket(number)))
    }

    /// Passes the turn on to the next ticket.
    pub(super) async fn pass_write_ticket(
        &mut self,
        ticket: Option<WriteTicket>,
    ) -> Result<(), StoreFailure> {
        if let (Some(WriteTicket(number)), Some(backend)) = (ticket, &mut self.backend) {
            let key = self.plan.keys.write_ticket(number);
            backend.request_client().set(&key, b"1").await?;
        }
        Ok(())
    }
}
