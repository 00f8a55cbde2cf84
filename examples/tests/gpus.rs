//! The examples on simulated GPUs: the fake machine of `tests/fakes/gpu` computes the results.

#![expect(clippy::disallowed_methods, reason = "the test starts the examples, and looks where Python is")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Folder, run_and_capture};

/// The demo, or another example, on a machine described by `orders`.
struct Demo {
    program: &'static str,
    libraries: Folder,
    orders: String,
    visible: Option<&'static str>,
}

impl Demo {
    fn on(orders: &str) -> Self {
        let libraries = Folder::new();
        fake_gpu::install(&libraries.0).expect("the fake is built, and the folder takes links");
        let program = env!("CARGO_BIN_EXE_data_parallel");
        Self { program, libraries, orders: orders.to_owned(), visible: None }
    }

    /// One library is missing: an empty file under each name by which cudarc looks for it.
    fn without(self, library: &str) -> Self {
        for name in cudarc::get_lib_name_candidates(library) {
            let file = self.libraries.0.join(name);
            drop(fs::remove_file(&file));
            fs::write(file, b"").expect("the folder takes a file");
        }
        self
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(self.program);
        command.args(args).env_clear().env("LD_LIBRARY_PATH", &self.libraries.0);
        command.env(fake_gpu::VARIABLE, &self.orders);
        command.envs(self.visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
        run_and_capture(&mut command)
    }

    /// What it prints where all goes well.
    #[track_caller]
    fn prints(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{} {args:?}: {stdout}", self.orders);
        stdout
    }
}

/// Lines as if they were of a CPU, those of each batch in the order of their devices; and the outputs.
fn lines_and_outputs(printed: &str) -> (Vec<String>, Vec<f64>) {
    let (mut batches, mut outputs) = (vec![Vec::new()], Vec::new());
    for line in printed.lines() {
        if let Some(row) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            outputs.extend(row.split(", ").map(|value| value.parse::<f64>().expect("a number")));
            continue;
        }
        let text = line.split(", pid ").next().unwrap_or(line).replace("cuda:", "cpu:");
        if let Some(batch) = batches.last_mut() {
            batch.push(text.replace("GPUs", "CPU devices"));
        }
        if line.starts_with("Outside") {
            batches.push(Vec::new());
        }
    }
    // Devices print when they are ready.
    batches.iter_mut().for_each(|batch| batch.sort());
    (batches.concat(), outputs)
}

#[track_caller]
fn assert_same(gpus: &str, cpus: &str) {
    let ((gpu_lines, gpu_outputs), (cpu_lines, cpu_outputs)) =
        (lines_and_outputs(gpus), lines_and_outputs(cpus));
    assert_eq!(gpu_lines, cpu_lines);
    assert_close(&gpu_outputs, &cpu_outputs);
}

#[track_caller]
fn assert_close(gpus: &[f64], cpus: &[f64]) {
    let is_close = gpus.iter().zip(cpus).all(|(gpu, cpu)| (gpu - cpu).abs() <= 1e-5 * cpu.abs().max(1.0));
    assert!(gpus.len() == cpus.len() && is_close && !cpus.is_empty(), "{gpus:?} is not {cpus:?}");
}

#[test]
fn gpu_outputs_equal_cpu_outputs() {
    let demo = Demo::on("devices=3");
    for (gpus, cpus) in [
        ("0", "cpu:0"),
        ("1,0", "cpu:1,cpu:0"),
        ("cuda:0,cuda:1,cuda:2", "cpu:0,cpu:1,cpu:2"),
        ("2,0,1", "cpu:2,cpu:0,cpu:1"),
    ] {
        // A whole number of rows for each device, a remainder, fewer rows than devices; and a smaller last batch.
        for (rows, batch) in [("60", "30"), ("70", "31"), ("4", "2"), ("3", "1")] {
            let args = ["--batch", batch, "--rows", rows, "--print-outputs", "--device-ids"];
            let run = |devices| demo.prints(&[&args[..], &[devices]].concat());
            assert_same(&run(gpus), &run(cpus));
        }
    }
}

