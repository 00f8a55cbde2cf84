//! Calls on memory of a CUDA device.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use rankrun_worker::cuda::{cuda_available, cuda_context};
use rankrun_worker::process_group::{Collective, DeviceCollective, DeviceMemory, Stream};
use rankrun_worker::{Group, ReduceOp, WorkerContext};

use crate::sweep::Call;
use crate::value::{self, Number, RankPlace};
use crate::{BenchError, Operation, Options, ROOT};

/// A stream on this worker's device, which becomes current for the group that joins.
pub(crate) fn stream(context: &WorkerContext) -> Result<Arc<CudaStream>, BenchError> {
    cuda_available()?;
    match (context.cuda_ordinal(), context.device()) {
        (None, Some(device)) => Err(BenchError::NotCuda { device: device.clone() }),
        (ordinal, _) => Ok(cuda_context(ordinal.unwrap_or(0))?.new_stream()?),
    }
}

/// Memory of one call: an input and an output part, or one buffer for both.
pub(crate) struct OnDevice<T> {
    operation: Operation,
    op: ReduceOp,
    stream: Arc<CudaStream>,
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
        stream: &Arc<CudaStream>,
        world: u32,
        count: usize,
    ) -> Result<Self, BenchError> {
        let (input, output) = options.operation.lengths(world, count);
        // The driver refuses an allocation of length 0.
        let memory = |elements: usize| stream.alloc_zeros((elements * size_of::<T>()).max(1));
        Ok(Self {
            operation: options.operation,
            op: options.redop.into(),
            stream: Arc::clone(stream),
            input: if input > 0 { Some(memory(input)?) } else { None },
            output: memory(output)?,
            lengths: (if input > 0 { input } else { output }, output),
            element: std::marker::PhantomData,
        })
    }

    fn work(&mut self) -> DeviceCollective<'static> {
        let op = self.op;
        let (input_bytes, output_bytes) = (self.lengths.0 * size_of::<T>(), self.lengths.1 * size_of::<T>());
        let memory = |slice: &mut CudaSlice<u8>, bytes: usize| {
            let (address, _sync) = slice.device_ptr_mut(&self.stream);
            DeviceMemory { address, bytes }
        };
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

    fn raw(&self) -> Stream {
        Stream(self.stream.cu_stream().cast::<c_void>())
    }
}

impl<T: Number> Call for OnDevice<T> {
    fn fill(&mut self, group: &Group) -> Result<(), BenchError> {
        let mut input: Vec<T> = vec![T::zeroed(); self.lengths.0];
        value::fill(&mut input, group.rank().0, group.world_size().get());
        if !input.is_empty() {
            let to = self.input.as_mut().unwrap_or(&mut self.output);
            self.stream.memcpy_htod(cast_slice::<T, u8>(&input), to)?;
        }
        // The host memory is freed next, and the copy may still be under way.
        Ok(self.stream.synchronize()?)
    }

    fn run(&mut self, group: &mut Group) -> Result<(), BenchError> {
        let (work, stream) = (self.work(), self.raw());
        // SAFETY: the memory belongs to this call and is freed after a wait.
        #[expect(unsafe_code, reason = "device memory is raw memory")]
        Ok(unsafe { group.run_on_device(T::DATA_TYPE, work, stream) }?)
    }

    fn wait(&mut self, group: &mut Group) -> Result<(), BenchError> {
        // SAFETY: this value owns the stream.
        #[expect(unsafe_code, reason = "a raw stream")]
        Ok(unsafe { group.synchronize(self.raw()) }?)
    }

    fn count_wrong(&self, group: &Group) -> Result<u64, BenchError> {
        let bytes = self.stream.clone_dtoh(&self.output)?;
        // The call may still be under way.
        self.stream.synchronize()?;
        let mut output = vec![T::zeroed(); self.lengths.1];
        let taken = size_of_val(&output[..]);
        cast_slice_mut::<T, u8>(&mut output).copy_from_slice(&bytes[..taken]);
        let place = RankPlace { rank: group.rank(), world: group.world_size().get() };
        Ok(value::count_wrong(&output, (self.operation, self.op), place))
    }
}
