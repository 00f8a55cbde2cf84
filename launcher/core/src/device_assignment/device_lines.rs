//! The line for each worker that names its device, and the line with the reason for the CPUs. Pure.

use crate::device::affinity::format_ranges;
use crate::device::{DeviceChoice, DeviceType, SettingNames, WorkerDevice};
use crate::notice::Notice;
use crate::plain::plain;
use crate::spec::CliFlavor;
use crate::spec::device_request::DeviceRequest;

/// One line for each worker that has a device, or one for all workers on the CPUs.
#[must_use]
pub fn device_lines(choice: &DeviceChoice, request: &DeviceRequest, cli_flavor: CliFlavor) -> Vec<Notice> {
    if request.quiet || cli_flavor == CliFlavor::Torchrun {
        return Vec::new();
    }
    let first = request.only_worker.map_or(0, |only| only.0);
    match &choice.cpu_reason {
        Some(reason) => {
            let ranks = match choice.workers.len() {
                1 => format!("rank {first}"),
                count => format!("ranks 0-{}", count - 1),
            };
            vec![Notice::OnCpus { line: format!("{ranks} → cpu: {}", plain(reason)) }]
        }
        None => worker_lines(first, &choice.workers, &request.setting_names()),
    }
}

/// One line for each worker that has a device, in columns, from this local rank on.
fn worker_lines(first: u32, workers: &[WorkerDevice], names: &SettingNames) -> Vec<Notice> {
    let rows = (first..).zip(workers).filter_map(|(rank, worker): (u32, _)| {
        let columns = |what: [String; 3]| {
            let [title, name, place] = what;
            [format!("rank {rank}"), format!("→ {worker}:"), title, name, place]
        };
        let Some(device) = worker.identity.as_ref() else {
            let unknown = "which device that is, the driver decides".to_owned();
            let is_on_device = worker.kind != DeviceType::Cpu;
            return is_on_device.then(|| (columns([unknown, String::new(), String::new()]), String::new()));
        };
        let place = device.accelerator.pci.map_or_else(String::new, |pci| format!("({pci})"));
        let cpus = worker.cpus.as_deref().map_or_else(String::new, |cpus| {
            let plural = if cpus.len() == 1 { "" } else { "s" };
            format!(", CPU{plural} {}", format_ranges(cpus))
        });
        let columns = columns([device.title(), plain(&device.accelerator.name), place]);
        Some((columns, format!(", by {}{cpus}", device.chosen_by(names))))
    });
    let rows: Vec<_> = rows.collect();
    let widest = |column: usize| rows.iter().map(|(row, _)| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(widest).collect();
    let line = |(columns, method): &([String; 5], String)| {
        let columns = columns.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let padded: Vec<String> = columns.map(|(text, width)| format!("{text:<width$}")).collect();
        Notice::WorkerDevice { line: format!("{}{method}", padded.join(" ").trim_end()) }
    };
    rows.iter().map(line).collect()
}
