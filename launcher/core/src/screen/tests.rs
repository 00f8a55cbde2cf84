#![expect(clippy::disallowed_methods, reason = "an `Instant` can only be made by reading the clock")]

use crate::screen::*;
use proptest::prelude::*;

/// More than any chunk has that is not about full pipes.
const BRIM: usize = 4096;
const TERMINAL: ScreenKind = ScreenKind::Terminal { columns: 40, rows: 24 };

/// A screen with a clock of its own.
struct Bench {
    screen: Screen,
    start: Instant,
    now: Instant,
    out: Vec<u8>,
}

impl Bench {
    fn new(kind: ScreenKind) -> Self {
        let start = Instant::now();
        Self { screen: Screen::new(kind), start, now: start, out: Vec::new() }
    }

    fn add(&mut self, prefix: &str) -> StreamId {
        self.screen.add((prefix, None), BRIM, self.now)
    }

    fn feed(&mut self, id: StreamId, text: &str) {
        self.screen.feed(id, text.as_bytes(), self.now, &mut self.out);
    }

    fn at(&mut self, millis: u64) {
        self.now = self.start + Duration::from_millis(millis);
        self.screen.show_due(self.now, false, &mut self.out);
    }

    fn message(&mut self, text: &str) {
        self.screen.message(text.as_bytes(), &mut self.out);
    }

    fn end(&mut self, id: StreamId) {
        self.screen.end(id, &mut self.out);
    }

    fn take(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.out)).unwrap()
    }

    /// The rows of the terminal after all output.
    fn rows(&mut self) -> Vec<String> {
        shown(&std::mem::take(&mut self.out))
    }
}

/// A terminal as far as the screen uses one: text, line breaks, cursor up, erase to the end. It never wraps.
fn shown(bytes: &[u8]) -> Vec<String> {
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let (mut row, mut column) = (0, 0);
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\n' => {
                row += 1;
                column = 0;
                rows.resize(rows.len().max(row + 1), Vec::new());
            }
            '\r' => column = 0,
            '\x1b' => {
                assert_eq!(chars.next(), Some('['));
                let mut count = String::new();
                let last = loop {
                    match chars.next().unwrap() {
                        digit if digit.is_ascii_digit() => count.push(digit),
                        last => break last,
                    }
                };
                match last {
                    'A' => row -= count.parse::<usize>().unwrap(),
                    'J' => {
                        rows[row].truncate(column);
                        rows.truncate(row + 1);
                    }
                    'm' => {}
                    other => panic!("unexpected sequence {other}"),
                }
            }
            char => {
                let line = &mut rows[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = char;
                column += 1;
            }
        }
    }
    rows.into_iter().map(|line| line.into_iter().collect()).collect()
}

#[test]
fn lines_of_two_streams_are_not_mixed() {
    for kind in [ScreenKind::Plain, TERMINAL] {
        let mut bench = Bench::new(kind);
        let (a, b) = (bench.add("[0]:"), bench.add("[1]:"));
        bench.feed(a, "al");
        bench.feed(b, "be");
        bench.feed(a, "pha\n");
        bench.feed(b, "ta\n\ngam");
        bench.feed(b, "ma\n");
        assert_eq!(bench.take(), "[0]:alpha\n[1]:beta\n[1]:\n[1]:gamma\n", "{kind:?}");
    }
}

#[test]
fn unfinished_line_is_shown_late_and_continued_without_prefix() {
    for kind in [ScreenKind::Plain, TERMINAL] {
        let mut bench = Bench::new(kind);
        let a = bench.add("[0]:");
        bench.feed(a, "first");
        assert_eq!(bench.screen.deadline(), Some(bench.start + HOLD_TIME));
        bench.at(49);
        assert_eq!(bench.take(), "");
        bench.at(50);
        assert_eq!(bench.take(), "[0]:first");
        assert_eq!(bench.screen.deadline(), None);
        bench.at(350);
        bench.feed(a, " second");
        assert_eq!(bench.take(), " second");
        bench.feed(a, "\nnext\n");
        assert_eq!(bench.take(), "\n[0]:next\n");
    }
}

#[test]
fn busy_pump_shows_partial_line_later_on_shared_pipe() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, _b) = (bench.add(""), bench.add(""));
    bench.feed(a, "half");
    let busy = true;
    for (millis, expected) in [(60, ""), (4_999, ""), (5_000, "half")] {
        bench.screen.show_due(bench.start + Duration::from_millis(millis), busy, &mut bench.out);
        assert_eq!(bench.take(), expected);
    }
}

