use proptest::prelude::*;
use rankrun_contract::rank::RunId;

use super::*;
use crate::cli::{CliError, Launch};
use rankrun_contract::rank::LocalRank;
use rankrun_core::facts::fake::FakeWorld;
use rankrun_host::process::signal::HandledSignals;
use rankrun_tools::explain::{LaunchValue, Pending, SettingOrigin};

fn world() -> FakeWorld {
    let world = FakeWorld::default().file("/job/x.py", b"impo").file("/job/explain", b"impo");
    world.file("/job/c.toml", b"").program("/usr/bin/python3")
}

fn ask(line: &str, environment: &[(&str, &str)]) -> Result<Command, CliError> {
    let mut environment = environment.to_vec();
    environment.push(("PATH", "/usr/bin"));
    let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    crate::cli::interpret(&argv, &world().facts(&environment))
}

fn explained(line: &str, environment: &[(&str, &str)]) -> ExplainRequest {
    match ask(line, environment) {
        Ok(Command::Explain(explain)) => *explain,
        other => panic!("`{line}`: {other:?}"),
    }
}

fn launched(line: &str) -> Launch {
    match ask(line, &[]) {
        Ok(Command::Launch(launch)) => *launch,
        other => panic!("`{line}`: {other:?}"),
    }
}

#[test]
fn explained_launch_equals_real_launch() {
    for (explain, launch) in [
        ("rankrun explain --nproc-per-node 2 x.py --a", "rankrun --nproc-per-node 2 x.py --a"),
        ("rankrun explain run --max-restarts 3 x.py", "rankrun run --max-restarts 3 x.py"),
        ("rankrun explain rankrun -r 3 x.py", "rankrun -r 3 x.py"),
        ("rankrun explain torchrun -r 3 x.py", "torchrun -r 3 x.py"),
        ("rankrun explain ./torchrun x.py", "./torchrun x.py"),
        ("rankrun explain explain", "rankrun run explain"),
    ] {
        let (explained, launched) = (explained(explain, &[]), launched(launch));
        assert_eq!((explained.spec, explained.notices), (launched.spec, launched.notices), "{explain}");
    }
}

#[test]
fn explain_is_recognized_only_as_first_rankrun_argument() {
    assert_eq!(launched("torchrun explain x.py").spec.args, ["x.py"]);
    assert_eq!(launched("rankrun --nproc-per-node 1 explain x.py").spec.args, ["x.py"]);
    assert_eq!(launched("rankrun run explain x.py").spec.args, ["x.py"]);
    assert_eq!(launched("rankrun ./explain x.py").spec.args, ["x.py"]);
}

#[test]
fn explain_options_precede_launch_options() {
    for (line, form) in [
        ("rankrun explain x.py", ExplainForm::Brief),
        ("rankrun explain --json x.py", ExplainForm::Json),
        ("rankrun explain --json torchrun x.py", ExplainForm::Json),
        ("rankrun explain --script 1 --nproc-per-node 2 x.py", ExplainForm::Script(LocalRank(1))),
        ("rankrun explain --script=0 x.py", ExplainForm::Script(LocalRank(0))),
        ("rankrun explain --nproc-per-node 2 --all x.py", ExplainForm::Full),
        ("rankrun explain --json --nproc-per-node 2 --all -- x.py", ExplainForm::Json),
        (
            "rankrun explain run --role a --script 1 --nproc_per_node=2 x.py",
            ExplainForm::Script(LocalRank(1)),
        ),
        ("rankrun explain torchrun --nproc_per_node 2 --all x.py", ExplainForm::Full),
        ("rankrun explain --nproc-per-node 2 x.py --all", ExplainForm::Brief),
    ] {
        assert_eq!(explained(line, &[]).form, form, "{line}");
    }
    let explained = explained("rankrun explain --role a --all -t 1 x.py -- --all", &[]);
    assert_eq!((explained.spec.role.as_str(), explained.spec.args), ("a", vec!["--all".into()]));
}

