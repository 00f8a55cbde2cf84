//! The server against clients of every kind, with a test in the place of the agent.
#![expect(clippy::disallowed_methods, reason = "the tests wait with a limit")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Client;
use std::path::PathBuf;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::rank::{Generation, JobId};

use super::*;
use crate::control::endpoint::ControlEndpoint;
use crate::control::folder::{JobFolder, RuntimeFolders};
use crate::control::protocol::JobStatus;
use crate::logs::last_output::OutputReader;
use crate::process::inherited::raise_file_limit;

struct Place {
    root: PathBuf,
    endpoint: Option<ControlEndpoint>,
    folder: JobFolder,
}

impl Place {
    fn open(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("rankrun-server-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).unwrap();
        let places = RuntimeFolders::of(Some(root.as_os_str()), None, 4_000_000_000);
        let job = JobId("00000000-0000-4000-8000-000000000000".to_owned());
        let endpoint = ControlEndpoint::open(&places, &job).unwrap();
        let folder = places.find_job_folders().unwrap().jobs.remove(0);
        Self { root, endpoint: Some(endpoint), folder }
    }

    fn connect(&self) -> Client {
        let client = self.folder.with_socket_path(|path| Client::connect(path)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
    }

    /// Ends the job.
    fn close(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            let _ = endpoint.close().remove();
        }
    }

    fn endpoint(&mut self) -> &mut ControlEndpoint {
        self.endpoint.as_mut().unwrap()
    }

    /// Waits for the next requests, as the agent does.
    fn requests(&mut self) -> Vec<ControlRequest> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let requests = self.endpoint().take_requests();
            if !requests.is_empty() {
                return requests;
            }
            assert!(Instant::now() < until, "no request has come");
            let fd = self.endpoint().as_fd().unwrap();
            poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::from(1000u16)).unwrap();
        }
    }

    fn wait_for_readers(&mut self, count: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.endpoint().event_readers() != count {
            assert!(Instant::now() < until, "{} readers, not {count}", self.endpoint().event_readers());
            assert!(self.endpoint().take_requests().is_empty());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts the server, which the first client does.
    fn start(&mut self) {
        let mut client = self.connect();
        client.write_all(ClientRequest::Stop.to_line().as_bytes()).unwrap();
        drop(self.requests());
    }

    fn answer_status(&mut self) {
        for request in self.requests() {
            let ControlRequest::Status(reply) = request else { panic!("{request:?}") };
            reply.send(Box::new(snapshot())).unwrap();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.close();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn snapshot() -> JobSnapshot {
    let status = JobStatus { job: "j".to_owned(), ..JobStatus::default() };
    JobSnapshot { status, outputs: OutputReader::default() }
}

#[test]
fn request_behind_events_is_refused_and_stream_goes_on() {
    let mut place = Place::open("behind");
    let mut client = place.connect();
    client.write_all(ClientRequest::Events.to_line().as_bytes()).unwrap();
    place.wait_for_readers(1);
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut next_line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    };
    for _ in 0..2 {
        client.write_all(ClientRequest::Stop.to_line().as_bytes()).unwrap();
        assert!(next_line().contains("this connection reads events"));
    }
    place.endpoint().publish(Generation(0), "seen", String::new());
    assert!(next_line().contains("\"seen\""));
    assert!(place.endpoint().take_requests().is_empty());
}

fn read_all(mut client: Client) -> String {
    let mut text = Vec::new();
    // A connection that was closed before all was read ends with an error behind the answer.
    let _ = client.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn status_is_answered_by_the_agent_several_times_per_connection() {
    let mut place = Place::open("status");
    let mut client = place.connect();
    for _ in 0..2 {
        client.write_all(ClientRequest::Status.to_line().as_bytes()).unwrap();
        place.answer_status();
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).unwrap();
        assert!(line.starts_with("{\"version\":1,\"status\":{\"job\":\"j\","), "{line}");
    }
}

#[test]
fn no_thread_runs_before_the_first_client() {
    let mut place = Place::open("idle");
    assert!(place.endpoint().take_requests().is_empty());
    assert!(place.endpoint().event_readers() == 0);
    assert!(place.endpoint().as_fd().is_some());
    place.endpoint().publish(Generation(0), "x", String::new());
}

#[test]
fn request_of_client_that_gave_up_is_not_carried_out() {
    let mut place = Place::open("gave-up");
    for request in [ClientRequest::Stop, ClientRequest::Restart] {
        place.connect().write_all(request.to_line().as_bytes()).unwrap();
    }
    let mut client = place.connect();
    client.write_all(ClientRequest::Status.to_line().as_bytes()).unwrap();
    place.answer_status();
}

#[test]
fn garbage_is_answered_and_the_connection_goes_on() {
    let mut place = Place::open("garbage");
    let mut client = place.connect();
    client.write_all(b"\xff\xfe\0\nstatus\n{\"version\":9,\"request\":\"stop\"}\n").unwrap();
    client.write_all(ClientRequest::Status.to_line().as_bytes()).unwrap();
    place.answer_status();
    let mut reader = BufReader::new(&client);
    let mut next = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    };
    assert!(next().contains("one line of JSON"));
    assert!(next().contains("one line of JSON"));
    assert!(next().contains("version 1 of the control protocol, not 9"));
    assert!(next().contains("\"status\""));
}

#[test]
fn endless_line_is_refused_after_its_limit() {
    let mut place = Place::open("endless");
    place.start();
    let mut client = place.connect();
    let mut sent = 0;
    // The server closes the connection long before a gigabyte.
    while sent < 1 << 30 && client.write_all(&[b'x'; 65_536]).is_ok() {
        sent += 65_536;
    }
    assert!(sent < 16 << 20, "{sent} bytes were taken");
    assert!(read_all(client).contains("a request has at most 4096 bytes"));
}

#[test]
fn thousand_connections_leave_room_after_they_close() {
    // Both ends of all connections are in this process.
    let _ = raise_file_limit();
    let mut place = Place::open("thousand");
    place.start();
    let mut refused = 0;
    let idle: Vec<Client> = (0..1000).map(|_| place.connect()).collect();
    for client in &idle[MAX_CLIENTS + 1..] {
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        refused += usize::from(line.contains("too many clients are connected"));
    }
    assert!(refused >= 1000 - 2 * MAX_CLIENTS, "{refused}");
    drop(idle);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut client = place.connect();
        let mut line = String::new();
        let sent = client.write_all(ClientRequest::Status.to_line().as_bytes()).is_ok();
        let waits = poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLIN)], PollTimeout::from(200u16));
        if sent && waits == Ok(0) {
            place.answer_status();
        }
        let _ = BufReader::new(&client).read_line(&mut line);
        if line.contains("\"status\"") {
            return;
        }
        assert!(Instant::now() < until, "{line}");
    }
}

