//! Training frameworks that recognise torchrun by its environment, on two CPU ranks.

use harness::{Launch, Name, Scratch, fixture, frameworks, python_modules};
use serde_json::Value;

use crate::programs::{assert_same_lines, number_after, script};

/// The script, with the frameworks and without the network.
fn framework(name: Name, program: &str, scratch: &Scratch) -> Launch {
    let launch = script(name, program).args([scratch.at("output")]);
    launch.env("PYTHONPATH", python_modules(&[frameworks()])).env("HF_HUB_OFFLINE", "1")
}

#[test]
fn hugging_face_trainer_trains_on_both_ranks() {
    let scratch = Scratch::new();
    let output = assert_same_lines(": loss ", |name| framework(name, "hf_trainer.py", &scratch));
    let [line] = &output[..] else { panic!("one rank reports: {output:?}") };
    assert!(line.starts_with("distributed, world size 2: loss "), "{line}");
    // It begins near ln 16 = 2.77; this is the mean over the training.
    assert!(number_after(line, "loss ") < 2.5, "{line}");
}

/// A proxy of the user is not asked for the way to the launcher.
#[test]
fn steps_of_hugging_face_trainer_are_in_status() {
    let scratch = Scratch::new();
    let runtime = scratch.folder("runtime", 0o700);
    let launch = framework(Name::Rankrun, "hf_trainer.py", &scratch).env("RANKRUN_PROGRESS", "trainer");
    let launch = launch.env("XDG_RUNTIME_DIR", runtime).env("E2E_RANKRUN", fixture("launcher-under-test"));
    let outcome = launch.env("http_proxy", "http://127.0.0.1:9").env("NO_PROXY", "example.org").run();
    let stdout = outcome.expect_exit_code(0).stdout();
    let json = stdout.split_once("\n{\n").and_then(|(_, json)| json.rsplit_once("\n}"));
    let (json, _) = json.unwrap_or_else(|| panic!("rank 0 prints a status: {outcome}"));
    let status: Value = serde_json::from_str(&format!("{{{json}}}")).expect("it is JSON");
    let training = &status["training"];
    assert_eq!((&training["step"], &training["total_steps"]), (&10.into(), &10.into()), "{outcome}");
    assert_eq!(training["remaining_seconds"], 0, "{outcome}");
    // It begins near ln 16 = 2.77.
    assert!(training["loss"].as_f64().is_some_and(|loss| (0.1..2.5).contains(&loss)), "{outcome}");
}

#[test]
fn lightning_detects_torchrun_environment() {
    let scratch = Scratch::new();
    let output = assert_same_lines(": loss ", |name| framework(name, "lightning_ddp.py", &scratch));
    let [line] = &output[..] else { panic!("one rank reports: {output:?}") };
    assert!(line.starts_with("TorchElasticEnvironment, world size 2: loss "), "{line}");
    assert!(number_after(line, "loss ") < 1.0, "{line}");
}
