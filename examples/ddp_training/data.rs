//! The data: points around a few centres, which are the classes.

use rankrun_examples::random::Random;

/// Numbers that describe a sample.
pub(crate) const FEATURES: usize = 16;
/// What a sample can be.
pub(crate) const CLASSES: usize = 4;

/// How far the samples of a class are from its centre. The classes overlap a little.
const SPREAD: f64 = 1.0;

/// All samples.
pub(crate) struct Dataset {
    samples: Vec<([f64; FEATURES], usize)>,
}

impl Dataset {
    /// `count` samples, which must not be 0, of all classes in turn.
    pub(crate) fn new(count: usize, random: &mut Random) -> Self {
        let centres: [[f64; FEATURES]; CLASSES] =
            std::array::from_fn(|_| std::array::from_fn(|_| random.normal()));
        let mut sample = |class: usize| {
            let features = std::array::from_fn(|at| centres[class][at] + SPREAD * random.normal());
            (features, class)
        };
        Self { samples: (0..count).map(|index| sample(index % CLASSES)).collect() }
    }

    /// A sample and its class.
    pub(crate) fn sample(&self, index: usize) -> (&[f64; FEATURES], usize) {
        let (features, class) = &self.samples[index];
        (features, *class)
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }
}
