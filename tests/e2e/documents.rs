//! What `docs/` and the README say of commands, options, variables and exit codes: the programs must know each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use harness::{Launch, Name, checkout, example, is_rankrun};
use rankrun_core::exit_code;
use serde_json::Value;

/// Options of other programs, which the documents show beside ours, each with a word that its paragraph must have.
const FOREIGN_OPTIONS: [(&str, &str); 13] = [
    ("cargo", "--bench --lib --no-deps --nocapture --release --test --workspace"),
    ("all_reduce", "--hosts"),
    ("launcher/wheel", "--profile --target"),
    ("sbatch", "--gpus --gres"),
    ("docker", "--gpus"),
    ("srun", "--ntasks-per-node"),
    ("mpirun", "--map-by"),
    ("py-spy", "--pid"),
    ("pip", "--user"),
    ("environment", "--system-site-packages"),
    ("train.py", "--lr"),
    ("script", "--local-rank"),
    ("abbreviation", "--nproc"),
];

/// Variables of this project's own tests, builds and benches.
const TEST_VARIABLES: [&str; 6] =
    ["RANKRUN_BENCH_", "RANKRUN_E2E_", "RANKRUN_SEED", "RANKRUN_SOAK", "RANKRUN_TEST_", "RANKRUN_UPDATE"];

/// Pages for developers that speak of our options too. The pages about other launchers are left out.
const DEVELOPER_PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/dev/decisions.md",
    "docs/dev/tracing.md",
];

/// The guides and the pages for developers: path and text.
fn documents() -> Vec<(String, String)> {
    let folder = fs::read_dir(checkout().join("docs")).expect("the guides are there");
    let guides =
        folder.map(|entry| format!("docs/{}", entry.expect("an entry").file_name().to_string_lossy()));
    let paths = guides.filter(|path| path.ends_with(".md")).chain(DEVELOPER_PAGES.map(str::to_owned));
    paths
        .map(|path| (path.clone(), fs::read_to_string(checkout().join(&path)).expect("it is text")))
        .collect()
}

/// The parts of a text that begin so and go on with these letters.
fn words_with<'a>(text: &'a str, beginning: &'a str, goes_on: fn(char) -> bool) -> BTreeSet<&'a str> {
    let before = |at: usize| text[..at].chars().next_back();
    let is_start = move |at: &usize| {
        before(*at).is_none_or(|letter| !letter.is_alphanumeric() && !"-_/".contains(letter))
    };
    let starts = text.match_indices(beginning).map(|(at, _)| at).filter(is_start);
    let word_at = |at: usize| {
        let rest = &text[at + beginning.len()..];
        let length = rest.find(|letter| !goes_on(letter)).unwrap_or(rest.len());
        text[at..at + beginning.len() + length].trim_end_matches(['-', '_'])
    };
    starts.map(word_at).filter(|word| word.len() > beginning.len()).collect()
}

/// The options in a text, spelled with `-`.
fn option_names(text: &str) -> BTreeSet<String> {
    let goes_on =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter);
    words_with(text, "--", goes_on).into_iter().map(|option| option.replace('_', "-")).collect()
}

/// What the launcher (`""`) or a subcommand prints as help; `rankrun accelerate --help` is accelerate's own.
fn help_of(subcommand: &str) -> String {
    let arguments = match subcommand {
        "" => vec!["--help"],
        "accelerate" | "deepspeed" => vec!["help", subcommand],
        _ => vec![subcommand, "--help"],
    };
    Launch::new(Name::Rankrun).args(arguments).run().expect_exit_code(0).stdout()
}

