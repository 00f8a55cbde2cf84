//! Data-parallel training with one process per device: every rank has the whole model and a part of each
//! batch, and gradients are averaged over all ranks while backward runs.
//!
//! [`Ddp`] is independent of frameworks: a model is a list of [`Parameter`]s, and a gradient is a slice of
//! numbers, written into or copied to memory that the group reduces with the fewest copies. [`NcclDdp`] does
//! the same in GPU memory, wherever the framework has put the gradients.

mod agreement;
mod bucket;
mod bucket_memory;
mod error;
mod gradients;
#[cfg(feature = "nccl")]
mod nccl;
mod parameter;
mod pass;

use bytemuck::cast_slice_mut;
use rankrun_contract::rank::{Rank, WorldSize};

pub use self::agreement::ModelDifference;
pub use self::error::DdpError;
pub use self::gradients::Gradients;
#[cfg(feature = "nccl")]
pub use self::nccl::NcclDdp;
pub use self::parameter::Parameter;

use self::agreement::Description;
use self::bucket::{BucketPlan, Sizes};
use self::bucket_memory::BucketMemory;
use self::pass::Pass;
use crate::process_group::{AsyncGroup, DataType, Element, Group, ReduceOp};

/// The rank with the initial parameters.
const ROOT: Rank = Rank(0);

/// Options of the exchange, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdpOptions {
    /// Bytes at which a bucket of gradients is closed; torch's `bucket_cap_mb`, 25 MiB.
    pub bucket_bytes: usize,
    /// Bytes at which the first bucket of each element type is closed: a small one starts
    /// early. 1 MiB, as in torch.
    pub first_bucket_bytes: usize,
    /// Whether a pass may leave out parameters; torch's `find_unused_parameters`. Zeros replace their
    /// gradients, and [`Gradients::is_unused`] tells which parameters no rank has used, at the cost of one
    /// small call per step. Otherwise a missing gradient is an error.
    pub find_unused_parameters: bool,
}

impl Default for DdpOptions {
    fn default() -> Self {
        Self { bucket_bytes: 25 << 20, first_bucket_bytes: 1 << 20, find_unused_parameters: false }
    }
}

/// The gradients of a model, averaged over all ranks.
///
/// A step is a backward pass, in which each gradient is made ready once, in any order, and
/// [`finish`](Self::finish). A bucket of gradients is reduced on another thread as soon as all of them are
/// ready; buckets have the same order on all ranks, from the last parameter of the model to the first. With
/// losses that are means over equal parts of a batch, the mean over ranks is the gradient of the whole batch.
///
/// ```
/// use rankrun_worker::ddp::{Ddp, DdpError, DdpOptions, Parameter};
/// # use rankrun_worker::{Group, ThreadGroup};
///
/// /// Fits `y = w · x + b` with gradients written by hand.
/// fn train(group: Group, examples: &[([f32; 2], f32)]) -> Result<Vec<Vec<f32>>, DdpError> {
///     let mut model = vec![vec![0.1f32, 0.2], vec![0.0]];
///     let parameters = vec![Parameter::new::<f32>("w", &[2]), Parameter::new::<f32>("b", &[])];
///     let mut ddp = Ddp::new(group, parameters, &DdpOptions::default())?;
///     ddp.broadcast(&mut model)?;
///     for (x, y) in examples {
///         let error = model[0][0] * x[0] + model[0][1] * x[1] + model[1][0] - y;
///         // Handed over, or written in place.
///         ddp.gradient_ready(1, &[error])?;
///         let gradient = ddp.gradient_mut::<f32>(0)?;
///         gradient.iter_mut().zip(x).for_each(|(slope, x)| *slope += error * x);
///         ddp.mark_ready(0)?;
///
///         let gradients = ddp.finish()?;
///         for (weights, gradient) in model.iter_mut().zip(gradients.iter::<f32>()) {
///             weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope);
///         }
///     }
///     Ok(model)
/// }
/// # train(ThreadGroup::world(1).remove(0), &[([1.0, 2.0], 3.0)]).expect("it trains");
/// ```
///
/// An error of the group ends it: gradients under way are lost, and all further calls fail.
#[derive(Debug)]
pub struct Ddp {
    async_group: AsyncGroup,
    parameters: Vec<Parameter>,
    options: DdpOptions,
    plan: BucketPlan,
    slots: Vec<BucketMemory>,
    pass: Pass,
    /// Whether complete buckets are started.
    is_exchanging: bool,
}

