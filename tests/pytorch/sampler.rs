//! The samples of `DistributedSampler`: ours and those of torch.

use std::fmt::Write as _;
use std::io::Write;
use std::process::Stdio;

use harness::{Random, is_soak};
use rankrun_worker::sampler::{DistributedSampler, SamplerOptions};
use rankrun_worker::{Rank, WorldSize};

/// torch says the samples of every rank in text, so that long data is drawn less often than short.
const LENGTHS: [u64; 5] = [12, 300, 5_000, 20_000, 70_000];

/// One epoch of a sampler on each rank.
struct Case {
    length: usize,
    world: WorldSize,
    epoch: u64,
    options: SamplerOptions,
}

fn case(random: &mut Random) -> Case {
    let most = LENGTHS[usize::try_from(random.below(5)).expect("it is small")];
    let length = usize::try_from(1 + random.below(most)).expect("it is small");
    let ranks = [2, 4, 9, 80][usize::try_from(random.below(4)).expect("it is small")];
    let world = u32::try_from(1 + random.below(ranks)).ok().and_then(WorldSize::new).expect("more than none");
    // Such that the sum of seed and epoch is a seed to torch.
    let (small, large) = (random.below(100), random.below(1 << 62));
    Case {
        length,
        world,
        epoch: random.below(1000),
        options: SamplerOptions {
            seed: random.either(small, large),
            shuffle: random.below(4) != 0,
            drop_last: random.below(2) == 0,
        },
    }
}

#[test]
fn rank_samples_equal_torch_samples() {
    let mut random = Random::seeded();
    let mut cases: Vec<_> = (0..if is_soak() { 2000 } else { 200 }).map(|_| case(&mut random)).collect();
    cases[0].length = 70_000;
    let mut queries = String::new();
    for Case { length, world, epoch, options } in &cases {
        let SamplerOptions { seed, shuffle, drop_last } = options;
        let flags = (u8::from(*shuffle), u8::from(*drop_last));
        writeln!(queries, "{length} {world} {seed} {epoch} {} {}", flags.0, flags.1)
            .expect("a text takes more");
    }
    let script =
        crate::python_script("sampler_torch.py").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut torch = script.expect("Python starts");
    let mut stdin = torch.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || stdin.write_all(queries.as_bytes()));
    let output = torch.wait_with_output().expect("it is our child");
    assert!(output.status.success());
    writer.join().expect("it does not panic").expect("torch reads everything");
    let text = String::from_utf8(output.stdout).expect("numbers are text");
    let mut answers = text.lines();
    for Case { length, world, epoch, options } in cases {
        for rank in 0..world.get() {
            let torchs = answers.next().expect("a line for each rank").split_ascii_whitespace();
            let torchs: Vec<usize> = torchs.map(|number| number.parse().expect("a number")).collect();
            let sampler =
                DistributedSampler::new(length, Rank(rank), world, options).expect("it is possible");
            let name = format!("rank {rank} of {world}, {length} samples, epoch {epoch}, {options:?}");
            assert_eq!(sampler.len(), torchs.len(), "{name}");
            assert!(sampler.indices(epoch) == torchs, "{name}");
        }
    }
    assert_eq!(answers.next(), None);
}
