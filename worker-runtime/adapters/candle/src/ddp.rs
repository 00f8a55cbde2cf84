//! Data-parallel training of candle's variables.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, DeviceLocation, Storage, Tensor, Var};
use candle_nn::VarMap;
use rankrun_worker::ddp::{self, DdpOptions, Gradients, Parameter};
#[cfg(feature = "cuda")]
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{Element, bf16, f16};
use rankrun_worker::{Group, GroupOptions, WorkerContext};

use crate::CandleError;
#[cfg(feature = "cuda")]
use crate::device::OnDevice;
use crate::tensors::element_range;

/// The variables of a model, whose gradients are averaged over all ranks.
///
/// Variables are ordered by name, which gives the same order on every rank.
#[derive(Debug)]
pub struct Ddp {
    variables: Vec<(String, Var)>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Through buckets in host memory.
    Host(Box<ddp::Ddp>),
    /// In place, on the device.
    #[cfg(feature = "cuda")]
    Device(Box<OnDevice>),
}

impl Ddp {
    /// Joins the groups of all ranks that the variables' device needs, and overwrites the variables of all ranks with those of
    /// rank 0: [`new`](Self::new) on the CPU, on a GPU `on_device` with a second group on NCCL.
    ///
    /// # Errors
    /// As those two.
    pub fn join(
        context: &WorkerContext,
        variables: &VarMap,
        options: &DdpOptions,
    ) -> Result<Self, CandleError> {
        let host = context.process_group(&GroupOptions::default())?;
        #[cfg(feature = "cuda")]
        if let DeviceLocation::Cuda { .. } = check_location(&sorted(variables))? {
            let gradients = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
            let device = NcclGroup::join(context, &gradients, None)?;
            return Self::on_device(host, device, variables, options);
        }
        Self::new(host, variables, options)
    }

    /// Takes the group, and overwrites the variables of all ranks with those of rank 0.
    ///
    /// All variables must be on the CPU.
    ///
    /// # Errors
    /// The variables of the ranks differ, are not on the CPU, or have an
    /// unsupported type; or the group failed.
    pub fn new(group: Group, variables: &VarMap, options: &DdpOptions) -> Result<Self, CandleError> {
        let variables = sorted(variables);
        if let DeviceLocation::Cuda { .. } = check_location(&variables)? {
            return Err(CandleError::Device {
                device: name_of(&variables),
                hint: "build `rankrun-candle` with the feature `cuda`, and give `Ddp::on_device` a group on NCCL too",
            });
        }
        let mut ddp = ddp::Ddp::new(group, parameters(&variables)?, options)?;
        share(&mut ddp, &variables)?;
        Ok(Self { variables, way: Way::Host(Box::new(ddp)) })
    }

    /// As [`new`](Self::new), for variables on the current CUDA device of this thread. `host` compares the
    /// models, `device` reduces the gradients; both have the same ranks.
    ///
    /// ```no_run
    /// # use candle_nn::VarMap;
    /// # use rankrun_candle::{CandleError, Ddp};
    /// # use rankrun_worker::process_group::nccl::NcclGroup;
    /// # use rankrun_worker::{GroupOptions, WorkerContext};
    /// # fn on_gpu(context: &WorkerContext, variables: &VarMap) -> Result<Ddp, CandleError> {
    /// let host = context.process_group(&GroupOptions::default())?;
    /// let options = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
    /// let device = NcclGroup::join(context, &options, None)?;
    /// Ddp::on_device(host, device, variables, &Default::default())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The variables of the ranks differ, are not all on one GPU, or have an
    /// unsupported type; or a group failed.
    #[cfg(feature = "cuda")]
    pub fn on_device(
        host: Group,
        device: NcclGroup,
        variables: &VarMap,
        options: &DdpOptions,
    ) -> Result<Self, CandleError> {
        let variables = sorted(variables);
        if let DeviceLocation::Cpu = check_location(&variables)? {
            return Err(CandleError::Device {
                device: name_of(&variables),
                hint: "`Ddp::new` takes those on the CPU",
            });
        }
        let parameters = parameters(&variables)?;
        let on_device = OnDevice::new((host, device), &variables, parameters, options)?;
        Ok(Self { variables, way: Way::Device(Box::new(on_device)) })
    }

