//! Data-parallel training on GPUs: NCCL reduces gradients in place, on a stream beside backward.
#![expect(unsafe_code, reason = "device memory is raw memory, and streams are raw handles")]

use rankrun_contract::rank::{Rank, WorldSize};

use super::agreement::{self, Description};
use super::bucket::{BucketPlan, Sizes};
use super::pass::Pass;
use super::{DdpError, DdpOptions, Parameter, ROOT, check, parameter_at};
use crate::cuda::{self, CudaMissing, Event, OwnStream};
use crate::process_group::nccl::NcclGroup;
use crate::process_group::{
    Collective, DataType, DeviceCollective, DeviceMemory, Group, GroupError, ProcessGroup, ReduceOp, Stream,
};

/// Gradients on a GPU, averaged over all ranks in place.
///
/// A step is a backward pass, in which the gradient of each parameter is handed over once, in any order, and
/// [`finish`](Self::finish). The host never waits: a gradient is handed over when the kernels that compute it
/// are enqueued. When all gradients of a bucket are handed over, its calls go to NCCL as one group, after the
/// work on that stream and beside later work; so buckets need no memory and no copies. Buckets are those of
/// [`Ddp`](super::Ddp), in the same order on all ranks.
///
/// It has two groups: one on NCCL for device memory, and one on the host to compare the models, as
/// in torch's `cpu:gloo,cuda:nccl`. The program may use the second one for small values, such as
/// the sum of all losses ([`host`](Self::host)).
///
/// ```no_run
/// use rankrun_worker::ddp::{DdpError, DdpOptions, NcclDdp, Parameter};
/// use rankrun_worker::process_group::nccl::NcclGroup;
/// use rankrun_worker::process_group::{DeviceMemory, Stream};
/// use rankrun_worker::{GroupOptions, WorkerContext};
///
/// /// Buffers of a framework: its addresses, and its stream.
/// fn train(context: &WorkerContext, weights: DeviceMemory, slopes: DeviceMemory, stream: Stream) -> Result<(), DdpError> {
///     // On the current device of this thread.
///     let options = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
///     let device = NcclGroup::join(context, &options, None)?;
///     let host = context.process_group(&GroupOptions::default())?;
///     let parameters = vec![Parameter::new::<f32>("w", &[512, 1000])];
///     let mut ddp = NcclDdp::new(host, device, parameters, &DdpOptions::default())?;
///     // SAFETY: both buffers live until the stream is done with them, and only this stream touches them.
///     unsafe {
///         ddp.broadcast(&[weights], stream)?;
///         for _ in 0..100 {
///             // … forward and backward go to `stream` here …
///             ddp.gradient_ready(0, slopes, stream)?;
///             ddp.finish(stream)?;
///             // … and so does the optimiser, after the mean.
///         }
///         ddp.synchronize(stream)
///     }
/// }
/// ```
///
/// Gradient accumulation (torch's `no_sync`) needs no support: let backward add to the same gradients, and
/// hand them over in the last pass. An error of a group ends it: all further calls fail.
#[derive(Debug)]
pub struct NcclDdp {
    host: Group,
    device: NcclGroup,
    parameters: Vec<Parameter>,
    options: DdpOptions,
    plan: BucketPlan,
    pass: Pass,
    /// Gradients handed over in this pass, by parameter.
    ready_gradients: Vec<Option<ReadyGradient>>,
    /// Dropped after the device group, which may query its stream until then.
    reduce_stream: ReduceStream,
    /// A bucket could not be started, so the gradients are not averaged.
    has_ended: bool,
}

/// The gradient of a parameter in this pass.
#[derive(Debug, Clone, Copy)]
struct ReadyGradient {
    memory: DeviceMemory,
    /// The stream that computes it.
    stream: Stream,
    is_used: bool,
}

/// The stream on which buckets are reduced.
#[derive(Debug)]
struct ReduceStream {
    stream: OwnStream,
    /// Marks one stream for another to wait for; reused, since each mark is consumed at once.
    event: Event,
}

impl NcclDdp {
    /// Takes both groups, and checks that all ranks train the same model with the same options. The CUDA
    /// device that is current in this thread must be that of the NCCL group.
    ///
    /// # Errors
    /// The parameters are invalid, those of the ranks differ (every rank names the same first difference),
    /// the two groups have different ranks, or one of them failed.
    pub fn new(
        mut host: Group,
        device: NcclGroup,
        parameters: Vec<Parameter>,
        options: &DdpOptions,
    ) -> Result<Self, DdpError> {
        check(&parameters)?;
        let positions = [(host.rank(), host.world_size()), (device.rank(), device.world_size())];
        if positions[0] != positions[1] {
            return Err(DdpError::OtherRanks { host: positions[0], device: positions[1] });
        }
        let description = Description { options: options.clone(), parameters };
        agreement::check_same_model(&mut host, &description)?;
        let Description { options, parameters } = description;
        let sizes = Sizes { first: options.first_bucket_bytes, rest: options.bucket_bytes };
        let plan = BucketPlan::new(&parameters, sizes);
        let (pass, gradients) = (Pass::new(&plan), vec![None; parameters.len()]);
        let reduce_stream = ReduceStream::new().map_err(GroupError::from)?;
        Ok(Self {
            host,
            device,
            parameters,
            options,
            plan,
            pass,
            ready_gradients: gradients,
            reduce_stream,
            has_ended: false,
        })
    }

