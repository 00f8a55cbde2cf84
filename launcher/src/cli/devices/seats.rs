//! Chosen devices → seats: which worker has which, what it is told, and the CPUs that it is bound to.

use std::ffi::OsString;

use rankrun_contract::rank::{LocalRank, LocalWorldSize};

use super::{Resolver, told};
use crate::cli::error::CliError;
use crate::cli::settings::Setting;
use crate::cli::virtual_devices::resolve_virtual_devices;
use crate::device::affinity::Bindings;
use crate::device::assignment::DeviceError;
use crate::device::choice::{Choice, ChoiceWarning};
use crate::device::handover::{Handover, assign_worker_variables};
use crate::device::{DeviceType, Machine, Visibility};
use crate::notice::Notice;
use crate::placement::Device;
use crate::spec::WorkerDevice;

/// Workers on devices.
pub(super) struct Placed {
    pub(super) seats: Vec<WorkerDevice>,
    /// By local rank: which of the chosen devices.
    pub(super) positions: Vec<Option<usize>>,
    pub(super) visibility: Visibility,
}

impl Resolver<'_> {
    /// Each worker takes the device of its number, as under torchrun.
    pub(super) fn inherit(&self, choice: &Choice, workers: LocalWorldSize) -> Result<Placed, CliError> {
        let positions = (0..choice.devices.len()).map(Some).chain(std::iter::repeat(None));
        let positions: Vec<_> = positions.take(LocalRank(workers.get()).index()).collect();
        let mut seats: Vec<WorkerDevice> = (0..)
            .zip(&positions)
            .map(|(rank, at)| seat(choice, *at, (LocalRank(rank), rank), Vec::new()))
            .collect();
        if is_order_unknown(choice) {
            seats.iter_mut().for_each(|seat| seat.device.identity = None);
        }
        let visibility = resolve_virtual_devices(self.settings, &mut seats)?;
        if visibility == Visibility::Own {
            let on_devices = seats.iter_mut().filter(|seat| seat.device.kind != DeviceType::Cpu);
            on_devices.for_each(|seat| seat.device.ordinal = 0);
        }
        Ok(Placed { seats, positions, visibility })
    }

    pub(super) fn hand_over(&mut self, choice: &Choice, workers: LocalWorldSize) -> Result<Placed, CliError> {
        let asked = self.asked_visibility()?;
        let Handover { visibility, forced_own_reason: forced, workers } =
            assign_worker_variables(choice, &self.inherited, workers.get(), asked);
        // One worker that sees its one device is nothing to tell of.
        let is_news = workers.len() > 1 || choice.devices.len() > 1;
        if let Some(why) = forced.filter(|_| is_news) {
            let text = format!("each worker sees its own device alone, as LOCAL_RANK 0: {why}");
            self.notices.push(Notice::Device { text });
        }
        let positions = workers.iter().map(|handed| handed.device).collect();
        let is_pinned = !choice.pinned.is_empty();
        let seats = (0..).zip(workers).map(|(rank, handed)| {
            let mut seat = seat(choice, handed.device, (LocalRank(rank), handed.ordinal), handed.variables);
            // A worker that is told nothing, or the user's own numbers, has what the driver counts.
            if is_order_unknown(choice) && (seat.variables.is_empty() || !is_pinned) {
                seat.device.identity = None;
            }
            seat
        });
        Ok(Placed { seats: seats.collect(), positions, visibility })
    }

    /// `--numa-binding`
    pub(super) fn bind(
        &self,
        machine: &Machine,
        choice: &Choice,
        placed: &mut Placed,
    ) -> Result<(), DeviceError> {
        let Some(Setting { origin, value: binding }) = &self.wishes.binding else { return Ok(()) };
        let allowed = self.settings.facts.world().allowed_cpus();
        let nodes: Vec<u32> =
            choice.devices.iter().map(|chosen| chosen.accelerator.numa_node.unwrap_or(0)).collect();
        let layout = machine.cpus.clone().unwrap_or_default();
        let bindings = Bindings { layout: &layout, allowed: &allowed, nodes: &nodes };
        for (rank, (seat, at)) in (0..).zip(placed.seats.iter_mut().zip(&placed.positions)) {
            let cpus = bindings.cpus(*binding, at.unwrap_or(LocalRank(rank).index()));
            seat.cpus = Some(cpus.map_err(|error| DeviceError::Binding {
                origin: origin.clone(),
                value: binding.as_str().to_owned(),
                local_rank: LocalRank(rank),
                error,
            })?);
        }
        Ok(())
    }
}

/// Whether the driver decides which device has which number.
fn is_order_unknown(choice: &Choice) -> bool {
    choice.warnings.iter().any(|warning| matches!(warning, ChoiceWarning::OrderUnknown { .. }))
}

/// What one worker sits on: one of the chosen devices, by the number under which it finds that, or the CPUs.
fn seat(
    choice: &Choice,
    at: Option<usize>,
    (local_rank, ordinal): (LocalRank, u32),
    variables: Vec<(&'static str, Option<OsString>)>,
) -> WorkerDevice {
    let device = match at.and_then(|at| choice.devices.get(at)) {
        Some(chosen) => {
            let card = Some(told::card(chosen));
            Device { kind: choice.kind, ordinal, identity: card, is_known_to_runtime: true }
        }
        None => Device::cpu(local_rank.0),
    };
    WorkerDevice { device, variables, cpus: None }
}
