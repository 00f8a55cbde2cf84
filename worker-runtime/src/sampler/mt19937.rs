//! The Mersenne twister with 32-bit words, as in torch's CPU generator (`ATen/core/MT19937RNGEngine.h`).
//! Pure.
//!
//! Source: M. Matsumoto, T. Nishimura: Mersenne Twister: a 623-dimensionally equidistributed uniform
//! pseudo-random number generator, ACM TOMACS 8 (1998).

const STATE_WORDS: usize = 624;
/// Distance to the word from which a new one takes its bits.
const SHIFT: usize = 397;
/// XORed into words with an odd source.
const MATRIX: u32 = 0x9908_B0DF;

/// A stream of 32-bit numbers from a seed.
#[derive(Debug, Clone)]
pub(super) struct Mt19937 {
    state: [u32; STATE_WORDS],
    /// Index of the next word; `STATE_WORDS` if all are used.
    next: usize,
}

impl Mt19937 {
    /// As `torch.Generator().manual_seed(seed)`, which ignores all but the lower 32 bits.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [0; STATE_WORDS];
        state[0] = (seed & u64::from(u32::MAX)) as u32;
        for at in 1..STATE_WORDS {
            let before: u32 = state[at - 1];
            state[at] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        Self { state, next: STATE_WORDS }
    }

    /// torch's `random()`.
    pub(super) fn next_u32(&mut self) -> u32 {
        if self.next == STATE_WORDS {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    /// torch's `random64()`: the first number is the upper half.
    pub(super) fn next_u64(&mut self) -> u64 {
        let upper = u64::from(self.next_u32());
        upper << 32 | u64::from(self.next_u32())
    }

    fn twist(&mut self) {
        for at in 0..STATE_WORDS {
            let mixed = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % STATE_WORDS] & 0x7FFF_FFFF);
            let odd = if mixed & 1 == 1 { MATRIX } else { 0 };
            self.state[at] = self.state[(at + SHIFT) % STATE_WORDS] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C++ standard demands this number of `std::mt19937` with its default seed (\[rand.predef\]).
    #[test]
    fn ten_thousandth_number_matches_cpp_standard() {
        let mut numbers = Mt19937::new(5489);
        let mut last = 0;
        (0..10_000).for_each(|_| last = numbers.next_u32());
        assert_eq!(last, 4_123_659_995);
    }

    #[test]
    fn only_lower_32_seed_bits_count() {
        let first = |seed| Mt19937::new(seed).next_u64();
        assert_eq!(first(7), first(7 + (3 << 32)));
        assert_ne!(first(7), first(8));
    }
}
