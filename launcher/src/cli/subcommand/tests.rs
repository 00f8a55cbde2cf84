use super::*;
use crate::cli::error::CliError;
use crate::facts::fake::FakeWorld;

fn told(line: &str) -> Result<Command, String> {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    assert!(is_subcommand(&words), "{line}");
    let facts = FakeWorld::new().facts(&[("RANKRUN_PROBE_TIMEOUT", "7")]);
    interpret(OsStr::new("rankrun"), &words, &facts).map_err(|error: CliError| error.render())
}

#[test]
fn inspect_options_are_accepted_in_any_order() {
    let limit = Duration::from_secs(7);
    let inspect = |subject, manner| Ok(Command::Inspect(Inspect { subject, manner, limit }));
    let devices = |kind, manner| inspect(Subject::Devices { kind, ids: Vec::new() }, manner);
    let some = |ids: &[&str]| {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        inspect(Subject::Devices { kind: None, ids }, Manner::Text)
    };
    let every = |seconds| Manner::Watch(Duration::from_secs_f64(seconds));
    for (line, command) in [
        ("devices", devices(None, Manner::Text)),
        ("devices --json", devices(None, Manner::Json)),
        ("devices --watch", devices(None, every(2.0))),
        ("devices --watch=0.5 --device-type cuda", devices(Some(DeviceType::Cuda), every(0.5))),
        ("devices --device_type=rocm --json", devices(Some(DeviceType::Rocm), Manner::Json)),
        ("devices -i 1", some(&["1"])),
        ("devices --id=0,GPU-77 -i 0000:1b:00.0", some(&["0", "GPU-77", "0000:1b:00.0"])),
        ("topo", inspect(Subject::Topo, Manner::Text)),
        ("topo -m", inspect(Subject::Topo, Manner::Text)),
        ("topo --matrix --json", inspect(Subject::Topo, Manner::Json)),
        ("topo --json", inspect(Subject::Topo, Manner::Json)),
    ] {
        assert_eq!(told(line), command, "{line}");
    }
    for (line, usage) in
        [("topo --json -h", "usage: rankrun topo"), ("devices --help", "usage: rankrun devices")]
    {
        assert!(matches!(told(line), Ok(Command::Print(text)) if text.starts_with(usage)), "{line}");
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
        ("devices --watch=", "``"),
        ("devices --watch 2", "does not know `2`"),
        ("devices --watch --json", "`--json` and `--watch` exclude each other"),
        ("devices --device-type", "`--device-type` needs a value"),
        ("devices --device-type gpu", "`gpu`, which is not one of `cuda`, `rocm`"),
        ("devices --probe-timeout", "`--probe-timeout` needs a value"),
        ("topo --probe-timeout=0", "`--probe-timeout`"),
        ("devices -i", "`--id` needs a value"),
        ("devices --jsn", "did you mean `--json`?"),
        ("devices --type cuda", "did you mean `--device-type`?"),
        ("devices -l 1", "`--watch=1`"),
        ("topo -i 1", "does not know `-i`"),
        ("topo --watch", "`rankrun topo` does not know `--watch`"),
        ("topo --device-type cuda", "does not know `--device-type`"),
    ] {
        let error = told(line).unwrap_err();
        assert!(error.contains(part) && error.contains("\nhint: "), "`{line}`: {error}");
    }
}

#[test]
fn control_options_and_job_are_accepted_in_any_order() {
    let control = |verb, job: Option<&str>, format| {
        let verb = ControlVerb::Job(verb);
        Ok(Command::Control(ControlCommand { verb, job: job.map(str::to_owned), format }))
    };
    let list = ControlCommand { verb: ControlVerb::List, job: None, format: AnswerFormat::Json };
    use {AnswerFormat::*, JobVerb::*};
    assert_eq!(told("ls --json"), Ok(Command::Control(list)));
    assert_eq!(told("status"), control(Status, None, Text));
    assert_eq!(told("status --json 12ab"), control(Status, Some("12ab"), Json));
    assert_eq!(told("status 12ab --check"), control(Check, Some("12ab"), Text));
    assert_eq!(told("stop 12ab"), control(Stop, Some("12ab"), Text));
    assert_eq!(told("stop --wait 12ab"), control(StopAndWait, Some("12ab"), Text));
    assert_eq!(told("restart 12ab"), control(Restart, Some("12ab"), Text));
    for name in ["ls", "status", "stop", "restart"] {
        let help = format!("usage: rankrun {name}");
        let printed = told(&format!("{name} x --help"));
        assert!(matches!(printed, Ok(Command::Print(text)) if text.starts_with(&help)), "{name}");
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
        assert!(told(line).unwrap_err().contains(&message), "{line}");
    }
    for name in ["stop", "restart"] {
        let refusal = told(name).unwrap_err();
        assert!(refusal.contains(&format!("`rankrun {name}` needs the job")), "{refusal}");
        assert!(refusal.contains("`rankrun ls` lists"), "{refusal}");
    }
}

#[test]
fn gc_options_are_accepted_in_any_order() {
    let gc = |mode, format| Ok(Command::Gc(GcRequest { mode, format }));
    assert_eq!(told("gc"), gc(GcMode::End, OutputFormat::Text));
    assert_eq!(told("gc --dry-run"), gc(GcMode::List, OutputFormat::Text));
    assert_eq!(told("gc --json --dry_run"), gc(GcMode::List, OutputFormat::Json));
    assert_eq!(told("gc --force --json"), gc(GcMode::EndAll, OutputFormat::Json));
    for dry in ["--force --dry-run", "--dry-run --force"] {
        assert_eq!(told(&format!("gc {dry}")), gc(GcMode::List, OutputFormat::Text));
    }
    assert!(
        matches!(told("gc --json -h"), Ok(Command::Print(text)) if text.starts_with("usage: rankrun gc"))
    );
}

#[test]
fn unknown_gc_argument_is_refused() {
    for (line, told_of) in [
        ("gc --dry", "`rankrun gc` does not know `--dry`"),
        ("gc 4711", "`rankrun gc` does not know `4711`"),
        ("gc --dry-run=yes", "`--dry-run` takes no value, but has `yes`"),
        ("gc --json=1", "`--json` takes no value, but has `1`"),
    ] {
        let error = told(line).unwrap_err();
        assert!(error.contains(told_of) && error.contains("\nhint: "), "{line}: {error}");
    }
}
