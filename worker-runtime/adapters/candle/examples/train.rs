//! A template: trains a small classifier with candle on all workers of a job, on CPUs and on GPUs, with checkpoints.
//!
//! ```console
//! $ cargo build --release --example train                         # on GPUs with `--features cuda`
//! $ rankrun --nproc-per-node 2 target/release/examples/train
//! $ rankrun --nproc-per-node 2 --max-restarts 3 target/release/examples/train 1000 checkpoints
//! ```
//!
//! The arguments are the number of epochs and a folder for checkpoints, from the latest of which a restart and a later run go on.
//! The data is two spirals, one of each class. Every rank takes its own samples of each epoch, and all ranks take the same steps.

use std::error::Error;
use std::process::ExitCode;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Activation, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap, linear, loss, seq};
use rankrun_candle::{Ddp, load_latest, save};
use rankrun_worker::checkpoint::{Checkpoint, CheckpointOptions};
use rankrun_worker::ddp::DdpOptions;
use rankrun_worker::sampler::{DistributedSampler, SamplerOptions};
use rankrun_worker::{GroupOptions, Rank, ReduceOp, WorkerContext, run};

const SAMPLES: usize = 1024;
/// Samples of one rank in a step.
const BATCH: usize = 32;
/// Epochs between two checkpoints.
const SAVE_EVERY: u64 = 10;

fn main() -> ExitCode {
    run(train)
}

fn train(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let epochs: u64 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let folder = arguments.next();

    let device = rankrun_candle::device(context)?;
    let (inputs, classes) = spirals(&device)?;
    let variables = VarMap::new();
    let model = model(VarBuilder::from_varmap(&variables, DType::F32, &device))?;

    let (rank, world) = (context.rank(), context.world_size());
    let mut ddp = Ddp::join(context, &variables, &DdpOptions::default())?;
    // A group on the hosts, to judge the model.
    let options = GroupOptions { name: "judges".to_owned(), ..GroupOptions::default() };
    let mut judges = context.process_group(&options)?;
    // It has no state of its own. What another optimiser keeps, such as momentum, would belong into the checkpoint.
    let mut optimizer = SGD::new(variables.all_vars(), 0.1)?;
    let sampler = DistributedSampler::new(SAMPLES, rank, world, SamplerOptions::default())?;

    let open = |folder| Checkpoint::open(context, &CheckpointOptions::new(folder));
    let mut checkpoint = folder.map(open).transpose()?;
    let mut first = 0;
    if let Some(checkpoint) = &mut checkpoint {
        first = load_latest(checkpoint, &variables)?.map_or(0, |loaded| loaded.step);
    }
    if rank == Rank(0) {
        println!("training on {:?}, from epoch {first}", device.location());
    }

    for epoch in first..epochs {
        let own: Vec<u32> = sampler.indices(epoch).into_iter().map(|index| index as u32).collect();
        for batch in own.chunks(BATCH) {
            let batch = Tensor::new(batch, &device)?;
            let outputs = model.forward(&inputs.index_select(&batch, 0)?)?;
            let loss = loss::cross_entropy(&outputs, &classes.index_select(&batch, 0)?)?;
            let gradients = ddp.backward(&loss)?;
            optimizer.step(&gradients)?;
        }
        let done = epoch + 1;
        if done % SAVE_EVERY > 0 && done < epochs {
            continue;
        }
        // On a GPU an error of a step may come later; nothing that went wrong is to be saved.
        ddp.synchronize()?;
        let own = Tensor::new(own, &device)?;
        let outputs = model.forward(&inputs.index_select(&own, 0)?)?;
        let are_right = outputs.argmax(D::Minus1)?.eq(&classes.index_select(&own, 0)?)?;
        let mut accuracy = [are_right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?];
        judges.all_reduce(&mut accuracy, ReduceOp::Mean)?;
        if rank == Rank(0) {
            println!("epoch {done}: accuracy {:.3} on {world} ranks", accuracy[0]);
        }
        if let Some(checkpoint) = &mut checkpoint {
            save(checkpoint, done, &variables)?;
        }
    }
    Ok(())
}

fn model(builder: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    Ok(seq()
        .add(linear(2, 32, builder.pp("first"))?)
        .add(Activation::Relu)
        .add(linear(32, 32, builder.pp("second"))?)
        .add(Activation::Relu)
        .add(linear(32, 2, builder.pp("last"))?))
}

/// Points on two arms that wind around each other, and on which arm they are.
fn spirals(device: &Device) -> candle_core::Result<(Tensor, Tensor)> {
    let points = (0..SAMPLES).flat_map(|index| {
        let turn = (index / 2) as f32 / SAMPLES as f32 * 2.0;
        let angle = turn * 6.0 + if index % 2 == 0 { 0.0 } else { std::f32::consts::PI };
        [angle.cos() * (turn + 0.1), angle.sin() * (turn + 0.1)]
    });
    let points = Tensor::from_iter(points, device)?.reshape((SAMPLES, 2))?;
    let classes = Tensor::from_iter((0..SAMPLES).map(|index| (index % 2) as u32), device)?;
    Ok((points, classes))
}
