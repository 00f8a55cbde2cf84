//! A linear layer in the memory of the host.

use rankrun_worker::data_parallel::Rows;

use crate::replica::{Layer, ReplicaError, Size, rows};

pub(crate) struct CpuLayer {
    size: Size,
    parameters: Vec<f32>,
    input: Rows<f32>,
}

impl CpuLayer {
    pub(crate) fn new(size: Size) -> Self {
        let input = rows(size.features, Vec::new());
        Self { size, parameters: vec![0.0; size.parameters()], input }
    }
}

impl Layer for CpuLayer {
    fn parameters(&self) -> Result<Vec<f32>, ReplicaError> {
        Ok(self.parameters.clone())
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), ReplicaError> {
        self.parameters.copy_from_slice(parameters);
        Ok(())
    }

    fn forward(&mut self, input: Rows<f32>) -> Result<Vec<f32>, ReplicaError> {
        let Size { features, outputs } = self.size;
        let (weights, biases) = self.parameters.split_at(features * outputs);
        let product = |row: &[f32], weights: &[f32]| -> f32 {
            row.iter().zip(weights).map(|(value, weight)| value * weight).sum()
        };
        let values = input.iter().flat_map(|row| {
            let outputs = weights.chunks_exact(features).zip(biases);
            outputs.map(move |(weights, bias)| product(row, weights) + bias)
        });
        let values = values.collect();
        self.input = input;
        Ok(values)
    }

    fn backward(&mut self, slopes: &[f32]) -> Result<Vec<f32>, ReplicaError> {
        let Size { features, outputs } = self.size;
        let mut gradients = vec![0.0; self.size.parameters()];
        let (weights, biases) = gradients.split_at_mut(features * outputs);
        for (row, slopes) in self.input.iter().zip(slopes.chunks_exact(outputs)) {
            for ((weights, bias), slope) in weights.chunks_exact_mut(features).zip(&mut *biases).zip(slopes) {
                weights.iter_mut().zip(row).for_each(|(sum, value)| *sum += slope * value);
                *bias += slope;
            }
        }
        Ok(gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_layer_forward_and_backward_are_correct() {
        let mut layer = CpuLayer::new(Size { features: 2, outputs: 2 });
        layer.set_parameters(&[1.0, 2.0, 3.0, 4.0, 0.5, -1.0]).unwrap();
        let output = layer.forward(rows(2, vec![1.0, 1.0, 10.0, 0.0])).unwrap();
        assert_eq!(output, [3.5, 6.0, 10.5, 29.0]);
        let gradients = layer.backward(&[1.0, 0.0, 0.5, 2.0]).unwrap();
        assert_eq!(gradients, [6.0, 1.0, 20.0, 0.0, 1.5, 2.0]);
    }
}
