//! Asks the flight recorders of one worker over the Unix socket of PyTorch's control plane: first which handlers there are,
//! then each recorder that one of them answers for. The worker may hang or lie, so time and size of the answers are limited.
#![expect(clippy::disallowed_methods, reason = "the deadline is measured here")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rankrun_core::hang::evidence::{Groups, RankEvidence};
use rankrun_core::hang::flight_recorder::MAX_TRACE;
use rankrun_core::hang::recorder_handlers::{HANDLER_LIST, recorder_requests};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

const MAX_HEAD: usize = 16 << 10;

/// What a worker's control plane says of its recorders.
enum RecorderAnswer {
    Groups(Groups),
    /// No handler of this version of PyTorch answers for a recorder.
    NoRecorder,
}

/// Asks the recorders of this worker, and records the answer. False if its control plane lists none, nothing if it does not
/// answer.
pub(super) fn ask_recorder(
    socket: &Path,
    evidence: &mut RankEvidence,
    now: Instant,
    patience: Duration,
) -> Option<bool> {
    let answer = fetch_groups(socket, patience);
    let has_recorder = answer.as_ref().ok().map(|answer| matches!(answer, RecorderAnswer::Groups(_)));
    record_answer(evidence, answer, now);
    has_recorder
}

/// A collective that the last answer showed in its midst may be over by now: without a new answer there is nothing to rely on.
fn record_answer(evidence: &mut RankEvidence, answer: io::Result<RecorderAnswer>, now: Instant) {
    use io::ErrorKind::{TimedOut, WouldBlock};
    match answer {
        // NCCL's own counts are asked instead.
        Ok(RecorderAnswer::NoRecorder) => evidence.is_unanswered = false,
        Ok(RecorderAnswer::Groups(groups)) if groups.is_empty() && evidence.has_groups() => {
            evidence.forget_groups();
        }
        Ok(RecorderAnswer::Groups(groups)) => evidence.record_groups(groups, now),
        Err(error) => {
            tracing::debug!("rank {}: no flight recorder: {error}", evidence.rank);
            evidence.forget_groups();
            evidence.is_unanswered = matches!(error.kind(), TimedOut | WouldBlock);
        }
    }
}

/// The groups that the recorders of this worker list, by all answers within this time.
///
/// # Errors
/// No server listens there, it does not answer in time, or an answer is not a trace.
fn fetch_groups(socket: &Path, patience: Duration) -> io::Result<RecorderAnswer> {
    let deadline = Instant::now() + patience;
    let list = exchange(socket, "GET", HANDLER_LIST, deadline)?;
    let requests = recorder_requests(&list).map_err(io::Error::other)?;
    if requests.is_empty() {
        return Ok(RecorderAnswer::NoRecorder);
    }
    let mut groups = Groups::new();
    for request in requests {
        let answer = exchange(socket, "POST", request.target, deadline)?;
        groups.extend(request.parse_answer(&answer).map_err(io::Error::other)?);
    }
    Ok(RecorderAnswer::Groups(groups))
}

/// The body of the answer.
fn exchange(socket: &Path, method: &str, target: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let remaining = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        remaining => Ok(remaining),
    };
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(remaining()?))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let mut stream = UnixStream::from(stream);
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 64 << 10];
    loop {
        stream.set_read_timeout(Some(remaining()?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            length => answer.extend_from_slice(&chunk[..length]),
        }
        if answer.len() > MAX_TRACE + MAX_HEAD {
            return Err(io::Error::other(format!("an answer of more than {MAX_TRACE} bytes")));
        }
    }
    body_of(answer)
}

