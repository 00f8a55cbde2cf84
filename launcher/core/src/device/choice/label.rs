//! The label of a device in messages: type, index and name. Its names for the vendors' variables are in `names`. Pure.

use crate::device::{Accelerator, DeviceType, Part};

/// A device in a sentence: `GPU 3 NVIDIA H100 (0000:1b:00.0)`.
#[must_use]
pub fn label(accelerator: &Accelerator) -> String {
    let mut text = format!("{} {}", noun(accelerator), number(accelerator));
    if !accelerator.name.is_empty() {
        text.push_str(&format!(" {}", accelerator.name));
    }
    if let Some(pci) = accelerator.pci {
        text.push_str(&format!(" ({pci})"));
    }
    text
}

/// A device in a list: index, name, PCI address, UUID. `index` is the one to type, where there is one.
#[must_use]
pub fn line(accelerator: &Accelerator, index: Option<u32>) -> String {
    let index = index.map_or_else(|| number(accelerator), |index| index.to_string());
    let mut text = format!("{index}  {}", accelerator.name);
    if let Some(pci) = accelerator.pci {
        text.push_str(&format!("  {pci}"));
    }
    if let Some(uuid) = &accelerator.uuid {
        text.push_str(&format!("  {uuid}"));
    }
    text
}

/// The noun for the device's number: `GPU`, `MIG device`, `tile`, `HPU`, `NPU`.
#[must_use]
pub const fn noun(accelerator: &Accelerator) -> &'static str {
    match (accelerator.kind, accelerator.part) {
        (_, Part::MigInstance { .. }) => "MIG device",
        (_, Part::Tile { .. }) => "tile",
        (DeviceType::Hpu, _) => "HPU",
        (DeviceType::Npu, _) => "NPU",
        _ => "GPU",
    }
}

/// Its number as `--devices` takes it on a machine without inherited lists, which is that of its vendor's tool: `3`, and
/// `1:0` for the first MIG device of GPU 1.
#[must_use]
pub fn number(accelerator: &Accelerator) -> String {
    match accelerator.part {
        Part::MigInstance { gpu } => format!("{gpu}:{}", accelerator.index),
        Part::Whole | Part::MigParent | Part::Tile { .. } => accelerator.index.to_string(),
    }
}
