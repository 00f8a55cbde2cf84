//! `devices` and `topo` as a whole, on machines made by hand.

use std::time::Duration;

use super::example::{card, machine, machine_without_devices};
use super::*;
use rankrun_core::device::{LinkKind, ProbeProblem, ProbeProblemKind};
use rankrun_core::facts::fake::FakeWorld;

const LIMIT: Duration = Duration::from_secs(1);

const TEXT: OutputMode = OutputMode::Once(OutputFormat::Text);
const JSON: OutputMode = OutputMode::Once(OutputFormat::Json);

fn devices(kind: Option<DeviceType>, mode: OutputMode) -> InspectRequest {
    InspectRequest { subject: Subject::Devices { device_type: kind, ids: Vec::new() }, mode, limit: LIMIT }
}

fn topo(kind: OutputMode) -> InspectRequest {
    InspectRequest { subject: Subject::Topo, mode: kind, limit: LIMIT }
}

fn run_inspect(machine: Machine, question: InspectRequest) -> Result<InspectOutput, InspectError> {
    inspect(&question, &FakeWorld::default().machine(machine).facts(&[]), Style::Plain, true)
}

#[test]
fn devices_and_topo_render_as_text_and_json() {
    let two = || machine(vec![card(0), card(1)], LinkKind::Nvlink(2));
    for (question, part) in [
        (devices(None, TEXT), ": 2 cuda devices\n"),
        (devices(Some(DeviceType::Rocm), TEXT), ": no rocm devices\n"),
        (devices(None, JSON), "\"selector\": \"1\""),
        (topo(TEXT), "GPU1  NV2    X "),
        (topo(JSON), "\"NV2\""),
    ] {
        let report = run_inspect(two(), question.clone()).unwrap();
        let text = String::from_utf8(report.text).unwrap();
        assert!(text.contains(part), "{question:?}: {text}");
        assert_eq!(report.status, ExitStatus::SUCCESS);
    }
}

#[test]
fn exit_code_fails_only_if_no_device_is_known() {
    let problem = ProbeProblem {
        kind: DeviceType::Cuda,
        source: "NVML".to_owned(),
        what: ProbeProblemKind::Crashed("SIGSEGV".to_owned()),
    };
    let broken = |machine: Machine| Machine { troubles: vec![problem.clone()], ..machine };
    for question in [devices(None, JSON), topo(TEXT)] {
        let status = |machine| run_inspect(machine, question.clone()).unwrap().status;
        assert_eq!(status(machine_without_devices()), ExitStatus::SUCCESS);
        assert_eq!(status(broken(machine_without_devices())), ExitStatus::Code(1));
        assert_eq!(status(broken(machine(vec![card(0)], LinkKind::Sys))), ExitStatus::SUCCESS);
    }
}

#[test]
fn watch_without_terminal_is_refused() {
    let question = devices(None, OutputMode::Watch(Duration::from_secs(2)));
    let error = run_inspect(machine_without_devices(), question).unwrap_err();
    assert!(matches!(error, InspectError::NoTerminal));
    assert!(error.hint().is_some_and(|hint| hint.contains("--json")));
}

#[test]
fn device_ids_filter_devices_and_unknown_id_is_error() {
    let ask = |ids: &[&str], mode| {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let question =
            InspectRequest { subject: Subject::Devices { device_type: None, ids }, mode, limit: LIMIT };
        run_inspect(machine(vec![card(0), card(1), card(2)], LinkKind::Nvlink(2)), question)
            .map(|report| String::from_utf8(report.text).unwrap())
    };
    let uuid = card(1).uuid.unwrap();
    let address = card(1).pci.unwrap().to_string();
    for id in ["1", &uuid, &uuid[..12], &uuid.to_lowercase(), &address] {
        let text = ask(&[id], TEXT).unwrap();
        assert!(text.contains(": 1 cuda device\n") && text.contains(&uuid), "{id}: {text}");
    }
    let json = ask(&["2", "0"], JSON).unwrap();
    assert!(json.contains("\"selector\": \"0\"") && json.contains("\"selector\": \"2\""), "{json}");
    assert!(!json.contains("\"selector\": \"1\""), "{json}");
    for id in ["3", "", "GPU", "-1", "x"] {
        let error = ask(&["0", id], TEXT).unwrap_err();
        assert!(error.to_string().contains(&format!("no device `{id}` here, only ")), "{error}");
        assert!(error.hint().is_some());
    }
}
