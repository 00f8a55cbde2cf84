//! Resolves `--devices` among the devices that the inherited variables leave: a name, an index or an exclusion becomes
//! candidates, or an error that says what is there. Pure.

use super::kind::names;
use super::{ChoiceError, ChosenDevice, DeviceChoice, SelectionMethod, Selector, idle, label, line};
use crate::device::selector::SelectorEntry;
use crate::device::{Machine, Part};

impl DeviceChoice {
    /// The visible devices that `--devices` selects, in its order.
    pub(super) fn take(
        &self,
        selector: &Selector,
        machine: &Machine,
    ) -> Result<Vec<ChosenDevice>, ChoiceError> {
        let mut reason = Vec::new();
        let picked = match selector {
            Selector::None => Vec::new(),
            Selector::All => self.all(&selector.to_string()),
            Selector::Idle => {
                let mut all = self.all(&selector.to_string());
                all.retain(|device| match idle::busy_reason(&device.accelerator) {
                    None => true,
                    Some(why) => {
                        reason.push(format!("{}: {why}", label(&device.accelerator)));
                        false
                    }
                });
                all
            }
            Selector::List(entries) => SelectorResolver { visible: self, machine }.list(entries)?,
        };
        if picked.is_empty() {
            return Err(ChoiceError::NothingLeft { kind: self.kind, because: reason });
        }
        Ok(picked)
    }

    fn all(&self, text: &str) -> Vec<ChosenDevice> {
        self.devices.iter().map(|device| self.typed(device, text)).collect()
    }

    fn typed(&self, device: &ChosenDevice, entry: &str) -> ChosenDevice {
        let how = SelectionMethod::Typed { entry: entry.to_owned(), within: self.list_variable() };
        ChosenDevice { how, ..device.clone() }
    }

    /// The inherited list; what only orders the devices is none.
    fn list_variable(&self) -> Option<&'static str> {
        self.list().map(|(variable, _)| *variable)
    }

    fn lines(&self) -> Vec<String> {
        self.devices.iter().map(|device| line(&device.accelerator, device.index)).collect()
    }
}

/// The entries of a list, resolved among the visible devices.
struct SelectorResolver<'a> {
    visible: &'a DeviceChoice,
    machine: &'a Machine,
}

