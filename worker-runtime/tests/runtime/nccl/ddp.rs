//! Gradients on devices of the fake machine: ranks that are processes train one model
//! and read the means in place.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use rankrun_worker::cuda::cuda_context;
use rankrun_worker::ddp::{DdpError, DdpOptions, NcclDdp, Parameter};
use rankrun_worker::process_group::nccl::NcclGroup;
use rankrun_worker::process_group::{DeviceMemory, Element, Stream};
use rankrun_worker::{Group, GroupOptions, ReduceOp, WorkerContext};

use super::ranks::Job;

/// What a rank does.
pub(super) fn scene(context: &WorkerContext, what: &str, timeout: Duration) -> Result<(), DdpError> {
    let rank = context.rank().0 as usize;
    let device = cuda_context(rank).unwrap();
    let streams = [device.new_stream().unwrap(), device.new_stream().unwrap()];
    let options = |name: &str| GroupOptions { name: name.to_owned(), timeout, ..GroupOptions::default() };
    let host = context.process_group(&options("host"))?;
    let groups = (host, NcclGroup::join(context, &options("device"), None)?);
    let on = Device { rank, streams };
    match what {
        "steps" => [1, 20, 1 << 20].into_iter().try_fold(groups, |groups, bytes| on.steps(groups, bytes)),
        "unused" => on.unused(groups),
        "mistakes" => on.mistakes(groups),
        "models" => on.other_models(groups),
        "ranks" => on.other_ranks(groups),
        _ => panic!("there is no scene `{what}`"),
    }?;
    Ok(())
}

type Groups = (Group, NcclGroup);

/// Memory of these tests is there until all is done that was put on a stream, and so are the streams.
trait Put {
    fn put_weights(&mut self, all: &[DeviceMemory], stream: Stream) -> Result<(), DdpError>;
    fn put(&mut self, index: usize, gradient: DeviceMemory, stream: Stream) -> Result<(), DdpError>;
    fn put_unused(&mut self, index: usize, gradient: DeviceMemory, stream: Stream) -> Result<(), DdpError>;
    fn put_end(&mut self, stream: Stream) -> Result<Vec<usize>, DdpError>;
}

impl Put for NcclDdp {
    fn put_weights(&mut self, all: &[DeviceMemory], stream: Stream) -> Result<(), DdpError> {
        // SAFETY: as the trait says.
        unsafe { self.broadcast(all, stream) }
    }

    fn put(&mut self, index: usize, gradient: DeviceMemory, stream: Stream) -> Result<(), DdpError> {
        // SAFETY: as the trait says.
        unsafe { self.gradient_ready(index, gradient, stream) }
    }

    fn put_unused(&mut self, index: usize, gradient: DeviceMemory, stream: Stream) -> Result<(), DdpError> {
        // SAFETY: as the trait says.
        unsafe { self.gradient_unused(index, gradient, stream) }
    }

    fn put_end(&mut self, stream: Stream) -> Result<Vec<usize>, DdpError> {
        // SAFETY: as the trait says.
        unsafe { self.finish(stream) }
    }
}

struct Device {
    rank: usize,
    /// Backward may be on several.
    streams: [Arc<CudaStream>; 2],
}

fn raw(stream: &CudaStream) -> Stream {
    Stream(stream.cu_stream().cast())
}

/// Two types, a scalar, and a parameter without elements.
fn model() -> Vec<Parameter> {
    vec![
        Parameter::new::<f32>("embedding", &[2, 2]),
        Parameter::new::<f64>("fc.weight", &[3]),
        Parameter::new::<f32>("fc.bias", &[]),
        Parameter::new::<f32>("nothing", &[0]),
    ]
}

fn options(bytes: usize, find_unused: bool) -> DdpOptions {
    DdpOptions { bucket_bytes: bytes, first_bucket_bytes: bytes, find_unused_parameters: find_unused }
}

/// The gradients or the values of the model, in memory of a device.
struct Values {
    stream: Arc<CudaStream>,
    slices: Vec<CudaSlice<u8>>,
}

