//! The rules hold in this checkout.

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
fn aims_hold_outside_the_command_line() {
    let count = judge(&checkout::root()).expect("the limits can be read").count;
    let sum = count.total_of(|room| room != "launcher/src/cli");
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

/// The command line makes a specification; the rooms that run it read only that.
#[test]
fn rooms_below_the_command_line_do_not_import_it() {
    const ROOMS: [&str; 9] =
        ["agent", "control", "device", "logs", "process", "rendezvous", "reporter", "spec", "store"];
    let root = checkout::root();
    let is_below = |path: &str| {
        let path = path.strip_prefix("launcher/src/").unwrap_or_default();
        let room = path.split('/').next().unwrap_or_default();
        ROOMS.contains(&room.trim_end_matches(".rs"))
    };
    let files = checkout::files(&root, is_below);
    assert!(files.len() > 200, "{}", files.len());
    let imports = |path: &String| {
        let text = std::fs::read_to_string(root.join(path)).expect("a source file can be read");
        text.contains("crate::cli") || text.contains("crate::{cli")
    };
    assert_eq!(files.into_iter().filter(imports).collect::<Vec<_>>(), [""; 0]);
}
