//! The model: one hidden layer, softmax and cross entropy, with gradients by hand.

use std::ops::Range;

use rankrun_examples::random::Random;
use rankrun_worker::checkpoint::StateDict;
use rankrun_worker::ddp::{Ddp, DdpError, Gradients, Parameter};

use crate::data::{CLASSES, Dataset, FEATURES};
use crate::learner::Sample;

/// Width of the hidden layer.
pub(crate) const HIDDEN: usize = 32;

/// Offsets of the parts in the list of parameters.
const HIDDEN_BIAS: usize = HIDDEN * FEATURES;
pub(crate) const OUTPUT: usize = HIDDEN_BIAS + HIDDEN;
const OUTPUT_BIAS: usize = OUTPUT + CLASSES * HIDDEN;
pub(crate) const PARAMETERS: usize = OUTPUT_BIAS + CLASSES;

/// The parts of the model.
pub(crate) const PARTS: [Range<usize>; 4] =
    [0..HIDDEN_BIAS, HIDDEN_BIAS..OUTPUT, OUTPUT..OUTPUT_BIAS, OUTPUT_BIAS..PARAMETERS];

/// The weights and biases of both layers, in one list.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    pub(crate) parameters: Vec<f64>,
}

/// The result of the model for one sample.
struct Activation {
    hidden: [f64; HIDDEN],
    /// Probability of each class.
    classes: [f64; CLASSES],
}

impl Mlp {
    pub(crate) fn new(random: &mut Random) -> Self {
        let bound = |at| if at < OUTPUT { FEATURES } else { HIDDEN } as f64;
        Self { parameters: (0..PARAMETERS).map(|at| random.uniform() / bound(at).sqrt()).collect() }
    }

    /// The parts of the model for data-parallel training, in order.
    pub(crate) fn description() -> Vec<Parameter> {
        vec![
            Parameter::new::<f64>("hidden.weight", &[HIDDEN, FEATURES]),
            Parameter::new::<f64>("hidden.bias", &[HIDDEN]),
            Parameter::new::<f64>("output.weight", &[CLASSES, HIDDEN]),
            Parameter::new::<f64>("output.bias", &[CLASSES]),
        ]
    }

    /// The parameters of each part.
    pub(crate) fn parts_mut(&mut self) -> [&mut [f64]; 4] {
        let (hidden, output) = self.parameters.split_at_mut(OUTPUT);
        let (hidden_weight, hidden_bias) = hidden.split_at_mut(HIDDEN_BIAS);
        let (output_weight, output_bias) = output.split_at_mut(OUTPUT_BIAS - OUTPUT);
        [hidden_weight, hidden_bias, output_weight, output_bias]
    }

