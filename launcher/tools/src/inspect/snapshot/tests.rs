//! Snapshots of machines made by hand.

use super::super::example::{OWN, busy, card, context, machine, machine_without_devices, nic, snapshot};
use super::*;
use rankrun_core::device::LinkKind;

#[test]
fn device_type_filter_keeps_links() {
    let rocm = |index| Accelerator { kind: DeviceType::Rocm, ..card(index) };
    let mut all = machine(vec![card(0), rocm(0), rocm(1)], LinkKind::Sys);
    all.links[2].kind = LinkKind::Xgmi;
    all.nics = vec![nic("eth0", 1, 0, vec![LinkKind::Sys, LinkKind::Pix, LinkKind::Phb])];
    let found = snapshot(all, Some(DeviceType::Rocm), None).machine;
    assert_eq!(found.accelerators, [rocm(0), rocm(1)]);
    assert_eq!(found.links, [DeviceLink { a: 0, b: 1, kind: LinkKind::Xgmi }]);
    assert_eq!(found.nics[0].links, [LinkKind::Pix, LinkKind::Phb]);
}

#[test]
fn each_order_is_listed_for_each_type() {
    let rocm = Accelerator { kind: DeviceType::Rocm, ..card(0) };
    let shown = snapshot(machine(vec![card(0), card(1), rocm], LinkKind::Sys), None, None);
    let orders: Vec<_> = shown.orders.iter().map(|order| (order.kind, order.order)).collect();
    let all = |kind| DeviceOrder::ALL.into_iter().map(move |order| (kind, order));
    assert!(orders.into_iter().eq(all(DeviceType::Cuda).chain(all(DeviceType::Rocm))));
    assert_eq!(shown.orders[0].devices, Ok(vec![0, 1]));
    assert_eq!(shown.orders[5].devices, Ok(vec![2]));
    assert_eq!(snapshot(machine_without_devices(), None, None).orders, []);
}

#[test]
fn single_device_order_skips_driver_query() {
    let inherited = InheritedVariables::default();
    let snapshot = MachineSnapshot::of(
        machine(vec![card(0)], LinkKind::Sys),
        None,
        &context(&inherited, &|| panic!("the driver was asked")),
    );
    assert!(snapshot.orders.iter().all(|order| order.devices == Ok(vec![0])));
}

#[test]
fn findings_and_small_cards_give_warnings() {
    let mut small = card(1);
    small.memory = Some(rankrun_core::device::Memory { total: 24 << 30, free: Some(24 << 30) });
    let snapshot = snapshot(machine(vec![busy(0), small], LinkKind::Sys), None, None);
    let warnings: Vec<_> =
        snapshot.warnings.iter().map(|warning| (warning.device, warning.severity)).collect();
    let (warning, note) = (Severity::Warning, Severity::Note);
    assert_eq!(
        warnings,
        [(Some(0), warning), (Some(0), warning), (Some(0), warning), (Some(0), note), (Some(1), warning)]
    );
    assert_eq!(snapshot.warnings[4].text, "24.0 GiB of memory, less than half of the largest's 80.0 GiB");
    assert_eq!(snapshot.own_uid, OWN);
}

#[test]
fn hiding_variables_are_listed_per_device_type() {
    let set = InheritedVariables {
        cuda: Some("".into()),
        hip: Some("0".into()),
        rocr: Some("1".into()),
        ..InheritedVariables::default()
    };
    assert_eq!(hiding_variables(DeviceType::Cuda, &set).as_deref(), Some("CUDA_VISIBLE_DEVICES"));
    assert_eq!(
        hiding_variables(DeviceType::Rocm, &set).as_deref(),
        Some("ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES")
    );
    assert_eq!(hiding_variables(DeviceType::Xpu, &set), None);
}

#[test]
fn devices_invisible_to_launch_are_marked_hidden() {
    let hidden = |cuda: &str| {
        let snapshot = snapshot(machine((0..4).map(card).collect(), LinkKind::Sys), None, Some(cuda));
        let hidden: Vec<usize> = (0..4).filter(|at| snapshot.hidden_by[*at].is_some()).collect();
        let listed = snapshot.orders.iter().find(|order| order.order == DeviceOrder::AsListed);
        (hidden, listed.and_then(|order| order.devices.clone().ok()))
    };
    assert_eq!(hidden("3,1"), (vec![0, 2], Some(vec![3, 1])));
    assert_eq!(hidden(""), (vec![0, 1, 2, 3], Some(vec![])));
    assert_eq!(hidden("-1"), (vec![0, 1, 2, 3], Some(vec![])));
    assert_eq!(hidden("0,1,2,3").0, [0; 0]);
}

#[test]
fn dropped_variable_entries_give_warning() {
    let snapshot = snapshot(machine(vec![card(0), card(1)], LinkKind::Sys), None, Some("0,7"));
    let message: Vec<&str> = snapshot.warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert!(message.iter().any(|text| text.contains("`CUDA_VISIBLE_DEVICES=0,7`")), "{message:?}");
}
