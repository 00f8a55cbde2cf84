//! Terminal sessions in text files: what is typed, what is answered, the exit status. A test runs each anew and compares.
//!
//! A file has rows. A row begins with `== NAME`; the lines below it say how it is graded (`grade 5, was 2`) and where it runs
//! (`on 2 GPUs`); then come the session's lines. `RANKRUN_UPDATE=1` writes the answers of today into the files.
#![expect(clippy::disallowed_methods, reason = "a test run is configured by its environment")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::launch::{Launch, Name};
use crate::outcome::Outcome;
use crate::place::{free_port, python_path};

/// Parts two answers: a line's own output never has it.
const SEPARATOR: char = '\u{1e}';
/// In a typed line; each run has a free port of its own in its place.
const PORT: &str = "29500";

/// The variable that names a folder for `PATH` before that of the machine's own Python.
pub const FIRST_IN_PATH: &str = "FIRST_IN_PATH";

/// One row of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// What is done, in words.
    pub name: String,
    /// Whether a user knows what to do after the answer, from 1 to 5.
    pub grade: u8,
    /// The grade before the messages were reworked, where it was graded then.
    pub was: Option<u8>,
    /// Why the grade is below 5.
    pub reason: String,
    /// The machine, as in `2 GPUs`.
    pub on: Option<String>,
    /// What is typed, then what is answered.
    pub text: String,
}

impl Session {
    /// The lines that are typed.
    pub fn typed(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter_map(|line| line.strip_prefix("$ "))
    }

    /// Types the lines into one shell, and gives what a file of sessions has of it.
    #[must_use]
    #[track_caller]
    fn run(&self, launch: Launch) -> String {
        let typed = self.type_into_shell(launch);
        let mut text = String::new();
        for (line, answer) in self.typed().zip(&typed.answers) {
            text.push_str(&format!("$ {line}\n{}", masked(answer)));
        }
        if typed.outcome.status.code().is_none() {
            text.push_str(&format!("[{}]\n", typed.outcome.status));
        }
        text
    }

    /// Types the lines into one shell, in a home folder that has `job/train.py`.
    #[must_use]
    #[track_caller]
    pub(crate) fn type_into_shell(&self, launch: Launch) -> TypedSession {
        let home = launch.temporary().with_file_name("home");
        let job = home.join("job");
        fs::create_dir_all(&job).expect("the scratch folder is writable");
        fs::write(job.join("train.py"), "print(\"trained\")\n").expect("the scratch folder is writable");
        let (scratch, port) = (home.with_file_name(""), free_port().to_string());
        let typed = self.typed().map(|line| {
            let line = line.replace(PORT, &port);
            // A line that starts a program in the background has no status of its own.
            let status = if starts_launcher(&line) { "printf '\\n[exit %d]\\n' $?\n" } else { "" };
            format!("printf '{SEPARATOR}'\n{line}\n{status}")
        });
        let typed: String = typed.collect();
        let pythons = python_folders(&scratch);
        let first = format!("${{{FIRST_IN_PATH}:+${FIRST_IN_PATH}:}}");
        let line = format!("exec 2>&1; PATH=${{0%/*}}:{first}{pythons}:/usr/bin\n{typed}");
        let outcome = launch.cwd(job).under(["sh", "-c", &line]).run();
        let scratch = scratch.to_string_lossy().trim_end_matches('/').to_owned();
        let python = python_path();
        let venv = python.ancestors().nth(2).and_then(Path::to_str).filter(|venv| venv.len() > 1);
        let home = format!("{scratch}/home");
        let mut places = vec![(home.as_str(), "/home/me"), (&scratch, "/scratch"), (&port, PORT)];
        places.extend(venv.map(|venv| (venv, "/venv")));
        let out = outcome.stdout();
        // The status stands on a line of its own, also where the answer has no line end.
        let answers = out.split(SEPARATOR).skip(1).map(|answer| answer.replace("\n\n[exit ", "\n[exit "));
        let answers = answers.map(|answer| in_reading_order(answer.trim_start_matches('\n')));
        let answers = answers.map(|answer| without_places(&answer, &places)).collect();
        TypedSession { outcome, answers }
    }

