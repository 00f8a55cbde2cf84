//! One rank of ours: takes the steps that it is told on standard input, and says how long each took.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rankrun_worker::ddp::{Ddp, DdpError, DdpOptions};
use rankrun_worker::{GroupOptions, WorkerContext};

use super::mlp::{Mlp, SAMPLES, samples};

/// A model in training.
struct Training {
    ddp: Ddp,
    model: Mlp,
    data: Vec<f32>,
    step: usize,
}

impl Training {
    fn begin(context: &WorkerContext) -> Result<Self, DdpError> {
        let group = context.process_group(&GroupOptions::default())?;
        let mut ddp = Ddp::new(group, Mlp::description(), &DdpOptions::default())?;
        let mut model = Mlp::new();
        ddp.broadcast(&mut model.parameters)?;
        Ok(Self { ddp, model, data: samples(), step: 0 })
    }

    /// One step of a batch over all ranks; the loss of this rank's part.
    fn step(&mut self, batch: usize) -> Result<f64, DdpError> {
        let share = batch / self.ddp.world_size().get() as usize;
        let batches = SAMPLES / batch;
        let first = (self.step % batches) * batch + self.ddp.rank().index() * share;
        let loss = self.model.learn(&self.data, first..first + share, &mut self.ddp)?;
        let gradients = self.ddp.finish()?;
        self.model.descend(&gradients);
        self.step += 1;
        Ok(loss)
    }
}

pub(crate) fn run(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let (mut training, mut loss) = (Training::begin(context)?, 0.0);
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split(' ');
        let (name, batch, steps) = (fields.next(), fields.next(), fields.next());
        let batch = batch.ok_or("no batch")?.parse::<usize>()?;
        let steps = steps.ok_or("no count")?.parse::<usize>()?;
        if name == Some("loss") {
            writeln!(io::stdout(), "{}", (loss * 1e9) as u64)?;
            continue;
        }
        let mut times = Vec::with_capacity(steps);
        for _ in 0..steps {
            let begun = Instant::now();
            loss = training.step(batch)?;
            times.push(begun.elapsed().as_nanos().to_string());
        }
        writeln!(io::stdout(), "{}", times.join(" "))?;
    }
    Ok(())
}

/// Fails after its third step in its first life; in its second one it is done after the first step.
pub(crate) fn restart(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let mut training = Training::begin(context)?;
    let tell = |what: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        writeln!(io::stdout(), "{what} {now}")?;
        Ok::<_, Box<dyn Error>>(())
    };
    training.step(30)?;
    if context.restart_count().0 > 0 {
        return if context.rank().0 == 0 { tell("step") } else { Ok(()) };
    }
    for _ in 0..2 {
        training.step(30)?;
    }
    if context.rank().0 == 0 {
        tell("failed")?;
        return Err("failed as asked".into());
    }
    // Until the launcher or the loss of rank 0 ends it.
    loop {
        training.step(30)?;
    }
}
