//! A folder that looks like a machine's root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Removed with all that is in it.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-test-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn file(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(super) fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.0.join(path)).unwrap();
        self
    }

    pub(super) fn link(&self, target: &str, path: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// A PCI device at the end of a way below `/sys/devices`.
    pub(super) fn pci(&self, way: &str, vendor: &str, class: &str) -> &Self {
        let address = way.rsplit('/').next().unwrap();
        self.file(&format!("sys/devices/{way}/vendor"), format!("{vendor}\n"));
        self.file(&format!("sys/devices/{way}/class"), format!("{class}\n"));
        self.link(&format!("../../../devices/{way}"), &format!("sys/bus/pci/devices/{address}"))
    }

    /// A card of AMD's, right below a host bridge.
    pub(super) fn amd(&self, node: u32, location: u32, render: &str, properties: &str) -> &Self {
        let (bus, device) = (location >> 8, location >> 3 & 31);
        self.pci(&format!("pci0000:00/0000:{bus:02x}:{device:02x}.0"), "0x1002", "0x120000");
        let minor = render.trim_start_matches("renderD");
        let properties =
            format!("simd_count 440\nlocation_id {location}\ndrm_render_minor {minor}\n{properties}");
        let folder = format!("sys/class/kfd/kfd/topology/nodes/{node}");
        self.file(&format!("{folder}/gpu_id"), "4711\n").file(&format!("{folder}/properties"), properties);
        for (bank, heap, size) in [(0, 1, 1_u64 << 30), (1, 2, 2 << 30), (2, 0, 9 << 30)] {
            let text = format!("heap_type {heap}\nsize_in_bytes {size}\n");
            self.file(&format!("{folder}/mem_banks/{bank}/properties"), text);
        }
        self.file("dev/kfd", "").file(&format!("dev/dri/{render}"), "")
    }

    /// A GPU of Intel's, right below a host bridge.
    pub(super) fn intel(&self, address: &str, driver: &str, minor: u32) -> &Self {
        self.pci(&format!("pci0000:00/{address}"), "0x8086", "0x030000");
        self.link(
            &format!("../../../../devices/pci0000:00/{address}"),
            &format!("sys/bus/pci/drivers/{driver}/{address}"),
        );
        self.file(&format!("sys/bus/pci/devices/{address}/drm/renderD{minor}/dev"), "226:128\n");
        self.file(&format!("dev/dri/renderD{minor}"), "")
    }

    pub(super) fn habana(&self, number: u32, address: &str, status: &str) -> &Self {
        let folder = format!("sys/class/accel/accel{number}/device");
        self.file(&format!("{folder}/device_type"), "GAUDI2\n").file(&format!("{folder}/status"), status);
        self.file(&format!("{folder}/pci_addr"), format!("{address}\n"));
        self.file(&format!("dev/accel/accel{number}"), "")
    }

    pub(super) fn nvidia(&self, address: &str, minor: u32, uuid: &str) -> &Self {
        let text = format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 58\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        );
        self.file(&format!("proc/driver/nvidia/gpus/{address}/information"), text);
        self.file(&format!("dev/nvidia{minor}"), "")
    }

    /// A device of a class below a PCI device.
    pub(super) fn class(&self, class: &str, name: &str, way: &str) -> &Self {
        self.link("../..", &format!("sys/devices/{way}/{class}/{name}/device"));
        self.link(&format!("../../devices/{way}/{class}/{name}"), &format!("sys/class/{class}/{name}"))
    }

    /// A CPU with its socket, its siblings and its caches: level, type and the CPUs that share it.
    pub(super) fn cpu(&self, cpu: u32, package: i32, siblings: &str, caches: &[(u32, &str, &str)]) -> &Self {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        self.file(&format!("{folder}/topology/physical_package_id"), format!("{package}\n"));
        self.file(&format!("{folder}/topology/thread_siblings_list"), siblings);
        for (index, (level, kind, shared)) in caches.iter().enumerate() {
            let cache = format!("{folder}/cache/index{index}");
            self.file(&format!("{cache}/level"), level.to_string()).file(&format!("{cache}/type"), kind);
            self.file(&format!("{cache}/shared_cpu_list"), shared);
        }
        self
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
