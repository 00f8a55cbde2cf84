//! One line of a heartbeat: `STEP [section=NAME] [limit=SECONDS] [KEY=VALUE…]`.
//!
//! A program writes it to the FIFO in `RANKRUN_HEARTBEAT` after each step. A section is a part that takes longer
//! than a step, such as a checkpoint; it lasts until the next heartbeat.

use std::time::Duration;

/// No heartbeat is longer, in bytes.
pub const MAX_HEARTBEAT: usize = 512;
const MAX_SECTION: usize = 64;

/// What a program says of its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    pub step: u64,
    /// The part of the program that begins now, if it is not an ordinary step.
    pub section: Option<String>,
    /// The time that the section may take.
    pub limit: Option<Duration>,
}

/// Why a line is not a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeartbeatError {
    #[error("it is longer than {MAX_HEARTBEAT} bytes")]
    TooLong,
    #[error("it is not UTF-8 text")]
    NotText,
    #[error("its first word is not a step (a whole number from 0)")]
    Step,
    #[error("a word after the step is not KEY=VALUE")]
    Pair,
    #[error("its section is not a name of 1 to {MAX_SECTION} letters, digits, `-`, `_`, `.` or `/`")]
    Section,
    #[error("its limit is not a number of seconds greater than 0, and at most 100 years")]
    Limit,
}

impl Heartbeat {
    /// Reads one line. Keys that mean nothing here are left to other readers.
    ///
    /// # Errors
    /// The line is not a heartbeat.
    pub fn parse(line: &[u8]) -> Result<Self, HeartbeatError> {
        if line.len() > MAX_HEARTBEAT {
            return Err(HeartbeatError::TooLong);
        }
        let text = str::from_utf8(line).map_err(|_| HeartbeatError::NotText)?;
        let mut words = text.split_ascii_whitespace();
        let step = words.next().and_then(|word| word.parse().ok()).ok_or(HeartbeatError::Step)?;
        let mut heartbeat = Self { step, section: None, limit: None };
        for word in words {
            let (key, value) = word.split_once('=').ok_or(HeartbeatError::Pair)?;
            match key {
                "section" => heartbeat.section = Some(parse_section(value)?),
                "limit" => heartbeat.limit = Some(parse_limit(value)?),
                _ => {}
            }
        }
        Ok(heartbeat)
    }
}

fn parse_section(value: &str) -> Result<String, HeartbeatError> {
    let is_named = (1..=MAX_SECTION).contains(&value.len())
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    is_named.then(|| value.to_owned()).ok_or(HeartbeatError::Section)
}

fn parse_limit(value: &str) -> Result<Duration, HeartbeatError> {
    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|limit| !limit.is_zero() && *limit <= crate::spec::MAX_DURATION)
        .ok_or(HeartbeatError::Limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_has_step_section_and_limit() {
        let plain = Heartbeat { step: 4116, section: None, limit: None };
        assert_eq!(Heartbeat::parse(b"4116\n"), Ok(plain.clone()));
        assert_eq!(Heartbeat::parse(b"4116 loss=0.25 total=9000"), Ok(plain));
        let section = Heartbeat {
            step: 7,
            section: Some("checkpoint".to_owned()),
            limit: Some(Duration::from_millis(1_500)),
        };
        assert_eq!(Heartbeat::parse(b"7 section=checkpoint limit=1.5"), Ok(section));
    }

    #[test]
    fn garbage_is_an_error_that_names_the_fault() {
        for (line, error) in [
            (b"".as_slice(), HeartbeatError::Step),
            (b"-1", HeartbeatError::Step),
            (b"step=3", HeartbeatError::Step),
            (b"\xff\xfe", HeartbeatError::NotText),
            (b"3 four", HeartbeatError::Pair),
            (b"3 section=", HeartbeatError::Section),
            (b"3 section=\x1b[2J", HeartbeatError::Section),
            (b"3 limit=0", HeartbeatError::Limit),
            (b"3 limit=nan", HeartbeatError::Limit),
            (b"3 limit=1e300", HeartbeatError::Limit),
            (&[b'1'; MAX_HEARTBEAT + 1], HeartbeatError::TooLong),
        ] {
            assert_eq!(Heartbeat::parse(line), Err(error), "{}", String::from_utf8_lossy(line));
        }
    }
}
