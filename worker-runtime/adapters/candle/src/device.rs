//! Tensors on a GPU: where their elements lie, and training on these.
#![expect(unsafe_code, reason = "device memory is raw memory")]

use std::cell::RefCell;
use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DevicePtrMut;
use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Tensor, Var};
use rankrun_worker::Group;
use rankrun_worker::ddp::{DdpError, DdpOptions, DeviceDdp, Parameter};
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{DataType, DeviceMemory, Stream};

use crate::CandleError;
use crate::tensors::piece;

/// The elements of a tensor, and the stream in whose order candle uses them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) data_type: DataType,
    pub(crate) memory: DeviceMemory,
    pub(crate) stream: Stream,
}

type Act<'a> = &'a mut dyn FnMut(Piece) -> Result<(), CandleError>;

/// Does something with the elements of a tensor, which may be written to.
pub(crate) fn with_piece(
    tensor: &Tensor,
    mut act: impl FnMut(Piece) -> Result<(), CandleError>,
) -> Result<(), CandleError> {
    let work = Work { act: RefCell::new(&mut act), failure: RefCell::new(None) };
    let done = tensor.inplace_op1(&work);
    match work.failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(done?),
    }
}

/// As candle takes operations: by reference, and with its own kind of error.
struct Work<'a> {
    act: RefCell<Act<'a>>,
    failure: RefCell<Option<CandleError>>,
}

impl InplaceOp1 for Work<'_> {
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

/// Does something with the elements in a storage.
pub(crate) fn in_storage(
    storage: &mut CudaStorage,
    layout: &Layout,
    act: impl FnOnce(Piece) -> Result<(), CandleError>,
) -> Result<(), CandleError> {
    let (from, to) = piece(layout)?;
    let stream = storage.device.cuda_stream();
    macro_rules! each_type {
        ($($kind:ident: $data_type:ident;)*) => {
            match &mut storage.slice {
                $(CudaStorageSlice::$kind(slice) => {
                    // The guard orders what comes after on other streams behind the call, when it goes.
                    let (address, guard) = slice.device_ptr_mut(&stream);
                    let (data_type, size) = (DataType::$data_type, DataType::$data_type.size());
                    let memory = DeviceMemory { address: address + (from * size) as u64, bytes: (to - from) * size };
                    let done = act(Piece { data_type, memory, stream: Stream(stream.cu_stream().cast::<c_void>()) });
                    drop(guard);
                    done
                })*
                _ => Err(CandleError::DataType(storage.dtype())),
            }
        };
    }
    each_type!(F16: F16; BF16: Bf16; F32: F32; F64: F64; I32: I32; I64: I64; U8: U8;)
}

/// Gradients on a GPU, where candle has them.
#[derive(Debug)]
pub(crate) struct OnDevice {
    ddp: DeviceDdp,
    find_unused: bool,
    /// candle's, on which the last means are; none before the first.
    stream: Option<Stream>,
}

impl OnDevice {
    /// Gives all ranks the variables of rank 0.
    pub(crate) fn new(
        (host, device): (Group, NcclGroup),
        variables: &[(String, Var)],
        parameters: Vec<Parameter>,
        options: &DdpOptions,
    ) -> Result<Self, CandleError> {
        let mut ddp = DeviceDdp::new(host, device, parameters, options)?;
        let mut pieces = Vec::new();
        for (_, variable) in variables {
            with_piece(variable, |piece| {
                pieces.push(piece);
                Ok(())
            })?;
        }
        if let Some(Piece { stream, .. }) = pieces.first() {
            let memory: Vec<DeviceMemory> = pieces.iter().map(|piece| piece.memory).collect();
            // SAFETY: the memory is the variables', which are there; candle uses it in the order of this stream.
            unsafe { ddp.broadcast(&memory, *stream) }?;
        }
        Ok(Self { ddp, find_unused: options.find_unused, stream: None })
    }

    /// Waits on the host until all means are there.
    pub(crate) fn wait(&mut self) -> Result<(), CandleError> {
        let Some(stream) = self.stream else { return Ok(()) };
        // SAFETY: it is candle's stream, which lives as long as the variables.
        Ok(unsafe { self.ddp.wait(stream) }?)
    }

    /// Puts the mean over all ranks in the place of each gradient.
    pub(crate) fn average(
        &mut self,
        variables: &[(String, Var)],
        gradients: &mut GradStore,
    ) -> Result<(), CandleError> {
        // Nothing may be on its way when this fails: its memory goes with the gradients.
        let missing = |(_, variable): &&(String, Var)| gradients.get(variable).is_none();
        let mut without = variables.iter().filter(missing);
        if let (Some((name, _)), false) = (without.next(), self.find_unused) {
            let others = without.count();
            return Err(DdpError::Missing { parameter: name.clone(), others }.into());
        }
        // Nothing may be on its way when a copy fails, either.
        let mut all = Vec::new();
        for (index, (_, variable)) in variables.iter().enumerate().rev() {
            // The mean is written where the gradient lies, and of a view into a piece of its own.
            let own = gradients.get(variable).map(Tensor::contiguous).transpose()?;
            let is_used = own.is_some();
            all.push((index, own.map_or_else(|| variable.zeros_like(), Ok)?, is_used));
        }
        let mut streams = None;
        for (index, gradient, is_used) in &all {
            with_piece(gradient, |Piece { memory, stream, .. }| {
                streams = Some(stream);
                // SAFETY: the memory is the gradient's, which is kept until `finish` is on the stream; candle gives it back on
                // this same stream.
                Ok(unsafe {
                    match is_used {
                        true => self.ddp.ready(*index, memory, stream),
                        false => self.ddp.unused(*index, memory, stream),
                    }
                }?)
            })?;
        }
        self.stream = streams;
        let Some(stream) = streams else { return Ok(()) };
        // SAFETY: it is candle's stream.
        let unused = unsafe { self.ddp.finish(stream) }?;
        for (index, gradient, _) in all {
            if !unused.contains(&index) {
                gradients.insert(&variables[index].1, gradient);
            }
        }
        Ok(())
    }
}
