//! Probes of folders that stand in for a machine's root.

mod folder;
mod junk;
mod surroundings;

use crate::device_probe::kernel::*;
use folder::Folder;
use rankrun_core::device::Memory;

fn everything() -> ProbeScope {
    ProbeScope { state: true, links: true, cpus: true }
}

fn cards(folder: &Folder) -> Vec<Accelerator> {
    probe_kernel(folder.path(), ProbeScope::default()).accelerators
}

/// The troubles with devices of a type: where, and whether more than a mere absence.
fn probe_problems(folder: &Folder, kind: DeviceType) -> Vec<(String, bool)> {
    let problems = probe_kernel(folder.path(), ProbeScope::default()).troubles;
    let of_kind = problems.into_iter().filter(|problem| problem.kind == kind);
    of_kind.map(|problem| (problem.source, matches!(problem.what, ProbeProblemKind::Failed(_)))).collect()
}

fn addresses(cards: &[Accelerator]) -> Vec<String> {
    cards.iter().map(|card| card.pci.map_or_else(|| "-".to_owned(), |pci| pci.to_string())).collect()
}

fn indices(cards: &[Accelerator]) -> Vec<u32> {
    cards.iter().map(|card| card.index).collect()
}

#[test]
fn empty_machine_reports_missing_sources() {
    let folder = Folder::new();
    let machine = probe_kernel(folder.path(), everything());
    assert_eq!(
        (&machine.accelerators[..], &machine.links[..], &machine.nics[..]),
        (&[][..], &[][..], &[][..])
    );
    assert_eq!(machine.cpus, None);
    let sources: Vec<_> = machine.troubles.iter().map(|problem| problem.source.as_str()).collect();
    let expected = [
        "/proc/driver/nvidia/gpus",
        "/sys/class/kfd/kfd/topology/nodes",
        "/sys/bus/pci/drivers/xe",
        "/sys/bus/pci/drivers/i915",
        "/sys/class/accel",
        "/dev",
        "/sys/devices/system/cpu/online",
    ];
    assert_eq!(sources, expected);
    let missing = ProbeProblemKind::Missing("no such file or folder".to_owned());
    assert!(machine.troubles.iter().all(|problem| problem.what == missing), "{:?}", machine.troubles);
}

#[test]
fn amd_gpus_are_counted_like_rocm_runtime() {
    let folder = Folder::new();
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    folder.file(&format!("{nodes}/0/gpu_id"), "0\n").file(&format!("{nodes}/0/properties"), "simd_count 0\n");
    // Node 10 is behind node 2, node 3 has no compute units, node 4 is not given to us.
    folder.amd(10, 0x0300, "renderD129", "unique_id 0\ngfx_target_version 90402\nhive_id 5\n");
    folder.amd(2, 0x4308, "renderD128", "unique_id 43981\ngfx_target_version 90010\nhive_id 0\n");
    folder.amd(3, 0x0500, "renderD130", "");
    folder.file(&format!("{nodes}/3/properties"), "simd_count 0\ndrm_render_minor 130\n");
    folder.amd(4, 0x0600, "renderD131", "").remove("dev/dri/renderD131");
    folder.file("sys/bus/pci/devices/0000:43:01.0/numa_node", "1\n");
    folder.file("sys/bus/pci/devices/0000:43:01.0/mem_info_vram_used", "1000\n");
    folder.file("sys/bus/pci/devices/0000:43:01.0/product_name", "AMD Instinct\u{1b}[31m MI250X\n");
    let cards = cards(&folder);
    assert_eq!(addresses(&cards), ["0000:43:01.0", "0000:03:00.0"]);
    assert_eq!(indices(&cards), [0, 1]);
    let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
    assert_eq!(names, ["AMD Instinct[31m MI250X", "gfx942"], "no escape sequence reaches a terminal");
    let uuids: Vec<_> = cards.iter().map(|card| card.uuid.as_deref()).collect();
    assert_eq!(uuids, [Some("GPU-000000000000abcd"), None]);
    assert_eq!((cards[0].numa_node, cards[1].numa_node), (Some(1), None));
    let total = 3 << 30;
    assert_eq!(cards[0].memory, Some(Memory { total, free: Some(total - 1000) }));
    assert_eq!(cards[1].memory, Some(Memory { total, free: None }));
    assert_eq!(cards[0].state, None);
    assert_eq!(probe_problems(&folder, DeviceType::Rocm), [("/dev/dri/renderD131".to_owned(), false)]);
}