#[test]
fn open_line_on_pipe_is_ended_by_other_output() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add("[0]:"), bench.add("[1]:"));
    bench.feed(a, "loading");
    bench.at(999);
    assert_eq!(bench.take(), "", "others may speak");
    bench.at(1_000);
    bench.feed(b, "hello\n");
    bench.feed(a, " done\n");
    bench.message("launcher");
    assert_eq!(bench.take(), "[0]:loading\n[1]:hello\n[0]: done\nlauncher\n");
}

#[test]
fn open_line_on_terminal_is_redrawn_below_other_output() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b) = (bench.add(""), bench.add(""));
    bench.feed(a, "50%\r");
    bench.at(50);
    bench.feed(b, "hello\n");
    bench.message("launcher");
    bench.feed(a, "60%");
    assert_eq!(bench.take(), "50%\r\r\x1b[Jhello\n50%\r\r\x1b[Jlauncher\n50%\r60%");
    bench.feed(a, "\n");
    assert_eq!(bench.take(), "\n");
}

#[test]
fn possible_prompt_is_not_redrawn() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b) = (bench.add(""), bench.add(""));
    bench.feed(a, "name? ");
    bench.at(50);
    assert_eq!(bench.take(), "name? ");
    bench.at(3_000);
    bench.feed(b, "one\n");
    bench.feed(b, "two\n");
    bench.feed(a, "thanks\n");
    assert_eq!(bench.take(), "\none\ntwo\nthanks\n");

    bench.feed(a, "\r10%");
    bench.at(3_050);
    bench.at(9_000);
    bench.feed(b, "three\n");
    assert_eq!(bench.rows(), ["three", "10%"], "progress is");
}

#[test]
fn terminal_shows_several_progress_bars() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b, c) = (bench.add(""), bench.add(""), bench.add(""));
    bench.feed(a, "\r10%");
    bench.feed(b, "\r20%");
    bench.at(50);
    bench.feed(a, "\r30%");
    bench.feed(c, "line\n");
    bench.feed(b, "\r40%");
    let mut output = bench.take();
    assert_eq!(shown(output.as_bytes()), ["line", "30%", "40%"]);
    bench.feed(a, "\r100%\nepilogue\n");
    output += &bench.take();
    assert_eq!(shown(output.as_bytes()), ["line", "100%", "epilogue", "40%"]);
    bench.end(b);
    bench.message("all done");
    output += &bench.take();
    assert_eq!(shown(output.as_bytes()), ["line", "100%", "epilogue", "40%", "all done", ""]);
}

#[test]
fn open_line_wider_than_terminal_is_ended() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b) = (bench.add(""), bench.add(""));
    let long = "x".repeat(40);
    bench.feed(a, &long);
    bench.at(1_000);
    bench.feed(b, "hello\n");
    bench.feed(a, "end\n");
    assert_eq!(bench.rows(), [long.as_str(), "hello", "end", ""]);
}

#[test]
fn open_row_that_outgrows_terminal_is_ended() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b) = (bench.add(""), bench.add(""));
    bench.feed(a, "aa");
    bench.feed(b, "bb");
    bench.at(50);
    let long = "x".repeat(40);
    bench.feed(a, &long);
    bench.feed(a, "rest\n");
    assert_eq!(bench.rows(), [format!("aa{long}").as_str(), "rest", "bb"]);
}

#[test]
fn resize_ends_rows_that_no_longer_fit() {
    let mut bench = Bench::new(TERMINAL);
    let (a, b) = (bench.add(""), bench.add(""));
    bench.feed(a, "0123456789");
    bench.feed(b, "b");
    bench.at(50);
    bench.screen.resize(ScreenKind::Terminal { columns: 8, rows: 24 });
    bench.feed(a, "!");
    bench.feed(b, "!\n");
    bench.end(a);
    assert_eq!(bench.rows(), ["0123456789", "b", "!", "!"]);
}

