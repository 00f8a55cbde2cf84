#![expect(clippy::disallowed_methods, reason = "an `Instant` can only be made by reading the clock")]

use crate::screen::block::SNAPSHOT_INTERVAL;
use crate::screen::*;
use proptest::prelude::*;

const ROWS: u16 = 12;
const COLUMNS: u16 = 40;

/// A screen with a clock of its own, and the terminal behind it.
struct Bench {
    screen: Screen,
    now: Instant,
    out: Vec<u8>,
    terminal: vt100::Parser,
    written: String,
}

impl Bench {
    fn new(kind: ScreenKind) -> Self {
        let terminal = vt100::Parser::new(ROWS, COLUMNS, 1000);
        Self {
            screen: Screen::new(kind),
            now: Instant::now(),
            out: Vec::new(),
            terminal,
            written: String::new(),
        }
    }

    fn terminal() -> Self {
        Self::new(ScreenKind::Terminal { columns: COLUMNS, rows: ROWS })
    }

    fn bare(&mut self, label: &str) -> StreamId {
        self.screen.add(("", Some(label)), 4096, self.now)
    }

    fn add_labelled_stream(&mut self, prefix: &str) -> StreamId {
        self.screen.add((prefix, Some(prefix)), 4096, self.now)
    }

    fn feed(&mut self, id: StreamId, text: &str) {
        self.screen.feed(id, text.as_bytes(), self.now, &mut self.out);
    }

    /// One turn of the thread that writes, after a while.
    fn after(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.screen.show_due(self.now, false, &mut self.out);
        self.draw_due();
    }

    fn draw_due(&mut self) {
        self.screen.draw_due(self.now, &mut self.out);
        let bytes = std::mem::take(&mut self.out);
        self.written.push_str(&String::from_utf8_lossy(&bytes));
        // As the terminal driver does.
        let bytes = String::from_utf8_lossy(&bytes).replace("\r\n", "\n").replace('\n', "\r\n");
        self.terminal.process(bytes.as_bytes());
    }

    fn end(&mut self, id: StreamId) {
        self.screen.end(id, &mut self.out);
        self.draw_due();
    }

    /// The visible rows, from the first one on.
    fn rows(&self) -> Vec<String> {
        let screen = self.terminal.screen();
        let mut rows: Vec<String> = screen.rows(0, COLUMNS).map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }
}

