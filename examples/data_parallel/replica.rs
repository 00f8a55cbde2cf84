//! A linear layer as a replica of `DataParallel`: what is the same on every device.

use std::io;

use rankrun_examples::console;
use rankrun_examples::gpu::GpuError;
use rankrun_examples::random::Random;
use rankrun_worker::data_parallel::{Device, Replica, Rows};

use crate::cpu::CpuLayer;
use crate::cuda::CudaLayer;

/// The size of a linear layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) features: usize,
    pub(crate) outputs: usize,
}

impl Size {
    /// A weight for each output and feature, output by output, then a bias for each output.
    pub(crate) fn parameters(self) -> usize {
        (self.features + 1) * self.outputs
    }

    /// Even numbers within one over the root of the features, as torch begins.
    pub(crate) fn random_parameters(self, random: &mut Random) -> Vec<f32> {
        let bound = (self.features as f64).sqrt().recip();
        (0..self.parameters()).map(|_| (random.uniform() * bound) as f32).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaError {
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

/// A linear layer on a device.
pub(crate) trait Layer: Send {
    fn parameters(&self) -> Result<Vec<f32>, ReplicaError>;

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), ReplicaError>;

    /// Outputs of all rows, row by row; keeps the input.
    fn forward(&mut self, input: Rows<f32>) -> Result<Vec<f32>, ReplicaError>;

    /// Gradients of all parameters, from those of the outputs of the last forward.
    fn backward(&mut self, slopes: &[f32]) -> Result<Vec<f32>, ReplicaError>;
}

/// A replica, which tells of what it is given.
pub(crate) struct Model {
    size: Size,
    layer: Box<dyn Layer>,
    /// The rank that it belongs to, and its device.
    place: String,
    /// Sums since the last step.
    gradients: Vec<f32>,
}

impl Model {
    /// The layer on a device, with parameters of zero.
    pub(crate) fn new(size: Size, device: &Device, rank: &str) -> Result<Self, ReplicaError> {
        let layer: Box<dyn Layer> = match device {
            Device::Cuda(ordinal) => Box::new(CudaLayer::new(size, *ordinal)?),
            _ => Box::new(CpuLayer::new(size)),
        };
        let place = format!("rank {rank}, device {device}, pid {}", std::process::id());
        Ok(Self { size, layer, place, gradients: vec![0.0; size.parameters()] })
    }

    /// Takes the gradients away: the next ones are sums from zero.
    pub(crate) fn take_gradients(&mut self) -> Vec<f32> {
        std::mem::replace(&mut self.gradients, vec![0.0; self.size.parameters()])
    }

    /// Takes a step against gradients.
    pub(crate) fn descend(&mut self, gradients: &[f32], rate: f32) -> Result<(), ReplicaError> {
        let mut parameters = self.layer.parameters()?;
        parameters.iter_mut().zip(gradients).for_each(|(weight, slope)| *weight -= rate * slope);
        self.layer.set_parameters(&parameters)
    }
}

impl Replica for Model {
    type Input = Rows<f32>;
    type Output = Rows<f32>;
    type Parameters = Vec<f32>;
    type Error = ReplicaError;

    fn parameters(&self) -> Result<Vec<f32>, ReplicaError> {
        self.layer.parameters()
    }

    fn set_parameters(&mut self, parameters: &Vec<f32>) -> Result<(), ReplicaError> {
        self.layer.set_parameters(parameters)
    }

    fn forward(&mut self, input: Rows<f32>) -> Result<Rows<f32>, ReplicaError> {
        let size = input.to_string();
        let output = rows(self.size.outputs, self.layer.forward(input)?);
        console::line(&format!("In Model: input size {size}, output size {output} ({})", self.place))?;
        Ok(output)
    }

    fn backward(&mut self, output_gradient: Rows<f32>) -> Result<Vec<f32>, ReplicaError> {
        self.layer.backward(output_gradient.values())
    }

    fn add_gradients(&mut self, gradients: &Vec<f32>) -> Result<(), ReplicaError> {
        self.gradients.iter_mut().zip(gradients).for_each(|(sum, slope)| *sum += slope);
        Ok(())
    }
}

/// Rows of which the numbers are known to be whole.
pub(crate) fn rows(columns: usize, values: Vec<f32>) -> Rows<f32> {
    Rows::new(columns, values).expect("the sizes of a layer are positive, and it makes whole rows")
}
