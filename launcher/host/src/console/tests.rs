use super::*;
use crate::blocking::{BlockingCall, CallStep};
use std::fs::File;
use std::io::Read;

fn pipe() -> (File, OwnedFd) {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    (reader.into(), writer)
}

fn read_rest(mut reader: File) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn messages_are_whole_lines_on_named_stream() {
    let ((out, stdout), (err, stderr)) = (pipe(), pipe());
    let console = Console::new(stdout, stderr, Cursor::Moves);
    console.message(OutputStream::Stdout, b"data\n");
    console.message(OutputStream::Stderr, b"for people");
    console.make_writer().write_all(b"an event\n").unwrap();
    drop(console);
    assert_eq!((read_rest(out).as_str(), read_rest(err).as_str()), ("data\n", "for people\nan event\n"));
}

#[test]
fn stdout_and_stderr_of_one_file_share_output() {
    let (out, stdout) = pipe();
    let stderr = stdout.try_clone().unwrap();
    let console = Console::new(stdout, stderr, Cursor::Moves);
    assert!(Arc::ptr_eq(console.output(OutputStream::Stdout), console.output(OutputStream::Stderr)));
    drop((console, out));
}

#[test]
fn messages_queue_up_to_limit_while_pump_is_attached() {
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    let console = Console::new(stdout, stderr, Cursor::Moves);
    let output = Arc::clone(console.output(OutputStream::Stdout));
    let (screen, _) = output.attach(Arc::new(EventFd::new().unwrap())).unwrap();
    assert!(output.attach(Arc::new(EventFd::new().unwrap())).is_none());
    console.message(OutputStream::Stdout, b"first");
    console.message(OutputStream::Stdout, &vec![b'x'; QUEUE_LIMIT]);
    output.detach(screen);
    console.message(OutputStream::Stdout, b"last");
    drop((console, output));
    let lines = read_rest(out);
    assert_eq!(
        lines.lines().collect::<Vec<_>>(),
        ["first", "(1 messages of the launcher were dropped: the terminal was too slow)", "last"]
    );
}

#[test]
fn report_that_exceeds_the_queue_is_not_dropped() {
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    let console = Console::new(stdout, stderr, Cursor::Moves);
    let output = Arc::clone(console.output(OutputStream::Stdout));
    let long = "y".repeat(2 * QUEUE_LIMIT);
    let reader = std::thread::spawn(move || read_rest(out));
    let (screen, _) = output.attach(Arc::new(EventFd::new().unwrap())).unwrap();
    console.report(OutputStream::Stdout, long.as_bytes());
    output.detach(screen);
    console.report(OutputStream::Stdout, long.as_bytes());
    console.flush(Duration::from_secs(60));
    drop((console, output));
    assert_eq!(reader.join().unwrap().lines().collect::<Vec<_>>(), [&long, &long]);
}

#[test]
fn message_without_reader_is_ignored() {
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    drop(out);
    let console = Console::new(stdout, stderr, Cursor::Moves);
    console.message(OutputStream::Stdout, b"hello");
    assert_eq!(console.output(OutputStream::Stdout).write(b"x"), Err(WriteError::NoReader));
}

#[test]
fn full_disk_loses_output_but_keeps_console_open() {
    let full = || OwnedFd::from(File::options().write(true).open("/dev/full").unwrap());
    let console = Console::new(full(), full(), Cursor::Moves);
    assert_eq!(console.output(OutputStream::Stdout).write(b"x"), Err(WriteError::Lost(Errno::ENOSPC)));
}

#[test]
fn non_blocking_output_is_waited_for() {
    let ((out, stdout), (_err, stderr)) = (pipe(), pipe());
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(&stdout, flags).unwrap();
    let console = Console::new(stdout, stderr, Cursor::Moves);
    let reader = std::thread::spawn(move || read_rest(out).len());
    console.output(OutputStream::Stdout).write(&vec![b'x'; 1_000_000]).unwrap();
    drop(console);
    assert_eq!(reader.join().unwrap(), 1_000_000);
}

