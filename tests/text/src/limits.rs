//! The limits: what each room has today. A number may only fall, and the file says so in the same commit.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::count::{Count, MOST_NAMES, MOST_SHORT_DOCS, Room};

/// The reason of a name that has none yet.
pub const UNDECIDED: &str = "to rename";

const HEADER: &str = "\
# What the rules for words still find, by `cargo run -p text-rules`. Numbers may only fall: a number here that is not
# today's fails the test `limits_equal_counted_values`, and `RANKRUN_UPDATE=1` rewrites the file (what rises is said).
#
# room PATH      comment lines with a hiding word, messages with one, test names above 70 letters, identifiers with a word
#                of the first version (`cargo run -p text-rules -- PATH` lists them)
# package PATH   doc lines of five words or fewer, of a hundred; without code and headings
# name PACKAGE NAME: `to rename`, or why it stays; a package keeps at most 14
# citation FILE: a citation that leads nowhere yet
#
# The aim: 0 messages, 0 long test names, 0 old words, 1 of 1,000 comment lines, 29 of 100 doc lines, 14 names,
# 0 citations. A test asserts it for all rooms.
";

/// The file, as lines by what they are about.
pub type Limits = BTreeMap<String, String>;

/// Reads the file.
///
/// # Errors
/// A line without a value, or one that is there twice.
pub fn parse(text: &str) -> Result<Limits, String> {
    let mut limits = Limits::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once(": ").ok_or_else(|| format!("no `: ` in the limit `{line}`"))?;
        // A file has several citations: the value belongs to what is counted.
        let key = if key.starts_with("citation ") { line.to_owned() } else { key.to_owned() };
        if limits.insert(key, value.to_owned()).is_some() {
            return Err(format!("the limit `{line}` is there twice"));
        }
    }
    Ok(limits)
}

/// Today's limits; the reasons of names are those of before.
#[must_use]
pub fn current_limits(count: &Count, citations: &[String], before: &Limits) -> Limits {
    let mut limits = Limits::new();
    for (path, room) in count.rooms.iter().filter(|(_, room)| room.has_findings()) {
        let Room { hiding_comments, hiding_messages, long_tests, old_words, .. } = room;
        limits.insert(
            format!("room {path}"),
            format!(
                "comments {hiding_comments}, messages {hiding_messages}, tests {long_tests}, old words {old_words}"
            ),
        );
    }
    for (path, package) in &count.packages {
        let share = package.short_doc_percentage();
        if share > MOST_SHORT_DOCS {
            limits.insert(format!("package {path}"), format!("short docs {share} of 100"));
        }
        for name in package.names.keys() {
            let key = format!("name {path} {name}");
            let reason = before.get(&key).map_or(UNDECIDED, |reason| reason);
            limits.insert(key.clone(), reason.to_owned());
        }
    }
    for citation in citations {
        let key = format!("citation {citation}");
        let value = key.split_once(": ").map_or("", |(_, value)| value).to_owned();
        limits.insert(key, value);
    }
    limits
}

