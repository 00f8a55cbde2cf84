//! Text of the workers in reports of ours. Pure.

/// Text without escape sequences and control characters, so that a report cannot disturb a terminal.
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
            char => plain.push(char),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        assert_eq!(plain("\x1b[31mred\x1b[0m\x1b]0;title\x07\t\x08\r\u{9b}31m end"), "red\t31m end");
        assert_eq!(plain("\x1b[31"), "");
        assert_eq!(plain("\x1b"), "");
    }
}
