//! Ranks are threads here; `tests/runtime/ddp.rs` has real groups.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::*;
use crate::ThreadGroup;
use crate::process_group::{Backend, GroupError, HostCollective, ProcessGroup, f16};

/// Longer than any test takes.
const AMPLE: Duration = Duration::from_secs(60);

/// Runs `body` on every rank; returns the results in rank order.
fn run<R: Send>(ranks: u32, body: impl Fn(Group) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let start = |group: Group| scope.spawn(move || body(group));
        let ranks: Vec<_> = ThreadGroup::world(ranks).into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Three parameters with a bucket each.
fn ddp(group: Group, find_unused: bool) -> Ddp {
    let options = DdpOptions { bucket_bytes: 1, first_bucket_bytes: 1, find_unused_parameters: find_unused };
    Ddp::new(group, model(), &options).unwrap()
}

fn alone() -> Ddp {
    ddp(ThreadGroup::world(1).remove(0), false)
}

fn model() -> Vec<Parameter> {
    vec![
        Parameter::new::<f32>("embedding", &[2, 2]),
        Parameter::new::<f32>("fc.weight", &[3]),
        Parameter::new::<f32>("fc.bias", &[]),
    ]
}

#[test]
fn gradients_are_averaged_in_any_ready_order() {
    for bytes in [1, 16, 1 << 20] {
        run(3, |group| {
            let rank = group.rank().0 as f32;
            let options =
                DdpOptions { bucket_bytes: bytes, first_bucket_bytes: bytes, ..DdpOptions::default() };
            let mut ddp = Ddp::new(group, model(), &options).unwrap();
            for step in 0..3 {
                // A different order on every rank and in each step.
                for at in 0..3 {
                    let index = (at + rank as usize + step) % 3;
                    let value = rank + index as f32;
                    let count = ddp.parameters()[index].elements();
                    match step {
                        0 => ddp.gradient_ready(index, &vec![value; count]).unwrap(),
                        1 => {
                            ddp.gradient_mut::<f32>(index)
                                .unwrap()
                                .iter_mut()
                                .for_each(|element| *element += value);
                            ddp.mark_ready(index).unwrap();
                        }
                        _ => {
                            ddp.overwrite_gradient::<f32>(index).unwrap().fill(value);
                            ddp.mark_ready(index).unwrap();
                        }
                    }
                }
                let gradients = ddp.finish().unwrap();
                let all: Vec<&[f32]> = gradients.iter().collect();
                assert_eq!(all, [&[1.0; 4][..], &[2.0; 3], &[3.0]]);
            }
        });
    }
}

#[test]
fn model_with_several_data_types_is_averaged() {
    run(2, |group| {
        let rank = group.rank().0 as f64;
        let parameters = vec![
            Parameter::new::<f64>("a", &[2]),
            Parameter::new::<f16>("b", &[1]),
            Parameter::new::<f64>("c", &[0]),
            Parameter::new::<f64>("d", &[1]),
        ];
        let mut ddp = Ddp::new(group, parameters, &DdpOptions::default()).unwrap();
        let mut long = [vec![rank, 7.0 + rank], vec![], vec![rank]];
        let mut short = [vec![f16::from_f64(5.0 + rank)]];
        ddp.broadcast(&mut long).unwrap();
        ddp.broadcast(&mut short).unwrap();
        assert_eq!((long, short), ([vec![0.0, 7.0], vec![], vec![0.0]], [vec![f16::from_f64(5.0)]]));

        ddp.gradient_ready(3, &[rank]).unwrap();
        ddp.gradient_ready(2, &[0.0f64; 0]).unwrap();
        ddp.gradient_ready(1, &[f16::from_f64(rank)]).unwrap();
        let error = ddp.gradient_ready(0, &[1.0f32, 2.0]).unwrap_err();
        assert_eq!(error.to_string(), "the gradient of `a` has type f64, but the call uses f32");
        ddp.gradient_ready(0, &[rank, 1.0]).unwrap();
        let gradients = ddp.finish().unwrap();
        assert_eq!(gradients.iter::<f64>().collect::<Vec<_>>(), [&[0.5, 1.0][..], &[], &[0.5]]);
        assert_eq!(gradients.get::<f16>(1).unwrap(), [f16::from_f64(0.5)]);
    });
}

/// A group that reports the beginning of each all-reduce.
#[derive(Debug)]
struct ReportingGroup {
    group: Group,
    begun: Sender<usize>,
}

impl ProcessGroup for ReportingGroup {
    fn rank(&self) -> Rank {
        self.group.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.group.world_size()
    }

    fn backend(&self) -> Backend {
        self.group.backend()
    }

    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        if let HostCollective::AllReduce { data, .. } = &work {
            self.begun.send(data.len()).unwrap();
        }
        self.group.run(data_type, work)
    }

    fn split(&mut self, _: Option<u32>, _: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        Ok(None)
    }

    fn leave(&mut self) {}
}

