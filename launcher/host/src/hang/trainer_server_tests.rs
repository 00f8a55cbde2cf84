use std::fs;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::*;

/// Far above what anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

struct Fixture {
    server: TrainerServer,
    address: SocketAddr,
    token: PathBuf,
    fifo: File,
}

impl Fixture {
    fn new(name: &str) -> Self {
        let token = std::env::temp_dir().join(format!("rankrun-trainer-{}-{name}", std::process::id()));
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)));
        let listener = TrainerServer::listen().unwrap();
        let address = listener.local_addr().unwrap();
        let server = TrainerServer::start(listener, &token, Arc::new(writer)).unwrap();
        Self { server, address, token, fifo: reader }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }

    /// The first line of the answer.
    fn send(&self, method: &str, token: &str, body: &str) -> String {
        let mut stream = self.connect();
        let length = body.len();
        let head =
            format!("{method} / HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), "{answer}");
        answer.lines().next().unwrap_or_default().to_owned()
    }

    fn token(&self) -> String {
        fs::read_to_string(&self.token).unwrap()
    }

    /// What the worker's FIFO has after the end of the server.
    fn end(mut self) -> String {
        drop(self.server);
        let mut heartbeats = String::new();
        self.fifo.read_to_string(&mut heartbeats).unwrap();
        fs::remove_file(self.token).unwrap();
        heartbeats
    }
}

fn report(percentage: u8, step: u64) -> String {
    format!(
        r#"{{"trainerStatus": {{"progressPercentage": {percentage},
            "metrics": [{{"name": "current_step", "value": "{step}"}}, {{"name": "loss", "value": "2.5"}}]}}}}"#
    )
}

#[test]
fn reports_become_heartbeats_and_last_status() {
    let fixture = Fixture::new("good");
    assert_eq!(*fixture.server.status().lock().unwrap(), None);
    let end = r#"{"trainerStatus": {"progressPercentage": 100}}"#;
    for body in [report(0, 1), report(12, 120), end.to_owned()] {
        assert_eq!(fixture.send("POST", &fixture.token(), &body), "HTTP/1.1 200 OK");
    }
    let expected = TrainerStatus { step: 120, has_ended: true, ..TrainerStatus::default() };
    assert_eq!(*fixture.server.status().lock().unwrap(), Some(expected));
    assert_eq!(fixture.end(), "1\n120\n120 section=after-training\n");
}

#[test]
fn request_without_token_or_report_is_refused() {
    let fixture = Fixture::new("bad");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&fixture.token).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let token = fixture.token();
    assert_eq!(token.len(), 64);
    let other = token.chars().rev().collect::<String>();
    for (method, token, body, status) in [
        ("POST", &other, report(1, 1), "HTTP/1.1 401 Unauthorized"),
        ("POST", &String::new(), report(1, 1), "HTTP/1.1 401 Unauthorized"),
        ("GET", &token, String::new(), "HTTP/1.1 405 Method Not Allowed"),
        ("POST", &token, "garbage".to_owned(), "HTTP/1.1 400 Bad Request"),
        ("garbage with words", &token, String::new(), "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(fixture.send(method, token, &body), status, "{method} {body}");
    }
    assert_eq!(fixture.end(), "");
}

/// The FIFO is at its end when the thread has dropped it.
#[test]
fn slow_client_does_not_delay_end_of_server() {
    let fixture = Fixture::new("slow");
    let mut slow = fixture.connect();
    slow.write_all(b"POST / HTTP/1.1\r\n").unwrap();
    assert_eq!(fixture.end(), "");
    drop(slow);
}

#[test]
fn silent_client_is_closed_for_the_next_one() {
    let fixture = Fixture::new("silent");
    let mut silent = fixture.connect();
    assert_eq!(fixture.send("POST", &fixture.token(), &report(1, 1)), "HTTP/1.1 200 OK");
    assert_eq!(silent.read(&mut [0]).unwrap(), 0, "it is closed without an answer");
    assert_eq!(fixture.end(), "1\n");
}
