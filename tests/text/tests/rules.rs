//! The rules hold in this checkout.

use std::collections::{BTreeMap, BTreeSet};

use text_rules::count::{MOST_NAMES, MOST_SHORT_DOCS, Room};
use text_rules::limits::{packages_with_too_many_reasons, parse};
use text_rules::{LIMITS, checkout, judge};

#[test]
fn limits_equal_counted_values() {
    let verdict = judge(&checkout::root()).expect("the limits can be read");
    assert!(
        verdict.differences.is_empty(),
        "{}\n{}\n\nhint: mend what is new; for a number that fell run `RANKRUN_UPDATE=1 cargo run -p text-rules`",
        verdict.table,
        verdict.differences.join("\n")
    );
}

#[test]
fn package_keeps_few_names_with_several_meanings() {
    let text = std::fs::read_to_string(checkout::root().join(LIMITS)).expect("the limits can be read");
    let limits = parse(&text).expect("the limits can be read");
    assert_eq!(packages_with_too_many_reasons(&limits), [""; 0]);
}

#[test]
fn aims_hold_in_all_rooms() {
    let count = judge(&checkout::root()).expect("the limits can be read").count;
    let sum = count.total_of(|_| true);
    let Room { comments, hiding_comments, hiding_messages, long_tests, old_words } = sum;
    assert!(comments > 10_000, "{comments}");
    assert!(hiding_comments * 1000 <= comments, "{hiding_comments} of {comments} comment lines");
    assert_eq!((hiding_messages, long_tests, old_words), (0, 0, 0), "messages, test names, old words");
    assert_eq!(count.packages.len(), 4);
    for (path, package) in &count.packages {
        assert!(package.names.len() <= MOST_NAMES, "{path}: {:?}", package.names);
        assert!(package.short_doc_percentage() <= MOST_SHORT_DOCS, "{path}");
    }
}

/// The room of a source file of the launcher.
fn room(path: &str) -> &str {
    let path = path.strip_prefix("launcher/src/").unwrap_or_default();
    path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// The rooms that each room imports, in code that is not a test.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let root = checkout::root();
    let is_test = |path: &str| ["test", "simulation", "fake.rs"].iter().any(|part| path.contains(part));
    let files = checkout::files(&root, |path| path.starts_with("launcher/src/") && !is_test(path));
    assert!(files.len() > 200, "{}", files.len());
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files.iter().filter(|path| !["lib", "main", ""].contains(&room(path))) {
        let text = std::fs::read_to_string(root.join(path)).expect("a source file can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let named = lines.flat_map(|line| line.split("crate::").skip(1)).flat_map(|rest| {
            // `crate::{a, b::c}` names several rooms.
            let list = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap_or_default());
            let count = if rest.starts_with('{') { usize::MAX } else { 1 };
            list.split(", ")
                .take(count)
                .map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        });
        let own = imports.entry(room(path).to_owned()).or_default();
        own.extend(named.flatten().filter(|name| *name != room(path)).map(str::to_owned));
    }
    imports
}

/// The command line makes a specification; the rooms that run it read only that.
#[test]
fn rooms_below_the_command_line_do_not_import_it() {
    const ROOMS: [&str; 19] = [
        "agent",
        "console",
        "control",
        "device",
        "device_assignment",
        "explain",
        "gc",
        "inspect",
        "job_event",
        "litter",
        "logs",
        "process",
        "program",
        "rendezvous",
        "reporter",
        "shim",
        "spec",
        "store",
        "worker_command",
    ];
    let imports = imports();
    let importing = ROOMS.iter().filter(|room| imports[**room].contains("cli"));
    assert_eq!(importing.collect::<Vec<_>>(), [""; 0].iter().collect::<Vec<_>>());
}

#[test]
fn two_rooms_do_not_import_each_other() {
    let imports = imports();
    let mut pairs = Vec::new();
    for (room, imported) in &imports {
        let back = |other: &&String| imports.get(*other).is_some_and(|others| others.contains(room));
        let later = imported.iter().filter(|other| room < *other);
        pairs.extend(later.filter(back).map(|other| (room.as_str(), other.as_str())));
    }
    assert_eq!(pairs, [("", ""); 0]);
}