#[test]
fn amd_gpu_has_name_and_sensor_values() {
    for (version, name) in
        [(90_010, "gfx90a"), (90_402, "gfx942"), (110_000, "gfx1100"), (100_302, "gfx1032"), (0, "AMD GPU")]
    {
        let folder = Folder::new();
        folder.amd(1, 0x0300, "renderD128", &format!("gfx_target_version {version}\n"));
        assert_eq!(cards(&folder)[0].name, name);
    }
    let folder = Folder::new();
    folder.amd(1, 0x0300, "renderD128", "");
    let pci = "sys/bus/pci/devices/0000:03:00.0";
    folder.file(&format!("{pci}/hwmon/hwmon4/temp1_input"), "61500\n");
    folder.file(&format!("{pci}/hwmon/hwmon4/power1_average"), "250000000\n");
    folder.file(&format!("{pci}/hwmon/hwmon4/power1_cap"), "-1\n");
    folder.file(&format!("{pci}/gpu_busy_percent"), "101\n");
    folder.file(&format!("{pci}/ras/umc_err_count"), "ue: 3\nce: 9\n");
    let state = probe_kernel(folder.path(), everything()).accelerators.remove(0).state.unwrap();
    assert_eq!((state.temperature, state.power, state.power_limit), (Some(61), Some(250_000), None));
    assert_eq!((state.utilisation, state.uncorrected_ecc), (None, Some(3)));
}

#[test]
fn amd_gpu_lists_its_processes() {
    let folder = Folder::new();
    folder.amd(2, 0x0300, "renderD128", "");
    let (processes, other) = ("sys/class/kfd/kfd/proc", "vram_4712");
    folder
        .file(&format!("{processes}/70/vram_4711"), "4096\n")
        .file(&format!("{processes}/70/{other}"), "9\n");
    folder.file(&format!("{processes}/8/vram_4711"), "0\n").file(&format!("{processes}/9/{other}"), "9\n");
    folder.file("proc/70/comm", "python3\n");
    let processes = || {
        let state = probe_kernel(folder.path(), everything()).accelerators.remove(0).state.unwrap();
        state.processes.into_iter().map(|one| (one.pid, one.name, one.memory)).collect::<Vec<_>>()
    };
    folder.link("pid:[4026531999]", "proc/self/ns/pid");
    assert_eq!(processes(), [(70, None, Some(4096))], "in a container the pid means another process");
    folder.remove("proc/self/ns/pid").link("pid:[4026531836]", "proc/self/ns/pid");
    assert_eq!(processes(), [(70, Some("python3".to_owned()), Some(4096))]);
}

#[test]
fn amd_gpu_without_kfd_node_is_not_listed() {
    let folder = Folder::new();
    folder.amd(2, 0x0300, "renderD128", "").remove("dev/kfd");
    assert_eq!(cards(&folder), []);
    assert_eq!(probe_problems(&folder, DeviceType::Rocm), [("/dev/kfd".to_owned(), false)]);
}