#[test]
fn slow_reader_does_not_block_and_gets_messages_in_order() {
    let ((mut out, stdout), (_err, stderr)) = (pipe(), pipe());
    let console = Console::new(stdout, stderr, Cursor::Moves);
    let line = vec![b'x'; 1000];
    // More than a pipe holds: the test ends only if no write waits.
    for _ in 0..100 {
        console.message(OutputStream::Stdout, &line);
    }
    console.message(OutputStream::Stdout, &vec![b'y'; QUEUE_LIMIT]);
    console.flush(Duration::ZERO);
    for _ in 0..100 {
        console.message(OutputStream::Stdout, &line);
    }
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).unwrap();
        text
    });
    console.flush(Duration::from_secs(60));
    drop(console);
    let text = reader.join().unwrap();
    let text = String::from_utf8(text).unwrap();
    let (lost, kept): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('('));
    assert_eq!(lost, ["(1 messages of the launcher were dropped: the terminal was too slow)"]);
    assert!(kept.len() == 200 && kept.iter().all(|kept| kept.as_bytes() == line));
}

/// The terminal's two ends; no byte is changed, and the far end is not read.
fn terminal() -> (File, OwnedFd) {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let reader = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&reader).unwrap();
    let terminal = rustix::pty::ioctl_tiocgptpeer(&reader, flags).unwrap();
    let mut modes = rustix::termios::tcgetattr(&terminal).unwrap();
    modes.make_raw();
    rustix::termios::tcsetattr(&terminal, rustix::termios::OptionalActions::Now, &modes).unwrap();
    (reader.into(), terminal)
}

#[test]
fn stopped_terminal_with_little_room_blocks_no_message() {
    let (mut reader, terminal) = terminal();
    let filler = output_kind::reopen_nonblocking(terminal.as_fd(), OutputKind::Terminal).unwrap();
    // The kernel moves the bytes on between its two buffers.
    let is_ready = || {
        let mut fds = [PollFd::new(filler.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::from(200_u8)).unwrap() > 0
    };
    while is_ready() {
        let _ = nix::unistd::write(&filler, &[b'x'; 256]);
    }
    while !is_ready() {
        reader.read_exact(&mut [0]).unwrap();
    }
    let write = move |_: &CallStep| {
        write_while_ready(terminal.as_fd(), OutputKind::Terminal, &[b'y'; 4096], Duration::ZERO)
    };
    let written = BlockingCall::start("writer", write).unwrap().wait(Duration::from_secs(20));
    assert!(written.is_some_and(|count| count < 4096), "{written:?}");
}

/// A file and its console; the test holds what a write to the file waits for.
fn console_on_file() -> (std::path::PathBuf, Console) {
    let path = std::env::temp_dir().join(format!("rankrun-console-{}", uuid::Uuid::new_v4()));
    let file = || OwnedFd::from(File::options().create(true).append(true).open(&path).unwrap());
    let console = Console::new(file(), file(), Cursor::Moves);
    (path, console)
}

#[test]
fn messages_to_a_file_that_hangs_delay_no_caller() {
    let (path, console) = console_on_file();
    let output = Arc::clone(console.output(OutputStream::Stderr));
    let hanging = output.write_turn.lock().unwrap();
    for text in [b"first", b"other"] {
        console.message(OutputStream::Stderr, text);
    }
    assert!(!console.flush(Duration::ZERO), "the file has no message");
    drop(hanging);
    assert!(console.flush(Duration::from_secs(60)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nother\n");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn pump_of_a_file_writes_behind_the_messages_before_it() {
    let (path, console) = console_on_file();
    let output = Arc::clone(console.output(OutputStream::Stdout));
    let hanging = output.write_turn.lock().unwrap();
    console.message(OutputStream::Stdout, b"first");
    let (screen, mut bytes) = output.attach(Arc::new(EventFd::new().unwrap())).unwrap();
    drop(hanging);
    bytes.extend_from_slice(b"pumped\n");
    output.write(&bytes).unwrap();
    output.detach(screen);
    console.message(OutputStream::Stdout, b"last");
    assert!(console.flush(Duration::from_secs(60)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\npumped\nlast\n");
    std::fs::remove_file(path).unwrap();
}
