//! Apple's GPU: one device, without number, address or variable.

use rankrun_core::device::DeviceType;

use crate::device_probe::kernel::{Report, card};

/// Adds it. Metal on older machines drives other vendors' cards, which PyTorch shows as one device too.
pub(super) fn find(report: &mut Report) {
    report.add(card(DeviceType::Mps, "Apple GPU".to_owned()));
}
