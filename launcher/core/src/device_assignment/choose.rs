//! Chooses the devices, and words the warnings about them.

use std::cell::OnceCell;

use super::{Assigner, requested_kinds};
use crate::device::choice::{ChoiceError, ChoiceInput, ChoiceRequest, ChoiceWarning, label, select, visible};
use crate::device::health::{Severity, findings};
use crate::device::{DeviceChoice, DeviceType, Machine, Visibility};
use crate::device_assignment::DeviceError;
use crate::notice::Notice;
use crate::plain::plain;
use crate::spec::device_request::WorkerCount;
use crate::spec::setting::{Origin, Setting};
use crate::spec::{CliFlavor, Unhealthy};

impl Assigner<'_> {
    pub(super) fn choose(&mut self, machine: &Machine) -> Result<DeviceChoice, DeviceError> {
        let options = self.request;
        let unhealthy = match options.check {
            Some(_) => dead_devices(machine, self.node.user_id),
            None => Vec::new(),
        };
        let request = ChoiceRequest {
            devices: options.devices.as_ref().map(|devices| devices.value.1.clone()),
            kind: find_kind(&requested_kinds(options)?, machine),
            order: options.order.as_ref().map(|order| order.value),
            exclude_unhealthy: options.check.as_ref().is_some_and(|check| check.value == Unhealthy::Exclude),
            uses_torch_order: self.is_passive()
                && matches!(options.worker_count, WorkerCount::Auto | WorkerCount::Devices { .. }),
        };
        let choice = match self.choose_by(machine, &unhealthy, &request) {
            // PyTorch's build decides which type it takes; most builds are for the first.
            Err(ChoiceError::SeveralTypes { kinds, .. }) if self.is_passive() => {
                let request = ChoiceRequest { kind: kinds.first().copied(), ..request };
                self.choose_by(machine, &unhealthy, &request)
            }
            choice => choice,
        };
        let choice = choice.map_err(|error| self.choice_error(error))?;
        self.add_old_names(&choice);
        self.add_warnings(&choice);
        Ok(choice)
    }

    fn add_warnings(&mut self, choice: &DeviceChoice) {
        // Each worker is then told its own device by a name that the order does not change.
        let is_own = |visibility: &Setting<_>| visibility.value == Visibility::Own;
        let is_named = self.request.visibility.as_ref().is_some_and(is_own) && !choice.pinned.is_empty();
        // torch's option takes the entries of the list unchecked; else the line about the CPUs has the reason.
        let omits_dropped =
            choice.kind == DeviceType::Cpu && (self.passes_list_entries() || self.explains_cpus());
        let is_shown = |warning: &&ChoiceWarning| match warning {
            ChoiceWarning::Dropped { .. } => !omits_dropped,
            ChoiceWarning::OrderUnknown { .. } => !self.is_passive() && !is_named,
            _ => !self.is_passive(),
        };
        let warnings = choice.warnings.iter().filter(is_shown);
        let notices: Vec<Notice> =
            warnings.map(|warning| Notice::Device { text: plain(&warning.to_string()) }).collect();
        self.notices.extend(notices);
    }

    /// `MIG-GPU-<uuid>/1/0`, as a detail.
    fn add_old_names(&mut self, choice: &DeviceChoice) {
        let is_old = |uuid: &&str| uuid.starts_with("MIG-GPU-") && uuid.contains('/');
        let mut names = choice.devices.iter().filter_map(|chosen| chosen.accelerator.uuid.as_deref());
        if let Some(name) = names.find(is_old) {
            let text = format!("`{}` is a name of drivers before R470, and passes as it is", plain(name));
            self.notices.push(Notice::Detail { text, torch_line: None });
        }
    }

    fn choose_by(
        &self,
        machine: &Machine,
        unhealthy: &[(usize, String)],
        request: &ChoiceRequest,
    ) -> Result<DeviceChoice, ChoiceError> {
        let answer = OnceCell::new();
        let cuda_order = || match self.is_passive() && self.request.binding.is_none() {
            true => Err("only their number matters".to_owned()),
            false => answer.get_or_init(self.node.cuda_order).clone(),
        };
        let inherited = &self.inherited;
        let input = ChoiceInput { machine, inherited, request, unhealthy, cuda_order: &cuda_order };
        select(visible(&input)?, &input)
    }

    /// Whether devices are only counted or bound near to, as torchrun does, and never chosen.
    pub(super) fn is_passive(&self) -> bool {
        self.cli_flavor == CliFlavor::Torchrun && !self.request.chooses_devices()
    }

    /// The error of the choice; a count of missing devices names the option that counts them.
    fn choice_error(&self, error: ChoiceError) -> DeviceError {
        let request = self.request;
        let devices = request.devices.as_ref().map(|devices| (&devices.origin, devices.value.0.clone()));
        let by_type = || request.device_type.as_ref().map(|kind| (&kind.origin, kind.value.to_string()));
        match (&request.worker_count, &error) {
            (
                WorkerCount::Devices { origin, word, .. },
                ChoiceError::NoDevices { .. } | ChoiceError::AllHidden { .. },
            ) if request.devices.is_none() => DeviceError::Setting {
                origin: origin.clone(),
                value: word.clone(),
                torch: self.torch_sentence(word),
                error: Box::new(error),
            },
            (_, ChoiceError::NoDevices { .. }) => setting_error(devices.or_else(by_type), error),
            (_, ChoiceError::NotForCpus) => match (&request.devices, &request.device_type) {
                (Some(devices), Some(kind)) => DeviceError::Contradiction {
                    one: devices.origin.clone(),
                    value: devices.value.0.clone(),
                    other: kind.origin.clone(),
                    other_value: kind.value.to_string(),
                },
                _ => DeviceError::Choice(error),
            },
            (_, about_list) if about_list.is_about_list() => setting_error(devices, error),
            _ => match (&request.order, error) {
                (Some(Setting { origin, .. }), ChoiceError::Order { order, error }) => {
                    DeviceError::Order { origin: origin.clone(), order, error }
                }
                (_, error) => DeviceError::Choice(error),
            },
        }
    }

    /// Findings of a check that do not forbid the launch; without a check, devices that are plainly dead.
    pub(super) fn add_findings(&mut self, choice: &DeviceChoice) {
        let (severity, advice) = match (&self.request.check, self.cli_flavor) {
            (Some(_), _) => (Severity::Warning, ""),
            (None, CliFlavor::Rankrun) => (Severity::Fatal, "; `--exclude-unhealthy` leaves it out"),
            (None, CliFlavor::Torchrun) => return,
        };
        for chosen in &choice.devices {
            let all = findings(&chosen.accelerator, self.node.user_id);
            let shown = all.iter().filter(|finding| finding.severity == severity);
            let device = label(&chosen.accelerator);
            self.notices
                .extend(shown.map(|finding| Notice::Device { text: format!("{device} {finding}{advice}") }));
        }
    }
}

/// The devices that cannot work, with the reason.
fn dead_devices(machine: &Machine, uid: u32) -> Vec<(usize, String)> {
    let of = |(at, accelerator)| {
        let fatal =
            findings(accelerator, uid).into_iter().find(|finding| finding.severity == Severity::Fatal);
        fatal.map(|finding| (at, finding.text))
    };
    machine.accelerators.iter().enumerate().filter_map(of).collect()
}

/// The first of the allowed types of which there are devices; else the first.
fn find_kind(kinds: &[DeviceType], machine: &Machine) -> Option<DeviceType> {
    let exists = |kind: &&DeviceType| machine.accelerators.iter().any(|found| found.kind == **kind);
    kinds.iter().find(exists).or_else(|| kinds.first()).copied()
}

/// With the setting in front, if one asks for these devices.
fn setting_error(setting: Option<(&Origin, String)>, error: ChoiceError) -> DeviceError {
    match setting {
        Some((origin, value)) => {
            DeviceError::Setting { origin: origin.clone(), value, torch: None, error: Box::new(error) }
        }
        None => DeviceError::Choice(error),
    }
}