#[test]
fn piped_progress_keeps_returns_and_other_lines() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add("[0]:"), bench.add("[1]:"));
    bench.feed(a, "\r10%");
    bench.at(1_000);
    bench.feed(b, "\r11%");
    bench.at(1_050);
    bench.feed(a, "\r20%");
    bench.feed(b, "\r22%");
    bench.at(9_000);
    assert_eq!(bench.screen.deadline(), None);
    assert_eq!(bench.take(), "[0]:\r10%\r20%");
    bench.feed(a, "\n");
    bench.at(9_000);
    assert_eq!(bench.take(), "\n[1]:\r11%\r22%");
}

#[test]
fn crlf_line_end_gets_one_prefix() {
    let mut bench = Bench::new(TERMINAL);
    let a = bench.add("[0]:");
    bench.feed(a, "one\r\ntwo\r");
    bench.feed(a, "\nthree\n");
    assert_eq!(bench.take(), "[0]:one\r\n[0]:two\r\n[0]:three\n");
}

#[test]
fn text_without_final_newline_is_ended_by_next_output() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add("[0]:"), bench.add(""));
    bench.feed(a, "the end");
    bench.end(a);
    assert_eq!(bench.take(), "[0]:the end");
    bench.feed(b, "later\n");
    assert_eq!(bench.take(), "\nlater\n");
}

#[test]
fn line_up_to_limit_is_whole_and_longer_is_shown_early() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add("[0]:"), bench.add("[1]:"));
    let most = "x".repeat(LINE_LIMIT);
    bench.feed(a, &most);
    bench.feed(b, "between\n");
    bench.feed(a, "\n");
    assert!(bench.take() == format!("[1]:between\n[0]:{most}\n"));

    bench.feed(a, &most);
    bench.feed(a, "more");
    bench.feed(b, "between\n");
    bench.feed(a, "rest\n");
    assert!(bench.take() == format!("[0]:{most}more\n[1]:between\n[0]:rest\n"));
}

#[test]
fn progress_behind_open_line_is_held_up_to_progress_limit() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add(""), bench.add(""));
    bench.feed(b, "open");
    bench.at(1_000);
    bench.take();
    let chunk = "\r10%".repeat(BRIM / 5);
    let held_chunks = (0..=PROGRESS_LIMIT / chunk.len()).take_while(|_| {
        bench.feed(a, &chunk);
        bench.out.is_empty()
    });
    assert_eq!(held_chunks.count(), PROGRESS_LIMIT / chunk.len());
    assert!(bench.take().starts_with("\n\r10%"));
}

#[test]
fn line_still_being_written_is_not_ended_by_other_output() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add("[0]:"), bench.add("[1]:"));
    let full_line = "x".repeat(BRIM);
    for millis in [0, 4_000, 8_000] {
        bench.feed(a, &full_line);
        bench.at(millis + 4_000);
        bench.feed(b, "between\n");
        assert_eq!(bench.take(), "[1]:between\n", "its writer waited for room in the pipe");
    }
    bench.feed(a, "y\n");
    assert_eq!(bench.take(), format!("[0]:{}y\n", full_line.repeat(3)));

    bench.feed(a, &full_line);
    bench.at(17_000);
    assert_eq!(bench.take(), format!("[0]:{full_line}"), "it does not wait for ever");
}

#[test]
fn held_bytes_above_limit_make_longest_line_exclusive() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add(""), bench.add(""));
    let half = "x".repeat(HELD_BYTES_LIMIT / 2);
    bench.feed(a, &half);
    bench.feed(b, &half);
    assert_eq!(bench.screen.exclusive_stream(), None);
    bench.feed(b, "y");
    assert_eq!(bench.screen.exclusive_stream(), Some(b));
    bench.feed(b, "\n");
    assert_eq!(bench.screen.exclusive_stream(), None);
}

/// The output of the streams, in chunks.
type Chunks = Vec<Vec<Vec<u8>>>;
/// The index of the next stream, and whether time passes then.
type Turns = Vec<(usize, bool)>;

/// Lines of some streams, cut anywhere.
fn stream_chunks() -> impl Strategy<Value = (Chunks, Turns)> {
    let chunk = prop::collection::vec(prop_oneof![4 => 97u8..123, 1 => Just(b'\n'), 1 => Just(0xff)], 1..30);
    let chunks = prop::collection::vec(chunk, 0..12);
    (
        prop::collection::vec(chunks, 1..5),
        // Of 60 ms each, so that no line stands for as long as a prompt.
        prop::collection::vec((any::<usize>(), prop::bool::weighted(0.2)), 0..16),
    )
}

