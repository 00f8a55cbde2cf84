//! The reason why workers run on the CPUs: from the variables, the snapshot of the machine, and its device nodes.
//! Pure.

#[cfg(test)]
mod tests;

use super::choice::{ChoiceWarning, number};
use super::{DeviceType, Machine, Part, ProbeProblem};

/// Everything that the reason depends on.
pub(crate) struct CpuFacts<'a> {
    /// Reads one variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The snapshot of the machine; `None` in a launch that does not probe.
    pub machine: Option<&'a Machine>,
    /// Warnings of the choice that found no device.
    pub warnings: &'a [ChoiceWarning],
    /// The types with a device node of their driver.
    pub device_nodes: &'a [DeviceType],
    /// Whether there is any driver library or device node.
    pub has_accelerator_sign: bool,
}

/// A vendor's names for its driver and its variables.
struct VendorNames {
    kind: DeviceType,
    driver: &'static str,
    node: &'static str,
    /// The lists that a worker process reads itself.
    lists: &'static [&'static str],
    /// The container runtime reads this one.
    container_list: Option<&'static str>,
}

const VENDORS: [VendorNames; 5] = [
    VendorNames {
        kind: DeviceType::Cuda,
        driver: "the NVIDIA driver",
        node: "/dev/nvidiactl",
        lists: &["CUDA_VISIBLE_DEVICES"],
        container_list: Some("NVIDIA_VISIBLE_DEVICES"),
    },
    VendorNames {
        kind: DeviceType::Rocm,
        driver: "the AMD driver",
        node: "/dev/kfd",
        lists: &["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"],
        container_list: None,
    },
    VendorNames {
        kind: DeviceType::Xpu,
        driver: "the Intel GPU driver",
        node: "/dev/dri",
        lists: &["ZE_AFFINITY_MASK"],
        container_list: None,
    },
    VendorNames {
        kind: DeviceType::Hpu,
        driver: "the Gaudi driver",
        node: "/dev/accel",
        lists: &["HABANA_VISIBLE_MODULES"],
        container_list: Some("HABANA_VISIBLE_DEVICES"),
    },
    VendorNames {
        kind: DeviceType::Npu,
        driver: "the Ascend driver",
        node: "/dev/davinci_manager",
        lists: &["ASCEND_RT_VISIBLE_DEVICES"],
        container_list: Some("ASCEND_VISIBLE_DEVICES"),
    },
];

/// The request that the value of a list makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestedDevices {
    Devices,
    Cpus,
    /// An empty value; some vendors take it for an unset one.
    Nothing,
}

/// Slurm writes it when a task has no GPU.
const SLURM_NONE: &str = "NoDevFiles";

/// The reason; a variable that asks for devices comes first, then one that hides them all: the user asked for the CPUs,
/// and needs none.
#[must_use]
pub(crate) fn find_cpu_reason(facts: &CpuFacts<'_>) -> Option<String> {
    if let Some(lost_entries) = describe_lost_entries(facts.warnings) {
        return Some(lost_entries);
    }
    let processes = VENDORS.iter().map(|vendor| (vendor, vendor.lists));
    let found = requesting_variable(facts, processes);
    let containers = VENDORS.iter().map(|vendor| (vendor, vendor.container_list.as_slice()));
    let found = found.or_else(|| {
        requesting_variable(facts, containers)
            .filter(|(_, _, _, wanted)| *wanted == RequestedDevices::Devices)
    });
    match found {
        None => Some(no_usable_device_reason(facts)),
        Some((.., RequestedDevices::Cpus | RequestedDevices::Nothing)) => None,
        Some((_, name, value, RequestedDevices::Devices)) if value.trim() == SLURM_NONE => {
            Some(format!("`{name}={value}`: Slurm gave this task no GPU; `--gres=gpu:N` asks for them"))
        }
        Some((vendor, name, value, RequestedDevices::Devices)) => {
            let why = unmet_request_reason(vendor, facts);
            let way_out = match facts.device_nodes.contains(&vendor.kind) {
                true => "`rankrun devices` shows what is there",
                false => "start the container or job step with its devices",
            };
            Some(format!(
                "`{name}={value}` asks for devices, and {why}; {way_out}, or say `--device-type cpu` if CPUs are meant"
            ))
        }
    }
}

/// Every list that lost all of its entries, with the vendor's rule.
fn describe_lost_entries(warnings: &[ChoiceWarning]) -> Option<String> {
    let lost = warnings.iter().filter_map(|warning| match warning {
        ChoiceWarning::Dropped { variable, value, because } => {
            Some(format!("`{variable}={}` leaves no device: {because}", value.to_string_lossy()))
        }
        _ => None,
    });
    let lost: Vec<String> = lost.collect();
    (!lost.is_empty()).then(|| format!("{}; compare with `rankrun devices`", lost.join("; ")))
}

type VariableValue<'a> = (&'a VendorNames, &'static str, String, RequestedDevices);