impl Values {
    /// Each element of a parameter is `of` its index.
    fn new(stream: &Arc<CudaStream>, of: impl Fn(usize) -> f64) -> Self {
        let slice = |(index, parameter): (usize, Parameter)| {
            let (count, value) = (parameter.elements(), of(index));
            let bytes: Vec<u8> = match parameter.data_type {
                f64::DATA_TYPE => value.to_le_bytes().repeat(count),
                _ => (value as f32).to_le_bytes().repeat(count),
            };
            // The driver gives no memory of no length.
            stream.clone_htod(if bytes.is_empty() { &[0][..] } else { &bytes[..] }).unwrap()
        };
        let slices = model().into_iter().enumerate().map(slice).collect();
        Self { stream: Arc::clone(stream), slices }
    }

    fn memory(&mut self, index: usize) -> DeviceMemory {
        let parameter = &model()[index];
        let (address, _sync) = self.slices[index].device_ptr_mut(&self.stream);
        DeviceMemory { address, bytes: parameter.elements() * parameter.data_type.size() }
    }

    fn all(&mut self) -> Vec<DeviceMemory> {
        (0..self.slices.len()).map(|index| self.memory(index)).collect()
    }

    /// Whether each element of a parameter is this number.
    fn is(&self, index: usize, expected: f64) -> bool {
        let bytes = self.stream.clone_dtoh(&self.slices[index]).unwrap();
        let parameter = &model()[index];
        let bytes = &bytes[..parameter.elements() * parameter.data_type.size()];
        match parameter.data_type {
            f64::DATA_TYPE => bytes.as_chunks().0.iter().all(|value| f64::from_le_bytes(*value) == expected),
            _ => bytes.as_chunks().0.iter().all(|value| f64::from(f32::from_le_bytes(*value)) == expected),
        }
    }
}

impl Device {
    fn values(&self, of: impl Fn(usize) -> f64) -> Values {
        Values::new(&self.streams[0], of)
    }

    fn steps(&self, (host, device): Groups, bytes: usize) -> Result<Groups, DdpError> {
        let (rank, stream) = (self.rank, raw(&self.streams[0]));
        let mut ddp = NcclDdp::new(host, device, model(), &options(bytes, false))?;
        assert_eq!((ddp.rank().index(), ddp.world_size().get(), ddp.parameters().len()), (rank, 3, 4));
        let mut weights = self.values(|index| (rank * 10 + index) as f64);
        ddp.put_weights(&weights.all(), stream)?;
        assert!((0..4).all(|index| weights.is(index, index as f64)));
        for step in 0..4 {
            // Of no rank is it what the mean is.
            let of = |index: usize| ([0, 1, 5][rank] * (step + 1) + index) as f64;
            let mut gradients = self.values(of);
            let mean = |index: usize| (2 * (step + 1) + index) as f64;
            // Another order on every rank and in each step.
            for at in 0..4 {
                let index = (at + rank + step) % 4;
                let memory = gradients.memory(index);
                ddp.put(index, memory, raw(&self.streams[at % 2]))?;
            }
            assert_eq!(ddp.put_end(stream)?, [0; 0]);
            assert!((0..4).all(|index| gradients.is(index, mean(index))), "step {step}");
            // The last parameters are reduced before there is a gradient of the first.
            let mut gradients = self.values(of);
            for index in (1..4).rev() {
                let memory = gradients.memory(index);
                ddp.put(index, memory, stream)?;
            }
            let is_early = |index| gradients.is(index, mean(index));
            assert_eq!((is_early(2), is_early(1)), (bytes == 1, true), "{bytes}");
            let memory = gradients.memory(0);
            ddp.put(0, memory, stream)?;
            ddp.put_end(stream)?;
            assert!((0..4).all(|index| gradients.is(index, mean(index))));
            let mut sum = [1.0f64];
            ddp.host().all_reduce(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [3.0]);
        }
        // SAFETY: the stream is there.
        unsafe { ddp.synchronize(stream) }?;
        ddp.into_groups()
    }

    fn unused(&self, (host, device): Groups) -> Result<Groups, DdpError> {
        let (rank, stream) = (self.rank, raw(&self.streams[0]));
        let mut ddp = NcclDdp::new(host, device, model(), &options(1, true))?;
        for _ in 0..2 {
            let mut gradients = self.values(|_| 6.0);
            // No rank uses the first parameter; only rank 1 uses the second one.
            for index in 0..4 {
                let memory = gradients.memory(index);
                let is_used = index >= 2 || (index == 1 && rank == 1);
                match is_used {
                    true => ddp.put(index, memory, stream)?,
                    false => ddp.put_unused(index, memory, stream)?,
                }
            }
            assert_eq!(ddp.put_end(stream)?, [0]);
            assert!([0.0, 2.0, 6.0].iter().enumerate().all(|(index, mean)| gradients.is(index, *mean)));
        }
        ddp.into_groups()
    }