#[test]
fn clients_leave_descriptors_to_the_job() {
    for (max_open, open, limit) in
        [(1024, 40, 32), (64, 24, 10), (64, 63, 1), (64, 64, 1), (8, 900, 1), (u64::MAX, 3, 32)]
    {
        assert_eq!(client_limit(max_open, open), limit, "{open} of {max_open}");
    }
}

#[test]
fn other_user_is_refused() {
    let (job, _requests) = link(12_345);
    let root = std::env::temp_dir().join(format!("rankrun-peer-{}", std::process::id()));
    let _ = std::fs::remove_file(&root);
    let listener = std::os::unix::net::UnixListener::bind(&root).unwrap();
    listener.set_nonblocking(true).unwrap();
    let client = Client::connect(&root).unwrap();
    std::fs::remove_file(&root).unwrap();
    // Root may ask every job.
    let is_root = rustix::process::geteuid().is_root();
    let ended = job.1;
    std::thread::scope(|scope| {
        let link = job.0;
        scope.spawn(|| run(new_runtime().unwrap(), serve(listener, link, SpareDescriptor::open().unwrap())));
        let mut line = String::new();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        if is_root {
            (&client).write_all(b"x\n").unwrap();
        }
        BufReader::new(&client).read_line(&mut line).unwrap();
        let expected = if is_root { "one line of JSON" } else { "the job is another user's" };
        assert!(line.contains(expected), "{line}");
        drop(ended);
    });
}

