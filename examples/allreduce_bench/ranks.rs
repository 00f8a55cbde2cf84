//! The group that is measured, and what is beside it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use rankrun_worker::process_group::{Backend, Wish};
use rankrun_worker::{Group, GroupOptions, WorkerContext};

use crate::device;
use crate::{BenchError, Carrier, Options};

/// This rank's place among the others.
pub(crate) struct Ranks {
    /// The group whose calls are measured.
    pub(crate) group: Group,
    /// For memory of the host, where that group carries none.
    beside: Option<Group>,
    /// Where the calls are put, on a device.
    pub(crate) stream: Option<Arc<CudaStream>>,
}

impl Ranks {
    /// Joins the group that is asked for; in the second run of `--compare` the slower one.
    pub(crate) fn join(
        options: &Options,
        context: &WorkerContext,
        is_second: bool,
    ) -> Result<Self, BenchError> {
        let carrier = options.carrier(context);
        let wish = match carrier {
            Carrier::Nccl => return Self::join_on_device(context),
            _ if is_second => Wish::Tcp,
            Carrier::Auto | Carrier::Mixed => Wish::Auto,
            Carrier::Shm => Wish::Shm,
            Carrier::Tcp => Wish::Tcp,
        };
        let group =
            context.process_group(&GroupOptions { backend: Some(wish), ..GroupOptions::default() })?;
        match (carrier, group.backend()) {
            (Carrier::Mixed, backend) if backend != Backend::Mixed && !is_second => {
                Err(BenchError::NotMixed { backend })
            }
            _ => Ok(Self { group, beside: None, stream: None }),
        }
    }

    fn join_on_device(context: &WorkerContext) -> Result<Self, BenchError> {
        // The group is on the device that is current when it is joined.
        let stream = device::stream(context)?;
        let options = |name: &str, backend| GroupOptions {
            name: name.to_owned(),
            backend: Some(backend),
            ..GroupOptions::default()
        };
        let beside = context.process_group(&options("control", Wish::Auto))?;
        let group = context.process_group(&options("measured", Wish::Nccl))?;
        Ok(Self { group, beside: Some(beside), stream: Some(stream) })
    }

    /// The group for what is not measured.
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
