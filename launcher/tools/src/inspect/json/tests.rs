//! The objects of machines made by hand.

use serde_json::{Value, json};

use super::super::example::{busy, card, lost, machine, machine_without_devices, mig, nic, snapshot};
use super::*;
use rankrun_core::device::LinkKind;

fn value(bytes: &[u8]) -> Value {
    assert_eq!(bytes.last(), Some(&b'\n'));
    serde_json::from_slice(bytes).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn device_json_has_stable_keys() {
    let answer = value(&devices(&snapshot(machine(vec![card(0), busy(1)], LinkKind::Nvlink(2)), None, None)));
    let mut all = keys(&answer);
    all.sort_unstable();
    let names = ["cpus", "devices", "host", "links", "nics", "orders", "troubles", "version", "warnings"];
    assert_eq!(all, names);
    assert_eq!((&answer["version"], &answer["host"]), (&json!(1), &json!("node17")));
    assert_eq!(
        answer["devices"][0],
        json!({
            "type": "cuda", "index": 0, "selector": "0", "name": "NVIDIA A100-SXM4-80GB",
            "uuid": "GPU-00000000-1111-2222-3333-444444444444", "pci": "0000:10:00.0", "numa_node": 0,
            "memory_total_bytes": 85_899_345_920_u64, "memory_free_bytes": 85_362_475_008_u64,
            "part": "whole", "parent": null, "tile": null, "module_id": null, "answers": true, "lost_because": null,
            "hidden_by": null,
            "state": {
                "compute_capability": "8.0", "temperature_celsius": 34, "slowdown_temperature_celsius": 92,
                "power_milliwatts": 61_400, "power_limit_milliwatts": 400_000,
                "default_power_limit_milliwatts": 400_000, "clock_mhz": 210, "max_clock_mhz": 1410,
                "memory_clock_mhz": null, "utilisation_per_cent": 0, "throttle": ["idle"],
                "uncorrected_ecc_errors": 0, "retired_memory": null, "retirement_pending": false,
                "processes": [],
            },
        })
    );
    assert_eq!(answer["devices"][1]["state"]["throttle"], json!(["power_cap", "software_thermal"]));
    assert_eq!(
        answer["devices"][1]["state"]["processes"][1],
        json!({ "pid": 99, "name": "python3", "uid": 1001, "is_own": false, "memory_bytes": null })
    );
    assert_eq!(answer["links"], json!([{ "devices": [0, 1], "kind": "NV2" }]));
    assert_eq!(
        answer["orders"][0],
        json!({ "type": "cuda", "order": "pci", "devices": [0, 1], "error": null })
    );
    assert_eq!(
        answer["warnings"][1],
        json!({
            "device": 1, "severity": "warning",
            "text": "slowed down by its power limit: 398 of 400 W",
        })
    );
    assert_eq!(answer["cpus"]["count"], 8);
    assert_eq!(answer["cpus"]["cpus"][5], json!({ "id": 5, "package": 1, "siblings": "5", "cache": "5" }));
    assert_eq!(answer["cpus"]["nodes"][1], json!({ "id": 1, "cpus": [4, 5, 6, 7] }));
}

#[test]
fn json_describes_parts_and_lost_cards() {
    let mut accelerators = mig(3).to_vec();
    accelerators.push(lost(4));
    let answer = value(&devices(&snapshot(machine(accelerators, LinkKind::Sys), None, None)));
    let part = |at: usize| {
        let device = &answer["devices"][at];
        (
            device["part"].clone(),
            device["parent"].clone(),
            device["selector"].clone(),
            device["answers"].clone(),
        )
    };
    assert_eq!(part(0), (json!("mig_parent"), json!(null), json!("3"), json!(true)));
    assert_eq!(part(1), (json!("mig_instance"), json!(3), json!("3:0"), json!(true)));
    assert_eq!(part(2), (json!("whole"), json!(null), json!("4"), json!(false)));
    assert_eq!(answer["devices"][2]["lost_because"], "GPU is lost");
    assert_eq!(answer["warnings"][0]["severity"], "fatal");
}

#[test]
fn json_always_lists_missing_sources() {
    let answer = value(&devices(&snapshot(machine_without_devices(), None, None)));
    assert_eq!(answer["devices"], json!([]));
    assert_eq!(
        answer["troubles"][1],
        json!({
            "type": "rocm", "source": "/sys/class/kfd", "kind": "missing",
            "text": "/sys/class/kfd is not there: no such folder",
        })
    );
}

#[test]
fn topology_json_has_names_and_neighbours() {
    let mut machine = machine(vec![card(0), card(4)], LinkKind::Phb);
    machine.nics = vec![nic("mlx5_0", 0x20, 0, vec![LinkKind::Pix, LinkKind::Sys])];
    let answer = value(&topology(&machine, "node17"));
    assert_eq!(answer["names"], json!(["GPU0", "GPU4", "NIC0"]));
    assert_eq!(answer["matrix"], json!([["X", "PHB", "PIX"], ["PHB", "X", "SYS"], ["PIX", "SYS", "X"]]));
    assert_eq!(
        answer["devices"][1],
        json!({
            "name": "GPU4", "type": "cuda", "index": 4, "pci": "0000:14:00.0",
            "uuid": "GPU-00000004-1111-2222-3333-444444444444", "cpu_affinity": [4, 5, 6, 7],
            "numa_affinity": 1, "nearest_nics": ["NIC0"], "nearest_nic_link": "SYS",
        })
    );
    assert_eq!(
        answer["nics"][0],
        json!({ "name": "mlx5_0", "pci": "0000:20:00.0", "numa_node": 0, "links": ["PIX", "SYS"] })
    );
}