fn reporting(group: Group) -> (Group, Receiver<usize>) {
    let (begun, started) = channel();
    (Group::new(Box::new(ReportingGroup { group, begun })), started)
}

#[test]
fn first_bucket_starts_before_backward_ends() {
    run(2, |group| {
        let (group, begun) = reporting(group);
        let mut ddp = ddp(group, false);
        for _ in 0..3 {
            // Backward computes the gradient of the last parameter first.
            ddp.gradient_ready(2, &[1.0f32]).unwrap();
            assert_eq!(begun.recv_timeout(AMPLE), Ok(4), "the first bucket waits for the end of backward");
            ddp.gradient_ready(1, &[1.0f32; 3]).unwrap();
            assert_eq!(begun.recv_timeout(AMPLE), Ok(12));
            // Backward ends only now.
            ddp.gradient_ready(0, &[1.0f32; 4]).unwrap();
            ddp.finish().unwrap();
            assert_eq!(begun.try_iter().collect::<Vec<_>>(), [16]);
        }
    });
}

#[test]
fn no_sync_passes_accumulate_without_sending() {
    run(2, |group| {
        let rank = group.rank().0 as f32;
        let (group, begun) = reporting(group);
        let mut ddp = ddp(group, false);
        for _ in 0..2 {
            ddp.no_sync(|ddp| {
                ddp.gradient_ready(2, &[rank])?;
                assert!(matches!(ddp.finish(), Err(DdpError::NoSync)));
                ddp.gradient_ready(0, &[1.0f32; 4])
            })
            .unwrap();
            ddp.no_sync(|ddp| ddp.gradient_ready(2, &[10.0f32])).unwrap();
            assert_eq!(begun.try_iter().count(), 0);
            let error = ddp.overwrite_gradient::<f32>(2).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the gradient of `fc.bias` holds the sum of earlier passes, which this call would overwrite"
            );
            assert!(error.hint().is_some());
            ddp.gradient_ready(2, &[100.0f32]).unwrap();
            ddp.gradient_ready(1, &[2.0f32; 3]).unwrap();
            ddp.gradient_mut::<f32>(0).unwrap()[3] += 4.0;
            ddp.mark_ready(0).unwrap();
            let gradients = ddp.finish().unwrap();
            let all: Vec<&[f32]> = gradients.iter().collect();
            assert_eq!(all, [&[1.0, 1.0, 1.0, 5.0][..], &[2.0; 3], &[110.5]]);
            begun.try_iter().for_each(drop);
        }
    });
}

#[test]
fn missing_gradient_is_named_and_can_follow() {
    run(2, |group| {
        let mut ddp = ddp(group, false);
        ddp.gradient_ready(2, &[1.0f32]).unwrap();
        let error = ddp.finish().unwrap_err();
        assert_eq!(error.to_string(), "the gradient of `embedding` and of 1 other parameter is missing");
        assert!(error.hint().is_some_and(|hint| hint.contains("find_unused")));
        ddp.mark_ready(0).unwrap();
        assert_eq!(ddp.finish().unwrap_err().to_string(), "the gradient of `fc.weight` is missing");
        ddp.gradient_ready(1, &[1.0f32; 3]).unwrap();
        assert_eq!(ddp.finish().unwrap().get::<f32>(0).unwrap(), [0.0; 4]);
    });
}

#[test]
fn parameter_unused_on_all_ranks_is_reported() {
    run(2, |group| {
        let rank = group.rank().0;
        let mut ddp = ddp(group, true);
        for _ in 0..2 {
            ddp.no_sync(|ddp| if rank == 1 { ddp.gradient_ready(0, &[2.0f32; 4]) } else { Ok(()) }).unwrap();
            if rank == 0 {
                ddp.gradient_ready(2, &[4.0f32]).unwrap();
            }
            let gradients = ddp.finish().unwrap();
            let all: Vec<&[f32]> = gradients.iter().collect();
            assert_eq!(all, [&[1.0; 4][..], &[0.0; 3], &[2.0]]);
            assert_eq!([0, 1, 2, 9].map(|index| gradients.is_unused(index)), [false, true, false, false]);
        }
    });
}

