//! The exit statuses in the documents: the launcher has each of them.

use std::collections::BTreeSet;

use rankrun_core::exit_code;

use super::documents;

/// The numbers of exit statuses in sentences (`ends with 124`) and in tables (a column or a row `exit status` or
/// `exit code`).
fn exit_statuses(text: &str) -> BTreeSet<u32> {
    let sentences = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // A number behind these is a status, whatever word follows; behind the others a noun makes it a count.
    let names = ["status", "exit code"];
    let phrases = [
        "with code",
        "dies with",
        "ends with",
        "end with",
        "exited with",
        "exits with",
        "exit ",
        "exits ",
        "returns ",
        "$? -eq",
    ];
    let behind = |phrase: &&'static str| -> Vec<&str> {
        sentences.match_indices(phrase).map(|(at, _)| &sentences[at + phrase.len()..]).collect()
    };
    let named = names.iter().flat_map(behind).filter_map(|rest| status_at_start(rest, false));
    let others = phrases.iter().flat_map(behind).filter_map(|rest| status_at_start(rest, true));
    named.chain(others).chain(text.lines().flat_map(table_statuses())).collect()
}

/// `124` of ` is 124, as timeout(1)`; none of ` 2 workers`.
fn status_at_start(rest: &str, may_count: bool) -> Option<u32> {
    let rest = ["s", " is", " of", " status", " "]
        .iter()
        .fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    let rest = rest.trim_start_matches([' ', '`']);
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let after = rest[digits..].trim_start_matches('`');
    let is_counted = may_count
        && after.strip_prefix(' ').is_some_and(|after| {
            let word = after.split(' ').next().unwrap_or_default();
            !["and", "or", "if", "when", "where", "as"].contains(&word)
                && word.starts_with(char::is_lowercase)
        });
    if is_counted { None } else { rest[..digits].parse().ok() }
}

/// The numbers in a line of a table: all of a row that is named `exit status`, else those of such columns.
fn table_statuses() -> impl FnMut(&str) -> Vec<u32> {
    let mut columns: Option<Vec<bool>> = None;
    move |line| {
        let Some(row) = line.strip_prefix('|') else {
            columns = None;
            return Vec::new();
        };
        let cells: Vec<&str> = row.split('|').collect();
        let is_status = |cell: &&str| cell.contains("exit status") || cell.contains("exit code");
        let Some(columns) = &columns else {
            columns = Some(cells.iter().map(is_status).collect());
            return Vec::new();
        };
        let is_status_row = cells.first().is_some_and(is_status);
        let chosen = cells.iter().zip(columns).skip(usize::from(is_status_row));
        let chosen = chosen.filter(|(_, is_status)| is_status_row || **is_status);
        let words = chosen.flat_map(|(cell, _)| cell.split(|letter: char| !letter.is_alphanumeric()));
        words.filter_map(|word| word.parse().ok()).collect()
    }
}

#[test]
fn documented_exit_status_is_a_launcher_status() {
    let fixed = [
        0,
        exit_code::LAUNCHER_FAILED,
        exit_code::USAGE,
        exit_code::NO_ANSWER,
        exit_code::REQUEUE,
        exit_code::DO_NOT_REQUEUE,
        exit_code::TIME_LIMIT,
        exit_code::SIGNAL_BASE,
    ];
    let known = fixed.into_iter().chain((1..=64).map(exit_code::code_of_signal));
    let known: BTreeSet<u32> = known.map(u32::from).collect();
    let mut found = BTreeSet::new();
    for (path, text) in documents() {
        let here = exit_statuses(&text);
        let unknown: Vec<_> = here.difference(&known).collect();
        assert!(unknown.is_empty(), "{path} has exit statuses that the launcher does not have: {unknown:?}");
        found.extend(here);
    }
    assert!(BTreeSet::from([0, 1, 75, 78, 124, 143]).is_subset(&found), "{found:?}");
}

#[test]
fn exit_status_parser_finds_numbers_in_sentences_and_tables() {
    for (text, expected) in [
        ("the exit status is 99.", &[99][..]),
        ("It ends with 98 (or 2), not with 3 workers; [[ $? -eq 97 ]] and exits with 4 workers.", &[97, 98]),
        (
            "It exits with code 94, with exit code 93; exit codes 92 and 1, exit status 77 says so.",
            &[77, 92, 93, 94],
        ),
        (
            "status 90, it exits 89, `exit 88`, returns 87 or dies with 86; it returns 2 lines",
            &[86, 87, 88, 89, 90],
        ),
        ("with exit status 300", &[300]),
        (
            "| cause | exit status | n |\n|---|---|---|\n| limit | `96` | 9 |\n| exit status of a worker | its own | 95 |",
            &[95, 96],
        ),
        ("| x | exit code |\n|---|---|\n| y | 91 |", &[91]),
    ] {
        assert_eq!(exit_statuses(text), expected.iter().copied().collect(), "{text}");
    }
}