/// The subcommands that the launcher's own help lists.
fn subcommands() -> BTreeSet<String> {
    let help = help_of("");
    let (_, list) = help.split_once("\nCommands:\n").expect("the help lists the commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// What the launcher, its subcommands and the examples print as help.
fn help_texts() -> String {
    let all = subcommands();
    let mut text: String = all.iter().map(String::as_str).chain([""]).map(help_of).collect();
    for program in ["data_parallel", "ddp_training", "allreduce_bench"] {
        let launch = Launch::standalone(Name::Rankrun, 1).args(["--device-type", "cpu", "--no-python"]);
        text.push_str(&launch.args([example(program)]).args(["--help"]).run().expect_exit_code(0).stdout());
    }
    // The script beside the Rust example has options of its own.
    let script = fs::read_to_string(checkout().join("examples/pytorch/ddp.py")).expect("it is text");
    text.push_str(&script);
    text
}

/// The options that no help text has and that belong to no program of their paragraph.
fn unknown_options(text: &str, known: &BTreeSet<String>) -> Vec<String> {
    let is_foreign = |paragraph: &str, option: &str| {
        FOREIGN_OPTIONS.iter().any(|(program, options)| {
            paragraph.contains(program) && options.split(' ').any(|own| own == option)
        })
    };
    let unknown_in = |paragraph: &str| {
        let options = option_names(paragraph).into_iter();
        options.filter(|option| !known.contains(option) && !is_foreign(paragraph, option)).collect::<Vec<_>>()
    };
    text.split("\n\n").flat_map(unknown_in).collect()
}

/// The commands of ours in a text: one of these subcommands or `""`, and their own options.
fn commands<'a>(text: &'a str, subcommands: &BTreeSet<String>) -> Vec<(&'a str, BTreeSet<String>)> {
    // `cargo … -p rankrun` is none of ours.
    let is_command = |before: &str| {
        let is_word = before
            .chars()
            .next_back()
            .is_some_and(|letter| letter.is_alphanumeric() || "-_./".contains(letter));
        !is_word && !before.ends_with("-p ")
    };
    let starts = text.match_indices("rankrun ").filter(|(at, _)| is_command(&text[..*at]));
    let command_at = |at: usize| {
        let line = text[at..].split(['\n', '`', '|', ';', '&', '#', ')']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let subcommand = if subcommands.contains(first) { first } else { "" };
        // What follows the program is the program's.
        let own = line.split_whitespace().take_while(|word| *word != "--" && !word.ends_with(".py"));
        (subcommand, option_names(&own.collect::<Vec<_>>().join(" ")))
    };
    starts.map(|(at, name)| command_at(at + name.len())).collect()
}

#[test]
fn documented_option_is_in_a_help_text() {
    if !is_rankrun() {
        return;
    }
    let known = option_names(&help_texts());
    assert!(known.contains("--nproc-per-node") && known.len() > 40, "{known:?}");
    for (path, text) in documents() {
        let unknown = unknown_options(&text, &known);
        assert!(unknown.is_empty(), "{path} has options that no program knows: {unknown:?}");
    }
}

#[test]
fn documented_option_of_a_command_is_in_its_help_text() {
    if !is_rankrun() {
        return;
    }
    let launch = option_names(&help_of(""));
    let subcommands = subcommands();
    let known: BTreeMap<_, _> =
        subcommands.iter().map(|command| (command.as_str(), option_names(&help_of(command)))).collect();
    let mut count = 0;
    for (path, text) in documents() {
        for (command, options) in commands(&text, &subcommands) {
            let own = known.get(command).unwrap_or(&launch);
            // The options of a launch follow those of `explain`.
            let is_known =
                |option: &str| own.contains(option) || (command == "explain" && launch.contains(option));
            let unknown: Vec<_> = options.iter().filter(|option| !is_known(option)).collect();
            assert!(unknown.is_empty(), "{path}: `rankrun {command}` does not know {unknown:?}");
            count += options.len();
        }
    }
    assert!(count > 30, "{count}");
}

/// The words behind `rankrun` in backticks and at a prompt; a program such as `train.py` is none.
fn command_words(text: &str) -> BTreeSet<&str> {
    let rests = ["`rankrun ", "$ rankrun "].iter().flat_map(|start| text.split(start).skip(1));
    let words =
        rests.filter_map(|rest| rest.split(|letter: char| letter.is_whitespace() || letter == '`').next());
    let is_command = |word: &&str| {
        word.starts_with(|letter: char| letter.is_ascii_lowercase())
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    words.filter(is_command).collect()
}

#[test]
fn documented_command_is_a_subcommand() {
    if !is_rankrun() {
        return;
    }
    let documents = documents();
    let words: BTreeSet<_> = documents.iter().flat_map(|(_, text)| command_words(text)).collect();
    let subcommands = subcommands();
    assert!(subcommands.contains("devices") && subcommands.contains("version"), "{subcommands:?}");
    let missing: Vec<_> = subcommands.iter().filter(|command| !words.contains(command.as_str())).collect();
    assert!(missing.is_empty(), "no document has {missing:?}");
    for word in words {
        let outcome = Launch::new(Name::Rankrun).args(["help", word]).run();
        assert!(outcome.stderr().is_empty(), "a document has `rankrun {word}`: {}", outcome.stderr());
    }
}

/// The names of all fields of a JSON value.
fn field_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            names.insert(name.clone());
            field_names(value, names);
        }),
        Value::Array(values) => values.iter().for_each(|value| field_names(value, names)),
        _ => {}
    }
}

