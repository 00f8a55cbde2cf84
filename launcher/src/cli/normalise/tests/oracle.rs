//! Python's argparse is the oracle: random command lines, the same parse or both refuse.
#![expect(clippy::disallowed_methods, reason = "Python itself is asked")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};

use serde_json::{Value, json};

use super::*;

/// Python with torchrun's options.
struct Oracle {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    /// The Python of the tests; the rules are those of Python 3.11.
    fn start() -> Self {
        let python = std::env::var_os("RANKRUN_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let mut process = Process::new(python);
        process.args(["-c", include_str!("argparse.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process.spawn().expect("the tests need python3");
        let (questions, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut oracle = Self { child, questions, answers: BufReader::new(answers) };
        let options: Vec<Value> = options(CliFlavor::Torchrun)
            .map(|option| {
                json!({
                    "long": option.long_name(),
                    "short": option.get_short(),
                    "spellings": option.spellings(),
                    "flag": option.kind() == Kind::Flag,
                    "text": asks_for_text(option),
                })
            })
            .collect();
        let version = oracle.ask(&json!(options));
        assert!(version.as_str().is_some_and(|version| version.starts_with("3.")), "{version}");
        oracle
    }

    fn tell(&mut self, line: &Value) {
        writeln!(self.questions, "{line}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn ask(&mut self, line: &Value) -> Value {
        self.tell(line);
        self.hear()
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `normalise` makes of the words, in the form of an answer; and the words that it has not looked at.
fn normalised(words: &[OsString]) -> (Value, Vec<String>) {
    let text = |word: &OsString| word.to_str().unwrap().to_owned();
    let Ok(lines) = normalise(words, command(CliFlavor::Torchrun)) else {
        return (json!("refused"), Vec::new());
    };
    let mut lines: Vec<String> = lines.iter().map(text).collect();
    let last = lines.last().cloned().unwrap_or_default();
    let Some(at) = lines.iter().position(|line| line == "--") else {
        let name = last.trim_start_matches("--").split('=').next().unwrap_or_default();
        let name = if name == "-h" { "help" } else { name };
        return (json!({ "text": name }), words.iter().map(text).collect());
    };
    let program = lines.split_off(at);
    let options = lines.iter().map(|line| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        [name.trim_start_matches("--").to_owned(), value.to_owned()]
    });
    (json!({ "options": options.collect::<Vec<_>>(), "program": program[1..] }), program[1..].to_vec())
}

/// Refusals are alike whatever the words; argparse looks for ambiguous words where `normalise` does not look.
fn agree(words: &[OsString], answer: &Value) -> Result<(), String> {
    let (ours, not_looked_at) = normalised(words);
    let refused = answer["refused"].as_str();
    let same = match refused {
        Some(message) => {
            let ambiguous =
                message.strip_prefix("ambiguous option: ").and_then(|rest| rest.split(" could match").next());
            ours == "refused" || ambiguous.is_some_and(|word| not_looked_at.iter().any(|other| other == word))
        }
        None => ours == *answer,
    };
    if same { Ok(()) } else { Err(format!("{words:?}: argparse {answer}, rankrun {ours}")) }
}

fn any_torchrun_word() -> impl Strategy<Value = String> {
    let names: Vec<String> = options(CliFlavor::Torchrun).flat_map(LaunchOption::spellings).collect();
    prop_oneof![
        4 => prop::sample::select(names.clone()),
        2 => (prop::sample::select(names.clone()), "=[-a-z0-9= ]{0,3}").prop_map(|(name, tail)| name + &tail),
        3 => (prop::sample::select(names), 2usize..30, "(=[a-z0-9-]{0,2})?").prop_map(|(name, end, tail)| {
            format!("{}{tail}", &name[..end.min(name.len())])
        }),
        2 => "-[hmrtx][hmrt0-9=.-]{0,3}",
        2 => prop::sample::select(vec!["x.py", "a", "3", "--", "-", "", "-1", "-.5", "-1,-2", "-a b", "--a b", "-x y"])
            .prop_map(str::to_owned),
        1 => "[-=.a-z0-9_ ]{0,6}",
    ]
}

#[test]
fn command_lines_are_parsed_as_argparse_does() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};

    const BATCH: usize = 200;
    let cases = if std::env::var_os("RANKRUN_SOAK").is_some() { 1_000_000 } else { 10_000 };
    let mut runner =
        if cases > 10_000 { TestRunner::new(Config::default()) } else { TestRunner::deterministic() };
    let lines = prop::collection::vec(any_torchrun_word(), 0..8);
    let mut oracle = Oracle::start();
    let mut accepted = 0;
    for _ in 0..cases / BATCH {
        let batch: Vec<Vec<String>> =
            (0..BATCH).map(|_| lines.new_tree(&mut runner).unwrap().current()).collect();
        for line in &batch {
            oracle.tell(&json!(line));
        }
        for line in batch {
            let answer = oracle.hear();
            accepted += usize::from(answer.get("options").is_some());
            let words: Vec<OsString> = line.into_iter().map(OsString::from).collect();
            agree(&words, &answer).unwrap();
        }
    }
    assert!(accepted > cases / 10, "{accepted} of {cases} command lines were accepted");
}
