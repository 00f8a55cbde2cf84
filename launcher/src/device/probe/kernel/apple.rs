//! Apple's GPU: one device, without number, address or variable.

use crate::device::DeviceType;

use super::{Report, card};

/// Adds it. Metal on older machines drives other vendors' cards, which PyTorch shows as one device too.
pub(super) fn find(report: &mut Report) {
    report.add(card(DeviceType::Mps, "Apple GPU".to_owned()));
}
