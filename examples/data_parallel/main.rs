//! The DataParallel demo: a batch is split over the workers, each computes its part, the parts are gathered.
//!
//! torch's `DataParallel` makes the replicas inside one process. Here a replica is a worker: rank 0 holds the
//! batch, scatters it over the group, gathers the outputs and alone sees the whole.

mod replica;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use rankrun_examples::random::Random;
use rankrun_examples::{console, share};
use rankrun_worker::{Group, GroupError, GroupOptions, Rank, WorkerContext};
use replica::{CpuReplica, Linear, Matrix, Replica};

/// The rank that holds the whole batch.
const ROOT: Rank = Rank(0);

/// Splits batches over the workers of a job and gathers what their models make of them.
///
/// Each worker prints `In Model: …` for its part; rank 0 prints `Outside: …` for the whole.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  data_parallel                                            one worker, without a launcher
  rankrun --nproc-per-node 2 data_parallel                 two workers, 15 of 30 rows each
  rankrun --nproc-per-node 4 data_parallel --batch 10      a remainder: 3, 3, 3 and 1 rows")]
struct Options {
    /// How many batches.
    #[arg(long, default_value_t = 3)]
    steps: u64,
    /// Rows of a batch.
    #[arg(long, default_value_t = 30, value_parser = size())]
    batch: u32,
    /// Features of a row.
    #[arg(long, default_value_t = 1000, value_parser = size())]
    features: u32,
    /// Outputs for a row.
    #[arg(long, default_value_t = 2, value_parser = size())]
    outputs: u32,
    /// Decides weights and batches.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Two sizes multiplied still fit into the memory of a small machine.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=10_000)
}

#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("cannot write to standard output")]
    Output(#[from] io::Error),
}

fn main() -> ExitCode {
    let options = Options::parse();
    rankrun_worker::run(|context| demonstrate(&options, context))
}

fn demonstrate(options: &Options, context: &WorkerContext) -> Result<(), DemoError> {
    let mut group = context.process_group(&GroupOptions::default())?;
    let (features, outputs) = (options.features as usize, options.outputs as usize);
    let mut model = Linear::zero(features, outputs);
    if group.rank() == ROOT {
        model.randomize(&mut Random::new(options.seed, 0));
    }
    group.broadcast(&mut model.parameters, ROOT)?;
    let mut replica = CpuReplica::new(context.device(), model);

    for step in 1..=options.steps {
        let rows = options.batch as usize;
        let batch = if group.rank() == ROOT {
            Matrix::random(rows, features, &mut Random::new(options.seed, step))
        } else {
            Matrix::zero(0, features)
        };
        let output = forward(&mut group, &mut replica, &batch, [rows, features, outputs])?;
        if let Some(output) = output {
            console::line(&format!("Outside: input size {batch}, output size {output}"))?;
        }
    }
    Ok(())
}

/// The output of the whole batch, on the root; `shape` is rows, features and outputs.
fn forward(
    group: &mut Group,
    replica: &mut dyn Replica,
    batch: &Matrix,
    shape: [usize; 3],
) -> Result<Option<Matrix>, DemoError> {
    let [rows, features, outputs] = shape;
    let shares = share::chunks(rows, group.world_size().get() as usize);
    let counts = |columns: usize| shares.iter().map(|share| share.len() * columns).collect::<Vec<_>>();
    let input = Matrix::new(features, group.scatter(&batch.values, &counts(features), ROOT)?);
    let output = replica.forward(&input);
    console::line(&format!(
        "In Model: input size {input}, output size {output} (rank {}, device {}, pid {})",
        group.rank(),
        replica.device(),
        std::process::id()
    ))?;
    let gathered = group.gather(&output.values, &counts(outputs), ROOT)?;
    Ok(gathered.map(|values| Matrix::new(outputs, values)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_world_of_one_computes_the_whole_batch() {
        let context = WorkerContext::alone();
        let mut group = context.process_group(&GroupOptions::default()).unwrap();
        let mut model = Linear::zero(3, 2);
        model.randomize(&mut Random::new(1, 0));
        let batch = Matrix::random(5, 3, &mut Random::new(1, 1));
        let mut replica = CpuReplica::new(context.device(), model);
        let output = forward(&mut group, &mut replica, &batch, [5, 3, 2]).unwrap();
        assert_eq!(output, Some(replica.forward(&batch)));
    }
}
