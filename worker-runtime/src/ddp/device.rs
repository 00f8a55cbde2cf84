//! The same on GPUs: gradients are reduced where they lie, by NCCL, on a stream of their own beside backward's.
#![expect(unsafe_code, reason = "device memory is raw memory, and streams are raw handles")]

use rankrun_contract::rank::{Rank, WorldSize};

use super::agreement::{self, Description};
use super::bucket::{Plan, Sizes};
use super::pass::Pass;
use super::{DdpError, DdpOptions, Parameter, ROOT, check, parameter};
use crate::cuda::{self, CudaMissing, Event, OwnStream};
use crate::process_group::nccl::NcclGroup;
use crate::process_group::{
    Collective, DataType, DeviceCollective, DeviceMemory, Group, GroupError, ProcessGroup, Reduction, Stream,
};

/// Gradients on a GPU, which become their mean over all ranks in place.
///
/// A step is a backward pass, in which the gradient of each parameter is handed over once, in any order, and
/// [`finish`](Self::finish). Nothing waits on the host: a gradient is handed over when what computes it is on a stream. When all of a
/// bucket are, its calls go to NCCL as one group (which it runs as one), behind that stream and beside what follows on it; so
/// buckets need no memory, and nothing is copied. Buckets are those of [`Ddp`](super::Ddp), in the same order on all ranks.
///
/// There are two groups: NCCL's for what is on the device, and one between hosts for what ranks say of their models, as in torch's
/// `cpu:gloo,cuda:nccl`. The second one is the program's for small things, such as the sum of all losses ([`host`](Self::host)).
///
/// ```no_run
/// use rankrun_worker::ddp::{DdpError, DdpOptions, DeviceDdp, Parameter};
/// use rankrun_worker::process_group::nccl::NcclGroup;
/// use rankrun_worker::process_group::{DeviceMemory, Stream};
/// use rankrun_worker::{GroupOptions, WorkerContext};
///
/// /// Buffers of a framework: its addresses, and its stream.
/// fn train(context: &WorkerContext, weights: DeviceMemory, slopes: DeviceMemory, stream: Stream) -> Result<(), DdpError> {
///     // On the device that is current in this thread.
///     let options = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
///     let device = NcclGroup::join(context, &options, None)?;
///     let host = context.process_group(&GroupOptions::default())?;
///     let parameters = vec![Parameter::new::<f32>("w", &[512, 1000])];
///     let mut ddp = DeviceDdp::new(host, device, parameters, &DdpOptions::default())?;
///     // SAFETY: both buffers live until the stream is done with them, and only this stream touches them.
///     unsafe {
///         ddp.broadcast(&[weights], stream)?;
///         for _ in 0..100 {
///             // … forward and backward go to `stream` here …
///             ddp.ready(0, slopes, stream)?;
///             ddp.finish(stream)?;
///             // … and so does the optimiser, after the mean.
///         }
///         ddp.wait(stream)
///     }
/// }
/// ```
///
/// Batches in several parts (torch's `no_sync`) need nothing here: let backward add to the same gradients, and hand them over in the
/// last pass. An error of a group ends it: all further calls fail.
#[derive(Debug)]
pub struct DeviceDdp {
    host: Group,
    device: NcclGroup,
    parameters: Vec<Parameter>,
    options: DdpOptions,
    plan: Plan,
    pass: Pass,
    /// What was handed over in this pass.
    given: Vec<Option<Given>>,
    /// It goes after the group on the device, which may look at it until then.
    lane: Lane,
    /// A bucket could not be put on its way, so that the gradients are no means.
    has_ended: bool,
}

/// The gradient of a parameter in this pass.
#[derive(Debug, Clone, Copy)]
struct Given {
    memory: DeviceMemory,
    /// On which it is computed.
    stream: Stream,
    is_used: bool,
}

/// The stream on which buckets travel.
#[derive(Debug)]
struct Lane {
    stream: OwnStream,
    /// Marks a stream, for another one to wait for; each mark is used at once, so that one event will do.
    mark: Event,
}

