//! The output of one host: whole lines, each with the host's name in front, so that hosts do not write into each other's
//! lines. Pure.

/// A longer line is broken, in bytes.
const MAX_LINE: usize = 64 * 1024;

/// One output stream of one host.
#[derive(Debug)]
pub struct NodeLines {
    /// Without one all bytes pass as they come.
    prefix: Option<Vec<u8>>,
    /// The unfinished line.
    pending: Vec<u8>,
}

impl NodeLines {
    /// The stream of a job's only host.
    #[must_use]
    pub const fn unchanged() -> Self {
        Self { prefix: None, pending: Vec::new() }
    }

    /// The stream of a host among others.
    #[must_use]
    pub fn with_name(name: &str) -> Self {
        Self { prefix: Some(format!("{name}| ").into_bytes()), pending: Vec::new() }
    }

    /// Appends to `out` what can be shown of the stream after these bytes.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(prefix) = &self.prefix else { return out.extend_from_slice(bytes) };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            while self.pending.len() > MAX_LINE {
                out.extend_from_slice(prefix);
                out.extend(self.pending.drain(..MAX_LINE));
                out.push(b'\n');
            }
            if self.pending.ends_with(b"\n") {
                out.extend_from_slice(prefix);
                out.append(&mut self.pending);
            }
        }
    }

    /// Appends the unfinished line at the end of the stream.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.pending.is_empty() {
            self.push(b"\n", out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(lines: &mut NodeLines, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| lines.push(piece.as_bytes(), &mut out));
        lines.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn whole_lines_have_host_in_front() {
        let text = shown(&mut NodeLines::with_name("a"), &["one\ntw", "o\n\n", "three"]);
        assert_eq!(text, "a| one\na| two\na| \na| three\n");
    }

    #[test]
    fn only_host_is_shown_unchanged() {
        assert_eq!(shown(&mut NodeLines::unchanged(), &["one\ntw", "o"]), "one\ntwo");
    }

    #[test]
    fn endless_line_is_broken() {
        let text = shown(&mut NodeLines::with_name("a"), &[&"x".repeat(MAX_LINE + 1), "y\n"]);
        let lines: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(lines, [MAX_LINE + 3, 3 + 2]);
    }
}
