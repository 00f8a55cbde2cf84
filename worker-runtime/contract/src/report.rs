//! The worker's error file: torch's JSON, written by the worker and read by the launcher.
//!
//! A worker writes the object form (`torch.distributed.elastic.multiprocessing.errors`); torch also knows a
//! plain text message with a timestamp beside it, and both are read. What is read came from a program that
//! was just failing, so every length is bounded and every broken file is an error value.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

use crate::rank::Rank;

/// The longest error file that is read, in bytes.
pub const MAX_LEN: usize = 4 * 1024 * 1024;

/// What a worker says of its own failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReport {
    /// What failed, such as `ValueError: bad batch`.
    pub message: String,
    /// Where: a traceback or the causes, one per line.
    pub callstack: Option<String>,
    /// When, in seconds since 1970; `None` if the file does not say it in a readable way.
    pub unix_seconds: Option<u64>,
    /// The rank whose loss this worker had noticed when it failed: not this worker is the root cause, but that
    /// one. torch's readers pass over it.
    pub lost_rank: Option<Rank>,
}

/// Why an error file is not one.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// More than [`MAX_LEN`] bytes.
    #[error("the error file has {len} bytes, more than {MAX_LEN}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The bytes are no UTF-8 text.
    #[error("the error file is not UTF-8 text")]
    NotUnicode(#[from] std::str::Utf8Error),
    /// The text is no JSON, or JSON without a `message` of a known form.
    #[error("the error file is not an error report")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct File<M> {
    message: M,
    #[serde(default, skip_serializing)]
    timestamp: Number,
}

#[derive(Serialize, Deserialize)]
struct Detail {
    message: String,
    #[serde(rename = "extraInfo", default)]
    extra_info: ExtraInfo,
}

#[derive(Serialize, Deserialize, Default)]
struct ExtraInfo {
    py_callstack: Option<String>,
    #[serde(default)]
    timestamp: Number,
    #[serde(default, skip_serializing_if = "Number::is_absent")]
    lost_rank: Number,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Message {
    Detail(Detail),
    Text(String),
}

/// A number as torch writes its timestamps: text in the object form, a number beside a plain message.
#[derive(Default)]
struct Number(Option<u64>);

impl Number {
    fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    fn rank(&self) -> Option<Rank> {
        self.0.and_then(|number| number.try_into().ok()).map(Rank)
    }
}

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An unreadable number must not cost the message: it is evidence of less worth.
        Ok(Self(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Number(number) => number.as_u64(),
            serde_json::Value::String(text) => text.trim().parse().ok(),
            _ => None,
        }))
    }
}

/// The text of an error file that says all this; a time that is not known is written as 0, without which
/// torch does not read the file.
#[must_use]
pub fn render(report: &ErrorReport) -> String {
    let file = File {
        message: Detail {
            message: report.message.clone(),
            extra_info: ExtraInfo {
                py_callstack: report.callstack.clone(),
                timestamp: Number(report.unix_seconds),
                lost_rank: Number(report.lost_rank.map(|rank| rank.0.into())),
            },
        },
        timestamp: Number(None),
    };
    let mut bytes = Vec::new();
    file.serialize(&mut Serializer::with_formatter(&mut bytes, Ascii))
        .expect("writing texts and numbers into memory cannot fail");
    String::from_utf8(bytes).expect("the formatter writes ASCII only")
}

/// Reads the bytes of an error file.
///
/// # Errors
/// Says what is wrong with a file that is too long, no text, no JSON, or without a message.
pub fn parse(bytes: &[u8]) -> Result<ErrorReport, ReportError> {
    if bytes.len() > MAX_LEN {
        return Err(ReportError::TooLong { len: bytes.len() });
    }
    let text = replace_lone_surrogates(std::str::from_utf8(bytes)?);
    let file: File<Message> = serde_json::from_str(&text)?;
    Ok(match file.message {
        Message::Detail(Detail { message, extra_info }) => ErrorReport {
            message,
            callstack: extra_info.py_callstack,
            unix_seconds: extra_info.timestamp.0,
            lost_rank: extra_info.lost_rank.rank(),
        },
        Message::Text(message) => {
            ErrorReport { message, callstack: None, unix_seconds: file.timestamp.0, lost_rank: None }
        }
    })
}

/// JSON whose texts are ASCII, as Python's `json.dumps` writes them.
struct Ascii;

