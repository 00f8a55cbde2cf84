//! A model on a device. The CPU is the only device so far; another one implements [`Replica`].

use std::fmt;

use rankrun_examples::random::Random;

/// Rows of numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    columns: usize,
    /// Row by row.
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    /// A matrix of whole rows of `columns` values, which must not be 0.
    pub(crate) fn new(columns: usize, values: Vec<f32>) -> Self {
        Self { columns, values }
    }

    pub(crate) fn zero(rows: usize, columns: usize) -> Self {
        Self::new(columns, vec![0.0; rows * columns])
    }

    pub(crate) fn random(rows: usize, columns: usize, random: &mut Random) -> Self {
        Self::new(columns, (0..rows * columns).map(|_| random.normal() as f32).collect())
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.columns)
    }
}

/// The size, as torch writes it.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.values.len() / self.columns, self.columns)
    }
}

/// One linear layer: a weight for each output and feature, then a bias for each output.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    features: usize,
    outputs: usize,
    pub(crate) parameters: Vec<f32>,
}

impl Linear {
    pub(crate) fn zero(features: usize, outputs: usize) -> Self {
        Self { features, outputs, parameters: vec![0.0; (features + 1) * outputs] }
    }

    /// Even numbers within one over the root of the features, as torch begins.
    pub(crate) fn randomize(&mut self, random: &mut Random) {
        let bound = (self.features as f64).sqrt().recip();
        self.parameters.iter_mut().for_each(|parameter| *parameter = (random.uniform() * bound) as f32);
    }
}

/// A model on one device.
pub(crate) trait Replica {
    /// The device's name, such as `cpu:0`.
    fn device(&self) -> &str;

    /// What the model makes of some rows, of which there may be none.
    fn forward(&mut self, input: &Matrix) -> Matrix;
}

/// A model in the memory of the host.
pub(crate) struct CpuReplica {
    device: String,
    model: Linear,
}

impl CpuReplica {
    pub(crate) fn new(device: &str, model: Linear) -> Self {
        Self { device: device.to_owned(), model }
    }
}

impl Replica for CpuReplica {
    fn device(&self) -> &str {
        &self.device
    }

    fn forward(&mut self, input: &Matrix) -> Matrix {
        let Linear { features, outputs, ref parameters } = self.model;
        let (weights, biases) = parameters.split_at(features * outputs);
        let product = |row: &[f32], weights: &[f32]| -> f32 {
            row.iter().zip(weights).map(|(value, weight)| value * weight).sum()
        };
        let values = input.rows().flat_map(|row| {
            let outputs = weights.chunks_exact(features).zip(biases);
            outputs.map(move |(weights, bias)| product(row, weights) + bias)
        });
        Matrix::new(outputs, values.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_weighed_and_shifted() {
        let model = Linear { features: 2, outputs: 2, parameters: vec![1.0, 2.0, 3.0, 4.0, 0.5, -1.0] };
        let mut replica = CpuReplica::new("cpu:0", model);
        let output = replica.forward(&Matrix::new(2, vec![1.0, 1.0, 10.0, 0.0]));
        assert_eq!(output.values, [3.5, 6.0, 10.5, 29.0]);
        assert_eq!(output.to_string(), "[2, 2]");
    }

    #[test]
    fn an_empty_share_has_an_empty_output() {
        let mut replica = CpuReplica::new("cpu:0", Linear::zero(1000, 2));
        let input = Matrix::zero(0, 1000);
        let output = replica.forward(&input);
        assert_eq!((input.to_string(), output.to_string()), ("[0, 1000]".to_owned(), "[0, 2]".to_owned()));
    }
}
