//! The CPUs near a device (`--numa-binding`, contract 1.11): from the machine's topology and the CPUs that this process
//! may use. Pure; `process::spawn` binds the worker to them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::{Cpu, CpuLayout};

/// Which CPUs a worker is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumaBinding {
    /// All of the device's NUMA node.
    Node,
    /// All CPUs of the device's socket.
    Socket,
    /// Its share of its node's cores.
    Exclusive,
    /// The CPUs of one highest-level cache.
    CoreComplex,
}

impl NumaBinding {
    /// All bindings, in the order of the help.
    pub const ALL: [Self; 4] = [Self::Node, Self::Socket, Self::Exclusive, Self::CoreComplex];

    /// The word on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }
}

/// The word is not a binding that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no NUMA binding has this name")]
pub struct UnknownBinding;

impl FromStr for NumaBinding {
    type Err = UnknownBinding;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|binding| binding.as_str() == text).ok_or(UnknownBinding)
    }
}

/// Why a worker cannot be bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// The worker has no device to bind to.
    #[error("there is no device {device}, only {devices}")]
    NoDevice {
        /// The index of the worker's device.
        device: usize,
        /// The number of devices on the machine.
        devices: usize,
    },
    /// The kernel does not show this node.
    #[error("the kernel shows no CPUs of NUMA node {node}")]
    UnknownNode {
        /// The number of the NUMA node.
        node: u32,
    },
    /// The launcher may use none of them.
    #[error("none of the CPUs of NUMA node {node} may be used here")]
    NoCpus {
        /// The number of the NUMA node.
        node: u32,
    },
    /// A device would get no core.
    #[error("NUMA node {node} has {cores} cores that may be used here, for {devices} devices")]
    TooFewCores {
        /// The number of the NUMA node.
        node: u32,
        /// The number of its usable physical cores.
        cores: usize,
        /// The number of devices on this node.
        devices: usize,
    },
}

/// The facts that a binding is computed from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bindings<'a> {
    /// The machine's CPUs, NUMA nodes, sockets and caches.
    pub layout: &'a CpuLayout,
    /// The launcher's affinity mask, in ascending order.
    pub allowed: &'a [u32],
    /// The NUMA node of each device, in the order of the devices.
    pub nodes: &'a [u32],
}

impl Bindings<'_> {
    /// The CPUs for the worker on this device, in ascending order; never empty.
    ///
    /// # Errors
    /// The device, its node or enough CPUs do not exist.
    pub(crate) fn cpus(&self, binding: NumaBinding, device: usize) -> Result<Vec<u32>, AffinityError> {
        let devices = self.nodes.len();
        let node = *self.nodes.get(device).ok_or(AffinityError::NoDevice { device, devices })?;
        let on_node = self.allowed_cpus_of_node(node)?;
        // The position of the device on its node, and the node's number of devices.
        let position = self.nodes[..device].iter().filter(|other| **other == node).count();
        let neighbours = self.nodes.iter().filter(|other| **other == node).count();
        match binding {
            NumaBinding::Node => Ok(on_node),
            NumaBinding::Socket => Ok(self.allowed_cpus_of_socket(&on_node)),
            NumaBinding::Exclusive => {
                let cores = self.group_by_shared_part(&on_node, |cpu| &cpu.siblings);
                let too_few = AffinityError::TooFewCores { node, cores: cores.len(), devices: neighbours };
                cores_of_part(&cores, position, neighbours).ok_or(too_few)
            }
            NumaBinding::CoreComplex => {
                let mut caches = self.group_by_shared_part(&on_node, |cpu| &cpu.cache);
                // Stable: of equal size, the lowest CPU first.
                caches.sort_by_key(|cpus| std::cmp::Reverse(cpus.len()));
                let at = position.checked_rem(caches.len());
                at.and_then(|at| caches.get(at).cloned()).ok_or(AffinityError::NoCpus { node })
            }
        }
    }

    /// The CPUs of a node that may be used.
    fn allowed_cpus_of_node(&self, node: u32) -> Result<Vec<u32>, AffinityError> {
        let found = self.layout.nodes.iter().find(|found| found.id == node);
        let all = found.ok_or(AffinityError::UnknownNode { node })?;
        match self.filter_allowed(&all.cpus) {
            cpus if cpus.is_empty() => Err(AffinityError::NoCpus { node }),
            cpus => Ok(cpus),
        }
    }

    fn filter_allowed(&self, cpus: &[u32]) -> Vec<u32> {
        let cpus: BTreeSet<u32> = cpus.iter().copied().collect();
        cpus.into_iter().filter(|cpu| self.allowed.binary_search(cpu).is_ok()).collect()
    }

    fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.layout.cpus.iter().find(|cpu| cpu.id == id)
    }

    /// All permitted CPUs of all nodes of the package that these are in.
    fn allowed_cpus_of_socket(&self, on_node: &[u32]) -> Vec<u32> {
        let package = |cpus: &[u32]| cpus.first().and_then(|cpu| self.cpu(*cpu)).map(|cpu| cpu.package);
        let own = package(on_node);
        let nodes = self.layout.nodes.iter().map(|node| self.filter_allowed(&node.cpus));
        let of_package = nodes.filter(|cpus| own.is_some() && package(cpus) == own);
        let cpus: BTreeSet<u32> = of_package.flatten().chain(on_node.iter().copied()).collect();
        cpus.into_iter().collect()
    }

    /// Groups the CPUs that share a part such as a core or a cache, by the lowest CPU that shares it, permitted or
    /// not.
    fn group_by_shared_part<'a>(
        &'a self,
        cpus: &[u32],
        shared: impl Fn(&'a Cpu) -> &'a [u32],
    ) -> Vec<Vec<u32>> {
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for id in cpus {
            let lowest = self.cpu(*id).and_then(|cpu| shared(cpu).iter().min()).unwrap_or(id);
            groups.entry(*lowest).or_default().push(*id);
        }
        groups.into_values().collect()
    }
}

/// The part of the `position`-th of `parts`: as even as it can be, the first ones one more. Nothing where there are
/// fewer cores than parts.
fn cores_of_part(cores: &[Vec<u32>], position: usize, parts: usize) -> Option<Vec<u32>> {
    let (each, more) = (cores.len().checked_div(parts)?, cores.len().checked_rem(parts)?);
    if each == 0 {
        return None;
    }
    let start = position * each + position.min(more);
    let end = start + each + usize::from(position < more);
    let mut cpus: Vec<u32> = cores.get(start..end)?.iter().flatten().copied().collect();
    cpus.sort_unstable();
    Some(cpus)
}

/// `0-3,8,10-11` for numbers in ascending order.
#[must_use]
pub fn format_ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