proptest! {
    /// Invariant 2, for one stream: any bytes, any cuts, any waits, on any screen.
    #[test]
    fn single_stream_without_prefix_is_copied(
        chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 0u64..80), 0..20),
        terminal in any::<bool>(),
    ) {
        let mut bench = Bench::new(if terminal { TERMINAL } else { ScreenKind::Plain });
        let a = bench.add("");
        let mut expected = Vec::new();
        let mut millis = 0;
        for (bytes, wait) in &chunks {
            bench.screen.feed(a, bytes, bench.now, &mut bench.out);
            expected.extend_from_slice(bytes);
            millis += wait;
            bench.at(millis);
        }
        bench.end(a);
        prop_assert_eq!(bench.out, expected);
    }

    /// Invariants 1 and 2, in a pipe that never blocks: a stream's prefixed lines are its lines.
    #[test]
    fn every_line_is_whole_and_in_order((streams, turns) in stream_chunks()) {
        let mut bench = Bench::new(ScreenKind::Plain);
        let ids: Vec<_> = (0..streams.len()).map(|index| bench.add(&format!("[{index}]:"))).collect();
        feed_in_turns(&mut bench, &streams, &turns, &ids, false);
        for (index, chunks) in streams.iter().enumerate() {
            let prefix = format!("[{index}]:").into_bytes();
            let output = chunks.concat();
            let actual: Vec<&[u8]> =
                bench.out.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(&*prefix)).collect();
            let mut lines: Vec<&[u8]> = output.split(|&byte| byte == b'\n').collect();
            if lines.last().is_some_and(|last| last.is_empty()) {
                lines.pop();
            }
            prop_assert_eq!(actual, lines);
        }
    }

    /// Invariants 1, 2 and 4, on a terminal with any waits: the same is true of what is shown in the end.
    #[test]
    fn terminal_shows_every_line_whole((streams, turns) in stream_chunks()) {
        let mut bench = Bench::new(ScreenKind::Terminal { columns: 500, rows: 24 });
        let ids: Vec<_> = (0..streams.len()).map(|index| bench.add(&format!("[{index}]:"))).collect();
        feed_in_turns(&mut bench, &streams, &turns, &ids, true);
        bench.message("end");
        let rows = bench.rows();
        for (index, chunks) in streams.iter().enumerate() {
            let prefix = format!("[{index}]:");
            let output = String::from_utf8_lossy(&chunks.concat()).into_owned();
            let actual: Vec<&str> = rows.iter().filter_map(|row| row.strip_prefix(&*prefix)).collect();
            prop_assert_eq!(actual, output.lines().collect::<Vec<_>>());
        }
    }
}

/// Feeds the streams' chunks in the order of `turns`, then the rest, then ends the streams.
fn feed_in_turns(
    bench: &mut Bench,
    streams: &[Vec<Vec<u8>>],
    turns: &[(usize, bool)],
    ids: &[StreamId],
    waits: bool,
) {
    let mut chunk_iters: Vec<_> = streams.iter().map(|chunks| chunks.iter()).collect();
    let mut millis = 0;
    for &(turn, wait) in turns {
        let index = turn % chunk_iters.len();
        if let Some(bytes) = chunk_iters[index].next() {
            bench.screen.feed(ids[index], bytes, bench.now, &mut bench.out);
        }
        if wait && waits {
            millis += 60;
            bench.at(millis);
        }
    }
    for (chunks, &id) in chunk_iters.into_iter().zip(ids) {
        for bytes in chunks {
            bench.screen.feed(id, bytes, bench.now, &mut bench.out);
        }
        bench.screen.end(id, &mut bench.out);
    }
}

#[test]
fn two_unfinished_lines_wait_for_each_other_without_rewrite() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (one, other) = (bench.add("[0]:"), bench.add("[1]:"));
    bench.feed(one, "first-");
    bench.feed(other, "first-");
    bench.at(1_000);
    bench.at(1_900);
    assert_eq!(bench.take(), "[0]:first-", "rule 4 has no reason to end this line yet");
    bench.feed(one, "second\n");
    bench.feed(other, "second\n");
    assert_eq!(bench.take(), "second\n[1]:first-second\n");

    bench.feed(one, "prompt? ");
    bench.at(2_900);
    bench.feed(other, "prompt? ");
    bench.at(4_900);
    assert_eq!(bench.take(), "[0]:prompt? \n[1]:prompt? ", "the wait has a limit");
}
