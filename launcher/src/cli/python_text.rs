//! Numbers as Python's `int()` and `float()` read them, since that is what torchrun's options promise.

/// `int(text)`: blanks around, a sign, and single underscores between digits are fine. What does not fit is
/// the nearest number that does: every user of the value has a limit far below.
pub(super) fn parse_int(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = join_groups(digits)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.parse::<i128>().unwrap_or(i128::MAX);
    Some(if negative { -size } else { size })
}

/// `float(text)`: like `int()`, with a point, an exponent, `inf` and `nan`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    join_groups(text.trim())?.parse().ok()
}

/// Drops underscores that stand between two digits; any other underscore is an error.
fn join_groups(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut joined = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        if character != '_' {
            joined.push(character);
        } else if !is_digit(at.checked_sub(1)) || !is_digit(at.checked_add(1)) {
            return None;
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_are_parsed_like_python() {
        for (text, value) in
            [("2", 2), (" 2 ", 2), ("+2", 2), ("-2", -2), ("1_0", 10), ("007", 7), ("\t3\n", 3), ("-0", 0)]
        {
            assert_eq!(parse_int(text), Some(value), "`{text}`");
        }
        for text in ["", " ", "+", "-", "2.0", "1__0", "_1", "1_", "- 2", "+-2", "0x2", "two", "1 0"] {
            assert_eq!(parse_int(text), None, "`{text}`");
        }
        assert_eq!(parse_int(&"9".repeat(60)), Some(i128::MAX));
    }

    #[test]
    fn floats_are_parsed_like_python() {
        for (text, value) in
            [("0.1", 0.1), (" 5 ", 5.0), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0), ("1_0.5", 10.5)]
        {
            assert_eq!(parse_float(text), Some(value), "`{text}`");
        }
        assert_eq!(parse_float("inf"), Some(f64::INFINITY));
        for text in ["", "1_.5", "_1", "0x1", "abc", "1,5"] {
            assert_eq!(parse_float(text), None, "`{text}`");
        }
    }

    proptest! {
        #[test]
        fn any_number_text_does_not_panic(text in "\\PC*") {
            let _ = (parse_int(&text), parse_float(&text));
        }

        #[test]
        fn integers_round_trip(number in any::<i64>()) {
            prop_assert_eq!(parse_int(&number.to_string()), Some(i128::from(number)));
        }
    }
}