impl DeviceDdp {
    /// Takes both groups, and makes sure that all ranks train the same model with the same options. It is for the CUDA device that is
    /// current in this thread, which is the one of the group on NCCL.
    ///
    /// # Errors
    /// The parameters are no model, those of the ranks differ (every rank names the same first difference), the two groups are not of
    /// the same ranks, or one of them failed.
    pub fn new(
        mut host: Group,
        device: NcclGroup,
        parameters: Vec<Parameter>,
        options: &DdpOptions,
    ) -> Result<Self, DdpError> {
        check(&parameters)?;
        let seats = [(host.rank(), host.world_size()), (device.rank(), device.world_size())];
        if seats[0] != seats[1] {
            return Err(DdpError::OtherRanks { host: seats[0], device: seats[1] });
        }
        let description = Description { options: options.clone(), parameters };
        agreement::agree(&mut host, &description)?;
        let Description { options, parameters } = description;
        let sizes = Sizes { first: options.first_bucket_bytes, others: options.bucket_bytes };
        let plan = Plan::new(&parameters, sizes);
        let (pass, given) = (Pass::new(&plan), vec![None; parameters.len()]);
        let lane = Lane::new().map_err(GroupError::from)?;
        Ok(Self { host, device, parameters, options, plan, pass, given, lane, has_ended: false })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.host.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> WorldSize {
        self.host.world_size()
    }

    /// The model, in its order: an index in it is what all calls take.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The group between hosts, for small things. Every rank makes its calls at the same place of the pass.
    pub fn host(&mut self) -> &mut Group {
        &mut self.host
    }

    /// Gives all ranks the parameters of rank 0, in place; these are all of the model, in its order. What is put on the stream
    /// afterwards sees them.
    ///
    /// # Safety
    /// The memory is of the group's device, and is neither freed nor touched by others until `stream` is done with it; `stream` is a
    /// stream of the device that is still there.
    ///
    /// # Errors
    /// There are more or fewer, one has another length, a pass is under way, or the group failed.
    pub unsafe fn broadcast(&mut self, parameters: &[DeviceMemory], stream: Stream) -> Result<(), DdpError> {
        self.check_alive()?;
        if self.given.iter().any(Option::is_some) {
            return Err(DdpError::UnderWay);
        }
        if parameters.len() != self.parameters.len() {
            let (expected, given) = (self.parameters.len(), parameters.len());
            return Err(DdpError::WrongCount { data_type: None, expected, given });
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

    /// Hands over the gradient of a parameter, which what is on the stream now has computed by its end. Its bucket goes if it is the
    /// last of it. The mean is written over it: until [`finish`](Self::finish) it is to be left alone.
    ///
    /// # Safety
    /// As [`broadcast`](Self::broadcast), until the stream of `finish` is done; after a pass that has no `finish`, because it failed,
    /// until the device is.
    ///
    /// # Errors
    /// There is no such parameter, the memory has another length, or its gradient was handed over before in this pass; or the group
    /// failed.
    pub unsafe fn ready(
        &mut self,
        index: usize,
        gradient: DeviceMemory,
        stream: Stream,
    ) -> Result<(), DdpError> {
        self.check(index, gradient)?;
        // SAFETY: the caller's promise.
        unsafe { self.give(index, Given { memory: gradient, stream, is_used: true }) }
    }

    /// This pass has no gradient of a parameter on this rank: zeros are written to its memory, and go as its gradient. Only with
    /// [`DdpOptions::find_unused`].
    ///
    /// # Safety
    /// As [`ready`](Self::ready).
    ///
    /// # Errors
    /// As [`ready`](Self::ready), or `find_unused` is not set.
    pub unsafe fn unused(
        &mut self,
        index: usize,
        gradient: DeviceMemory,
        stream: Stream,
    ) -> Result<(), DdpError> {
        self.check(index, gradient)?;
        if !self.options.find_unused {
            return Err(DdpError::Missing { parameter: self.parameters[index].name.clone(), others: 0 });
        }
        // SAFETY: the caller's promise.
        unsafe {
            let zeroed = cuda::driver().and_then(|driver| driver.zero(gradient, stream.0));
            zeroed.map_err(GroupError::from)?;
            self.give(index, Given { memory: gradient, stream, is_used: false })
        }
    }

    /// Ends the step: what is put on the stream afterwards sees the mean of all gradients. The parameters that no rank has used, which
    /// are none without [`DdpOptions::find_unused`]; for one that is set, all ranks meet here on the host.
    ///
    /// # Safety
    /// `stream` is a stream of the group's device that is still there.
    ///
    /// # Errors
    /// A gradient was not handed over: others wait for it then, and it still can be. Or a group failed; what fails on the device later
    /// is the result of the next call, or of [`wait`](Self::wait).
    pub unsafe fn finish(&mut self, stream: Stream) -> Result<Vec<usize>, DdpError> {
        self.check_alive()?;
        let missing: Vec<usize> = self.pass.missing().collect();
        if let Some(&first) = missing.first() {
            let parameter = self.parameters[first].name.clone();
            return Err(DdpError::Missing { parameter, others: missing.len() - 1 });
        }
        // SAFETY: the caller's promise.
        unsafe { self.lane.hold_up(stream) }.map_err(GroupError::from)?;
        let is_used = |given: &Option<Given>| u8::from(given.is_some_and(|given| given.is_used));
        let mut used: Vec<u8> = self.given.iter().map(is_used).collect();
        self.given.fill(None);
        self.pass.reset();
        if self.options.find_unused {
            self.host.all_reduce(&mut used, Reduction::Max)?;
        }
        let all = used.into_iter().enumerate();
        Ok(all.filter(|(_, used)| *used == 0).map(|(index, _)| index).collect())
    }

    /// Waits on the host until all that is on the stream is done. To be called before anything is made of the parameters that stays,
    /// such as a checkpoint: where the group has failed, what is on the stream behind `finish` has not seen the mean, and is done
    /// nevertheless.
    ///
    /// # Safety
    /// As [`finish`](Self::finish).
    ///
    /// # Errors
    /// The group failed: what could not be done is taken off the streams.
    pub unsafe fn wait(&mut self, stream: Stream) -> Result<(), DdpError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.wait(stream) }?)
    }

