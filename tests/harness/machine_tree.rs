//! Machines that are not there: the folders that a kernel would show, for the fixture `on-machine`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::place::{Scratch, fixture};

/// The `/sys`, `/dev` and `/proc/driver` of another machine. What is not added is not there: without [`Self::sockets`]
/// no CPUs, so that the launcher sees no NUMA nodes.
///
/// The accelerators of one call share two sockets (below four: one); every two of them share a PCIe switch, every
/// switch has a root port of its own, and every socket one host bridge. So the second is `PIX` away from the first, the
/// third `PHB`, and the last of eight `SYS`.
#[derive(Debug, Default)]
pub struct MachineTree {
    scratch: Scratch,
}

/// A place for a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its PCI address, such as `0000:12:00.0`.
    pub address: String,
    /// From the host bridge to the card, as the kernel names the folders: `pci0000:00/0000:00:01.0/…/0000:12:00.0`.
    pub way: String,
    /// Its NUMA node.
    pub node: u32,
}

impl Slot {
    /// The place of card `index` of `count`.
    #[must_use]
    pub fn of(index: usize, count: usize) -> Self {
        let in_socket = if count < 4 { count.max(1) } else { count.div_ceil(2) };
        let (node, at) = (index / in_socket, index % in_socket);
        let (host, switch, port) = (node * 0x80, at / 2, at % 2);
        let bus = host + 0x10 * (switch + 1);
        let address = format!("0000:{:02x}:00.0", bus + 2 + port);
        let root_port = format!("0000:{host:02x}:{:02x}.0", switch + 1);
        let inner = format!("0000:{bus:02x}:00.0/0000:{:02x}:{port:02x}.0", bus + 1);
        let way = format!("pci0000:{host:02x}/{root_port}/{inner}/{address}");
        Self { address, way, node: u32::try_from(node).expect("few sockets") }
    }

    /// A place at the end of this way: folders as the kernel names them, the card's own address last.
    ///
    /// # Panics
    /// When the way is empty.
    #[must_use]
    pub fn at(way: &str, node: u32) -> Self {
        let address = way.rsplit('/').next().expect("a way ends at a card").to_owned();
        Self { address, way: way.to_owned(), node }
    }
}

impl MachineTree {
    /// A machine without anything: `/dev` has only what every program needs.
    #[must_use]
    pub fn new() -> Self {
        let tree = Self::default();
        for folder in ["sys/fs/cgroup", "sys/bus/pci/devices", "dev/pts", "dev/shm", "proc/driver"] {
            tree.folder(folder);
        }
        // `on-machine` lays the real ones over them; a foreign user cannot make them there.
        let nodes = ["null", "zero", "full", "random", "urandom", "tty"];
        nodes.iter().fold(tree, |tree, node| tree.file(&format!("dev/{node}"), ""))
    }

    /// The folder that has the machine's `sys`, `dev` and `proc`.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// For [`crate::Launch::under`]: the launcher sees this machine. Namespaces must be permitted
    /// ([`crate::can_use_namespaces`]). The tree must live as long as the launch.
    #[must_use]
    pub fn stage(&self) -> [OsString; 2] {
        [fixture("on-machine").into_os_string(), self.path().as_os_str().to_owned()]
    }

