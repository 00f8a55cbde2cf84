//! The model: one hidden layer, softmax and cross entropy, with gradients by hand.

use rankrun_examples::random::Random;
use rankrun_worker::checkpoint::State;

use crate::data::{CLASSES, Dataset, FEATURES};

/// Width of the hidden layer.
const HIDDEN: usize = 32;

/// Where each part lies in the list of parameters.
const HIDDEN_BIAS: usize = HIDDEN * FEATURES;
const OUTPUT: usize = HIDDEN_BIAS + HIDDEN;
const OUTPUT_BIAS: usize = OUTPUT + CLASSES * HIDDEN;
const PARAMETERS: usize = OUTPUT_BIAS + CLASSES;

/// The weights and biases of both layers, in one list, so that one message carries them all.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    pub(crate) parameters: Vec<f64>,
}

/// What the model makes of one sample.
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

    /// What a checkpoint keeps of it.
    pub(crate) fn state(&mut self) -> State<'_> {
        let (hidden, output) = self.parameters.split_at_mut(OUTPUT);
        let (hidden, hidden_bias) = hidden.split_at_mut(HIDDEN_BIAS);
        let (output, output_bias) = output.split_at_mut(OUTPUT_BIAS - OUTPUT);
        State::new()
            .replicated("hidden.weight", &[HIDDEN, FEATURES], hidden)
            .replicated("hidden.bias", &[HIDDEN], hidden_bias)
            .replicated("output.weight", &[CLASSES, HIDDEN], output)
            .replicated("output.bias", &[CLASSES], output_bias)
    }

    /// Adds the gradient of one sample to `gradient`; its loss, and whether the model is right about it.
    pub(crate) fn learn(
        &self,
        features: &[f64; FEATURES],
        class: usize,
        gradient: &mut [f64],
    ) -> (f64, bool) {
        let Activation { hidden, classes } = self.activate(features);
        let errors: [f64; CLASSES] =
            std::array::from_fn(|at| classes[at] - if at == class { 1.0 } else { 0.0 });
        for (at, error) in errors.iter().enumerate() {
            let weights = &mut gradient[OUTPUT + at * HIDDEN..][..HIDDEN];
            weights.iter_mut().zip(&hidden).for_each(|(weight, value)| *weight += error * value);
            gradient[OUTPUT_BIAS + at] += error;
        }
        for (at, value) in hidden.iter().enumerate() {
            let weights = errors.iter().enumerate();
            let error: f64 =
                weights.map(|(to, error)| error * self.parameters[OUTPUT + to * HIDDEN + at]).sum();
            let error = error * (1.0 - value * value);
            let weights = &mut gradient[at * FEATURES..][..FEATURES];
            weights.iter_mut().zip(features).for_each(|(weight, value)| *weight += error * value);
            gradient[HIDDEN_BIAS + at] += error;
        }
        score(&classes, class)
    }

    /// Takes a step against the gradient.
    pub(crate) fn descend(&mut self, gradient: &[f64], rate: f64) {
        self.parameters.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= rate * slope);
    }

    /// Mean loss and accuracy over all samples.
    pub(crate) fn judge(&self, data: &Dataset) -> (f64, f64) {
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
        // The largest is taken away first, so that no exponential overflows.
        let most = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers = outputs.map(|output| (output - most).exp());
        let sum: f64 = powers.iter().sum();
        Activation { hidden, classes: powers.map(|power| power / sum) }
    }
}

fn dot(weights: &[f64], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

/// The loss, and whether the class is the most probable one.
fn score(classes: &[f64; CLASSES], class: usize) -> (f64, bool) {
    let own = classes[class];
    (-own.max(f64::MIN_POSITIVE).ln(), classes.iter().all(|&other| other <= own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let data = Dataset::new(8, &mut Random::new(3, 1));
        let model = Mlp::new(&mut Random::new(3, 0));
        let (features, class) = data.sample(5);
        let mut gradient = vec![0.0; PARAMETERS];
        model.learn(features, class, &mut gradient);
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