    /// Waits for the gradients that are on their way, and gives both groups back.
    ///
    /// # Errors
    /// The group on the device failed.
    pub fn into_groups(mut self) -> Result<(Group, NcclGroup), DdpError> {
        // The group may look at a stream until all on it is known to be done, and this one goes now.
        // SAFETY: the stream is ours.
        unsafe { self.device.wait(self.lane.raw()) }?;
        Ok((self.host, self.device))
    }

    /// A parameter whose gradient is of this length and was not handed over.
    fn check(&self, index: usize, gradient: DeviceMemory) -> Result<(), DdpError> {
        self.check_alive()?;
        let parameter = parameter(&self.parameters, index)?;
        if self.pass.is_ready(index) {
            return Err(DdpError::Twice { parameter: parameter.name.clone() });
        }
        check_bytes(parameter, gradient)
    }

    fn check_alive(&self) -> Result<(), DdpError> {
        if self.has_ended { Err(DdpError::Ended) } else { Ok(()) }
    }

    /// Takes a gradient that was checked, and puts every bucket on its way that is complete, and that all before it are.
    unsafe fn give(&mut self, index: usize, given: Given) -> Result<(), DdpError> {
        self.given[index] = Some(given);
        self.pass.set_ready(index, self.plan.places[index].bucket);
        while let Some(next) = self.pass.next_bucket() {
            self.has_ended = true;
            let members = self.plan.buckets[next].members.iter();
            let given: Vec<(DataType, Given)> = members
                .filter_map(|&member| Some((self.parameters[member].data_type, self.given[member]?)))
                .collect();
            // SAFETY: the caller's promise, which all callers gave.
            unsafe {
                self.lane.follow(given.iter().map(|(_, given)| given.stream)).map_err(GroupError::from)?;
                let works: Vec<(DataType, DeviceCollective<'_>)> = given.iter().map(mean).collect();
                self.device.run_grouped(&works, self.lane.raw())?;
            }
            self.has_ended = false;
        }
        Ok(())
    }
}

fn mean((data_type, given): &(DataType, Given)) -> (DataType, DeviceCollective<'static>) {
    (*data_type, Collective::AllReduce { data: given.memory, how: Reduction::Mean })
}

fn check_bytes(parameter: &Parameter, given: DeviceMemory) -> Result<(), DdpError> {
    let (expected, given) = (parameter.bytes(), given.bytes);
    if given == expected {
        return Ok(());
    }
    Err(DdpError::WrongBytes { parameter: parameter.name.clone(), expected, given })
}

impl Lane {
    fn new() -> Result<Self, CudaMissing> {
        let driver = cuda::driver()?;
        driver.current_context()?;
        Ok(Self { stream: driver.stream()?, mark: driver.event()? })
    }

    fn raw(&self) -> Stream {
        Stream(self.stream.raw())
    }

    /// What comes next here comes after what is on these streams now.
    unsafe fn follow(&self, streams: impl Iterator<Item = Stream>) -> Result<(), CudaMissing> {
        let mut followed: Vec<Stream> = Vec::new();
        for stream in streams {
            if !followed.contains(&stream) {
                // SAFETY: the caller's promise.
                unsafe {
                    self.mark.record(stream.0)?;
                    self.mark.hold(self.stream.raw())?;
                }
                followed.push(stream);
            }
        }
        Ok(())
    }

    /// What comes next on this stream comes after what is here now.
    unsafe fn hold_up(&self, stream: Stream) -> Result<(), CudaMissing> {
        // SAFETY: the caller's promise.
        unsafe {
            self.mark.record(self.stream.raw())?;
            self.mark.hold(stream.0)
        }
    }
}
