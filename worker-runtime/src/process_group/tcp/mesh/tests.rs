//! Ranks connected over loopback, some of them scripted by the test.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::process_group::element::DataType;
use crate::process_group::message::HEADER_LEN;

fn call(operation: Operation, root: u32) -> Call {
    let root = Some(Rank(root));
    Call { operation, data_type: DataType::U8, reduce_op: None, root, count: 4, sequence: 1 }
}

/// Rank 0, which receives four bytes in this call, and the other end of its connection.
fn run_receiver(call: Call, other: impl FnOnce(&mut TcpStream)) -> (Result<(), GroupFailure>, [u8; 4]) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut mesh = Mesh::new(vec![None, Some(listener.accept().unwrap().0)]).unwrap();
    let timeout = Duration::from_secs(60);
    let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
    let mut data = [0; 4];
    let ended = std::thread::scope(|scope| {
        let transfers = vec![Transfer::default(), Transfer { send: None, receive: Some(&mut data) }];
        let receiver = scope.spawn(move || {
            let ended = mesh.exchange(&step, transfers);
            mesh.close();
            ended
        });
        other(&mut stream);
        receiver.join().unwrap()
    });
    (ended, data)
}

fn read_notice_call(stream: &mut TcpStream) -> Call {
    let mut bytes = [0; HEADER_LEN];
    stream.read_exact(&mut bytes).unwrap();
    let header = Header::decode(&bytes).unwrap();
    assert_eq!((header.step, header.length), (judge::NOTICE_STEP, 0));
    header.call
}

#[test]
fn waiting_rank_sends_notice_then_receives_data() {
    for operation in [Operation::Broadcast, Operation::Send] {
        let call = call(operation, if operation == Operation::Send { 0 } else { 1 });
        let (ended, data) = run_receiver(call, |stream| {
            let notice = read_notice_call(stream);
            let expected = if operation == Operation::Send { Operation::Receive } else { operation };
            assert_eq!((notice.operation, notice.root), (expected, Some(Rank(1))));
            let header = Header { call, step: 0, length: 4, previous_call: None, latest_sequence: 0 };
            stream.write_all(&[&header.encode()[..], b"data"].concat()).unwrap();
        });
        assert_eq!((ended, &data), (Ok(()), b"data"));
    }
}

#[test]
fn two_receiving_ranks_report_mismatch() {
    let (own_call, other_call) = (call(Operation::Reduce, 0), call(Operation::Reduce, 1));
    let (ended, _) = run_receiver(own_call, |stream| {
        stream.write_all(&judge::notice_header(other_call, &CallHistory::default()).encode()).unwrap();
        // It stays open until the other end has decided.
        drop(stream.read_to_end(&mut Vec::new()));
    });
    let (other_call, own_call) = (Some(Box::new(other_call)), Box::new(own_call));
    assert_eq!(ended, Err(GroupFailure::Mismatch { rank: Rank(1), other_call, own_call }));
}

fn connected_meshes() -> [Mesh; 2] {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    [Mesh::new(vec![None, Some(stream)]).unwrap(), Mesh::new(vec![Some(other), None]).unwrap()]
}

#[test]
fn swap_sends_data_as_it_was_before_folding() {
    // Nothing, less than a piece, and more than the kernel buffers.
    for length in [0, 5, FOLD_PIECE_BYTES, 100 * FOLD_PIECE_BYTES + 3] {
        let timeout = Duration::from_secs(60);
        let call = call(Operation::AllReduce, 0);
        let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
        let swapped = |(mut mesh, rank): (Mesh, u32)| {
            let mut data: Vec<u8> = (0..length).map(|at| (at % 100) as u8 + rank as u8).collect();
            let fold = |own: &mut [u8], received: &[u8]| {
                own.iter_mut().zip(received).for_each(|(own, other)| *own += other);
            };
            let swap = Swap { data: &mut data, fold: &fold };
            mesh.swap(&step, Rank(1 - rank), swap).map(|()| (mesh, data))
        };
        let ends = std::thread::scope(|scope| {
            let ends = connected_meshes().into_iter().zip(0..).map(|end| scope.spawn(|| swapped(end)));
            let ends: Vec<_> = ends.collect();
            ends.into_iter().map(|end| end.join().unwrap().unwrap().1).collect::<Vec<_>>()
        });
        let sums: Vec<u8> = (0..length).map(|at| 2 * (at % 100) as u8 + 1).collect();
        assert!(ends.iter().all(|end| *end == sums), "{length}");
    }
}

