//! Process groups of rankrun for candle: collectives on tensors, and data-parallel training.
//!
//! candle returns all gradients at the end of backward, so they are exchanged then and not during backward.
//!
//! ```no_run
//! use candle_core::{DType, Result, Tensor};
//! use candle_nn::{Optimizer, SGD, VarBuilder, VarMap, linear};
//! use rankrun_candle::Ddp;
//! use rankrun_worker::WorkerContext;
//!
//! fn train(context: &WorkerContext) -> std::result::Result<(), Box<dyn std::error::Error>> {
//!     // A GPU or the CPU: the rest is the same.
//!     let device = rankrun_candle::device(context)?;
//!     let variables = VarMap::new();
//!     let layer = linear(10, 1, VarBuilder::from_varmap(&variables, DType::F32, &device))?;
//!     // Every rank now has the variables of rank 0.
//!     let mut ddp = Ddp::join(context, &variables, &Default::default())?;
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
//! On the CPU gradients are copied to the buckets of [`rankrun_worker::ddp`] and back. With the feature
//! `cuda` (`Ddp::on_device`) NCCL reduces gradients on a GPU in place, in the order of candle's own stream,
//! without copies and without a wait on the host. The example `train` is a template: it also saves checkpoints.

mod ddp;
#[cfg(feature = "cuda")]
mod device;
mod error;
mod place;
mod state;
mod tensors;

pub use ddp::Ddp;
pub use error::CandleError;
pub use place::device;
pub use state::{load_latest, save};
pub use tensors::{all_reduce, broadcast};
