//! Tensors on a GPU: access to their memory, and training on it.
#![expect(unsafe_code, reason = "device memory is raw memory")]

use std::cell::RefCell;
use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DevicePtrMut;
use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Tensor, Var};
use rankrun_worker::Group;
use rankrun_worker::ddp::{DdpError, DdpOptions, NcclDdp, Parameter};
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{DataType, DeviceMemory, Stream};

use crate::CandleError;
use crate::tensors::element_range;

/// The elements of a tensor, and candle's stream for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceElements {
    pub(crate) data_type: DataType,
    pub(crate) memory: DeviceMemory,
    pub(crate) stream: Stream,
}

type DeviceFn<'a> = &'a mut dyn FnMut(DeviceElements) -> Result<(), CandleError>;

/// Calls a function with the elements of a tensor, which it may overwrite.
pub(crate) fn with_elements(
    tensor: &Tensor,
    mut act: impl FnMut(DeviceElements) -> Result<(), CandleError>,
) -> Result<(), CandleError> {
    let work = InplaceFn { act: RefCell::new(&mut act), failure: RefCell::new(None) };
    let done = tensor.inplace_op1(&work);
    match work.failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(done?),
    }
}

/// An in-place operation with this crate's error type.
struct InplaceFn<'a> {
    act: RefCell<DeviceFn<'a>>,
    failure: RefCell<Option<CandleError>>,
}

impl InplaceOp1 for InplaceFn<'_> {
    fn name(&self) -> &'static str {
        "rankrun-exchange"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("the tensor is on the CPU, and was to be exchanged on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        in_storage(storage, layout, &mut **self.act.borrow_mut()).map_err(|error| {
            let text = error.to_string();
            *self.failure.borrow_mut() = Some(error);
            candle_core::Error::Msg(text)
        })
    }
}

/// Calls a function with the elements of a storage.
pub(crate) fn in_storage(
    storage: &mut CudaStorage,
    layout: &Layout,
    act: impl FnOnce(DeviceElements) -> Result<(), CandleError>,
) -> Result<(), CandleError> {
    let (from, to) = element_range(layout)?;
    let stream = storage.device.cuda_stream();
    macro_rules! each_type {
        ($($kind:ident: $data_type:ident;)*) => {
            match &mut storage.slice {
                $(CudaStorageSlice::$kind(slice) => {
                    // Dropping the guard orders later work of other streams behind the call.
                    let (address, guard) = slice.device_ptr_mut(&stream);
                    let (data_type, size) = (DataType::$data_type, DataType::$data_type.size());
                    let memory = DeviceMemory { address: address + (from * size) as u64, bytes: (to - from) * size };
                    let done = act(DeviceElements { data_type, memory, stream: Stream(stream.cu_stream().cast::<c_void>()) });
                    drop(guard);
                    done
                })*
                _ => Err(CandleError::DataType(storage.dtype())),
            }
        };
    }
    each_type!(F16: F16; BF16: Bf16; F32: F32; F64: F64; I32: I32; I64: I64; U8: U8;)
}

/// Gradients on a GPU, reduced in candle's memory.
#[derive(Debug)]
pub(crate) struct OnDevice {
    ddp: NcclDdp,
    find_unused: bool,
    /// candle's stream with the latest means; `None` before the first.
    stream: Option<Stream>,
}

impl OnDevice {
    /// Overwrites the variables of all ranks with those of rank 0.
    pub(crate) fn new(
        (host, device): (Group, NcclGroup),
        variables: &[(String, Var)],
        parameters: Vec<Parameter>,
        options: &DdpOptions,
    ) -> Result<Self, CandleError> {
        let mut ddp = NcclDdp::new(host, device, parameters, options)?;
        let mut pieces = Vec::new();
        for (_, variable) in variables {
            with_elements(variable, |elements| {
                pieces.push(elements);
                Ok(())
            })?;
        }
        if let Some(DeviceElements { stream, .. }) = pieces.first() {
            let memory: Vec<DeviceMemory> = pieces.iter().map(|elements| elements.memory).collect();
            // SAFETY: the memory belongs to living variables, and candle uses it in the order of this stream.
            unsafe { ddp.broadcast(&memory, *stream) }?;
        }
        Ok(Self { ddp, find_unused: options.find_unused_parameters, stream: None })
    }

    /// Waits on the host until all gradients are averaged.
    pub(crate) fn synchronize(&mut self) -> Result<(), CandleError> {
        let Some(stream) = self.stream else { return Ok(()) };
        // SAFETY: the stream belongs to candle and lives as long as the variables.
        Ok(unsafe { self.ddp.synchronize(stream) }?)
    }

    /// Replaces each gradient by its mean over all ranks.
    pub(crate) fn average(
        &mut self,
        variables: &[(String, Var)],
        gradients: &mut GradStore,
    ) -> Result<(), CandleError> {
        // No call may be under way after an error: the gradients' memory is freed then.
        let missing = |(_, variable): &&(String, Var)| gradients.get(variable).is_none();
        let mut without = variables.iter().filter(missing);
        if let (Some((name, _)), false) = (without.next(), self.find_unused) {
            let other_count = without.count();
            return Err(DdpError::Missing { parameter: name.clone(), other_count }.into());
        }
        // Nor may one be under way when a copy fails.
        let mut all = Vec::new();
        for (index, (_, variable)) in variables.iter().enumerate().rev() {
            // The mean replaces the gradient in place; a view is first copied to memory of its own.
            let own = gradients.get(variable).map(Tensor::contiguous).transpose()?;
            let is_used = own.is_some();
            all.push((index, own.map_or_else(|| variable.zeros_like(), Ok)?, is_used));
        }
        let mut streams = None;
        for (index, gradient, is_used) in &all {
            with_elements(gradient, |DeviceElements { memory, stream, .. }| {
                streams = Some(stream);
                // SAFETY: the memory belongs to the gradient, which is kept until `finish` is on the stream;
                // candle frees it on this same stream.
                Ok(unsafe {
                    match is_used {
                        true => self.ddp.gradient_ready(*index, memory, stream),
                        false => self.ddp.gradient_unused(*index, memory, stream),
                    }
                }?)
            })?;
        }
        self.stream = streams;
        let Some(stream) = streams else { return Ok(()) };
        // SAFETY: the stream belongs to candle.
        let unused = unsafe { self.ddp.finish(stream) }?;
        for (index, gradient, _) in all {
            if !unused.contains(&index) {
                gradients.insert(&variables[index].1, gradient);
            }
        }
        Ok(())
    }
}
