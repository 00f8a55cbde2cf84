use super::*;
use crate::console::Cursor;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::rank::LocalRank;

/// A launcher's outputs, and the text on them.
struct Rig {
    logs: Logs,
    console: Console,
    /// Our standard output and error, one pipe or one terminal.
    screen: File,
}

impl Rig {
    fn on(reader: OwnedFd, writer: OwnedFd, cli_flavor: CliFlavor) -> Self {
        let console = Console::new(writer.try_clone().unwrap(), writer, Cursor::Moves);
        Self { logs: Logs::new(console.clone(), cli_flavor), console, screen: reader.into() }
    }

    fn pipe() -> Self {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        Self::on(reader, writer, CliFlavor::Rankrun)
    }

    fn terminal(cli_flavor: CliFlavor) -> Self {
        let size = rustix::termios::Winsize { ws_row: 30, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
        let (Channel { reader, .. }, writer) = channel::pseudo_terminal(Some(size)).unwrap();
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        Self::on(reader, writer, cli_flavor)
    }

    fn open(&mut self, worker: WorkerId, routes: &Routes) -> (File, File) {
        let stdio = self.logs.open(worker, routes).unwrap();
        self.logs.pump().unwrap();
        let file = |end| match end {
            ChildEnd::Fd(fd) => File::from(fd),
            ChildEnd::Inherit => panic!("the stream is inherited"),
        };
        (file(stdio.stdout), file(stdio.stderr))
    }

    /// Reads exactly `expected` off the screen.
    fn expect(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.screen.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    fn finish(self) -> File {
        let Self { mut logs, console, screen } = self;
        wait(logs.finish());
        drop((logs, console));
        screen
    }
}

fn wait(drained: Result<Drained, LogError>) {
    let drained = drained.unwrap();
    while !drained.is_complete() {
        let mut inputs = [PollFd::new(drained.as_fd(), PollFlags::POLLIN)];
        poll(&mut inputs, PollTimeout::NONE).unwrap();
    }
}

fn worker(local_rank: u32) -> WorkerId {
    WorkerId { generation: Generation(0), local_rank: LocalRank(local_rank) }
}

fn bare() -> Routes {
    let route = Route::Capture { file: None, prefix: None };
    Routes { stdout: route.clone(), stderr: route, label: None, can_prompt: false }
}

fn tee(stdout: impl Into<PathBuf>) -> Routes {
    let label = Some(RowLabel { text: "[w0]:".into(), is_shared: false });
    let stdout = Route::Capture { file: Some(stdout.into()), prefix: Some("[w0]:".into()) };
    Routes { stdout, label, ..bare() }
}

/// A file's name that is free, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("rankrun-test-{}", uuid::Uuid::new_v4())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn collect(mut screen: File) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        screen.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

#[test]
fn flood_of_16_workers_keeps_every_line_whole() {
    const WORKERS: u32 = 16;
    const LINES: usize = 400;
    let mut rig = Rig::pipe();
    let reader = collect(rig.screen.try_clone().unwrap());
    let mut writers = Vec::new();
    for rank in 0..WORKERS {
        let (stdout, stderr) = rig.open(worker(rank), &bare());
        for (name, mut stream) in [("out", stdout), ("err", stderr)] {
            writers.push(thread::spawn(move || {
                for number in 0..LINES {
                    // Some lines come in two writes, some are longer than what a pipe takes in one piece.
                    let filler = "x".repeat(number * 37 % 6000);
                    write!(stream, "w{rank}{name} {number} {filler}").unwrap();
                    writeln!(stream, ".").unwrap();
                }
            }));
        }
    }
    for number in 0..LINES {
        rig.console.message(OutputStream::Stderr, format!("launcher {number} .").as_bytes());
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(rig.finish());
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        assert_eq!(fields.len(), 3, "{line}");
        let number = counts.entry(fields[0]).or_default();
        assert_eq!(fields[1], number.to_string(), "{line}");
        assert!(fields[2].ends_with('.') && fields[2].trim_start_matches('x') == ".", "{line}");
        *number += 1;
    }
    assert_eq!(counts.len(), WORKERS as usize * 2 + 1);
    assert!(counts.values().all(|&lines| lines == LINES), "{counts:?}");
}

#[test]
fn unfinished_line_is_shown_and_continued_with_one_prefix() {
    for mut rig in [Rig::pipe(), Rig::terminal(CliFlavor::Rankrun)] {
        let scratch = Scratch::new();
        let (mut stdout, _stderr) = rig.open(worker(0), &tee(&scratch.0));
        write!(stdout, "first half").unwrap();
        rig.expect("[w0]:first half");
        writeln!(stdout, ", second half").unwrap();
        rig.expect(", second half\n");
    }
}

#[test]
fn teed_file_is_byte_exact() {
    let mut rig = Rig::pipe();
    let scratch = Scratch::new();
    let (mut stdout, _stderr) = rig.open(worker(0), &tee(&scratch.0));
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let screen = collect(rig.screen.try_clone().unwrap());
    stdout.write_all(&bytes).unwrap();
    stdout.write_all(b"\xff\r10%\r20%").unwrap();
    drop(rig.finish());
    let copy = std::fs::read(&scratch.0).unwrap();
    assert!(copy[..bytes.len()] == bytes && copy.ends_with(b"\xff\r10%\r20%"));
    assert!(screen.join().unwrap().ends_with(b"[w0]:20%\n"), "the console has the last snapshot");
}

#[test]
fn console_closed_gives_worker_epipe_and_tee_file_continues() {
    let mut rig = Rig::pipe();
    let scratch = Scratch::new();
    let (mut bare, _) = rig.open(worker(0), &bare());
    let (mut teed, _) = rig.open(worker(1), &tee(&scratch.0));
    let (_, unread) = nix::unistd::pipe().unwrap();
    rig.screen = unread.into();
    let line = b"this line is not read.\n";
    let error = (0..1_000_000).find_map(|_| bare.write_all(line).err()).expect("the pipe was not closed");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    (0..10_000).for_each(|_| teed.write_all(line).unwrap());
    let later = WorkerId { generation: Generation(1), local_rank: LocalRank(0) };
    let (mut bare, _) = rig.open(later, &self::bare());
    assert!((0..1_000_000).any(|_| bare.write_all(line).is_err()));
    drop(rig.finish());
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().len(), 10_000 * line.len() as u64);
}

#[test]
fn pipe_held_by_other_process_does_not_delay_generation_end() {
    let mut rig = Rig::pipe();
    let (mut stdout, _stderr) = rig.open(worker(0), &bare());
    write!(stdout, "last line").unwrap();
    wait(rig.logs.generation_ended(Generation(0)));
    assert_eq!(rig.logs.tail(worker(0)), ["last line"]);
    assert_eq!(write!(stdout, "x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);

    let next = WorkerId { generation: Generation(1), local_rank: LocalRank(0) };
    let (mut stdout, _stderr) = rig.open(next, &bare());
    writeln!(stdout, "a second life").unwrap();
    let mut text = String::new();
    rig.finish().read_to_string(&mut text).unwrap();
    assert_eq!(text, "last line\na second life\n");
}

#[test]
fn worker_under_terminal_gets_pseudo_terminal() {
    let mut rig = Rig::terminal(CliFlavor::Rankrun);
    let (mut stdout, stderr) = rig.open(worker(0), &bare());
    assert!(stdout.is_terminal() && stderr.is_terminal());
    let size = rustix::termios::tcgetwinsize(&stdout).unwrap();
    assert_eq!((size.ws_col, size.ws_row), (90, 30));
    write!(stdout, "50%\r60%\n\ttab\n").unwrap();
    rig.expect("50%\r60%\n\ttab\n");
    assert!(rig.logs.take_notes().is_empty());

    let size = rustix::termios::Winsize { ws_row: 10, ws_col: 20, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&rig.screen, size).unwrap();
    rig.logs.resize();
    wait(rig.logs.generation_ended(Generation(7)));
    assert_eq!(rustix::termios::tcgetwinsize(&stdout).unwrap().ws_col, 20);
}

#[test]
fn captured_stream_under_torchrun_is_not_a_terminal() {
    let mut rig = Rig::terminal(CliFlavor::Torchrun);
    let (stdout, stderr) = rig.open(worker(0), &bare());
    assert!(!stdout.is_terminal() && !stderr.is_terminal());
}

#[test]
fn worker_stdio_has_close_on_exec() {
    for mut rig in [Rig::pipe(), Rig::terminal(CliFlavor::Rankrun)] {
        let (stdout, _) = rig.open(worker(0), &bare());
        let flags = nix::fcntl::fcntl(stdout.as_fd(), nix::fcntl::FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC);
    }
}

#[test]
fn slow_console_reader_delays_workers_but_not_agent() {
    let mut rig = Rig::pipe();
    let (mut stdout, _stderr) = rig.open(worker(0), &bare());
    let writer = thread::spawn(move || (0..200_000).for_each(|number| writeln!(stdout, "{number}").unwrap()));
    rig.console.message(OutputStream::Stderr, b"from the agent");
    let reader = collect(rig.screen.try_clone().unwrap());
    writer.join().unwrap();
    drop(rig.finish());
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    let numbers: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(numbers.iter().copied().eq(0..200_000));
    assert!(text.lines().any(|line| line == "from the agent"));
}

#[test]
fn log_file_on_full_disk_keeps_console_output() {
    let mut rig = Rig::pipe();
    let (mut stdout, _stderr) = rig.open(worker(0), &tee("/dev/full"));
    writeln!(stdout, "one").unwrap();
    rig.expect("[w0]:one\n");
    writeln!(stdout, "two").unwrap();
    rig.expect("[w0]:two\n");
}

#[test]
fn unopenable_log_file_is_named() {
    let mut rig = Rig::pipe();
    let error = rig.logs.open(worker(0), &tee("/dev/null/stdout.log")).expect_err("no such folder");
    assert!(matches!(&error, LogError::File { .. }), "{error:?}");
    assert!(error.to_string().contains("`/dev/null/stdout.log`"), "{error}");
    assert!(error.hint().contains("--log-dir"));
}

#[test]
fn tail_of_redirected_streams_is_read_from_files() {
    let mut rig = Rig::pipe();
    let scratch = Scratch::new();
    let routes = Routes { stdout: Route::File(scratch.0.clone()), ..bare() };
    let (mut stdout, mut stderr) = rig.open(worker(0), &routes);
    writeln!(stdout, "{}", "x\n".repeat(100_000)).unwrap();
    writeln!(stdout, "the end").unwrap();
    writeln!(stderr, "Traceback").unwrap();
    wait(rig.logs.generation_ended(Generation(0)));
    let lines = rig.logs.tail(worker(0));
    assert_eq!(lines.len(), 20);
    assert_eq!(lines[18..], ["the end", "Traceback"]);
    assert!(rig.logs.tail(worker(1)).is_empty());
}

#[test]
fn inherited_streams_start_no_pump_and_messages_are_direct() {
    let mut rig = Rig::pipe();
    let routes = Routes { stdout: Route::Inherit, stderr: Route::Inherit, ..bare() };
    let stdio = rig.logs.open(worker(0), &routes).unwrap();
    rig.logs.pump().unwrap();
    assert!(matches!((stdio.stdout, stdio.stderr), (ChildEnd::Inherit, ChildEnd::Inherit)));
    assert_eq!(rig.logs.pumps().count(), 0);
    rig.console.message(OutputStream::Stderr, b"summary");
    rig.expect("summary\n");
}

#[test]
fn message_after_unfinished_output_starts_new_line() {
    let mut rig = Rig::pipe();
    let (mut stdout, _stderr) = rig.open(worker(0), &bare());
    write!(stdout, "no newline").unwrap();
    wait(rig.logs.finish());
    rig.console.message(OutputStream::Stderr, b"summary");
    rig.expect("no newline\nsummary\n");
}