#[test]
fn progress_bars_of_two_ranks_update_in_place_with_labels() {
    let mut bench = Bench::terminal();
    let (a, b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    for step in 0..50 {
        bench.feed(a, &format!("\r{step}%"));
        bench.feed(b, &format!("\r{}%", step * 2));
        bench.after(60);
    }
    assert_eq!(bench.rows(), ["[0]:49%", "[1]:98%"]);
    bench.feed(a, "\ra line\n");
    bench.screen.message(b"rankrun: a message\n", &mut bench.out);
    bench.after(0);
    bench.after(300);
    assert_eq!(bench.rows(), ["rankrun: a message", "[0]:a line", "[1]:98%"]);
    bench.feed(b, "\r100%\nepilogue\n");
    bench.after(0);
    assert_eq!(bench.rows(), ["rankrun: a message", "[0]:a line", "[1]:100%", "epilogue"]);
}

#[test]
fn bar_wider_than_terminal_is_cut_until_finished() {
    let mut bench = Bench::terminal();
    let (a, b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    let wide = "\u{8a13}\u{7df4}".repeat(20);
    bench.feed(a, &format!("\r{wide}"));
    bench.feed(b, &format!("\r{}", "x".repeat(100)));
    bench.after(60);
    let rows = bench.rows();
    assert_eq!(
        rows,
        [format!("[0]:{}>", "\u{8a13}\u{7df4}".repeat(8) + "\u{8a13}"), format!("[1]:{}>", "x".repeat(34))]
    );
    bench.feed(a, "\n");
    bench.end(a);
    assert!(bench.written.contains(&format!("[0]:{wide}\n")), "{}", bench.written);
    assert_eq!(bench.rows().last().unwrap(), &rows[1]);
}

#[test]
fn bars_beyond_terminal_height_are_counted() {
    let mut bench = Bench::terminal();
    let ids: Vec<_> = (0..30).map(|rank| bench.bare(&format!("[{rank}]:"))).collect();
    for step in 0..5 {
        ids.iter().for_each(|&id| bench.feed(id, &format!("\r{step}%")));
        bench.feed(ids[0], "");
        bench.screen.message(format!("line {step}").as_bytes(), &mut bench.out);
        bench.after(60);
    }
    let rows = bench.rows();
    assert_eq!(rows[..5], ["line 1", "line 2", "line 3", "line 4", "[0]:4%"]);
    assert_eq!(rows[rows.len() - 2..], ["[6]:4%", "(23 more lines in progress)"]);
}

#[test]
fn nested_bars_keep_their_rows() {
    for label in ["[0]:", "[1]:"] {
        let mut bench = Bench::terminal();
        let (a, b) = (bench.bare(label), bench.bare("other"));
        bench.feed(a, "\router 0%");
        for step in 0..30 {
            // In pieces, as tqdm writes them.
            for piece in ["\n", &format!("\rinner {step}%"), "\x1b[A"] {
                bench.feed(a, piece);
                bench.after(10);
            }
            bench.feed(b, &format!("line {step}\n"));
        }
        bench.feed(a, "\router 50%");
        bench.after(60);
        let rows = bench.rows();
        assert_eq!(
            rows[rows.len() - 3..],
            ["line 29".into(), format!("{label}outer 50%"), format!("{label}inner 29%")]
        );
        assert_eq!(bench.written.matches("outer 0%\n").count(), 0, "{}", bench.written);
    }
}

#[test]
fn bar_at_a_lower_position_takes_one_row_without_blank_lines() {
    let mut bench = Bench::terminal();
    let (a, b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    for step in 0..20 {
        bench.feed(a, &format!("\r{step}%"));
        for piece in ["\n\n\n", &format!("\r{step}%"), "\x1b[A\x1b[A\x1b[A"] {
            bench.feed(b, piece);
            bench.after(10);
        }
    }
    bench.after(60);
    assert_eq!(bench.rows(), ["[0]:19%", "[1]:19%"]);
}

#[test]
fn blank_line_of_an_ordinary_stream_is_shown_after_a_moment() {
    for kind in [ScreenKind::Plain, ScreenKind::Terminal { columns: COLUMNS, rows: ROWS }] {
        let mut bench = Bench::new(kind);
        let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
        bench.feed(a, "one\n\n");
        bench.after(50);
        bench.feed(a, "two\r");
        bench.feed(a, "\n\nthree\n");
        bench.after(50);
        assert_eq!(bench.written, "[0]:one\n[0]:\n[0]:two\r\n[0]:\n[0]:three\n", "{kind:?}");
    }
}

#[test]
fn plain_output_shows_bar_rarely_and_its_last_state() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    let tenths = u64::try_from(SNAPSHOT_INTERVAL.as_millis()).unwrap() / 10;
    for step in 0..25 {
        bench.feed(a, &format!("\r{step}%"));
        bench.feed(b, "line\n");
        bench.after(tenths);
    }
    bench.feed(a, "\r100%\nend\n");
    bench.after(0);
    let snapshots: Vec<_> = bench.written.lines().filter(|line| line.starts_with("[0]")).collect();
    assert_eq!(snapshots, ["[0]:0%", "[0]:10%", "[0]:20%", "[0]:100%", "[0]:end"]);
    assert_eq!(bench.written.matches("[1]:line\n").count(), 25);
}

#[test]
fn plain_output_does_not_repeat_unchanged_bar() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    bench.feed(a, "\r10%\r20%");
    bench.after(1_000);
    assert_eq!(bench.written, "[0]:20%\n");
    assert_eq!(bench.screen.deadline(), None, "nothing is waited for");
    bench.feed(a, "\r20%");
    bench.after(10_000);
    assert_eq!(bench.screen.deadline(), None, "an equal snapshot is not drawn again");
    bench.end(a);
    assert_eq!(bench.written, "[0]:20%\n");
}

#[test]
fn plain_output_shows_text_with_return_once() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    bench.feed(a, "Loading model...\r");
    bench.after(60);
    bench.after(1_000);
    assert_eq!(bench.written, "[0]:Loading model...\n");
    bench.after(13_000);
    bench.feed(a, "\nok\n");
    bench.after(0);
    assert_eq!(bench.written, "[0]:Loading model...\n[0]:ok\n");
}

#[test]
fn plain_output_limits_consecutive_bars_to_one_per_10_s() {
    let mut bench = Bench::new(ScreenKind::Plain);
    let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    for epoch in 0..4 {
        for step in 0..3 {
            bench.feed(a, &format!("\r{epoch}: {step}"));
            bench.after(1_000);
        }
        bench.feed(a, "\r\x1b[K");
        bench.after(300);
    }
    bench.end(a);
    assert_eq!(bench.written.lines().filter(|line| line.contains(": ")).count(), 2, "{}", bench.written);
}