/// The first vendor with a list that asks for devices; else the first list that asks for none.
fn requesting_variable<'a>(
    facts: &CpuFacts<'_>,
    lists: impl Iterator<Item = (&'a VendorNames, &'static [&'static str])>,
) -> Option<VariableValue<'a>> {
    let mut none = None;
    for (vendor, names) in lists {
        let values = names.iter().filter_map(|name| {
            let value = (facts.variable)(name)?;
            let wanted = parse_requested_devices(&value);
            Some((vendor, *name, value, wanted))
        });
        let values: Vec<VariableValue<'a>> = values.collect();
        let find = |kind: RequestedDevices| values.iter().find(|(.., wanted)| *wanted == kind);
        match find(RequestedDevices::Cpus)
            .or_else(|| find(RequestedDevices::Devices))
            .or_else(|| values.first())
        {
            Some(found @ (.., RequestedDevices::Devices)) => return Some(found.clone()),
            Some(found) => none = none.or_else(|| Some(found.clone())),
            None => {}
        }
    }
    none
}

fn parse_requested_devices(value: &str) -> RequestedDevices {
    match value.trim() {
        "" => RequestedDevices::Nothing,
        "-1" | "none" | "void" => RequestedDevices::Cpus,
        _ => RequestedDevices::Devices,
    }
}

/// The reason why there is no device of this vendor.
fn unmet_request_reason(vendor: &VendorNames, facts: &CpuFacts<'_>) -> String {
    let there = |machine: &Machine| machine.accelerators.iter().any(|device| device.kind == vendor.kind);
    let hidden = facts.machine.filter(|machine| there(machine));
    if let Some(reason) = hidden.and_then(mig_without_instances) {
        return reason;
    }
    if hidden.is_some() {
        return format!("none of the {} devices here is in it", vendor.kind);
    }
    let problem = facts.machine.and_then(|machine| main_problem(vendor, machine));
    let has_node = facts.device_nodes.contains(&vendor.kind);
    match (problem, has_node) {
        (Some(problem), true) => format!("`{}` is here, but {problem}", vendor.node),
        (None, true) => format!("`{}` is here, but no device answers", vendor.node),
        (problem, false) => {
            let reason = problem.filter(|problem| is_specific(problem)).map(|problem| format!("; {problem}"));
            format!("{} is missing: no `{}`{}", vendor.driver, vendor.node, reason.unwrap_or_default())
        }
    }
}

/// A card that the kernel lists without its node comes before a missing library.
fn main_problem<'a>(vendor: &VendorNames, machine: &'a Machine) -> Option<&'a ProbeProblem> {
    let mut problems = machine.troubles.iter().filter(|problem| problem.kind == vendor.kind);
    problems.clone().find(|problem| is_closed_node(problem)).or_else(|| problems.next())
}

fn is_closed_node(problem: &ProbeProblem) -> bool {
    problem.source.starts_with("/dev/") && problem.kind != DeviceType::Npu
}

/// Whether a trouble says more than that the driver's own folder is missing.
fn is_specific(problem: &ProbeProblem) -> bool {
    is_closed_node(problem) || problem.kind == DeviceType::Cuda
}

/// No variable is set: names the missing driver, library or device node.
fn no_usable_device_reason(facts: &CpuFacts<'_>) -> String {
    let Some(machine) = facts.machine else { return no_accelerator_reason(facts) };
    if let Some(reason) = mig_without_instances(machine) {
        return reason;
    }
    if let Some(device) = machine.accelerators.iter().find(|device| device.integrated) {
        let (kind, name, index) = (device.kind, &device.name, number(device));
        return format!(
            "the processor's own GPU ({kind} {index}, {name}) is used only where `--device-type {kind}` asks for it"
        );
    }
    // Intel's nodes are the screen's as well.
    let mut listed = VENDORS.iter().filter(|vendor| vendor.kind != DeviceType::Xpu);
    let closed = listed.clone().find_map(|vendor| {
        main_problem(vendor, machine)
            .filter(|problem| is_closed_node(problem))
            .map(|problem| (vendor, problem))
    });
    if let Some((vendor, problem)) = closed {
        return format!("the kernel lists a {} device, but {problem}", vendor.kind);
    }
    // Other drivers have nodes in `/dev/accel` and `/dev/dri`.
    let has_own_node =
        |vendor: &&VendorNames| matches!(vendor.kind, DeviceType::Cuda | DeviceType::Rocm | DeviceType::Npu);
    let with_node = listed.find(|vendor| has_own_node(vendor) && facts.device_nodes.contains(&vendor.kind));
    match with_node.and_then(|vendor| Some((vendor, main_problem(vendor, machine)?))) {
        Some((vendor, problem)) => format!("`{}` is here, but {problem}", vendor.node),
        None => no_accelerator_reason(facts),
    }
}

fn no_accelerator_reason(facts: &CpuFacts<'_>) -> String {
    let nothing = if facts.has_accelerator_sign { "" } else { ": no driver library and no device node" };
    format!("no accelerator is found{nothing}")
}

/// A card in MIG mode without instances, where all cards are so.
fn mig_without_instances(machine: &Machine) -> Option<String> {
    let is_parent = |part: Part| part == Part::MigParent;
    let all =
        !machine.accelerators.is_empty() && machine.accelerators.iter().all(|device| is_parent(device.part));
    all.then(|| "every GPU is in MIG mode and has no instances".to_owned())
}
