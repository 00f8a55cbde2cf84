//! Long texts of error files: the start, the end, and between them a line with the sizes.
//!
//! [`JsonCutter`] cuts the texts of a JSON file of any size while it is read, in bounded memory. [`cut_text`] cuts one
//! text. A text that has been cut before keeps its first size.

use std::borrow::Cow;

use super::{MAX_FILE_BYTES, MAX_REPORT_BYTES, ReportError};

/// Of a file longer than [`MAX_REPORT_BYTES`], a text keeps less than this, in bytes.
pub const MAX_CUT_TEXT: usize = 64 * 1024;

/// The start, and at least once the end, that [`JsonCutter`] keeps of a text.
const KEPT_PART_BYTES: usize = 20 * 1024;

const BEFORE_OMISSION: &str = "\n[... ";
const BEFORE_LEN: &str = " of ";
const AFTER_LEN: &str = " bytes are left out ...]\n";

/// `text` with at most `most` bytes and the line that says what is missing. Letters stay whole.
#[must_use]
pub fn cut_text(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let head = &text[..text.floor_char_boundary(most / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - most / 2)..];
    let len = original_len(text).unwrap_or(text.len() as u64);
    let external_worker = len.saturating_sub((head.len() + tail.len()) as u64);
    Cow::Owned(format!("{head}{}{tail}", omission_mark(external_worker, len)))
}

/// Whether the middle of this text has been left out.
#[must_use]
pub fn is_cut_text(text: &str) -> bool {
    original_len(text).is_some()
}

fn omission_mark(external_worker: u64, len: u64) -> String {
    format!("{BEFORE_OMISSION}{external_worker}{BEFORE_LEN}{len}{AFTER_LEN}")
}

fn original_len(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(AFTER_LEN)?;
    let (_, numbers) = before.rsplit_once(BEFORE_OMISSION)?;
    let (external_worker, len) = numbers.split_once(BEFORE_LEN)?;
    external_worker.parse::<u64>().ok()?;
    len.parse().ok()
}

/// Takes the bytes of a JSON text and gives the same JSON with every long text cut.
#[derive(Debug, Default)]
pub struct JsonCutter {
    out: Vec<u8>,
    bytes_read: u64,
    text: Option<Text>,
}

impl JsonCutter {
    /// Takes in more of the file.
    ///
    /// # Errors
    /// The file, or what is left of it, is too long.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), ReportError> {
        self.bytes_read += bytes.len() as u64;
        if self.bytes_read > MAX_FILE_BYTES || self.out.len() > MAX_REPORT_BYTES {
            return Err(ReportError::Huge);
        }
        while !bytes.is_empty() {
            bytes = match self.text.take() {
                None => self.feed_outside_string(bytes),
                Some(text) => self.feed_string(text, bytes),
            };
        }
        Ok(())
    }

    /// Takes in the bytes up to the start of the next text, and gives the rest.
    fn feed_outside_string<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let quote = bytes.iter().position(|byte| *byte == b'"');
        let (taken, rest) = bytes.split_at(quote.map_or(bytes.len(), |at| at + 1));
        self.out.extend_from_slice(taken);
        self.text = quote.map(|_| Text::default());
        rest
    }

    /// Takes in the bytes up to the end of this text, and gives the rest.
    fn feed_string<'a>(&mut self, mut text: Text, bytes: &'a [u8]) -> &'a [u8] {
        let rest = text.feed(bytes);
        let Some((quote, rest)) = rest.split_first() else {
            self.text = Some(text);
            return rest;
        };
        text.finish(&mut self.out);
        self.out.push(*quote);
        rest
    }

    /// The end of the file: what is left of it.
    ///
    /// # Errors
    /// As [`JsonCutter::feed`].
    pub fn finish(mut self) -> Result<Vec<u8>, ReportError> {
        if let Some(text) = self.text.take() {
            text.finish(&mut self.out);
        }
        if self.out.len() > MAX_REPORT_BYTES { Err(ReportError::Huge) } else { Ok(self.out) }
    }
}

