use super::*;
use crate::cli::help;
use crate::cli::option::Family;
use rankrun_core::facts::fake::FakeWorld;

fn hint(words: &str) -> String {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    unknown_options_hint(&words)
}

#[test]
fn misspelt_option_gets_nearest_names() {
    for (word, answer) in [
        ("--nproc_per-node", "`--nproc-per-node`"),
        ("--nprocpernode", "`--nproc-per-node`"),
        ("--NNODES=2", "`--nnodes`"),
        ("-devices", "`--devices`"),
        ("--device", "`--devices`"),
        ("--deivces=0", "`--devices`"),
        ("--time", "`--time-limit`"),
        ("--max-restarst", "`--max-restarts`"),
        ("--endpoint", "`--rdzv-endpoint`"),
        ("--rendezvous-backend", "`--rdzv-backend`"),
        ("--port", "`--master-port` or `--port-range`"),
        (
            "--timeout",
            "`--shutdown-timeout`, `--start-timeout`, `--hang-timeout`, `--first-step-timeout`, `--join-timeout` or \
             `--probe-timeout`",
        ),
        ("--exclude-unhealhty", "`--exclude-unhealthy`"),
        ("--oversubcribe", "`--oversubscribe`"),
    ] {
        assert_eq!(hint(word), format!("did you mean {answer}?"), "{word}");
    }
    for word in ["--lr", "--epochs=3", "-z", "--", "--=", "-", "--\u{e9}\u{e9}"] {
        assert!(hint(word).contains("see `rankrun --help`"), "{word}: {}", hint(word));
    }
}

#[test]
fn option_with_one_typo_is_found() {
    for row in options(CliFlavor::Rankrun).filter(|row| row.long_name().len() > 4) {
        let mut swapped: Vec<u8> = row.long_name().bytes().collect();
        swapped.swap(2, 3);
        let slips = [
            format!("{}x", row.long_name()),
            row.long_name()[1..].to_owned(),
            String::from_utf8(swapped).unwrap(),
        ];
        // It is as near to `--export` as to `--report`.
        let slips = slips.into_iter().filter(|slip| slip != "eport");
        for slip in slips.filter(|slip| options(CliFlavor::Rankrun).all(|row| row.long_name() != slip)) {
            let hint = hint(&format!("--{slip}"));
            assert!(hint.contains(&format!("`--{}", row.long_name())), "--{slip}: {hint}");
        }
    }
}

#[test]
fn foreign_launcher_options_get_rankrun_equivalent() {
    for (word, answer) in [
        ("--num_procs=4", "`--nproc-per-node N`"),
        ("--gpus", "`--nproc-per-node N`"),
        ("-N", "`--nnodes N`"),
        ("--num_machines", "`--nnodes N`"),
        ("--gpu_ids", "`--devices LIST`"),
        ("--include=localhost:0,1", "`--devices LIST`"),
        ("--machinefile", "--rdzv-endpoint HOST:PORT`"),
        ("-H", "--rdzv-endpoint HOST:PORT`"),
        ("--main_process_port", "`--master-port PORT`"),
        ("--mixed_precision", "stands behind the entrypoint"),
        ("--json", "`rankrun explain --json train.py`"),
    ] {
        assert!(hint(word).contains(answer), "{word}: {}", hint(word));
    }
}

#[test]
fn each_unknown_option_gets_own_hint() {
    assert_eq!(
        hint("--nnode --lr --device=3"),
        "`--nnode`: did you mean `--nnodes`?; `--device=3`: did you mean `--devices`?"
    );
}

#[test]
fn hints_name_only_existing_options() {
    let answers = FOREIGN.iter().chain(COMMANDS).map(|(_, answer)| *answer);
    let own = ["--json", "--dry-run", "--watch"];
    for answer in answers {
        let spans = answer.split('`').skip(1).step_by(2).flat_map(|span| span.split([' ', '=']));
        for option in spans.filter(|word| word.starts_with("--")) {
            let is_known =
                options(CliFlavor::Rankrun).any(|row| row.spellings().iter().any(|name| name == option));
            assert!(is_known || own.contains(&option), "{option} in: {answer}");
        }
    }
    for (names, _) in FOREIGN {
        for name in *names {
            assert!(
                options(CliFlavor::Rankrun).flat_map(long_names).all(|long| long != *name),
                "`--{name}` is an option of ours"
            );
        }
    }
}

#[test]
fn misspelt_subcommand_gets_hint() {
    let usage = help::help(CliFlavor::Rankrun, help::HelpLength::Long, None);
    for word in ["explain", "devices", "topo", "shim"] {
        assert!(usage.contains(&format!("\n  {word} ")), "{word}");
        assert_eq!(answer_to_command(&format!("{word}x")), Some(format!("did you mean `rankrun {word}`?")));
    }
    assert_eq!(answer_to_command("device").unwrap(), "did you mean `rankrun devices`?");
    assert!(answer_to_command("cancel").unwrap().contains("rankrun stop JOB"));
    assert!(answer_to_command("jobs").unwrap().contains("rankrun ls"));
    assert_eq!(answer_to_command("train"), None);
}

fn warnings(environment: &[(&str, &str)]) -> Vec<String> {
    let facts = FakeWorld::default().elsewhere().facts(environment);
    unknown_variable_notices(&facts).iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_variable_warning_gives_nearest_names() {
    for (name, part) in [
        ("RANKRUN_DEVCES", "did you mean `RANKRUN_DEVICES`?"),
        ("RANKRUN_NPROC_PER_NODE", "did you mean `PET_NPROC_PER_NODE`?"),
        ("PET_DEVICES", "did you mean `RANKRUN_DEVICES`?"),
        ("PET_NPROC", "did you mean `PET_NPROC_PER_NODE`?"),
        ("PET_MAX_RESTART", "did you mean `PET_MAX_RESTARTS`?"),
        ("RANKRUN_BACKENDS", "did you mean `RANKRUN_BACKEND`?"),
        ("RANKRUN_DEVICE", "did you mean `RANKRUN_DEVICES`?"),
        ("RANKRUN_XYZZY", "`RANKRUN_XYZZY` has no effect: it is none of our `RANKRUN_*` variables"),
        ("PET_CATS", "`PET_CATS` has no effect: it is none of torchrun's `PET_*` variables"),
    ] {
        let said = warnings(&[(name, "secret")]);
        assert!(said.len() == 1 && said[0].contains(part), "{name}: {said:?}");
        assert!(!said[0].contains("secret"), "a value may be a password: {said:?}");
    }
}

#[test]
fn known_and_empty_variables_give_no_warning() {
    let of_options = options(CliFlavor::Rankrun).filter_map(LaunchOption::variable);
    let others = FOR_USERS.into_iter().chain(FOR_WORKERS).filter(|name| *name != DEVICE).map(str::to_owned);
    let tests = ["RANKRUN_TEST_PYTHON", "RANKRUN_SOAK", "RANKRUN", "PET", "XPET_A"].map(str::to_owned);
    for name in of_options.chain(others).chain(tests) {
        assert_eq!(warnings(&[(&name, "1")]), [""; 0], "{name}");
    }
    assert_eq!(warnings(&[("RANKRUN_DEVCES", ""), ("PET_CATS", "")]), [""; 0]);
    let inside = FakeWorld::default().facts(&[(NESTING, "1:0=1"), (DEVICE, "cuda:0")]);
    assert_eq!(unknown_variable_notices(&inside), []);
    assert!(options(CliFlavor::Torchrun).any(|option| option.family() == Family::Pet));
}
