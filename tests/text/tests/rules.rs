//! The rules hold in this checkout.

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
