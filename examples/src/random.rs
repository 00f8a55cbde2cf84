//! Random numbers from a seed, the same on every machine.

/// Numbers between -1 and 1, from a linear congruential generator, which is as short in any language.
pub fn random_numbers(seed: u64) -> impl Iterator<Item = f32> {
    let next =
        |state: &u64| Some(state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F));
    std::iter::successors(next(&seed), next).map(|state| (state >> 40) as f32 / (1 << 23) as f32 - 1.0)
}

/// A stream of random numbers: SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed and a stream.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next_u64() ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
        random
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform between -1 and 1.
    pub fn uniform(&mut self) -> f64 {
        // 53 bits: each value is exact.
        (self.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Normal with mean 0 and standard deviation 1: a scaled sum of twelve uniform numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_numbers() {
        let numbers = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.uniform(), random.normal()]
        };
        assert_eq!(numbers(1, 2), numbers(1, 2));
        assert_ne!(numbers(1, 2), numbers(1, 3));
        assert_ne!(numbers(1, 2), numbers(2, 2));
    }

    #[test]
    fn numbers_have_stated_distribution() {
        let mut random = Random::new(0, 0);
        let spread = |numbers: Vec<f64>| {
            let count = numbers.len() as f64;
            let mean = numbers.iter().sum::<f64>() / count;
            (mean, numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count)
        };
        let (mean, variance) = spread((0..100_000).map(|_| random.uniform()).collect());
        assert!(mean.abs() < 0.01 && (variance - 1.0 / 3.0).abs() < 0.01, "{mean} {variance}");
        let (mean, variance) = spread((0..100_000).map(|_| random.normal()).collect());
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
