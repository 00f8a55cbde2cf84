//! One process, several devices: torch's `nn.DataParallel`.
//!
//! The model is on the first device. Of each batch every device gets a part, on a thread of its own, and what comes out is put
//! together; backward goes the same way, and the gradients of all devices are summed into the first. For more than one process
//! see [`ddp`](crate::ddp), which scales further: here all threads share one program, and parameters travel in each step.

mod batch;
mod device;

use std::error::Error;
use std::fmt;
use std::io;
use std::thread;

pub use self::batch::{Batch, Rows, UnevenRows, chunks};
pub use self::device::{DeviceError, DeviceIds};
pub use rankrun_contract::device::Device;

/// A model on one device. All its calls are made by one thread at a time, but not always by the same one.
pub trait Replica: Send {
    /// What it is given.
    type Input: Batch;
    /// What it makes of it.
    type Output: Batch;
    /// All its parameters as they travel between devices, or gradients of all.
    type Parameters: Send + Sync;
    /// How it fails.
    type Error: Error + Send + 'static;

    /// What all parameters are now.
    ///
    /// # Errors
    /// The device failed.
    fn parameters(&self) -> Result<Self::Parameters, Self::Error>;

    /// Takes the parameters of another replica.
    ///
    /// # Errors
    /// The device failed.
    fn set_parameters(&mut self, parameters: &Self::Parameters) -> Result<(), Self::Error>;

    /// What the model makes of some rows; it keeps what [`backward`](Self::backward) needs.
    ///
    /// # Errors
    /// The device failed, or the input does not fit.
    fn forward(&mut self, input: Self::Input) -> Result<Self::Output, Self::Error>;

    /// The gradients of all parameters, from that of the output of the last [`forward`](Self::forward).
    ///
    /// # Errors
    /// The device failed, or the gradient does not fit.
    fn backward(&mut self, output_gradient: Self::Output) -> Result<Self::Parameters, Self::Error>;

    /// Adds gradients to its own, by which its owner takes a step.
    ///
    /// # Errors
    /// The device failed.
    fn add_gradients(&mut self, gradients: &Self::Parameters) -> Result<(), Self::Error>;
}

/// A failed call of [`DataParallel`].
#[derive(Debug, thiserror::Error)]
pub enum DataParallelError<E: Error + 'static> {
    /// A replica failed; the first one in the order of the devices, if several did.
    #[error("the replica on `{device}` failed")]
    Replica {
        /// Where it is.
        device: Device,
        /// Its error.
        #[source]
        source: E,
    },
    /// torch would run every replica on nothing, and a mean over no rows is not a number.
    #[error("the batch has no rows")]
    NoRows,
    /// There is no output to which a gradient could belong.
    #[error("`backward` was called without a `forward` that succeeded before it")]
    NoForward,
    /// A gradient of another length than the output.
    #[error("the gradient of the output has {given} rows, but the output had {expected}")]
    WrongRows {
        /// Rows of the output.
        expected: usize,
        /// Rows of the gradient.
        given: usize,
    },
    /// The system has no thread to give.
    #[error("no thread for the replica on `{device}`")]
    Thread {
        /// Where it is.
        device: Device,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A model on several devices of this process.
///
/// ```
/// use rankrun_worker::data_parallel::{Batch, DataParallel, Device, DeviceIds, Replica, Rows};
///
/// /// A weight for each column.
/// struct Scale {
///     weights: Vec<f32>,
///     gradients: Vec<f32>,
///     input: Rows<f32>,
/// }
///
/// impl Replica for Scale {
///     type Input = Rows<f32>;
///     type Output = Rows<f32>;
///     type Parameters = Vec<f32>;
///     type Error = std::convert::Infallible;
///
///     fn parameters(&self) -> Result<Vec<f32>, Self::Error> {
///         Ok(self.weights.clone())
///     }
///     fn set_parameters(&mut self, weights: &Vec<f32>) -> Result<(), Self::Error> {
///         Ok(self.weights.clone_from(weights))
///     }
///     fn forward(&mut self, input: Rows<f32>) -> Result<Rows<f32>, Self::Error> {
///         let mut output = input.clone();
///         for row in output.values_mut().chunks_mut(self.weights.len()) {
///             row.iter_mut().zip(&self.weights).for_each(|(value, weight)| *value *= weight);
///         }
///         self.input = input;
///         Ok(output)
///     }
///     fn backward(&mut self, slopes: Rows<f32>) -> Result<Vec<f32>, Self::Error> {
///         let mut gradients = vec![0.0; self.weights.len()];
///         for (slopes, row) in slopes.iter().zip(self.input.iter()) {
///             let sums = gradients.iter_mut().zip(slopes.iter().zip(row));
///             sums.for_each(|(sum, (slope, value))| *sum += slope * value);
///         }
///         Ok(gradients)
///     }
///     fn add_gradients(&mut self, gradients: &Vec<f32>) -> Result<(), Self::Error> {
///         Ok(self.gradients.iter_mut().zip(gradients).for_each(|(sum, slope)| *sum += slope))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let devices = DeviceIds::new(vec![Device::Cpu(0), Device::Cpu(1)], 2)?;
/// let empty = Rows::new(2, vec![])?;
/// let mut model = DataParallel::new(devices, |_| {
///     Ok(Scale { weights: vec![2.0, 3.0], gradients: vec![0.0; 2], input: empty.clone() })
/// })?;
/// let output = model.forward(&Rows::new(2, vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0])?)?;
/// assert_eq!(output.values(), [2.0, 3.0, 4.0, 6.0, 6.0, 9.0]);
/// model.backward(&Rows::new(2, vec![1.0; 6])?)?;
/// assert_eq!(model.first().gradients, [6.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct DataParallel<R> {
    devices: DeviceIds,
    /// One for each device, in their order.
    replicas: Vec<R>,
    /// Whether a replica has other parameters than the first.
    is_stale: Vec<bool>,
    /// Rows of the output of each replica that took part in the last forward; none if that failed.
    output_rows: Vec<usize>,
}