    /// The variables with their names, ordered by name.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// Computes the gradients of `loss`, averaged over all ranks: with losses that are means over equal parts
    /// of a batch, they are the gradients of the whole batch.
    ///
    /// # Errors
    /// As [`average`](Self::average); or an error of candle.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradStore, CandleError> {
        let mut gradients = loss.backward()?;
        self.average(&mut gradients)?;
        Ok(gradients)
    }

    /// Replaces each gradient by its mean over all ranks.
    ///
    /// # Errors
    /// A variable has no gradient and [`DdpOptions::find_unused_parameters`] is not set; or the group failed. On a GPU
    /// an error of the group is the result of the next call.
    pub fn average(&mut self, gradients: &mut GradStore) -> Result<(), CandleError> {
        match &mut self.way {
            Way::Host(ddp) => average_on_host(ddp, &self.variables, gradients),
            #[cfg(feature = "cuda")]
            Way::Device(on_device) => on_device.average(&self.variables, gradients),
        }
    }

    /// Waits on the host until all gradients so far are averaged. Call it before variables are saved that
    /// took steps by them. On the CPU they are averaged when [`average`](Self::average) returns.
    ///
    /// # Errors
    /// The group failed, and the last steps used gradients that are not averaged.
    pub fn synchronize(&mut self) -> Result<(), CandleError> {
        match &mut self.way {
            Way::Host(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Way::Device(on_device) => on_device.synchronize(),
        }
    }
}

/// Overwrites the variables of all ranks with those of rank 0.
fn share(ddp: &mut ddp::Ddp, variables: &[(String, Var)]) -> Result<(), CandleError> {
    macro_rules! each_type {
        ($($type:ty),*) => {$(
            let of_type: Vec<&Var> = variables.iter().map(|(_, variable)| variable)
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

pub(crate) fn sorted(variables: &VarMap) -> Vec<(String, Var)> {
    let data = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut sorted: Vec<_> = data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    sorted
}

/// The common device of all variables.
fn check_location(variables: &[(String, Var)]) -> Result<DeviceLocation, CandleError> {
    let Some((first, variable)) = variables.first() else { return Ok(DeviceLocation::Cpu) };
    let location = variable.device().location();
    if let Some((name, other)) = variables.iter().find(|(_, other)| other.device().location() != location) {
        return Err(CandleError::Devices {
            first: first.clone(),
            first_device: format!("{location:?}"),
            name: name.clone(),
            device: format!("{:?}", other.device().location()),
        });
    }
    match location {
        DeviceLocation::Cpu | DeviceLocation::Cuda { .. } => Ok(location),
        DeviceLocation::Metal { .. } => Err(CandleError::Device {
            device: name_of(variables),
            hint: "move the variables to the CPU or to a CUDA device",
        }),
    }
}

/// The name of the common device.
fn name_of(variables: &[(String, Var)]) -> String {
    let location =
        variables.first().map_or(DeviceLocation::Cpu, |(_, variable)| variable.device().location());
    format!("{location:?}")
}

fn parameters(variables: &[(String, Var)]) -> Result<Vec<Parameter>, CandleError> {
    variables.iter().map(|(name, variable)| parameter(name, variable)).collect()
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
        // `finish` reports a missing gradient.
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

/// Copies a gradient into its bucket and marks it ready.
fn hand_over(ddp: &mut ddp::Ddp, index: usize, gradient: &Tensor) -> Result<(), CandleError> {
    let (storage, layout) = gradient.storage_and_layout();
    let (from, to) = element_range(layout)?;
    let Storage::Cpu(storage) = &*storage else {
        return Err(CandleError::Device {
            device: format!("{:?}", gradient.device().location()),
            hint: "its variable is on the CPU",
        });
    };
    match storage {
        CpuStorage::F16(all) => ddp.gradient_ready(index, &all[from..to])?,
        CpuStorage::BF16(all) => ddp.gradient_ready(index, &all[from..to])?,
        CpuStorage::F32(all) => ddp.gradient_ready(index, &all[from..to])?,
        CpuStorage::F64(all) => ddp.gradient_ready(index, &all[from..to])?,
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