#[test]
fn text_without_return_or_cursor_up_keeps_every_byte() {
    for before in ["", "\r9%\r10%\n"] {
        for piece in [1, 100] {
            let mut bench = Bench::new(ScreenKind::Plain);
            let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
            bench.feed(a, before);
            for text in "B\x08BO\x08O\n\x1b[2Jx\n\x1b[31mred\x1b[0m\n\x08\n".as_bytes().chunks(piece) {
                bench.screen.feed(a, text, bench.now, &mut bench.out);
            }
            bench.end(a);
            let expected = "[0]:B\x08BO\x08O\n[0]:\x1b[2Jx\n[0]:\x1b[31mred\x1b[0m\n[0]:\x08\n";
            let start = if before.is_empty() { "" } else { "[0]:10%\n" };
            let is_split = piece == 1 && !before.is_empty();
            assert_eq!(bench.written, format!("{start}{expected}"), "in pieces behind a bar: {is_split}");
        }
    }
}

#[test]
fn bars_are_not_drawn_while_a_prompt_waits_for_its_answer() {
    let mut bench = Bench::terminal();
    let (out, err, b) = (bench.bare("[0]:"), bench.bare("[0]:"), bench.bare("[1]:"));
    bench.screen.allow_prompts(out);
    bench.screen.allow_prompts(err);
    bench.feed(b, "\r10%");
    bench.after(60);
    bench.feed(out, "name? ");
    for step in 11..40 {
        bench.feed(b, &format!("\r{step}%"));
        bench.after(500);
        assert_eq!(bench.rows(), ["name?"]);
        assert_eq!(bench.terminal.screen().cursor_position(), (0, 6), "the answer stands behind it");
        assert_eq!(bench.screen.deadline(), None, "nothing is waited for");
    }
    // A line of another rank ends the row of the prompt; it still waits.
    bench.feed(b, "\ra line\n");
    bench.feed(b, "\r50%");
    bench.after(500);
    assert_eq!(bench.rows(), ["name?", "[1]:a line"]);
    bench.feed(err, "thanks\n");
    bench.after(60);
    assert_eq!(bench.rows(), ["name?", "[1]:a line", "thanks", "[1]:50%"]);
    bench.feed(out, "loading ");
    bench.feed(err, "\r1%");
    bench.after(2_000);
    assert_eq!(bench.rows().last().map(String::as_str), Some("[1]:50%"), "its other stream goes on");
}

