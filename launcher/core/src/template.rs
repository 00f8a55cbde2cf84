//! Python's `string.Template.safe_substitute`: for `${local_rank}` in arguments, and for the prefix of the workers'
//! lines. Pure.

/// `$name` and `${name}` → the value of the name, `$$` → `$`. Names without a value and other text stay unchanged. A
/// value is asked for only where its name occurs.
pub(crate) fn substitute(text: &[u8], value: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let (known, behind) = match (after.strip_prefix(b"$"), parse_reference(after)) {
            (Some(behind), _) => (Some("$".to_owned()), behind),
            (None, Some((name, behind))) => (value(name), behind),
            (None, None) => (None, after),
        };
        match known {
            Some(known) => {
                out.extend_from_slice(known.as_bytes());
                rest = behind;
            }
            None => {
                out.push(b'$');
                rest = after;
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// `${name}` → the value of the name. Every other dollar stays unchanged.
pub(crate) fn replace_braced(text: &[u8], value: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let braced = if after.starts_with(b"{") { parse_reference(after) } else { None };
        rest = match braced.and_then(|(name, behind)| Some((value(name)?, behind))) {
            Some((known, behind)) => {
                out.extend_from_slice(known.as_bytes());
                behind
            }
            None => {
                out.push(b'$');
                after
            }
        };
    }
    out.extend_from_slice(rest);
    out
}

/// The name behind a dollar, with or without braces, and the rest of the text.
fn parse_reference(text: &[u8]) -> Option<(&str, &[u8])> {
    match text.strip_prefix(b"{") {
        None => parse_name(text),
        Some(inner) => {
            let (name, behind) = parse_name(inner)?;
            Some((name, behind.strip_prefix(b"}")?))
        }
    }
}

/// The longest name at the start: ASCII, as in Python.
fn parse_name(text: &[u8]) -> Option<(&str, &[u8])> {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let end = text.iter().position(|byte| !is_inner(byte)).unwrap_or(text.len());
    let (name, behind) = text.split_at(end);
    let begins_well = name.first().is_some_and(|first| !first.is_ascii_digit());
    Some((std::str::from_utf8(name).ok().filter(|_| begins_well)?, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn substituted(text: &str) -> String {
        let value = |name: &str| match name {
            "rank" => Some("7".to_owned()),
            "_x1" => Some("$rank".to_owned()),
            _ => None,
        };
        String::from_utf8(substitute(text.as_bytes(), value)).unwrap()
    }

    #[test]
    fn substitute_matches_python_string_template() {
        for (text, expected) in [
            ("${rank}", "7"),
            ("$rank", "7"),
            ("a$rank.log", "a7.log"),
            ("$ranks", "$ranks"),
            ("$rank$rank", "77"),
            ("$rank\u{e9}", "7\u{e9}"),
            ("${_x1}/$_x1", "$rank/$rank"),
            ("$RANK", "$RANK"),
            ("${x}", "${x}"),
            ("${rank", "${rank"),
            ("${rank x}", "${rank x}"),
            ("${}", "${}"),
            ("${${rank}}", "${7}"),
            ("$1rank", "$1rank"),
            ("$$", "$"),
            ("$$$$", "$$"),
            ("$$rank", "$rank"),
            ("$$$rank", "$7"),
            ("$", "$"),
            ("cost: 5$ each", "cost: 5$ each"),
            ("", ""),
        ] {
            assert_eq!(substituted(text), expected, "{text}");
        }
    }

    #[test]
    fn substitute_looks_up_only_named_values() {
        let value = |name: &str| match name {
            "rank" => Some("7".to_owned()),
            other => panic!("`{other}` was looked up"),
        };
        assert_eq!(substitute(b"$rank $$hostname", value), b"7 $hostname");
    }

    proptest! {
        #[test]
        fn braced_names_without_value_are_unchanged(
            text in prop::collection::vec(prop::sample::select(b"$${}a1_ \xff".to_vec()), 0..20),
        ) {
            prop_assert_eq!(replace_braced(&text, |_| None), text);
        }

        #[test]
        fn text_without_value_shrinks_only_by_doubled_dollars(
            text in prop::collection::vec(prop::sample::select(b"$${}a1_ \xff".to_vec()), 0..20),
        ) {
            let out = substitute(&text, |_| None);
            prop_assert!(out.len() <= text.len() && 2 * out.len() >= text.len());
        }
    }
}