/// The fields in the first column of a table: `ranks[].stdout`, `.stderr` and `nodes` are three.
fn documented_fields(table: &str) -> BTreeSet<&str> {
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let code = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    code.filter_map(|field| field.trim_end_matches("[]").rsplit('.').next()).collect()
}

#[test]
fn documented_fields_of_explain_are_those_of_its_json() {
    if !is_rankrun() {
        return;
    }
    let launches = [
        &["--nproc-per-node", "2"][..],
        &["--nnodes", "2:4", "--rdzv-backend", "c10d", "--port-range", "29500-29599"],
    ];
    let mut names = BTreeSet::new();
    for options in launches {
        let launch = Launch::new(Name::Rankrun).args(["explain", "--json", "--device-type", "cpu"]);
        let outcome = launch.args(options.iter().copied()).args(["--no-python", "true"]).run();
        let json = serde_json::from_slice(outcome.expect_exit_code(0).stdout_bytes()).expect("it is JSON");
        field_names(&json, &mut names);
    }
    let page = fs::read_to_string(checkout().join("docs/debugging.md")).expect("it is text");
    let (_, section) = page.split_once("### For programs: `--json`").expect("the page has the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let words: BTreeSet<&str> =
        section.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_').collect();
    let missing: Vec<_> = names.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/debugging.md does not have {missing:?}");
    let gone: Vec<_> =
        documented_fields(section).into_iter().filter(|field| !names.contains(*field)).collect();
    assert!(gone.is_empty(), "docs/debugging.md has {gone:?}, which the JSON does not have");
}

/// What the launcher says of a variable of that name.
fn stderr_with_variable(variable: &str) -> String {
    let launch = Launch::standalone(Name::Rankrun, 1).args(["--device-type", "cpu"]).env(variable, "1");
    launch.args(["--no-python", "true"]).run().stderr()
}

#[test]
fn documented_variable_is_known() {
    if !is_rankrun() {
        return;
    }
    let unknown = "RANKRUN_NO_SUCH_VARIABLE";
    let message = stderr_with_variable(unknown);
    let refusal =
        message.split(unknown).nth(1).expect("an unknown variable is named").get(..15).expect("with a text");
    let stderr = stderr_with_variable("PET_NO_SUCH_OPTION");
    assert!(stderr.contains("`PET_NO_SUCH_OPTION` has no effect"), "{stderr}");
    let is_ours = |variable: &&str| !TEST_VARIABLES.iter().any(|own| variable.starts_with(own));
    for (path, text) in documents() {
        let upper = |letter: char| letter.is_ascii_uppercase() || letter == '_';
        for variable in words_with(&text, "RANKRUN_", upper).into_iter().filter(is_ours) {
            let stderr = stderr_with_variable(variable);
            assert!(!stderr.contains(&format!("{variable}{refusal}")), "{path} has `{variable}`: {stderr}");
        }
        for variable in words_with(&text, "PET_", upper) {
            let stderr = stderr_with_variable(variable);
            assert!(!stderr.contains(&format!("`{variable}` has no effect")), "{path}: {stderr}");
        }
    }
}

/// The numbers of exit statuses in sentences (`ends with 124`) and in tables (a column or a row `exit status` or
/// `exit code`).
fn exit_statuses(text: &str) -> BTreeSet<u8> {
    let sentences = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // A number behind these is a status, whatever word follows; behind the others a noun makes it a count.
    let names = ["exit status", "exit code"];
    let phrases = ["with status", "with code", "ends with", "end with", "exits with", "$? -eq"];
    let behind = |phrase: &&'static str| -> Vec<&str> {
        sentences.match_indices(phrase).map(|(at, _)| &sentences[at + phrase.len()..]).collect()
    };
    let named = names.iter().flat_map(behind).filter_map(|rest| status_at_start(rest, false));
    let others = phrases.iter().flat_map(behind).filter_map(|rest| status_at_start(rest, true));
    named.chain(others).chain(text.lines().flat_map(table_statuses())).collect()
}

/// `124` of ` is 124, as timeout(1)`; none of ` 2 workers`.
fn status_at_start(rest: &str, may_count: bool) -> Option<u8> {
    let rest = ["s", " is", " of", " status", " "]
        .iter()
        .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    let rest = rest.trim_start_matches([' ', '`']);
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let after = rest[digits..].trim_start_matches('`');
    let is_counted = may_count
        && after.strip_prefix(' ').is_some_and(|after| {
            let word = after.split(' ').next().unwrap_or_default();
            !["and", "or", "if", "when", "where", "as"].contains(&word)
                && word.starts_with(char::is_lowercase)
        });
    if is_counted { None } else { rest[..digits].parse().ok() }
}

