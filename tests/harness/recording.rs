//! Recorded terminal sessions in documents: a block of a console below `<!-- recorded -->` or `<!-- recorded on MACHINE -->`.
//!
//! A test runs each anew. It fails where a line is not there any more, or another one is; the order does not count, since
//! workers write beside each other. `RANKRUN_UPDATE=1` writes what is answered today into the document. Unlike the files of
//! [`crate::Session`] a document has pids, times and seconds as a run had them: they are masked for the comparison alone.
#![expect(clippy::disallowed_methods, reason = "a test run is configured by its environment")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::launch::Launch;
use crate::place::checkout;
use crate::session::{Session, difference, masked};

/// Above a recorded block.
const MARKER: &str = "\n<!-- recorded";
const FENCE: &str = "```console\n";
/// The machine of a recording that needs PyTorch.
pub const WITH_TORCH: &str = "a machine with PyTorch";

/// The recorded sessions of a document, each with the place of its text.
///
/// # Panics
/// When a marker has no such block below it.
#[must_use]
#[track_caller]
pub fn recordings(document: &str) -> Vec<(usize, Session)> {
    let starts = document.match_indices(MARKER).map(|(at, _)| at);
    starts.map(|at| parse(document, at)).collect()
}

#[track_caller]
fn parse(document: &str, marker: usize) -> (usize, Session) {
    let rest = &document[marker + MARKER.len()..];
    let parts = rest.split_once("-->\n").and_then(|(on, below)| Some((on, below.strip_prefix(FENCE)?)));
    let (on, below) =
        parts.unwrap_or_else(|| panic!("no block of a console is directly below a marker: {rest:.60}"));
    let text = below.split_inclusive('\n').take_while(|line| !line.starts_with("```")).collect::<String>();
    let on = on.trim().strip_prefix("on ").map(str::to_owned);
    let name = text.lines().next().unwrap_or_default().to_owned();
    let session = Session { name, grade: 5, was: None, reason: String::new(), on, text };
    (document.len() - below.len(), session)
}

/// Runs each recording of these documents that has a launch, and fails with those whose lines are others now. Returns how
/// many have run.
///
/// # Panics
/// See above.
#[track_caller]
pub fn check_recordings(
    documents: impl Iterator<Item = PathBuf>,
    launch: impl Fn(&Session) -> Option<Launch>,
) -> usize {
    let (mut count, mut failures) = (0, Vec::new());
    for path in documents {
        count += check_document(&path, &launch, &mut failures);
    }
    assert!(
        failures.is_empty(),
        "a run of today prints other lines; RANKRUN_UPDATE=1 writes them into the documents\n\n{}",
        failures.join("\n")
    );
    count
}

#[track_caller]
fn check_document(
    path: &Path,
    launch: impl Fn(&Session) -> Option<Launch>,
    failures: &mut Vec<String>,
) -> usize {
    let document = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let updates = std::env::var_os("RANKRUN_UPDATE").is_some_and(|value| value == "1");
    let (mut updated, mut count) = (document.clone(), 0);
    // From the last one on, so that the places of the others stay.
    for (at, session) in recordings(&document).into_iter().rev() {
        let Some(launch) = launch(&session) else { continue };
        count += 1;
        let now = record(&session, launch);
        if comparable(&now) != comparable(&session.text) {
            updated.replace_range(at..at + session.text.len(), &now);
            if !updates {
                let (name, lines) = (&session.name, difference(&session.text, &now));
                failures.push(format!("{}: {name}\n{lines}", path.display()));
            }
        }
    }
    if updates && updated != document {
        fs::write(path, updated).expect("the checkout is writable");
    }
    count
}

/// The session as a document has it. A success has no status. A peer that loses a rank may print that before it gets the launcher's
/// signal, or not: its lines, `[rank0]: …`, are left out.
fn record(session: &Session, launch: Launch) -> String {
    let job = launch.temporary().with_file_name("home").join("job");
    fs::create_dir_all(&job).expect("the scratch folder is writable");
    symlink(checkout().join("examples"), job.join("examples")).expect("the scratch folder takes a link");
    let answers = session.type_into_shell(launch).answers;
    let blocks = session.typed().zip(answers).map(|(line, answer)| {
        let lines = answer.split_inclusive('\n');
        let kept: String = lines.filter(|line| !line.starts_with("[rank") && *line != "[exit 0]\n").collect();
        format!("$ {line}\n{}", kept.replace("HOST", "node0"))
    });
    blocks.collect()
}

/// The lines in alphabetical order, without what differs from run to run.
fn comparable(text: &str) -> Vec<String> {
    let masked = masked(text);
    let mut lines: Vec<String> = masked.lines().map(without_figures).collect();
    lines.sort();
    lines
}

/// The digits of a loss or an accuracy depend on the processor.
fn without_figures(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in 1..words.len() {
        if ["loss", "accuracy"].contains(&words[at - 1]) {
            words[at] = "N";
        }
    }
    words.join(" ")
}