type TestLink = (JobLink, watch::Sender<()>);

fn link(uid: u32) -> (TestLink, std::sync::mpsc::Receiver<ControlRequest>) {
    let (requests, received) = std::sync::mpsc::sync_channel(1);
    let (events, _) = broadcast::channel(EVENT_BACKLOG);
    let (sender, ended) = watch::channel(());
    let wake = Arc::new(EventFd::new().unwrap());
    let max_clients = MAX_CLIENTS;
    (
        (JobLink { requests, wake, events, ended, uid, max_clients, stacks_turn: Arc::default() }, sender),
        received,
    )
}

#[test]
fn event_reader_gets_all_events_until_the_end_of_the_job() {
    let mut place = Place::open("events");
    let client = subscribe(&mut place);
    place.endpoint().publish(Generation(3), "one", "first".to_owned());
    place.endpoint().publish(Generation(3), "two", String::new());
    place.close();
    let text = read_all(client);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("{\"version\":1,\"event\":{\"name\":\"one\",\"time_ms\":"), "{text}");
    assert!(lines[0].ends_with(",\"generation\":3,\"text\":\"first\"}}"), "{text}");
}

#[test]
fn slow_event_reader_is_dropped_with_a_last_line() {
    let mut place = Place::open("slow");
    let client = subscribe(&mut place);
    for number in 0..20 * EVENT_BACKLOG {
        place.endpoint().publish(Generation(0), "flood", format!("{number} {}", "x".repeat(1000)));
    }
    let text = read_all(client);
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("{\"version\":1,\"error\":\"this reader is too slow: "), "{last}");
    assert!(text.lines().count() < 20 * EVENT_BACKLOG);
}

#[test]
fn event_reader_that_never_reads_is_closed() {
    let mut place = Place::open("never-reads");
    let client = subscribe(&mut place);
    // More than the socket takes.
    place.endpoint().publish(Generation(0), "flood", "x".repeat(4 << 20));
    place.wait_for_readers(0);
    drop(client);
}

/// A client that reads events from now on.
fn subscribe(place: &mut Place) -> Client {
    let readers = place.endpoint().event_readers();
    let mut client = place.connect();
    client.write_all(ClientRequest::Events.to_line().as_bytes()).unwrap();
    place.wait_for_readers(readers + 1);
    client
}

/// A reader that has closed its end, or only its own side of it as `socat` does at the end of its input.
#[test]
fn event_reader_that_hangs_up_leaves_its_place() {
    let mut place = Place::open("hang-up");
    let half_closed = subscribe(&mut place);
    half_closed.shutdown(Shutdown::Write).unwrap();
    for words in ["", "and more"] {
        let mut client = subscribe(&mut place);
        client.write_all(words.as_bytes()).unwrap();
        place.wait_for_readers(2);
        drop(client);
        place.wait_for_readers(1);
    }
    place.endpoint().publish(Generation(0), "last", String::new());
    place.close();
    assert!(read_all(half_closed).contains("\"last\""));
}

#[test]
fn end_of_the_job_closes_idle_connections_and_removes_the_folder() {
    let mut place = Place::open("end");
    place.start();
    let idle = place.connect();
    place.close();
    assert_eq!(read_all(idle), "");
    assert!(place.folder.is_dead() && !place.folder.path.exists());
}