impl SelectorResolver<'_> {
    fn list(&self, entries: &[SelectorEntry]) -> Result<Vec<ChosenDevice>, ChoiceError> {
        let leading: Vec<String> = entries
            .iter()
            .take_while(|entry| matches!(entry, SelectorEntry::Except(_)))
            .map(ToString::to_string)
            .collect();
        let mut picked = if leading.is_empty() { Vec::new() } else { self.visible.all(&leading.join(",")) };
        for entry in entries {
            let text = entry.to_string();
            if let SelectorEntry::Except(name) = entry {
                for device in self.excluded(name, &text)? {
                    let place = picked.iter().position(|picked| picked.position == device.position);
                    let place = place.ok_or_else(|| ChoiceError::ExcludesNothing {
                        entry: text.clone(),
                        device: label(&device.accelerator),
                    })?;
                    picked.remove(place);
                }
                continue;
            }
            for device in self.named(entry, &text)? {
                if picked.iter().any(|picked| picked.position == device.position) {
                    let device = label(&device.accelerator);
                    return Err(ChoiceError::Repeated { entry: text, device });
                }
                let mut one = self.visible.typed(device, &text);
                one.by_uuid |= matches!(entry, SelectorEntry::Uuid(_));
                picked.push(one);
            }
        }
        Ok(picked)
    }

    /// The devices of an exclusion: for a card in MIG mode all of its instances.
    fn excluded(&self, name: &SelectorEntry, text: &str) -> Result<Vec<&ChosenDevice>, ChoiceError> {
        match (self.named(name, text), self.card_in_mig_mode(name)) {
            (Err(ChoiceError::InMigMode { .. }), Some((_, instances))) if !instances.is_empty() => {
                Ok(instances)
            }
            (found, _) => found,
        }
    }

    /// The devices that a name stands for; several for a range and for a card with several tiles.
    fn named(&self, name: &SelectorEntry, text: &str) -> Result<Vec<&ChosenDevice>, ChoiceError> {
        let devices = &self.visible.devices;
        match name {
            SelectorEntry::Index(index) => Ok(vec![self.indexed(*index, text)?]),
            SelectorEntry::Range(first, last) if first <= last => {
                (*first..=*last).map(|index| self.indexed(index, text)).collect()
            }
            SelectorEntry::Range(first, last) => {
                (*last..=*first).rev().map(|index| self.indexed(index, text)).collect()
            }
            SelectorEntry::Except(name) => self.named(name, text),
            SelectorEntry::Uuid(_) | SelectorEntry::Mig(..) | SelectorEntry::Pci(_) => {
                let fits: Vec<&ChosenDevice> =
                    devices.iter().filter(|device| names(name, &device.accelerator)).collect();
                match (fits.as_slice(), name) {
                    ([], _) => Err(self.not_visible(name, text)),
                    ([_, _, ..], SelectorEntry::Uuid(_)) => Err(ChoiceError::Ambiguous {
                        entry: text.to_owned(),
                        fits: fits.iter().map(|device| line(&device.accelerator, device.index)).collect(),
                    }),
                    _ => Ok(fits),
                }
            }
        }
    }

    fn indexed(&self, index: u32, text: &str) -> Result<&ChosenDevice, ChoiceError> {
        let found = self.visible.devices.iter().find(|device| device.index == Some(index));
        found.ok_or_else(|| match self.card_in_mig_mode(&SelectorEntry::Index(index)) {
            Some((card, instances)) => in_mig_mode(text, card, &instances),
            None => ChoiceError::NoSuchIndex {
                index,
                kind: self.visible.kind,
                within: self.visible.list_variable(),
                available: self.visible.lines(),
            },
        })
    }

    /// The reason why a device named by UUID or address is not available.
    fn not_visible(&self, name: &SelectorEntry, text: &str) -> ChoiceError {
        if let Some((card, instances)) = self.card_in_mig_mode(name) {
            return in_mig_mode(text, card, &instances);
        }
        let is = |at: &usize| {
            let device = &self.machine.accelerators[*at];
            device.kind == self.visible.kind && names(name, device)
        };
        let hidden = (0..self.machine.accelerators.len()).find(is);
        match (hidden, &self.visible.variable) {
            (Some(at), Some((variable, value))) => ChoiceError::Hidden {
                device: label(&self.machine.accelerators[at]),
                variable,
                value: value.clone(),
                available: self.visible.lines(),
            },
            _ => ChoiceError::NoSuchDevice {
                entry: text.to_owned(),
                kind: self.visible.kind,
                available: self.visible.lines(),
            },
        }
    }

    /// The card in MIG mode that a name stands for, with its visible instances. An index within an inherited list
    /// does not stand for a card.
    fn card_in_mig_mode(&self, name: &SelectorEntry) -> Option<(String, Vec<&ChosenDevice>)> {
        let is = |card: &&crate::device::Accelerator| {
            let named = match name {
                SelectorEntry::Index(index) => self.visible.list_variable().is_none() && card.index == *index,
                name => names(name, card),
            };
            card.kind == self.visible.kind && card.part == Part::MigParent && named
        };
        let card = self.machine.accelerators.iter().find(is)?;
        let of_card =
            |device: &&ChosenDevice| device.accelerator.part == Part::MigInstance { gpu: card.index };
        Some((label(card), self.visible.devices.iter().filter(of_card).collect()))
    }
}

fn in_mig_mode(entry: &str, device: String, instances: &[&ChosenDevice]) -> ChoiceError {
    let instances = instances.iter().map(|device| line(&device.accelerator, device.index)).collect();
    ChoiceError::InMigMode { entry: entry.to_owned(), device, instances }
}
