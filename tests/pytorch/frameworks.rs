//! Training frameworks that recognise torchrun by its environment, on two CPU ranks.

use harness::{Launch, Name, Scratch, frameworks, python_modules};

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

#[test]
fn lightning_detects_torchrun_environment() {
    let scratch = Scratch::new();
    let output = assert_same_lines(": loss ", |name| framework(name, "lightning_ddp.py", &scratch));
    let [line] = &output[..] else { panic!("one rank reports: {output:?}") };
    assert!(line.starts_with("TorchElasticEnvironment, world size 2: loss "), "{line}");
    assert!(number_after(line, "loss ") < 1.0, "{line}");
}