#[test]
fn erased_bar_leaves_no_row_and_next_line_is_ordinary() {
    let mut bench = Bench::terminal();
    let (a, b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    bench.feed(b, "\r7%");
    bench.feed(a, "\r100%");
    bench.after(60);
    bench.feed(a, "\r    \r");
    bench.after(60);
    assert_eq!(bench.rows(), ["[1]:7%"]);
    bench.feed(a, "done\nmore\n");
    bench.after(60);
    assert_eq!(bench.rows(), ["done", "more", "[1]:7%"]);
}

#[test]
fn ordinary_line_after_bar_keeps_every_byte() {
    for gap in [0, 1] {
        let mut bench = Bench::new(ScreenKind::Plain);
        let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
        let mut feed = |bytes: &[u8]| {
            bench.screen.feed(a, bytes, bench.now, &mut bench.out);
            std::mem::take(&mut bench.out)
        };
        let out = match gap {
            0 => feed(b"\r9%\r10%\na\xff\x00\x1b[Kb\tc\nd\n"),
            _ => [feed(b"\r9%\r10%\n"), feed(b"a\xff\x00\x1b[Kb\tc\nd\n")].concat(),
        };
        assert_eq!(out, b"[0]:10%\n[0]:a\xff\x00\x1b[Kb\tc\n[0]:d\n", "{}", String::from_utf8_lossy(&out));
    }
}

#[test]
fn shown_line_that_is_rewritten_keeps_prefix() {
    let mut bench = Bench::terminal();
    let (a, _b) = (bench.add_labelled_stream("[0]:"), bench.add_labelled_stream("[1]:"));
    bench.feed(a, "50%");
    bench.after(60);
    assert_eq!(bench.rows(), ["[0]:50%"]);
    for piece in ["\r", "60%"] {
        bench.feed(a, piece);
        bench.after(60);
    }
    assert_eq!(bench.rows(), ["[0]:60%"]);
}

#[test]
fn fast_bar_is_drawn_at_frame_rate() {
    let mut bench = Bench::terminal();
    let (a, _b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    for step in 0..1000 {
        bench.feed(a, &format!("\rstep {step}"));
        bench.after(1);
    }
    let drawn = bench.written.matches("step ").count();
    assert!((10..=22).contains(&drawn), "{drawn} snapshots in a second");
    bench.after(60);
    assert_eq!(bench.rows(), ["[0]:step 999"]);
    assert_eq!(bench.screen.deadline(), None, "nothing is waited for");
}

#[test]
fn unfinished_line_of_other_rank_hides_bars_briefly() {
    let mut bench = Bench::terminal();
    let (a, b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    bench.feed(a, "\r10%");
    bench.after(60);
    bench.feed(b, "name? ");
    bench.after(60);
    assert_eq!(bench.rows(), ["name?"]);
    assert_eq!(bench.terminal.screen().cursor_position(), (0, 6), "the answer stands behind it");
    bench.feed(a, "\r20%");
    bench.after(500);
    assert_eq!(bench.rows(), ["name?"]);
    bench.after(500);
    assert_eq!(bench.rows(), ["name?", "[0]:20%"]);
    bench.feed(b, "thanks\n");
    bench.after(60);
    assert_eq!(bench.rows(), ["name?", "thanks", "[0]:20%"]);
}

#[test]
fn resize_to_fewer_columns_restarts_block() {
    let mut bench = Bench::terminal();
    let (a, _b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    bench.feed(a, "\r0123456789 0123456789");
    bench.after(60);
    bench.screen.resize(ScreenKind::Terminal { columns: 20, rows: ROWS });
    bench.after(60);
    assert_eq!(bench.rows(), ["[0]:0123456789 0123456789", "[0]:0123456789 012>"]);
    bench.feed(a, "\rdone\n");
    bench.after(0);
    bench.after(300);
    assert_eq!(bench.rows(), ["[0]:0123456789 0123456789", "[0]:done"]);
}

#[test]
fn bar_colours_are_kept_and_reset() {
    let mut bench = Bench::terminal();
    let (a, _b) = (bench.bare("[0]:"), bench.bare("[1]:"));
    bench.feed(a, "\r\x1b[31mred\x1b[0m plain\x1b[?25l");
    bench.after(60);
    assert_eq!(bench.rows(), ["[0]:red plain"]);
    let screen = bench.terminal.screen();
    assert_eq!(screen.cell(0, 4).unwrap().fgcolor(), vt100::Color::Idx(1));
    assert_eq!(screen.cell(0, 8).unwrap().fgcolor(), vt100::Color::Default);
    assert!(!screen.hide_cursor());
}

proptest! {
    /// Ordinary lines lose nothing, wherever a read ends.
    #[test]
    fn ordinary_lines_are_passed_on_byte_for_byte(
        chunks in prop::collection::vec(("[ab\n]{0,6}", any::<bool>()), 0..12),
        windows in any::<bool>(),
    ) {
        for kind in [ScreenKind::Plain, ScreenKind::Terminal { columns: COLUMNS, rows: ROWS }] {
            let mut bench = Bench::new(kind);
            let a = bench.bare("[0]:");
            let mut expected = String::new();
            for (chunk, waits) in &chunks {
                let chunk = if windows { chunk.replace('\n', "\r\n") } else { chunk.clone() };
                expected.push_str(&chunk);
                bench.feed(a, &chunk);
                bench.after(if *waits { 60 } else { 0 });
            }
            bench.end(a);
            prop_assert_eq!(&bench.written, &expected);
        }
    }

    /// Whatever comes, a long stream neither panics nor fills the memory, and its end is seen.
    #[test]
    fn arbitrary_bytes_do_not_break_screen(chunks in prop::collection::vec(prop::collection::vec(
        prop_oneof![Just(b'\r'), Just(b'\n'), Just(0x1b), Just(b'['), Just(b'A'), Just(b'K'), Just(b'J'), Just(b'9'), Just(8), any::<u8>()],
        0..40), 0..20)) {
        for kind in [ScreenKind::Plain, ScreenKind::Terminal { columns: COLUMNS, rows: ROWS }] {
            let mut bench = Bench::new(kind);
            let (a, b) = (bench.add_labelled_stream("[0]:"), bench.bare("[1]:"));
            for chunk in &chunks {
                bench.screen.feed(a, chunk, bench.now, &mut bench.out);
                bench.feed(b, "line\n");
                bench.after(30);
            }
            bench.end(a);
            bench.feed(b, "the end\n");
            bench.after(300);
            prop_assert_eq!(bench.written.matches("line\n").count(), chunks.len());
            prop_assert!(bench.written.contains("the end\n"));
            let deadline = bench.screen.deadline();
            prop_assert_eq!(deadline, None);
        }
    }
}