    /// Rank of this process within both groups.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.host.rank()
    }

    /// Number of ranks in each group.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.host.world_size()
    }

    /// The parameters in model order; all calls take an index into this list.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The group on the host, for small values. Every rank makes its calls at the same point of the pass.
    pub fn host(&mut self) -> &mut Group {
        &mut self.host
    }

    /// Overwrites the parameters of all ranks with those of rank 0, in place; `parameters` has all of the
    /// model, in its order. Later work on the stream sees the new values.
    ///
    /// # Safety
    /// The memory is on the group's device. Until `stream` is done with it, it is not freed and no other code
    /// accesses it; `stream` is a valid stream of the device.
    ///
    /// # Errors
    /// The number or a length of the parameters is wrong, a pass is under way, or the group failed.
    pub unsafe fn broadcast(&mut self, parameters: &[DeviceMemory], stream: Stream) -> Result<(), DdpError> {
        self.check_alive()?;
        if self.ready_gradients.iter().any(Option::is_some) {
            return Err(DdpError::UnderWay);
        }
        if parameters.len() != self.parameters.len() {
            let (expected, actual) = (self.parameters.len(), parameters.len());
            return Err(DdpError::WrongCount { data_type: None, expected, actual });
        }
        let all = self.parameters.iter().zip(parameters);
        let works = all.map(|(parameter, &data)| {
            check_bytes(parameter, data)?;
            Ok((parameter.data_type, Collective::Broadcast { data, root: ROOT }))
        });
        let works = works.collect::<Result<Vec<_>, DdpError>>()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.run_grouped(&works, stream) }?)
    }

    /// Hands over the gradient of a parameter, which the work on the stream so far
    /// computes. The last gradient of a bucket starts it. The mean replaces the gradient:
    /// leave the memory alone until [`finish`](Self::finish).
    ///
    /// # Safety
    /// As [`broadcast`](Self::broadcast), until the stream of `finish` is done; after a failed pass
    /// without `finish`, until the device is.
    ///
    /// # Errors
    /// There is no such parameter, the memory has the wrong length, its gradient was handed over before in
    /// this pass, or the group failed.
    pub unsafe fn gradient_ready(
        &mut self,
        index: usize,
        gradient: DeviceMemory,
        stream: Stream,
    ) -> Result<(), DdpError> {
        self.check_gradient(index, gradient)?;
        // SAFETY: the caller's promise.
        unsafe { self.add_ready_gradient(index, ReadyGradient { memory: gradient, stream, is_used: true }) }
    }

    /// Contributes zeros as the gradient of a parameter that this rank has not used in this pass: they are
    /// written to the memory. Requires [`DdpOptions::find_unused_parameters`].
    ///
    /// # Safety
    /// As [`gradient_ready`](Self::gradient_ready).
    ///
    /// # Errors
    /// As [`gradient_ready`](Self::gradient_ready), or `find_unused_parameters` is not set.
    pub unsafe fn gradient_unused(
        &mut self,
        index: usize,
        gradient: DeviceMemory,
        stream: Stream,
    ) -> Result<(), DdpError> {
        self.check_gradient(index, gradient)?;
        if !self.options.find_unused_parameters {
            return Err(DdpError::Missing { parameter: self.parameters[index].name.clone(), other_count: 0 });
        }
        // SAFETY: the caller's promise.
        unsafe {
            let zeroed = cuda::driver().and_then(|driver| driver.zero(gradient, stream.0));
            zeroed.map_err(GroupError::from)?;
            self.add_ready_gradient(index, ReadyGradient { memory: gradient, stream, is_used: false })
        }
    }

    /// Ends the step: later work on the stream sees the mean of all gradients. Returns the
    /// parameters that no rank has used, which are none without [`DdpOptions::find_unused_parameters`]; with
    /// it, all ranks meet here on the host.
    ///
    /// # Safety
    /// `stream` is a valid stream of the group's device.
    ///
    /// # Errors
    /// A gradient is missing: other ranks wait for it, and it can still be handed over. Or a group failed; a
    /// later failure on the device is the result of the next call, or of [`synchronize`](Self::synchronize).
    pub unsafe fn finish(&mut self, stream: Stream) -> Result<Vec<usize>, DdpError> {
        self.check_alive()?;
        let missing: Vec<usize> = self.pass.missing().collect();
        if let Some(&first) = missing.first() {
            let parameter = self.parameters[first].name.clone();
            return Err(DdpError::Missing { parameter, other_count: missing.len() - 1 });
        }
        // SAFETY: the caller's promise.
        unsafe { self.reduce_stream.make_stream_wait(stream) }.map_err(GroupError::from)?;
        let is_used =
            |gradient: &Option<ReadyGradient>| u8::from(gradient.is_some_and(|gradient| gradient.is_used));
        let mut used: Vec<u8> = self.ready_gradients.iter().map(is_used).collect();
        self.ready_gradients.fill(None);
        self.pass.reset();
        if self.options.find_unused_parameters {
            self.host.all_reduce(&mut used, ReduceOp::Max)?;
        }
        let all = used.into_iter().enumerate();
        Ok(all.filter(|(_, used)| *used == 0).map(|(index, _)| index).collect())
    }

    /// Waits on the host until all work on the stream is done. Call it before parameters are kept, as in a
    /// checkpoint: after a failure of the group the work behind `finish` runs without the mean.
    ///
    /// # Safety
    /// As [`finish`](Self::finish).
    ///
    /// # Errors
    /// The group failed: its unfinished work was taken off the streams.
    pub unsafe fn synchronize(&mut self, stream: Stream) -> Result<(), DdpError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.synchronize(stream) }?)
    }

    /// Waits for the buckets under way, and returns both groups.
    ///
    /// # Errors
    /// The group on the device failed.
    pub fn into_groups(mut self) -> Result<(Group, NcclGroup), DdpError> {
        // The device group may query this stream until its work is known to be done.
        // SAFETY: this value owns the stream.
        unsafe { self.device.synchronize(self.reduce_stream.raw()) }?;
        Ok((self.host, self.device))
    }

    /// Checks the length, and that the parameter was not handed over in this pass.
    fn check_gradient(&self, index: usize, gradient: DeviceMemory) -> Result<(), DdpError> {
        self.check_alive()?;
        let parameter = parameter_at(&self.parameters, index)?;
        if self.pass.is_ready(index) {
            return Err(DdpError::Twice { parameter: parameter.name.clone() });
        }
        check_bytes(parameter, gradient)
    }

    fn check_alive(&self) -> Result<(), DdpError> {
        if self.has_ended { Err(DdpError::Ended) } else { Ok(()) }
    }

    /// Stores a checked gradient, and starts all complete buckets up to the first incomplete one.
    unsafe fn add_ready_gradient(&mut self, index: usize, gradient: ReadyGradient) -> Result<(), DdpError> {
        self.ready_gradients[index] = Some(gradient);
        self.pass.set_ready(index, self.plan.places[index].bucket);
        while let Some(next) = self.pass.next_bucket() {
            self.has_ended = true;
            let members = self.plan.buckets[next].members.iter();
            let gradients: Vec<(DataType, ReadyGradient)> = members
                .filter_map(|&member| {
                    Some((self.parameters[member].data_type, self.ready_gradients[member]?))
                })
                .collect();
            // SAFETY: the promise of the caller, which all callers of `add_ready_gradient` require.
            unsafe {
                self.reduce_stream
                    .wait_for_streams(gradients.iter().map(|(_, gradient)| gradient.stream))
                    .map_err(GroupError::from)?;
                let works: Vec<(DataType, DeviceCollective<'_>)> =
                    gradients.iter().map(mean_all_reduce).collect();
                self.device.run_grouped(&works, self.reduce_stream.raw())?;
            }
            self.has_ended = false;
        }
        Ok(())
    }
}