/// The value that a test gives an option.
fn sample(option: &Arg) -> String {
    let value = match (option.kind(), option.long_name()) {
        (Kind::RankOrWord, _) | (_, "local-ranks-filter" | "leave-out") => "0",
        (Kind::Flag | Kind::Int | Kind::Float, _)
        | (_, "nnodes" | "nproc-per-node" | "redirects" | "tee") => "1",
        (_, "devices") => "none",
        (_, "device-type") => "cpu",
        (Kind::Choice(choices), _) => return choices[0].clone(),
        (_, "rdzv-backend") => "c10d",
        (_, "rdzv-endpoint") => "h:1",
        (_, "rdzv-conf") => "is_host=1",
        (_, "event-log-handler") => "console",
        (_, "exclude-node-after") => "1/2",
        (_, "port-range") => "5-9",
        (_, "store-limit") => "2GiB",
        (_, "nccl-lib" | "config") => "c.toml",
        (_, "restart-rules") => "exit=3:fail",
        (_, "signals-to-handle") => "SIGINT",
        (_, "warn-signal" | "stop-signal") => "INT",
        (_, "stop-signal-to") => "rank",
        (_, "wrap") => "0:python3",
        (_, "distributed") => "auto",
        (_, "bind-cores") => "all",
        (Kind::Text, _) => "9",
    };
    value.to_owned()
}

#[test]
fn every_option_has_one_line_that_names_its_place() {
    for option in options(CliFlavor::Rankrun) {
        let name = option.long_name();
        // The first three ask for a text; the others are refused on this machine, or in an explanation.
        let refused = ["logs-specs", "numa-binding", "hosts", "hostfile", "export", "ssh"];
        if ["help", "version", "print-completion"].iter().chain(&refused).any(|known| *known == name) {
            continue;
        }
        let (value, variable) = (sample(option), option.variable());
        let typed = match (&variable, name) {
            (None, _) => format!(" --{name}={value}"),
            (_, "warn-signal") => " --time-limit 1h".to_owned(),
            _ => String::new(),
        };
        let environment: Vec<(&str, &str)> = variable
            .iter()
            .map(|name| (name.as_str(), value.as_str()))
            .chain([("LOGLEVEL", "INFO")])
            .collect();
        let entrypoint = match name {
            "module" => "x",
            "no-python" => "python3",
            _ => "x.py",
        };
        let request = explained(&format!("rankrun explain{typed} {entrypoint}"), &environment);
        let facts = world().facts(&environment);
        let handled = HandledSignals::of(&request.spec.signals, request.spec.cli_flavor);
        let settings = rankrun_tools::explain::explain(&request, &facts, &handled).unwrap().settings;
        let lines: Vec<_> = settings.iter().filter(|line| line.name == name).collect();
        let [line] = lines.as_slice() else { panic!("--{name} has the lines {lines:?}") };
        let place = match variable {
            Some(name) => SettingOrigin::Variable { name },
            None => SettingOrigin::Option { name: format!("--{name}") },
        };
        assert!(line.source == place || line.overrides.contains(&place), "{line:?}");
        assert!(line.value.is_some(), "{line:?}");
    }
}

#[test]
fn explain_refuses_bad_command_line_like_launch() {
    for words in [
        "x.py --nproc-per-node",
        "--nproc-per-node two x.py",
        "--nproc-per-node 0 x.py",
        "--nope x.py",
        "missing.py",
        "--leave-out 1 x.py",
        "--leave-out x x.py",
        "",
    ] {
        for (explain, launch) in [("rankrun explain", "rankrun"), ("rankrun explain torchrun", "torchrun")] {
            let [explain, launch] = [explain, launch].map(|name| format!("{name} {words}").trim().to_owned());
            let said = |line: &str| ask(line, &[]).map_err(|error| (error.exit_code(), error.render())).err();
            assert_eq!(said(&explain), said(&launch), "{explain}");
        }
    }
}

