//! Values that the keyspace has let go of, and that answers still hold: no limit of the keyspace counts them.

use std::sync::{Arc, Weak};

use super::{OVERHEAD, Value};

/// Entries beyond which they are looked through, so that the list does not outgrow what it lists.
const FEW: usize = 1024;

/// See [`Keyspace::detached_bytes`](super::Keyspace::detached_bytes).
#[derive(Debug, Default)]
pub(super) struct Detached {
    values: Vec<Weak<Vec<u8>>>,
    /// Bytes of `values` when they were let go of, or looked through last.
    bytes: u64,
    /// How many were left then.
    left: usize,
}

impl Detached {
    /// The keyspace lets go of a value: it lives on where an answer holds it too.
    pub(super) fn let_go(&mut self, value: &Value) {
        if Arc::strong_count(value) > 1 {
            self.hand_over(value);
        }
    }

    /// Puts another value in the place of one, which lives on where an answer holds it too.
    pub(super) fn replace(&mut self, present: &mut Value, value: Vec<u8>) {
        // Without an answer that holds it, the value changes in its place: no allocation.
        if let Some(own) = Arc::get_mut(present) {
            *own = value;
        } else {
            self.let_go(present);
            *present = Value::new(value);
        }
    }

    /// An answer takes the keyspace's own value.
    pub(super) fn hand_over(&mut self, value: &Value) {
        self.bytes += value.len() as u64 + OVERHEAD;
        self.values.push(Arc::downgrade(value));
        if self.values.len() > 2 * self.left + FEW {
            self.sweep();
        }
    }

    /// At least what lives.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets what no answer holds any more.
    pub(super) fn sweep(&mut self) {
        self.bytes = 0;
        self.values.retain(|value| {
            let living = value.upgrade();
            self.bytes += living.as_ref().map_or(0, |value| value.len() as u64 + OVERHEAD);
            living.is_some()
        });
        self.left = self.values.len();
        self.values.shrink_to(2 * self.left + FEW);
    }
}
