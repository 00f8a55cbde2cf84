//! The identity of a card by NVML (UUID, PCI address, MIG instances), and whether it answers. Its state is read in
//! `state`.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use crate::device_probe::nvidia::{error_text, processes, raw, state};
use rankrun_core::device::{
    Accelerator, Condition, DeviceState, DeviceType, Memory, Part, PciAddress, ProbeScope,
};

/// The name of a card that does not tell it.
const NAMELESS: &str = "unknown";

/// Words of the NUMA mask that NVML fills: 1,024 nodes, as many as Linux can have.
const NUMA_MASK_WORDS: usize = 16;

/// NVML's scope of that mask: the node, not the socket.
const NUMA_NODE_SCOPE: u32 = 0;

/// Collects a card's answers: an error leaves a field empty, and an error about a lost card is remembered.
#[derive(Debug, Default)]
pub(super) struct CardQuery {
    loss: Option<String>,
}

impl CardQuery {
    pub(super) fn optional<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        answer
            .map_err(|error| {
                if error_text::is_loss(&error) {
                    self.mark_lost(&error);
                }
            })
            .ok()
    }

    /// The answer to a question that every card answers. Any error means that the card is lost, except one about a
    /// driver that cannot be asked.
    fn required<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        answer
            .map_err(|error| {
                if !error_text::is_absence(&error) {
                    self.mark_lost(&error);
                }
            })
            .ok()
    }

    fn mark_lost(&mut self, error: &NvmlError) {
        self.loss.get_or_insert_with(|| error_text::error_message(error));
    }

    pub(super) fn condition(self) -> Condition {
        self.loss.map_or(Condition::Answers, |why| Condition::Lost { why })
    }
}

/// A card of which NVML gives not even a handle.
pub(super) fn lost_card(index: u32, why: String) -> Accelerator {
    Accelerator { condition: Condition::Lost { why }, ..blank_card(index, Part::Whole) }
}

pub(super) fn probe_card(device: &Device<'_>, index: u32, ask: ProbeScope) -> Accelerator {
    let mut answers = CardQuery::default();
    let uuid = answers.required(device.uuid()).filter(|uuid| is_uuid(uuid));
    let name = answers.optional(device.name()).and_then(|name| sanitize_name(&name));
    let pci = answers.optional(device.pci_info()).and_then(|pci| pci.bus_id.parse::<PciAddress>().ok());
    let memory = memory(device, &mut answers);
    let is_mig = answers.optional(device.mig_mode()).is_some_and(|mode| mode.current == 1);
    let numa_node = if ask == ProbeScope::default() { None } else { numa_node(device, &mut answers) };
    let state = ask.state.then(|| Box::new(state::probe_state(device, &mut answers)));
    let condition = answers.condition();
    Accelerator {
        name: name.unwrap_or_else(|| NAMELESS.to_owned()),
        uuid,
        pci,
        numa_node,
        memory,
        state: state.filter(|_| condition == Condition::Answers),
        condition,
        ..blank_card(index, if is_mig { Part::MigParent } else { Part::Whole })
    }
}

/// The MIG device `number` of `card`. Heat, power and errors are those of the card; use is its own.
pub(super) fn probe_mig_instance(
    device: &Device<'_>,
    number: u32,
    card: &Accelerator,
    ask: ProbeScope,
) -> Accelerator {
    let mut answers = CardQuery::default();
    let uuid = answers.required(device.uuid()).filter(|uuid| is_uuid(uuid));
    let name = answers.optional(device.name()).and_then(|name| sanitize_name(&name));
    let memory = memory(device, &mut answers);
    let state = ask.state.then(|| {
        let state = card.state.as_deref().cloned().unwrap_or_default();
        let utilisation = answers.optional(device.utilization_rates()).map(|rates| rates.gpu);
        Box::new(DeviceState {
            utilisation,
            processes: processes::probe_processes(device, &mut answers),
            ..state
        })
    });
    let condition = match &card.condition {
        Condition::Answers => answers.condition(),
        lost @ Condition::Lost { .. } => lost.clone(),
    };
    Accelerator {
        name: name.unwrap_or_else(|| format!("{} MIG", card.name)),
        uuid,
        pci: card.pci,
        numa_node: card.numa_node,
        memory,
        state: state.filter(|_| condition == Condition::Answers),
        condition,
        ..blank_card(number, Part::MigInstance { gpu: card.index })
    }
}