#[test]
fn explain_script_requires_existing_rank() {
    for (line, code, message) in [
        ("rankrun explain --script", 2, "`--script` needs a value"),
        ("rankrun explain --script x x.py", 2, "`--script` is `x`, which is not a whole number"),
        ("rankrun explain --script 1 x.py", 1, "`--script` is `1`, but the local ranks are 0 to 0"),
        ("rankrun explain --script -1 x.py", 1, "`--script` is `-1`, but the local ranks are 0 to 0"),
    ] {
        let error = ask(line, &[]).expect_err(line);
        assert_eq!((error.exit_code(), error.to_string().as_str()), (code, message));
    }
}

#[test]
fn option_of_explain_is_known_where_it_is_misspelt_or_behind_script() {
    for name in ["", "torchrun "] {
        let request = explained(&format!("rankrun explain {name}x.py --json --script 1"), &[]);
        assert_eq!(request.spec.args, ["--json", "--script", "1"]);
        let text = request.notices.last().map(ToString::to_string).unwrap_or_default();
        assert!(text.starts_with("`--json`, `--script 1` stand behind `x.py` and go to it"), "{text}");
        let error = ask(&format!("rankrun explain {name}--alll x.py"), &[]).expect_err("it is misspelt");
        assert_eq!(error.to_string(), "`rankrun explain` does not know `--alll`");
        assert!(error.render().contains("did you mean `--all`?"), "{}", error.render());
    }
    let error = ask("rankrun explain --maxx-restarts 2 x.py", &[]).expect_err("it is misspelt");
    assert!(error.render().contains("`--max-restarts`"), "{}", error.render());
}

#[test]
fn explain_refuses_other_subcommands() {
    for (line, message) in [
        ("rankrun explain shim on", "`explain` explains a launch, and `shim` is none"),
        ("rankrun explain --json rankrun shim off", "`explain` explains a launch, and `shim` is none"),
        ("rankrun explain devices", "`explain` explains a launch, and `devices` is none"),
        ("rankrun explain gc --force", "`explain` explains a launch, and `gc` is none"),
        ("rankrun explain rankrun stop 12ab", "`explain` explains a launch, and `stop` is none"),
        ("rankrun explain --json --script 0 x.py", "`--json` and `--script` exclude each other"),
        ("rankrun explain --script=0 --json x.py", "`--json` and `--script` exclude each other"),
    ] {
        let error = ask(line, &[]).expect_err(line);
        assert_eq!((error.exit_code(), error.to_string().as_str()), (2, message));
    }
}

