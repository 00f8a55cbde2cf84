//! A linear layer in integers: sums have no rounding, so every order gives the same result.

use std::sync::{Arc, Barrier, Mutex};

use super::*;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("out of order")]
struct OutOfOrder;

/// `y = w · x`, with one output, on a device.
struct Linear {
    device: Device,
    weights: Vec<i64>,
    gradients: Vec<i64>,
    input: Option<Rows<i64>>,
    /// Device and rows of every forward, in any order.
    batches: BatchLog,
    fails: bool,
}

impl Replica for Linear {
    type Input = Rows<i64>;
    type Output = Rows<i64>;
    type Parameters = Vec<i64>;
    type Error = OutOfOrder;

    fn parameters(&self) -> Result<Vec<i64>, OutOfOrder> {
        Ok(self.weights.clone())
    }

    fn set_parameters(&mut self, parameters: &Vec<i64>) -> Result<(), OutOfOrder> {
        self.weights.clone_from(parameters);
        Ok(())
    }

    fn forward(&mut self, input: Rows<i64>) -> Result<Rows<i64>, OutOfOrder> {
        self.batches.lock().unwrap().push((self.device.index(), input.rows()));
        if self.fails {
            return Err(OutOfOrder);
        }
        let product = |row: &[i64]| row.iter().zip(&self.weights).map(|(x, w)| x * w).sum();
        let output = Rows::new(1, input.iter().map(product).collect());
        self.input = Some(input);
        Ok(output.unwrap())
    }
}

impl TrainableReplica for Linear {
    fn backward(&mut self, slopes: Rows<i64>) -> Result<Vec<i64>, OutOfOrder> {
        let input = self.input.take().ok_or(OutOfOrder)?;
        let mut gradients = vec![0; self.weights.len()];
        for (row, slope) in input.iter().zip(slopes.values()) {
            gradients.iter_mut().zip(row).for_each(|(sum, x)| *sum += slope * x);
        }
        Ok(gradients)
    }

    fn add_gradients(&mut self, gradients: &Vec<i64>) -> Result<(), OutOfOrder> {
        self.gradients.iter_mut().zip(gradients).for_each(|(sum, slope)| *sum += slope);
        Ok(())
    }
}

type BatchLog = Arc<Mutex<Vec<(usize, usize)>>>;

/// A model on these CPUs, with different weights per replica; the replica on `failing` fails.
fn model(devices: &[usize], failing: Option<usize>) -> (DataParallel<Linear>, BatchLog) {
    let batches = BatchLog::default();
    let ids = DeviceIds::new(devices.iter().map(|&index| Device::Cpu(index)).collect(), usize::MAX).unwrap();
    let build = |device: &Device| {
        Ok(Linear {
            device: device.clone(),
            weights: vec![device.index() as i64 + 2, 3, 5],
            gradients: vec![0; 3],
            input: None,
            batches: Arc::clone(&batches),
            fails: failing == Some(device.index()),
        })
    };
    (DataParallel::new(ids, build).unwrap(), batches)
}

fn batch(rows: usize) -> Rows<i64> {
    Rows::new(3, (0..rows as i64 * 3).map(|at| (at * 7) % 11 - 5).collect()).unwrap()
}

/// Outputs and weights of three steps, with the output as its own gradient.
fn steps(devices: &[usize], rows: usize) -> Vec<(Vec<i64>, Vec<i64>)> {
    let (mut model, _) = model(devices, None);
    let step = |_| {
        let output = model.forward(&batch(rows)).unwrap();
        model.backward(&output).unwrap();
        let first = model.first_replica_mut();
        let gradients = std::mem::replace(&mut first.gradients, vec![0; 3]);
        first.weights.iter_mut().zip(&gradients).for_each(|(weight, slope)| *weight -= slope);
        (output.values().to_vec(), first.weights.clone())
    };
    (0..3).map(step).collect()
}

#[test]
fn device_count_does_not_change_training() {
    for rows in [1, 2, 3, 5, 7, 30] {
        // The first device is the same, and its weights are the model's.
        let one = steps(&[4], rows);
        for devices in [&[4, 0][..], &[4, 9, 1], &[4, 3, 2, 1, 0, 7, 8, 9]] {
            assert_eq!(steps(devices, rows), one, "{rows} rows on {devices:?}");
        }
    }
}

