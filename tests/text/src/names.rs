//! Names in a taken-apart file: its types, its tests, and the lines that only tests compile.

use std::collections::BTreeMap;
use std::ops::Range;

/// The words and signs of code in which comments and strings are blank.
pub(crate) fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut line, mut rest) = (1, code);
    while let Some(letter) = rest.chars().next() {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let length = if is_word(letter) {
            rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())
        } else {
            letter.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        if token == "\n" {
            line += 1;
        } else if !letter.is_whitespace() {
            found.push((line, token));
        }
        rest = after;
    }
    found
}

/// The types that code declares, each with its line. An associated type of an `impl` or a trait is none of them.
#[must_use]
pub fn types(code: &str) -> Vec<(usize, String)> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    // Of each open brace: whether it belongs to an `impl` or a trait.
    let mut braces: Vec<bool> = Vec::new();
    let mut associated = false;
    for (at, (line, token)) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", |(_, token)| *token);
        let is_name = next.starts_with(|letter: char| letter.is_ascii_uppercase());
        let is_item_place = at == 0 || ["}", ";", "{", "]", ")", "pub", "unsafe"].contains(&tokens[at - 1].1);
        match *token {
            "impl" | "trait" if is_item_place => {
                associated = true;
                if *token == "trait" && is_name {
                    found.push((*line, next.to_owned()));
                }
            }
            "struct" | "enum" | "union" if is_item_place && is_name => found.push((*line, next.to_owned())),
            "type" if is_item_place && is_name && !braces.last().is_some_and(|inside| *inside) => {
                found.push((*line, next.to_owned()));
            }
            "{" => braces.push(std::mem::take(&mut associated)),
            "}" => drop(braces.pop()),
            ";" => associated = false,
            _ => {}
        }
    }
    found
}

/// The identifiers of code, each with its first line.
#[must_use]
pub fn identifiers(code: &str) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for (line, token) in tokens(code) {
        if token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_') {
            found.entry(token).or_insert(line);
        }
    }
    found
}

/// The words of an identifier, in lower case: `SeatList`, `seat_list` and `SEAT_LIST` have two.
#[must_use]
pub fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase() || letter.is_ascii_digit();
        let last = words.last_mut();
        if let Some(last) = last.filter(|_| letter != '_') {
            last.extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The functions with the attribute `#[test]`, each with its line.
#[must_use]
pub fn tests(code: &str) -> Vec<(usize, String)> {
    let tokens = tokens(code);
    let is_attribute =
        |at: usize| tokens[at..].iter().take(4).map(|(_, token)| *token).eq(["#", "[", "test", "]"]);
    let name = |at: usize| {
        let function = tokens[at..].iter().position(|(_, token)| *token == "fn")?;
        let name = tokens.get(at + function + 1)?;
        // `r#await` is three tokens.
        let is_raw = name.1 == "r" && tokens.get(at + function + 2).is_some_and(|(_, token)| *token == "#");
        let name = if is_raw { tokens.get(at + function + 3)? } else { name };
        Some((name.0, name.1.to_owned()))
    };
    (0..tokens.len()).filter(|at| is_attribute(*at)).filter_map(name).collect()
}

/// What `#[cfg(test)]` marks in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestOnly {
    /// Modules that are files of their own.
    pub modules: Vec<String>,
    /// Lines of modules that are written here.
    pub lines: Vec<Range<usize>>,
}

/// Finds the modules that only tests compile.
#[must_use]
pub fn test_only(code: &str) -> TestOnly {
    let tokens = tokens(code);
    let mut found = TestOnly::default();
    for at in 0..tokens.len() {
        let next_tokens = tokens[at..].iter().take(7).map(|(_, token)| *token);
        if !next_tokens.eq(["#", "[", "cfg", "(", "test", ")", "]"]) {
            continue;
        }
        let item = tokens[at..].iter().take(40).position(|(_, token)| *token == "mod");
        let Some(item) = item.map(|item| at + item) else { continue };
        let is_next = tokens[at + 7..item].iter().all(|(_, token)| !["{", ";", "fn", "use"].contains(token));
        let (Some(name), Some(after), true) = (tokens.get(item + 1), tokens.get(item + 2), is_next) else {
            continue;
        };
        if after.1 == ";" {
            found.modules.push(name.1.to_owned());
        } else {
            found.lines.push(tokens[at].0..closing_line(&tokens[item + 2..]) + 1);
        }
    }
    found
}

/// The line of the brace that closes the first one.
fn closing_line(tokens: &[(usize, &str)]) -> usize {
    let mut depth = 0_usize;
    for (line, token) in tokens {
        match *token {
            "{" => depth += 1,
            "}" if depth == 1 => return *line,
            "}" => depth -= 1,
            _ => {}
        }
    }
    usize::MAX - 1
}

#[cfg(test)]
mod self_test {
    use super::*;

    fn names(found: Vec<(usize, String)>) -> Vec<String> {
        found.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn associated_types_are_not_counted() {
        let code = "pub struct A; impl Iterator for A { type Item = u8; fn next() { enum B {} } } type C = A;\n\
                    pub(crate) trait D { type E; } fn f(x: impl Fn()) {} union F {}";
        assert_eq!(names(types(code)), ["A", "B", "C", "D", "F"]);
    }

    #[test]
    fn identifier_is_cut_into_its_words() {
        for name in ["SeatList", "seat_list", "SEAT_LIST", "_seat_list"] {
            assert_eq!(words_of(name), ["seat", "list"], "{name}");
        }
        assert_eq!(words_of("c10d"), ["c10d"]);
        assert_eq!(identifiers("fn a(b: C) {\n b }"), [("C", 1), ("a", 1), ("b", 1), ("fn", 1)].into());
    }

    #[test]
    fn tests_are_found_with_attributes_between() {
        let code = "#[test]\n#[cfg(unix)]\nfn one() {}\nfn two() {}\n#[test] fn r#await() {}";
        assert_eq!(tests(code), [(3, "one".to_owned()), (5, "await".to_owned())]);
    }

    #[test]
    fn test_modules_are_found_inside_and_beside_the_file() {
        let code = "fn a() {}\n#[cfg(test)]\nmod simulation;\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nuse x::y;\nmod plain {}";
        let found = test_only(code);
        assert_eq!((&found.modules[..], found.lines.len()), (&["simulation".to_owned()][..], 1));
        assert_eq!(found.lines[0], 4..8);
    }
}
