//! The model on a CUDA device.
#![expect(unsafe_code, reason = "declares kernels, and hands memory of a device to NCCL")]

use std::error::Error;

use bytemuck::cast_slice;
use rankrun_worker::cuda::{CudaDevice, CudaError, CudaSlice, Kernel, Slice, SliceMut};
use rankrun_worker::ddp::{Ddp, NcclDdp};
use rankrun_worker::process_group::DeviceMemory;
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::{ElasticRun, Group, GroupOptions, Rank, ReduceOp, WorldSize};

use crate::data::{CLASSES, FEATURES};
use crate::learner::{self, Sample};
use crate::model::{HIDDEN, Mlp, OUTPUT, PARAMETERS, PARTS};

const KERNELS: &str = include_str!("mlp.cu");

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// The model of this worker on its GPU, and how its gradients meet those of the others.
pub(crate) struct CudaLearner {
    /// It goes before the model, whose stream it may look at until then.
    exchange: Exchange,
    model: CudaModel,
}

/// How gradients travel.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum Exchange {
    /// From device to device, where they lie.
    Device(NcclDdp),
    /// Through memory of the hosts: where NCCL is missing on a worker, or a worker has no device of its own.
    Host(Ddp),
}

impl CudaLearner {
    pub(crate) fn new(model: CudaModel, run: ElasticRun, by_nccl: bool) -> Result<Self> {
        let ElasticRun { context, group, .. } = run;
        let exchange = if by_nccl {
            let options = GroupOptions { name: "gradients".to_owned(), ..GroupOptions::default() };
            let device = NcclGroup::join(&context, &options, None)?;
            Exchange::Device(NcclDdp::new(group, device, Mlp::description(), &learner::buckets())?)
        } else {
            Exchange::Host(learner::ddp(group)?)
        };
        Ok(Self { model, exchange })
    }

    pub(crate) fn describe(&self) -> String {
        let way = match &self.exchange {
            Exchange::Device(_) => "gradients by nccl",
            Exchange::Host(_) => "gradients by the host",
        };
        format!("device {:?}, {way}", self.model.device)
    }

    pub(crate) fn rank(&self) -> Rank {
        match &self.exchange {
            Exchange::Device(ddp) => ddp.rank(),
            Exchange::Host(ddp) => ddp.rank(),
        }
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        match &self.exchange {
            Exchange::Device(ddp) => ddp.world_size(),
            Exchange::Host(ddp) => ddp.world_size(),
        }
    }

