//! Python's argparse is the oracle: random command lines, the same parse or the same error message.
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
    /// Whether this is Python 3.11; others word some errors otherwise.
    has_our_words: bool,
}

impl Oracle {
    /// The Python of the tests; the rules are those of Python 3.11.
    fn start() -> Self {
        let python = std::env::var_os("RANKRUN_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let mut process = Process::new(python);
        process.args(["-c", include_str!("argparse.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process.spawn().expect("the tests need python3");
        let (questions, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut oracle = Self { child, questions, answers: BufReader::new(answers), has_our_words: false };
        let options: Vec<Value> = options(CliFlavor::Torchrun)
            .map(|option| {
                json!({
                    "long": option.long_name(),
                    "short": option.get_short(),
                    "spellings": option.spellings(),
                    "flag": option.kind() == Kind::Flag,
                    "text": asks_for_text(option),
                    "type": match option.kind() {
                        Kind::Int => json!("int"),
                        Kind::Float => json!("float"),
                        Kind::Choice(choices) => json!(choices),
                        Kind::Flag | Kind::Text | Kind::RankOrWord => Value::Null,
                    },
                })
            })
            .collect();
        let version = oracle.ask(&json!(options));
        assert!(version.as_str().is_some_and(|version| version.starts_with("3.")), "{version}");
        oracle.has_our_words = version.as_str().is_some_and(|version| version.starts_with("3.11."));
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

/// What is read from the words, in the form of an answer; and the words that are not looked at.
fn parsed(words: &[OsString]) -> (Value, Vec<String>) {
    let text = |word: &OsString| word.to_str().unwrap().to_owned();
    let all = || words.iter().map(text).collect();
    match parse(CliFlavor::Torchrun, words) {
        Err(error) => (json!({ "refused": error.to_string() }), Vec::new()),
        Ok(ParsedArgs::Help(_)) => (json!({ "text": "help" }), all()),
        Ok(ParsedArgs::Completion(_)) => (json!({ "text": "print-completion" }), all()),
        Ok(ParsedArgs::Version) => panic!("torchrun has no `--version`"),
        Ok(ParsedArgs::Launch(line)) => {
            let pair = |written: &WrittenOption| {
                [written.option.long_name().to_owned(), text(&written.setting.value)]
            };
            let options: Vec<[String; 2]> = line.options.iter().map(pair).collect();
            let program: Vec<String> =
                [&line.entrypoint].into_iter().chain(&line.arguments).map(text).collect();
            (json!({ "options": options, "program": program }), program)
        }
    }
}

/// argparse looks for ambiguous words where `normalise` does not look.
fn agree(words: &[OsString], answer: &Value, has_our_words: bool) -> Result<(), String> {
    let (ours, not_looked_at) = parsed(words);
    let refused = answer["refused"].as_str();
    // Python 3.11 leaves an empty list of a glued `--`, and does not look whether it is a number or a choice.
    let has_dashes = || words.iter().any(|word| word.as_bytes().ends_with(b"=--"));
    if ours["refused"].as_str().is_some_and(|ours| ours.contains("'--'")) && has_dashes() {
        return Ok(());
    }
    let ambiguous = refused.and_then(|message| message.strip_prefix("ambiguous option: "));
    let ambiguous = ambiguous.and_then(|rest| rest.split(" could match").next());
    let both_refuse = ours["refused"].is_string() && answer["refused"].is_string();
    let same = ours == *answer
        || (both_refuse && !has_our_words)
        || ambiguous.is_some_and(|word| not_looked_at.iter().any(|other| other == word));
    if same { Ok(()) } else { Err(format!("{words:?}: argparse {answer}, rankrun {ours}")) }
}

fn any_torchrun_word() -> impl Strategy<Value = String> {
    let names: Vec<String> = options(CliFlavor::Torchrun).flat_map(LaunchOption::spellings).collect();
    prop_oneof![
        4 => prop::sample::select(names.clone()),
        2 => (prop::sample::select(names.clone()), "=(-?[0-9_.e٣１]{1,3}|[-a-z0-9= '\"\\\\]{0,3})").prop_map(|(name, tail)| name + &tail),
        3 => (prop::sample::select(names), 2usize..30, "(=[a-z0-9-]{0,2})?").prop_map(|(name, end, tail)| {
            format!("{}{tail}", &name[..end.min(name.len())])
        }),
        2 => "-[hmrtx][hmrt0-9=.-]{0,3}",
        2 => prop::sample::select(vec!["x.py", "a", "3", "--", "-", "", "-1", "-.5", "-1,-2", "-a b", "--a b", "-x y", "-٣", "１_2", "-1\n", "³", "node", "spawn"])
            .prop_map(str::to_owned),
        1 => "[-=.a-z0-9_ ٣１\n]{0,6}",
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
            agree(&words, &answer, oracle.has_our_words).unwrap();
        }
    }
    assert!(accepted > cases / 10, "{accepted} of {cases} command lines were accepted");
}
