//! One process, several devices: torch's `nn.DataParallel`.
//!
//! The model lives on the first device. Every device gets a part of each batch, on a thread of its own, and
//! the outputs are concatenated; backward works the same way, and the gradients of all devices are summed
//! into the first. [`ddp`](crate::ddp) uses several processes and scales further: here all threads share one
//! program, and parameters are copied in each step.

mod batch;
mod device;

use std::error::Error;
use std::fmt;
use std::io;
use std::thread;

pub use self::batch::{Batch, Rows, UnevenRows, chunks};
pub use self::device::{DeviceError, DeviceIds};
pub use rankrun_contract::device::Device;

/// A model on one device. One thread at a time makes its calls, not always the same one.
pub trait Replica: Send {
    /// Input of the model, split along rows.
    type Input: Batch;
    /// Output of the model, with one row per input row.
    type Output: Batch;
    /// All parameters, or the gradients of all, as copied between devices.
    type Parameters: Send + Sync;
    /// Error of a failed call.
    type Error: Error + Send + 'static;

    /// Copies all parameters.
    ///
    /// # Errors
    /// The device failed.
    fn parameters(&self) -> Result<Self::Parameters, Self::Error>;

    /// Overwrites all parameters with those of another replica.
    ///
    /// # Errors
    /// The device failed.
    fn set_parameters(&mut self, parameters: &Self::Parameters) -> Result<(), Self::Error>;

    /// Computes the output of its part of a batch.
    ///
    /// # Errors
    /// The device failed, or the shape of the input is wrong.
    fn forward(&mut self, input: Self::Input) -> Result<Self::Output, Self::Error>;
}

/// A replica that can be trained: `forward` keeps what [`backward`](Self::backward) needs.
pub trait TrainableReplica: Replica {
    /// Computes the gradients of all parameters from that of the output of the last
    /// [`forward`](Replica::forward).
    ///
    /// # Errors
    /// The device failed, or the shape of the gradient is wrong.
    fn backward(&mut self, output_gradient: Self::Output) -> Result<Self::Parameters, Self::Error>;

    /// Adds gradients to those of this replica, for the optimiser.
    ///
    /// # Errors
    /// The device failed.
    fn add_gradients(&mut self, gradients: &Self::Parameters) -> Result<(), Self::Error>;
}

/// A failed call of [`DataParallel`].
#[derive(Debug, thiserror::Error)]
pub enum DataParallelError<E: Error + 'static> {
    /// A replica failed; the first one in device order, if several did.
    #[error("the replica on `{device}` failed")]
    Replica {
        /// The device of the replica.
        device: Device,
        /// The error of the replica.
        #[source]
        source: E,
    },
    /// The batch is empty. torch would run every replica on it, and return a mean of NaN.
    #[error("the batch has no rows")]
    NoRows,
    /// `backward` needs the output of a successful `forward`.
    #[error("`backward` needs a successful `forward` before it")]
    NoForward,
    /// The gradient has another number of rows than the output.
    #[error("the gradient of the output has {actual} rows, but the output had {expected}")]
    WrongRows {
        /// Rows of the output.
        expected: usize,
        /// Rows of the gradient.
        actual: usize,
    },
    /// The system refuses a thread.
    #[error("the replica on `{device}` cannot start a thread")]
    Thread {
        /// The device of the replica.
        device: Device,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// A model on several devices of this process.
///
/// ```
/// use rankrun_worker::data_parallel::{
///     Batch, DataParallel, Device, DeviceIds, Replica, Rows, TrainableReplica,
/// };
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
/// }
///
/// impl TrainableReplica for Scale {
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
/// assert_eq!(model.first_replica().gradients, [6.0, 6.0]);
/// # Ok(())
/// # }
/// ```
pub struct DataParallel<R> {
    devices: DeviceIds,
    /// One replica per device, in device order.
    replicas: Vec<R>,
    /// Whether a replica has outdated parameters.
    is_stale: Vec<bool>,
    /// Output rows of each replica in the last forward; empty after a failure.
    output_rows: Vec<usize>,
}

impl<R> fmt::Debug for DataParallel<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataParallel on {:?}", self.devices.devices())
    }
}

impl<R: Replica> DataParallel<R> {
    /// Makes a replica on each device. All get the parameters of the first one.
    ///
    /// # Errors
    /// The error of `make` for a replica.
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

    /// The devices in order.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        self.devices.devices()
    }

    /// The replica on the first device, with the parameters and gradients of the model; torch's `module`.
    #[must_use]
    pub fn first_replica(&self) -> &R {
        &self.replicas[0]
    }

    /// As [`first_replica`](Self::first_replica), mutable, for the optimiser. The others get
    /// its parameters with their next batch.
    pub fn first_replica_mut(&mut self) -> &mut R {
        self.is_stale[1..].fill(true);
        &mut self.replicas[0]
    }

    /// Computes the output for a batch. Each device gets a part, as by [`chunks`]; if there are fewer rows
    /// than devices, the last devices get none.
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
        let outputs = self.run_on_replicas(parts.len(), |at, replica| {
            if let (true, Some(parameters)) = (is_stale[at], &parameters) {
                replica.set_parameters(parameters)?;
            }
            replica.forward(input.slice_rows(parts[at].clone()))
        })?;
        self.is_stale[..parts.len()].fill(false);
        self.output_rows = outputs.iter().map(Batch::rows).collect();
        Ok(R::Output::concat(outputs))
    }

    /// Calls a function on each of the first replicas, each on a thread of its
    /// own; returns the results in order.
    fn run_on_replicas<T: Send>(
        &mut self,
        replicas: usize,
        call: impl Fn(usize, &mut R) -> Result<T, R::Error> + Sync,
    ) -> Result<Vec<T>, DataParallelError<R::Error>> {
        let devices = self.devices.devices();
        let failed = |at: usize| {
            let device = devices[at].clone();
            |source| DataParallelError::Replica { device, source }
        };
        // As in torch: one replica needs no thread.
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
            // All threads are joined, also after an error.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

impl<R: TrainableReplica> DataParallel<R> {
    /// Computes the gradients of all parameters from that of the output of the last
    /// [`forward`](Self::forward), and adds them to those of the first replica, in device order.
    ///
    /// # Errors
    /// There was no output, the number of rows is wrong, or a replica failed.
    ///
    /// # Panics
    /// If a replica does.
    pub fn backward(&mut self, output_gradient: &R::Output) -> Result<(), DataParallelError<R::Error>> {
        let rows = std::mem::take(&mut self.output_rows);
        if rows.is_empty() {
            return Err(DataParallelError::NoForward);
        }
        let (expected, actual) = (rows.iter().sum(), output_gradient.rows());
        if expected != actual {
            return Err(DataParallelError::WrongRows { expected, actual });
        }
        let gradients = self.run_on_replicas(rows.len(), |at, replica| {
            let start = rows[..at].iter().sum();
            replica.backward(output_gradient.slice_rows(start..start + rows[at]))
        })?;
        for gradients in gradients {
            let added = self.replicas[0].add_gradients(&gradients);
            let device = || self.devices.devices()[0].clone();
            added.map_err(|source| DataParallelError::Replica { device: device(), source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