#[test]
fn gradient_never_ready_is_not_used() {
    run(2, |group| {
        let mut ddp = ddp(group, true);
        for _ in 0..2 {
            ddp.gradient_ready(2, &[4.0f32]).unwrap();
            ddp.gradient_mut::<f32>(0).unwrap().fill(9.0);
            let gradients = ddp.finish().unwrap();
            assert!(gradients.is_unused(0));
            assert_eq!(gradients.get::<f32>(0).unwrap(), [0.0; 4]);
        }
    });
}

#[test]
fn started_pass_ends_with_finish() {
    run(2, |group| {
        let rank = group.rank().0 as f32;
        let mut ddp = ddp(group, false);
        for _ in 0..2 {
            ddp.gradient_ready(2, &[rank]).unwrap();
            ddp.no_sync(|ddp| ddp.gradient_ready(0, &[rank; 4])).unwrap();
            let error = ddp.gradient_ready(2, &[1.0f32]).unwrap_err();
            assert_eq!(error.to_string(), "the gradient of `fc.bias` is marked ready twice in this pass");
            ddp.no_sync(|ddp| ddp.gradient_ready(1, &[rank; 3])).unwrap();
            let gradients = ddp.finish().unwrap();
            let all: Vec<&[f32]> = gradients.iter().collect();
            assert_eq!(all, [&[0.5; 4][..], &[0.5; 3], &[0.5]]);
        }
    });
}

#[test]
fn wrong_gradient_is_named_without_change() {
    let mut ddp = alone();
    let difference_text = |result: Result<(), DdpError>| result.unwrap_err().to_string();
    assert_eq!(
        difference_text(ddp.gradient_ready(1, &[1.0f32; 2])),
        "`fc.weight` has 3 elements, but the call passes 2"
    );
    assert_eq!(
        difference_text(ddp.gradient_ready(3, &[1.0f32])),
        "parameter 3 does not exist: the model has 3"
    );
    assert_eq!(difference_text(ddp.mark_ready(9)), "parameter 9 does not exist: the model has 3");
    ddp.gradient_ready(1, &[1.0f32; 3]).unwrap();
    for result in [
        ddp.gradient_ready(1, &[1.0f32; 3]),
        ddp.mark_ready(1),
        ddp.gradient_mut::<f32>(1).map(drop),
        ddp.overwrite_gradient::<f32>(1).map(drop),
    ] {
        assert_eq!(difference_text(result), "the gradient of `fc.weight` is marked ready twice in this pass");
    }
    let mut parameters = [vec![0.0f32; 4], vec![0.0; 3], vec![0.0]];
    assert!(matches!(ddp.broadcast(&mut parameters), Err(DdpError::UnderWay)));
    ddp.gradient_ready(0, &[1.0f32; 4]).unwrap();
    ddp.gradient_ready(2, &[1.0f32]).unwrap();
    ddp.finish().unwrap();
    assert_eq!(
        difference_text(ddp.broadcast(&mut parameters[..2])),
        "the model has 3 parameters of type f32, but the call passes 2"
    );
    parameters[2].push(0.0);
    assert_eq!(
        difference_text(ddp.broadcast(&mut parameters)),
        "`fc.bias` has 1 elements, but the call passes 2"
    );
}

#[test]
fn invalid_model_is_refused() {
    let difference_text = |parameters: Vec<Parameter>| {
        let group = ThreadGroup::world(1).remove(0);
        Ddp::new(group, parameters, &DdpOptions::default()).unwrap_err().to_string()
    };
    assert!(difference_text(vec![]).starts_with("the model has no parameters"));
    assert_eq!(
        difference_text(vec![Parameter::new::<f32>("w", &[1]), Parameter::new::<f64>("w", &[2])]),
        "parameters 0 and 1 of the model have the same name, `w`"
    );
    assert_eq!(
        difference_text(vec![Parameter::new::<i64>("ids", &[1])]),
        "parameter `ids` is of type i64, which has no gradients"
    );
    assert!(
        difference_text(vec![Parameter::new::<f32>("w", &[usize::MAX, 2])])
            .contains("the gradients up to `w` exceed")
    );
}