fn mean_all_reduce(
    (data_type, gradient): &(DataType, ReadyGradient),
) -> (DataType, DeviceCollective<'static>) {
    (*data_type, Collective::AllReduce { data: gradient.memory, op: ReduceOp::Mean })
}

fn check_bytes(parameter: &Parameter, memory: DeviceMemory) -> Result<(), DdpError> {
    let (expected, actual) = (parameter.bytes(), memory.bytes);
    if actual == expected {
        return Ok(());
    }
    Err(DdpError::WrongBytes { parameter: parameter.name.clone(), expected, actual })
}

impl ReduceStream {
    fn new() -> Result<Self, CudaMissing> {
        let driver = cuda::driver()?;
        driver.current_context()?;
        Ok(Self { stream: driver.stream()?, event: driver.event()? })
    }

    fn raw(&self) -> Stream {
        Stream(self.stream.raw())
    }

    /// Orders later work here after the present work of these streams.
    unsafe fn wait_for_streams(&self, streams: impl Iterator<Item = Stream>) -> Result<(), CudaMissing> {
        let mut followed: Vec<Stream> = Vec::new();
        for stream in streams {
            if !followed.contains(&stream) {
                // SAFETY: the caller's promise.
                unsafe {
                    self.event.record(stream.0)?;
                    self.event.hold(self.stream.raw())?;
                }
                followed.push(stream);
            }
        }
        Ok(())
    }

    /// Orders later work of this stream after the present work here.
    unsafe fn make_stream_wait(&self, stream: Stream) -> Result<(), CudaMissing> {
        // SAFETY: the caller's promise.
        unsafe {
            self.event.record(self.stream.raw())?;
            self.event.hold(stream.0)
        }
    }
}
