//! A linear layer on a CUDA device.
#![expect(unsafe_code, reason = "launches kernels")]

use cudarc::driver::{CudaFunction, CudaSlice, PushKernelArg};
use rankrun_examples::gpu::{Gpu, GpuError, threads};
use rankrun_worker::data_parallel::{Batch, Rows};

use crate::replica::{Layer, ReplicaError, Size};

const KERNELS: &str = include_str!("linear.cu");

pub(crate) struct CudaLayer {
    size: Size,
    gpu: Gpu,
    forward: CudaFunction,
    backward: CudaFunction,
    parameters: CudaSlice<f32>,
    /// Input and rows of the last forward.
    input: Option<(CudaSlice<f32>, usize)>,
}

impl CudaLayer {
    pub(crate) fn new(size: Size, ordinal: usize) -> Result<Self, GpuError> {
        let gpu = Gpu::open(ordinal, KERNELS)?;
        Ok(Self {
            forward: gpu.kernel("forward")?,
            backward: gpu.kernel("backward")?,
            parameters: gpu.stream.alloc_zeros(size.parameters())?,
            input: None,
            size,
            gpu,
        })
    }

    fn run_forward(&mut self, input: &Rows<f32>) -> Result<Vec<f32>, GpuError> {
        let Self { size, gpu, forward, parameters, .. } = self;
        let (stream, rows) = (&gpu.stream, input.rows());
        let on_device = gpu.put_new(input.values())?;
        let mut output = stream.alloc_zeros::<f32>(rows * size.outputs)?;
        let [count, features, outputs] = [rows, size.features, size.outputs].map(int);
        let mut launch = stream.launch_builder(forward);
        launch.arg(&mut output).arg(&*parameters).arg(&on_device).arg(&count).arg(&features).arg(&outputs);
        // SAFETY: the arguments match the kernel, which stays within the given sizes.
        unsafe { launch.launch(threads(rows * size.outputs)) }?;
        let values = gpu.get_all(&output)?;
        self.input = Some((on_device, rows));
        Ok(values)
    }

    fn run_backward(&mut self, slopes: &[f32]) -> Result<Vec<f32>, GpuError> {
        let Self { size, gpu, backward, input, .. } = self;
        let stream = &gpu.stream;
        let mut gradients = stream.alloc_zeros::<f32>(size.parameters())?;
        if let Some((input, rows)) = input {
            let on_device = gpu.put_new(slopes)?;
            let [count, features, outputs] = [*rows, size.features, size.outputs].map(int);
            let mut launch = stream.launch_builder(backward);
            launch.arg(&mut gradients).arg(&on_device).arg(&*input).arg(&count).arg(&features).arg(&outputs);
            // SAFETY: as above; there is a slope for each output of the last input.
            unsafe { launch.launch(threads(size.parameters())) }?;
        }
        gpu.get_all(&gradients)
    }
}

impl Layer for CudaLayer {
    fn parameters(&self) -> Result<Vec<f32>, ReplicaError> {
        Ok(self.gpu.get_all(&self.parameters)?)
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), ReplicaError> {
        Ok(self.gpu.put(parameters, &mut self.parameters)?)
    }

    fn forward(&mut self, input: Rows<f32>) -> Result<Vec<f32>, ReplicaError> {
        Ok(self.run_forward(&input)?)
    }

    fn backward(&mut self, slopes: &[f32]) -> Result<Vec<f32>, ReplicaError> {
        Ok(self.run_backward(slopes)?)
    }
}

/// Sizes of this program are at most some millions.
fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}