    fn mistakes(&self, (host, device): Groups) -> Result<Groups, DdpError> {
        let stream = raw(&self.streams[0]);
        let mut ddp = NcclDdp::new(host, device, model(), &options(1, false))?;
        let mut gradients = self.values(|_| 1.0);
        let all = gradients.all();
        let refused = |done: Result<(), DdpError>| done.unwrap_err().to_string();
        assert_eq!(
            refused(ddp.put_weights(&all[1..], stream)),
            "the model has 4 parameters, but the call passes 3"
        );
        let swapped = refused(ddp.put(0, all[1], stream));
        assert_eq!(swapped, "`embedding` has 16 bytes, but the call passes 24 bytes of memory");
        assert_eq!(refused(ddp.put(4, all[0], stream)), "parameter 4 does not exist: the model has 4");
        let unused = ddp.put_unused(2, all[2], stream).unwrap_err();
        assert!(unused.hint().is_some_and(|hint| hint.contains("find_unused")), "{unused}");
        ddp.put(2, all[2], stream)?;
        assert_eq!(
            refused(ddp.put(2, all[2], stream)),
            "the gradient of `fc.bias` is marked ready twice in this pass"
        );
        assert!(matches!(ddp.put_weights(&all, stream), Err(DdpError::UnderWay)));
        let missing = ddp.put_end(stream).unwrap_err().to_string();
        assert_eq!(missing, "the gradient of `embedding` and of 2 other parameters is missing");
        // Nothing is lost.
        for index in [0, 1, 3] {
            ddp.put(index, all[index], stream)?;
        }
        ddp.put_end(stream)?;
        assert!((0..4).all(|index| gradients.is(index, 1.0)));
        ddp.into_groups()
    }

    fn other_models(&self, (host, device): Groups) -> Result<Groups, DdpError> {
        let mut parameters = model();
        if self.rank == 2 {
            parameters[1] = Parameter::new::<f64>("fc.weight", &[4]);
        }
        NcclDdp::new(host, device, parameters, &options(1, false))?.into_groups()
    }

    fn other_ranks(&self, (mut host, device): Groups) -> Result<Groups, DdpError> {
        let reversed = host.split(Some(0), 9 - self.rank as u32)?.unwrap();
        let error = NcclDdp::new(reversed, device, model(), &options(1, false)).unwrap_err();
        let expected = format!(
            "the two groups do not match: this is rank {} of 3 between hosts and rank {}",
            2 - self.rank,
            self.rank
        );
        assert!(self.rank == 1 || error.to_string().starts_with(&expected), "{error}");
        Err(error)
    }
}

/// Plays a scene on three ranks; how each ended, and what it said of it.
fn play(what: &str) -> Vec<(Option<i32>, String)> {
    let action = format!("ddp:{what}");
    let mut job = Job::start(3, &[(action.as_str(), 60_000, "devices=3"); 3]);
    (0..3).map(|rank| job.errors(rank)).collect()
}

#[track_caller]
fn assert_scene(what: &str) {
    for (rank, (code, errors)) in play(what).into_iter().enumerate() {
        assert_eq!(code, Some(0), "rank {rank}: {errors}");
    }
}

#[test]
fn gradients_on_device_are_averaged_in_place_in_any_order() {
    assert_scene("steps");
}

#[test]
fn unused_parameter_gradients_are_zero() {
    assert_scene("unused");
}

#[test]
fn wrong_calls_are_errors_and_state_is_kept() {
    assert_scene("mistakes");
}

#[test]
fn model_mismatch_names_difference() {
    for (code, errors) in play("models") {
        let expected = "the ranks do not train the same model: rank 2 has `fc.weight` [4] f64 as parameter 1, but rank 0 has \
                        `fc.weight` [3] f64 as parameter 1";
        assert!(code == Some(1) && errors.contains(expected), "{errors}");
    }
}

#[test]
fn mismatched_host_and_device_groups_are_refused() {
    let ended = play("ranks");
    assert!(ended[0].0 == Some(1) && ended[0].1.contains("between devices"), "{}", ended[0].1);
}