impl Formatter for Ascii {
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

/// Python writes a file name that is not UTF-8 as half a surrogate pair, which is no text for JSON in Rust;
/// each lone half becomes U+FFFD.
fn replace_lone_surrogates(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match (escaped_unit(rest), rest.get(6..).and_then(escaped_unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            (Some(_), _) => 6,
            // A backslash and what it escapes; at the end of a broken text it stands alone.
            (None, _) => rest.chars().take(2).map(char::len_utf8).sum(),
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out
}

/// The unit of a `\uXXXX` at the start of the text.
fn escaped_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        u16::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message_of(text: &str) -> String {
        parse(text.as_bytes()).expect("a report").message
    }

    #[test]
    fn the_text_is_torchs() {
        let report = ErrorReport {
            message: "ValueError: é\u{1f600}\"".to_owned(),
            callstack: Some("line 1\nline 2\t".to_owned()),
            unix_seconds: Some(17),
            lost_rank: None,
        };
        let start = r#"{"message":{"message":"ValueError: \u00e9\ud83d\ude00\"","#;
        let extra = r#""extraInfo":{"py_callstack":"line 1\nline 2\t","timestamp":"17""#;
        assert_eq!(render(&report), format!("{start}{extra}}}}}}}"));
        let report = ErrorReport { lost_rank: Some(Rank(3)), ..report };
        assert_eq!(render(&report), format!(r#"{start}{extra},"lost_rank":"3"}}}}}}"#));
    }

    #[test]
    fn a_report_of_torchs_record_decorator_is_read() {
        let text = r#"{"message": {"message": "ZeroDivisionError: division by zero", "extraInfo":
            {"py_callstack": "Traceback (most recent call last):\n", "timestamp": "1700000000"}}}"#;
        assert_eq!(
            parse(text.as_bytes()).unwrap(),
            ErrorReport {
                message: "ZeroDivisionError: division by zero".to_owned(),
                callstack: Some("Traceback (most recent call last):\n".to_owned()),
                unix_seconds: Some(1_700_000_000),
                lost_rank: None,
            }
        );
    }

    #[test]
    fn a_plain_message_is_read() {
        let report = parse(br#"{"message": "lost", "timestamp": 5, "more": [1]}"#).unwrap();
        assert_eq!(
            report,
            ErrorReport {
                message: "lost".to_owned(),
                callstack: None,
                unix_seconds: Some(5),
                lost_rank: None
            }
        );
        assert_eq!(parse(br#"{"message": "lost"}"#).unwrap().unix_seconds, None);
    }

    #[test]
    fn an_unreadable_time_does_not_cost_the_message() {
        for time in ["\"soon\"", "-1", "1.5", "null", "[]", "\"\""] {
            let text = format!(r#"{{"message": {{"message": "m", "extraInfo": {{"timestamp": {time}}}}}}}"#);
            assert_eq!(parse(text.as_bytes()).unwrap().unix_seconds, None, "{text}");
        }
    }

    #[test]
    fn a_lost_rank_is_read_as_text_and_as_a_number() {
        for (rank, expected) in
            [("2", Some(Rank(2))), ("\"2\"", Some(Rank(2))), ("-1", None), ("4294967296", None), ("[]", None)]
        {
            let text = format!(r#"{{"message": {{"message": "m", "extraInfo": {{"lost_rank": {rank}}}}}}}"#);
            assert_eq!(parse(text.as_bytes()).unwrap().lost_rank, expected, "{text}");
        }
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced() {
        assert_eq!(message_of(r#"{"message": "a\udce9b"}"#), "a\u{fffd}b");
        assert_eq!(message_of(r#"{"message": "\ud83d"}"#), "\u{fffd}");
        assert_eq!(message_of(r#"{"message": "\ud83d\ud83d\ude00"}"#), "\u{fffd}\u{1f600}");
        assert_eq!(message_of(r#"{"message": "\\udce9 \u00e9\\"}"#), "\\udce9 é\\");
    }

    #[test]
    fn a_broken_file_is_an_error() {
        let deep = "[".repeat(100_000);
        let texts = ["", "{", "[]", "1", "{}", r#"{"message": 1}"#, r#"{"message": {}}"#, "\\", "\\u", &deep];
        for text in texts {
            assert!(
                matches!(parse(text.as_bytes()), Err(ReportError::Malformed(_))),
                "`{text:.20}` was read"
            );
        }
        assert!(matches!(parse(b"\xff"), Err(ReportError::NotUnicode(_))));
        assert!(matches!(parse(&vec![b' '; MAX_LEN + 1]), Err(ReportError::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(message in ".*", callstack: Option<String>, now: u64, lost: Option<u32>) {
            let lost_rank = lost.map(Rank);
            let report = ErrorReport { message, callstack, unix_seconds: Some(now), lost_rank };
            let text = render(&report);
            prop_assert!(text.is_ascii());
            prop_assert_eq!(parse(text.as_bytes()).unwrap(), report);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(parse(&bytes));
        }

        #[test]
        fn no_escapes_panic(text in r#"\{"message": "([\\ud8cé"0]){0,20}"\}"#) {
            drop(parse(text.as_bytes()));
        }
    }
}
