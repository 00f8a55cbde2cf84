//! Numbers as Python's `int()` and `float()` read them, since that is what torchrun's options promise.

use std::borrow::Cow;

use rankrun_core::plain::is_bidi_control;

/// `int(text)`: blanks around, a sign, and single underscores between digits are fine. What does not fit is
/// the nearest number that does: every user of the value has a limit far below.
pub(super) fn parse_int(text: &str) -> Option<i128> {
    let text = ascii_digits(text.trim());
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, &text[..]),
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
    join_groups(&ascii_digits(text.trim()))?.parse().ok()
}

/// `repr(text)`: in quotes, with escapes.
pub(super) fn python_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let escaped = text.chars().map(|letter| match letter {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        _ if letter == quote || letter == '\\' => format!("\\{letter}"),
        _ if letter.is_control() => format!("\\x{:02x}", u32::from(letter)),
        _ if is_bidi_control(letter) => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    });
    format!("{quote}{}{quote}", escaped.collect::<String>())
}

/// The text with the digits of all scripts as ASCII's, as in `１２` for 12.
pub(super) fn ascii_digits(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let ascii = |letter: char| {
        let code = u32::from(letter);
        let zero = ZEROS.get(ZEROS.partition_point(|zero| *zero <= code).checked_sub(1)?)?;
        char::from_digit(code - zero, 10).filter(|_| code - zero < 10)
    };
    text.chars().map(|letter| ascii(letter).unwrap_or(letter)).collect()
}

/// The zeros of the scripts beside ASCII (Unicode 14, as of Python 3.11); 1 to 9 follow each.
const ZEROS: [u32; 65] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0,
    0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50,
    0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140,
    0x1e2f0, 0x1e950, 0x1fbf0,
];

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
        for (text, value) in [
            ("2", 2),
            (" 2 ", 2),
            ("+2", 2),
            ("-2", -2),
            ("1_0", 10),
            ("007", 7),
            ("\t3\n", 3),
            ("-0", 0),
            ("-٣", -3),
            ("１_2", 12),
            ("𝟗", 9),
        ] {
            assert_eq!(parse_int(text), Some(value), "`{text}`");
        }
        for text in
            ["", " ", "+", "-", "2.0", "1__0", "_1", "1_", "- 2", "+-2", "0x2", "two", "1 0", "³", "一", "٪3"]
        {
            assert_eq!(parse_int(text), None, "`{text}`");
        }
        assert_eq!(parse_int(&"9".repeat(60)), Some(i128::MAX));
    }

    #[test]
    fn floats_are_parsed_like_python() {
        for (text, value) in [
            ("0.1", 0.1),
            (" 5 ", 5.0),
            ("٣.٥e１", 35.0),
            ("1e3", 1000.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1_0.5", 10.5),
        ] {
            assert_eq!(parse_float(text), Some(value), "`{text}`");
        }
        assert_eq!(parse_float("inf"), Some(f64::INFINITY));
        for text in ["", "1_.5", "_1", "0x1", "abc", "1,5"] {
            assert_eq!(parse_float(text), None, "`{text}`");
        }
    }

    #[test]
    fn text_is_quoted_like_python() {
        for (text, quoted) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\\\n\t\r\x1b\u{85}", "'\\\\\\n\\t\\r\\x1b\\x85'"),
            ("\u{202e}é", "'\\u202eé'"),
        ] {
            assert_eq!(python_repr(text), quoted);
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
