//! What `docs/` and the README say of commands, options, variables and exit codes: the programs must know each of them. The
//! guides are a book, whose links lead to its own pages.

mod commands;
mod console_lines;
mod exit_statuses;
mod guide_pages;
mod recordings;
mod variables;

use std::collections::BTreeSet;
use std::fs;

use harness::{Launch, Name, checkout, example, is_rankrun};
use serde_json::Value;

/// Options of other programs, which the documents show beside ours, each with a word that its paragraph must have.
const FOREIGN_OPTIONS: [(&str, &str); 19] = [
    ("cargo", "--bench --lib --locked --no-deps --nocapture --path --release --test --workspace"),
    ("install.sh", "--from --prefix"),
    ("all_reduce", "--hosts"),
    ("launcher/wheel", "--profile --target"),
    ("sbatch", "--gpus --gres"),
    ("docker", "--gpus --shm-size"),
    (
        "srun",
        "--cpus-per-task --gpu-bind --gpus-per-node --gpus-per-task --kill-on-bad-exit --no-kill --nodes --ntasks-per-node",
    ),
    ("#SBATCH", "--array --open-mode --requeue --signal"),
    ("srun", "--pty --requeue"),
    ("podman", "--container-image --env --network --nv --rm"),
    ("Open MPI", "--enable-recovery"),
    ("mpirun", "--map-by"),
    ("py-spy", "--pid"),
    ("pip", "--user"),
    ("environment", "--system-site-packages"),
    ("train.py", "--lr"),
    ("script", "--local-rank"),
    ("abbreviation", "--nproc"),
    ("two ways", "--a --b"),
];

/// Pages for developers that speak of our options too. The pages about other launchers are left out.
const DEVELOPER_PAGES: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/dev/decisions.md",
    "docs/dev/device-selection.md",
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
    // The scripts beside the Rust examples have options of their own.
    for script in ["ddp.py", "data_parallel.py"] {
        let script = checkout().join("examples/pytorch").join(script);
        text.push_str(&fs::read_to_string(script).expect("it is text"));
    }
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

/// The quoted names in the code of `rankrun convert`, which are the options of other launchers, as options.
fn converted_options() -> BTreeSet<String> {
    let folder = checkout().join("launcher/src/cli/other_launcher/convert");
    let sources = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("an entry").path());
    let sources = sources.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let code: String = sources.map(|path| fs::read_to_string(path).expect("it is text")).collect();
    let quoted = code.split('"').skip(1).step_by(2).flat_map(|text| text.split(',')).map(str::to_owned);
    quoted.map(|name| format!("--{}", name.replace('_', "-"))).collect()
}

#[test]
fn documented_option_is_in_a_help_text() {
    if !is_rankrun() {
        return;
    }
    let known = option_names(&help_texts());
    assert!(known.contains("--nproc-per-node") && known.len() > 40, "{known:?}");
    let of_others = converted_options();
    for (path, text) in documents() {
        let mut unknown = unknown_options(&text, &known);
        let is_about_others =
            ["convert", "from-mpirun", "from-srun"].iter().any(|page| path.ends_with(&format!("{page}.md")));
        unknown.retain(|option| !is_about_others || !of_others.contains(option));
        assert!(unknown.is_empty(), "{path} has options that no program knows: {unknown:?}");
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

/// It is read in two minutes.
#[test]
fn readme_has_at_most_130_lines() {
    let readme = fs::read_to_string(checkout().join("README.md")).expect("it is text");
    assert!(readme.lines().count() <= 130, "{}", readme.lines().count());
}

#[test]
fn option_parser_finds_unknown_options() {
    let text = "Set `RANKRUN_GONE=1` or `--gone-now`. `a--b` and target/--x are none.";
    assert_eq!(option_names(text), ["--gone-now".to_owned()].into());
    assert_eq!(
        option_names("`--nproc_per_node=2 --h2`"),
        ["--h2", "--nproc-per-node"].map(str::to_owned).into()
    );
    let known = ["--force".to_owned()].into();
    assert_eq!(unknown_options("`docker run --gpus all --force`", &known), [""; 0]);
    assert_eq!(unknown_options("docker\n\n`rankrun --gpus all`", &known), ["--gpus"]);
    assert_eq!(words_with(text, "RANKRUN_", |letter| letter.is_ascii_uppercase()), ["RANKRUN_GONE"].into());
}
