//! Copies of tee'd lines that contain one of some texts: one more file for each stream, for all local ranks.
//!
//! Whole lines only, each with its prefix. What a worker leaves unfinished at its end is a line too; it stays
//! without its newline unless another line follows.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};

use super::space::write_error_reason;

/// A longer line is searched and copied in pieces of this size: memory is bounded.
const LINE_LIMIT: usize = 32 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Filter {
    texts: Vec<Finder<'static>>,
    /// `None` once it could not be written.
    file: Mutex<Option<FilterFile>>,
}

#[derive(Debug)]
struct FilterFile {
    file: File,
    path: PathBuf,
    end: FileEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileEnd {
    Line,
    Unfinished,
}

impl Filter {
    /// Lines that contain one of `texts` are copied to `file`.
    pub(super) fn new(texts: &[String], file: File, path: PathBuf) -> Self {
        let texts = texts.iter().map(|text| Finder::new(text).into_owned()).collect();
        Self { texts, file: Mutex::new(Some(FilterFile { file, path, end: FileEnd::Line })) }
    }

    fn matches(&self, bytes: &[u8]) -> bool {
        self.texts.iter().any(|text| text.find(bytes).is_some())
    }

    fn write(&self, lines: &[u8]) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copies) = &mut *file
            && let Err(error) = copies.append(lines)
        {
            let (path, why) = (copies.path.display(), write_error_reason(&error, &copies.path));
            tracing::warn!("cannot write the filtered log file `{path}`, it ends here: {why}");
            *file = None;
        }
    }
}

impl FilterFile {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.end == FileEnd::Unfinished {
            self.file.write_all(b"\n")?;
        }
        self.end = if lines.ends_with(b"\n") { FileEnd::Line } else { FileEnd::Unfinished };
        self.file.write_all(lines)
    }
}

/// Picks the lines of one stream of one worker.
#[derive(Debug)]
pub(super) struct LinePicker {
    to: Arc<Filter>,
    prefix: Vec<u8>,
    /// The beginning of a line that is not finished.
    line_start: Vec<u8>,
    picked: Vec<u8>,
}

impl LinePicker {
    pub(super) fn new(to: Arc<Filter>, prefix: &str) -> Self {
        Self { to, prefix: prefix.into(), line_start: Vec::new(), picked: Vec::new() }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let cut = memrchr(b'\n', bytes).map_or(0, |last| last + 1);
        let (mut lines, rest) = bytes.split_at(cut);
        if !self.line_start.is_empty()
            && let Some(first) = memchr(b'\n', lines)
        {
            self.line_start.extend_from_slice(&lines[..=first]);
            self.pick_line_start();
            lines = &lines[first + 1..];
        }
        // Most floods have nothing that is wanted.
        if self.to.matches(lines) {
            lines.split_inclusive(|&byte| byte == b'\n').for_each(|line| self.pick(line));
        }
        self.line_start.extend_from_slice(rest);
        if self.line_start.len() >= LINE_LIMIT {
            self.pick_line_start();
        }
        self.write();
    }

    pub(super) fn end(mut self) {
        self.pick_line_start();
        self.write();
    }

    fn pick_line_start(&mut self) {
        let line = std::mem::take(&mut self.line_start);
        self.pick(&line);
    }

    fn pick(&mut self, line: &[u8]) {
        if !line.is_empty() && self.to.matches(line) {
            self.picked.extend_from_slice(&self.prefix);
            self.picked.extend_from_slice(line);
        }
    }

    fn write(&mut self) {
        if !self.picked.is_empty() {
            self.to.write(&self.picked);
            self.picked = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::{Read, Seek};

    fn scratch() -> (File, PathBuf) {
        let path = std::env::temp_dir().join(format!("rankrun-test-{}", uuid::Uuid::new_v4()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (file, path)
    }

    /// The copied lines of these chunks, each of the named worker.
    fn copied(texts: &[&str], chunks: &[(&'static str, &str)]) -> String {
        let (mut file, path) = scratch();
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        let to = Arc::new(Filter::new(&texts, file.try_clone().unwrap(), path));
        let mut pickers = std::collections::BTreeMap::new();
        for &(worker, chunk) in chunks {
            let picker = || LinePicker::new(Arc::clone(&to), &format!("[{worker}]:"));
            pickers.entry(worker).or_insert_with(picker).feed(chunk.as_bytes());
        }
        pickers.into_values().for_each(LinePicker::end);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn matching_lines_are_copied_with_prefix() {
        let chunks = [("0", "apple\nbanana\n"), ("1", "an orange\n"), ("0", "pineapples, oranges\n\n")];
        let expected = "[0]:apple\n[1]:an orange\n[0]:pineapples, oranges\n";
        assert_eq!(copied(&["apple", "orange"], &chunks), expected);
        assert_eq!(copied(&["cherry"], &chunks), "");
    }

    #[test]
    fn empty_filter_text_matches_every_line() {
        assert_eq!(copied(&[""], &[("0", "a\n\nb\n")]), "[0]:a\n[0]:\n[0]:b\n");
    }

    #[test]
    fn line_in_interleaved_chunks_is_copied_whole() {
        let chunks =
            [("0", "an ap"), ("1", "grapes\n"), ("0", "ple"), ("1", "one more apple\n"), ("0", "!\nx")];
        assert_eq!(copied(&["apple"], &chunks), "[1]:one more apple\n[0]:an apple!\n");
    }

    #[test]
    fn last_line_without_newline_is_copied_without_newline() {
        assert_eq!(copied(&["a"], &[("0", "a\nlast a")]), "[0]:a\n[0]:last a");
        assert_eq!(copied(&["a"], &[("0", "a"), ("1", "a")]), "[0]:a\n[1]:a");
    }

    #[test]
    fn line_above_limit_is_cut() {
        let half = "a".repeat(LINE_LIMIT / 2);
        let copied = copied(&["a"], &[("0", &half), ("0", &half), ("0", "b\nba\n")]);
        assert_eq!(copied.len(), "[0]:".len() + LINE_LIMIT + "\n[0]:ba\n".len());
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_copy(chunks in prop::collection::vec("[ab\n]{0,8}", 0..8)) {
            let pieces: Vec<_> = chunks.iter().map(|text| ("0", text.as_str())).collect();
            prop_assert_eq!(copied(&["ab", "bb"], &pieces), copied(&["ab", "bb"], &[("0", &chunks.concat())]));
        }
    }
}
