//! Seats for the workers of a job some of whose devices have died: the same words, read again on the machine as it is
//! now. So whoever asked for devices in an order, or for a number of workers, gets what they asked for or is told why not.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use rankrun_contract::rank::LocalWorldSize;

use crate::agent::checkup;
use crate::cli::{self, Command, Notice};
use crate::device::choice::number;
use crate::device::{Ask, CudaDevice, Machine, Visibility};
use crate::facts::{Facts, FileKind, Permission, StandardStream, System, World};
use crate::spec::{LaunchSpec, Seat};

/// The CUDA driver's order of its devices, or why there is none.
pub(super) type CudaOrder = Result<Vec<CudaDevice>, String>;

/// What the launcher was started with.
#[derive(Debug, Clone, Default)]
pub struct Words {
    /// Its command line, the name first.
    pub argv: Vec<OsString>,
    /// Its environment, whole: also what no worker sees.
    pub environment: Vec<(OsString, OsString)>,
}

/// Who sits where from the next generation on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seating {
    /// How many there are.
    pub workers: LocalWorldSize,
    /// One for each of them.
    pub seats: Vec<Seat>,
    /// What they see.
    pub visibility: Visibility,
    /// Fewer workers have more of the CPUs each.
    pub omp_threads: Option<u32>,
    /// What is said of it, one line each.
    pub lines: Vec<String>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reseated {
    /// It can be done.
    Seated(Box<Seating>),
    /// It cannot, in words.
    Refused(String),
    /// Only the CUDA driver knows: ask it, and come again.
    NeedsOrder,
}

/// Reads the words again. `before` is who sat where: where the devices have other numbers now, a word may mean another
/// device, and nothing is done.
pub(super) fn seats(words: &Words, before: &[Seat], machine: Machine, order: Option<CudaOrder>) -> Reseated {
    if !has_same_numbers(before, &machine) {
        return Reseated::Refused("the devices that are left have other numbers now".to_owned());
    }
    let needs_order = Rc::new(Cell::new(false));
    let seen = Seen { machine, order, needs_order: Rc::clone(&needs_order) };
    let read = read(&words.argv, &Facts::new(words.environment.clone(), Box::new(seen)));
    match read {
        _ if needs_order.get() => Reseated::NeedsOrder,
        Ok(seating) => Reseated::Seated(Box::new(seating)),
        Err(why) => Reseated::Refused(why),
    }
}

fn read(argv: &[OsString], facts: &Facts) -> Result<Seating, String> {
    match cli::interpret(argv, facts) {
        Ok(Command::Launch(launch)) => {
            let is_seat = |notice: &&Notice| matches!(notice, Notice::Seat { .. } | Notice::OnCpus { .. });
            let lines = launch.notices.iter().filter(is_seat).map(ToString::to_string).collect();
            let LaunchSpec { workers, seats, visibility, defaults, .. } = launch.spec;
            Ok(Seating { workers, seats, visibility, omp_threads: defaults.omp_threads, lines })
        }
        Ok(_) => Err("the command line means something else now".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn has_same_numbers(before: &[Seat], machine: &Machine) -> bool {
    before.iter().all(|seat| {
        let Some(card) = &seat.device.card else { return true };
        checkup::find(machine, &seat.device, card).is_none_or(|found| number(found) == card.index)
    })
}

/// This machine, with its devices as a look has just found them: nobody looks twice.
struct Seen {
    machine: Machine,
    order: Option<CudaOrder>,
    needs_order: Rc<Cell<bool>>,
}

impl World for Seen {
    fn discover(&self, _: Ask, _: Duration) -> Machine {
        self.machine.clone()
    }

    fn cuda_order(&self, _: Duration) -> CudaOrder {
        self.order.clone().unwrap_or_else(|| {
            self.needs_order.set(true);
            Err("it was not asked".to_owned())
        })
    }

    fn working_folder(&self) -> Option<PathBuf> {
        System::SILENT.working_folder()
    }

    fn affinity_cpus(&self) -> usize {
        System::SILENT.affinity_cpus()
    }

    fn kind(&self, path: &Path) -> FileKind {
        System::SILENT.kind(path)
    }

    fn may(&self, permission: Permission, path: &Path) -> bool {
        System::SILENT.may(permission, path)
    }

    fn names_in(&self, folder: &Path, most: usize) -> Vec<String> {
        System::SILENT.names_in(folder, most)
    }

    fn first_bytes(&self, path: &Path, most: usize) -> Vec<u8> {
        System::SILENT.first_bytes(path, most)
    }

    fn whole_file(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        System::SILENT.whole_file(path, most)
    }

    fn resolve_links(&self, path: &Path) -> PathBuf {
        System::SILENT.resolve_links(path)
    }

    fn is_terminal(&self, stream: StandardStream) -> bool {
        System::SILENT.is_terminal(stream)
    }

    fn user_id(&self) -> u32 {
        System::SILENT.user_id()
    }

    fn process_id(&self) -> u32 {
        System::SILENT.process_id()
    }

    fn descends_from(&self, process: u32) -> bool {
        System::SILENT.descends_from(process)
    }

    fn fresh_uuid(&self) -> uuid::Uuid {
        System::SILENT.fresh_uuid()
    }

    fn affinity(&self) -> Vec<u32> {
        System::SILENT.affinity()
    }
}

#[cfg(test)]
#[path = "reseat_tests.rs"]
mod tests;