#[test]
fn generated_run_id_is_marked() {
    // With a number of workers this machine is not asked for its accelerators.
    let run_id = |line: &str| {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        // A probe would be this test.
        let environment =
            vec![("PATH".into(), "/bin:/usr/bin".into()), ("RANKRUN_DEVICE_TYPE".into(), "cpu".into())];
        let facts = Facts::new(environment, Box::new(rankrun_host::system::System::SILENT));
        match crate::cli::interpret(&argv, &facts).unwrap() {
            Command::Explain(explain) => {
                let handled = HandledSignals::of(&explain.spec.signals, explain.spec.cli_flavor);
                let explanation = rankrun_tools::explain::explain(&explain, &facts, &handled).unwrap();
                (explanation.run_id == LaunchValue::AtLaunch(Pending::RunId), explanation.warnings.len())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run_id("rankrun explain --nproc-per-node 1 sh"), (true, 0));
    assert_eq!(run_id("rankrun explain --nproc-per-node 1 --rdzv-id 7 sh"), (false, 0));
    assert_eq!(run_id("rankrun explain torchrun --rdzv-id 7 --no-python sh"), (true, 1));
    assert_eq!(run_id("rankrun explain --nproc-per-node 1 --master-port 2 sh"), (false, 0));
    // The notice would name an id that no launch will have.
    assert_eq!(run_id("rankrun explain --nproc-per-node 1 --master-port 2 --rdzv-id= sh"), (true, 0));
}

#[test]
fn setting_origin_is_option_before_variable() {
    let environment = [("PET_ROLE", "a"), ("RANKRUN_GRACE", "1"), ("PET_STANDALONE", "0")];
    let of = |line: &str, names: &[&str]| {
        let origins = explained(line, &environment).origins;
        let given = origins.of_setting(names).into_iter();
        given.map(|given| format!("{} {:?}", given.origin, given.value)).collect::<Vec<_>>().join(", ")
    };
    let line = "rankrun explain --max-restarts 1 x.py";
    let graces = ["grace", "shutdown-timeout"];
    for (names, origin) in [
        (&["max-restarts"][..], "`--max-restarts` \"1\""),
        (&["role"], "`PET_ROLE` \"a\""),
        (&graces, "`RANKRUN_GRACE` \"1\""),
        (&["standalone"], "`PET_STANDALONE` \"no\""),
        (&["nproc-per-node"], ""),
    ] {
        assert_eq!(of(line, names), origin, "{names:?}");
    }
    let line = "rankrun explain --role b --grace 2 --shutdown-timeout 3 x.py";
    assert_eq!(of(line, &["role"]), "`--role` \"b\", `PET_ROLE` \"a\"");
    let last_typed = "`--shutdown-timeout` \"3\", `--grace` \"2\", `RANKRUN_GRACE` \"1\"";
    assert_eq!(of(line, &graces), last_typed);
    assert_eq!(
        of("rankrun explain -vv --quiet --quiet x.py", &["verbose", "quiet"]),
        "`--quiet` \"yes\", `--verbose` \"2\""
    );
}

#[test]
fn leave_out_accepts_existing_worker() {
    let external_worker = |line: &str, environment| explained(line, environment).spec.external_worker;
    let line = "rankrun explain --nproc-per-node 2 --leave-out 1 x.py";
    assert_eq!(external_worker(line, &[][..]), Some(LocalRank(1)));
    let line = "rankrun explain torchrun --nproc-per-node 2 x.py";
    assert_eq!(external_worker(line, &[("RANKRUN_LEAVE_OUT", "0")][..]), Some(LocalRank(0)));
    assert_eq!(external_worker("rankrun explain x.py", &[][..]), None);
    let error = ask("rankrun --nproc-per-node 2 --leave-out 2 x.py", &[]).expect_err("there is no rank 2");
    assert_eq!(error.to_string(), "`--leave-out` is `2`, but the local ranks are 0 to 1");
}

#[test]
fn attach_is_parsed_under_every_program_name() {
    for name in ["rankrun", "torchrun"] {
        let Ok(Command::Attach(attach)) = ask(&format!("{name} --rankrun-attach=a/0/1 gdb --args x"), &[])
        else {
            panic!("{name}");
        };
        assert_eq!(attach.socket, "a/0/1");
        assert_eq!(attach.command, ["gdb", "--args", "x"]);
    }
    assert!(launched("rankrun x.py --rankrun-attach=a").spec.rendezvous.run_id() != &RunId(String::new()));
}

proptest! {
    #[test]
    fn any_explain_arguments_do_not_panic(
        line in prop::collection::vec(
            prop_oneof![
                "[-=a-z0-9]{0,6}",
                prop::sample::select(vec!["--json", "--script", "--script=", "1", "-1", "torchrun", "rankrun", "run",
                    "explain", "--leave-out", "x.py", "--nproc-per-node", "2"]).prop_map(str::to_owned),
            ],
            0..7,
        ),
    ) {
        let _ = ask(&format!("rankrun explain {}", line.join(" ")), &[]).map_err(|error| error.render());
    }
}
