use super::*;
use crate::hang::evidence::Collective;
use crate::hang::sentence::sentence;
use crate::hang::verdict::{Activity, Call, Desync, Hang, RankStatus, Wait};
use crate::stacks::{KernelThread, PythonThread};
use std::time::Duration;

/// A rank in `all_reduce` of PyTorch, called from this line, or in a function of its own.
fn worker(rank: u32, function: &str, line: u32) -> WorkerStacks {
    let torch = "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
    let frame = |function: &str, file: &str, line| Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
    };
    let mut frames = vec![frame(function, "/u/train.py", line), frame("main", "/u/train.py", 80)];
    if function == "step" {
        frames.insert(0, frame("all_reduce", torch, 2810));
    }
    WorkerStacks {
        rank,
        python: vec![PythonThread { frames, ..PythonThread::default() }],
        ..WorkerStacks::default()
    }
}

fn stopped(rank: u32) -> WorkerStacks {
    let thread = KernelThread { state: "T".to_owned(), ..KernelThread::default() };
    WorkerStacks { rank, threads: vec![thread], ..WorkerStacks::default() }
}

fn ranks(ranks: &[u32]) -> BTreeSet<Rank> {
    ranks.iter().copied().map(Rank).collect()
}

/// Ranks 0, 1 and 4 wait for ranks 2 and 3.
fn hang() -> Verdict {
    let silent = |rank| RankStatus {
        rank: Rank(rank),
        activity: Activity::Recorded,
        since: Duration::from_secs(92),
        place: None,
    };
    let wait = Wait {
        group: String::new(),
        name: Some("all_reduce".to_owned()),
        sequence: 4117,
        waiting: ranks(&[0, 1, 4]),
        missing: ranks(&[2, 3]),
        place: None,
    };
    Verdict::Hang(Hang { waits: vec![wait], silent: vec![silent(2), silent(3)], has_other_nodes: false })
}

#[test]
fn hang_sentence_has_lines_of_waiting_and_missing_ranks() {
    let workers = [worker(0, "step", 41), worker(1, "step", 41), worker(2, "load", 17), stopped(3)];
    assert_eq!(
        sentence(&hang().with_places(&workers)),
        "ranks 0, 1, 4 wait in all_reduce #4117 (train.py:41); rank 2 has made no progress for 92 s, in load (train.py:17); \
         rank 3 has made no progress for 92 s, stopped by a signal"
    );
    let workers = [worker(2, "load", 17), worker(3, "load", 17)];
    assert_eq!(
        sentence(&hang().with_places(&workers)),
        "ranks 0, 1, 4 wait in all_reduce #4117; ranks 2, 3 have made no progress for 92 s, in load (train.py:17)"
    );
}

#[test]
fn ranks_that_wait_at_different_lines_have_none() {
    let workers = [worker(0, "step", 41), worker(1, "step", 44)];
    assert_eq!(hang().with_places(&workers), hang());
}

#[test]
fn desync_sentence_has_line_of_each_call() {
    let call = |name: &str, of: &[u32]| Call {
        ranks: ranks(of),
        collective: Collective { sequence: 5, name: name.to_owned(), elements: None },
        place: None,
    };
    let calls = vec![call("all_reduce", &[0, 2]), call("broadcast", &[1])];
    let desync = Desync { group: String::new(), sequence: 5, calls, since: Duration::from_secs(92) };
    let workers = [worker(0, "step", 41), worker(1, "step", 44), worker(2, "step", 41)];
    assert_eq!(
        sentence(&Verdict::Desync(desync).with_places(&workers)),
        "ranks 0, 2 call all_reduce (train.py:41), rank 1 calls broadcast (train.py:44) as #5; no progress for 92 s"
    );
}