    fn render(&self) -> String {
        let was = self.was.map_or_else(String::new, |was| format!(", was {was}"));
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        let on = self.on.as_ref().map_or_else(String::new, |on| format!("on {on}\n"));
        format!("== {}\ngrade {}{was}{reason}\n{on}{}", self.name, self.grade, self.text)
    }
}

/// What came of the lines that were typed.
#[derive(Debug)]
pub(crate) struct TypedSession {
    /// Of the shell.
    pub(crate) outcome: Outcome,
    /// One for each line, with the paths and the host name of every machine.
    pub(crate) answers: Vec<String>,
}

/// The line about a failed rank stands directly above the report: the worker's own output comes by another way, before or
/// after it.
fn in_reading_order(answer: &str) -> String {
    let Some(at) = answer.find("\nerror: ").map(|at| at + 1) else { return answer.to_owned() };
    let (above, report) = answer.split_at(at);
    let is_failure = |line: &&str| line.starts_with("rankrun: local rank ");
    let (failures, before_failures): (Vec<&str>, Vec<&str>) =
        above.split_inclusive('\n').partition(is_failure);
    before_failures.concat() + &failures.concat() + report
}

fn starts_launcher(line: &str) -> bool {
    line.contains("rankrun") && !line.ends_with('&')
}

/// The rows of a file, and the text above them.
///
/// # Panics
/// When it is not such a file.
#[must_use]
#[track_caller]
pub fn read_sessions(path: &Path) -> (String, Vec<Session>) {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut parts = text.split("\n== ");
    let head = parts.next().unwrap_or_default().trim_end().to_owned();
    (head, parts.map(parse).collect())
}

#[track_caller]
fn parse(row: &str) -> Session {
    let typed = row.find("\n$ ").unwrap_or_else(|| panic!("nothing is typed in: {row}"));
    let (above, text) = (&row[..typed], format!("{}\n", row[typed..].trim()));
    let mut lines = above.lines();
    let name = lines.next().unwrap_or_default().to_owned();
    let mut session = Session { name, grade: 0, was: None, reason: String::new(), on: None, text };
    for line in lines {
        if let Some(grades) = line.strip_prefix("grade ") {
            let (grades, reason) = grades.split_once(": ").unwrap_or((grades, ""));
            let (grade, was) =
                grades.split_once(", was ").map_or((grades, None), |(now, was)| (now, Some(was)));
            let number =
                |text: &str| text.parse().unwrap_or_else(|_| panic!("`{text}` is not a grade: {row}"));
            (session.grade, session.was, session.reason) =
                (number(grade), was.map(number), reason.to_owned());
        } else if let Some(on) = line.strip_prefix("on ") {
            session.on = Some(on.to_owned());
        } else {
            panic!("`{line}` is neither a grade nor a machine: {row}");
        }
    }
    session
}

/// Runs every row of the file that has a launch, and fails with each answer that is not the file's.
///
/// # Panics
/// See above.
#[track_caller]
pub fn check_sessions(path: &Path, launch: impl Fn(&Session) -> Option<Launch>) {
    let (head, mut sessions) = read_sessions(path);
    let updates = std::env::var_os("RANKRUN_UPDATE").is_some_and(|value| value == "1");
    let mut failures = Vec::new();
    for session in &mut sessions {
        let Some(launch) = launch(session) else { continue };
        let now = session.run(launch);
        if now != session.text {
            failures.push(format!("== {}\n{}", session.name, difference(&session.text, &now)));
            session.text = now;
        }
    }
    if updates {
        let rows: Vec<String> = sessions.iter().map(Session::render).collect();
        fs::write(path, format!("{head}\n\n{}", rows.join("\n"))).expect("the checkout is writable");
        return;
    }
    assert!(
        failures.is_empty(),
        "{} of {} sessions are not as {} has them; RANKRUN_UPDATE=1 writes what is said today into it, to be read and \
         graded\n\n{}",
        failures.len(),
        sessions.len(),
        path.display(),
        failures.join("\n")
    );
}

