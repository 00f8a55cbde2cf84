//! Asks for the choice, and says what is to be said of it.

use super::Resolver;
use super::wishes::Count;
use crate::device::assignment::DeviceError;
use crate::device::choice::{
    Choice, ChoiceError, ChoiceInput, ChoiceWarning, DeviceRequest, choose_devices, label,
};
use crate::device::health::{Severity, findings};
use crate::device::{DeviceType, Machine, Visibility};
use crate::notice::Notice;
use crate::reporter::plain::plain;
use crate::spec::Verbosity;
use crate::spec::{CliFlavor, Unhealthy};

impl Resolver<'_> {
    pub(super) fn choose(&mut self, machine: &Machine) -> Result<Choice, DeviceError> {
        let unhealthy = match self.wishes.check {
            Some(_) => dead(machine, self.settings.facts.world().user_id()),
            None => Vec::new(),
        };
        let listed = self.wishes.devices.as_ref();
        let request = DeviceRequest {
            devices: listed.map(|listed| listed.value.1.clone()),
            kind: kind_of(&self.wishes.kinds()?, machine),
            order: self.wishes.order.as_ref().map(|order| order.value),
            exclude_unhealthy: self.wishes.check.is_some_and(|check| check.unhealthy == Unhealthy::Exclude),
            uses_torch_order: self.is_passive()
                && matches!(self.wishes.count, Count::Auto | Count::Of { .. }),
        };
        let choice = match self.choose_as(machine, &unhealthy, &request) {
            // Which of them torch would take is decided by how it was built; most often it was for the first.
            Err(ChoiceError::SeveralTypes { kinds, .. }) if self.is_passive() => {
                let request = DeviceRequest { kind: kinds.first().copied(), ..request };
                self.choose_as(machine, &unhealthy, &request)
            }
            choice => choice,
        };
        let choice = choice.map_err(|error| self.no_choice(error))?;
        self.tell_old_names(&choice);
        let warnings = choice.warnings.iter();
        let warnings =
            warnings.filter(|warning| !self.is_passive() || matches!(warning, ChoiceWarning::Dropped { .. }));
        // Each worker is told its own device then, by a name that the order does not change.
        let is_named = self.wishes.visibility == Some(Visibility::Own) && !choice.pinned.is_empty();
        let warnings =
            warnings.filter(|warning| !(is_named && matches!(warning, ChoiceWarning::OrderUnknown { .. })));
        // torch's option takes the entry in its place from the list, and checks nothing.
        let is_torchs = choice.kind == DeviceType::Cpu && self.is_virtual();
        // The line about the CPUs says it.
        let is_told = choice.kind == DeviceType::Cpu && self.tells_cpus();
        let warnings = warnings
            .filter(|warning| !((is_torchs || is_told) && matches!(warning, ChoiceWarning::Dropped { .. })));
        let told = warnings.map(|warning| Notice::Device { text: plain(&warning.to_string()) });
        self.notices.extend(told.collect::<Vec<_>>());
        Ok(choice)
    }

    /// `MIG-GPU-<uuid>/1/0`, for whoever asked to hear more.
    fn tell_old_names(&mut self, choice: &Choice) {
        let is_old = |uuid: &&str| uuid.starts_with("MIG-GPU-") && uuid.contains('/');
        let mut names = choice.devices.iter().filter_map(|chosen| chosen.accelerator.uuid.as_deref());
        if let Some(name) = names.find(is_old).filter(|_| self.verbosity >= Verbosity::Info) {
            let text = format!("`{}` is a name of drivers before R470, and passes as it is", plain(name));
            self.notices.push(Notice::Detail { text, torch_line: None });
        }
    }

    fn choose_as(
        &self,
        machine: &Machine,
        unhealthy: &[(usize, String)],
        request: &DeviceRequest,
    ) -> Result<Choice, ChoiceError> {
        let cuda_order = || match self.is_passive() && self.wishes.binding.is_none() {
            true => Err("only their number matters".to_owned()),
            false => self.settings.facts.world().cuda_order(self.wishes.limit),
        };
        let inherited = &self.inherited;
        choose_devices(&ChoiceInput { machine, inherited, request, unhealthy, cuda_order: &cuda_order })
    }

    /// Whether devices are only counted or bound near to, as torchrun does, and never chosen.
    pub(super) fn is_passive(&self) -> bool {
        self.settings.cli_flavor == CliFlavor::Torchrun && !self.wishes.about_devices()
    }

    /// Who counts what is not there is told so.
    fn no_choice(&self, error: ChoiceError) -> DeviceError {
        let wishes = &self.wishes;
        let listed = wishes.devices.as_ref().map(|listed| (&listed.origin, listed.value.0.clone()));
        let typed = || wishes.kind.as_ref().map(|kind| (&kind.origin, kind.value.to_string()));
        match (&wishes.count, &error) {
            (
                Count::Of { origin, word, .. },
                ChoiceError::NoDevices { .. } | ChoiceError::AllHidden { .. },
            ) if wishes.devices.is_none() => DeviceError::NoAccelerator {
                origin: origin.clone(),
                value: word.clone(),
                torch: self.torchs_words(word),
                error: Box::new(error),
            },
            (_, ChoiceError::NoDevices { .. }) => match listed.or_else(typed) {
                Some((origin, value)) => DeviceError::NoAccelerator {
                    origin: origin.clone(),
                    value,
                    torch: None,
                    error: Box::new(error),
                },
                None => DeviceError::Choice(error),
            },
            _ => DeviceError::Choice(error),
        }
    }

    /// What a check found that does not forbid the launch; without a check, what is dead for all to see.
    pub(super) fn tell_findings(&mut self, choice: &Choice) {
        let (severity, advice) = match (self.wishes.check, self.settings.cli_flavor) {
            (Some(_), _) => (Severity::Warning, ""),
            (None, CliFlavor::Rankrun) => (Severity::Fatal, "; `--exclude-unhealthy` leaves it out"),
            (None, CliFlavor::Torchrun) => return,
        };
        let uid = self.settings.facts.world().user_id();
        for chosen in &choice.devices {
            let all = findings(&chosen.accelerator, uid);
            let told = all.iter().filter(|finding| finding.severity == severity);
            let device = label(&chosen.accelerator);
            self.notices
                .extend(told.map(|finding| Notice::Device { text: format!("{device} {finding}{advice}") }));
        }
    }
}

/// The devices that cannot work, with the reason.
fn dead(machine: &Machine, uid: u32) -> Vec<(usize, String)> {
    let of = |(at, accelerator)| {
        let fatal =
            findings(accelerator, uid).into_iter().find(|finding| finding.severity == Severity::Fatal);
        fatal.map(|finding| (at, finding.text))
    };
    machine.accelerators.iter().enumerate().filter_map(of).collect()
}

/// One type, where the words leave it open the one of which there are devices.
fn kind_of(kinds: &[DeviceType], machine: &Machine) -> Option<DeviceType> {
    let is_there = |kind: &&DeviceType| machine.accelerators.iter().any(|found| found.kind == **kind);
    kinds.iter().find(is_there).or_else(|| kinds.first()).copied()
}
