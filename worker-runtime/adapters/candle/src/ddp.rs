//! Training on parts of a batch.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, Device, DeviceLocation, Storage, Tensor, Var};
use candle_nn::VarMap;
use rankrun_worker::ddp::{self, DdpError, DdpOptions, Gradients, Parameter};
use rankrun_worker::process_group::{Element, bf16, f16};
use rankrun_worker::{Group, Rank, Reduction};

use crate::tensors::piece;
use crate::{CandleError, all_reduce, broadcast};

/// Whose variables all ranks begin with.
const ROOT: Rank = Rank(0);

/// The variables of a model, whose gradients become their mean over all ranks.
///
/// Variables are taken in the order of their names, which is the same on every rank.
#[derive(Debug)]
pub struct Ddp {
    variables: Vec<(String, Var)>,
    way: Way,
}

/// How gradients are exchanged.
#[derive(Debug)]
enum Way {
    /// Through buckets in memory of the host.
    Host(Box<ddp::Ddp>),
    /// Where they lie, on the device's stream.
    Device(Group),
}

impl Ddp {
    /// Takes the group, and gives all ranks the variables of rank 0.
    ///
    /// For variables on a GPU the group is one on NCCL (`GroupOptions::backend`, `RANKRUN_BACKEND`).
    ///
    /// # Errors
    /// The variables of the ranks differ, lie on several devices or are of a type that no group carries; or the group failed.
    pub fn new(mut group: Group, variables: &VarMap, options: &DdpOptions) -> Result<Self, CandleError> {
        let variables = sorted(variables);
        if is_on_host(&variables)? {
            let parameters = variables.iter().map(|(name, variable)| parameter(name, variable));
            let ddp = ddp::Ddp::new(group, parameters.collect::<Result<_, _>>()?, options)?;
            let mut this = Self { variables, way: Way::Host(Box::new(ddp)) };
            this.share()?;
            return Ok(this);
        }
        for (_, variable) in &variables {
            broadcast(&mut group, variable, ROOT)?;
        }
        Ok(Self { variables, way: Way::Device(group) })
    }

    /// The variables, in the order of their names.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// The gradients of `loss`, as their mean over all ranks: with losses that are means over equal parts of a batch, the gradients
    /// of the whole batch.
    ///
    /// # Errors
    /// As [`average`](Self::average); or candle fails.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradStore, CandleError> {
        let mut gradients = loss.backward()?;
        self.average(&mut gradients)?;
        Ok(gradients)
    }

    /// Puts the mean over all ranks in the place of each gradient.
    ///
    /// # Errors
    /// A variable has no gradient, unless [`DdpOptions::find_unused`] says that this may be so; or the group failed. On a GPU an error
    /// of the group comes with the next call.
    pub fn average(&mut self, gradients: &mut GradStore) -> Result<(), CandleError> {
        match &mut self.way {
            Way::Host(ddp) => average_on_host(ddp, &self.variables, gradients),
            Way::Device(group) => {
                for (name, variable) in self.variables.iter().rev() {
                    let gradient = gradients.get(variable).ok_or_else(|| missing(name))?;
                    // The mean is written where the gradient lies, and of a view into a piece of its own.
                    let gradient = gradient.contiguous()?;
                    all_reduce(group, &gradient, Reduction::Mean)?;
                    gradients.insert(variable, gradient);
                }
                Ok(())
            }
        }
    }

    /// Gives all ranks the variables of rank 0.
    fn share(&mut self) -> Result<(), CandleError> {
        let Way::Host(ddp) = &mut self.way else { return Ok(()) };
        macro_rules! each_type {
            ($($type:ty),*) => {$(
                let of_type: Vec<&Var> = self.variables.iter().map(|(_, variable)| variable)
                    .filter(|variable| variable.dtype() == <$type as candle_core::WithDType>::DTYPE).collect();
                let read = |variable: &&Var| variable.flatten_all()?.to_vec1::<$type>();
                let mut values = of_type.iter().map(read).collect::<candle_core::Result<Vec<_>>>()?;
                if !values.is_empty() {
                    ddp.broadcast::<$type, _>(values.iter_mut())?;
                    for (variable, values) in of_type.iter().zip(&values) {
                        variable.set(&Tensor::from_slice(values, variable.shape(), variable.device())?)?;
                    }
                }
            )*};
        }
        each_type!(f16, bf16, f32, f64);
        Ok(())
    }
}