/// The launch of a row: no accelerator of this machine matters, and no number of CPUs.
#[must_use]
pub fn session_launch() -> Launch {
    let launch = Launch::new(Name::Rankrun).env("OMP_NUM_THREADS", "1").without_env("LD_LIBRARY_PATH");
    launch.without_env("RUST_BACKTRACE")
}

/// The lines that only one of them has.
pub(crate) fn difference(expected: &str, now: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), now.lines().collect());
    let same = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let ends = before[same..].iter().rev().zip(after[same..].iter().rev());
    let same_end = ends.take_while(|(one, other)| one == other).count();
    let marked = |mark: &str, lines: &[&str]| {
        lines[same..lines.len() - same_end].iter().map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    let above: String = before[..same].iter().map(|line| format!("  {line}\n")).collect();
    above + &marked("-", &before) + &marked("+", &after)
}

/// What differs from machine to machine, replaced by words.
fn without_places(answer: &str, places: &[(&str, &str)]) -> String {
    let text = places.iter().fold(answer.to_owned(), |text, (from, to)| text.replace(from, to));
    let uid = rustix::process::geteuid().as_raw();
    let text = text.replace(&format!("/run/user/{uid}/"), "/run/user/UID/");
    let text = text.replace(&format!("/rankrun-{uid}`"), "/rankrun-UID`");
    replaced_words(&text, host_name(), "HOST")
}

/// What differs from run to run, replaced by words.
pub(crate) fn masked(text: &str) -> String {
    let mut in_table = false;
    let mut masked = String::new();
    for line in text.lines() {
        in_table = line.starts_with("  rank  pid ")
            || in_table && line.starts_with("  ") && !line.contains("hint: ");
        masked += &if in_table { table_line_masked(line) } else { masked_line(line) };
        masked.push('\n');
    }
    masked
}

/// A line of the table of ranks: columns two spaces apart, since their widths follow the pids; pid and CPU time are `N`.
fn table_line_masked(line: &str) -> String {
    let columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).enumerate();
    let is_row = line.trim_start().starts_with(|letter: char| letter.is_ascii_digit());
    let masked = columns.map(|(at, column)| match at {
        1 if is_row => "N".to_owned(),
        4 if is_row && column.ends_with('s') => "N s".to_owned(),
        _ => column.to_owned(),
    });
    format!("  {}", masked.collect::<Vec<_>>().join("  "))
}

/// The other interpreters of this machine behind `nor has`.
fn pythons_masked(line: &str) -> String {
    let Some((before, rest)) = line.split_once(", nor has ") else { return line.to_owned() };
    let Some((_, after)) = rest.split_once(": ") else { return line.to_owned() };
    format!("{before}, nor has PYTHONS: {after}")
}