#[test]
fn intel_gpus_are_in_pci_order_discrete_first() {
    let folder = Folder::new();
    folder.intel("0000:9a:00.0", "xe", 129).intel("0000:1b:00.0", "i915", 128).intel(
        "0000:00:02.0",
        "i915",
        130,
    );
    // A sound card under the same driver's folder, another vendor's GPU, and a folder without a device.
    folder.intel("0000:05:00.0", "xe", 131).file("sys/bus/pci/devices/0000:05:00.0/class", "0x040300\n");
    folder.intel("0000:06:00.0", "xe", 132).file("sys/bus/pci/devices/0000:06:00.0/vendor", "0x10de\n");
    folder.file("sys/bus/pci/drivers/xe/bind", "");
    let found = cards(&folder);
    assert_eq!(addresses(&found), ["0000:1b:00.0", "0000:9a:00.0", "0000:00:02.0"]);
    assert_eq!(indices(&found), [0, 1, 2]);
    assert_eq!(found.iter().map(|card| card.integrated).collect::<Vec<_>>(), [false, false, true]);
    folder.remove("dev/dri/renderD128").remove("dev/dri/renderD129");
    assert_eq!(addresses(&cards(&folder)), ["0000:00:02.0"], "the integrated one where there is no other");
    folder.remove("dev/dri/renderD130");
    assert_eq!(cards(&folder), []);
    let closed = probe_problems(&folder, DeviceType::Xpu);
    assert!(closed.iter().any(|(source, _)| source == "/dev/dri/renderD130"), "{closed:?}");
}

#[test]
fn intel_tiles_are_separate_devices() {
    let folder = Folder::new();
    folder.intel("0000:1b:00.0", "xe", 128).intel("0000:9a:00.0", "xe", 129);
    for tile in ["1b:00.0/tile0", "1b:00.0/tile1", "9a:00.0/tile0"] {
        folder.file(&format!("sys/bus/pci/devices/0000:{tile}/physical_vram_size_bytes"), "4096\n");
    }
    let parts: Vec<_> = cards(&folder).into_iter().map(|card| (card.index, card.part, card.memory)).collect();
    let memory = Some(Memory { total: 4096, free: None });
    let expected = [
        (0, Part::Tile { card: 0, tile: 0 }, memory),
        (1, Part::Tile { card: 0, tile: 1 }, memory),
        (2, Part::Whole, memory),
    ];
    assert_eq!(parts, expected);
    // The two `gt`s of an integrated GPU are not tiles: one is for graphics, one for video.
    for (address, count) in [("0000:1b:00.0", 2), ("0000:00:02.0", 1)] {
        let folder = Folder::new();
        folder.intel(address, "i915", 128);
        for gt in ["gt0", "gt1"] {
            folder.file(&format!("sys/bus/pci/devices/{address}/drm/card0/gt/{gt}/id"), "0\n");
        }
        assert_eq!(cards(&folder).len(), count, "{address}");
    }
}

#[test]
fn habana_card_with_malfunction_is_lost() {
    let folder = Folder::new();
    folder
        .habana(10, "0000:34:00.0", "Operational\n")
        .file("sys/class/accel/accel10/device/module_id", "7\n");
    folder.habana(2, "0000:33:00.0", "malfunction\n");
    folder.habana(3, "0000:35:00.0", "In reset after device release\n");
    // Intel's NPU in a laptop is of the same class.
    folder.file("sys/class/accel/accel0/device/vendor", "0x8086\n").file("dev/accel/accel0", "");
    let found = cards(&folder);
    assert_eq!(addresses(&found), ["0000:33:00.0", "0000:35:00.0", "0000:34:00.0"]);
    let conditions: Vec<_> = found.iter().map(|card| card.condition.clone()).collect();
    let lost = Condition::Lost { why: "malfunction".to_owned() };
    assert_eq!(conditions, [lost, Condition::Answers, Condition::Answers]);
    let modules: Vec<_> = found.iter().map(|card| card.module_id).collect();
    assert_eq!((modules, found[0].name.as_str()), (vec![None, None, Some(7)], "GAUDI2"));
    folder.remove("dev/accel/accel2").remove("dev/accel/accel3").remove("dev/accel/accel10");
    assert_eq!(cards(&folder), []);
}