impl Ddp {
    /// Takes the group, and checks that all ranks train the same model with the same options.
    ///
    /// # Errors
    /// The parameters are invalid, those of the ranks differ (every rank names the same
    /// first difference), or the group failed.
    pub fn new(mut group: Group, parameters: Vec<Parameter>, options: &DdpOptions) -> Result<Self, DdpError> {
        check(&parameters)?;
        let description = Description { options: options.clone(), parameters };
        agreement::check_same_model(&mut group, &description)?;
        let Description { options, parameters } = description;
        let sizes = Sizes { first: options.first_bucket_bytes, rest: options.bucket_bytes };
        let plan = BucketPlan::new(&parameters, sizes);
        let slots =
            plan.buckets.iter().map(|bucket| BucketMemory::Here(group.buffer(bucket.bytes))).collect();
        let pass = Pass::new(&plan);
        Ok(Self {
            async_group: AsyncGroup::new(group)?,
            parameters,
            options,
            plan,
            slots,
            pass,
            is_exchanging: true,
        })
    }

    /// Rank of this process.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.async_group.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.async_group.world_size()
    }

    /// The parameters in model order; all calls take an index into this list.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The group, for calls beside those for gradients, such as the sum of all losses. Every rank makes them
    /// at the same point of the pass: before the first gradient is ready, or after [`finish`](Self::finish).
    /// In between they are safe only if all ranks make the same gradients ready in the same order and leave
    /// none out: a gradient that a rank leaves out ([`find_unused_parameters`](DdpOptions::find_unused_parameters)) is sent by its
    /// `finish`, with all that follows. A call of the same kind and length would be taken for a bucket.
    #[must_use]
    pub fn async_group(&self) -> &AsyncGroup {
        &self.async_group
    }

    /// Overwrites the parameters of all ranks with those of rank 0. `parameters` has those of type `T`, in
    /// model order; a model with several types takes a call for each.
    ///
    /// # Errors
    /// The number or a length of the parameters is wrong, a pass is under way, or the group failed.
    pub fn broadcast<T, P>(&mut self, parameters: impl IntoIterator<Item = P>) -> Result<(), DdpError>
    where
        T: Element,
        P: AsMut<[T]>,
    {
        if !self.pass.is_fresh() {
            return Err(DdpError::UnderWay);
        }
        let mut tensors: Vec<P> = parameters.into_iter().collect();
        let indices = self.check_broadcast(&mut tensors)?;
        let is_root = self.async_group.rank() == ROOT;
        if is_root {
            for (values, &index) in tensors.iter_mut().zip(&indices) {
                self.gradient_memory(index)?.copy_from_slice(values.as_mut());
            }
        }
        let of_type = |data_type: DataType| data_type == T::DATA_TYPE;
        let buckets = self.plan.buckets.iter().zip(&mut self.slots);
        for (bucket, slot) in buckets.filter(|(bucket, _)| of_type(bucket.data_type)) {
            slot.broadcast(&self.async_group, bucket.data_type, ROOT)?;
        }
        self.wait_for_buckets()?;
        for (values, &index) in tensors.iter_mut().zip(&indices).filter(|_| !is_root) {
            values.as_mut().copy_from_slice(self.gradient_memory(index)?);
        }
        Ok(())
    }

    /// The memory of a parameter's gradient: zeros at first, then the values written since the last
    /// [`finish`](Self::finish). Add to it until [`mark_ready`](Self::mark_ready).
    ///
    /// # Errors
    /// There is no such parameter, it has another type, or its gradient is ready.
    pub fn gradient_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T], DdpError> {
        self.check_gradient::<T>(index)?;
        let is_empty = self.pass.mark_written(index);
        let memory = self.gradient_memory(index)?;
        if is_empty {
            memory.fill(T::zeroed());
        }
        Ok(memory)
    }

    /// As [`gradient_mut`](Self::gradient_mut), for programs that write every element: the content is
    /// undefined, which saves the time for zeros.
    ///
    /// # Errors
    /// As [`gradient_mut`](Self::gradient_mut); or a gradient of earlier passes would be lost.
    pub fn overwrite_gradient<T: Element>(&mut self, index: usize) -> Result<&mut [T], DdpError> {
        self.check_gradient::<T>(index)?;
        if self.pass.is_kept(index) {
            return Err(DdpError::Kept { parameter: self.parameters[index].name.clone() });
        }
        let _ = self.pass.mark_written(index);
        self.gradient_memory(index)
    }

    /// Marks the gradient as complete; it is zero if [`gradient_mut`](Self::gradient_mut) was never called.
    /// The last gradient of a bucket starts it.
    ///
    /// # Errors
    /// There is no such parameter, or its gradient is ready already.
    pub fn mark_ready(&mut self, index: usize) -> Result<(), DdpError> {
        self.check_pending(index)?;
        if self.pass.mark_written(index) {
            let place = self.plan.places[index].clone();
            self.slots[place.bucket].bytes_mut()?[place.bytes].fill(0);
        }
        self.pass.set_ready(index, self.plan.places[index].bucket);
        self.start_ready_buckets()
    }

    /// Adds the gradient to the memory of [`gradient_mut`](Self::gradient_mut) and marks it ready. The last
    /// gradient of a bucket starts it.
    ///
    /// # Errors
    /// There is no such parameter, the gradient has the wrong type or length, or it is ready already.
    pub fn gradient_ready<T: Element + std::ops::Add<Output = T>>(
        &mut self,
        index: usize,
        gradient: &[T],
    ) -> Result<(), DdpError> {
        self.check_gradient::<T>(index)?;
        check_length(&self.parameters[index], gradient.len())?;
        let is_empty = self.pass.mark_written(index);
        let memory = self.gradient_memory::<T>(index)?;
        if is_empty {
            memory.copy_from_slice(gradient);
        } else {
            memory.iter_mut().zip(gradient).for_each(|(sum, value)| *sum = *sum + *value);
        }
        self.mark_ready(index)
    }

    /// Runs a pass without an exchange; the next pass adds to its gradients. It is torch's `no_sync`,
    /// for gradient accumulation: divide each loss by the number of passes. A pass within it may leave
    /// out parameters. Use it for whole passes: within a pass with gradients under way it belongs to
    /// that pass, which ends with [`finish`](Self::finish).
    ///
    /// ```
    /// # use rankrun_worker::ddp::{Ddp, DdpError, DdpOptions, Parameter};
    /// # use rankrun_worker::ThreadGroup;
    /// # fn main() -> Result<(), DdpError> {
    /// # let parameters = vec![Parameter::new::<f32>("w", &[1])];
    /// # let mut ddp = Ddp::new(ThreadGroup::world(1).remove(0), parameters, &DdpOptions::default())?;
    /// ddp.no_sync(|ddp| ddp.gradient_ready(0, &[1.0f32]))?;
    /// ddp.gradient_ready(0, &[2.0f32])?;
    /// assert_eq!(ddp.finish()?.get::<f32>(0)?, [3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn no_sync<R>(&mut self, pass: impl FnOnce(&mut Self) -> R) -> R {
        let was_exchanging = std::mem::replace(&mut self.is_exchanging, false);
        let result = pass(self);
        self.pass.end_accumulated_pass();
        self.is_exchanging = was_exchanging;
        result
    }

    /// Ends the step: waits until all buckets are reduced, and returns the mean of all gradients.
    ///
    /// # Errors
    /// A parameter has no gradient and [`DdpOptions::find_unused_parameters`] is not set: other ranks wait for it, and
    /// it can still be made ready. Or the group failed.
    pub fn finish(&mut self) -> Result<Gradients<'_>, DdpError> {
        if !self.is_exchanging {
            return Err(DdpError::NoSync);
        }
        let missing: Vec<usize> = self.pass.missing().collect();
        if let (Some(&first), false) = (missing.first(), self.options.find_unused_parameters) {
            let parameter = self.parameters[first].name.clone();
            return Err(DdpError::Missing { parameter, other_count: missing.len() - 1 });
        }
        let used = self.options.find_unused_parameters.then(|| {
            let used = (0..self.parameters.len()).map(|index| u8::from(self.pass.is_used(index)));
            used.collect::<Vec<u8>>()
        });
        for index in missing {
            self.pass.mark_unwritten(index);
            self.mark_ready(index)?;
        }
        // A pass with `no_sync` inside may have complete buckets that are not started.
        self.start_ready_buckets()?;
        let used = used.map(|used| self.async_group.all_reduce(used, ReduceOp::Max));
        self.wait_for_buckets()?;
        let unused = match used {
            Some(used) => used.wait()?.into_iter().map(|used| used == 0).collect(),
            None => vec![false; self.parameters.len()],
        };
        self.pass.reset();
        Ok(Gradients::new(self, unused))
    }

    /// Finishes the calls under way, and returns the group.
    ///
    /// # Errors
    /// A call of the group panicked, which ended the group.
    pub fn into_group(self) -> Result<Group, DdpError> {
        Ok(self.async_group.into_group()?)
    }

    /// Starts all complete buckets up to the first incomplete one.
    fn start_ready_buckets(&mut self) -> Result<(), DdpError> {
        while self.is_exchanging
            && let Some(next) = self.pass.next_bucket()
        {
            self.slots[next].all_reduce(&self.async_group, self.plan.buckets[next].data_type)?;
        }
        Ok(())
    }

    /// Waits for all buckets under way.
    fn wait_for_buckets(&mut self) -> Result<(), DdpError> {
        // All of them, so that none remains under way after an error; the first error is returned.
        let results: Vec<_> = self.slots.iter_mut().map(BucketMemory::wait).collect();
        results.into_iter().collect()
    }

    /// The memory of a gradient with a checked type.
    fn gradient_memory<T: Element>(&mut self, index: usize) -> Result<&mut [T], DdpError> {
        let place = &self.plan.places[index];
        Ok(cast_slice_mut(&mut self.slots[place.bucket].bytes_mut()?[place.bytes.clone()]))
    }

    /// Checks the type, and that the gradient is not ready.
    fn check_gradient<T: Element>(&self, index: usize) -> Result<(), DdpError> {
        self.check_pending(index)?;
        check_type::<T>(&self.parameters[index])
    }

    fn check_pending(&self, index: usize) -> Result<(), DdpError> {
        let parameter = parameter_at(&self.parameters, index)?;
        if self.pass.is_ready(index) {
            return Err(DdpError::Twice { parameter: parameter.name.clone() });
        }
        Ok(())
    }

    /// The indices of all parameters of this type; checks the lengths of `tensors`.
    fn check_broadcast<T: Element, P: AsMut<[T]>>(&self, tensors: &mut [P]) -> Result<Vec<usize>, DdpError> {
        let all = self.parameters.iter().enumerate();
        let of_type: Vec<_> = all.filter(|(_, parameter)| parameter.data_type == T::DATA_TYPE).collect();
        if of_type.len() != tensors.len() {
            let (expected, actual) = (of_type.len(), tensors.len());
            return Err(DdpError::WrongCount { data_type: Some(T::DATA_TYPE), expected, actual });
        }
        for ((_, parameter), values) in of_type.iter().zip(tensors) {
            check_length(parameter, values.as_mut().len())?;
        }
        Ok(of_type.into_iter().map(|(index, _)| index).collect())
    }
}