/// A text between its quotes. Every part begins where a letter or an escape begins.
#[derive(Debug, Default)]
struct Text {
    head: Option<Part>,
    /// The part before the last, where that is not the head.
    before: Option<Part>,
    last: Part,
    /// The length of the parts between the head and those.
    omitted: u64,
    /// An escape that is not complete.
    escape: Vec<u8>,
}

/// Bytes as the file has them, and the length of the text that they stand for.
#[derive(Debug, Default)]
struct Part {
    bytes: Vec<u8>,
    len: u64,
}

impl Part {
    fn push(&mut self, bytes: &[u8], len: u64) {
        self.bytes.extend_from_slice(bytes);
        self.len += len;
    }
}

impl Text {
    /// Takes in the bytes up to the closing quote, and gives the rest.
    fn feed<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let Some((&first, rest)) = bytes.split_first() {
            if !self.escape.is_empty() || first == b'\\' {
                self.escape.push(first);
                self.complete_escape();
                bytes = rest;
            } else if first == b'"' {
                break;
            } else {
                let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(bytes.len());
                self.push_chars(&bytes[..end]);
                bytes = &bytes[end..];
            }
        }
        bytes
    }

    fn push_chars(&mut self, mut letters: &[u8]) {
        while let Some(&first) = letters.first() {
            let is_rest_of_letter = first & 0xC0 == 0x80;
            self.make_room(is_rest_of_letter);
            let room = KEPT_PART_BYTES.saturating_sub(self.last.bytes.len()).max(1);
            let (taken, rest) = letters.split_at(room.min(letters.len()));
            self.last.push(taken, taken.len() as u64);
            letters = rest;
        }
    }

    fn complete_escape(&mut self) {
        let has_digits = self.escape.get(1) == Some(&b'u');
        if self.escape.len() < if has_digits { 6 } else { 2 } {
            return;
        }
        let escape = std::mem::take(&mut self.escape);
        let digits = std::str::from_utf8(&escape[2..]).ok();
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let len = match unit {
            None | Some(..0x80) => 1,
            // Each half of a surrogate pair is half of a letter of four bytes.
            Some(0x80..0x800 | 0xD800..0xE000) => 2,
            Some(0x800..) => 3,
        };
        self.make_room(matches!(unit, Some(0xDC00..0xE000)));
        self.last.push(&escape, len);
    }

    /// Begins a new part where the last one is full, unless a letter is cut there.
    fn make_room(&mut self, is_rest_of_letter: bool) {
        if self.last.bytes.len() < KEPT_PART_BYTES || is_rest_of_letter {
            return;
        }
        let full = std::mem::take(&mut self.last);
        if self.head.is_none() {
            self.head = Some(full);
        } else if let Some(old) = self.before.replace(full) {
            self.omitted += old.len;
        }
    }

    fn finish(self, out: &mut Vec<u8>) {
        let kept = [self.head, self.before, Some(self.last)].map(Option::unwrap_or_default);
        let len = self.omitted + kept.iter().map(|part| part.len).sum::<u64>();
        let [head, rest @ ..] = &kept;
        out.extend_from_slice(&head.bytes);
        if self.omitted > 0 {
            out.extend_from_slice(omission_mark(self.omitted, len).replace('\n', "\\n").as_bytes());
        }
        rest.iter().for_each(|part| out.extend_from_slice(&part.bytes));
        out.extend_from_slice(&self.escape);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn shortened(json: &str, step: usize) -> String {
        let mut cutter = JsonCutter::default();
        json.as_bytes().chunks(step).for_each(|bytes| cutter.feed(bytes).unwrap());
        String::from_utf8(cutter.finish().unwrap()).unwrap()
    }

    /// Start and end of a text, and the sizes between them.
    fn parts(text: &str) -> (&str, u64, u64, &str) {
        let (head, rest) = text.split_once(BEFORE_OMISSION).unwrap();
        let (numbers, tail) = rest.split_once(AFTER_LEN).unwrap();
        let (external_worker, len) = numbers.split_once(BEFORE_LEN).unwrap();
        (head, external_worker.parse().unwrap(), len.parse().unwrap(), tail)
    }

    #[test]
    fn short_text_is_unchanged() {
        assert_eq!(cut_text("four", 4), "four");
        let json = r#"{"message": "a\"b\\", "x": [1, "\u00e9"]}"#;
        assert_eq!(shortened(json, 1), json);
        let whole = format!("\"{}\"", "x".repeat(2 * KEPT_PART_BYTES));
        assert_eq!(shortened(&whole, 999), whole);
    }

    #[test]
    fn cut_text_keeps_both_ends_and_original_size() {
        let text = format!("HEAD{}TAIL", "x".repeat(1000));
        let once = cut_text(&text, 100);
        assert!(once.starts_with("HEADxx") && once.ends_with("xxTAIL"), "{once}");
        let (head, external_worker, len, tail) = parts(&once);
        assert_eq!((head.len(), tail.len(), external_worker, len), (50, 50, 908, 1008));
        let twice = cut_text(&once, 20);
        assert_eq!(twice, "HEADxxxxxx\n[... 988 of 1008 bytes are left out ...]\nxxxxxxTAIL");
        assert!(is_cut_text(&twice) && !is_cut_text(&text));
    }

    #[test]
    fn escape_counts_as_its_character() {
        for (letter, bytes) in
            [("é", 2), ("\\u00e9", 2), ("\\ud83d\\ude00", 4), ("\\n", 1), ("\\u20ac", 3), ("😀", 4)]
        {
            let json = format!("{{\"a\": [\"HEAD{}TAIL\"], \"b\": 1}}", letter.repeat(100_000));
            let value: Value = serde_json::from_str(&shortened(&json, 4099)).unwrap();
            let whole: Value = serde_json::from_str(&json).unwrap();
            let (text, whole) = (value["a"][0].as_str().unwrap(), whole["a"][0].as_str().unwrap());
            let (head, external_worker, len, tail) = parts(text);
            assert_eq!(len, 8 + 100_000 * bytes, "{letter}");
            assert_eq!(len, (head.len() + tail.len()) as u64 + external_worker);
            assert!(whole.starts_with(head) && whole.ends_with(tail), "a letter was cut: {letter}");
            assert!(text.len() < MAX_CUT_TEXT && tail.len() >= KEPT_PART_BYTES / 6, "{}", text.len());
            assert_eq!(value["b"], 1);
        }
    }

    #[test]
    fn file_too_long_after_cut_is_error() {
        let many = "\"x\",".repeat(MAX_REPORT_BYTES / 4 + 2);
        let mut cutter = JsonCutter::default();
        let fed = many.as_bytes().chunks(65536).try_for_each(|bytes| cutter.feed(bytes));
        assert!(matches!(fed.and_then(|()| cutter.finish().map(drop)), Err(ReportError::Huge)));
    }

    proptest! {
        #[test]
        fn text_is_cut_at_character_boundaries(text in "[aé€😀]{0,60}", most in 0_usize..80) {
            let short = cut_text(&text, most);
            if text.len() <= most {
                prop_assert_eq!(&*short, &text);
            } else {
                let (head, external_worker, len, tail) = parts(&short);
                prop_assert!(text.starts_with(head) && text.ends_with(tail));
                prop_assert_eq!((len, external_worker), (text.len() as u64, (text.len() - head.len() - tail.len()) as u64));
            }
        }

        #[test]
        fn arbitrary_json_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..99), step in 1_usize..9) {
            let mut cutter = JsonCutter::default();
            bytes.chunks(step).for_each(|bytes| cutter.feed(bytes).unwrap());
            prop_assert_eq!(cutter.finish().unwrap(), bytes);
        }
    }
}
