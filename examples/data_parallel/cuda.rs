//! A linear layer on a CUDA device, by kernels that NVRTC compiles when the program runs: nothing of CUDA is needed to build.
#![expect(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{self, CompileError};
use rankrun_worker::cuda::{CudaMissing, cuda_context};
use rankrun_worker::data_parallel::{Batch, Rows};

use crate::replica::{Layer, ReplicaError, Size};

const SOURCE: &str = include_str!("linear.cu");

#[derive(Debug, thiserror::Error)]
pub(crate) enum CudaLayerError {
    #[error("{0}\nhint: {hint}", hint = .0.hint())]
    Missing(#[from] CudaMissing),
    #[error("there is no NVRTC, which compiles the kernels; it is `libnvrtc.so` of the CUDA toolkit")]
    NoCompiler,
    #[error("NVRTC cannot compile the kernels")]
    Compile(#[from] CompileError),
    #[error("the CUDA device failed")]
    Device(#[from] DriverError),
}

pub(crate) struct CudaLayer {
    size: Size,
    stream: Arc<CudaStream>,
    forward: CudaFunction,
    backward: CudaFunction,
    parameters: CudaSlice<f32>,
    /// Of the last forward, with its rows.
    input: Option<(CudaSlice<f32>, usize)>,
}

impl CudaLayer {
    pub(crate) fn new(size: Size, ordinal: usize) -> Result<Self, CudaLayerError> {
        let context: Arc<CudaContext> = cuda_context(ordinal)?;
        // SAFETY: it opens NVRTC, which may be loaded at any time.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return Err(CudaLayerError::NoCompiler);
        }
        let module = context.load_module(nvrtc::compile_ptx(SOURCE)?)?;
        let stream = context.new_stream()?;
        Ok(Self {
            forward: module.load_function("forward")?,
            backward: module.load_function("backward")?,
            parameters: stream.alloc_zeros(size.parameters())?,
            input: None,
            size,
            stream,
        })
    }

    fn run_forward(&mut self, input: &Rows<f32>) -> Result<Vec<f32>, CudaLayerError> {
        let Self { size, stream, forward, parameters, .. } = self;
        let rows = input.rows();
        let on_device = stream.clone_htod(input.values())?;
        let mut output = stream.alloc_zeros::<f32>(rows * size.outputs)?;
        let [count, features, outputs] = [rows, size.features, size.outputs].map(int);
        let mut launch = stream.launch_builder(forward);
        launch.arg(&mut output).arg(&*parameters).arg(&on_device).arg(&count).arg(&features).arg(&outputs);
        // SAFETY: the arguments are those of the kernel, which stays within memory of the sizes that it is told.
        unsafe { launch.launch(threads(rows * size.outputs)) }?;
        let values = stream.clone_dtoh(&output)?;
        self.input = Some((on_device, rows));
        Ok(values)
    }

    fn run_backward(&mut self, slopes: &[f32]) -> Result<Vec<f32>, CudaLayerError> {
        let Self { size, stream, backward, input, .. } = self;
        let mut gradients = stream.alloc_zeros::<f32>(size.parameters())?;
        if let Some((input, rows)) = input {
            let on_device = stream.clone_htod(slopes)?;
            let [count, features, outputs] = [*rows, size.features, size.outputs].map(int);
            let mut launch = stream.launch_builder(backward);
            launch.arg(&mut gradients).arg(&on_device).arg(&*input).arg(&count).arg(&features).arg(&outputs);
            // SAFETY: as above; there are slopes for each output of the last input.
            unsafe { launch.launch(threads(size.parameters())) }?;
        }
        Ok(stream.clone_dtoh(&gradients)?)
    }
}

impl Layer for CudaLayer {
    fn parameters(&self) -> Result<Vec<f32>, ReplicaError> {
        Ok(self.stream.clone_dtoh(&self.parameters).map_err(CudaLayerError::Device)?)
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), ReplicaError> {
        Ok(self.stream.memcpy_htod(parameters, &mut self.parameters).map_err(CudaLayerError::Device)?)
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

/// At least so many threads.
fn threads(count: usize) -> LaunchConfig {
    LaunchConfig::for_num_elems(u32::try_from(count).unwrap_or(u32::MAX))
}
