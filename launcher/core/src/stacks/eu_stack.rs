//! Reads what `eu-stack -m -s` (elfutils) prints of the threads of a process:
//!
//! ```text
//! PID 3519 - process
//! TID 3519:
//! #0  0x00007f1982792503 clock_nanosleep@GLIBC_2.2.5 - /usr/lib/x86_64-linux-gnu/libc.so.6
//!     ../sysdeps/unix/sysv/linux/clock_nanosleep.c:71:10
//! #1  0x000055b56dac54af - /usr/bin/sleep
//! ```
//!
//! Names of symbols and files are the program's and may hold anything, so a line of another form is left out.

use super::{Frame, UNNAMED};

/// More threads of a process are left out.
const MAX_THREADS: usize = 256;
/// Outer calls beyond these are left out.
pub const MAX_FRAMES: usize = 32;
/// A longer name is cut: those of C++ templates have no end.
const MAX_NAME_LEN: usize = 200;

/// The native calls of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeThread {
    /// The id of the thread.
    pub id: i32,
    /// The innermost call first.
    pub frames: Vec<Frame>,
}

/// Reads the output, whatever it holds. A thread without a call is left out.
#[must_use]
pub fn parse_native_threads(output: &[u8]) -> Vec<NativeThread> {
    let text = String::from_utf8_lossy(output);
    let mut threads: Vec<NativeThread> = Vec::new();
    for line in text.lines() {
        if let Some(id) = parse_thread(line) {
            if threads.len() == MAX_THREADS {
                break;
            }
            threads.push(NativeThread { id, frames: Vec::new() });
        } else if let Some(thread) = threads.last_mut() {
            if let Some(frame) = parse_frame(line) {
                if thread.frames.len() < MAX_FRAMES {
                    thread.frames.push(frame);
                }
            } else if let Some((file, line)) = parse_source(line)
                && let Some(frame) = thread.frames.last_mut().filter(|frame| frame.line == 0)
            {
                (frame.file, frame.line) = (file, line);
            }
        }
    }
    threads.retain(|thread| !thread.frames.is_empty());
    threads
}

fn parse_thread(line: &str) -> Option<i32> {
    line.strip_prefix("TID ")?.strip_suffix(':')?.parse().ok()
}

fn parse_frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix('#')?;
    let (number, rest) = rest.split_once(' ')?;
    number.parse::<u32>().ok()?;
    let rest = rest.trim_start().strip_prefix("0x")?;
    let (address, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let (name, module) = match rest.strip_prefix("- ") {
        Some(module) => ("", module),
        None => rest.rsplit_once(" - ").unwrap_or((rest, UNNAMED)),
    };
    Some(Frame { function: function_name(name), file: cut(module), line: 0 })
}

/// The name without the version of its symbol and without the hash of Rust's compiler.
fn function_name(name: &str) -> String {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once("::h") {
        Some((name, hash)) if is_hash(hash) => cut(&rust_name(name)),
        _ if name.is_empty() => UNNAMED.to_owned(),
        _ => cut(name),
    }
}

/// A name of Rust, which eu-stack reads as one of C++.
fn rust_name(name: &str) -> String {
    const ESCAPES: [(&str, &str); 8] = [
        ("$LT$", "<"),
        ("$GT$", ">"),
        ("$RF$", "&"),
        ("$C$", ","),
        ("$u20$", " "),
        ("$u7b$", "{"),
        ("$u7d$", "}"),
        ("..", "::"),
    ];
    ESCAPES.iter().fold(cut(name), |name, (escape, text)| name.replace(escape, text))
}

/// A relative path says nothing outside of the folder in which a library was built: the library says more.
fn parse_source(line: &str) -> Option<(String, u32)> {
    let place = line.strip_prefix("    ").filter(|place| place.starts_with('/'))?;
    let (place, last) = place.rsplit_once(':')?;
    let last = last.parse::<u32>().ok()?;
    // `FILE:LINE:COLUMN`, or `FILE:LINE` where the column is unknown.
    let with_column = place.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?)));
    let (file, line) = with_column.unwrap_or((place, last));
    (line > 0).then(|| (cut(file), line))
}

fn cut(name: &str) -> String {
    name.chars().take(MAX_NAME_LEN).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OUTPUT: &str = "PID 70 - process
TID 70:
#0  0x00007f1982792503 clock_nanosleep@GLIBC_2.2.5 - /usr/lib/x86_64-linux-gnu/libc.so.6
    ../sysdeps/unix/sysv/linux/clock_nanosleep.c:71:10
#1  0x00007f1982796e53 std::thread::sleep$LT$T$GT$::h0123456789abcdef - /u/worker
    /rustc/8a/library/std/thread.c:900:5
#2  0x000055b56dac54af worker::Ring::operator- (A - B) - /u/worker
    /u/src/main.c:17
#3  0x000055b56dac1621 - /u/worker
TID 72:
#0  0x00007f42f56a3f16 start_thread
";

    fn frame(function: &str, file: &str, line: u32) -> Frame {
        Frame { function: function.to_owned(), file: file.to_owned(), line }
    }

    #[test]
    fn threads_calls_and_sources_are_read() {
        let [main, other] = &parse_native_threads(OUTPUT.as_bytes())[..] else { panic!("two threads") };
        assert_eq!((main.id, other.id), (70, 72));
        let expected = [
            frame("clock_nanosleep", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0),
            frame("std::thread::sleep<T>", "/rustc/8a/library/std/thread.c", 900),
            frame("worker::Ring::operator- (A - B)", "/u/src/main.c", 17),
            frame("??", "/u/worker", 0),
        ];
        assert_eq!(main.frames, expected);
        assert_eq!(other.frames, [frame("start_thread", "??", 0)]);
        let of_program: Vec<bool> = main.frames.iter().map(Frame::is_of_program).collect();
        assert_eq!(of_program, [false, false, true, true]);
    }

    #[test]
    fn garbage_and_endless_output_are_bounded() {
        assert_eq!(parse_native_threads(b"\xff\0#0  0x1 f - /a\nTID x:\nTID 1:\n#0 0xzz f\n#x\n#\n"), []);
        for end in 0..OUTPUT.len() {
            assert!(parse_native_threads(&OUTPUT.as_bytes()[..end]).len() <= 2);
        }
        let threads = "TID 7:\n#0  0x1 f - /a\n".repeat(1000);
        assert_eq!(parse_native_threads(threads.as_bytes()).len(), MAX_THREADS);
        let frames = format!("TID 7:\n{}", format!("#0  0x1 {} - /a\n", "f".repeat(5000)).repeat(1000));
        let threads = parse_native_threads(frames.as_bytes());
        assert_eq!(threads[0].frames.len(), MAX_FRAMES);
        assert_eq!(threads[0].frames[0].function.len(), MAX_NAME_LEN);
    }

    proptest! {
        #[test]
        fn any_lines_are_read_without_panic(
            lines in prop::collection::vec("(TID [0-9]{0,12}:|#[0-9 ]{0,4}0x[0-9a-f]{0,4} ?.{0,9}|    /?.{0,9}:[0-9]{0,12})", 0..20)
        ) {
            let threads = parse_native_threads(lines.join("\n").as_bytes());
            prop_assert!(threads.iter().all(|thread| !thread.frames.is_empty()));
        }
    }
}
