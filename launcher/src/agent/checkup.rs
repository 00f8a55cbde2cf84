//! What the devices of the workers look like after a failure. Pure.

use rankrun_contract::rank::LocalRank;

use crate::agent::message::Happening;
use crate::device::health::{Severity, findings};
use crate::device::{Accelerator, Machine, Trouble, TroubleKind};
use crate::placement::{Card, Device};
use crate::spec::Seat;

/// What a device is dead of that nobody lists any more.
const GONE: &str = "fell off the bus: it is not listed any more";

/// What a look at the workers' devices gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkup {
    /// By local rank of the first worker on each.
    pub dead: Vec<DeadDevice>,
    /// What is wrong with the others.
    pub warnings: Vec<DeviceWarning>,
    /// Whom nobody could ask, in words.
    pub unchecked: Vec<String>,
}

/// A device on which no worker can work any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadDevice {
    /// Who sat on it.
    pub local_ranks: Vec<LocalRank>,
    /// Which one, in words: `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
    pub device: String,
    /// What is wrong with it, in words.
    pub why: String,
}

/// A device that works, with a blemish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceWarning {
    /// Which one, in words.
    pub device: String,
    /// What is wrong with it, in words.
    pub what: String,
}

impl Checkup {
    /// What people are told of it, one line each.
    pub(super) fn told(&self) -> impl Iterator<Item = Happening> + use<> {
        let unchecked = self.unchecked.clone().into_iter().map(|why| Happening::DevicesUnchecked { why });
        let warnings = self.warnings.clone().into_iter().map(Happening::DeviceWarning);
        unchecked.chain(warnings).chain(self.dead.clone().into_iter().map(Happening::DeviceDead))
    }
}

/// The state of the devices that the workers sat on; of the processors there is nothing to say.
///
/// A device that is not found is dead only where everybody answered who could know of it.
#[must_use]
pub fn judge(machine: &Machine, seats: &[Seat], own_uid: u32) -> Checkup {
    let mut checkup = Checkup::default();
    // What stands in for a source knows less: that the devices are there, not how they are.
    let all = machine.troubles.iter().chain(&machine.made_good);
    let troubles: Vec<&Trouble> = all.filter(|trouble| is_ours(trouble, seats)).collect();
    for (device, card, local_ranks) in devices(seats) {
        let name = card.to_string();
        let mut dead = |why| {
            let (local_ranks, device) = (local_ranks.clone(), name.clone());
            checkup.dead.push(DeadDevice { local_ranks, device, why });
        };
        let Some(accelerator) = find(machine, device, card) else {
            if !troubles.iter().any(|trouble| trouble.kind == device.kind) {
                dead(GONE.to_owned());
            }
            continue;
        };
        let found = findings(accelerator, own_uid);
        match found.iter().find(|finding| finding.severity == Severity::Fatal) {
            Some(fatal) => dead(fatal.text.clone()),
            None => checkup.warnings.extend(
                found
                    .into_iter()
                    .filter(|finding| finding.severity == Severity::Warning)
                    .map(|finding| DeviceWarning { device: name.clone(), what: finding.text }),
            ),
        }
    }
    for trouble in troubles {
        let text = trouble.to_string();
        if !checkup.unchecked.contains(&text) {
            checkup.unchecked.push(text);
        }
    }
    checkup
}

/// Whether it keeps something about our devices from us. A library that is not there never knew of them.
fn is_ours(trouble: &Trouble, seats: &[Seat]) -> bool {
    let is_missing = matches!(trouble.what, TroubleKind::Missing(_));
    !is_missing && seats.iter().any(|seat| seat.device.card.is_some() && seat.device.kind == trouble.kind)
}

/// Each device once, with all who sat on it.
fn devices(seats: &[Seat]) -> Vec<(&Device, &Card, Vec<LocalRank>)> {
    let mut devices: Vec<(&Device, &Card, Vec<LocalRank>)> = Vec::new();
    for (local_rank, seat) in (0..).map(LocalRank).zip(seats) {
        let Some(card) = &seat.device.card else { continue };
        let same = |(device, other, _): &&mut (&Device, &Card, _)| {
            device.kind == seat.device.kind
                && (&other.index, &other.uuid, other.pci) == (&card.index, &card.uuid, card.pci)
        };
        match devices.iter_mut().find(same) {
            Some((_, _, local_ranks)) => local_ranks.push(local_rank),
            None => devices.push((&seat.device, card, vec![local_rank])),
        }
    }
    devices
}

/// By UUID, else by where it is plugged in, as far as both are known. A card that does not even say who it is, is
/// known by its number.
pub(super) fn find<'a>(machine: &'a Machine, device: &Device, card: &Card) -> Option<&'a Accelerator> {
    let all = || machine.accelerators.iter().filter(|found| found.kind == device.kind);
    let by_uuid = || all().find(|found| card.uuid.is_some() && found.uuid == card.uuid);
    let without_uuid = |found: &&Accelerator| found.uuid.is_none() || card.uuid.is_none();
    let by_pci = || all().filter(without_uuid).find(|found| card.pci.is_some() && found.pci == card.pci);
    let is_nameless = |found: &&Accelerator| found.uuid.is_none() && found.pci.is_none();
    let by_index = || all().filter(is_nameless).find(|found| found.index.to_string() == card.index);
    by_uuid().or_else(by_pci).or_else(by_index)
}

#[cfg(test)]
#[path = "checkup_tests.rs"]
mod tests;
