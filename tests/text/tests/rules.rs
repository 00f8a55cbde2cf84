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
fn aims_hold_in_all_rooms() {
    let count = judge(&checkout::root()).expect("the limits can be read").count;
    let sum = count.total_of(|_| true);
    let Room { comments, hiding_comments, hiding_messages, long_tests, old_words } = sum;
    assert!(comments > 10_000, "{comments}");
    assert!(hiding_comments * 1000 <= comments, "{hiding_comments} of {comments} comment lines");
    assert_eq!((hiding_messages, long_tests, old_words), (0, 0, 0), "messages, test names, old words");
    assert_eq!(count.packages.len(), checkout::PACKAGES.len());
    for (path, package) in &count.packages {
        assert!(package.names.len() <= MOST_NAMES, "{path}: {:?}", package.names);
        assert!(package.short_doc_percentage() <= MOST_SHORT_DOCS, "{path}");
    }
}
