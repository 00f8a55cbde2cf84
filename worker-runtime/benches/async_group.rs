//! The cost of an asynchronous call beyond that of a blocking one:
//! `cargo bench -p rankrun-worker --bench async_group`.
//!
//! In a world of one, where the call itself costs next to nothing. Medians, in microseconds.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::time::Instant;

use rankrun_worker::{AsyncGroup, GroupError, ReduceOp, ThreadGroup};

const ROUNDS: usize = 20_000;

/// Calls that are started before the first of them is waited for.
const AHEAD: usize = 32;

fn main() -> Result<(), GroupError> {
    let mut group = ThreadGroup::world(1).remove(0);
    let mut data = vec![1.0f32; 16];
    let blocking = median(|| group.all_reduce(&mut data, ReduceOp::Sum))?;
    let queue = AsyncGroup::new(group)?;
    let mut data = Some(data);
    let waited = median(|| {
        let work = queue.all_reduce(data.take().unwrap_or_default(), ReduceOp::Sum);
        data = Some(work.wait()?);
        Ok(())
    })?;
    let mut all = vec![vec![1.0f32; 16]; AHEAD];
    let many = median(|| {
        let works: Vec<_> = all.drain(..).map(|data| queue.all_reduce(data, ReduceOp::Sum)).collect();
        all = works.into_iter().map(|work| work.wait()).collect::<Result<_, _>>()?;
        Ok(())
    })?;
    println!("a call that blocks                           {blocking:8.2} µs");
    println!("a call that is started and waited for        {waited:8.2} µs");
    println!("one of {AHEAD} that are started, then waited for   {:8.2} µs", many / AHEAD as f64);
    Ok(())
}

fn median(mut call: impl FnMut() -> Result<(), GroupError>) -> Result<f64, GroupError> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        call()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2].as_secs_f64() * 1e6)
}
