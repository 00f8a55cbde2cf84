//! Pages of machines made by hand.

use super::super::example::{busy, card, lost, machine, machine_without_devices, mig, snapshot};
use super::*;
use crate::explain::Style;
use rankrun_core::device::{LinkKind, ProbeProblemKind};

fn text(machine: Machine, kind: Option<DeviceType>) -> String {
    page(&snapshot(machine, kind, None), kind).render(Style::Plain)
}

#[test]
fn idle_and_busy_cards_render_full_page() {
    let expected = "\
node17: 2 cuda devices

#  type  name                     memory free  °C  power W  clock MHz  use %  throttle
0  cuda  NVIDIA A100-SXM4-80GB  79.5/80.0 GiB  34   61/400   210/1410      0  idle
1  cuda  NVIDIA A100-SXM4-80GB  11.0/80.0 GiB  91  398/400  1275/1410    100  power limit, heat

warning: cuda 1: 91 °C, slowed down by heat; the hardware steps in at 92 °C
warning: cuda 1: slowed down by its power limit: 398 of 400 W
warning: cuda 1: busy with another user's process: pid 99 `python3`

#   pid    memory  owner     process
1  4711  60.0 GiB  yours     python train.py
1    99            uid 1001  python3

#  PCI address   NUMA  compute  UUID
0  0000:10:00.0     0  8.0      GPU-00000000-1111-2222-3333-444444444444
1  0000:11:00.0     0  8.0      GPU-00000001-1111-2222-3333-444444444444

";
    let all = text(machine(vec![card(0), busy(1)], LinkKind::Nvlink(2)), None);
    assert!(all.starts_with(expected), "{all}");
    assert!(all.contains("--device-order  devices in rank order\npci             0 1\n"), "{all}");
    assert!(all.ends_with("\n8 CPUs in 2 NUMA nodes: 0-3 on node 0, 4-7 on node 1\n"), "{all}");
    assert!(all.lines().all(|line| width(line) <= 100), "{all}");
}

#[test]
fn mig_instances_follow_card_and_lost_card_is_named() {
    let mut accelerators = mig(0).to_vec();
    accelerators.push(lost(1));
    let all = text(machine(accelerators, LinkKind::Sys), None);
    let expected = "\
node17: 2 cuda devices

#      type  name                        memory free  °C  power W  clock MHz  use %  throttle
0      cuda  NVIDIA A100-SXM4-80GB     79.5/80.0 GiB  34   61/400   210/1410      0  idle
  0:0  cuda  NVIDIA A100-SXM4-80GB M…   9.5/10.0 GiB
1      cuda  NVIDIA A100-SXM4-80GB                                                   does not answer

error: cuda 1: does not answer: GPU is lost

#      PCI address   NUMA  compute  UUID                                      full name
0      0000:10:00.0     0  8.0      GPU-00000000-1111-2222-3333-444444444444
  0:0  0000:10:00.0     0           MIG-00000000-1111-2222-3333-444444444444  NVIDIA A100-SXM4-80GB MIG 1g.10gb
1      0000:11:00.0     0           GPU-00000001-1111-2222-3333-444444444444
";
    assert!(all.starts_with(expected), "{all}");
}

#[test]
fn page_without_accelerators_lists_searched_sources() {
    let expected = "\
node17: no accelerators

type  looked for
cuda  NVML is not there: libnvidia-ml.so.1: cannot open shared object file
rocm  /sys/class/kfd is not there: no such folder

8 CPUs in 2 NUMA nodes: 0-3 on node 0, 4-7 on node 1
";
    assert_eq!(text(machine_without_devices(), None), expected);
    let rocm = text(machine_without_devices(), Some(DeviceType::Rocm));
    assert!(rocm.starts_with("node17: no rocm devices\n\ntype  looked for\nrocm  /sys/class/kfd"), "{rocm}");
    let cpu = text(machine(vec![card(0)], LinkKind::Sys), Some(DeviceType::Cpu));
    let expected = "node17: no accelerators\n\n8 CPUs in 2 NUMA nodes: 0-3 on node 0, 4-7 on node 1\n";
    assert_eq!(cpu, expected);
}

#[test]
fn hung_library_is_reported() {
    let source = "NVML".to_owned();
    let problem = ProbeProblem { kind: DeviceType::Cuda, source, what: ProbeProblemKind::Hung(20) };
    let hung = Machine { troubles: vec![problem], ..Machine::default() };
    assert!(snapshot(hung.clone(), None, None).is_blind());
    assert_eq!(
        text(hung, None),
        "node17: the accelerators are not known\n\nerror: cuda: NVML did not answer within 20 seconds\n"
    );
    assert!(!snapshot(machine_without_devices(), None, None).is_blind());
}

#[test]
fn process_name_loses_control_characters() {
    let mut card = busy(0);
    card.state.as_mut().unwrap().processes[0].name = Some("\x1b[2Jpy\nthon\r".to_owned());
    let all = text(machine(vec![card], LinkKind::Sys), None);
    assert!(all.contains("0  4711  60.0 GiB  yours     py thon\n"), "{all}");
    assert!(!all.contains('\x1b'), "{all}");
}

#[test]
fn devices_of_several_vendors_have_type_column() {
    let rocm =
        |index| Accelerator { kind: DeviceType::Rocm, name: "AMD Instinct MI300X".to_owned(), ..card(index) };
    let all = text(machine(vec![card(0), card(1), rocm(0), rocm(1)], LinkKind::Sys), None);
    assert!(all.starts_with("node17: 2 cuda devices, 2 rocm devices\n"), "{all}");
    assert!(
        all.contains("type  --device-order  devices in rank order\ncuda  pci             0 1\n"),
        "{all}"
    );
    assert!(all.contains("\nrocm  pci             0 1\n"), "{all}");
    let only = text(machine(vec![card(0), rocm(0), rocm(1)], LinkKind::Sys), Some(DeviceType::Rocm));
    assert!(only.starts_with("node17: 2 rocm devices\n"), "{only}");
    assert!(!only.contains("A100"), "{only}");
}

#[test]
fn hidden_device_names_its_variable() {
    let mut snapshot = snapshot(machine(vec![card(0), card(1)], LinkKind::Sys), None, None);
    snapshot.hidden_by[1] = Some("CUDA_VISIBLE_DEVICES".to_owned());
    let all = page(&snapshot, None).render(Style::Plain);
    assert!(
        all.contains(
            "1  0000:11:00.0     0  8.0      GPU-00000001-1111-2222-3333-444444444444  CUDA_VISIBLE_DEVICES\n"
        ),
        "{all}"
    );
    assert!(all.lines().all(|line| width(line) <= 100), "{all}");
}