/// The file's text.
#[must_use]
pub fn written(limits: &Limits) -> String {
    let mut text = HEADER.to_owned();
    let mut kind = "";
    for (key, value) in limits {
        let of = key.split(' ').next().unwrap_or_default();
        if of != kind {
            text.push('\n');
            kind = of;
        }
        let line = if kind == "citation" { key.clone() } else { format!("{key}: {value}") };
        // A `String` takes every text.
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Where the file and today differ, one line each.
#[must_use]
pub fn differences(file: &Limits, today: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for (key, now) in today {
        match file.get(key) {
            None => found.push(format!("new: {key}: {now}")),
            Some(then) if then != now => found.push(format!("{key}: {now} (the file says: {then})")),
            Some(_) => {}
        }
    }
    let gone = file.keys().filter(|key| !today.contains_key(*key));
    found.extend(gone.map(|key| format!("no longer: {key}")));
    found
}

/// Packages that keep more names with several meanings than the most, with a reason or not.
#[must_use]
pub fn packages_with_too_many_reasons(limits: &Limits) -> Vec<String> {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, reason) in limits {
        let package = key.strip_prefix("name ").and_then(|rest| rest.split(' ').next());
        if let Some(package) = package.filter(|_| reason != UNDECIDED) {
            *kept.entry(package).or_default() += 1;
        }
    }
    kept.into_iter()
        .filter(|(_, count)| *count > MOST_NAMES)
        .map(|(package, count)| format!("{package} keeps {count} names"))
        .collect()
}

/// The table for people.
#[must_use]
pub fn table(count: &Count, citations: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<34} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "room", "comments", "hiding", "messages", "tests", "old words"
    );
    let total = ("all rooms".to_owned(), count.total());
    let rooms = count.rooms.iter().filter(|(_, room)| room.has_findings());
    for (path, room) in rooms.chain([(&total.0, &total.1)]) {
        let Room { comments, hiding_comments, hiding_messages, long_tests, old_words } = room;
        let _ = writeln!(
            text,
            "{path:<34} {comments:>8} {hiding_comments:>8} {hiding_messages:>8} {long_tests:>8} {old_words:>9}"
        );
    }
    let (total, hundred) = (total.1, 100);
    let share = total.hiding_comments * 1000 / total.comments.max(1);
    let _ = writeln!(text, "of 1,000 comment lines {share} hide the component that acts (aim: 1)\n");
    let _ =
        writeln!(text, "{:<34} {:>20} {:>28}", "package", "names declared twice", "short doc lines of 100");
    for (path, package) in &count.packages {
        let (names, share) = (package.names.len(), package.short_doc_percentage());
        let _ = writeln!(text, "{path:<34} {names:>20} {share:>28}");
    }
    let _ = writeln!(text, "aims: {MOST_NAMES} names, {MOST_SHORT_DOCS} of {hundred} doc lines");
    let _ = writeln!(text, "citations that lead nowhere yet: {citations} (aim: 0)");
    text
}

#[cfg(test)]
mod self_test {
    use super::*;

    fn limits(text: &str) -> Limits {
        parse(text).expect("limits")
    }

    #[test]
    fn written_limits_are_read_as_they_were() {
        let text = "room a/b: comments 1, messages 0, tests 2\nname a Wish: to rename\ncitation a.rs: contract 3.6\n\
                    citation a.rs: contract 3.7\n";
        let read = limits(text);
        assert_eq!(read.len(), 4);
        assert_eq!(parse(&written(&read)), Ok(read));
    }

    #[test]
    fn rise_fall_and_new_line_are_reported() {
        let file = limits("room a: comments 1, messages 0, tests 0\nroom b: comments 2, messages 0, tests 0");
        let today =
            limits("room a: comments 2, messages 0, tests 0\nroom c: comments 1, messages 0, tests 0");
        let output = differences(&file, &today);
        assert_eq!(output.len(), 3, "{output:?}");
        assert!(
            output[0].contains("comments 2") && output[0].contains("the file says: comments 1"),
            "{output:?}"
        );
        assert!(output[1].starts_with("new: room c") && output[2] == "no longer: room b", "{output:?}");
    }

    #[test]
    fn fifteen_reasons_in_a_package_are_too_many() {
        let names = |count: usize| {
            let line = |at| format!("name launcher N{at}: torch's own word\n");
            limits(&(0..count).map(line).collect::<String>())
        };
        assert!(packages_with_too_many_reasons(&names(14)).is_empty());
        assert_eq!(packages_with_too_many_reasons(&names(15)), ["launcher keeps 15 names"]);
    }

    #[test]
    fn reason_of_a_name_outlives_an_update() {
        let mut count = Count::default();
        let places = vec!["a.rs:1".to_owned(), "b.rs:1".to_owned()];
        count.packages.entry("launcher").or_default().names.insert("Error".to_owned(), places);
        let before = limits("name launcher Error: one for each room\nname launcher Gone: to rename");
        let now = current_limits(&count, &[], &before);
        assert_eq!(now.get("name launcher Error").map(String::as_str), Some("one for each room"));
        assert!(!now.contains_key("name launcher Gone"));
    }
}