fn masked_line(line: &str) -> String {
    let line = pythons_masked(line);
    let mut tokens: Vec<String> = line.split(' ').map(run_masked).collect();
    for at in 0..tokens.len() {
        let follows = |before: &str| at > 0 && tokens[at - 1].ends_with(before);
        if at > 1 && tokens[at - 2] == "sleeps" && follows("in") {
            // A system call, or a function of the kernel where the call may not be seen.
            tokens[at] = "PLACE,".to_owned();
        } else if is_time(tokens[at].trim_end_matches(',')) {
            tokens[at] = if tokens[at].ends_with(',') { "TIME,".to_owned() } else { "TIME".to_owned() };
        } else if tokens[at].ends_with("ms") && tokens[at].starts_with(|letter: char| letter.is_ascii_digit())
        {
            tokens[at] = "N ms".to_owned();
        } else if follows("pid")
            || (follows("had") && tokens.get(at + 1).is_some_and(|unit| unit == "MiB"))
            || (is_seconds(&tokens, at) && (follows("after") || is_before(&tokens, at)))
        {
            tokens[at] = digits_masked(&tokens[at]);
        } else if tokens.get(at + 1).is_some_and(|next| next == "left") && is_duration(&tokens[at]) {
            // `14m 57s left`
            tokens[at] = "N".to_owned();
            if at > 0 && tokens[at - 1].ends_with('m') {
                tokens[at - 1] = String::new();
            }
        }
    }
    tokens.retain({
        let mut before_left = false;
        move |token| {
            let drop = token.is_empty() && before_left;
            before_left = token.ends_with(';');
            !drop
        }
    });
    tokens.join(" ")
}

/// The folder of a run in a log path: a run id, `_` and eight letters.
fn run_masked(token: &str) -> String {
    let is_run = |part: &&str| {
        let id = part.split_once('_').filter(|(id, rest)| id.len() == 36 && rest.len() == 8);
        id.is_some_and(|(id, _)| id.split('-').count() == 5)
    };
    let parts: Vec<&str> = token.split('/').map(|part| if is_run(&part) { "RUN" } else { part }).collect();
    parts.join("/")
}

/// Whether a unit follows.
fn is_seconds(tokens: &[String], at: usize) -> bool {
    tokens.get(at + 1).is_some_and(|unit| unit == "s")
}

/// `57s`
fn is_duration(token: &str) -> bool {
    token.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok())
}

/// `0.2 s before`
fn is_before(tokens: &[String], at: usize) -> bool {
    tokens.get(at + 2).is_some_and(|word| word.starts_with("before"))
}

/// `12.5` and `1234` are `N`, with what stands around.
fn digits_masked(token: &str) -> String {
    let start = token.find(|letter: char| letter.is_ascii_digit()).unwrap_or(token.len());
    let rest = token[start..].trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    if start == token.len() { token.to_owned() } else { format!("{}N{rest}", &token[..start]) }
}

/// `2026-11-23T06:44:12.232Z`
fn is_time(token: &str) -> bool {
    token.len() >= 20 && token.ends_with('Z') && token.as_bytes()[4] == b'-' && token.as_bytes()[10] == b'T'
}

/// Replaces the word where no letter or digit stands beside it.
fn replaced_words(text: &str, target: &str, by: &str) -> String {
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '/');
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(target) {
        let (before, after) = (&rest[..at], &rest[at + target.len()..]);
        let inside = before.chars().next_back().or_else(|| result.chars().next_back()).is_some_and(is_part)
            || after.chars().next().is_some_and(is_part);
        result.push_str(before);
        result.push_str(if inside { target } else { by });
        rest = after;
    }
    result + rest
}

fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = nix::unistd::gethostname().expect("the host has a name");
        name.into_string().expect("a host name is text")
    })
}

/// Two folders for `PATH`: one with the machine's own `python3` alone, and an environment without packages, since some
/// machines have no second Python.
fn python_folders(scratch: &Path) -> String {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let line = ["-c", "import sys; print(sys.executable, end='')"];
        let output = Command::new("python3").args(line).output().expect("`python3` is installed");
        PathBuf::from(String::from_utf8(output.stdout).expect("a path is text"))
    });
    let (own, empty) = (scratch.join("python"), scratch.join("empty"));
    for folder in [&own, &empty.join("bin")] {
        fs::create_dir_all(folder).expect("the scratch folder is writable");
        let link = folder.join("python3");
        if !link.exists() {
            symlink(python, link).expect("the scratch folder takes a link");
        }
    }
    fs::write(empty.join("pyvenv.cfg"), "").expect("the scratch folder is writable");
    format!("{}:{}/bin", own.display(), empty.display())
}
