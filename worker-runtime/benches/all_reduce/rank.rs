//! One rank of ours: makes the calls that it is told on standard input, and says how long each took.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use rankrun_worker::process_group::{BackendChoice, Buffer};
use rankrun_worker::{Group, GroupOptions, ReduceOp, WorkerContext};

/// Calls that are not counted: the first ones touch memory for the first time.
const WARM_UP: usize = 2;

/// Memory of the program, and of the group; at most one at a time.
enum Data {
    None,
    Own(Buffer<f32>),
    Foreign(Vec<f32>),
    Pair([Vec<u8>; 2]),
}

pub(crate) fn run(context: &WorkerContext) -> Result<(), Box<dyn Error>> {
    let options = |backend| GroupOptions {
        name: format!("{backend}"),
        backend: Some(backend),
        ..GroupOptions::default()
    };
    let mut group = context.process_group(&options(BackendChoice::Auto))?;
    let mut tcp = context.process_group(&options(BackendChoice::Tcp))?;
    let (mut data, mut known) = (Data::None, String::new());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split(' ');
        let (name, bytes, calls) = (fields.next(), fields.next(), fields.next());
        let (name, bytes) = (name.ok_or("no name")?, bytes.ok_or("no size")?.parse::<usize>()?);
        let calls = calls.ok_or("no count")?.parse::<usize>()?;
        let kind = format!("{name} {bytes}");
        if kind != known {
            // The old memory goes before there is new one.
            drop(std::mem::replace(&mut data, Data::None));
            data = match name {
                "direct" => Data::Own(group.buffer(bytes / 4)),
                "copy" => Data::Pair([vec![1; bytes], vec![2; bytes]]),
                _ => Data::Foreign(vec![0.0; bytes / 4]),
            };
            known = kind;
        }
        let mut times = Vec::with_capacity(calls);
        for call in 0..WARM_UP + calls {
            let begun = Instant::now();
            match &mut data {
                Data::Own(data) => group.all_reduce(data, ReduceOp::Sum)?,
                Data::Foreign(data) if name == "tcp" => tcp.all_reduce(data, ReduceOp::Sum)?,
                Data::Foreign(data) => group.all_reduce(data, ReduceOp::Sum)?,
                Data::Pair(pair) => copy(&mut group, pair)?,
                Data::None => {}
            }
            if call >= WARM_UP {
                times.push(begun.elapsed().as_nanos().to_string());
            }
        }
        group.barrier()?;
        writeln!(io::stdout(), "{}", times.join(" "))?;
    }
    Ok(())
}

/// Reads and writes as many bytes as a rank of n does in an `all_reduce` without a copy: it reads all sources of its part and
/// writes that, reads the other parts and writes them; all ranks at the same time.
fn copy(group: &mut Group, [from, to]: &mut [Vec<u8>; 2]) -> Result<(), Box<dyn Error>> {
    let world = group.world_size().get() as usize;
    let (bytes, mut rest) = (from.len(), from.len() * (3 * world - 1) / (2 * world));
    while rest > 0 {
        let length = rest.min(bytes);
        black_box(&mut to[..length]).copy_from_slice(black_box(&from[..length]));
        rest -= length;
    }
    Ok(group.barrier()?)
}
