//! JSON as Python's `json.dumps` writes it: ASCII only, a blank behind each comma and colon. What torch writes and
//! tools read looks like this.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The text of a value that consists of texts, numbers, lists, and maps whose keys are texts.
///
/// # Errors
/// The value holds something that JSON has no form for.
pub fn to_text<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, Python))?;
    Ok(String::from_utf8(bytes).expect("the formatter writes ASCII only"))
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        separate(writer, first)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        separate(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        fragment.chars().try_for_each(|character| {
            if character.is_ascii() {
                return writer.write_all(&[character as u8]);
            }
            character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(writer, "\\u{unit:04x}"))
        })
    }
}

fn separate<W: ?Sized + io::Write>(writer: &mut W, first: bool) -> io::Result<()> {
    if first { Ok(()) } else { writer.write_all(b", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_format_matches_python() {
        let value =
            serde_json::json!({"a": [1, 2.5, null, true], "b": {"c": "é\u{1f600}\n"}, "d": [], "e": {}});
        let text = r#"{"a": [1, 2.5, null, true], "b": {"c": "\u00e9\ud83d\ude00\n"}, "d": [], "e": {}}"#;
        assert_eq!(to_text(&value).unwrap(), text);
    }
}
