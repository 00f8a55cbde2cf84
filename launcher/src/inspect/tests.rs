//! The whole room in a made-up world.

use std::time::Duration;

use super::example::{bare, card, machine};
use super::*;
use crate::device::{LinkKind, Trouble, TroubleKind};
use crate::facts::fake::FakeWorld;

const LIMIT: Duration = Duration::from_secs(1);

fn devices(kind: Option<DeviceType>, manner: Manner) -> Inspect {
    Inspect { subject: Subject::Devices { kind }, manner, limit: LIMIT }
}

fn topo(manner: Manner) -> Inspect {
    Inspect { subject: Subject::Topo, manner, limit: LIMIT }
}

fn told(machine: Machine, question: Inspect) -> Result<Told, InspectError> {
    inspect(question, &FakeWorld::new().machine(machine).facts(&[]), Style::Plain, true)
}

#[test]
fn both_questions_are_answered_in_both_manners() {
    let two = || machine(vec![card(0), card(1)], LinkKind::Nvlink(2));
    for (question, part) in [
        (devices(None, Manner::Text), ": 2 cuda devices\n"),
        (devices(Some(DeviceType::Rocm), Manner::Text), ": no rocm devices\n"),
        (devices(None, Manner::Json), "\"selector\": \"1\""),
        (topo(Manner::Text), "GPU1  NV2    X "),
        (topo(Manner::Json), "\"NV2\""),
    ] {
        let told = told(two(), question).unwrap();
        let text = String::from_utf8(told.text).unwrap();
        assert!(text.contains(part), "{question:?}: {text}");
        assert_eq!(told.status, ExitStatus::SUCCESS);
    }
}

#[test]
fn it_fails_only_where_nothing_could_be_told() {
    let trouble = Trouble {
        kind: DeviceType::Cuda,
        source: "NVML".to_owned(),
        what: TroubleKind::Crashed("SIGSEGV".to_owned()),
    };
    let broken = |machine: Machine| Machine { troubles: vec![trouble.clone()], ..machine };
    for question in [devices(None, Manner::Json), topo(Manner::Text)] {
        let status = |machine| told(machine, question).unwrap().status;
        assert_eq!(status(bare()), ExitStatus::SUCCESS);
        assert_eq!(status(broken(bare())), ExitStatus::Code(1));
        assert_eq!(status(broken(machine(vec![card(0)], LinkKind::Sys))), ExitStatus::SUCCESS);
    }
}

#[test]
fn what_is_no_terminal_is_not_watched() {
    let question = devices(None, Manner::Watch(Duration::from_secs(2)));
    let error = told(bare(), question).unwrap_err();
    assert!(matches!(error, InspectError::NoTerminal));
    assert!(error.hint().is_some_and(|hint| hint.contains("--json")));
}
