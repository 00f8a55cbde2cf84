//! Memory and kernels of CUDA devices, on the fake devices that compute: this program starts itself with their libraries.

#![expect(unsafe_code, reason = "declares kernels")]

use std::num::NonZero;
use std::process::{ExitCode, Output};

use rankrun_worker::cuda::{CudaDevice, CudaError, CudaSlice, Kernel, Slice, SliceMut, worker_devices};
use rankrun_worker::data_parallel::{
    Batch, DataParallel, Device, DeviceIds, Replica, Rows, TrainableReplica,
};
use rankrun_worker::{WorkerContext, diagnostic};

use crate::process;

const FEATURES: usize = 3;

/// A linear layer with one output and without a bias, and an addition.
const KERNELS: &str = r#"
extern "C" __global__ void forward(float *output, long long output_length, const float *weights,
    long long weights_length, const float *input, long long input_length)
{
    long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= output_length || row >= input_length / 3 || weights_length < 3) {
        return;
    }
    output[row] = 0.0f;
    for (int at = 0; at < 3; at++) {
        output[row] += weights[at] * input[row * 3 + at];
    }
}

extern "C" __global__ void backward(float *gradients, long long gradients_length, const float *slopes,
    long long slopes_length, const float *input, long long input_length)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long row = 0; at < gradients_length && at < 3 && row < slopes_length && row < input_length / 3; row++) {
        gradients[at] += slopes[row] * input[row * 3 + at];
    }
}

extern "C" __global__ void add(double *sums, long long length, double some, int more, unsigned long long most)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < length) {
        sums[at] += some + more + (double)most;
    }
}
"#;

type Linear = Kernel<(SliceMut<f32>, Slice<f32>, Slice<f32>)>;
type Add = Kernel<(SliceMut<f64>, f64, i32, u64)>;

/// What the started process does.
pub(crate) fn main(role: &str) -> ExitCode {
    match role {
        "cuda: kernels" => kernels(),
        "cuda: errors" => errors(),
        "cuda: training" => training(),
        _ => choice(),
    }
    ExitCode::SUCCESS
}

