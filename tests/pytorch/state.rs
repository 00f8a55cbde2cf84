//! The shared state of a rendezvous: what we write, real torch reads and writes again, and we read the same.

use std::io::Write;
use std::process::Stdio;

use harness::Random;
use rankrun_core::rendezvous::pickle;
use rankrun_core::rendezvous::state::{Node, RendezvousState, Timestamp};

use crate::python_script;

const COUNT: usize = 500;

/// The first moment of Python's years, and how many microseconds follow it.
const YEARS: (i64, u64) = (-62_135_596_800_000_000, 315_537_897_600_000_000);

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("it is far below the limit")
}

fn node(random: &mut Random) -> Node {
    let letters: Vec<char> = "ab.-0189:é節🦀\"\\'\n ".chars().collect();
    let length = [0, 3, 12, 255, 300][usize::try_from(random.below(5)).expect("it is small")];
    let mut addr = String::new();
    while addr.len() + 4 <= length {
        addr.push(letters[usize::try_from(random.below(letters.len() as u64)).expect("it is small")]);
    }
    let (usual, large) = (random.below(4_194_304), random.below(1 << 60));
    let pid = signed(random.either(usual, large));
    Node { addr, pid, local_id: signed(random.below(70_000)) }
}

fn time(random: &mut Random) -> Timestamp {
    Timestamp(YEARS.0 + signed(random.below(YEARS.1)))
}

fn some<T>(random: &mut Random, most: u64, mut make: impl FnMut(&mut Random) -> T) -> Vec<T> {
    (0..random.below(most)).map(|_| make(random)).collect()
}

fn state(random: &mut Random) -> RendezvousState {
    let most = if random.below(50) == 0 { 2500 } else { 8 };
    let nodes = some(random, most, node);
    let mut ranks: Vec<_> = nodes.into_iter().zip(-3..).collect();
    let times = ranks.iter().map(|(node, _)| (node.clone(), time(random))).collect();
    if random.below(2) == 0 {
        ranks.reverse();
    }
    RendezvousState {
        round: random.below(1 << 40) >> random.below(40),
        complete: random.below(2) == 0,
        deadline: (random.below(2) == 0).then(|| time(random)),
        closed: random.below(2) == 0,
        participants: ranks.into_iter().collect(),
        wait_list: some(random, most, node).into_iter().collect(),
        redundancy_list: some(random, 8, node).into_iter().collect(),
        last_heartbeats: times,
    }
}

#[test]
fn rendezvous_state_is_compatible_with_torch() {
    let mut random = Random::seeded();
    let states: Vec<_> = (0..COUNT).map(|_| state(&mut random)).collect();
    let mut torch = python_script("state_again.py")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut lines = Vec::new();
    for state in &states {
        lines.extend_from_slice(&pickle::encode(state));
        lines.push(b'\n');
    }
    let mut stdin = torch.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || stdin.write_all(&lines));
    let output = torch.wait_with_output().expect("it is our child");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    writer.join().expect("it does not panic").expect("torch reads everything");
    let answers: Vec<_> =
        output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert_eq!(answers.len(), COUNT);
    for (state, answer) in states.iter().zip(answers) {
        assert_eq!(pickle::decode(answer).as_ref(), Ok(state));
    }
}
