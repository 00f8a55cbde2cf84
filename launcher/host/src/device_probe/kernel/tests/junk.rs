//! Machines with files that no kernel writes.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use proptest::prelude::*;

use crate::device_probe::kernel::tests::*;

/// A machine with something of everything.
fn full() -> Folder {
    let folder = Folder::new();
    folder.nvidia("0000:01:00.0", 0, "GPU-a").amd(2, 0x0300, "renderD128", "hive_id 5\nunique_id 6\n");
    folder.intel("0000:1b:00.0", "xe", 129).habana(0, "0000:33:00.0", "operational\n");
    folder.file("sys/bus/pci/devices/0000:1b:00.0/tile0/physical_vram_size_bytes", "4096\n");
    folder.file("sys/bus/pci/devices/0000:1b:00.0/numa_node", "0\n");
    folder.file("sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon0/temp1_input", "50000\n");
    folder.file("sys/class/accel/accel0/device/module_id", "3\n").file("dev/davinci0", "");
    folder
        .file("sys/devices/system/cpu/online", "0-1\n")
        .file("sys/devices/system/node/node0/cpulist", "0-1\n");
    folder.cpu(0, 0, "0-1", &[(1, "Data", "0-1")]).cpu(1, 0, "0-1", &[(1, "Data", "0-1")]);
    folder.pci("pci0000:00/0000:09:00.0", "0x15b3", "0x020000").class(
        "net",
        "eth0",
        "pci0000:00/0000:09:00.0",
    );
    folder
}

/// All regular files below a folder; links are not followed.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// The contents that replace a file's own.
const JUNK: [&[u8]; 7] = [
    b"",
    b"\xff\xfe\x00\x01",
    b"-1\n",
    b"18446744073709551616\n",
    b"0x\n",
    b"0-99999999\n",
    b"simd_count 1\nlocation_id 99999999999\ndrm_render_minor 99999999999\nunique_id x\nsize_in_bytes 18446744073709551615\n",
];

#[test]
fn machine_with_every_vendor_is_listed() {
    let machine = probe_kernel(full().path(), everything());
    let kinds: Vec<_> = machine.accelerators.iter().map(|card| card.kind).collect();
    let expected = [DeviceType::Cuda, DeviceType::Rocm, DeviceType::Xpu, DeviceType::Hpu, DeviceType::Npu];
    assert_eq!(kinds, expected);
    assert_eq!((machine.troubles, machine.nics.len()), (vec![], 1));
}

#[test]
fn broken_file_loses_at_most_one_device() {
    for junk in JUNK {
        let folder = full();
        for file in files(folder.path()) {
            let good = fs::read(&file).unwrap();
            fs::write(&file, junk).unwrap();
            let found = probe_kernel(folder.path(), everything()).accelerators.len();
            // The card with the broken file may be lost; the other cards stay.
            assert!(found >= 4, "{found} left with {junk:?} in {}", file.display());
            fs::write(&file, good).unwrap();
        }
    }
}

#[test]
fn junk_in_every_file_does_not_panic() {
    for junk in JUNK {
        let folder = full();
        for file in files(folder.path()) {
            fs::write(file, junk).unwrap();
        }
        let machine = probe_kernel(folder.path(), everything());
        assert!(machine.accelerators.len() <= 5);
        serde_json::to_string(&machine).unwrap();
    }
}

#[test]
fn huge_files_fifos_and_folders_do_not_block_probe() {
    let folder = full();
    for (number, file) in files(folder.path()).into_iter().enumerate() {
        match number % 3 {
            0 => fs::File::create(&file).unwrap().set_len(1 << 40).unwrap(),
            1 => {
                fs::remove_file(&file).unwrap();
                nix::unistd::mkfifo(&file, Mode::S_IRWXU).unwrap();
            }
            _ => {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
            }
        }
    }
    // The test passes if the call returns.
    assert!(probe_kernel(folder.path(), everything()).accelerators.len() <= 5);
}

#[test]
fn unreadable_card_is_reported_as_failed() {
    let folder = Folder::new();
    folder.nvidia("0000:01:00.0", 0, "GPU-a").file("proc/driver/nvidia/gpus/0000:01:00.0/information", "?");
    folder.amd(2, 0x0300, "renderD128", "").remove("sys/class/kfd/kfd/topology/nodes/2/properties");
    let failed = |kind| probe_problems(&folder, kind).into_iter().any(|(_, failed)| failed);
    assert!(failed(DeviceType::Cuda) && failed(DeviceType::Rocm));
    assert_eq!(cards(&folder), []);
}

#[test]
fn circular_symlinks_end_probe_without_devices() {
    let folder = Folder::new();
    folder.link("nodes", "sys/class/kfd/kfd/topology/nodes").link("../drivers/xe", "sys/bus/pci/drivers/xe");
    folder.link("a", "sys/class/net/a").link("accel", "sys/class/accel");
    let machine = probe_kernel(folder.path(), everything());
    assert_eq!((machine.accelerators.len(), machine.nics.len()), (0, 0));
    assert!(probe_problems(&folder, DeviceType::Rocm)[0].1, "not simply absent");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_file_content_does_not_panic(text in "(gpu_id|simd_count|location_id|domain|[0-9]{1,20}|0x[0-9a-f]{1,9}|[ \n:.,-]|.){0,24}") {
        let folder = full();
        for file in files(folder.path()) {
            fs::write(file, &text).unwrap();
        }
        let machine = probe_kernel(folder.path(), everything());
        prop_assert!(machine.accelerators.iter().all(|card| !card.name.chars().any(char::is_control)));
    }
}
