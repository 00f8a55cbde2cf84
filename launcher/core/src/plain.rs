//! Escapes control characters of worker text before it is shown in the launcher's messages. Pure.

/// Whether a character changes the direction of writing: a terminal that obeys it shows the text in another order.
#[must_use]
pub const fn is_bidi_control(letter: char) -> bool {
    matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text with bidirectional controls as `\u{202e}`; other characters stay.
#[must_use]
pub fn with_bidi_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    text.chars().for_each(|letter| push_escaped(letter, &mut escaped));
    escaped
}

fn push_escaped(letter: char, text: &mut String) {
    if is_bidi_control(letter) {
        text.extend(letter.escape_unicode());
    } else {
        text.push(letter);
    }
}

/// Text without escape sequences and control characters, and with bidirectional controls shown as escapes, so that a
/// report cannot disturb a terminal.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\x1b' => match chars.next() {
                Some('[') => {
                    chars.find(|char| ('@'..='~').contains(char));
                }
                Some(']') => {
                    chars.find(|&char| char == '\x07' || char == '\\');
                }
                _ => {}
            },
            '\t' => plain.push('\t'),
            char if char.is_control() => {}
            char => push_escaped(char, &mut plain),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_removes_terminal_controls() {
        assert_eq!(plain("\x1b[31mred\x1b[0m\x1b]0;title\x07\t\x08\r\u{9b}31m end"), "red\t31m end");
        assert_eq!(plain("\x1b[31"), "");
        assert_eq!(plain("\x1b"), "");
    }

    #[test]
    fn bidi_controls_are_escaped_and_letters_kept() {
        for control in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            let escape = format!("a{}b", control.escape_unicode());
            assert_eq!(
                (plain(&format!("a{control}b")), with_bidi_escaped(&format!("a{control}b"))),
                (escape.clone(), escape)
            );
        }
        for text in ["\u{2029}\u{202f}\u{2065}\u{206a}", "שלום", "مرحبا", "é 漢字 🦀"] {
            assert_eq!((plain(text), with_bidi_escaped(text)), (text.to_owned(), text.to_owned()));
        }
        assert_eq!(with_bidi_escaped("\x1b[31mred\n\u{202e}"), "\x1b[31mred\n\\u{202e}");
    }
}
