//! candle and process groups together, on the CPU.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::thread;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use rankrun_candle::{CandleError, Ddp, all_reduce, broadcast};
use rankrun_worker::data_parallel::chunks;
use rankrun_worker::ddp::{DdpError, DdpOptions};
use rankrun_worker::{Group, Rank, ReduceOp, ThreadGroup};

const ROWS: usize = 24;
const STEPS: usize = 20;

/// Runs every rank of a world on a thread of its own.
fn on_all<R: Send>(world: u32, run: impl Fn(Group) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            ThreadGroup::world(world).into_iter().map(|group| scope.spawn(|| run(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

struct Model {
    variables: VarMap,
    layers: [Linear; 2],
}

impl Model {
    /// Different weights for each seed.
    fn new(seed: f64, data_type: DType) -> Self {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, data_type, &Device::Cpu);
        let layers =
            [linear(6, 8, builder.pp("first")).unwrap(), linear(8, 3, builder.pp("second")).unwrap()];
        for (index, variable) in sorted(&variables).iter().enumerate() {
            let count = variable.elem_count();
            let values: Vec<f64> =
                (0..count).map(|at| ((at * 7 + index * 3) as f64 + seed).sin() / 2.0).collect();
            let values = Tensor::from_vec(values, variable.shape(), &Device::Cpu).unwrap();
            variable.set(&values.to_dtype(data_type).unwrap()).unwrap();
        }
        Self { variables, layers }
    }

    fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Tensor {
        let hidden = self.layers[0].forward(inputs).unwrap().tanh().unwrap();
        let outputs = self.layers[1].forward(&hidden).unwrap();
        outputs.sub(targets).unwrap().sqr().unwrap().mean_all().unwrap()
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let values = |variable: &Var| {
            variable.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
        };
        sorted(&self.variables).iter().map(values).collect()
    }
}

fn sorted(variables: &VarMap) -> Vec<Var> {
    let data = variables.data().lock().unwrap();
    let mut named: Vec<_> = data.iter().collect();
    named.sort_by_key(|(name, _)| (*name).clone());
    named.into_iter().map(|(_, variable)| variable.clone()).collect()
}

/// Rows of a batch and their targets.
fn rows(step: usize, data_type: DType) -> (Tensor, Tensor) {
    let values = |width: usize, shift: f64| {
        let values: Vec<f64> =
            (0..ROWS * width).map(|at| ((at + step * 31) as f64 * 0.7 + shift).sin()).collect();
        Tensor::from_vec(values, (ROWS, width), &Device::Cpu).unwrap().to_dtype(data_type).unwrap()
    };
    (values(6, 0.0), values(3, 1.0))
}

/// The weights after some steps with batches that ranks cannot share equally,
/// some with fewer rows than ranks.
fn train_unevenly(group: Group, batch: usize) -> Vec<Vec<f64>> {
    let (rank, world) = (group.rank().index(), group.world_size().get() as usize);
    let model = Model::new(rank as f64, DType::F64);
    let options = DdpOptions { find_unused_parameters: true, ..DdpOptions::default() };
    let mut ddp = Ddp::new(group, &model.variables, &options).unwrap();
    let mut optimizer = SGD::new(model.variables.all_vars(), 0.2).unwrap();
    for step in 0..STEPS {
        let (inputs, targets) = rows(step, DType::F64);
        let own = chunks(batch, world).get(rank).cloned().unwrap_or(0..0);
        let part = |all: &Tensor| all.narrow(0, own.start, own.len()).unwrap();
        // Its mean over ranks is the mean over the batch, for any numbers of rows.
        let share = (world * own.len()) as f64 / batch as f64;
        let gradients = if own.is_empty() {
            // A rank without rows contributes a loss of zero.
            ddp.backward(&Tensor::zeros((), DType::F64, &Device::Cpu).unwrap()).unwrap()
        } else {
            ddp.backward(&(model.loss(&part(&inputs), &part(&targets)) * share).unwrap()).unwrap()
        };
        optimizer.step(&gradients).unwrap();
    }
    model.weights()
}

#[test]
fn uneven_shards_train_like_whole_batch() {
    for batch in [23, 7, 3, 1] {
        let alone = on_all(1, |group| train_unevenly(group, batch)).remove(0);
        for world in [2, 3, 4] {
            let all = on_all(world, |group| train_unevenly(group, batch));
            assert!(all.windows(2).all(|two| two[0] == two[1]), "all ranks have the same weights");
            for (one, other) in alone.iter().flatten().zip(all[0].iter().flatten()) {
                assert!((one - other).abs() < 1e-12, "{one} alone, {other} in {world} with {batch} rows");
            }
        }
    }
}

/// The weights after some steps with equal parts of each batch.
fn train(group: Group, data_type: DType) -> Vec<Vec<f64>> {
    let (rank, world) = (group.rank().index(), group.world_size().get() as usize);
    // Every rank has different weights; those of rank 0 are taken.
    let model = Model::new(rank as f64, data_type);
    let mut ddp = Ddp::new(group, &model.variables, &DdpOptions::default()).unwrap();
    let mut optimizer = SGD::new(model.variables.all_vars(), 0.2).unwrap();
    for step in 0..STEPS {
        let (inputs, targets) = rows(step, data_type);
        let part = |all: &Tensor| all.narrow(0, rank * ROWS / world, ROWS / world).unwrap();
        let gradients = ddp.backward(&model.loss(&part(&inputs), &part(&targets))).unwrap();
        optimizer.step(&gradients).unwrap();
    }
    model.weights()
}

#[test]
fn batch_shards_train_like_whole_batch() {
    for (data_type, rounding) in [(DType::F64, 1e-12), (DType::F32, 1e-4)] {
        let alone = on_all(1, |group| train(group, data_type)).remove(0);
        for world in [2, 4] {
            let all = on_all(world, |group| train(group, data_type));
            assert!(all.windows(2).all(|two| two[0] == two[1]), "all ranks have the same weights");
            for (one, other) in alone.iter().flatten().zip(all[0].iter().flatten()) {
                assert!((one - other).abs() < rounding, "{one} alone, {other} in {world}");
            }
        }
    }
}

#[test]
fn half_precision_trains_alike_on_all_ranks() {
    for data_type in [DType::F16, DType::BF16] {
        let all = on_all(3, |group| train(group, data_type));
        assert!(all.windows(2).all(|two| two[0] == two[1]));
    }
}

#[test]
fn tensor_is_reduced_in_place() {
    let all = on_all(3, |mut group| {
        let rank = group.rank().0 as f32;
        let tensor = Tensor::full(rank, (2, 3), &Device::Cpu).unwrap();
        let same = tensor.flatten_all().unwrap();
        all_reduce(&mut group, &tensor, ReduceOp::Sum).unwrap();
        broadcast(&mut group, &Tensor::new(&[rank], &Device::Cpu).unwrap(), Rank(1)).unwrap();
        // A part of it, in the midst of its memory.
        let part = tensor.narrow(0, 1, 1).unwrap();
        all_reduce(&mut group, &part, ReduceOp::Max).unwrap();
        same.to_vec1::<f32>().unwrap()
    });
    assert_eq!(all, vec![vec![3.0; 6]; 3]);
}

#[test]
fn tensor_slice_is_reduced_and_rest_unchanged() {
    let all = on_all(2, |mut group| {
        let rank = group.rank().0 as i64;
        let tensor = Tensor::new(&[[rank, rank], [rank + 1, rank + 1]], &Device::Cpu).unwrap();
        all_reduce(&mut group, &tensor.narrow(0, 1, 1).unwrap(), ReduceOp::Sum).unwrap();
        tensor.to_vec2::<i64>().unwrap()
    });
    assert_eq!(all, [[[0, 0], [3, 3]], [[1, 1], [3, 3]]]);
}

#[test]
fn unsupported_tensor_is_refused_by_name() {
    let mut group = ThreadGroup::world(1).remove(0);
    let tensor = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let error = all_reduce(&mut group, &tensor.t().unwrap(), ReduceOp::Sum).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tensor of shape [3, 2] is a view that is not contiguous; call `contiguous` first"
    );
    let unsupported = tensor.to_dtype(DType::U32).unwrap();
    let error = all_reduce(&mut group, &unsupported, ReduceOp::Sum).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a process group carries no `U32`; convert the tensor first, with `to_dtype`"
    );
    // The group is as good as before.
    all_reduce(&mut group, &tensor, ReduceOp::Sum).unwrap();
}

#[test]
fn variable_mismatch_names_difference() {
    let errors = on_all(2, |group| {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        linear(4, 2 + group.rank().index(), builder.pp("layer")).unwrap();
        Ddp::new(group, &variables, &DdpOptions::default()).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("layer.bias")), "{errors:?}");
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn unused_variable_is_named_unless_allowed() {
    for find_unused in [false, true] {
        let group = ThreadGroup::world(1).remove(0);
        let model = Model::new(0.0, DType::F32);
        let mut ddp = Ddp::new(
            group,
            &model.variables,
            &DdpOptions { find_unused_parameters: find_unused, ..DdpOptions::default() },
        )
        .unwrap();
        let (inputs, _) = rows(0, DType::F32);
        let loss = model.layers[0].forward(&inputs).unwrap().sqr().unwrap().mean_all().unwrap();
        let done = ddp.backward(&loss);
        if find_unused {
            let gradients = done.unwrap();
            let is_there: Vec<_> =
                ddp.variables().iter().map(|(_, variable)| gradients.get(variable).is_some()).collect();
            assert_eq!(is_there, [true, true, false, false]);
        } else {
            assert!(
                matches!(done, Err(CandleError::Ddp(DdpError::Missing { parameter, other_count: 1 })) if parameter == "second.bias")
            );
        }
    }
}
