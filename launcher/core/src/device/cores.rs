//! `--bind-cores`: physical cores that the workers of a node share evenly. Pure; `process::spawn` binds the workers.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::affinity::format_ranges;
use super::cpu_list::{CpuListError, parse_cpu_list};

/// The cores of all workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreSelection {
    /// Every core that the launcher may use, by one of its CPUs.
    All,
    /// These CPUs, in ascending order.
    List(Vec<u32>),
}

impl FromStr for CoreSelection {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        match parse_cpu_list(text)? {
            cpus if cpus.is_empty() => Err(CpuListError),
            cpus => Ok(Self::List(cpus)),
        }
    }
}

/// Why the workers cannot share the cores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoreError {
    #[error("{workers} workers cannot share {cores} {}", if *cores == 1 { "core" } else { "cores" })]
    TooFew { cores: usize, workers: usize },
    #[error("this machine has no CPU {cpu}")]
    Missing { cpu: u32 },
    #[error("CPU {cpu} may not be used here, only {allowed}")]
    Forbidden { cpu: u32, allowed: String },
}

/// Which CPUs are on one physical core.
pub trait CoreTopology {
    /// The lowest CPU of the core of this CPU; `None` if the machine does not have this CPU.
    fn core_of(&self, cpu: u32) -> Option<u32>;
}

/// The facts that the shares are computed from.
pub(crate) struct CoreFacts<'a> {
    /// The launcher's affinity mask, in ascending order; empty where the kernel does not tell.
    pub allowed: &'a [u32],
    pub topology: &'a dyn CoreTopology,
}

impl CoreFacts<'_> {
    /// The CPUs of each worker, in the order of the local ranks: the same number for all, the rest is left idle.
    ///
    /// # Errors
    /// A CPU that cannot be used, or fewer cores than workers.
    pub(crate) fn shares(
        &self,
        selection: &CoreSelection,
        workers: usize,
    ) -> Result<Vec<Vec<u32>>, CoreError> {
        let cpus = match selection {
            CoreSelection::All => self.one_cpu_of_each_core(),
            CoreSelection::List(cpus) => self.usable(cpus)?,
        };
        match cpus.len().checked_div(workers) {
            None | Some(0) => Err(CoreError::TooFew { cores: cpus.len(), workers }),
            Some(each) => Ok(cpus.chunks_exact(each).take(workers).map(<[u32]>::to_vec).collect()),
        }
    }

    fn one_cpu_of_each_core(&self) -> Vec<u32> {
        let mut first: BTreeMap<u32, u32> = BTreeMap::new();
        for cpu in self.allowed {
            first.entry(self.topology.core_of(*cpu).unwrap_or(*cpu)).or_insert(*cpu);
        }
        first.into_values().collect()
    }

    fn usable(&self, cpus: &[u32]) -> Result<Vec<u32>, CoreError> {
        if let Some(cpu) = cpus.iter().copied().find(|cpu| self.topology.core_of(*cpu).is_none()) {
            return Err(CoreError::Missing { cpu });
        }
        let is_forbidden = |cpu: &u32| !self.allowed.is_empty() && self.allowed.binary_search(cpu).is_err();
        match cpus.iter().copied().find(is_forbidden) {
            Some(cpu) => Err(CoreError::Forbidden { cpu, allowed: format_ranges(self.allowed) }),
            None => Ok(cpus.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores of two threads: the CPUs 0 to 3, and 4 to 7.
    struct FourCores;

    impl CoreTopology for FourCores {
        fn core_of(&self, cpu: u32) -> Option<u32> {
            (cpu < 8).then_some(cpu % 4)
        }
    }

    fn shares(selection: &str, allowed: &[u32], workers: usize) -> Result<Vec<Vec<u32>>, CoreError> {
        let facts = CoreFacts { allowed, topology: &FourCores };
        facts.shares(&selection.parse().unwrap(), workers)
    }

    #[test]
    fn cores_are_shared_evenly_by_local_rank() {
        let whole: Vec<u32> = (0..8).collect();
        for (selection, allowed, expected) in [
            ("all", &whole[..], vec![vec![0, 1], vec![2, 3]]),
            ("all", &[1, 2, 5, 6, 7], vec![vec![1], vec![2]]),
            ("1,3-5,7", &whole, vec![vec![1, 3], vec![4, 5]]),
            ("7,0", &[], vec![vec![0], vec![7]]),
        ] {
            assert_eq!(shares(selection, allowed, 2).unwrap(), expected, "{selection}");
        }
    }

    #[test]
    fn cores_that_cannot_be_shared_are_refused() {
        let forbidden = CoreError::Forbidden { cpu: 2, allowed: "0-1".to_owned() };
        assert_eq!(shares("all", &[0, 4, 1], 3), Err(CoreError::TooFew { cores: 2, workers: 3 }));
        assert_eq!(shares("0-8", &[0, 1], 1), Err(CoreError::Missing { cpu: 8 }));
        assert_eq!(shares("1-2", &[0, 1], 1), Err(forbidden));
        for text in ["", "a", "3-1", "1,,2", "-1"] {
            assert_eq!(text.parse::<CoreSelection>(), Err(CpuListError), "{text}");
        }
    }
}
