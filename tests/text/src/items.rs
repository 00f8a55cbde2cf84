//! Items in a document, as `Action::Join` or `stop_workers`, and whether the code declares them.

use std::collections::BTreeSet;

use crate::checkout::RustFile;
use crate::names::{identifiers, tokens};

/// The paths of items in a text: names in backticks with `::` between them.
#[must_use]
pub fn item_paths(text: &str) -> BTreeSet<&str> {
    let is_name = |name: &str| {
        name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let inside = text.split('`').skip(1).step_by(2);
    inside.filter(|code| code.contains("::") && code.split("::").all(is_name)).collect()
}

/// The names in backticks that can only be of code, as `StopStage` and `stop_workers`, and that no product code has.
#[must_use]
pub fn unknown_identifiers<'a>(text: &'a str, files: &[RustFile]) -> BTreeSet<&'a str> {
    let is_of_code = |name: &&str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name.chars().all(letters)
            && name.contains(|letter: char| letter == '_' || letter.is_ascii_uppercase())
    };
    let mut names: BTreeSet<&str> = text.split('`').skip(1).step_by(2).filter(is_of_code).collect();
    for file in files.iter().filter(|file| !file.is_test) {
        for known in identifiers(&file.source.code).into_keys() {
            names.remove(known);
        }
    }
    names
}

/// Whether product code declares the last name of the path in the one before it: a member of a type, or an item below a module.
#[must_use]
pub fn is_declared(path: &str, files: &[RustFile]) -> bool {
    let mut names = path.rsplit("::");
    let (Some(name), Some(parent)) = (names.next(), names.next()) else { return false };
    let is_type = parent.starts_with(|letter: char| letter.is_ascii_uppercase());
    files.iter().filter(|file| !file.is_test).any(|file| {
        let code = &*file.source.code;
        if is_type {
            has_member(code, parent, name)
        } else {
            is_below(&file.path, parent) && has_item(code, name)
        }
    })
}

/// Whether the file is the module of that name, or is in its folder.
fn is_below(path: &str, module: &str) -> bool {
    path.trim_end_matches(".rs").split('/').any(|part| part == module)
}

fn has_item(code: &str, name: &str) -> bool {
    let tokens = tokens(code);
    tokens.windows(2).any(|pair| pair[1].1 == name && is_item_word(pair[0].1))
}

fn is_item_word(word: &str) -> bool {
    ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod"].contains(&word)
}

/// Whether a type has a variant, a function or a constant of that name.
fn has_member(code: &str, parent: &str, name: &str) -> bool {
    let tokens: Vec<&str> = tokens(code).into_iter().map(|(_, token)| token).collect();
    (0..tokens.len()).any(|at| {
        let is_enum = tokens[at] == "enum";
        if !is_enum && !["impl", "trait"].contains(&tokens[at]) {
            return false;
        }
        let Some(length) = tokens[at..].iter().position(|token| ["{", ";"].contains(token)) else {
            return false;
        };
        let (header, body) = tokens[at + 1..].split_at(length - 1);
        let own = header.iter().rposition(|token| *token == "for").map_or(header, |of| &header[of..]);
        own.contains(&parent) && members(body, is_enum).contains(&name)
    })
}

/// The names that the block at the beginning of the tokens declares itself, not in blocks or brackets inside.
fn members<'a>(block: &[&'a str], is_enum: bool) -> Vec<&'a str> {
    let mut depth = 0;
    let mut found = Vec::new();
    for (at, token) in block.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            // A variant follows a comma, the opening brace, or an attribute.
            name if depth == 1 && is_enum => {
                found.extend(["{", ",", "]"].contains(&block[at - 1]).then_some(name));
            }
            name if depth == 1 => found.extend(is_item_word(block[at - 1]).then_some(name)),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod self_test {
    use super::*;

    #[test]
    fn paths_in_backticks_are_items() {
        let text =
            "```\nState::handle\n```\n`Action::Join`, `agent::state::State`, `a/b.rs`, `x: a::b`, `State`";
        assert_eq!(item_paths(text).into_iter().collect::<Vec<_>>(), ["Action::Join", "agent::state::State"]);
    }

    #[test]
    fn identifier_that_no_product_code_has_is_unknown() {
        let files = [
            RustFile::new("launcher/src/agent/state.rs", "fn stop_workers() {} struct StopStage;"),
            RustFile::new("tests/e2e/signals.rs", "fn only_in_a_test() {}"),
        ];
        let text = "`stop_workers`, `StopStage`, `argv`, `poll(2)`, `only_in_a_test`, `StopStep`, no_code";
        assert_eq!(unknown_identifiers(text, &files), ["StopStep", "only_in_a_test"].into());
    }

    #[test]
    fn only_declared_items_resolve() {
        let code = "pub enum Action {\n#[x(Other)]\nJoin,\nTell { Field: u8 },\nLast(Held) }\n\
                    impl<T> From<Action> for Cause<T> { const MOST: u8 = 1; fn from() { fn inner() {} } }\nstruct Gone;";
        let files = [RustFile::new("launcher/src/agent/message.rs", code)];
        let declared =
            |paths: &[&str]| paths.iter().map(|path| is_declared(path, &files)).collect::<Vec<_>>();
        assert_eq!(
            declared(&["Action::Join", "Action::Tell", "Action::Last", "Cause::from", "Cause::MOST"]),
            [true; 5]
        );
        assert_eq!(declared(&["Action::Other", "Action::Field", "Action::Held", "Action::Gone"]), [false; 4]);
        assert_eq!(declared(&["Action::from", "Cause::inner", "Cause::Join", "Gone::Join"]), [false; 4]);
        assert_eq!(declared(&["message::Gone", "agent::message::Action", "agent::Action"]), [true; 3]);
        assert_eq!(declared(&["message::Join", "other::Action", "message::Missing"]), [false; 3]);
    }
}