    /// A file at this path from the machine's root, in place of what was there.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        self.put(path, text);
        self
    }

    /// Takes a file away.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn without(self, path: &str) -> Self {
        fs::remove_file(self.path().join(path)).expect("the machine has this file");
        self
    }

    /// AMD cards with one xGMI hive for all of them: name `AMD Instinct MI300X`, 192 GiB, an own `unique_id` each:
    /// `0xabc0` and the index.
    #[must_use]
    pub fn amd(self, count: usize) -> Self {
        let nodes = "sys/class/kfd/kfd/topology/nodes";
        self.put("dev/kfd", "");
        for cpu in 0..2 {
            self.put(&format!("{nodes}/{cpu}/gpu_id"), "0\n");
            self.put(&format!("{nodes}/{cpu}/properties"), "cpu_cores_count 64\nsimd_count 0\n");
        }
        for index in 0..count {
            let (slot, minor) = (Slot::of(index, count), 128 + index);
            let folder = self.pci(&slot, "0x1002", "0x120000", Some("amdgpu"));
            self.put(&format!("{folder}/product_name"), "AMD Instinct MI300X\n");
            self.put(&format!("{folder}/mem_info_vram_total"), "206158430208\n");
            self.put(&format!("{folder}/mem_info_vram_used"), format!("{}\n", (index + 1) << 30));
            self.put(&format!("dev/dri/renderD{minor}"), "");
            let node = format!("{nodes}/{}", index + 2);
            self.put(&format!("{node}/gpu_id"), format!("{}\n", 41_000 + index));
            let (bus, unique) = (&slot.address[5..7], 0xabc0 + index);
            let location = u32::from_str_radix(bus, 16).expect("a bus is hexadecimal") << 8;
            let properties = format!(
                "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nlocation_id {location}\ndomain 0\n\
                 drm_render_minor {minor}\nhive_id 7001\nunique_id {unique}\n"
            );
            self.put(&format!("{node}/properties"), properties);
            self.put(&format!("{node}/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 206158430208\n");
        }
        self
    }

    /// Intel Data Center GPU Max cards under `xe`, with so many tiles of 64 GiB each.
    #[must_use]
    pub fn intel(self, cards: usize, tiles: usize) -> Self {
        for card in 0..cards {
            let slot = Slot::of(card, cards);
            let folder = self.pci(&slot, "0x8086", "0x038000", Some("xe"));
            self.put(&format!("{folder}/device"), "0x0bd6\n");
            for tile in 0..tiles {
                let tile = format!("{folder}/tile{tile}");
                self.folder(&format!("{tile}/gt0"));
                self.put(&format!("{tile}/physical_vram_size_bytes"), "68719476736\n");
            }
            let minor = 128 + card;
            self.folder(&format!("{folder}/drm/renderD{minor}"));
            self.put(&format!("dev/dri/renderD{minor}"), "");
        }
        self
    }

    /// Habana Gaudi 2 cards; the module id of card `index` is `count - 1 - index`.
    #[must_use]
    pub fn habana(self, count: usize) -> Self {
        for index in 0..count {
            let slot = Slot::of(index, count);
            let folder = self.pci(&slot, "0x1da3", "0x120000", Some("habanalabs"));
            self.put(&format!("{folder}/device_type"), "GAUDI2\n");
            self.put(&format!("{folder}/pci_addr"), format!("{}\n", slot.address));
            self.put(&format!("{folder}/status"), "Operational\n");
            self.put(&format!("{folder}/module_id"), format!("{}\n", count - 1 - index));
            self.class("accel", &format!("accel{index}"), &folder);
            self.put(&format!("dev/accel/accel{index}"), "");
        }
        self
    }

    /// Huawei Ascend 910B cards.
    #[must_use]
    pub fn ascend(self, count: usize) -> Self {
        self.put("dev/davinci_manager", "");
        for index in 0..count {
            let folder =
                self.pci(&Slot::of(index, count), "0x19e5", "0x120000", Some("devdrv_device_driver"));
            self.put(&format!("{folder}/device"), "0xd802\n");
            self.put(&format!("dev/davinci{index}"), "");
        }
        self
    }

    /// NVIDIA cards as the kernel's driver shows them, each with its UUID, at [`Slot::of`].
    #[must_use]
    pub fn nvidia(self, model: &str, uuids: &[&str]) -> Self {
        let count = uuids.len();
        let cards = uuids.iter().enumerate();
        cards.fold(self, |tree, (index, uuid)| tree.nvidia_at(&Slot::of(index, count), index, model, uuid))
    }

    /// One NVIDIA card with this device minor.
    #[must_use]
    pub fn nvidia_at(self, slot: &Slot, minor: usize, model: &str, uuid: &str) -> Self {
        self.pci(slot, "0x10de", "0x030200", Some("nvidia"));
        let information = format!(
            "Model: \t\t {model}\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {}\nDevice Minor: \t {minor}\n\
             GPU Excluded:\t No\n",
            slot.address
        );
        self.put(&format!("proc/driver/nvidia/gpus/{}/information", slot.address), information);
        self.put(&format!("dev/nvidia{minor}"), "");
        self.file("dev/nvidiactl", "")
    }

    /// A network card with an RDMA device of this name.
    #[must_use]
    pub fn rdma(self, name: &str, slot: &Slot) -> Self {
        let folder = self.pci(slot, "0x15b3", "0x020700", Some("mlx5_core"));
        self.class("infiniband", name, &folder);
        self
    }

    /// A network card with an interface of this name.
    #[must_use]
    pub fn interface(self, name: &str, slot: &Slot) -> Self {
        let folder = self.pci(slot, "0x8086", "0x020000", Some("ice"));
        self.class("net", name, &folder);
        self
    }

    /// The CPUs: a NUMA node for each socket, two threads for each core, one cache for each socket. The second threads
    /// have the higher numbers, as on most machines.
    #[must_use]
    pub fn sockets(self, sockets: u32, cores_each: u32) -> Self {
        let cores = sockets * cores_each;
        for socket in 0..sockets {
            let first = socket * cores_each;
            let last = first + cores_each - 1;
            let own = format!("{first}-{last},{}-{}", first + cores, last + cores);
            self.put(&format!("sys/devices/system/node/node{socket}/cpulist"), format!("{own}\n"));
            for core in first..=last {
                for cpu in [core, core + cores] {
                    let folder = format!("sys/devices/system/cpu/cpu{cpu}");
                    let threads = format!("{core},{}\n", core + cores);
                    self.put(&format!("{folder}/topology/physical_package_id"), format!("{socket}\n"));
                    self.put(&format!("{folder}/topology/thread_siblings_list"), &threads);
                    self.cache(&format!("{folder}/cache/index0"), 1, &threads);
                    self.cache(&format!("{folder}/cache/index1"), 3, &own);
                }
            }
        }
        self.file("sys/devices/system/cpu/online", format!("0-{}\n", 2 * cores - 1))
    }

    fn cache(&self, folder: &str, level: u32, shared: &str) {
        self.put(&format!("{folder}/level"), format!("{level}\n"));
        self.put(&format!("{folder}/type"), if level == 1 { "Data\n" } else { "Unified\n" });
        self.put(&format!("{folder}/shared_cpu_list"), shared);
    }

    /// A PCI device; its folder.
    fn pci(&self, slot: &Slot, vendor: &str, class: &str, driver: Option<&str>) -> String {
        let folder = format!("sys/devices/{}", slot.way);
        self.put(&format!("{folder}/vendor"), format!("{vendor}\n"));
        self.put(&format!("{folder}/class"), format!("{class}\n"));
        self.put(&format!("{folder}/numa_node"), format!("{}\n", slot.node));
        self.link(
            &format!("../../../devices/{}", slot.way),
            &format!("sys/bus/pci/devices/{}", slot.address),
        );
        if let Some(driver) = driver {
            let drivers = format!("sys/bus/pci/drivers/{driver}");
            self.folder(&drivers);
            self.link(&format!("../../../../devices/{}", slot.way), &format!("{drivers}/{}", slot.address));
        }
        folder
    }

    /// A device of a class, below its PCI device, and found by its class.
    fn class(&self, class: &str, name: &str, folder: &str) {
        let own = format!("{folder}/{class}/{name}");
        self.folder(&own);
        self.link("../..", &format!("{own}/device"));
        self.folder(&format!("sys/class/{class}"));
        let below = own.strip_prefix("sys/").expect("a device's folder is in sysfs");
        self.link(&format!("../../{below}"), &format!("sys/class/{class}/{name}"));
    }

    fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a file is in a folder"))
            .expect("the scratch folder is writable");
        fs::write(path, text).expect("the scratch folder is writable");
    }

    fn folder(&self, path: &str) {
        fs::create_dir_all(self.path().join(path)).expect("the scratch folder is writable");
    }

    fn link(&self, target: &str, path: &str) {
        symlink(target, self.path().join(path)).expect("the scratch folder takes a link");
    }
}
