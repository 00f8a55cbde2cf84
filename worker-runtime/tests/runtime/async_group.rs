//! Calls on an asynchronous group: in order, beside the program, and never lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use rankrun_worker::process_group::{GroupError, GroupFailure, LossCause};
use rankrun_worker::{AsyncGroup, Group, Rank, ReduceOp, ThreadGroup};

use crate::world::AMPLE;

/// Runs `body` on the asynchronous group of every rank; `None` for one that panics.
fn run<R: Send>(ranks: u32, body: impl Fn(AsyncGroup) -> R + Sync) -> Vec<Option<R>> {
    thread::scope(|scope| {
        let body = &body;
        let start = |group: Group| scope.spawn(move || body(AsyncGroup::new(group).expect("a thread")));
        let ranks: Vec<_> = ThreadGroup::world(ranks).into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().ok()).collect()
    })
}

fn assert_all_succeeded<R>(ended: Vec<Option<R>>) {
    ended.into_iter().for_each(|ended| drop(ended.expect("no rank panics")));
}

#[test]
fn results_can_be_awaited_in_any_order() {
    assert_all_succeeded(run(3, |queue| {
        let rank = queue.rank().0 as i32;
        let sum = queue.all_reduce(vec![rank], ReduceOp::Sum);
        let buffer = queue.start(|group| Ok(group.buffer::<i32>(2))).wait().unwrap();
        let broadcast = queue.broadcast(vec![rank].into_boxed_slice(), Rank(2));
        let largest = queue.all_reduce(buffer, ReduceOp::Max);
        let scattered = queue.reduce_scatter(vec![1, 10, 100], vec![0], ReduceOp::Sum);
        let gathered = queue.all_gather_into(vec![rank], vec![0; 3]);
        assert_eq!(gathered.wait().unwrap(), (vec![rank], vec![0, 1, 2]));
        assert_eq!(*broadcast.wait().unwrap(), [2]);
        assert_eq!(scattered.wait().unwrap().1, [[3, 30, 300][rank as usize]]);
        assert_eq!(largest.wait().unwrap()[..], [0, 0]);
        assert!(sum.is_completed());
        assert_eq!(sum.wait().unwrap(), [3]);
        queue.into_group().unwrap().barrier().unwrap();
    }));
}

#[test]
fn caller_runs_during_async_call() {
    let caller_ran = Barrier::new(2);
    assert_all_succeeded(run(2, |queue| {
        if queue.rank() == Rank(1) {
            caller_ran.wait();
            return queue.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap();
        }
        let work = queue.all_reduce(vec![1u8], ReduceOp::Sum);
        assert!(!work.is_completed());
        caller_ran.wait();
        work.wait().unwrap()
    }));
}

#[test]
fn dropped_work_keeps_its_order() {
    assert_all_succeeded(run(2, |queue| {
        let rank = queue.rank().0 as i32;
        drop(queue.broadcast(vec![rank], Rank(1)));
        assert_eq!(queue.all_reduce(vec![rank], ReduceOp::Max).wait().unwrap(), [1]);
    }));
}

#[test]
fn dropped_async_group_finishes_started_calls() {
    assert_all_succeeded(run(2, |queue| {
        let works: Vec<_> = (0..50).map(|value| queue.all_reduce(vec![value], ReduceOp::Sum)).collect();
        drop(queue);
        for (value, work) in (0..).zip(works) {
            assert!(work.is_completed());
            assert_eq!(work.wait().unwrap(), [2 * value]);
        }
    }));
}

#[test]
fn start_blocks_until_queue_has_room() {
    let (queue, gate) =
        (AsyncGroup::new(ThreadGroup::world(1).remove(0)).unwrap(), Arc::new(Barrier::new(2)));
    let closed = Arc::clone(&gate);
    let first = queue.start(move |_| {
        closed.wait();
        Ok(())
    });
    let all_started = Arc::new(AtomicBool::new(false));
    let (started, begun) = mpsc::channel();
    let flag = Arc::clone(&all_started);
    let starter = thread::spawn(move || {
        for number in 0..1000 {
            drop(queue.start(|_| Ok(())));
            started.send(number).expect("the test listens");
        }
        flag.store(true, Ordering::SeqCst);
    });
    // Some start; they cannot all, while none is made.
    begun.recv().unwrap();
    assert!(!all_started.load(Ordering::SeqCst));
    gate.wait();
    first.wait().unwrap();
    starter.join().unwrap();
    assert!(all_started.load(Ordering::SeqCst));
}

#[test]
fn panicking_call_fails_its_work_and_later_work() {
    let ended = run(2, |queue| {
        if queue.rank() == Rank(0) {
            return queue.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err().to_string();
        }
        let gate = Arc::new(Barrier::new(2));
        let opened = Arc::clone(&gate);
        let panics = queue.start::<(), _>(move |_| {
            opened.wait();
            std::panic::resume_unwind(Box::new("as asked"))
        });
        let queued = queue.all_reduce(vec![1u8], ReduceOp::Sum);
        gate.wait();
        assert!(matches!(panics.wait(), Err(GroupError::Panicked)));
        assert!(matches!(queued.wait(), Err(GroupError::Panicked)));
        assert!(matches!(queue.all_reduce(vec![1u8], ReduceOp::Sum).wait(), Err(GroupError::Panicked)));
        queue.into_group().unwrap_err().to_string()
    });
    let (first, second) = (ended[0].as_deref().unwrap(), ended[1].as_deref().unwrap());
    assert!(first.contains("`all_reduce` cannot finish: lost rank 1"), "{first}");
    assert_eq!(second, "a call of the asynchronous group panicked");
}

#[test]
fn program_panic_loses_rank_without_waiting() {
    let gate = Arc::new(Barrier::new(2));
    let (alive, has_ended) = mpsc::channel::<()>();
    let (alive, has_ended) = (Mutex::new(Some(alive)), Mutex::new(has_ended));
    let ended = run(2, |queue| {
        if queue.rank() == Rank(0) {
            // The panic goes on although the call that is under way does not.
            let end = has_ended.lock().unwrap().recv_timeout(AMPLE);
            gate.wait();
            assert_eq!(end, Err(RecvTimeoutError::Disconnected));
            let error = queue.all_reduce(vec![1u8], ReduceOp::Sum).wait().unwrap_err();
            let GroupError::Failed { failure, .. } = error else { panic!("{error}") };
            return failure;
        }
        // Dropped in the reverse order.
        let (_alive, queue) = (alive.lock().unwrap().take(), queue);
        let closed = Arc::clone(&gate);
        let (begun, has_begun) = mpsc::channel();
        drop(queue.start(move |_| {
            begun.send(()).expect("the program waits for it");
            closed.wait();
            Ok(())
        }));
        has_begun.recv().unwrap();
        // This one was started, but is not made.
        drop(queue.all_reduce(vec![1u8], ReduceOp::Sum));
        std::panic::resume_unwind(Box::new("as asked"))
    });
    assert_eq!(ended, [Some(GroupFailure::Lost { rank: Rank(1), cause: LossCause::Closed }), None]);
}

#[test]
fn group_error_is_returned_by_every_work() {
    assert_all_succeeded(run(2, |queue| {
        if queue.rank() == Rank(1) {
            return;
        }
        let works = [1, 2].map(|elements| queue.all_reduce(vec![0u8; elements], ReduceOp::Sum));
        for work in works {
            assert_eq!(work.wait().unwrap_err().lost_rank(), Some(Rank(1)));
        }
    }));
}
