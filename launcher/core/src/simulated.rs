//! What the simulations share: pseudo-random choices, and the seeds of their histories.
#![expect(clippy::disallowed_methods, reason = "the seed comes from outside")]

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of the histories that every change is tested with.
const SEED: u64 = 18;
const THREADS: u64 = 2;

/// A pseudo-random sequence that depends on its seed alone (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit.max(1))).expect("less than `limit`")
    }

    pub(crate) fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(u32::try_from(from.len()).expect("a short list")) as usize]
    }
}

/// The histories to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) step: u64,
    pub(crate) count: u64,
    /// Number of failing histories to shorten before the shortest is reported.
    pub(crate) enough: usize,
}

impl Seeds {
    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |index| self.first.wrapping_add(index.wrapping_mul(self.step)))
    }
}

/// The failing histories of `count` seeds, at most `enough` for each thread.
pub(crate) fn search_on_threads<F: Send>(
    count: u64,
    enough: usize,
    search: impl Fn(Seeds) -> Vec<F> + Sync,
) -> Vec<F> {
    let (seed, search) = (seed(), &search);
    let part = |thread| {
        search(Seeds { first: seed.wrapping_add(thread), step: THREADS, count: count / THREADS, enough })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// The failing history with the fewest events.
pub(crate) fn shortest<H, B>(
    failing: Vec<Failing<H, B>>,
    count_events: impl Fn(&H) -> usize,
) -> Option<Failing<H, B>> {
    failing.into_iter().min_by_key(|failing| count_events(&failing.history))
}

/// A history that breaks an invariant.
#[derive(Debug)]
pub(crate) struct Failing<H, B> {
    pub(crate) seed: u64,
    pub(crate) history: H,
    pub(crate) broken: B,
}

impl<H, B> Failing<H, B> {
    /// The simplest history to which one simplification after the other leads. `first_failing` returns the first
    /// simpler history that still fails in the same way.
    pub(crate) fn shrink(mut self, first_failing: impl Fn(&H) -> Option<(H, B)>) -> Self {
        while let Some((history, broken)) = first_failing(&self.history) {
            self = Self { history, broken, ..self };
        }
        self
    }

    /// How to repeat it, for the report.
    pub(crate) fn how_to_repeat(&self) -> String {
        format!("the shortest history that breaks it; RANKRUN_SEED={} begins with a longer one:", self.seed)
    }
}

pub(crate) fn is_soak() -> bool {
    std::env::var_os("RANKRUN_SOAK").is_some_and(|value| value == "1")
}

/// `RANKRUN_SEED`, else a fixed seed; a random one under `RANKRUN_SOAK=1`. It is printed.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("RANKRUN_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |age| age.as_micros() as u64);
    let seed = given.unwrap_or_else(|| if is_soak() { clock() } else { SEED });
    println!("RANKRUN_SEED={seed}");
    seed
}
