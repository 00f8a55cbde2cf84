//! The commands in the documents: each is a subcommand, and each option belongs to the command before it.

use std::collections::{BTreeMap, BTreeSet};

use harness::{Launch, Name, is_rankrun};

use super::{documents, help_of, option_names, subcommands};

/// A command line of ours in a text.
#[derive(Debug, PartialEq, Eq)]
struct CommandLine<'a> {
    program: &'static str,
    /// Empty for a launch.
    subcommand: &'a str,
    /// Long options, spelled with `-`, and short ones, one letter each.
    options: BTreeSet<String>,
}

/// The command lines of our programs in a text, where these are the subcommands of `rankrun`.
fn command_lines<'a>(text: &'a str, subcommands: &BTreeSet<String>) -> Vec<CommandLine<'a>> {
    // `cargo … -p rankrun` is none of ours.
    let is_command = |before: &str| {
        let is_word = before
            .chars()
            .next_back()
            .is_some_and(|letter| letter.is_alphanumeric() || "-_./".contains(letter));
        !is_word && !before.ends_with("-p ")
    };
    let lines_of = |program: &'static str| {
        let starts = text.match_indices(program).map(|(at, _)| (at, &text[at + program.len()..]));
        let starts = starts.filter(move |(at, rest)| rest.starts_with(' ') && is_command(&text[..*at]));
        starts.map(move |(_, rest)| {
            let line = rest.split(['\n', '`', '|', ';', '&', '#', ')']).next().unwrap_or_default();
            let first = line.split_whitespace().next().unwrap_or_default();
            let is_subcommand = program == "rankrun" && subcommands.contains(first);
            // What follows the program is the program's.
            let own = line.split_whitespace().take_while(|word| *word != "--" && !word.ends_with(".py"));
            let own = own.collect::<Vec<_>>().join(" ");
            // A quoted value may be another command, as that of `--wrap`.
            let own: String = own.split('\'').step_by(2).collect();
            let options = option_names(&own).into_iter().chain(short_options(&own)).collect();
            CommandLine { program, subcommand: if is_subcommand { first } else { "" }, options }
        })
    };
    lines_of("rankrun").chain(lines_of("torchrun")).collect()
}

/// The short options of a line or of a help text: `-vv` is `-v`, and `-r3` is `-r`.
fn short_options(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| letter.is_whitespace() || "[],".contains(letter));
    let letters = words.filter_map(|word| word.strip_prefix('-')).filter(|word| !word.starts_with('-'));
    letters
        .flat_map(|word| word.chars().take_while(char::is_ascii_alphabetic))
        .map(|letter| format!("-{letter}"))
        .collect()
}

/// The options of a help text: those of the lines that begin with one.
fn options_in_help(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let short = lines.flat_map(|line| short_options(line.split("  ").next().unwrap_or_default()));
    option_names(help).into_iter().chain(short).collect()
}

#[test]
fn documented_option_of_a_command_is_in_its_help_text() {
    if !is_rankrun() {
        return;
    }
    let launch = options_in_help(&help_of(""));
    let help = Launch::new(Name::Torchrun).args(["--help"]).run().expect_exit_code(0).stdout();
    let torchrun = options_in_help(&help);
    let subcommands = subcommands();
    let known: BTreeMap<_, _> =
        subcommands.iter().map(|command| (command.as_str(), options_in_help(&help_of(command)))).collect();
    let mut count = 0;
    for (path, text) in documents() {
        let lines = command_lines(&text, &subcommands).into_iter();
        // The words behind `convert` are another launcher's.
        for CommandLine { program, subcommand, options } in lines.filter(|line| line.subcommand != "convert")
        {
            let own =
                if program == "torchrun" { &torchrun } else { known.get(subcommand).unwrap_or(&launch) };
            // The options of a launch follow those of `explain`.
            let is_known =
                |option: &str| own.contains(option) || (subcommand == "explain" && launch.contains(option));
            let unknown: Vec<_> = options.iter().filter(|option| !is_known(option)).collect();
            assert!(unknown.is_empty(), "{path}: `{program} {subcommand}` does not know {unknown:?}");
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

#[test]
fn command_parser_finds_commands_with_their_own_options() {
    let lines = "`rankrun gc --force`, `rankrun --tee 3 -vv train.py --lr 1` | `x/rankrun --gone`, `cargo -p rankrun --lib`; \
                 `torchrun --grace 3`, `rankrun gc -q` torchrun's `--x`";
    let found = command_lines(lines, &["gc".to_owned()].into());
    let found: Vec<_> = found
        .iter()
        .map(|line| {
            let options: Vec<&str> = line.options.iter().map(String::as_str).collect();
            (line.program, line.subcommand, options)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("rankrun", "gc", vec!["--force"]),
            ("rankrun", "", vec!["--tee", "-v"]),
            ("rankrun", "gc", vec!["-q"]),
            ("torchrun", "", vec!["--grace"]),
        ]
    );
    assert_eq!(
        options_in_help("  -h, --help   Print -x\n  -r <R>  y"),
        ["--help", "-h", "-r"].map(str::to_owned).into()
    );
    let text = "`rankrun gone`, `rankrun train.py`, rankrun prints,\n$ rankrun left-too --x\n`rankrun --x`";
    assert_eq!(command_words(text), ["gone", "left-too"].into());
}