    /// The state in a checkpoint.
    pub(crate) fn state(&mut self) -> StateDict<'_> {
        let parts = Self::description().into_iter().zip(self.parts_mut());
        parts.fold(StateDict::new(), |state, (part, values)| state.replicated(part.name, &part.shape, values))
    }

    /// Makes the gradients of some samples ready, scaled by `scale`: those of the output layer first,
    /// so that they are reduced while those of the hidden layer are computed. Returns the sum of losses
    /// and the number of correct answers.
    pub(crate) fn learn(
        &self,
        samples: &[Sample<'_>],
        scale: f64,
        ddp: &mut Ddp,
    ) -> Result<(f64, f64), DdpError> {
        let (mut loss, mut right) = (0.0, 0.0);
        let mut backward = Vec::new();
        for &(features, class) in samples {
            let Activation { hidden, classes } = self.activate(features);
            let (own_loss, is_right) = score(&classes, class);
            loss += own_loss;
            right += f64::from(is_right);
            let error = |at| (classes[at] - if at == class { 1.0 } else { 0.0 }) * scale;
            backward.push((features, hidden, std::array::from_fn::<f64, CLASSES, _>(error)));
        }
        for (_, hidden, errors) in &backward {
            add(ddp.gradient_mut(3)?, 1.0, errors);
            let weights = ddp.gradient_mut::<f64>(2)?.chunks_exact_mut(HIDDEN);
            weights.zip(errors).for_each(|(weights, error)| add(weights, *error, hidden));
        }
        ddp.mark_ready(3)?;
        ddp.mark_ready(2)?;
        let output = &self.parameters[OUTPUT..OUTPUT_BIAS];
        for (features, hidden, errors) in &backward {
            let slopes: [f64; HIDDEN] = std::array::from_fn(|at| {
                let weights = output[at..].iter().step_by(HIDDEN);
                let error: f64 = weights.zip(errors).map(|(weight, error)| weight * error).sum();
                error * (1.0 - hidden[at] * hidden[at])
            });
            add(ddp.gradient_mut(1)?, 1.0, &slopes);
            let weights = ddp.gradient_mut::<f64>(0)?.chunks_exact_mut(FEATURES);
            weights.zip(&slopes).for_each(|(weights, slope)| add(weights, *slope, *features));
        }
        ddp.mark_ready(1)?;
        ddp.mark_ready(0)?;
        Ok((loss, right))
    }

    /// Takes a step against the gradients.
    pub(crate) fn descend(&mut self, gradients: &Gradients<'_>, rate: f64) {
        for (part, gradient) in self.parts_mut().into_iter().zip(gradients.iter()) {
            add(part, -rate, gradient);
        }
    }

    /// Mean loss and accuracy over all samples.
    pub(crate) fn evaluate(&self, data: &Dataset) -> (f64, f64) {
        let (mut loss, mut right) = (0.0, 0.0);
        for index in 0..data.len() {
            let (features, class) = data.sample(index);
            let (own_loss, is_right) = score(&self.activate(features).classes, class);
            loss += own_loss;
            right += f64::from(is_right);
        }
        (loss / data.len() as f64, right / data.len() as f64)
    }

    fn activate(&self, features: &[f64; FEATURES]) -> Activation {
        let hidden: [f64; HIDDEN] = std::array::from_fn(|at| {
            (dot(&self.parameters[at * FEATURES..], features) + self.parameters[HIDDEN_BIAS + at]).tanh()
        });
        let outputs: [f64; CLASSES] = std::array::from_fn(|at| {
            dot(&self.parameters[OUTPUT + at * HIDDEN..], &hidden) + self.parameters[OUTPUT_BIAS + at]
        });
        // The largest is subtracted first, so that no exponential overflows.
        let most = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers = outputs.map(|output| (output - most).exp());
        let sum: f64 = powers.iter().sum();
        Activation { hidden, classes: powers.map(|power| power / sum) }
    }
}

/// Adds a multiple of `values`.
fn add(sums: &mut [f64], factor: f64, values: &[f64]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

fn dot(weights: &[f64], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

/// The loss, and whether the class is the most probable one.
fn score(classes: &[f64; CLASSES], class: usize) -> (f64, bool) {
    let own = classes[class];
    // `max` would hide a NaN.
    (-own.clamp(f64::MIN_POSITIVE, 1.0).ln(), classes.iter().all(|&other| other <= own))
}

#[cfg(test)]
mod tests {
    use rankrun_worker::{DdpOptions, ThreadGroup};

    use super::*;

    #[test]
    fn diverged_training_has_no_loss() {
        assert!(score(&[f64::NAN; CLASSES], 1).0.is_nan());
        assert!(score(&[1.0, 0.0, 0.0, 0.0], 1).0.is_finite());
    }

    #[test]
    fn gradient_matches_numeric_slope() {
        let data = Dataset::new(8, &mut Random::new(3, 1));
        let model = Mlp::new(&mut Random::new(3, 0));
        let (features, class) = data.sample(5);
        let group = ThreadGroup::world(1).remove(0);
        let mut ddp = Ddp::new(group, Mlp::description(), &DdpOptions::default()).unwrap();
        let samples = [(features, class), (features, class)];
        model.learn(&samples, 0.5, &mut ddp).unwrap();
        let gradient = ddp.finish().unwrap().iter::<f64>().collect::<Vec<_>>().concat();
        for at in [0, 17, HIDDEN_BIAS, HIDDEN_BIAS + 5, OUTPUT, OUTPUT + 40, OUTPUT_BIAS, PARAMETERS - 1] {
            let loss = |shift: f64| {
                let mut moved = model.clone();
                moved.parameters[at] += shift;
                score(&moved.activate(features).classes, class).0
            };
            let slope = (loss(1e-6) - loss(-1e-6)) / 2e-6;
            assert!((slope - gradient[at]).abs() < 1e-7, "parameter {at}: {slope} {}", gradient[at]);
        }
    }
}