fn blank_card(index: u32, part: Part) -> Accelerator {
    Accelerator {
        kind: DeviceType::Cuda,
        index,
        name: NAMELESS.to_owned(),
        uuid: None,
        pci: None,
        numa_node: None,
        memory: None,
        part,
        integrated: false,
        module_id: None,
        condition: Condition::Answers,
        state: None,
    }
}

fn memory(device: &Device<'_>, answers: &mut CardQuery) -> Option<Memory> {
    let memory = match device.memory_info() {
        // Beside drivers that lack it, one may refuse this version of its structure.
        Err(error) if !error_text::is_loss(&error) => raw::memory(device),
        answer => answer.map(|memory| Memory { total: memory.total, free: Some(memory.free) }),
    };
    answers.optional(memory).filter(|memory| memory.total > 0)
}

/// The NUMA node with the memory nearest to the card. Not `nvmlDeviceGetNumaNodeId`, which is the node that the
/// card's own memory makes on Grace, and which has no CPUs.
fn numa_node(device: &Device<'_>, answers: &mut CardQuery) -> Option<u32> {
    let mask = answers.optional(device.memory_affinity(NUMA_MASK_WORDS, NUMA_NODE_SCOPE))?;
    only_bit(&mask)
}

/// The number of the one bit that is set.
fn only_bit(mask: &[u64]) -> Option<u32> {
    let mut found = None;
    for (word_index, bits) in (0_u32..).zip(mask).filter(|(_, bits)| **bits != 0) {
        if found.is_some() || !bits.is_power_of_two() {
            return None;
        }
        found = Some(word_index * u64::BITS + bits.trailing_zeros());
    }
    found
}

/// Whether it may be written into a worker's environment as a device's name: `GPU-…`, `MIG-…`, and the older
/// `MIG-GPU-…/1/0`.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/".contains(&byte))
    })
}

/// A name without control characters; `None` if it is empty then.
pub(super) fn sanitize_name(name: &str) -> Option<String> {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use crate::device_probe::nvidia::identity::*;

    #[test]
    fn numa_node_is_single_bit_of_mask() {
        assert_eq!(only_bit(&[1, 0]), Some(0));
        assert_eq!(only_bit(&[0, 1 << 3]), Some(67));
        assert_eq!(only_bit(&[0, 0]), None);
        assert_eq!(only_bit(&[0b11, 0]), None);
        assert_eq!(only_bit(&[1, 1]), None);
    }

    #[test]
    fn text_other_than_uuid_is_rejected() {
        assert!(is_uuid("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"));
        assert!(is_uuid("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"));
        for text in ["", "GPU-", "8932f937", "GPU-1,GPU-2", "GPU-1 2", "GPU-\u{1b}[2J", "gpu-12"] {
            assert!(!is_uuid(text), "{text:?}");
        }
    }

    #[test]
    fn device_name_loses_control_characters() {
        assert_eq!(sanitize_name("NVIDIA H100\u{1b}[2J\n"), Some("NVIDIA H100[2J".to_owned()));
        assert_eq!(sanitize_name(" \u{7} "), None);
    }

    #[test]
    fn card_is_lost_on_loss_error_or_missing_identity() {
        let mut answers = CardQuery::default();
        assert_eq!(answers.optional::<u32>(Err(NvmlError::NotSupported)), None);
        assert_eq!(answers.optional::<u32>(Err(NvmlError::Unknown)), None);
        assert_eq!(answers.required::<u32>(Err(NvmlError::NotSupported)), None);
        assert_eq!(answers.condition(), Condition::Answers);

        let mut answers = CardQuery::default();
        answers.required::<u32>(Err(NvmlError::Unknown));
        assert_eq!(answers.condition(), Condition::Lost { why: "Unknown Error".to_owned() });

        let mut answers = CardQuery::default();
        answers.optional::<u32>(Err(NvmlError::GpuLost));
        answers.optional::<u32>(Err(NvmlError::ResetRequired));
        assert_eq!(answers.condition(), Condition::Lost { why: "GPU is lost".to_owned() });
    }
}
