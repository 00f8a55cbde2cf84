//! Random moments, which can be repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::settings::{is_soak, print_notice};

/// The seed without `RANKRUN_SEED`: a change is judged by the same moments as the one before.
const SEED: u64 = 18;

/// Numbers from a seed that is told: a failure can be repeated with `RANKRUN_SEED`.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From `RANKRUN_SEED`, else always the same; with `RANKRUN_SOAK=1` from the clock.
    #[expect(clippy::disallowed_methods, reason = "the seed comes from outside")]
    #[must_use]
    pub fn seeded() -> Self {
        let from_environment = std::env::var("RANKRUN_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |age| u64::from(age.subsec_nanos()));
        let seed = from_environment.unwrap_or_else(|| if is_soak() { clock() } else { SEED });
        print_notice(&format!("RANKRUN_SEED={seed}"));
        Self(seed | 1)
    }

    /// xorshift64.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// One of the two in half of the cases.
    pub fn either<T>(&mut self, one: T, other: T) -> T {
        // The lowest bit of xorshift is its weakest.
        if self.below(1 << 16) >= 1 << 15 { one } else { other }
    }

    /// Lets a random part of this time go by: the moment of what follows is what is tested.
    pub fn pause(&mut self, at_most: Duration) {
        let limit = u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX).max(1);
        std::thread::sleep(Duration::from_micros(self.below(limit)));
    }
}
