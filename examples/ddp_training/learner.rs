//! Where the model learns: on the CPU, or on the worker's GPU. The steps are the same, up to rounding.

use std::error::Error;
use std::num::NonZero;

use rankrun_worker::cuda::CudaError;
use rankrun_worker::ddp::{Ddp, DdpOptions};
use rankrun_worker::diagnostic::{Details, Diagnostic};
use rankrun_worker::process_group::nccl::Nccl;
use rankrun_worker::{Device, ElasticRun, Group, Rank, ReduceOp, WorkerContext, WorldSize};

use crate::cuda::{CudaLearner, CudaModel};
use crate::data::FEATURES;
use crate::model::Mlp;

/// What to compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceChoice {
    /// The GPU that the launcher gives this worker, or nothing. Where the launcher gives none, a GPU if there
    /// is one that can be used, otherwise the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The worker's GPU, or nothing.
    Cuda,
}

/// A sample and its class.
pub(crate) type Sample<'a> = (&'a [f64; FEATURES], usize);

/// The model of this worker, and how its gradients meet those of the others.
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub(crate) enum Learner {
    /// It learns where the program has it.
    Host(Ddp),
    /// It is on a GPU.
    Cuda(CudaLearner),
}

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

impl Learner {
    /// For shares of up to `rows` samples; all workers do it together. Gradients go by NCCL where every worker has it and a GPU.
    pub(crate) fn open(place: DeviceChoice, mut run: ElasticRun, rows: usize) -> Result<Self> {
        let model = on_gpu(place, &run.context, rows)?;
        // Two workers on one device are nothing that NCCL knows.
        let has_nccl = model.is_some() && sharing().is_none() && Nccl::load(None).is_ok();
        let mut by_nccl = [u8::from(has_nccl)];
        run.group.all_reduce(&mut by_nccl, ReduceOp::Min)?;
        Ok(match model {
            Some(model) => Self::Cuda(CudaLearner::new(model, run, by_nccl == [1])?),
            None => Self::Host(ddp(run.group)?),
        })
    }

    /// What it computes on, and how gradients travel.
    pub(crate) fn describe(&self, context: &WorkerContext) -> String {
        match self {
            Self::Host(_) => format!("device cpu:{}", context.local_rank()),
            Self::Cuda(learner) => learner.describe(),
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Host(ddp) => ddp.rank(),
            Self::Cuda(learner) => learner.rank(),
        }
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        match self {
            Self::Host(ddp) => ddp.world_size(),
            Self::Cuda(learner) => learner.world_size(),
        }
    }

    /// All workers begin with the model of rank 0.
    pub(crate) fn begin(&mut self, model: &mut Mlp) -> Result {
        match self {
            Self::Host(ddp) => Ok(ddp.broadcast(model.parts_mut())?),
            Self::Cuda(learner) => learner.begin(model),
        }
    }

    /// Takes a step of length `rate` along the gradients of all workers' samples, each multiplied by `scale`, of which the mean over
    /// workers is taken. The sum of all losses, and how often the model was right.
    pub(crate) fn step(
        &mut self,
        model: &mut Mlp,
        samples: &[Sample<'_>],
        scale: f64,
        rate: f64,
    ) -> Result<[f64; 2]> {
        match self {
            Self::Host(ddp) => {
                let (loss, right) = model.learn(samples, scale, ddp)?;
                let score = ddp.async_group().all_reduce(vec![loss, right], ReduceOp::Sum);
                model.descend(&ddp.finish()?, rate);
                let score = score.wait()?;
                Ok([score[0], score[1]])
            }
            Self::Cuda(learner) => learner.step(samples, scale, rate),
        }
    }

    /// Brings the program's copy of the model up to date, with steps that all went well.
    pub(crate) fn fetch(&mut self, model: &mut Mlp) -> Result {
        match self {
            Self::Host(_) => Ok(()),
            Self::Cuda(learner) => learner.fetch(model),
        }
    }

    /// Ends what is under way, and gives the group of all workers back.
    pub(crate) fn into_group(self) -> Result<Group> {
        match self {
            Self::Host(ddp) => Ok(ddp.into_group()?),
            Self::Cuda(learner) => learner.into_group(),
        }
    }
}

/// The exchange of gradients through memory of the host.
pub(crate) fn ddp(group: Group) -> Result<Ddp> {
    Ok(Ddp::new(group, Mlp::description(), &buckets())?)
}

/// Buckets for a model of 5 kB: those of the output layer are one, which is on its way while the hidden layer is computed.
pub(crate) fn buckets() -> DdpOptions {
    DdpOptions { first_bucket_bytes: 1 << 10, ..DdpOptions::default() }
}

/// Number of workers that share one device, for tests on a machine with one.
const SHARE: &str = "RANKRUN_TEST_SHARE_DEVICE";

fn sharing() -> Option<NonZero<usize>> {
    #[expect(clippy::disallowed_methods, reason = "a switch for tests, not an option of the program")]
    std::env::var(SHARE).ok()?.parse().ok()
}

/// The launcher gave the worker a device of another kind than the program was told to take.
#[derive(Debug, thiserror::Error)]
#[error("{}this worker is to compute on a CUDA device, and the launcher gives it `{device}`", Details(self))]
struct OtherDevice {
    device: Device,
}

impl Diagnostic for OtherDevice {
    fn hint(&self) -> Option<&str> {
        Some(
            "start it with `rankrun --device-type cuda`, or let the program compute on the device that it has",
        )
    }
}

/// The model on the worker's GPU, if that is where it is to be. A GPU that the launcher gave is never replaced by the CPU.
fn on_gpu(place: DeviceChoice, context: &WorkerContext, rows: usize) -> Result<Option<CudaModel>> {
    let own = if sharing().is_some() { Some(0) } else { context.cuda_ordinal() };
    let ordinal = match (place, own, context.device()) {
        (DeviceChoice::Cpu, ..) | (DeviceChoice::Auto, None, _) => return Ok(None),
        (DeviceChoice::Cuda, None, Some(device)) => {
            return Err(OtherDevice { device: device.clone() }.into());
        }
        (_, ordinal, _) => ordinal.unwrap_or(0),
    };
    let is_optional = place == DeviceChoice::Auto && !matches!(context.device(), Some(Device::Cuda(_)));
    match CudaModel::open(ordinal, rows) {
        Err(error) if is_optional && CudaError::is_absence(&error) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}
