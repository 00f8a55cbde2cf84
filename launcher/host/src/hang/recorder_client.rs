//! Asks the flight recorder of one worker: a POST over the Unix socket of PyTorch's control plane. The worker may hang
//! or lie, so time and size of the answer are limited.
#![expect(clippy::disallowed_methods, reason = "the deadline is measured here")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rankrun_core::hang::evidence::{Groups, RankEvidence};
use rankrun_core::hang::flight_recorder::{MAX_TRACE, parse_trace};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// The recorders of a worker, by the name of its kind of process group. PyTorch 2.15 makes `nccl2` where `nccl` is asked for;
/// the older `nccl` has a recorder of another form.
const BACKENDS: [&str; 2] = ["gloo", "nccl2"];
const MAX_HEAD: usize = 16 << 10;

/// Asks the recorders of this worker, and records the answer.
pub(super) fn ask_recorder(socket: &Path, evidence: &mut RankEvidence, now: Instant, patience: Duration) {
    record_answer(evidence, fetch_groups(socket, patience), now);
}

/// A collective that the last answer showed in its midst may be over by now: without a new answer there is nothing to rely on.
fn record_answer(evidence: &mut RankEvidence, answer: io::Result<Groups>, now: Instant) {
    use io::ErrorKind::{TimedOut, WouldBlock};
    match answer {
        Ok(groups) if groups.is_empty() && evidence.has_groups() => evidence.forget_groups(),
        Ok(groups) => evidence.record_groups(groups, now),
        Err(error) => {
            tracing::debug!("rank {}: no flight recorder: {error}", evidence.rank);
            evidence.forget_groups();
            evidence.is_unanswered = matches!(error.kind(), TimedOut | WouldBlock);
        }
    }
}

/// The groups that the recorders of this worker list.
///
/// # Errors
/// No server listens there, it does not answer in time, or its answer is not a trace.
fn fetch_groups(socket: &Path, patience: Duration) -> io::Result<Groups> {
    let deadline = Instant::now() + patience;
    let mut groups = Groups::new();
    for backend in BACKENDS {
        let answer = post(socket, &format!("/handler/fr_trace_json?backend={backend}"), deadline)?;
        let trace = parse_trace(&answer).map_err(io::Error::other)?;
        // Groups of two backends may share a name, and each backend counts for itself.
        groups.extend(trace.into_iter().map(|(name, group)| (format!("{backend}:{name}"), group)));
    }
    Ok(groups)
}

/// The body of the answer.
fn post(socket: &Path, target: &str, deadline: Instant) -> io::Result<Vec<u8>> {
    let remaining = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        remaining => Ok(remaining),
    };
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(remaining()?))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let mut stream = UnixStream::from(stream);
    let request = format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
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
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// A rank that waits in a collective.
    fn waiting_rank(now: Instant) -> RankEvidence {
        let text = br#"{"entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 3}]}"#;
        let mut evidence = RankEvidence::new(Rank(0), now);
        evidence.record_groups(parse_trace(text).unwrap(), now);
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
            (Ok(Groups::new()), false),
        ] {
            let now = Instant::now();
            let (mut evidence, text) = (waiting_rank(now), format!("{answer:?}"));
            record_answer(&mut evidence, answer, now);
            assert_eq!((evidence.groups, evidence.is_unanswered), (None, is_unanswered), "{text}");
        }
    }

    /// A folder with a socket, on which a thread answers each request in this way.
    fn server(name: &str, answer: impl Fn(UnixStream) + Send + 'static) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rankrun-recorder-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(&answer));
        path
    }

    fn answers(name: &str, text: &'static str) -> io::Result<Groups> {
        let path = server(name, move |mut stream| {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(text.as_bytes());
        });
        let groups = fetch_groups(&path, PATIENCE);
        std::fs::remove_file(path).unwrap();
        groups
    }

    #[test]
    fn groups_of_each_backend_have_names_of_their_own() {
        let text = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"entries\": [{\"process_group\": [\"0\", \
                    \"default_pg\"], \"collective_seq_id\": 3}]}";
        let groups = answers("good", text).unwrap();
        assert_eq!(groups.keys().collect::<Vec<_>>(), ["gloo:0", "nccl2:0"]);
        assert_eq!(groups["gloo:0"].pending(), Some(3));
    }

    #[test]
    fn garbage_refusal_and_early_end_are_errors() {
        for (name, text) in [
            ("empty", ""),
            ("garbage", "\u{1}\u{2}"),
            ("refusal", "HTTP/1.1 404 Not Found\r\n\r\n{}"),
            ("cut", "HTTP/1.1 200 OK\r\n\r\n{\"entries\": ["),
        ] {
            assert!(answers(name, text).is_err(), "{name}");
        }
        assert!(fetch_groups(Path::new("/nonexistent/socket"), PATIENCE).is_err());
    }

    #[test]
    fn silent_server_costs_one_timeout() {
        let (hold, held) = std::sync::mpsc::channel();
        let path = server("silent", move |stream| hold.send(stream).unwrap());
        let began = Instant::now();
        assert!(fetch_groups(&path, PATIENCE).is_err());
        assert!(began.elapsed() < 2 * PATIENCE);
        drop(held);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn endless_answer_is_given_up() {
        let path = server("endless", |mut stream| while stream.write_all(&[b'x'; 1 << 16]).is_ok() {});
        assert!(fetch_groups(&path, PATIENCE).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
