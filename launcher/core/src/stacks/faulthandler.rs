//! Reads the text that Python's `faulthandler` writes from a signal handler (`Python/traceback.c`):
//!
//! ```text
//! Thread 0x00007f1c2a7fc700 [loader] (most recent call first):
//!   File "/home/u/data.py", line 17 in load_batch
//!   ...
//! Current thread 0x00007f1c3b0b9740 (most recent call first):
//!   <no Python frame>
//! ```
//!
//! It escapes what is not ASCII, ends a long text with `...`, and has at most 100 threads of 100 frames. A program may
//! have written anything else into the file, so a line of another form is left out.

use super::{Frame, PythonThread};

/// What a dump says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    pub threads: Vec<PythonThread>,
    /// Threads or calls are left out.
    pub is_cut: bool,
    /// The last threads are left out, the main thread among them.
    pub is_end_missing: bool,
}

/// A dump has no more.
const MAX_THREADS: usize = 128;
const MAX_FRAMES: usize = 128;

/// Reads a dump, whatever it holds.
#[must_use]
pub fn parse_dump(bytes: &[u8]) -> Dump {
    let text = String::from_utf8_lossy(bytes);
    let mut dump = Dump::default();
    for line in text.lines() {
        if let Some(thread) = parse_thread(line) {
            dump.is_end_missing = false;
            if dump.threads.len() == MAX_THREADS {
                dump.is_cut = true;
                // The main thread comes last.
                dump.threads.pop();
            }
            dump.threads.push(thread);
        } else if line == "..." {
            (dump.is_cut, dump.is_end_missing) = (true, true);
        } else if dump.is_end_missing {
            // A call of a thread that is left out.
        } else if let Some(thread) = dump.threads.last_mut()
            && thread.frames.len() < MAX_FRAMES
        {
            thread.frames.extend(parse_frame(line));
        }
    }
    dump
}

fn parse_thread(line: &str) -> Option<PythonThread> {
    let (head, is_current) = match line.strip_prefix("Current thread ") {
        Some(rest) => (rest, true),
        None => (line.strip_prefix("Thread ")?, false),
    };
    let head = head.strip_suffix(" (most recent call first):")?;
    let (id, name) = head.split_once(' ').unwrap_or((head, ""));
    let id =
        id.strip_prefix("0x").filter(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).map(str::to_owned);
    Some(PythonThread { id: id.trim_start_matches('0').to_owned(), name, is_current, frames: Vec::new() })
}

fn parse_frame(line: &str) -> Option<Frame> {
    let rest = line.strip_prefix("  File ")?;
    // The file is in quotes, or `???`; it may have quotes in its name.
    let (file, rest) = rest.rsplit_once(", line ")?;
    let file = file.strip_prefix('"').and_then(|file| file.strip_suffix('"')).unwrap_or(file);
    let (number, function) = rest.split_once(" in ")?;
    // `???` where the line is unknown.
    let line = number.parse().unwrap_or_default();
    Some(Frame { function: function.to_owned(), file: file.to_owned(), line })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "Thread 0x00007f1c2a7fc700 [loader] (most recent call first):
  File \"/usr/lib/python3.14/threading.py\", line 359 in wait
  File \"/home/u/d\\xe4ta \"x\", line 2.py\", line 17 in load, line 3 in batch
  ...

Current thread 0x00007f1c3b0b9740 (most recent call first):
  File \"<string>\", line 1 in <module>
";

    #[test]
    fn threads_and_frames_are_read_from_dump() {
        let Dump { threads, is_cut, .. } = parse_dump(DUMP.as_bytes());
        assert!(!is_cut);
        let [loader, main] = &threads[..] else { panic!("{threads:?}") };
        assert_eq!((loader.id.as_str(), loader.name.as_deref()), ("7f1c2a7fc700", Some("loader")));
        assert!(!loader.is_current && main.is_current && main.name.is_none());
        let frame =
            |function: &str, file: &str, line| Frame { function: function.into(), file: file.into(), line };
        assert_eq!(loader.frames[0], frame("wait", "/usr/lib/python3.14/threading.py", 359));
        assert_eq!(main.frames, [frame("<module>", "<string>", 1)]);
    }

    #[test]
    fn garbage_truncation_and_invalid_utf8_give_what_is_whole() {
        assert_eq!(parse_dump(b""), Dump::default());
        assert_eq!(parse_dump(b"\xff\xfe\0 garbage\n  File \"a\", line 1 in f\n"), Dump::default());
        for end in 0..DUMP.len() {
            let dump = parse_dump(&DUMP.as_bytes()[..end]);
            assert!(dump.threads.len() <= 2);
        }
        let odd = parse_dump(
            b"Current thread 0x1 (most recent call first):\n  File \"\xff.py\", line ??? in ???\n  <no Python frame>\n...\n",
        );
        assert!(odd.is_cut);
        let frames = &odd.threads[0].frames;
        assert_eq!(frames.len(), 1);
        assert_eq!((frames[0].function.as_str(), frames[0].line), ("???", 0));
        assert_eq!(parse_dump(b"Thread 0xzz (most recent call first):").threads, []);
    }

    #[test]
    fn calls_behind_a_gap_belong_to_no_thread_until_the_next_one() {
        let (head, tail) = DUMP.split_at(DUMP.find("  File \"/home").unwrap());
        let dump = parse_dump(format!("{head}\n...\n{tail}").as_bytes());
        assert!(dump.is_cut && !dump.is_end_missing);
        assert_eq!(dump.threads.iter().map(|thread| thread.frames.len()).collect::<Vec<_>>(), [1, 1]);
        let dump = parse_dump(format!("{head}\n...\n").as_bytes());
        assert!(dump.is_cut && dump.is_end_missing);
    }

    #[test]
    fn endless_dump_is_bounded() {
        let threads = "Thread 0x1 (most recent call first):\n".repeat(1000);
        assert_eq!(parse_dump(threads.as_bytes()).threads.len(), MAX_THREADS);
        let frames = "  File \"a\", line 1 in f\n".repeat(1000);
        let dump = parse_dump(format!("Thread 0x1 (most recent call first):\n{frames}").as_bytes());
        assert_eq!(dump.threads[0].frames.len(), MAX_FRAMES);
    }
}