/// A scene passes on a machine with fake devices.
#[track_caller]
fn passes(scene: &str, orders: &str) {
    let folder = std::env::temp_dir().join(format!("rankrun-cuda-{}-{scene}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    fake_gpu::install(&folder).unwrap();
    let vars = [("LD_LIBRARY_PATH", folder.clone().into()), (fake_gpu::VARIABLE, orders.into())];
    let output = process::start(&format!("cuda: {scene}"), vars).wait_with_output().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let Output { status, stdout, stderr } = output;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{scene}: {status}: {stdout}{stderr}");
}

#[test]
fn kernels_compute_on_slices_and_parts_of_slices() {
    passes("kernels", "devices=2 late=1");
}

#[test]
fn wrong_lengths_devices_and_kernels_are_errors() {
    passes("errors", "devices=2");
}

#[test]
fn training_on_gpus_equals_training_on_cpus() {
    passes("training", "devices=3 late=1");
}

#[test]
fn worker_takes_all_gpus_or_requested_ones() {
    passes("choice", "devices=3");
}

fn add(device: &CudaDevice) -> Add {
    let kernels = device.compile(KERNELS).unwrap();
    // SAFETY: these are its parameters, and it stays below the length.
    unsafe { kernels.declare("add") }.unwrap()
}

fn kernels() {
    let device = CudaDevice::open(1).unwrap();
    assert_eq!((device.ordinal(), format!("{device:?}").as_str()), (1, "cuda:1"));
    let add = add(&device);
    let mut sums = device.upload(&vec![1.0; 600]).unwrap();
    add.launch(600, (sums.as_view_mut(), 0.5, -2, 1 << 40)).unwrap();
    // A part is changed, and nothing beside it; more threads than numbers do no harm.
    add.launch(1000, (sums.slice_mut(100..101), 8.0, 0, 0)).unwrap();
    add.launch(0, (sums.as_view_mut(), 8.0, 0, 0)).unwrap();
    let mut expected = vec![1.0 + 0.5 - 2.0 + (1u64 << 40) as f64; 600];
    expected[100] += 8.0;
    assert_eq!(device.read_all(&sums).unwrap(), expected);

    device.write(&[7.0, 8.0], &mut sums.slice_mut(1..3)).unwrap();
    let mut read = [0.0; 4];
    device.read(&sums.slice(..4), &mut read).unwrap();
    assert_eq!(read, [expected[0], 7.0, 8.0, expected[3]]);
    let memory = device.raw_memory(&mut sums.slice_mut(2..5));
    assert_eq!(memory.bytes, 24);
    assert_eq!(memory.address, device.raw_memory(&mut sums).address + 16);
    // Nothing is copied, and nothing fails.
    device.write(&[], &mut sums.slice_mut(..0)).unwrap();
    assert!(device.read_all(&sums.slice(..0)).unwrap().is_empty());
    assert_eq!(device.read_all(&device.zeros::<u8>(3).unwrap()).unwrap(), [0; 3]);
}

#[track_caller]
fn assert_error<T>(result: Result<T, CudaError>, expected: &str) {
    let error = result.err().unwrap();
    assert!(error.to_string().contains(expected), "{error}");
}

fn errors() {
    let (device, other) = (CudaDevice::open(0).unwrap(), CudaDevice::open(1).unwrap());
    let missing = CudaDevice::open(2);
    assert!(missing.as_ref().is_err_and(CudaError::is_absence));
    assert_error(missing, "CUDA device 2 does not exist: the driver shows 2");

    let mut two = device.zeros::<f64>(2).unwrap();
    assert_error(device.write(&[1.0; 3], &mut two), "cannot copy 3 numbers to memory for 2");
    assert_error(device.read(&two, &mut [0.0; 1]), "cannot copy 2 numbers to memory for 1");
    assert_error(device.zeros::<f32>(0), "cannot allocate device memory for 0 numbers");
    assert_error(device.upload::<f32>(&[]), "cannot allocate device memory for 0 numbers");

    let add = add(&device);
    let mut foreign = other.zeros::<f64>(2).unwrap();
    let launch = add.launch(2, (foreign.as_view_mut(), 1.0, 0, 0));
    assert_error(launch, "the kernel is on `cuda:0`, and its argument on `cuda:1`");
    assert_error(add.launch(usize::MAX, (two.as_view_mut(), 1.0, 0, 0)), "the CUDA device failed");

    // SAFETY: there is no such kernel.
    let unknown = unsafe { device.compile(KERNELS).unwrap().declare::<f32>("nothing") };
    assert_error(unknown, "the CUDA device failed");
    let error = device.compile("extern \"C\" __global__ void wrong(int a)\n{\n    b = 1;\n}");
    assert_error(error, "NVRTC cannot compile the kernels: \ndefault_program");
}

fn choice() {
    let alone = WorkerContext::single_process();
    let devices = |requested: &[&str]| {
        let requested: Vec<Device> = requested.iter().map(|device| device.parse().unwrap()).collect();
        worker_devices(&requested, &alone)
    };
    assert_eq!(devices(&[]).unwrap().devices(), [0, 1, 2].map(Device::Cuda));
    assert_eq!(devices(&["2", "cuda:0"]).unwrap().devices(), [2, 0].map(Device::Cuda));
    let error = devices(&["3"]).unwrap_err();
    assert_eq!(error.to_string(), "device `cuda:3` does not exist: this process sees 3 of kind `cuda`");
    assert!(diagnostic::hint(&error).is_some_and(|hint| hint.contains("CUDA_VISIBLE_DEVICES")));
}

/// `y = w · x` on a device, with gradients.
struct Model {
    gpu: Option<Gpu>,
    weights: Vec<f32>,
    gradients: Vec<f32>,
    input: Rows<f32>,
}

struct Gpu {
    device: CudaDevice,
    forward: Linear,
    backward: Linear,
    weights: CudaSlice<f32>,
    input: CudaSlice<f32>,
}

impl Gpu {
    fn open(ordinal: usize) -> Result<Self, CudaError> {
        let device = CudaDevice::open(ordinal)?;
        let kernels = device.compile(KERNELS)?;
        // SAFETY: these are their parameters, and each stays below the lengths.
        let (forward, backward) = unsafe { (kernels.declare("forward")?, kernels.declare("backward")?) };
        Ok(Self {
            forward,
            backward,
            weights: device.zeros(FEATURES)?,
            input: device.zeros(FEATURES)?,
            device,
        })
    }
}

impl Model {
    fn new(device: &Device) -> Result<Self, CudaError> {
        let gpu = match device {
            Device::Cuda(ordinal) => Some(Gpu::open(*ordinal)?),
            _ => None,
        };
        let [weights, gradients] = [vec![0.0; FEATURES], vec![0.0; FEATURES]];
        Ok(Self { gpu, weights, gradients, input: rows(FEATURES, Vec::new()) })
    }
}

fn rows(columns: usize, values: Vec<f32>) -> Rows<f32> {
    Rows::new(columns, values).unwrap()
}

impl Replica for Model {
    type Input = Rows<f32>;
    type Output = Rows<f32>;
    type Parameters = Vec<f32>;
    type Error = CudaError;

    fn parameters(&self) -> Result<Vec<f32>, CudaError> {
        match &self.gpu {
            Some(gpu) => gpu.device.read_all(&gpu.weights),
            None => Ok(self.weights.clone()),
        }
    }

    fn set_parameters(&mut self, parameters: &Vec<f32>) -> Result<(), CudaError> {
        self.weights.copy_from_slice(parameters);
        self.gpu.as_mut().map_or(Ok(()), |gpu| gpu.device.write(parameters, &mut gpu.weights))
    }

    fn forward(&mut self, input: Rows<f32>) -> Result<Rows<f32>, CudaError> {
        let product = |row: &[f32]| row.iter().zip(&self.weights).map(|(value, weight)| value * weight).sum();
        let output = match &mut self.gpu {
            Some(gpu) => {
                gpu.input = gpu.device.upload(input.values())?;
                let mut output = gpu.device.zeros(input.rows())?;
                let arguments = (output.as_view_mut(), gpu.weights.as_view(), gpu.input.as_view());
                gpu.forward.launch(input.rows(), arguments)?;
                gpu.device.read_all(&output)?
            }
            None => input.iter().map(product).collect(),
        };
        self.input = input;
        Ok(rows(1, output))
    }
}

impl TrainableReplica for Model {
    fn backward(&mut self, slopes: Rows<f32>) -> Result<Vec<f32>, CudaError> {
        let mut gradients = vec![0.0; FEATURES];
        if let Some(gpu) = &self.gpu {
            let (mut on_device, slopes) =
                (gpu.device.upload(&gradients)?, gpu.device.upload(slopes.values())?);
            let arguments = (on_device.as_view_mut(), slopes.as_view(), gpu.input.as_view());
            gpu.backward.launch(FEATURES, arguments)?;
            return gpu.device.read_all(&on_device);
        }
        for (row, slope) in self.input.iter().zip(slopes.values()) {
            gradients.iter_mut().zip(row).for_each(|(sum, value)| *sum += slope * value);
        }
        Ok(gradients)
    }

    fn add_gradients(&mut self, gradients: &Vec<f32>) -> Result<(), CudaError> {
        self.gradients.iter_mut().zip(gradients).for_each(|(sum, slope)| *sum += slope);
        Ok(())
    }
}

/// Losses and weights of five steps towards `y = 2 a - b + 3 c`.
fn steps(devices: DeviceIds, count: usize) -> Vec<f32> {
    let mut model = DataParallel::new(devices, Model::new).unwrap();
    model.first_replica_mut().set_parameters(&vec![0.5, 0.25, -0.5]).unwrap();
    let input = rows(FEATURES, (0..count * FEATURES).map(|at| (at * 7 % 11) as f32 / 8.0 - 0.5).collect());
    let mut results = Vec::new();
    for _ in 0..5 {
        let mut output = model.forward(&input).unwrap();
        for (value, row) in output.values_mut().iter_mut().zip(input.iter()) {
            *value -= 2.0 * row[0] - row[1] + 3.0 * row[2];
        }
        results.push(output.values().iter().map(|error| error * error).sum::<f32>() / count as f32);
        model.backward(&output).unwrap();
        let first = model.first_replica_mut();
        let gradients = std::mem::replace(&mut first.gradients, vec![0.0; FEATURES]);
        let mut weights = first.parameters().unwrap();
        weights.iter_mut().zip(gradients).for_each(|(weight, slope)| *weight -= 0.5 * slope / count as f32);
        first.set_parameters(&weights).unwrap();
    }
    assert!(results[4] < 0.8 * results[0], "it learns: {results:?}");
    results.extend(model.first_replica().parameters().unwrap());
    results
}

fn training() {
    let ids = |devices: &[Device]| DeviceIds::new(devices.to_vec(), 3).unwrap();
    let shared = DeviceIds::repeated(&Device::Cuda(0), NonZero::new(2).unwrap());
    let choices = [
        ids(&[0].map(Device::Cuda)),
        ids(&[1, 0].map(Device::Cuda)),
        ids(&[2, 0, 1].map(Device::Cuda)),
        shared,
    ];
    // A whole number of rows for each device, a remainder, and fewer rows than devices.
    for rows in [30, 31, 2, 1] {
        let expected = steps(ids(&[Device::Cpu(0)]), rows);
        for devices in &choices {
            let found = steps(devices.clone(), rows);
            let is_close = found
                .iter()
                .zip(&expected)
                .all(|(one, other)| (one - other).abs() <= 1e-4 * other.abs().max(1.0));
            assert!(is_close, "{rows} rows on {devices:?}: {found:?} is not {expected:?}");
        }
    }
}
