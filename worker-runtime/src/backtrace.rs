//! Shortens the backtrace of a panic to the frames of the program. Pure.

/// The frames of the program in the text of a [`Backtrace`](std::backtrace::Backtrace): those between the
/// panic machinery and the start of the thread. Text without these marks is returned whole.
pub(crate) fn program_frames(backtrace: &str) -> String {
    let frames = split_frames(backtrace);
    if frames.is_empty() {
        return backtrace.to_owned();
    }
    let panic = frames.iter().position(|frame| has_marker(frame, "__rust_end_short_backtrace"));
    let from = panic.map_or(0, |mark| mark + 1);
    let is_machinery = |frame: &&&str| PANIC_MARKERS.iter().any(|name| has_marker(frame, name));
    let from = from + frames[from..].iter().take_while(is_machinery).count();
    let start = frames[from..].iter().position(|frame| has_marker(frame, "__rust_begin_short_backtrace"));
    let frames = &frames[from..start.map_or(frames.len(), |mark| from + mark)];
    frames.concat().trim_end().to_owned()
}

/// Frames between the mark of the panic and the line that panicked.
const PANIC_MARKERS: [&str; 2] = ["rust_begin_unwind", "core::panicking::"];

/// The text of each frame: the line with its number and name, and the lines up to the next frame.
fn split_frames(backtrace: &str) -> Vec<&str> {
    let mut starts = Vec::new();
    let mut at = 0;
    for line in backtrace.split_inclusive('\n') {
        let number = line.trim_start().split_once(": ").map(|(number, _)| number);
        if number.is_some_and(|number| number.parse::<u32>().is_ok()) {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([backtrace.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &backtrace[start..end]).collect()
}

fn has_marker(frame: &str, mark: &str) -> bool {
    frame.lines().next().is_some_and(|name| name.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "   0: report_panic
             at /src/report.rs:110:21
   1: std::sys::backtrace::__rust_end_short_backtrace::<x, !>
   2: __rustc::rust_begin_unwind
             at /rustc/panicking.rs:689:5
   3: core::panicking::panic_fmt
   4: train::step
             at /src/main.rs:7:9
   5: train::main
   6: __rust_begin_short_backtrace<fn() -> x, x>
             at /rustc/backtrace.rs:166:18
   7: main
   8: __rust_begin_short_backtrace
";

    #[test]
    fn program_frames_are_kept() {
        assert_eq!(
            program_frames(WHOLE),
            "   4: train::step\n             at /src/main.rs:7:9\n   5: train::main"
        );
    }

    #[test]
    fn backtrace_without_markers_is_unchanged() {
        for text in ["   0: main\n   1: _start", "   0: <unknown>"] {
            assert_eq!(program_frames(text), text);
        }
        assert_eq!(program_frames("unsupported backtrace"), "unsupported backtrace");
    }
}