#[test]
fn chunks_go_to_devices_in_order() {
    for (rows, expected) in [
        (5, &[(3, 2), (0, 2), (2, 1)][..]),
        (2, &[(3, 1), (0, 1)]),
        (1, &[(3, 1)]),
        (30, &[(3, 8), (0, 8), (2, 8), (7, 6)]),
    ] {
        let (mut model, batches) = model(&[3, 0, 2, 7], None);
        model.forward(&batch(rows)).unwrap();
        let order = |device: &(usize, usize)| [3, 0, 2, 7].iter().position(|at| *at == device.0);
        let mut batches = batches.lock().unwrap().clone();
        batches.sort_by_key(order);
        assert_eq!(batches, expected, "{rows} rows");
    }
}

#[test]
fn skipped_device_gets_parameters_later() {
    let (mut model, _) = model(&[0, 1, 2], None);
    model.forward(&batch(1)).unwrap();
    model.first_replica_mut().weights = vec![1, 0, 0];
    model.forward(&batch(2)).unwrap();
    let output = model.forward(&batch(6)).unwrap();
    assert_eq!(output.values(), batch(6).iter().map(|row| row[0]).collect::<Vec<_>>());
}

#[test]
fn wrong_row_count_is_error() {
    let (mut model, _) = model(&[0, 1], None);
    let rows = |rows: usize| Rows::new(1, vec![0; rows]).unwrap();
    assert!(matches!(model.backward(&rows(1)), Err(DataParallelError::NoForward)));
    assert_eq!(model.forward(&batch(0)).unwrap_err().to_string(), "the batch has no rows");
    model.forward(&batch(3)).unwrap();
    assert_eq!(
        model.backward(&rows(4)).unwrap_err().to_string(),
        "the gradient of the output has 4 rows, but the output had 3"
    );
    model.forward(&batch(3)).unwrap();
    model.backward(&rows(3)).unwrap();
    assert!(matches!(model.backward(&rows(3)), Err(DataParallelError::NoForward)), "a gradient counts once");
}

#[test]
fn failed_replica_is_named_after_others_finish() {
    let (mut model, batches) = model(&[5, 6, 7], Some(6));
    let error = model.forward(&batch(9)).unwrap_err();
    assert_eq!(error.to_string(), "the replica on `cpu:6` failed");
    assert_eq!(batches.lock().unwrap().len(), 3);
    assert!(matches!(model.backward(&Rows::new(1, vec![0; 9]).unwrap()), Err(DataParallelError::NoForward)));
    let ids = DeviceIds::new(vec![Device::Cpu(0)], 1).unwrap();
    let error = DataParallel::<Linear>::new(ids, |_| Err(OutOfOrder)).unwrap_err();
    assert_eq!(error.to_string(), "the replica on `cpu:0` failed");
}

/// Returns its input once all replicas are in the call.
struct BarrierReplica(Arc<Barrier>);

impl Replica for BarrierReplica {
    type Input = Rows<i64>;
    type Output = Rows<i64>;
    type Parameters = ();
    type Error = OutOfOrder;

    fn parameters(&self) -> Result<(), OutOfOrder> {
        Ok(())
    }

    fn set_parameters(&mut self, (): &()) -> Result<(), OutOfOrder> {
        Ok(())
    }

    fn forward(&mut self, input: Rows<i64>) -> Result<Rows<i64>, OutOfOrder> {
        self.0.wait();
        Ok(input)
    }
}

impl TrainableReplica for BarrierReplica {
    fn backward(&mut self, _: Rows<i64>) -> Result<(), OutOfOrder> {
        self.0.wait();
        Ok(())
    }

    fn add_gradients(&mut self, (): &()) -> Result<(), OutOfOrder> {
        Ok(())
    }
}

#[test]
fn replicas_run_concurrently() {
    let barrier = Arc::new(Barrier::new(3));
    let ids = DeviceIds::repeated(&Device::Cpu(0), std::num::NonZero::new(3).unwrap());
    let mut model = DataParallel::new(ids, |_| Ok(BarrierReplica(Arc::clone(&barrier)))).unwrap();
    let output = model.forward(&batch(3)).unwrap();
    assert_eq!(output, batch(3));
    model.backward(&output).unwrap();
}