#[test]
fn ascend_cards_are_numbered_from_zero() {
    let folder = Folder::new();
    for node in ["davinci3", "davinci11", "davinci5", "davinci_manager", "davinci", "davinci07"] {
        folder.file(&format!("dev/{node}"), "");
    }
    folder.pci("pci0000:00/0000:01:00.0", "0x19e5", "0x120000").pci(
        "pci0000:00/0000:02:00.0",
        "0x19e5",
        "0x020000",
    );
    folder.file("sys/bus/pci/devices/0000:01:00.0/device", "0xd802\n");
    let found = cards(&folder);
    assert_eq!(indices(&found), [0, 1, 2]);
    assert_eq!(found[0].name, "Ascend 910B");
    folder.pci("pci0000:00/0000:03:00.0", "0x19e5", "0x120000");
    assert_eq!(addresses(&cards(&folder)), ["-", "-", "-"], "the kernel does not say which is where");
}

#[test]
fn nvidia_cards_are_listed_without_nvml() {
    let folder = Folder::new();
    folder.nvidia("0000:c1:00.0", 0, "GPU-bbb").nvidia("0000:01:00.0", 5, "GPU-aaa");
    folder.nvidia("0001:01:00.0", 6, "GPU-????????-????").nvidia("0000:02:00.0", 7, "GPU-ccc");
    folder.remove("dev/nvidia7");
    folder.nvidia("0000:03:00.0", 8, "GPU-ddd\nGPU Excluded:\t Yes");
    let found = cards(&folder);
    assert_eq!(addresses(&found), ["0000:01:00.0", "0000:c1:00.0", "0001:01:00.0"]);
    let uuids: Vec<_> = found.iter().map(|card| card.uuid.as_deref()).collect();
    assert_eq!(uuids, [Some("GPU-aaa"), Some("GPU-bbb"), None]);
    assert_eq!(found[0].name, "NVIDIA H100 80GB HBM3");
    assert_eq!(probe_problems(&folder, DeviceType::Cuda), [("/dev/nvidia7".to_owned(), false)]);
}

#[test]
fn number_of_cards_is_limited() {
    let folder = Folder::new();
    for number in 0..1000 {
        folder.file(&format!("dev/davinci{number}"), "");
    }
    assert_eq!(cards(&folder).len(), MAX_CARDS);
}

#[test]
fn integrated_amd_gpu_is_detected_by_memory_size() {
    let gib = |count: u64| count << 30;
    for (video, bank, integrated) in [
        (Some(gib(1) / 2), gib(1) / 2, true),
        // Newer kernels count what it may borrow.
        (Some(gib(1) / 2), gib(30), true),
        (None, gib(1), true),
        (Some(gib(192)), gib(192), false),
        // One of the partitions of a card.
        (Some(gib(192)), gib(1), false),
        // MI300A
        (Some(0), gib(128), false),
        (None, 0, false),
    ] {
        let folder = Folder::new();
        let (pci, node) = ("sys/bus/pci/devices/0000:11:00.0", "sys/class/kfd/kfd/topology/nodes/1");
        if let Some(video) = video {
            folder.file(&format!("{pci}/mem_info_vram_total"), format!("{video}\n"));
        }
        folder.file("dev/kfd", "").file("dev/dri/renderD128", "").file(&format!("{node}/gpu_id"), "7\n");
        let properties = "cpu_cores_count 16\nsimd_count 4\nlocation_id 4352\ndrm_render_minor 128\n";
        folder.file(&format!("{node}/properties"), properties);
        let bank = format!("heap_type 1\nsize_in_bytes {bank}\n");
        folder.file(&format!("{node}/mem_banks/0/properties"), &bank);
        let found: Vec<bool> = cards(&folder).iter().map(|card| card.integrated).collect();
        assert_eq!(found, [integrated], "{video:?} {bank}");
    }
}
