//! Makes texts of other machines safe for a terminal, and bounds their length. Pure.

/// Marks the place where a text was cut.
const CUT: char = '…';

/// `text` with at most `most` characters. Characters that a terminal obeys or hides become spaces: control characters,
/// line and paragraph separators, and those that change the writing direction.
#[must_use]
pub fn escape_for_terminal(text: &str, most: usize) -> String {
    let mut clean = String::new();
    for (count, letter) in text.chars().enumerate() {
        if count == most {
            clean.pop();
            clean.push(CUT);
            break;
        }
        clean.push(if is_terminal_control(letter) { ' ' } else { letter });
    }
    clean
}

/// Like [`escape_for_terminal`], for bytes that may not be UTF-8.
#[must_use]
pub fn escape_bytes_for_terminal(bytes: &[u8], most: usize) -> String {
    // A character has at most four bytes. One more character shows that the text is longer.
    let longest = most.saturating_add(1).saturating_mul(4).min(bytes.len());
    escape_for_terminal(&String::from_utf8_lossy(&bytes[..longest]), most)
}

fn is_terminal_control(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(escape_for_terminal("\x1b[31mred\n\u{202e}txet\u{9b}", 100), " [31mred  txet ");
    }

    #[test]
    fn truncated_text_has_an_ellipsis() {
        assert_eq!(escape_for_terminal("four", 4), "four");
        assert_eq!(escape_for_terminal("fives", 4), "fiv…");
        assert_eq!(escape_for_terminal("x", 0), "…");
        assert_eq!(escape_bytes_for_terminal(b"\xff\xffab", 3), "\u{fffd}\u{fffd}…");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_give_bounded_text(bytes in proptest::collection::vec(any::<u8>(), 0..200), most in 1_usize..50) {
            let text = escape_bytes_for_terminal(&bytes, most);
            prop_assert!(text.chars().count() <= most);
            prop_assert!(!text.chars().any(char::is_control));
        }
    }
}