/// Makes the model of the other ranks different.
type Change = fn(&mut Vec<Parameter>, &mut DdpOptions);

#[test]
fn model_mismatch_gives_same_error_on_all_ranks() {
    let cases: [(Change, &str); 4] = [
        (
            |model, _| model[1].shape = vec![4],
            "`fc.weight` [4] f32 as parameter 1, but rank 0 has `fc.weight` [3] f32",
        ),
        (
            |model, _| model[0].name = "emb".to_owned(),
            "`emb` [2, 2] f32 as parameter 0, but rank 0 has `embedding`",
        ),
        (|model, _| drop(model.pop()), "2 parameters, but rank 0 has `fc.bias` [] f32 as parameter 2"),
        (|_, options| options.bucket_bytes = 7, "`bucket_bytes` 7, "),
    ];
    for (change, expected) in cases {
        let errors = run(4, |group| {
            let (mut parameters, mut options) = (model(), DdpOptions::default());
            if group.rank().0 >= 2 {
                change(&mut parameters, &mut options);
            }
            Ddp::new(group, parameters, &options).unwrap_err().to_string()
        });
        for error in errors {
            let start = "the ranks do not train the same model: rank 2 has ";
            assert!(error.starts_with(&format!("{start}{expected}")), "{error}");
        }
    }
}

#[test]
fn lost_rank_is_named_and_ends_ddp() {
    let errors = run(2, |group| {
        let rank = group.rank().0;
        let mut ddp = ddp(group, false);
        if rank == 1 {
            return None;
        }
        for (index, count) in [(2, 1), (1, 3), (0, 4)] {
            ddp.gradient_ready(index, &vec![1.0f32; count]).unwrap();
        }
        let Err(DdpError::Group(error)) = ddp.finish() else { panic!("rank 1 is gone") };
        assert!(matches!(ddp.finish(), Err(DdpError::Ended)));
        error.lost_rank()
    });
    assert_eq!(errors, [Some(Rank(1)), None]);
}

/// Linear regression with batches of 8; returns the weights after some steps.
fn weights(ranks: u32) -> Vec<f64> {
    const FEATURES: usize = 5;
    let example = |index: usize, at: usize| ((index * 31 + at * 17) % 23) as f64 / 23.0 - 0.5;
    let all = run(ranks, |group| {
        let parameters = vec![Parameter::new::<f64>("w", &[FEATURES]), Parameter::new::<f64>("b", &[])];
        let mut model = vec![vec![group.rank().0 as f64; FEATURES], vec![1.0]];
        let mut ddp = Ddp::new(group, parameters, &DdpOptions::default()).unwrap();
        ddp.broadcast(&mut model).unwrap();
        let share = 8 / ranks as usize;
        for step in 0..20 {
            let first = step * 8 + ddp.rank().index() * share;
            let mut bias = 0.0;
            for index in first..first + share {
                let x: Vec<f64> = (0..FEATURES).map(|at| example(index, at)).collect();
                let y: f64 = x.iter().sum::<f64>() + 0.3;
                let output: f64 = x.iter().zip(&model[0]).map(|(x, w)| x * w).sum::<f64>() + model[1][0];
                let error = (output - y) / share as f64;
                let gradient = ddp.gradient_mut::<f64>(0).unwrap();
                gradient.iter_mut().zip(&x).for_each(|(slope, x)| *slope += error * x);
                bias += error;
            }
            ddp.gradient_ready(1, &[bias]).unwrap();
            ddp.mark_ready(0).unwrap();
            let gradients = ddp.finish().unwrap();
            for (weights, gradient) in model.iter_mut().zip(gradients.iter::<f64>()) {
                weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.5 * slope);
            }
        }
        model.concat()
    });
    assert!(all.iter().all(|weights| *weights == all[0]), "ranks have the same bits");
    all[0].clone()
}

#[test]
fn worker_count_does_not_change_weights() {
    let one = weights(1);
    assert!(one.iter().any(|weight| (weight - one[0]).abs() > 1e-3), "nothing was learnt");
    for ranks in [2, 4, 8] {
        for (weight, expected) in weights(ranks).iter().zip(&one) {
            assert!((weight - expected).abs() < 1e-12, "{ranks} ranks: {weight} is not {expected}");
        }
    }
}
