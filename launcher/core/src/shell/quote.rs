//! Quotes words for a shell, and for messages. Pure.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The word as any POSIX shell reads it back, byte for byte.
#[must_use]
pub fn for_shell(argument: &OsStr) -> Vec<u8> {
    let bytes = argument.as_bytes();
    // `=` makes an assignment of a first word, and zsh looks up the command behind a leading `=`.
    let is_plain = |(at, byte): (usize, &u8)| is_plain(*byte) || (*byte == b'=' && at > 0);
    if !bytes.is_empty() && bytes.iter().enumerate().all(is_plain) {
        return bytes.to_vec();
    }
    let mut quoted = Vec::with_capacity(bytes.len() + 2);
    quoted.push(b'\'');
    for byte in bytes {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// The word on one line, such that nothing of it commands a terminal. Bash and zsh read it back.
#[must_use]
pub fn for_people(argument: &OsStr) -> String {
    if let Some(text) = argument.to_str()
        && !text.chars().any(char::is_control)
    {
        return String::from_utf8(for_shell(argument)).unwrap_or_else(|_| text.to_owned());
    }
    let mut shown = "$'".to_owned();
    for chunk in argument.as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\'' | '\\' => shown.extend(['\\', letter]),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                '\r' => shown.push_str("\\r"),
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    letter.encode_utf8(&mut bytes).bytes().for_each(|byte| push_byte(&mut shown, byte));
                }
                letter => shown.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_byte(&mut shown, *byte));
    }
    shown.push('\'');
    shown
}

fn push_byte(shown: &mut String, byte: u8) {
    // Octal ends after three digits; what follows `\x` in bash may be taken for a part of it.
    shown.push_str(&format!("\\{byte:03o}"));
}

/// Whether the byte has no special meaning to a shell, at any place.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b'.' | b'/' | b':' | b',' | b'+' | b'@' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(bytes: &[u8]) -> Vec<u8> {
        for_shell(OsStr::from_bytes(bytes))
    }

    fn people(bytes: &[u8]) -> String {
        for_people(OsStr::from_bytes(bytes))
    }

    #[test]
    fn plain_words_stay_unquoted_and_others_are_quoted() {
        assert_eq!(shell(b"--lr=0.1"), b"--lr=0.1");
        assert_eq!(shell(b"=ls"), b"'=ls'");
        assert_eq!(shell(b"/usr/bin/python3"), b"/usr/bin/python3");
        assert_eq!(shell(b""), b"''");
        assert_eq!(shell(b"it's $HOME"), br"'it'\''s $HOME'");
        assert_eq!(shell(b"a\nb\xff"), b"'a\nb\xff'");
    }

    #[test]
    fn displayed_word_is_one_line_without_control_codes() {
        assert_eq!(people(b"train.py"), "train.py");
        assert_eq!(people("größe 1".as_bytes()), "'größe 1'");
        assert_eq!(people(b"a\nb'\x1b[2J"), r"$'a\nb\'\033[2J'");
        assert_eq!(people(b"a\xff0"), r"$'a\3770'");
    }
}