#[test]
fn gpus_are_announced_in_words_of_tutorial() {
    let printed = Demo::on("devices=2").prints(&[]);
    assert!(
        printed.starts_with("Let's use 2 GPUs!\nIn Model: input size [15, 1000], output size [15, 2]"),
        "{printed}"
    );
    let parts = |text: &str| printed.matches(text).count();
    assert_eq!(parts("In Model: input size [15, 1000], output size [15, 2]"), 6, "{printed}");
    assert_eq!(parts("Outside: input size [30, 1000], output size [30, 2]"), 3, "{printed}");
    assert_eq!(parts("In Model: input size [5, 1000], output size [5, 2]"), 2, "{printed}");
    assert!(printed.ends_with("Outside: input size [10, 1000], output size [10, 2]\n"), "{printed}");
}

/// Neither is taken for done because its call has returned.
#[test]
fn delayed_copies_are_awaited() {
    let args = ["--batch", "31", "--print-outputs", "--device-ids"];
    let run = |orders, devices| Demo::on(orders).prints(&[&args[..], &[devices]].concat());
    assert_same(&run("devices=2 late=1", "0,1"), &run("devices=2", "cpu:0,cpu:1"));
    let train = |device| {
        let demo = Demo { program: env!("CARGO_BIN_EXE_ddp_training"), ..Demo::on("devices=1 late=1") };
        let printed = demo.prints(&["--steps", "30", "--device", device]);
        printed.lines().last().map(|line| line.split(", weights").next().unwrap_or(line).to_owned())
    };
    assert_eq!(train("cuda"), train("cpu"));
}

#[test]
fn layer_sizes_on_gpu_match_cpu() {
    let demo = Demo::on("devices=2 pools=0");
    for (features, outputs) in [("1", "1"), ("7", "1"), ("1", "1500"), ("33", "65")] {
        let args = ["--batch", "9", "--features", features, "--outputs", outputs, "--print-outputs"];
        let run = |devices| demo.prints(&[&args[..], &["--device-ids", devices]].concat());
        assert_same(&run("1,0"), &run("cpu:1,cpu:0"));
    }
}

#[test]
fn default_uses_all_visible_gpus() {
    for (orders, visible, devices) in
        [("devices=3", None, 3), ("devices=1", None, 1), ("devices=4", Some("2,0"), 2)]
    {
        let printed = Demo { visible, ..Demo::on(orders) }.prints(&["--rows", "12"]);
        let rows = 12 / devices;
        for device in 0..devices {
            let part =
                format!("input size [{rows}, 1000], output size [{rows}, 2] (rank 0, device cuda:{device},");
            assert_eq!(printed.matches(&part).count(), 1, "{part}: {printed}");
        }
        assert_eq!(printed.matches("In Model").count(), devices, "{printed}");
    }
    // Hidden ones are none, and the CPU takes their place.
    let hidden = Demo { visible: Some(""), ..Demo::on("devices=2") };
    assert!(hidden.prints(&["--rows", "1"]).contains("device cpu:0"));
}

#[test]
fn replicas_on_shared_gpu_split_batch() {
    let demo = Demo::on("devices=1");
    let args = ["--rows", "93", "--batch", "31", "--print-outputs"];
    let alone = demo.prints(&[&args[..], &["--device-ids", "cpu:0"]].concat());
    let printed = demo.prints(&[&args[..], &["--replicas", "2"]].concat());
    for rows in [16, 15] {
        let part = format!("output size [{rows}, 2] (rank 0, device cuda:0,");
        assert_eq!(printed.matches(&part).count(), 3, "{printed}");
    }
    assert_close(&lines_and_outputs(&printed).1, &lines_and_outputs(&alone).1);
}

#[test]
fn invalid_gpus_are_named() {
    for (devices, expected) in [
        ("2", "device `cuda:2` does not exist: this process sees 2 of kind `cuda`"),
        ("0,2", "device `cuda:2` does not exist: this process sees 2 of kind `cuda`"),
        ("1,1", "the device `cuda:1` is named twice"),
        ("0,cpu:0", "the devices are of different kinds: `cuda:0` and `cpu:0`"),
    ] {
        let (code, stdout, stderr) = Demo::on("devices=2").run(&["--device-ids", devices]);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{devices}: {stderr}");
        assert!(stderr.starts_with(&format!("error: {expected}\n  hint: ")), "{devices}: {stderr}");
        assert_eq!(stderr.lines().count(), 2, "it is said once: {stderr}");
    }
}

