//! Machines with accelerators that are not there: fake vendor libraries, and a description that they read.

#![expect(clippy::disallowed_methods, reason = "a wait reads the clock")]

use std::fs::{self, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fake_machine::{Card, Fault, Lost, Mig, NvLink, Path as Way, Pci, Vendor};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::machine_tree::Slot;
use crate::place::{Scratch, library};
use crate::processes::readable_by;

/// Each fake library, the vendor of its cards, and the names under which programs open it.
const LIBRARIES: [(&str, Vendor, &[&str]); 5] = [
    ("fake_nvml", Vendor::Nvidia, &["libnvidia-ml.so.1"]),
    // Under its short name too, since some loaders try that first and a real one may be installed.
    ("fake_cuda", Vendor::Nvidia, &["libcuda.so.1", "libcuda.so"]),
    ("fake_hip", Vendor::Amd, &["libamdhip64.so"]),
    ("fake_level_zero", Vendor::Intel, &["libze_loader.so.1"]),
    ("fake_ascend", Vendor::Ascend, &["libascendcl.so"]),
];

const GIB: u64 = 1 << 30;

/// A machine for [`crate::Launch::on`].
#[derive(Debug, Clone)]
pub struct Machine {
    fake: fake_machine::Machine,
    missing: Vec<String>,
    computes: bool,
}

impl Machine {
    /// No card and no library.
    #[must_use]
    pub fn empty() -> Self {
        let fake =
            fake_machine::Machine { driver: "580.95.05".to_owned(), cuda: 13_000, ..Default::default() };
        Self { fake, missing: Vec::new(), computes: false }
    }

    /// So many H100s, all alike, the first half on NUMA node 0. No links but PCIe.
    #[must_use]
    pub fn gpus(count: u32) -> Self {
        let name = "NVIDIA H100 80GB HBM3";
        let cards = (0..count).map(|at| Card {
            numa: Some(at * 2 / count),
            capability: Some((9, 0)),
            ..nvidia(at, name, 80)
        });
        Self::empty().with_cards(cards)
    }

    /// An old small card in the first slot, the fastest in the second, one between them in the third: `nvidia-smi` counts
    /// 0, 1, 2 and CUDA's `FASTEST_FIRST` 1, 2, 0.
    #[must_use]
    pub fn mixed() -> Self {
        let of = |at, name, gib, capability, speed| Card {
            numa: Some(0),
            capability: Some(capability),
            speed,
            ..nvidia(at, name, gib)
        };
        Self::empty().with_cards([
            of(0, "NVIDIA GeForce GTX 1080 Ti", 11, (6, 1), 10),
            of(1, "NVIDIA GeForce RTX 4090", 24, (8, 9), 90),
            of(2, "NVIDIA GeForce RTX 3090", 24, (8, 6), 50),
        ])
    }

    /// Two cards with two `NVLink`s between them.
    #[must_use]
    pub fn linked_pair() -> Self {
        Self::gpus(2).linked(0, 1, 2)
    }

    /// Two cards on one host bridge.
    #[must_use]
    pub fn bridged_pair() -> Self {
        let mut machine = Self::gpus(2).with_path(0, 1, Way::Phb);
        machine.card(1).numa = Some(0);
        machine
    }

    /// Four cards, of which 0 and 2, and 1 and 3, are joined by four `NVLink`s.
    #[must_use]
    pub fn two_linked_pairs() -> Self {
        Self::gpus(4).linked(0, 2, 4).linked(1, 3, 4)
    }

    /// Eight cards on an `NVSwitch` with 18 links each.
    #[must_use]
    pub fn switched() -> Self {
        let mut machine = Self::gpus(8);
        for card in &mut machine.fake.cards {
            card.nvlinks = vec![NvLink { to: None, count: 18 }];
        }
        machine
    }

    /// Two cards in MIG mode with two MIG devices each.
    #[must_use]
    pub fn mig() -> Self {
        Self::mig_cards(2)
    }

    /// So many cards in MIG mode with two MIG devices each.
    #[must_use]
    pub fn mig_cards(count: u32) -> Self {
        let mut machine = Self::gpus(count);
        for (at, card) in machine.fake.cards.iter_mut().enumerate() {
            let uuid = |mig| format!("MIG-{at}{mig}00ffee-0000-5000-8000-0000000000{at}{mig}");
            card.mig = (0..2).map(|mig| Mig { uuid: uuid(mig), memory: 40 * GIB }).collect();
        }
        machine
    }

    /// So many cards of another vendor, for the library that a worker opens: the same that [`crate::MachineTree`] shows.
    ///
    /// # Panics
    /// Never: a place has a PCI address.
    #[must_use]
    pub fn of_vendor(vendor: Vendor, count: u32, tiles: u32) -> Self {
        let place = |at| Slot::of(at as usize, count as usize).address;
        let card = |at| Card {
            vendor,
            name: "card".to_owned(),
            uuid: format!("GPU-{:016x}", 0xabc0 + at),
            pci: place(at).parse().expect("a place has a PCI address"),
            tiles,
            ..Card::default()
        };
        Self::empty().with_cards((0..count).map(card))
    }

    /// The driver reports the cards in the opposite order, where it is not told to go by PCI.
    #[must_use]
    pub fn reported_backwards(mut self) -> Self {
        self.fake.cards.reverse();
        self
    }

    /// Another version of NVIDIA's driver.
    #[must_use]
    pub fn with_driver(mut self, version: &str) -> Self {
        version.clone_into(&mut self.fake.driver);
        self
    }

    /// More cards.
    #[must_use]
    pub fn with_cards(mut self, cards: impl IntoIterator<Item = Card>) -> Self {
        self.fake.cards.extend(cards);
        self
    }

    /// The cards of another machine too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.with_cards(other.fake.cards)
    }

    /// `NVLink`s between two cards.
    #[must_use]
    pub fn linked(mut self, one: usize, other: usize, count: u32) -> Self {
        self.card(one).nvlinks.push(NvLink { to: Some(other), count });
        self.card(other).nvlinks.push(NvLink { to: Some(one), count });
        self
    }

    /// The way over PCIe between two cards.
    #[must_use]
    pub fn with_path(mut self, one: usize, other: usize, way: Way) -> Self {
        self.fake.paths.push((one, other, way));
        self
    }

    /// A card that fell off the bus.
    #[must_use]
    pub fn lost(mut self, at: usize, lost: Lost) -> Self {
        self.card(at).lost = Some(lost);
        self
    }

    /// A card that slows itself down, since it has reached its threshold.
    #[must_use]
    pub fn hot(mut self, at: usize) -> Self {
        let card = self.card(at);
        (card.temperature, card.throttle) = (Some(91), Some(0x20 | 0x40));
        self
    }

    /// A card that this process computes on.
    #[must_use]
    pub fn busy(mut self, at: usize, pid: u32) -> Self {
        let card = self.card(at);
        card.processes.push((pid, 20 * GIB));
        (card.used, card.utilisation) = (card.used + 20 * GIB, Some(97));
        self
    }

    /// Something that goes wrong in a function of a library.
    #[must_use]
    pub fn with_fault(mut self, function: &str, fault: Fault) -> Self {
        self.fake.faults.push((function.to_owned(), fault));
        self
    }

    /// A library is not installed; by the name under which programs open it.
    #[must_use]
    pub fn without_library(mut self, soname: &str) -> Self {
        self.missing.push(soname.to_owned());
        self
    }

    /// NVIDIA's cards of this machine compute: `tests/fakes/gpu`, with NVRTC and NCCL, replaces the fake driver that only
    /// counts them.
    #[must_use]
    pub fn computing(mut self) -> Self {
        self.computes = true;
        self
    }

    /// What its libraries for computing are told, if there are any.
    pub(crate) fn orders(&self) -> Option<String> {
        let cards = self.fake.cards.iter().filter(|card| card.vendor == Vendor::Nvidia).count();
        self.computes.then(|| format!("devices={cards} late=1"))
    }

    /// A card to change.
    #[must_use]
    pub fn card(&mut self, at: usize) -> &mut Card {
        &mut self.fake.cards[at]
    }

    /// The UUID of a card.
    #[must_use]
    pub fn uuid(&self, at: usize) -> &str {
        &self.fake.cards[at].uuid
    }

    /// The UUID of a MIG device.
    #[must_use]
    pub fn mig_uuid(&self, at: usize, mig: usize) -> &str {
        &self.fake.cards[at].mig[mig].uuid
    }

    /// The PCI address of a card, as in sysfs.
    #[must_use]
    pub fn pci(&self, at: usize) -> String {
        self.fake.cards[at].pci.to_string()
    }

    /// Puts the libraries and the description into a scratch folder, and gives the folder for `LD_LIBRARY_PATH` and the
    /// description's path. May be called again when the machine has changed.
    ///
    /// # Panics
    /// When the libraries are not built, or the folder takes no link.
    #[must_use]
    pub fn install(&self, scratch: &Scratch) -> (String, String) {
        let folder = scratch.folder("vendor-libraries", 0o755);
        if self.computes {
            for name in fake_gpu::NAMES.iter().filter(|name| self.has_library(name)) {
                let link = Path::new(&folder).join(name);
                if !link.exists() {
                    symlink(library("fake_gpu"), link).expect("the scratch folder takes a link");
                }
            }
        }
        let has = |vendor| self.fake.cards.iter().any(|card| card.vendor == vendor);
        for (built, vendor, names) in LIBRARIES {
            let built = library(built);
            for name in names.iter().filter(|name| self.has_library(name)) {
                let link = Path::new(&folder).join(name);
                if has(vendor) && !link.exists() {
                    symlink(&built, link).expect("the scratch folder takes a link");
                }
            }
        }
        (folder, self.describe(&scratch.at("machine")))
    }

    fn has_library(&self, name: &str) -> bool {
        !self.missing.iter().any(|missing| missing == name)
    }

    /// Writes the description; programs that open a library from now on find it.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn describe(&self, path: &str) -> String {
        // Whole at once: a process may be reading.
        let fresh = format!("{path}.fresh");
        fs::write(&fresh, self.fake.to_string()).expect("the scratch folder is writable");
        fs::rename(&fresh, path).expect("the scratch folder is writable");
        path.to_owned()
    }
}

