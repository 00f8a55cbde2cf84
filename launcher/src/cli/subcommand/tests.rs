use std::ffi::OsStr;

use super::*;
use crate::cli::Command;
use crate::cli::error::CliError;
use rankrun_core::facts::fake::FakeWorld;
use rankrun_core::gc::{GcMode, GcRequest};
use rankrun_core::spec::OutputFormat;
use rankrun_tools::control::command::{ControlCommand, ControlVerb, JobVerb};
use rankrun_tools::inspect::{InspectRequest, OutputMode, Subject};
use rankrun_tools::shim::{Launcher, ShimCommand, ShimRequest};

const TEXT: OutputMode = OutputMode::Once(OutputFormat::Text);
const JSON: OutputMode = OutputMode::Once(OutputFormat::Json);

fn command_of(line: &str) -> Result<Command, String> {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let facts = FakeWorld::default().facts(&[("RANKRUN_PROBE_TIMEOUT", "7")]);
    let name = find_subcommand(&words, &facts).expect(line);
    interpret(name, (OsStr::new("rankrun"), &words), &facts).map_err(|error: CliError| error.render())
}

#[test]
fn inspect_options_are_accepted_in_any_order() {
    let limit = Duration::from_secs(7);
    let inspect = |subject, mode| Ok(Command::Inspect(InspectRequest { subject, mode, limit }));
    let devices = |device_type, mode| inspect(Subject::Devices { device_type, ids: Vec::new() }, mode);
    let some = |ids: &[&str]| {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        inspect(Subject::Devices { device_type: None, ids }, TEXT)
    };
    let every = |seconds| OutputMode::Watch(Duration::from_secs_f64(seconds));
    for (line, command) in [
        ("devices", devices(None, TEXT)),
        ("devices --json", devices(None, JSON)),
        ("devices --watch", devices(None, every(2.0))),
        ("devices --watch=0.5 --device-type cuda", devices(Some(DeviceType::Cuda), every(0.5))),
        ("devices --device_type=rocm --json", devices(Some(DeviceType::Rocm), JSON)),
        ("devices -i 1", some(&["1"])),
        ("devices --id=0,GPU-77 -i 0000:1b:00.0", some(&["0", "GPU-77", "0000:1b:00.0"])),
        ("topo", inspect(Subject::Topo, TEXT)),
        ("topo -m", inspect(Subject::Topo, TEXT)),
        ("topo --matrix --json", inspect(Subject::Topo, JSON)),
        ("topo --json", inspect(Subject::Topo, JSON)),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
    for (line, usage) in
        [("topo --json -h", "Usage: rankrun topo"), ("devices --help", "Usage: rankrun devices")]
    {
        assert!(matches!(command_of(line), Ok(Command::Print(text)) if text.contains(usage)), "{line}");
    }
}

#[test]
fn unknown_inspect_argument_is_named() {
    for (line, part) in [
        ("devices --jsn", "`rankrun devices` does not know `--jsn`"),
        ("devices 3", "does not know `3`"),
        ("devices --json=1", "`--json` takes no value, but has `1`"),
        ("devices --watch=0", "`--watch` is `0`, which is not a number of seconds from 0.1 to 86400"),
        ("devices --watch=nan", "`nan`"),
        ("devices --watch=", "`--watch` is empty, which is not a number of seconds"),
        ("devices --watch 2", "does not know `2`"),
        ("devices --watch --json", "`--json` and `--watch` exclude each other"),
        ("devices --device-type", "`--device-type` needs a value"),
        ("devices --device-type gpu", "`gpu`, which is not one of `cuda`, `rocm`"),
        ("devices --probe-timeout", "`--probe-timeout` needs a value"),
        ("topo --probe-timeout=0", "`--probe-timeout`"),
        ("devices -i", "`--id` needs a value"),
        ("devices --jsn", "did you mean `--json`?"),
        ("help devices nodes", "`rankrun help` takes one topic, and `nodes` is another one"),
        ("help devices nodes", "ask for one after the other: `rankrun help nodes`"),
        ("devices --type cuda", "did you mean `--device-type`?"),
        ("devices -l 1", "`--watch=1`"),
        ("topo -i 1", "does not know `-i`"),
        ("topo --watch", "`rankrun topo` does not know `--watch`"),
        ("topo --device-type cuda", "does not know `--device-type`"),
    ] {
        let error = command_of(line).unwrap_err();
        assert!(error.contains(part) && error.contains("\nhint: "), "`{line}`: {error}");
    }
}

#[test]
fn control_options_and_job_are_accepted_in_any_order() {
    let control = |verb, job: Option<&str>, format| {
        let verb = ControlVerb::Job(verb);
        Ok(Command::Control(ControlCommand { verb, job: job.map(str::to_owned), format }))
    };
    let list = ControlCommand { verb: ControlVerb::List, job: None, format: OutputFormat::Json };
    use {JobVerb::*, OutputFormat::*};
    assert_eq!(command_of("ls --json"), Ok(Command::Control(list)));
    assert_eq!(command_of("status"), control(Status, None, Text));
    assert_eq!(command_of("status --json 12ab"), control(Status, Some("12ab"), Json));
    assert_eq!(command_of("status 12ab --check"), control(Check, Some("12ab"), Text));
    assert_eq!(command_of("stop 12ab"), control(Stop, Some("12ab"), Text));
    assert_eq!(command_of("stop --wait 12ab"), control(StopAndWait, Some("12ab"), Text));
    assert_eq!(command_of("restart 12ab"), control(Restart, Some("12ab"), Text));
    for name in ["ls", "status", "stop", "restart"] {
        let help = format!("Usage: rankrun {name}");
        let printed = command_of(&format!("{name} x --help"));
        assert!(matches!(printed, Ok(Command::Print(text)) if text.contains(&help)), "{name}");
    }
}

#[test]
fn unknown_control_argument_is_refused() {
    for (line, word) in [
        ("ls 12ab", "12ab"),
        ("ls --check", "--check"),
        ("status --wait", "--wait"),
        ("status a b", "b"),
        ("stop --json a", "--json"),
        ("restart --wait a", "--wait"),
    ] {
        let name = line.split(' ').next().unwrap();
        let message = format!("`rankrun {name}` does not know `{word}`");
        assert!(command_of(line).unwrap_err().contains(&message), "{line}");
    }
    for name in ["stop", "restart"] {
        let refusal = command_of(name).unwrap_err();
        assert!(refusal.contains(&format!("`rankrun {name}` needs the job")), "{refusal}");
        assert!(refusal.contains("`rankrun ls` lists"), "{refusal}");
    }
}

#[test]
fn gc_options_are_accepted_in_any_order() {
    let gc = |mode, format| Ok(Command::Gc(GcRequest { mode, format }));
    assert_eq!(command_of("gc"), gc(GcMode::End, OutputFormat::Text));
    assert_eq!(command_of("gc --dry-run"), gc(GcMode::List, OutputFormat::Text));
    assert_eq!(command_of("gc --json --dry_run"), gc(GcMode::List, OutputFormat::Json));
    assert_eq!(command_of("gc --force --json"), gc(GcMode::EndAll, OutputFormat::Json));
    for dry in ["--force --dry-run", "--dry-run --force"] {
        assert_eq!(command_of(&format!("gc {dry}")), gc(GcMode::List, OutputFormat::Text));
    }
    assert!(
        matches!(command_of("gc --json -h"), Ok(Command::Print(text)) if text.contains("Usage: rankrun gc"))
    );
}

#[test]
fn unknown_gc_argument_is_refused() {
    for (line, message) in [
        ("gc --dry", "`rankrun gc` does not know `--dry`"),
        ("gc 4711", "`rankrun gc` does not know `4711`"),
        ("gc --dry-run=yes", "`--dry-run` takes no value, but has `yes`"),
        ("gc --json=1", "`--json` takes no value, but has `1`"),
    ] {
        let error = command_of(line).unwrap_err();
        assert!(error.contains(message) && error.contains("\nhint: "), "{line}: {error}");
    }
}

#[test]
fn shim_arguments_are_accepted_in_any_order() {
    let shim = |command, python: Option<&str>| {
        Ok(Command::Shim(ShimRequest { command, python: python.map(OsString::from) }))
    };
    assert_eq!(command_of("shim on"), shim(ShimCommand::On(vec![]), None));
    let both = vec![Launcher::Accelerate, Launcher::Deepspeed];
    for line in ["on --also accelerate,deepspeed", "--also=accelerate on --also deepspeed"] {
        assert_eq!(command_of(&format!("shim {line}")), shim(ShimCommand::On(both.clone()), None), "{line}");
    }
    assert_eq!(command_of("shim off --python /a/python"), shim(ShimCommand::Off, Some("/a/python")));
    assert_eq!(command_of("shim --python=/a/python on"), shim(ShimCommand::On(vec![]), Some("/a/python")));
    assert_eq!(command_of("shim --json status"), shim(ShimCommand::Status(OutputFormat::Json), None));
    assert_eq!(command_of("shim status"), shim(ShimCommand::Status(OutputFormat::Text), None));
    assert!(matches!(command_of("shim on --help"), Ok(Command::Print(_))));
}

#[test]
fn unknown_shim_argument_is_named() {
    for (line, part) in [
        ("shim", "needs one of on, off or status"),
        ("shim --json", "needs one of on, off or status"),
        ("shim of", "does not know `of`"),
        ("shim on off", "does not know `off`"),
        ("shim on --json", "does not know `--json`"),
        ("shim on --python", "`--python` needs a value"),
        ("shim status --jason", "does not know `--jason`"),
        ("shim off --also accelerate", "does not know `--also`"),
        ("shim on --also", "`--also` needs a value"),
        ("shim on --also accelerate,horovodrun", "which is not one of `accelerate`, `deepspeed`"),
    ] {
        let error = command_of(line).unwrap_err();
        assert!(error.contains(part) && error.contains("\nhint: "), "`{line}`: {error}");
    }
}

#[test]
fn help_for_unknown_word_suggests_topic() {
    for (line, hint) in [
        ("help tests", "`rankrun help` does not know `tests`"),
        ("help tests", "it knows devices, nodes, restarts, stopping, output"),
        ("help restrts", "did you mean `rankrun help restarts`?"),
        ("help statsu", "did you mean `rankrun help status`?"),
    ] {
        let error = command_of(line).unwrap_err();
        assert!(error.contains(hint), "`{line}`: {error}");
    }
}