    pub(crate) fn begin(&mut self, model: &mut Mlp) -> Result {
        if let Exchange::Host(ddp) = &mut self.exchange {
            ddp.broadcast(model.parts_mut())?;
        }
        let on_device = &mut self.model;
        on_device.device.write(&model.parameters, &mut on_device.parameters)?;
        if let Exchange::Device(ddp) = &mut self.exchange {
            let stream = on_device.device.raw_stream();
            let parts = raw_parts(&on_device.device, &mut on_device.parameters);
            // SAFETY: the memory is the model's, and lives as long as its stream.
            unsafe { ddp.broadcast(&parts, stream) }?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, samples: &[Sample<'_>], scale: f64, rate: f64) -> Result<[f64; 2]> {
        let Self { model, exchange } = self;
        model.forward(samples, [scale, rate])?;
        // Those of the output layer are on their way while those of the hidden one are computed.
        model.differentiate_output(samples.len())?;
        hand_over(exchange, model, &[3, 2])?;
        model.differentiate_hidden(samples.len())?;
        hand_over(exchange, model, &[1, 0])?;
        match exchange {
            // SAFETY: the stream is the model's.
            Exchange::Device(ddp) => drop(unsafe { ddp.finish(model.device.raw_stream()) }?),
            Exchange::Host(ddp) => {
                let means = ddp.finish()?.iter::<f64>().collect::<Vec<_>>().concat();
                model.device.write(&means, &mut model.gradients)?;
            }
        }
        model.take_step()?;
        let mut score = model.score(samples.len())?;
        match exchange {
            Exchange::Device(ddp) => ddp.host().all_reduce(&mut score, ReduceOp::Sum)?,
            Exchange::Host(ddp) => {
                let sums = ddp.async_group().all_reduce(score.to_vec(), ReduceOp::Sum).wait()?;
                score.copy_from_slice(&sums);
            }
        }
        Ok(score)
    }

    pub(crate) fn fetch(&mut self, model: &mut Mlp) -> Result {
        let on_device = &self.model;
        if let Exchange::Device(ddp) = &mut self.exchange {
            // What NCCL could not do was taken off the streams, and what came behind it has made a step of nonsense: that is not to
            // be saved.
            // SAFETY: the stream is the model's.
            unsafe { ddp.synchronize(on_device.device.raw_stream()) }?;
        }
        Ok(on_device.device.read(&on_device.parameters, &mut model.parameters)?)
    }

    pub(crate) fn into_group(self) -> Result<Group> {
        match self.exchange {
            Exchange::Device(ddp) => {
                let (host, _device) = ddp.into_groups()?;
                Ok(host)
            }
            Exchange::Host(ddp) => Ok(ddp.into_group()?),
        }
    }
}

/// The gradients of these parts are on the stream.
fn hand_over(exchange: &mut Exchange, model: &mut CudaModel, ready: &[usize]) -> Result {
    match exchange {
        Exchange::Device(ddp) => {
            let stream = model.device.raw_stream();
            let parts = raw_parts(&model.device, &mut model.gradients);
            // SAFETY: the memory is the model's; it is used again by work after `finish` on the same stream.
            ready.iter().try_for_each(|&part| unsafe { ddp.gradient_ready(part, parts[part], stream) })?;
        }
        Exchange::Host(ddp) => {
            for &part in ready {
                let from = model.gradients.slice(PARTS[part].clone());
                model.device.read(&from, ddp.overwrite_gradient(part)?)?;
                ddp.mark_ready(part)?;
            }
        }
    }
    Ok(())
}

/// The parts of the model in memory that has a number for each of its parameters, for NCCL.
fn raw_parts(device: &CudaDevice, all: &mut CudaSlice<f64>) -> [DeviceMemory; PARTS.len()] {
    PARTS.map(|part| device.raw_memory(&mut all.slice_mut(part)))
}

/// The model, and memory for what it makes of a batch. Everything is done in the order of one stream.
pub(crate) struct CudaModel {
    device: CudaDevice,
    kernels: Kernels,
    parameters: CudaSlice<f64>,
    gradients: CudaSlice<f64>,
    /// What samples are multiplied by, and the length of a step.
    settings: CudaSlice<f64>,
    input: CudaSlice<f64>,
    classes: CudaSlice<i64>,
    hidden: CudaSlice<f64>,
    slopes: CudaSlice<f64>,
    errors: CudaSlice<f64>,
    scores: CudaSlice<f64>,
}

type Read = Slice<f64>;
type Write = SliceMut<f64>;

/// The kernels of `mlp.cu`.
struct Kernels {
    activate: Kernel<(Write, Read, Read)>,
    judge: Kernel<(Write, Write, Read, Read, Slice<i64>, Read)>,
    descend_into_hidden: Kernel<(Write, Read, Read, Read)>,
    differentiate: Kernel<(Write, Read, Read, i64, i64)>,
    step: Kernel<(Write, Read, Read)>,
}

impl CudaModel {
    /// On this device, for up to so many samples at once.
    pub(crate) fn open(ordinal: usize, rows: usize) -> Result<Self, CudaError> {
        let sizes = [("FEATURES", FEATURES), ("HIDDEN", HIDDEN), ("CLASSES", CLASSES), ("OUTPUT", OUTPUT)];
        let sizes: String = sizes.iter().map(|(name, size)| format!("#define {name} {size}\n")).collect();
        let device = CudaDevice::open(ordinal)?;
        let compiled = device.compile(&(sizes + KERNELS))?;
        // SAFETY: these are their parameters, and each stays below the lengths of its slices.
        let kernels = unsafe {
            Kernels {
                activate: compiled.declare("activate")?,
                judge: compiled.declare("judge")?,
                descend_into_hidden: compiled.declare("descend_into_hidden")?,
                differentiate: compiled.declare("differentiate")?,
                step: compiled.declare("step")?,
            }
        };
        Ok(Self {
            kernels,
            parameters: device.zeros(PARAMETERS)?,
            gradients: device.zeros(PARAMETERS)?,
            settings: device.zeros(2)?,
            input: device.zeros(rows * FEATURES)?,
            classes: device.zeros(rows)?,
            hidden: device.zeros(rows * HIDDEN)?,
            slopes: device.zeros(rows * HIDDEN)?,
            errors: device.zeros(rows * CLASSES)?,
            scores: device.zeros(rows * 2)?,
            device,
        })
    }

    fn forward(&mut self, samples: &[Sample<'_>], settings: [f64; 2]) -> Result<(), CudaError> {
        let rows = samples.len();
        let features: Vec<[f64; FEATURES]> = samples.iter().map(|(features, _)| **features).collect();
        let right: Vec<i64> = samples.iter().map(|(_, class)| *class as i64).collect();
        self.device.write(&settings, &mut self.settings)?;
        self.device.write(cast_slice(&features), &mut self.input.slice_mut(..rows * FEATURES))?;
        self.device.write(&right, &mut self.classes.slice_mut(..rows))?;
        let (parameters, input) = (self.parameters.as_view(), self.input.slice(..rows * FEATURES));
        let hidden = self.hidden.slice_mut(..rows * HIDDEN);
        self.kernels.activate.launch(rows * HIDDEN, (hidden, parameters, input))?;
        let scores = self.scores.slice_mut(..rows * 2);
        let errors = self.errors.slice_mut(..rows * CLASSES);
        let (hidden, classes) = (self.hidden.slice(..rows * HIDDEN), self.classes.slice(..rows));
        let arguments =
            (scores, errors, self.parameters.as_view(), hidden, classes, self.settings.slice(..1));
        self.kernels.judge.launch(rows, arguments)
    }

    fn differentiate_output(&mut self, rows: usize) -> Result<(), CudaError> {
        let errors = self.errors.slice(..rows * CLASSES);
        let hidden = self.hidden.slice(..rows * HIDDEN);
        let gradients = self.gradients.slice_mut(OUTPUT..);
        let sizes = (HIDDEN as i64, CLASSES as i64);
        let arguments = (gradients, errors, hidden, sizes.0, sizes.1);
        self.kernels.differentiate.launch(PARAMETERS - OUTPUT, arguments)
    }

    fn differentiate_hidden(&mut self, rows: usize) -> Result<(), CudaError> {
        let (hidden, errors) = (self.hidden.slice(..rows * HIDDEN), self.errors.slice(..rows * CLASSES));
        let slopes = self.slopes.slice_mut(..rows * HIDDEN);
        let arguments = (slopes, self.parameters.as_view(), hidden, errors);
        self.kernels.descend_into_hidden.launch(rows * HIDDEN, arguments)?;
        let (slopes, input) = (self.slopes.slice(..rows * HIDDEN), self.input.slice(..rows * FEATURES));
        let gradients = self.gradients.slice_mut(..OUTPUT);
        let sizes = (FEATURES as i64, HIDDEN as i64);
        self.kernels.differentiate.launch(OUTPUT, (gradients, slopes, input, sizes.0, sizes.1))
    }

    fn take_step(&mut self) -> Result<(), CudaError> {
        let (gradients, rate) = (self.gradients.as_view(), self.settings.slice(1..));
        self.kernels.step.launch(PARAMETERS, (self.parameters.as_view_mut(), gradients, rate))
    }

    /// The sum of all losses, and how often the model was right.
    fn score(&self, rows: usize) -> Result<[f64; 2], CudaError> {
        let scores = self.device.read_all(&self.scores.slice(..rows * 2))?;
        let sum = |at| scores.iter().skip(at).step_by(2).sum();
        Ok([sum(0), sum(1)])
    }
}
