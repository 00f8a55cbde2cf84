//! Resolves `--devices` among the devices that the inherited variables leave: a name, an index or an exclusion becomes
//! candidates, or an error that says what is there. Pure.

use super::kind::names;
use super::{ChoiceError, SelectedDevice, SelectionMethod, Selector, idle, label, line};
use crate::device::selector::SelectorEntry;
use crate::device::visibility::{Visible, VisibleDevices};
use crate::device::{DeviceType, Machine, Part};

/// A device on its way to being chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    pub(super) device: Visible,
    pub(super) how: SelectionMethod,
    /// Whether the user wrote a UUID for it, typed or in the inherited list.
    pub(super) by_uuid: bool,
}

impl Candidate {
    pub(super) fn selected(self, name: String) -> SelectedDevice {
        SelectedDevice { accelerator: self.device.accelerator, how: self.how, name }
    }
}

/// Where the devices are taken from.
pub(super) struct CandidatePool<'a> {
    pub(super) kind: DeviceType,
    pub(super) machine: &'a Machine,
    pub(super) visible: &'a VisibleDevices,
}

impl CandidatePool<'_> {
    pub(super) fn all_visible(&self) -> Vec<Candidate> {
        self.visible.devices.iter().map(|device| self.pick(device, self.selection_method(device))).collect()
    }

    pub(super) fn take(&self, selector: &Selector) -> Result<Vec<Candidate>, ChoiceError> {
        let mut reason = Vec::new();
        let picked = match selector {
            Selector::None => Vec::new(),
            Selector::All => self.all(&selector.to_string()),
            Selector::Idle => {
                let mut all = self.all(&selector.to_string());
                all.retain(|picked| match idle::busy_reason(&picked.device.accelerator) {
                    None => true,
                    Some(why) => {
                        reason.push(format!("{}: {why}", label(&picked.device.accelerator)));
                        false
                    }
                });
                all
            }
            Selector::List(entries) => self.list(entries)?,
        };
        if picked.is_empty() {
            let selector = selector.to_string();
            return Err(ChoiceError::NothingLeft { selector, kind: self.kind, because: reason });
        }
        Ok(picked)
    }

    fn list(&self, entries: &[SelectorEntry]) -> Result<Vec<Candidate>, ChoiceError> {
        let leading: Vec<String> = entries
            .iter()
            .take_while(|entry| matches!(entry, SelectorEntry::Except(_)))
            .map(ToString::to_string)
            .collect();
        let mut picked = if leading.is_empty() { Vec::new() } else { self.all(&leading.join(",")) };
        for entry in entries {
            let text = entry.to_string();
            if let SelectorEntry::Except(name) = entry {
                for device in self.excluded(name, &text)? {
                    let place = picked.iter().position(|picked| picked.device.position == device.position);
                    let place = place.ok_or_else(|| ChoiceError::ExcludesNothing {
                        entry: text.clone(),
                        device: label(&device.accelerator),
                    })?;
                    picked.remove(place);
                }
                continue;
            }
            for device in self.named(entry, &text)? {
                if picked.iter().any(|picked| picked.device.position == device.position) {
                    let device = label(&device.accelerator);
                    return Err(ChoiceError::Repeated { entry: text, device });
                }
                let mut one = self.typed_candidate(device, &text);
                one.by_uuid |= matches!(entry, SelectorEntry::Uuid(_));
                picked.push(one);
            }
        }
        Ok(picked)
    }

    fn all(&self, text: &str) -> Vec<Candidate> {
        self.visible.devices.iter().map(|device| self.typed_candidate(device, text)).collect()
    }

    fn typed_candidate(&self, device: &Visible, entry: &str) -> Candidate {
        self.pick(device, SelectionMethod::Typed { entry: entry.to_owned(), within: self.list_variable() })
    }

    fn pick(&self, device: &Visible, how: SelectionMethod) -> Candidate {
        let by_uuid = device.entry.as_ref().is_some_and(|entry| entry.is_uuid);
        Candidate { device: device.clone(), how, by_uuid }
    }

    fn selection_method(&self, device: &Visible) -> SelectionMethod {
        match &self.visible.variable {
            None => SelectionMethod::Default,
            Some((variable, _)) => {
                let entry = device.entry.as_ref().map(|entry| entry.text.clone());
                SelectionMethod::Inherited { variable, entry }
            }
        }
    }

    /// The inherited list; what only orders the devices is none.
    fn list_variable(&self) -> Option<&'static str> {
        self.visible.list().map(|(variable, _)| *variable)
    }

    /// The devices of an exclusion: for a card in MIG mode all of its instances.
    fn excluded(&self, name: &SelectorEntry, text: &str) -> Result<Vec<&Visible>, ChoiceError> {
        match (self.named(name, text), self.card_in_mig_mode(name)) {
            (Err(ChoiceError::InMigMode { .. }), Some((_, instances))) if !instances.is_empty() => {
                Ok(instances)
            }
            (found, _) => found,
        }
    }

    /// The devices that a name stands for; several for a range and for a card with several tiles.
    fn named(&self, name: &SelectorEntry, text: &str) -> Result<Vec<&Visible>, ChoiceError> {
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
                let fits: Vec<&Visible> =
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

    fn indexed(&self, index: u32, text: &str) -> Result<&Visible, ChoiceError> {
        let found = self.visible.devices.iter().find(|device| device.index == Some(index));
        found.ok_or_else(|| match self.card_in_mig_mode(&SelectorEntry::Index(index)) {
            Some((card, instances)) => in_mig_mode(text, card, &instances),
            None => ChoiceError::NoSuchIndex {
                entry: text.to_owned(),
                index,
                kind: self.kind,
                within: self.list_variable(),
                available: self.visible_names(),
            },
        })
    }

    /// The reason why a device named by UUID or address is not available.
    fn not_visible(&self, name: &SelectorEntry, text: &str) -> ChoiceError {
        if let Some((card, instances)) = self.card_in_mig_mode(name) {
            return in_mig_mode(text, card, &instances);
        }
        let entry = text.to_owned();
        let is = |at: &usize| {
            let device = &self.machine.accelerators[*at];
            device.kind == self.kind && names(name, device)
        };
        let hidden = (0..self.machine.accelerators.len()).find(is);
        match (hidden, &self.visible.variable) {
            (Some(at), Some((variable, value))) => ChoiceError::Hidden {
                entry,
                device: label(&self.machine.accelerators[at]),
                variable,
                value: value.clone(),
                available: self.visible_names(),
            },
            _ => ChoiceError::NoSuchDevice { entry, kind: self.kind, available: self.visible_names() },
        }
    }

    /// The card in MIG mode that a name stands for, with its visible instances. An index within an inherited list
    /// does not stand for a card.
    fn card_in_mig_mode(&self, name: &SelectorEntry) -> Option<(String, Vec<&Visible>)> {
        let is = |card: &&crate::device::Accelerator| {
            let named = match name {
                SelectorEntry::Index(index) => self.list_variable().is_none() && card.index == *index,
                name => names(name, card),
            };
            card.kind == self.kind && card.part == Part::MigParent && named
        };
        let card = self.machine.accelerators.iter().find(is)?;
        let of_card = |device: &&Visible| device.accelerator.part == Part::MigInstance { gpu: card.index };
        Some((label(card), self.visible.devices.iter().filter(of_card).collect()))
    }

    fn visible_names(&self) -> Vec<String> {
        self.visible.devices.iter().map(|device| line(&device.accelerator, device.index)).collect()
    }
}

fn in_mig_mode(entry: &str, device: String, instances: &[&Visible]) -> ChoiceError {
    let instances = instances.iter().map(|device| line(&device.accelerator, device.index)).collect();
    ChoiceError::InMigMode { entry: entry.to_owned(), device, instances }
}