impl<R> fmt::Debug for DataParallel<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataParallel on {:?}", self.devices.devices())
    }
}

impl<R: Replica> DataParallel<R> {
    /// Puts a replica on each device. The parameters are those of the first one.
    ///
    /// # Errors
    /// A replica cannot be made.
    pub fn new(
        devices: DeviceIds,
        mut build: impl FnMut(&Device) -> Result<R, R::Error>,
    ) -> Result<Self, DataParallelError<R::Error>> {
        let build = |device: &Device| {
            let replica = build(device);
            replica.map_err(|source| DataParallelError::Replica { device: device.clone(), source })
        };
        let replicas: Vec<R> = devices.devices().iter().map(build).collect::<Result<_, _>>()?;
        let is_stale = (0..replicas.len()).map(|at| at > 0).collect();
        Ok(Self { devices, replicas, is_stale, output_rows: Vec::new() })
    }

    /// The devices, in their order.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        self.devices.devices()
    }

    /// The replica on the first device, whose parameters and gradients are those of the model; torch's `module`.
    #[must_use]
    pub fn first(&self) -> &R {
        &self.replicas[0]
    }

    /// As [`first`](Self::first), to take a step. The others get its parameters with their next batch.
    pub fn first_mut(&mut self) -> &mut R {
        self.is_stale[1..].fill(true);
        &mut self.replicas[0]
    }

    /// What the model makes of a batch. Each device gets a part, as [`chunks`] has it; of fewer rows than devices, the last
    /// devices get none and have no part in it.
    ///
    /// # Errors
    /// The batch has no rows, or a replica failed.
    ///
    /// # Panics
    /// If a replica does.
    pub fn forward(&mut self, input: &R::Input) -> Result<R::Output, DataParallelError<R::Error>> {
        self.output_rows.clear();
        let rows = input.rows();
        if rows == 0 {
            return Err(DataParallelError::NoRows);
        }
        let parts = chunks(rows, self.replicas.len());
        let is_stale = self.is_stale[..parts.len()].to_vec();
        let device = || self.devices.devices()[0].clone();
        let parameters = is_stale.contains(&true).then(|| self.replicas[0].parameters()).transpose();
        let parameters =
            parameters.map_err(|source| DataParallelError::Replica { device: device(), source })?;
        let outputs = self.apply(parts.len(), |at, replica| {
            if let (true, Some(parameters)) = (is_stale[at], &parameters) {
                replica.set_parameters(parameters)?;
            }
            replica.forward(input.part(parts[at].clone()))
        })?;
        self.is_stale[..parts.len()].fill(false);
        self.output_rows = outputs.iter().map(Batch::rows).collect();
        Ok(R::Output::join(outputs))
    }

    /// Adds the gradients of all parameters to those of the first replica, from that of the output of the last
    /// [`forward`](Self::forward). They are added in the order of the devices.
    ///
    /// # Errors
    /// There was no output, it had another length, or a replica failed.
    ///
    /// # Panics
    /// If a replica does.
    pub fn backward(&mut self, output_gradient: &R::Output) -> Result<(), DataParallelError<R::Error>> {
        let rows = std::mem::take(&mut self.output_rows);
        if rows.is_empty() {
            return Err(DataParallelError::NoForward);
        }
        let (expected, given) = (rows.iter().sum(), output_gradient.rows());
        if expected != given {
            return Err(DataParallelError::WrongRows { expected, given });
        }
        let gradients = self.apply(rows.len(), |at, replica| {
            let start = rows[..at].iter().sum();
            replica.backward(output_gradient.part(start..start + rows[at]))
        })?;
        for gradients in gradients {
            let added = self.replicas[0].add_gradients(&gradients);
            let device = || self.devices.devices()[0].clone();
            added.map_err(|source| DataParallelError::Replica { device: device(), source })?;
        }
        Ok(())
    }

    /// Does something with each of the first replicas, each on a thread of its own; what comes of it, in their order.
    fn apply<T: Send>(
        &mut self,
        replicas: usize,
        call: impl Fn(usize, &mut R) -> Result<T, R::Error> + Sync,
    ) -> Result<Vec<T>, DataParallelError<R::Error>> {
        let devices = self.devices.devices();
        let failed = |at: usize| {
            let device = devices[at].clone();
            |source| DataParallelError::Replica { device, source }
        };
        // As torch: one replica needs no thread.
        if let ([first], _) | ([first, ..], 1) = (&mut self.replicas[..], replicas) {
            return call(0, first).map(|one| vec![one]).map_err(failed(0));
        }
        thread::scope(|scope| {
            let call = &call;
            let started: Vec<_> = self.replicas[..replicas]
                .iter_mut()
                .enumerate()
                .map(|(at, replica)| {
                    let thread = thread::Builder::new().name(devices[at].to_string());
                    thread.spawn_scoped(scope, move || call(at, replica))
                })
                .collect();
            let ended = started.into_iter().enumerate().map(|(at, thread)| {
                let device = devices[at].clone();
                let thread = thread.map_err(|source| DataParallelError::Thread { device, source })?;
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result.map_err(failed(at))
            });
            // Every one is waited for, whatever became of those before it.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

#[cfg(test)]
mod tests;
