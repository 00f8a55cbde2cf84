//! Trains a small classifier with candle on all workers of a job.
//!
//! ```console
//! $ cargo build --release --example train
//! $ rankrun --nproc-per-node 2 target/release/examples/train
//! ```
//!
//! The data is two spirals, one of each class. Every rank takes its own samples of each epoch, and all ranks take the same steps.

use std::error::Error;
use std::process::ExitCode;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Activation, AdamW, Module, Optimizer, Sequential, VarBuilder, VarMap, linear, loss, seq};
use rankrun_candle::{Ddp, all_reduce};
use rankrun_worker::ddp::DdpOptions;
use rankrun_worker::sampler::{DistributedSampler, SamplerOptions};
use rankrun_worker::{GroupOptions, Rank, ReduceOp, WorkerContext, run};

const SAMPLES: usize = 1024;
const EPOCHS: u64 = 40;
/// Samples of one rank in a step.
const BATCH: usize = 64;

fn main() -> ExitCode {
    run(train)
}

fn train(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let device = Device::Cpu;
    let (inputs, classes) = spirals(&device)?;
    let variables = VarMap::new();
    let model = model(VarBuilder::from_varmap(&variables, DType::F32, &device))?;

    // One group for gradients, and one to judge the model in between.
    let group = context.process_group(&GroupOptions::default())?;
    let mut judges =
        context.process_group(&GroupOptions { name: "judges".to_owned(), ..Default::default() })?;
    let (rank, world) = (context.rank(), context.world_size());
    let mut ddp = Ddp::new(group, &variables, &DdpOptions::default())?;
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 0.01)?;
    let sampler = DistributedSampler::new(SAMPLES, rank, world, SamplerOptions::default())?;

    for epoch in 0..EPOCHS {
        let own: Vec<u32> = sampler.indices(epoch).into_iter().map(|index| index as u32).collect();
        for batch in own.chunks(BATCH) {
            let batch = Tensor::new(batch, &device)?;
            let outputs = model.forward(&inputs.index_select(&batch, 0)?)?;
            let loss = loss::cross_entropy(&outputs, &classes.index_select(&batch, 0)?)?;
            let gradients = ddp.backward(&loss)?;
            optimizer.step(&gradients)?;
        }
        if (epoch + 1) % 10 == 0 {
            let own = Tensor::new(own, &device)?;
            let outputs = model.forward(&inputs.index_select(&own, 0)?)?;
            let are_right = outputs.argmax(D::Minus1)?.eq(&classes.index_select(&own, 0)?)?;
            let accuracy = are_right.to_dtype(DType::F32)?.mean_all()?;
            all_reduce(&mut judges, &accuracy, ReduceOp::Mean)?;
            if rank == Rank(0) {
                println!(
                    "epoch {}: accuracy {:.3} on {world} ranks",
                    epoch + 1,
                    accuracy.to_scalar::<f32>()?
                );
            }
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
