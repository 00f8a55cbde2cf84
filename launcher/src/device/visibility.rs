//! The vendors' visibility variables, read with each vendor's own rules. Pure.

use std::ffi::OsString;

/// What the launcher inherited; `None` where a variable is not set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inherited {
    /// `CUDA_VISIBLE_DEVICES`
    pub cuda: Option<OsString>,
    /// `CUDA_DEVICE_ORDER`
    pub cuda_order: Option<OsString>,
    /// `HIP_VISIBLE_DEVICES`
    pub hip: Option<OsString>,
    /// `ROCR_VISIBLE_DEVICES`
    pub rocr: Option<OsString>,
    /// `ZE_AFFINITY_MASK`
    pub ze_mask: Option<OsString>,
    /// `ZE_FLAT_DEVICE_HIERARCHY`
    pub ze_hierarchy: Option<OsString>,
    /// `ZE_ENABLE_PCI_ID_DEVICE_ORDER`
    pub ze_pci_order: Option<OsString>,
    /// `HABANA_VISIBLE_MODULES`
    pub habana: Option<OsString>,
    /// `ASCEND_RT_VISIBLE_DEVICES`
    pub ascend: Option<OsString>,
}

impl Inherited {
    /// From a lookup in the environment.
    #[must_use]
    pub fn of<'a>(variable: impl Fn(&str) -> Option<&'a std::ffi::OsStr>) -> Self {
        let get = |name: &str| variable(name).map(ToOwned::to_owned);
        Self {
            cuda: get("CUDA_VISIBLE_DEVICES"),
            cuda_order: get("CUDA_DEVICE_ORDER"),
            hip: get("HIP_VISIBLE_DEVICES"),
            rocr: get("ROCR_VISIBLE_DEVICES"),
            ze_mask: get("ZE_AFFINITY_MASK"),
            ze_hierarchy: get("ZE_FLAT_DEVICE_HIERARCHY"),
            ze_pci_order: get("ZE_ENABLE_PCI_ID_DEVICE_ORDER"),
            habana: get("HABANA_VISIBLE_MODULES"),
            ascend: get("ASCEND_RT_VISIBLE_DEVICES"),
        }
    }
}
