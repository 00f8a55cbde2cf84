//! Turns at writing the state. Of many agents that write at once all but one lose, and try again: the work would grow with
//! the square of their number. Who has lost takes a number and writes when the one before has. The compare-and-set decides
//! as ever; whoever does not pass on its turn is waited for no longer than until the next sign of life is due.

use crate::rendezvous::c10d::StoreFailure;

use super::driver::Driver;

/// A number that was taken, and whose turn may have come.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn(i64);

impl Driver {
    /// Waits until it is our turn, and looks at the state again.
    pub(super) fn take_turn(&mut self) -> Result<Option<Turn>, StoreFailure> {
        // Among many it may take a while, and the others judge by the signs of life alone.
        self.beat_if_due()?;
        let until = self.next_tick;
        let Some(backend) = &mut self.backend else { return Ok(None) };
        let number = backend.request_client().add(&self.plan.keys.write_ticket_counter(), 1)?;
        // The first has nobody before it.
        if number > 1 {
            let before = self.plan.keys.write_ticket(number - 1);
            backend.request_client().wait(&[&before], until)?;
            backend.request_client().delete(&before)?;
        }
        self.look()?;
        Ok(Some(Turn(number)))
    }

    /// Lets the next one write.
    pub(super) fn pass_turn(&mut self, turn: Option<Turn>) -> Result<(), StoreFailure> {
        if let (Some(Turn(number)), Some(backend)) = (turn, &mut self.backend) {
            backend.request_client().set(&self.plan.keys.write_ticket(number), b"1")?;
        }
        Ok(())
    }
}