/// The numbers in a line of a table: all of a row that is named `exit status`, else those of such columns.
fn table_statuses() -> impl FnMut(&str) -> Vec<u8> {
    let mut columns: Option<Vec<bool>> = None;
    move |line| {
        let Some(row) = line.strip_prefix('|') else {
            columns = None;
            return Vec::new();
        };
        let cells: Vec<&str> = row.split('|').collect();
        let is_status = |cell: &&str| cell.contains("exit status") || cell.contains("exit code");
        let Some(columns) = &columns else {
            columns = Some(cells.iter().map(is_status).collect());
            return Vec::new();
        };
        let is_status_row = cells.first().is_some_and(is_status);
        let chosen = cells.iter().zip(columns).skip(usize::from(is_status_row));
        let chosen = chosen.filter(|(_, is_status)| is_status_row || **is_status);
        let words = chosen.flat_map(|(cell, _)| cell.split(|letter: char| !letter.is_alphanumeric()));
        words.filter_map(|word| word.parse().ok()).collect()
    }
}

#[test]
fn documented_exit_status_is_a_launcher_status() {
    let fixed = [
        0,
        exit_code::LAUNCHER_FAILED,
        exit_code::USAGE,
        exit_code::NO_ANSWER,
        exit_code::REQUEUE,
        exit_code::DO_NOT_REQUEUE,
        exit_code::TIME_LIMIT,
        exit_code::SIGNAL_BASE,
    ];
    let known: BTreeSet<u8> = fixed.into_iter().chain((1..=64).map(exit_code::code_of_signal)).collect();
    let mut found = BTreeSet::new();
    for (path, text) in documents() {
        let here = exit_statuses(&text);
        let unknown: Vec<_> = here.difference(&known).collect();
        assert!(unknown.is_empty(), "{path} has exit statuses that the launcher does not have: {unknown:?}");
        found.extend(here);
    }
    assert!(BTreeSet::from([0, 1, 75, 78, 124, 143]).is_subset(&found), "{found:?}");
}

#[test]
fn document_parsers_find_unknown_words() {
    let text = "Set `RANKRUN_GONE=1` or `--gone-now`; the exit status is 99. `a--b` and target/--x are none.";
    assert_eq!(option_names(text), ["--gone-now".to_owned()].into());
    assert_eq!(
        option_names("`--nproc_per_node=2 --h2`"),
        ["--h2", "--nproc-per-node"].map(str::to_owned).into()
    );
    let known = ["--force".to_owned()].into();
    assert_eq!(unknown_options("`docker run --gpus all --force`", &known), [""; 0]);
    assert_eq!(unknown_options("docker\n\n`rankrun --gpus all`", &known), ["--gpus"]);
    let lines = "`rankrun gc --force`, `rankrun --tee 3 train.py --lr 1` | `x/rankrun --gone`, `cargo -p rankrun --lib`";
    let options = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(
        commands(lines, &["gc".to_owned()].into()),
        [("gc", options(&["--force"])), ("", options(&["--tee"]))]
    );
    assert_eq!(words_with(text, "RANKRUN_", |letter| letter.is_ascii_uppercase()), ["RANKRUN_GONE"].into());
    assert_eq!(exit_statuses(text), [99].into());
    let sentences = "It ends with 98 (or 2), not with 3 workers; [[ $? -eq 97 ]] and exits with 4 workers.";
    assert_eq!(exit_statuses(sentences), [97, 98].into());
    let table = "| cause | exit status | n |\n|---|---|---|\n| limit | `96` | 9 |\n| exit status of a worker | its own | 95 |";
    assert_eq!(exit_statuses(table), [95, 96].into());
    let sentences = "It exits with code 94, with exit code 93; exit codes 92 and 1, exit status 77 says so.";
    assert_eq!(exit_statuses(sentences), [77, 92, 93, 94].into());
    assert_eq!(exit_statuses("| x | exit code |\n|---|---|\n| y | 91 |"), [91].into());
    let text = "`rankrun gone`, `rankrun train.py`, rankrun prints,\n$ rankrun left-too --x\n`rankrun --x`";
    assert_eq!(command_words(text), ["gone", "left-too"].into());
}
