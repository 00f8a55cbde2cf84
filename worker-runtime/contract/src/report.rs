//! The worker's error file: torch's JSON, written by the worker and read by the launcher.
//!
//! A worker writes the object form (`torch.distributed.elastic.multiprocessing.errors`); torch also knows a
//! plain text message with a timestamp beside it, and both are read. What is read came from a program that
//! was just failing, so every length is bounded and every broken file is an error value.

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json;
use crate::rank::Rank;

pub mod cut;

/// The longest error file that is read as it is, in bytes. Of a longer one the long texts are [cut](cut::JsonCutter).
pub const MAX_REPORT_BYTES: usize = 4 * 1024 * 1024;

/// The longest error file that is read at all, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

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
    /// More than [`MAX_REPORT_BYTES`] bytes.
    #[error("the error file has {len} bytes, more than {MAX_REPORT_BYTES}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// More than [`MAX_FILE_BYTES`] bytes, or more than [`MAX_REPORT_BYTES`] in short texts.
    #[error(
        "the error file has more than {MAX_FILE_BYTES} bytes, or more than {MAX_REPORT_BYTES} without its long texts"
    )]
    Huge,
    /// The bytes are not UTF-8 text.
    #[error("the error file is not UTF-8 text")]
    NotUnicode(#[from] std::str::Utf8Error),
    /// The text is not JSON.
    #[error("it is not JSON: {0}")]
    NotJson(serde_json::Error),
    /// The text is JSON without a `message` of a known form.
    #[error(
        "it is JSON, but not an error report as PyTorch's `record` writes one: an object with a `message`"
    )]
    Malformed(serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct File<M> {
    message: M,
    #[serde(default, skip_serializing)]
    timestamp: Number,
}

#[derive(Serialize, Deserialize)]
struct Detail {
    message: Option<String>,
    #[serde(rename = "extraInfo")]
    extra_info: Option<ExtraInfo>,
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
            message: Some(report.message.clone()),
            extra_info: Some(ExtraInfo {
                py_callstack: report.callstack.clone(),
                timestamp: Number(report.unix_seconds),
                lost_rank: Number(report.lost_rank.map(|rank| rank.0.into())),
            }),
        },
        timestamp: Number(None),
    };
    json::to_text(&file).expect("texts and numbers have a form in JSON")
}

/// Reads the bytes of an error file.
///
/// # Errors
/// Says what is wrong with a file that is too long, no text, no JSON, or without a message.
pub fn parse(bytes: &[u8]) -> Result<ErrorReport, ReportError> {
    ErrorFile::parse(bytes).map(|file| file.report)
}

/// Which of torch's two forms the message of an error file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageForm {
    /// With a call stack and a time inside.
    Object,
    /// A plain text.
    Text,
}

/// A whole error file: the fields that rankrun reads, and the complete JSON for other readers.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorFile {
    /// What it says about the failure.
    pub report: ErrorReport,
    /// How it says it.
    pub form: MessageForm,
    json: Value,
}

impl ErrorFile {
    /// Reads the bytes of an error file.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ReportError> {
        if bytes.len() > MAX_REPORT_BYTES {
            return Err(ReportError::TooLong { len: bytes.len() });
        }
        let text = replace_lone_surrogates(std::str::from_utf8(bytes)?);
        let json: Value = serde_json::from_str(&text).map_err(ReportError::NotJson)?;
        let file: File<Message> = File::deserialize(&json).map_err(ReportError::Malformed)?;
        let (form, report) = match file.message {
            Message::Detail(detail) => {
                (MessageForm::Object, detail.into_report().map_err(ReportError::Malformed)?)
            }
            Message::Text(message) => {
                let unix_seconds = file.timestamp.0;
                let report = ErrorReport { message, callstack: None, unix_seconds, lost_rank: None };
                (MessageForm::Text, report)
            }
        };
        Ok(Self { report, form, json })
    }

    /// All that it says, on one line, each text [cut](cut::cut_text) to this many bytes.
    #[must_use]
    pub fn to_short_json(&self, most: usize) -> String {
        let mut json = self.json.clone();
        cut_json_strings(&mut json, most);
        json::to_text(&json).expect("what was JSON has a form in JSON")
    }

    /// All that it says and, in the object form, how its worker ended: the code, or the negated signal. A worker
    /// cannot write that itself.
    #[must_use]
    pub fn with_exit_code(&self, code: i32) -> String {
        let mut json = self.json.clone();
        if let Some(Value::Object(message)) = json.get_mut("message") {
            message.insert("errorCode".to_owned(), code.into());
        }
        json::to_text(&json).expect("what was JSON has a form in JSON")
    }
}

fn cut_json_strings(json: &mut Value, most: usize) {
    match json {
        Value::String(text) if text.len() > most => *text = cut::cut_text(text, most).into_owned(),
        Value::Array(list) => list.iter_mut().for_each(|item| cut_json_strings(item, most)),
        Value::Object(map) => map.values_mut().for_each(|item| cut_json_strings(item, most)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Detail {
    /// torch says `<N/A>` where the message is missing beside the rest.
    fn into_report(self) -> Result<ErrorReport, serde_json::Error> {
        let Some(extra_info) = self.extra_info.or_else(|| self.message.is_some().then(ExtraInfo::default))
        else {
            return Err(serde_json::Error::custom("the message says nothing"));
        };
        Ok(ErrorReport {
            message: self.message.unwrap_or_else(|| "<N/A>".to_owned()),
            callstack: extra_info.py_callstack,
            unix_seconds: extra_info.timestamp.0,
            lost_rank: extra_info.lost_rank.rank(),
        })
    }
}

/// Python writes a file name that is not UTF-8 as half a surrogate pair, which is not text for JSON in Rust;
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
mod tests;