fn sorted(variables: &VarMap) -> Vec<(String, Var)> {
    let data = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut sorted: Vec<_> = data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    sorted
}

/// Whether all variables are in memory of the host; otherwise all are on one GPU.
fn is_on_host(variables: &[(String, Var)]) -> Result<bool, CandleError> {
    let name_of = |device: &Device| format!("{:?}", device.location());
    let Some((first, variable)) = variables.first() else { return Ok(true) };
    let location = variable.device().location();
    if let Some((name, other)) = variables.iter().find(|(_, other)| other.device().location() != location) {
        return Err(CandleError::Devices {
            first: first.clone(),
            first_device: name_of(variable.device()),
            name: name.clone(),
            device: name_of(other.device()),
        });
    }
    match location {
        DeviceLocation::Cpu => Ok(true),
        DeviceLocation::Cuda { .. } if cfg!(feature = "cuda") => Ok(false),
        DeviceLocation::Cuda { .. } => Err(CandleError::Device {
            device: name_of(variable.device()),
            hint: "build `rankrun-candle` with the feature `cuda`",
        }),
        DeviceLocation::Metal { .. } => Err(CandleError::Device {
            device: name_of(variable.device()),
            hint: "move the variables to the CPU or to a CUDA device",
        }),
    }
}

fn missing(name: &str) -> CandleError {
    DdpError::Missing { parameter: name.to_owned(), others: 0 }.into()
}

fn parameter(name: &str, variable: &Var) -> Result<Parameter, CandleError> {
    let shape = variable.dims();
    Ok(match variable.dtype() {
        DType::F16 => Parameter::new::<f16>(name, shape),
        DType::BF16 => Parameter::new::<bf16>(name, shape),
        DType::F32 => Parameter::new::<f32>(name, shape),
        DType::F64 => Parameter::new::<f64>(name, shape),
        other => return Err(CandleError::DataType(other)),
    })
}

fn average_on_host(
    ddp: &mut ddp::Ddp,
    variables: &[(String, Var)],
    gradients: &mut GradStore,
) -> Result<(), CandleError> {
    for (index, (_, variable)) in variables.iter().enumerate().rev() {
        // Whether one may be missing, `finish` knows.
        if let Some(gradient) = gradients.get(variable) {
            hand_over(ddp, index, &gradient.contiguous()?)?;
        }
    }
    let means = ddp.finish()?;
    for (index, (_, variable)) in variables.iter().enumerate() {
        if !means.is_unused(index) {
            gradients.insert(variable, mean(&means, index, variable)?);
        }
    }
    Ok(())
}

/// Copies a gradient into its bucket.
fn hand_over(ddp: &mut ddp::Ddp, index: usize, gradient: &Tensor) -> Result<(), CandleError> {
    let (storage, layout) = gradient.storage_and_layout();
    let (from, to) = piece(layout)?;
    let Storage::Cpu(storage) = &*storage else {
        return Err(CandleError::Device {
            device: format!("{:?}", gradient.device().location()),
            hint: "its variable is on the CPU",
        });
    };
    match storage {
        CpuStorage::F16(all) => ddp.ready(index, &all[from..to])?,
        CpuStorage::BF16(all) => ddp.ready(index, &all[from..to])?,
        CpuStorage::F32(all) => ddp.ready(index, &all[from..to])?,
        CpuStorage::F64(all) => ddp.ready(index, &all[from..to])?,
        _ => return Err(CandleError::DataType(gradient.dtype())),
    }
    Ok(())
}

fn mean(means: &Gradients<'_>, index: usize, variable: &Var) -> Result<Tensor, CandleError> {
    fn tensor<T: Element + candle_core::WithDType>(
        means: &Gradients<'_>,
        index: usize,
        variable: &Var,
    ) -> Result<Tensor, CandleError> {
        Ok(Tensor::from_slice(means.get::<T>(index)?, variable.shape(), variable.device())?)
    }
    match variable.dtype() {
        DType::F16 => tensor::<f16>(means, index, variable),
        DType::BF16 => tensor::<bf16>(means, index, variable),
        DType::F32 => tensor::<f32>(means, index, variable),
        DType::F64 => tensor::<f64>(means, index, variable),
        other => Err(CandleError::DataType(other)),
    }
}