fn nvidia(at: u32, name: &str, gib: u64) -> Card {
    Card {
        name: name.to_owned(),
        uuid: format!("GPU-{at:x}c0ffee0-0000-4000-8000-00000000000{at:x}"),
        pci: Pci { bus: 0x10 * (at + 1), ..Pci::default() },
        memory: gib * GIB,
        used: GIB / 2,
        speed: 50,
        temperature: Some(41),
        slowdown: Some(90),
        power: Some(120_000),
        limit: Some(700_000),
        default_limit: Some(700_000),
        clock: Some(1_980),
        max_clock: Some(1_980),
        memory_clock: Some(2_619),
        utilisation: Some(0),
        throttle: Some(1),
        ecc: Some(0),
        ecc_corrected: Some(0),
        serial: Some(format!("165000000000{at}")),
        retired: Some(0),
        remapped: Some(0),
        ..Card::default()
    }
}

/// Waits until a program opens a vendor's library.
#[derive(Debug)]
pub struct Opening(OwnedFd);

impl Opening {
    /// A FIFO takes the place of the file to which the libraries write.
    pub(crate) fn new(description: &str) -> Self {
        let path = format!("{description}.opened");
        mkfifo(path.as_str(), Mode::from_bits_truncate(0o666)).expect("the scratch folder takes a FIFO");
        // Open for both directions, so that neither side's `open` blocks.
        Self(OpenOptions::new().read(true).write(true).open(path).expect("the FIFO opens").into())
    }

    /// Waits until a process opens a vendor's library.
    ///
    /// # Panics
    /// When no process does within a minute.
    #[track_caller]
    pub fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        assert!(readable_by(&self.0, until), "no process opened a vendor's library");
    }
}

/// Each opening of a library, in order: the library's name and the pid.
pub(crate) fn opened(description: &Path) -> Vec<(String, i32)> {
    let mut path = PathBuf::from(description).into_os_string();
    path.push(".opened");
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let (name, pid) = line.split_once(' ')?;
        Some((name.to_owned(), pid.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}