/// The server closes the connection behind its answer, so the body is what follows the head.
fn body_of(mut answer: Vec<u8>) -> io::Result<Vec<u8>> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let head_end = memchr::memmem::find(&answer, b"\r\n\r\n").ok_or_else(|| bad("not an answer in HTTP"))?;
    let mut words = answer[..head_end].split(|byte| byte.is_ascii_whitespace());
    if !words.next().is_some_and(|word| word.starts_with(b"HTTP/1.")) || words.next() != Some(b"200") {
        return Err(bad("the server refuses"));
    }
    Ok(answer.split_off(head_end + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_contract::rank::Rank;
    use rankrun_core::hang::flight_recorder::parse_trace;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// The list of PyTorch 2.15 with CUDA, as it answers.
    const LIST_2_15: &str = r#"["dump_nccl_trace_json","dump_nccl_trace_pickle","dump_traceback","pyspy_dump",
        "wait_counter_values","fr_dump_file","fr_trace_json","ping","c10d_health_check"]"#;
    const TRACE: &str = r#"{"entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 3}]}"#;

    /// A rank that waits in a collective.
    fn waiting_rank(now: Instant) -> RankEvidence {
        let mut evidence = RankEvidence::new(Rank(0), now);
        evidence.record_groups(parse_trace(TRACE.as_bytes()).unwrap(), now);
        evidence
    }

    #[test]
    fn answer_that_is_not_a_trace_leaves_no_old_evidence() {
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        for (answer, is_unanswered) in [
            (error(io::ErrorKind::TimedOut), true),
            (error(io::ErrorKind::WouldBlock), true),
            (error(io::ErrorKind::NotFound), false),
            (error(io::ErrorKind::ConnectionRefused), false),
            (Err(io::Error::other("not a trace")), false),
            (Ok(RecorderAnswer::Groups(Groups::new())), false),
        ] {
            let now = Instant::now();
            let mut evidence = waiting_rank(now);
            let text = answer.as_ref().err().map(ToString::to_string);
            record_answer(&mut evidence, answer, now);
            assert_eq!((evidence.groups, evidence.is_unanswered), (None, is_unanswered), "{text:?}");
        }
    }

    /// A folder with a socket, on which a thread answers each request in this way.
    fn server(name: &str, answer: impl Fn(UnixStream) + Send + 'static) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rankrun-recorder-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(&answer));
        path
    }

    fn asked(path: &Path) -> io::Result<Groups> {
        let answer = fetch_groups(path, PATIENCE);
        std::fs::remove_file(path).unwrap();
        answer.map(|answer| match answer {
            RecorderAnswer::Groups(groups) => groups,
            RecorderAnswer::NoRecorder => panic!("no recorder"),
        })
    }

    /// The request line is what a handler of PyTorch is called by.
    fn request_line(stream: &mut UnixStream) -> String {
        let mut request = [0; 1024];
        let length = stream.read(&mut request).unwrap_or_default();
        let line = String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned();
        line.strip_suffix(" HTTP/1.1").unwrap_or_default().to_owned()
    }

    fn write_answer(stream: &mut UnixStream, body: &[u8]) {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(body);
    }

    /// As PyTorch answers that has these handlers, and nothing else.
    fn pytorch(
        name: &str,
        list: &'static str,
        handlers: Vec<(&'static str, &'static [u8])>,
    ) -> io::Result<Groups> {
        asked(&server(name, move |mut stream| {
            let line = request_line(&mut stream);
            let body = handlers.iter().find(|(target, _)| line == format!("POST /handler/{target}"));
            match body {
                Some((_, body)) => write_answer(&mut stream, body),
                None if line == "GET /handler/" => write_answer(&mut stream, list.as_bytes()),
                None => stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap(),
            }
        }))
    }

    const JSON_OF_NCCL: &str = "dump_nccl_trace_json?includecollectives=true&onlyactive=false";
    const NO_GROUPS: &[u8] = br#"{"pg_config":{},"pg_status":{},"version":"2.10"}"#;

    #[test]
    fn all_recorders_of_new_pytorch_are_asked() {
        let groups = pytorch(
            "all",
            LIST_2_15,
            vec![
                ("fr_trace_json?backend=gloo", TRACE.as_bytes()),
                ("fr_trace_json?backend=nccl2", TRACE.as_bytes()),
                (JSON_OF_NCCL, NO_GROUPS),
            ],
        );
        let groups = groups.unwrap();
        assert_eq!(groups.keys().collect::<Vec<_>>(), ["gloo:0", "nccl2:0"]);
        assert_eq!(groups["gloo:0"].pending(), Some(3));
    }

    #[test]
    fn recorder_of_old_nccl_is_asked_in_json_or_as_pickle() {
        let json = pytorch(
            "json",
            r#"["ping","dump_nccl_trace_json","dump_nccl_trace_pickle"]"#,
            vec![(JSON_OF_NCCL, TRACE.as_bytes())],
        );
        assert_eq!(json.unwrap()["nccl:0"].pending(), Some(3));
        // `pickle.dumps({"entries": [{"collective_seq_id": 3, "process_group": ("0", "default_pg")}]}, 2)`
        const PICKLE: &[u8] = b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02}q\x03(X\x11\x00\x00\x00collective_seq_idq\x04K\x03\
            X\x0d\x00\x00\x00process_groupq\x05X\x01\x00\x00\x000q\x06X\x0a\x00\x00\x00default_pgq\x07\x86q\x08uas.";
        let handlers = vec![("dump_nccl_trace_pickle?includestacktraces=false", PICKLE)];
        let groups = pytorch("pickle", r#"["ping","dump_nccl_trace_pickle"]"#, handlers);
        assert_eq!(groups.unwrap()["nccl:0"].pending(), Some(3));
    }

    #[test]
    fn pickle_that_runs_something_is_an_error() {
        let error = pytorch(
            "global",
            r#"["dump_nccl_trace_pickle"]"#,
            vec![(
                "dump_nccl_trace_pickle?includestacktraces=false",
                b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.",
            )],
        );
        let text = error.unwrap_err().to_string();
        assert!(text.contains("has the opcode GLOBAL at byte 2"), "{text}");
    }

    #[test]
    fn pytorch_without_recorder_keeps_counts_of_nccl() {
        let list = r#"["ping","dump_traceback"]"#;
        let path = server("none", move |mut stream| {
            request_line(&mut stream);
            write_answer(&mut stream, list.as_bytes());
        });
        let now = Instant::now();
        let mut evidence = waiting_rank(now);
        assert_eq!(ask_recorder(&path, &mut evidence, now, PATIENCE), Some(false));
        assert!(evidence.has_groups());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn garbage_refusal_and_early_end_are_errors() {
        for (name, text) in [
            ("empty", ""),
            ("garbage", "\u{1}\u{2}"),
            ("refusal", "HTTP/1.1 404 Not Found\r\n\r\n{}"),
            ("cut", "HTTP/1.1 200 OK\r\n\r\n[\"fr_trace_json\""),
        ] {
            let path = server(name, move |mut stream| {
                request_line(&mut stream);
                let _ = stream.write_all(text.as_bytes());
            });
            assert!(asked(&path).is_err(), "{name}");
        }
        let list = r#"["fr_trace_json"]"#;
        for (name, answer) in [("no-json", b"\x80\x02}.".as_slice()), ("cut-trace", b"{\"entries\": [")] {
            let handlers = vec![("fr_trace_json?backend=gloo", answer)];
            assert!(pytorch(name, list, handlers).is_err(), "{name}");
        }
        assert!(fetch_groups(Path::new("/nonexistent/socket"), PATIENCE).is_err());
    }

    #[test]
    fn silent_server_costs_one_timeout() {
        // One never answers, the other answers with the list alone.
        for (name, lists) in [("silent", false), ("silent-handler", true)] {
            let (hold, held) = std::sync::mpsc::channel();
            let path = server(name, move |mut stream| {
                if lists && request_line(&mut stream).starts_with("GET") {
                    return write_answer(&mut stream, LIST_2_15.as_bytes());
                }
                hold.send(stream).unwrap();
            });
            let began = Instant::now();
            let error = asked(&path).unwrap_err();
            assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
            assert!(began.elapsed() < 2 * PATIENCE);
            drop(held);
        }
    }

    /// The server sees the connection close long before it has sent a gigabyte.
    #[test]
    fn answer_of_a_gigabyte_is_given_up() {
        let (count, sent) = std::sync::mpsc::channel();
        let path = server("endless", move |mut stream| {
            let chunk = [b'x'; 1 << 16];
            let written = (0..1 << 14).take_while(|_| stream.write_all(&chunk).is_ok()).count();
            count.send(written * chunk.len()).unwrap();
        });
        assert!(asked(&path).is_err());
        assert!(sent.recv().unwrap() < 2 * MAX_TRACE);
    }
}