fn parameter_at(parameters: &[Parameter], index: usize) -> Result<&Parameter, DdpError> {
    parameters.get(index).ok_or(DdpError::NoSuchParameter { index, parameters: parameters.len() })
}

fn check_type<T: Element>(parameter: &Parameter) -> Result<(), DdpError> {
    if parameter.data_type == T::DATA_TYPE {
        return Ok(());
    }
    let (name, expected) = (parameter.name.clone(), parameter.data_type);
    Err(DdpError::WrongType { parameter: name, expected, actual: T::DATA_TYPE })
}

fn check_length(parameter: &Parameter, actual: usize) -> Result<(), DdpError> {
    let expected = parameter.elements();
    if actual == expected {
        return Ok(());
    }
    Err(DdpError::WrongLength { parameter: parameter.name.clone(), expected, actual })
}

/// Checks the list of parameters.
fn check(parameters: &[Parameter]) -> Result<(), DdpError> {
    if parameters.is_empty() {
        return Err(DdpError::NoParameters);
    }
    let mut names = std::collections::HashMap::new();
    let mut bytes = 0usize;
    for (index, parameter) in parameters.iter().enumerate() {
        let name = || parameter.name.clone();
        if let Some(first) = names.insert(&parameter.name, index) {
            return Err(DdpError::SameName { name: name(), first, second: index });
        }
        if !matches!(parameter.data_type, DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64) {
            return Err(DdpError::NotFloat { parameter: name(), data_type: parameter.data_type });
        }
        bytes = bytes.saturating_add(parameter.bytes());
        if bytes > isize::MAX as usize {
            return Err(DdpError::TooLarge { parameter: name() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