/// Sends a header when it is checked, so after a pause.
#[derive(Debug)]
struct Late(TcpStream, Vec<u8>);

impl TransportProbe for Late {
    fn check(&mut self, _: &Step) -> Result<(), GroupFailure> {
        self.0.write_all(&std::mem::take(&mut self.1)).unwrap();
        Ok(())
    }
}

/// Rank 0 in a barrier of three. Rank 1 has done its part and its next call has failed. Rank 2 may arrive
/// while rank 0 waits for it alone.
fn barrier_with_lost_peer(third_arrives: bool) -> Result<(), GroupFailure> {
    let [(one, mut other), (two, third)] = [(); 2].map(|()| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, stream)
    });
    let call = Call { root: None, count: 0, ..call(Operation::Barrier, 0) };
    let header = Header { call, step: 0, length: 0, previous_call: None, latest_sequence: 1 };
    let next = Header {
        call: Call { sequence: 2, ..call },
        previous_call: Some(call),
        latest_sequence: 2,
        ..header
    };
    other.write_all(&[header.encode(), next.encode()].concat()).unwrap();
    other.shutdown(std::net::Shutdown::Both).unwrap();
    let mut mesh = Mesh::new(vec![None, Some(one), Some(two)]).unwrap();
    let part = if third_arrives { header.encode().to_vec() } else { Vec::new() };
    mesh.set_probe(Box::new(Late(third, part)));
    let timeout = Duration::from_secs(60);
    let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
    mesh.exchange(&step, (0..3).map(|_| Transfer { send: Some(&[]), receive: Some(&mut []) }).collect())
}

#[test]
fn completed_call_succeeds_after_group_fails_in_next_call() {
    let ended = barrier_with_lost_peer(true);
    assert_eq!(ended, Ok(()));
}

#[test]
fn lost_rank_with_part_done_fails_call_if_another_rank_is_missing() {
    let deadline = clock::after(Duration::from_secs(30));
    let ended = barrier_with_lost_peer(false);
    assert!(matches!(ended, Err(GroupFailure::Lost { rank: Rank(1), .. })), "{ended:?}");
    assert!(!clock::until(deadline).is_zero(), "it does not wait for the deadline of the call");
}

#[test]
fn connection_closed_during_swap_reports_rank_lost() {
    let [mut mesh, other] = connected_meshes();
    let timeout = Duration::from_secs(60);
    let call = call(Operation::AllReduce, 0);
    let step = Exchange { call, number: 0, deadline: clock::after(timeout), timeout };
    let mut stream = other.peers.into_iter().flatten().next().unwrap().into_stream();
    let header = Header {
        call,
        step: 0,
        length: 2 * FOLD_PIECE_BYTES as u64,
        previous_call: None,
        latest_sequence: 0,
    };
    stream.write_all(&[&header.encode()[..], &[1; 100]].concat()).unwrap();
    drop(stream);
    let mut data = vec![0; 2 * FOLD_PIECE_BYTES];
    let ended = mesh.swap(&step, Rank(1), Swap { data: &mut data, fold: &|_, _| () });
    assert!(matches!(ended, Err(GroupFailure::Lost { rank: Rank(1), .. })), "{ended:?}");
}

#[test]
fn invalid_header_is_reported_as_mismatch() {
    let (ended, _) = run_receiver(call(Operation::Broadcast, 1), |stream| {
        stream.write_all(&[b'x'; HEADER_LEN]).unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    assert!(
        matches!(ended, Err(GroupFailure::Mismatch { rank: Rank(1), other_call: None, .. })),
        "{ended:?}"
    );
}
