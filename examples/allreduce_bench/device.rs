//! Calls on memory of a CUDA device.

use bytemuck::{cast_slice, cast_slice_mut};
use rankrun_worker::cuda::{CudaDevice, CudaError, CudaSlice, cuda_available};
use rankrun_worker::process_group::{Collective, DeviceCollective};
use rankrun_worker::{Group, ReduceOp, WorkerContext};

use crate::sweep::Call;
use crate::value::{self, Number, RankPlace};
use crate::{BenchError, Operation, Options, ROOT};

/// This worker's device, which becomes current for the group that joins.
pub(crate) fn open(context: &WorkerContext) -> Result<CudaDevice, BenchError> {
    cuda_available().map_err(CudaError::from)?;
    match (context.cuda_ordinal(), context.device()) {
        (None, Some(device)) => Err(BenchError::NotCuda { device: device.clone() }),
        (ordinal, _) => Ok(CudaDevice::open(ordinal.unwrap_or(0))?),
    }
}

/// Memory of one call: an input and an output part, or one buffer for both.
pub(crate) struct OnDevice<T> {
    operation: Operation,
    op: ReduceOp,
    device: CudaDevice,
    input: Option<CudaSlice<u8>>,
    output: CudaSlice<u8>,
    /// Elements of input and output.
    lengths: (usize, usize),
    element: std::marker::PhantomData<T>,
}

impl<T: Number> OnDevice<T> {
    /// Memory for a call with `count` elements per rank.
    pub(crate) fn new(
        options: &Options,
        device: &CudaDevice,
        world: u32,
        count: usize,
    ) -> Result<Self, BenchError> {
        let (input, output) = options.operation.lengths(world, count);
        // The driver refuses an allocation of length 0.
        let memory = |elements: usize| device.zeros((elements * size_of::<T>()).max(1));
        Ok(Self {
            operation: options.operation,
            op: options.redop.into(),
            device: device.clone(),
            input: if input > 0 { Some(memory(input)?) } else { None },
            output: memory(output)?,
            lengths: (if input > 0 { input } else { output }, output),
            element: std::marker::PhantomData,
        })
    }

    fn work(&mut self) -> DeviceCollective<'static> {
        let op = self.op;
        let (input_bytes, output_bytes) = (self.lengths.0 * size_of::<T>(), self.lengths.1 * size_of::<T>());
        let memory =
            |slice: &mut CudaSlice<u8>, bytes: usize| self.device.raw_memory(&mut slice.slice_mut(..bytes));
        let Some(input) = &mut self.input else {
            let data = memory(&mut self.output, input_bytes);
            return match self.operation {
                Operation::Reduce => Collective::Reduce { data, op, root: ROOT },
                Operation::Broadcast => Collective::Broadcast { data, root: ROOT },
                _ => Collective::AllReduce { data, op },
            };
        };
        let input = memory(input, input_bytes);
        let output = memory(&mut self.output, output_bytes);
        match self.operation {
            Operation::ReduceScatter => Collective::ReduceScatter { input, output, op },
            _ => Collective::AllGather { input, output },
        }
    }
}

impl<T: Number> Call for OnDevice<T> {
    fn fill(&mut self, group: &Group) -> Result<(), BenchError> {
        let mut input: Vec<T> = vec![T::zeroed(); self.lengths.0];
        value::fill(&mut input, group.rank().0, group.world_size().get());
        if !input.is_empty() {
            let to = self.input.as_mut().unwrap_or(&mut self.output);
            let bytes = cast_slice::<T, u8>(&input);
            self.device.write(bytes, &mut to.slice_mut(..bytes.len()))?;
        }
        Ok(())
    }

    fn run(&mut self, group: &mut Group) -> Result<(), BenchError> {
        let (work, stream) = (self.work(), self.device.raw_stream());
        // SAFETY: the memory belongs to this call and is freed after a wait.
        #[expect(unsafe_code, reason = "device memory is raw memory")]
        Ok(unsafe { group.run_on_device(T::DATA_TYPE, work, stream) }?)
    }

    fn wait(&mut self, group: &mut Group) -> Result<(), BenchError> {
        // SAFETY: this value owns the stream.
        #[expect(unsafe_code, reason = "a raw stream")]
        Ok(unsafe { group.synchronize(self.device.raw_stream()) }?)
    }

    fn count_wrong(&self, group: &Group) -> Result<u64, BenchError> {
        let mut output = vec![T::zeroed(); self.lengths.1];
        let bytes = cast_slice_mut::<T, u8>(&mut output);
        self.device.read(&self.output.slice(..bytes.len()), bytes)?;
        let place = RankPlace { rank: group.rank(), world: group.world_size().get() };
        Ok(value::count_wrong(&output, (self.operation, self.op), place))
    }
}
