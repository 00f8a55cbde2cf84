use std::io::BufRead;
use std::net::TcpListener;
use std::thread;

use super::*;
use crate::process::own_pid;

/// A server for each connection in turn: its answers to the commands, then what it sends for `STATUS`. It ends with this.
fn server(conversations: Vec<(&'static [&'static str], String)>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut silent = Vec::new();
        for (answers, status) in conversations {
            let (mut stream, _) = listener.accept().unwrap();
            let mut commands = io::BufReader::new(stream.try_clone().unwrap()).lines();
            for answer in answers {
                let _ = commands.next();
                let _ = stream.write_all(format!("{answer}\n").as_bytes());
            }
            if status.is_empty() {
                silent.push(stream);
                continue;
            }
            let _ = commands.next();
            let _ = stream.write_all(status.as_bytes());
        }
        // Until the client has given up.
        let _ = silent.iter().map(|mut stream| stream.read(&mut [0; 1 << 10])).collect::<Vec<_>>();
    });
    port
}

const GREETING: &[&str] = &["SERVER PROTOCOL 2", "OK", "OK"];

/// Rank 0 is this process, and has called one collective more than rank 1.
fn status() -> String {
    let rank = |pid: i32, count| {
        format!(
            r#"{{"rank": 0, "host": "127.0.0.1", "pid": {pid}, "collective_counts": {{"AllReduce": {count}}}}}"#
        )
    };
    let (own, other) = (rank(own_pid().as_raw(), 5), rank(1, 4));
    format!(r#"{{"communicators": [{{"hash": "0x1", "size": 2, "ranks": [{own}, {other}]}}]}}"#)
}

#[test]
fn counts_of_a_worker_are_found_by_its_pid() {
    let port = server(vec![(GREETING, status())]);
    let found = ask_ras(port, &[Some(own_pid()), Some(Pid::from_raw(i32::MAX)), None]).unwrap();
    assert_eq!(found[0].as_ref().unwrap()["ras:0x1:"].pending(), Some(5));
    assert_eq!(found[1..], [None, None]);
}

#[test]
fn pid_of_another_host_is_no_worker() {
    let port = server(vec![(GREETING, status().replace("127.0.0.1", "192.0.2.7"))]);
    assert_eq!(ask_ras(port, &[Some(own_pid())]).unwrap(), [None]);
}

#[test]
fn stopped_process_that_takes_the_connection_is_passed_over() {
    let port = server(vec![(&[], String::new()), (GREETING, status())]);
    assert!(ask_ras(port, &[Some(own_pid())]).unwrap()[0].is_some());
}

#[test]
fn other_servers_and_old_versions_are_errors() {
    const OLD: &[&str] = &["SERVER PROTOCOL 2", "OK", "ERROR: unknown command"];
    for (answers, status, expected) in [
        (OLD, "x".to_owned(), "`SET FORMAT json` is answered by `ERROR: unknown command\\n`"),
        (&["HTTP/1.1 400 Bad Request"], "x".to_owned(), "`CLIENT PROTOCOL 2` is answered by `HTTP/1.1 400"),
        (GREETING, "{\"communicators\": [".to_owned(), "EOF while parsing"),
        (&[], "x".repeat(2 * MAX_LINE), "no answer of NCCL to `CLIENT PROTOCOL 2`"),
    ] {
        let error = ask_ras(server(vec![(answers, status)]), &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let nobody = RasPort::reserve().unwrap();
    assert_eq!(ask_ras(nobody.number(), &[]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn endless_answer_is_given_up() {
    let port = server(vec![(GREETING, "x".repeat(MAX_ANSWER + (1 << 20)))]);
    let error = ask_ras(port, &[]).unwrap_err().to_string();
    assert!(error.contains("an answer of more than"), "{error}");
}

/// As NCCL's listeners do.
#[test]
fn several_processes_listen_on_the_reserved_port() {
    let port = RasPort::reserve().unwrap();
    let listen = || {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port.number())))?;
        rustix::net::listen(&socket, 1).map(|()| socket)
    };
    let _listeners = (listen().unwrap(), listen().unwrap());
    assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).is_err(), "no other program gets it");
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port.number())).is_ok());
}
