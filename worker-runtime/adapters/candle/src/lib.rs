//! candle on rankrun's process groups: tensors that all ranks reduce, and training on parts of a batch.
//!
//! candle gives all gradients at once, when backward is done: they are exchanged then, and not while it still runs.
//!
//! ```no_run
//! use candle_core::{DType, Device, Result, Tensor};
//! use candle_nn::{Optimizer, SGD, VarBuilder, VarMap, linear};
//! use rankrun_candle::Ddp;
//! use rankrun_worker::{GroupOptions, WorkerContext};
//!
//! fn train(context: &WorkerContext) -> std::result::Result<(), Box<dyn std::error::Error>> {
//!     let variables = VarMap::new();
//!     let layer = linear(10, 1, VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
//!     let group = context.process_group(&GroupOptions::default())?;
//!     // Every rank has the variables of rank 0 now.
//!     let mut ddp = Ddp::new(group, &variables, &Default::default())?;
//!     let mut optimizer = SGD::new(variables.all_vars(), 0.1)?;
//!     for step in 0..100 {
//!         let (inputs, targets) = part_of_this_rank(step, context)?;
//!         let loss = candle_nn::Module::forward(&layer, &inputs)?.sub(&targets)?.sqr()?.mean_all()?;
//!         // The mean over all ranks.
//!         let gradients = ddp.backward(&loss)?;
//!         optimizer.step(&gradients)?;
//!     }
//!     Ok(())
//! }
//! # fn part_of_this_rank(_: usize, _: &WorkerContext) -> Result<(Tensor, Tensor)> { unimplemented!() }
//! ```
//!
//! On the CPU gradients are copied into the buckets of [`rankrun_worker::ddp`], and back. With the feature `cuda` (`Ddp::on_device`)
//! those on a GPU are reduced by NCCL where they lie, in the order of candle's own stream: nothing is copied, and nobody waits on the
//! host.

mod ddp;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod tensors;

pub use ddp::Ddp;
pub use error::CandleError;
pub use tensors::{all_reduce, broadcast};
