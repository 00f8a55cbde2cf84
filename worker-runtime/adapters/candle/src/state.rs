//! Checkpoints of variables, on any device: they pass through host memory.

use candle_core::{DType, Tensor, Var};
use candle_nn::VarMap;
use rankrun_worker::checkpoint::{Checkpoint, Loaded, StateDict};
use rankrun_worker::process_group::{bf16, f16};

use crate::CandleError;
use crate::ddp::sorted;

/// Saves all variables under their names. All ranks call it at the same step.
///
/// ```no_run
/// use candle_nn::VarMap;
/// use rankrun_candle::{CandleError, load_latest, save};
/// use rankrun_worker::WorkerContext;
/// use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions};
///
/// fn train(context: &WorkerContext, variables: &VarMap) -> Result<(), CandleError> {
///     let mut checkpoint = Checkpoint::open(context, &CheckpointOptions::new("checkpoints"))?;
///     let first = load_latest(&mut checkpoint, variables)?.map_or(0, |loaded| loaded.step);
///     for step in first..1000 {
///         // … a step of training …
///         if (step + 1) % 100 == 0 {
///             save(&mut checkpoint, step + 1, variables)?;
///         }
///     }
///     Ok(())
/// }
/// ```
///
/// # Errors
/// The variables of the ranks differ or have an unsupported type, or the checkpoint cannot be written. On a GPU call
/// [`Ddp::synchronize`](crate::Ddp::synchronize) before, so that no failed step is saved.
pub fn save(checkpoint: &mut Checkpoint, step: u64, variables: &VarMap) -> Result<(), CandleError> {
    let variables = sorted(variables);
    let mut copies = copies(&variables)?;
    Ok(checkpoint.save(step, &state(&variables, &mut copies))?)
}

/// Overwrites all variables with those of the latest checkpoint, if there is one, on all ranks. The state of an optimiser is
/// not in it.
///
/// # Errors
/// The variables of the ranks or of the checkpoint differ, have an unsupported type, or cannot be read.
pub fn load_latest(checkpoint: &mut Checkpoint, variables: &VarMap) -> Result<Option<Loaded>, CandleError> {
    let variables = sorted(variables);
    let mut copies = copies(&variables)?;
    let loaded = checkpoint.load_latest(&mut state(&variables, &mut copies))?;
    if loaded.is_some() {
        for ((_, variable), copy) in variables.iter().zip(&copies) {
            copy.write(variable)?;
        }
    }
    Ok(loaded)
}

fn copies(variables: &[(String, Var)]) -> Result<Vec<HostCopy>, CandleError> {
    variables.iter().map(|(_, variable)| HostCopy::read(variable)).collect()
}

fn state<'a>(variables: &[(String, Var)], copies: &'a mut [HostCopy]) -> StateDict<'a> {
    let all = variables.iter().zip(copies);
    all.fold(StateDict::new(), |state, ((name, variable), copy)| copy.add_to(state, name, variable.dims()))
}

macro_rules! host_copy {
    ($($kind:ident: $type:ty;)*) => {
        /// The values of a variable.
        enum HostCopy {
            $($kind(Vec<$type>),)*
        }

        impl HostCopy {
            fn read(variable: &Var) -> Result<Self, CandleError> {
                let values = variable.flatten_all()?;
                match variable.dtype() {
                    $(DType::$kind => Ok(Self::$kind(values.to_vec1()?)),)*
                    other => Err(CandleError::DataType(other)),
                }
            }

            fn add_to<'a>(&'a mut self, state: StateDict<'a>, name: &str, shape: &[usize]) -> StateDict<'a> {
                match self {
                    $(Self::$kind(values) => state.replicated(name, shape, values),)*
                }
            }

            fn write(&self, variable: &Var) -> candle_core::Result<()> {
                let (shape, device) = (variable.shape(), variable.device());
                match self {
                    $(Self::$kind(values) => variable.set(&Tensor::from_slice(values, shape, device)?),)*
                }
            }
        }
    };
}

host_copy! {
    F16: f16;
    BF16: bf16;
    F32: f32;
    F64: f64;
}