#[test]
fn unsupported_machine_is_described() {
    let pieces = |orders: &str, expected: &[&str]| {
        let (code, _, stderr) = Demo::on(orders).run(&["--device-ids", "1,0"]);
        let has_all = expected.iter().all(|piece| stderr.contains(piece));
        assert!(code == Some(1) && has_all && !stderr.contains("panicked"), "{orders}: {stderr}");
    };
    let failed = "the CUDA device failed";
    pieces("devices=2 nodevice=1", &["shows no device", "hint: check CUDA_VISIBLE_DEVICES"]);
    pieces("devices=2 memory=1000", &["the replica on `cuda:1` failed", failed, "out of memory"]);
    pieces("devices=2 fail=cuLaunchKernel:700", &[failed, "an illegal memory access"]);
    pieces("devices=2 fail=cuLaunchKernel:700:3", &[failed, "an illegal memory access"]);
    pieces("devices=2 fail=cuMemcpyDtoHAsync_v2:999:4", &[failed]);
    pieces("devices=2 fail=cuModuleLoadData:222", &[failed, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"]);
    pieces("devices=2 fail=cuStreamCreate:2", &[failed, "out of memory"]);
    pieces("devices=2 fail=nvrtcCreateProgram:3", &["NVRTC cannot compile the kernels", "INVALID_INPUT"]);
    pieces("devices=2 fail=cuDevicePrimaryCtxRetain:2", &["refused `cuDevicePrimaryCtxRetain`", "hint: "]);
}

#[test]
fn missing_library_is_named() {
    let demo = Demo::on("devices=1").without("nvrtc");
    assert!(demo.prints(&["--rows", "1"]).contains("device cpu:0"), "what was not asked for is not missed");
    let (code, stdout, stderr) = demo.run(&["--device-ids", "0"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(
        stderr.contains("NVRTC, which compiles the GPU kernels, cannot be loaded")
            && stderr.contains("hint: "),
        "{stderr}"
    );
    let (code, stdout, stderr) = Demo::on("devices=1").without("cuda").run(&["--device-ids", "0"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    assert!(stderr.contains("the CUDA driver cannot be loaded") && stderr.contains("hint: "), "{stderr}");
}

/// The kernels of all examples, with sizes as the programs give them.
const KERNELS: [(&str, &[&str]); 2] = [
    (
        concat!("#define FEATURES 1000\n#define OUTPUTS 2\n", include_str!("../data_parallel/linear.cu")),
        &["forward"],
    ),
    (
        concat!(
            "#define FEATURES 2\n#define HIDDEN 16\n#define CLASSES 3\n#define OUTPUT 48\n",
            include_str!("../ddp_training/mlp.cu")
        ),
        &["activate", "judge", "descend_into_hidden", "differentiate", "step"],
    ),
];

/// Says to this program, started once more, that it is to compile.
const ROLE: &str = "RANKRUN_TEST_COMPILES";

#[test]
fn main_of_the_compiling_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    for (source, names) in KERNELS {
        let ptx = cudarc::nvrtc::compile_ptx(source).expect("the kernels are right").to_src();
        assert!(names.iter().all(|name| ptx.contains(&format!(".entry {name}("))), "{ptx}");
    }
}

/// NVIDIA's compiler, of the packages that PyTorch brings.
fn real_compiler() -> Option<PathBuf> {
    let named = std::env::var_os("RANKRUN_TEST_PYTHON").map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let installed = cache.map(|cache| cache.join("rankrun/venv-torch-2.15.0/bin/python"));
    let python = named.or(installed).filter(|python| python.exists())?;
    let versions = fs::read_dir(python.parent()?.with_file_name("lib")).ok()?.flatten();
    let folders = versions.map(|version| version.path().join("site-packages/nvidia/cu13/lib"));
    folders.into_iter().find(|folder| folder.join("libnvrtc.so.13").exists())
}

#[test]
fn real_compiler_accepts_kernels() {
    let Some(folder) = real_compiler() else {
        assert!(std::env::var_os("CI").is_none(), "no Python with PyTorch: `tests/run` installs one");
        println!("SKIPPED: no Python with PyTorch, whose NVRTC this test takes");
        return;
    };
    let mut again = Command::new(std::env::current_exe().expect("a process knows its own program"));
    again.args(["--exact", "main_of_the_compiling_process", "--nocapture"]).env(ROLE, "1");
    let (code, stdout, stderr) = run_and_capture(again.env("LD_LIBRARY_PATH", folder));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}");
}
