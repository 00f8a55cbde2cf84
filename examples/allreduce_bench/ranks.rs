//! The measured group, and the groups beside it.

use rankrun_worker::cuda::CudaDevice;
use rankrun_worker::process_group::{Backend, BackendChoice};
use rankrun_worker::{Group, GroupOptions, WorkerContext};

use crate::device;
use crate::{BenchError, Carrier, Options};

/// The groups of this rank.
pub(crate) struct Ranks {
    /// The measured group.
    pub(crate) group: Group,
    /// A group for host memory, if the measured one carries none.
    beside: Option<Group>,
    /// The device of the calls.
    pub(crate) device: Option<CudaDevice>,
}

impl Ranks {
    /// Joins the requested group; in the second run of `--compare` the slower one.
    pub(crate) fn join(
        options: &Options,
        context: &WorkerContext,
        is_second: bool,
    ) -> Result<Self, BenchError> {
        let carrier = options.carrier(context);
        let choice = match carrier {
            Carrier::Nccl => return Self::join_on_device(context),
            _ if is_second => BackendChoice::Tcp,
            Carrier::Auto | Carrier::Mixed => BackendChoice::Auto,
            Carrier::Shm => BackendChoice::Shm,
            Carrier::Tcp => BackendChoice::Tcp,
        };
        let group =
            context.process_group(&GroupOptions { backend: Some(choice), ..GroupOptions::default() })?;
        match (carrier, group.backend()) {
            (Carrier::Mixed, backend) if backend != Backend::Mixed && !is_second => {
                Err(BenchError::NotMixed { backend })
            }
            _ => Ok(Self { group, beside: None, device: None }),
        }
    }

    fn join_on_device(context: &WorkerContext) -> Result<Self, BenchError> {
        // The group uses the device that is current when it joins.
        let device = device::open(context)?;
        let options = |name: &str, backend| GroupOptions {
            name: name.to_owned(),
            backend: Some(backend),
            ..GroupOptions::default()
        };
        let beside = context.process_group(&options("control", BackendChoice::Auto))?;
        let group = context.process_group(&options("measured", BackendChoice::Nccl))?;
        Ok(Self { group, beside: Some(beside), device: Some(device) })
    }

    /// The group for control messages.
    pub(crate) fn control(&mut self) -> &mut Group {
        self.beside.as_mut().unwrap_or(&mut self.group)
    }

    /// Leaves all groups in good order.
    pub(crate) fn leave(self) {
        self.group.leave();
        if let Some(beside) = self.beside {
            beside.leave();
        }
    }
}
