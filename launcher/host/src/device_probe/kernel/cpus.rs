//! The processors from sysfs: NUMA nodes, sockets, cores and caches. `device::affinity` chooses among them.

use std::collections::BTreeMap;

use rankrun_core::device::cpu_list::parse_cpu_list;
use rankrun_core::device::{Cpu, CpuLayout, DeviceType, NumaNode};

use crate::device_probe::kernel::KernelReport;
use crate::device_probe::kernel::tree::Tree;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// The CPUs that are online. A kernel without NUMA has one node, 0. A node that has only memory has no CPUs.
pub(super) fn read_cpu_layout(tree: &Tree<'_>, report: &mut KernelReport) -> Option<CpuLayout> {
    let path = format!("{CPUS}/online");
    let online = match tree.read(&path) {
        Ok(text) => parse_cpu_list(&text),
        Err(error) => {
            report.add_missing_source(DeviceType::Cpu, &path, &error);
            return None;
        }
    };
    let online = match online {
        Ok(online) if !online.is_empty() => online,
        _ => {
            report.add_failed(DeviceType::Cpu, &path, "it is not a list of CPUs");
            return None;
        }
    };
    Some(CpuLayout { nodes: nodes(tree, &online), cpus: cpus(tree, &online) })
}

fn nodes(tree: &Tree<'_>, online: &[u32]) -> Vec<NumaNode> {
    let listed = tree.numbered(NODES, "node").unwrap_or_default();
    let node = |id: u32| -> Option<NumaNode> {
        let mut cpus = list(tree, &format!("{NODES}/node{id}/cpulist"))?;
        cpus.retain(|cpu| online.binary_search(cpu).is_ok());
        Some(NumaNode { id, cpus })
    };
    let nodes: Vec<NumaNode> = listed.into_iter().filter_map(node).collect();
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        return vec![NumaNode { id: 0, cpus: online.to_vec() }];
    }
    nodes
}

fn cpus(tree: &Tree<'_>, online: &[u32]) -> Vec<Cpu> {
    // CPUs that share a core or a cache share it with each other, so one read serves all of them. On a machine with
    // hundreds of CPUs the files are thousands.
    let mut cores: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut caches: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let cpu = |id: u32| {
        let folder = format!("{CPUS}/cpu{id}");
        let siblings = cpu_group(&mut cores, id, online, || {
            list(tree, &format!("{folder}/topology/thread_siblings_list"))
        });
        let cache = cpu_group(&mut caches, id, online, || list(tree, &highest_cache(tree, &folder)?));
        // The kernel shows -1 for an unknown socket.
        let package = tree.number(&format!("{folder}/topology/physical_package_id")).unwrap_or(-1);
        Cpu { id, package, siblings, cache }
    };
    online.iter().copied().map(cpu).collect()
}

/// The group of a CPU: known from another member, or read now. A group that does not contain the CPU itself is ignored.
fn cpu_group(
    known: &mut BTreeMap<u32, Vec<u32>>,
    id: u32,
    online: &[u32],
    read: impl FnOnce() -> Option<Vec<u32>>,
) -> Vec<u32> {
    if let Some(group) = known.get(&id) {
        return group.clone();
    }
    let mut group = read().unwrap_or_default();
    group.retain(|cpu| online.binary_search(cpu).is_ok());
    if group.binary_search(&id).is_err() {
        return vec![id];
    }
    for cpu in &group {
        known.entry(*cpu).or_insert_with(|| group.clone());
    }
    group
}

/// The CPUs that share the cache of the highest level, among caches that hold data.
fn highest_cache(tree: &Tree<'_>, folder: &str) -> Option<String> {
    let caches = format!("{folder}/cache");
    let mut best: Option<(u32, String)> = None;
    for index in tree.numbered(&caches, "index").ok()? {
        let cache = format!("{caches}/index{index}");
        let data =
            tree.text(&format!("{cache}/type")).is_some_and(|kind| kind == "Data" || kind == "Unified");
        let level = tree.number(&format!("{cache}/level")).filter(|_| data);
        if level > best.as_ref().map(|(level, _)| *level) {
            best = level.map(|level| (level, cache));
        }
    }
    best.map(|(_, cache)| format!("{cache}/shared_cpu_list"))
}

fn list(tree: &Tree<'_>, path: &str) -> Option<Vec<u32>> {
    parse_cpu_list(&tree.read(path).ok()?).ok()
}
