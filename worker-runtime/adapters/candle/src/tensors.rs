//! Collectives on tensors, in place.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};
use rankrun_worker::{Group, Rank, ReduceOp};

use crate::CandleError;

/// Reduces a tensor over all ranks, in place, on all ranks. On a GPU the call is enqueued on candle's stream,
/// and an error of the group is the result of the next call.
///
/// Every tensor that shares the memory changes too, such as those of a [`Var`](candle_core::Var).
///
/// # Errors
/// An error of the group; or the tensor is not contiguous, has an unsupported type, or is on a
/// device that this build cannot use.
pub fn all_reduce(group: &mut Group, tensor: &Tensor, op: ReduceOp) -> Result<(), CandleError> {
    call(group, tensor, Work::AllReduce(op))
}

/// Overwrites the tensor on every rank with that of `root`, in place.
///
/// # Errors
/// As [`all_reduce`].
pub fn broadcast(group: &mut Group, tensor: &Tensor, root: Rank) -> Result<(), CandleError> {
    call(group, tensor, Work::Broadcast(root))
}

#[derive(Debug, Clone, Copy)]
enum Work {
    AllReduce(ReduceOp),
    Broadcast(Rank),
}

/// An in-place operation with this crate's error type.
struct Call<'a> {
    group: RefCell<&'a mut Group>,
    work: Work,
    failure: RefCell<Option<CandleError>>,
}

fn call(group: &mut Group, tensor: &Tensor, work: Work) -> Result<(), CandleError> {
    let call = Call { group: RefCell::new(group), work, failure: RefCell::new(None) };
    let done = tensor.inplace_op1(&call);
    match call.failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(done?),
    }
}

impl Call<'_> {
    fn keep(&self, done: Result<(), CandleError>) -> candle_core::Result<()> {
        done.map_err(|error| {
            let text = error.to_string();
            *self.failure.borrow_mut() = Some(error);
            candle_core::Error::Msg(text)
        })
    }

    fn on_host(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<(), CandleError> {
        let (from, to) = element_range(layout)?;
        let mut group = self.group.borrow_mut();
        macro_rules! each_type {
            ($($kind:ident),*) => {
                match storage {
                    $(CpuStorage::$kind(all) => match self.work {
                        Work::AllReduce(op) => group.all_reduce(&mut all[from..to], op),
                        Work::Broadcast(root) => group.broadcast(&mut all[from..to], root),
                    },)*
                    other => {
                        return Err(CandleError::DataType(candle_core::backend::BackendStorage::dtype(other)));
                    }
                }
            };
        }
        Ok(each_type!(F16, BF16, F32, F64, I32, I64, U8)?)
    }
}

#[cfg(feature = "cuda")]
impl Call<'_> {
    fn on_device(&self, elements: crate::device::DeviceElements) -> Result<(), CandleError> {
        use rankrun_worker::process_group::Collective;

        let data = elements.memory;
        let work = match self.work {
            Work::AllReduce(op) => Collective::AllReduce { data, op },
            Work::Broadcast(root) => Collective::Broadcast { data, root },
        };
        #[expect(unsafe_code, reason = "device memory is raw memory")]
        // SAFETY: the memory belongs to the borrowed tensor; candle frees it on this same stream, after the
        // call.
        Ok(unsafe { self.group.borrow_mut().run_on_device(elements.data_type, work, elements.stream) }?)
    }
}

impl InplaceOp1 for Call<'_> {
    fn name(&self) -> &'static str {
        match self.work {
            Work::AllReduce(_) => "rankrun-all-reduce",
            Work::Broadcast(_) => "rankrun-broadcast",
        }
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        self.keep(self.on_host(storage, layout))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut candle_core::CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        self.keep(crate::device::in_storage(storage, layout, |elements| self.on_device(elements)))
    }
}

/// Begin and end of a tensor's elements in its storage.
pub(crate) fn element_range(layout: &Layout) -> Result<(usize, usize), CandleError> {
    layout
        .contiguous_offsets()
        .ok_or_else(|| CandleError::NotContiguous { shape: layout.shape().dims().to_vec() })
}
