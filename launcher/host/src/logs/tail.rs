//! The last lines of a worker, kept for the failure report. Pure.

use std::collections::VecDeque;
use std::time::Instant;

use memchr::memrchr_iter;

use rankrun_core::plain::plain;
use rankrun_core::spec::output_stream::OutputStream;

const LINES: usize = 20;
/// Bytes that are kept of one line.
const LINE_LIMIT: usize = 4 * 1024;

/// The last lines of both streams, in the order in which they were finished.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<Vec<u8>>,
    stdout: PartialLine,
    stderr: PartialLine,
    fed_at: Option<Instant>,
}

/// An unfinished line: the bytes after the last carriage return that was overwritten.
#[derive(Debug, Default)]
struct PartialLine {
    text: Vec<u8>,
    has_return: bool,
}

impl PartialLine {
    fn push(&mut self, bytes: &[u8]) {
        for run in bytes.split_inclusive(|&byte| byte == b'\r') {
            let text = run.strip_suffix(b"\r").unwrap_or(run);
            if !text.is_empty() && std::mem::take(&mut self.has_return) {
                self.text.clear();
            }
            let room = LINE_LIMIT.saturating_sub(self.text.len()).min(text.len());
            self.text.extend_from_slice(&text[..room]);
            self.has_return |= text.len() < run.len();
        }
    }
}

impl Tail {
    /// The worker wrote `bytes` by now.
    pub(super) fn feed_at(&mut self, stream: OutputStream, bytes: &[u8], now: Instant) {
        self.fed_at = Some(now);
        self.feed(stream, bytes);
    }

    pub(super) const fn fed_at(&self) -> Option<Instant> {
        self.fed_at
    }

    pub(super) fn feed(&mut self, stream: OutputStream, bytes: &[u8]) {
        let partial = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        // Of a chunk of many lines only the last ones are kept.
        let start = memrchr_iter(b'\n', bytes).nth(LINES).map_or(0, |end| end + 1);
        if start > 0 {
            *partial = PartialLine::default();
        }
        for line in bytes[start..].split_inclusive(|&byte| byte == b'\n') {
            let text = line.strip_suffix(b"\n");
            partial.push(text.unwrap_or(line));
            if text.is_some() {
                if self.lines.len() == LINES {
                    self.lines.pop_front();
                }
                self.lines.push_back(std::mem::take(partial).text);
            }
        }
    }

    /// The lines as plain text, unfinished ones last.
    pub(super) fn lines(&self) -> Vec<String> {
        let partials = [&self.stdout, &self.stderr].into_iter().map(|partial| &partial.text);
        let all: Vec<&Vec<u8>> = self.lines.iter().chain(partials.filter(|text| !text.is_empty())).collect();
        all[all.len().saturating_sub(LINES)..]
            .iter()
            .map(|line| plain(&String::from_utf8_lossy(line)))
            .collect()
    }
}

/// The captured lines, between the ends of redirected files.
pub(super) fn join_tails(captured: Vec<String>, stdout: &[u8], stderr: &[u8]) -> Vec<String> {
    let lines_of = |bytes: &[u8]| {
        let mut tail = Tail::default();
        tail.feed(OutputStream::Stdout, bytes);
        tail.lines()
    };
    let mut lines = lines_of(stdout);
    lines.extend(captured);
    lines.extend(lines_of(stderr));
    lines.drain(..lines.len().saturating_sub(LINES));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tail(chunks: &[(OutputStream, &str)]) -> Vec<String> {
        let mut tail = Tail::default();
        chunks.iter().for_each(|(stream, text)| tail.feed(*stream, text.as_bytes()));
        tail.lines()
    }

    #[test]
    fn tail_orders_lines_by_completion() {
        use OutputStream::{Stderr, Stdout};
        let lines = tail(&[(Stdout, "a"), (Stderr, "Traceback\n"), (Stdout, "b\nc"), (Stderr, "err")]);
        assert_eq!(lines, ["Traceback", "ab", "c", "err"]);
    }

    #[test]
    fn tail_reduces_progress_to_last_state() {
        assert_eq!(
            tail(&[(OutputStream::Stderr, "\r10%\r20"), (OutputStream::Stderr, "%\rdone\r\nx\r")]),
            ["done", "x"]
        );
    }

    #[test]
    fn tail_limits_line_count_and_length() {
        let many: String = (0..100).map(|line| format!("{line}\n")).collect();
        let lines =
            tail(&[(OutputStream::Stdout, &many), (OutputStream::Stdout, &"x".repeat(LINE_LIMIT * 2))]);
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[0], "81");
        assert_eq!(lines[LINES - 1].len(), LINE_LIMIT);
    }

    #[test]
    fn tail_strips_escape_sequences() {
        assert_eq!(
            tail(&[(OutputStream::Stdout, "\x1b[31mred\x1b[0m\x1b]0;title\x07 \x08\u{fffd}\n")]),
            ["red \u{fffd}"]
        );
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_tail(chunks in prop::collection::vec("[a-c\n\r]{0,40}", 0..8)) {
            let pieces: Vec<_> = chunks.iter().map(|text| (OutputStream::Stdout, text.as_str())).collect();
            prop_assert_eq!(tail(&pieces), tail(&[(OutputStream::Stdout, &chunks.concat())]));
        }
    }
}
