//! The behaviour of torch's own clients and the raw bytes of its server, row by row.

use std::net::Shutdown;
use std::sync::Arc;

use super::*;

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server();
    let mut client = Client::new(&server);
    client.write(&encode(&[set("p", "1"), get("p"), add("n", 3), Request::GetNumKeys, get("p")]));
    assert_eq!(client.answer_of(&get("p")), value("1"));
    assert_eq!(client.answer_of(&add("n", 3)), Reply::Number(3));
    assert_eq!(client.answer_of(&Request::GetNumKeys), Reply::Number(2));
    assert_eq!(client.answer_of(&get("p")), value("1"));
    client.assert_nothing_came();
}

#[test]
fn requests_sent_byte_by_byte_are_answered() {
    let server = server();
    let mut client = Client::silent(&server);
    let requests = [set("p", "1"), get("p"), add("n", 3), Request::GetNumKeys, get("p")];
    for byte in [&HANDSHAKE[..], &encode(&requests)].concat() {
        client.write(&[byte]);
    }
    let answers = [value("1"), Reply::Number(3), Reply::Number(2), value("1")];
    for (request, answer) in requests[1..].iter().zip(answers) {
        assert_eq!(client.answer_of(request), answer);
    }
}

#[test]
fn wire_bytes_match_contract() {
    let server = server();
    let mut client = Client::silent(&server);
    client.write(b"\x00\xCE\xF7\x85\x3C\x0D\x39\x05\x00\x00");
    client.write(b"\x04\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0");
    client.write(b"\x03\x02\0\0\0\0\0\0\0/k");
    client.write(b"\x0F\x01\0\0\0\0\0\0\0q");
    let expected = b"\x39\x05\x00\x00\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut answer = [0; 28];
    client.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, expected);
}

#[test]
fn keys_values_and_counts_up_to_their_limits_are_served() {
    let server = server();
    let mut client = Client::new(&server);
    let (key, long) = ("k".repeat(8192), "v".repeat(8 * 1024 * 1024));
    client.set(&key, &long);
    assert_eq!(client.ask(get(&key)), value(&long));
    let keys = vec![key.into_bytes(); 1000].into_iter().chain(vec![b"a".to_vec(); 130_072]).collect();
    let check = Request::Check { keys };
    assert_eq!(client.ask(check), Reply::AllPresent(false));
}

#[test]
fn lengths_and_counts_above_their_limits_close_the_connection() {
    let server = server();
    let long_key = [&b"\x03"[..], &8193u64.to_le_bytes()].concat();
    let long_value = [&b"\x01\x01\0\0\0\0\0\0\0k"[..], &(8 * 1024 * 1024 + 1u64).to_le_bytes()].concat();
    let many_keys = [&b"\x06"[..], &131_073u64.to_le_bytes()].concat();
    for bytes in [long_key, long_value, many_keys] {
        let mut client = Client::new(&server);
        client.write(&bytes);
        client.assert_closed();
    }
}

#[test]
fn get_of_absent_key_is_empty() {
    let server = server();
    assert_eq!(Client::new(&server).ask(get("absent")), value(""));
}

#[test]
fn wait_for_several_keys_is_answered_when_all_are_set() {
    let server = server();
    let (mut waiting, mut other) = (Client::new(&server), Client::new(&server));
    waiting.send(&[wait(&["a", "b", "a"])]);
    waiting.assert_nothing_came();
    other.set("a", "1");
    other.assert_nothing_came();
    waiting.assert_nothing_came();
    other.set("b", "1");
    assert_eq!(waiting.answer_of(&wait(&[])), Reply::Arrived);
    waiting.assert_nothing_came();
}

#[test]
fn wait_with_duplicate_key_is_answered_after_one_set() {
    let server = server();
    let (mut waiting, mut other) = (Client::new(&server), Client::new(&server));
    waiting.send(&[wait(&["k", "k"])]);
    waiting.assert_nothing_came();
    other.set("k", "1");
    assert_eq!(waiting.answer_of(&wait(&[])), Reply::Arrived);
}

#[test]
fn cancelled_wait_leaves_connection_usable() {
    let server = server();
    let (mut waiting, mut other) = (Client::new(&server), Client::new(&server));
    waiting.send(&[wait(&["k"])]);
    assert_eq!(waiting.ask(Request::CancelWait), Reply::Cancelled);
    other.set("k", "1");
    other.assert_nothing_came();
    waiting.assert_nothing_came();
    assert_eq!(waiting.ask(get("k")), value("1"));
}

#[test]
fn cancel_crossing_answer_is_answered_after_it() {
    let server = server();
    let (mut waiting, mut other) = (Client::new(&server), Client::new(&server));
    waiting.send(&[wait(&["k"])]);
    waiting.assert_nothing_came();
    other.set("k", "1");
    other.assert_nothing_came();
    waiting.send(&[Request::CancelWait]);
    assert_eq!(waiting.answer_of(&Request::CancelWait), Reply::Arrived);
    assert_eq!(waiting.answer_of(&Request::CancelWait), Reply::Cancelled);
}

#[test]
fn cancel_without_wait_is_answered() {
    let server = server();
    assert_eq!(Client::new(&server).ask(Request::CancelWait), Reply::Cancelled);
}

#[test]
fn second_wait_on_waiting_connection_closes_it() {
    let server = server();
    let mut client = Client::new(&server);
    client.send(&[wait(&["a"]), wait(&["b"])]);
    client.assert_closed();
}

#[test]
fn compare_set_has_four_cases() {
    let server = server();
    let mut client = Client::new(&server);
    let compare_set = |expected: &str, desired: &str| Request::CompareSet {
        key: b"k".to_vec(),
        expected: expected.into(),
        desired: desired.into(),
    };
    assert_eq!(client.ask(compare_set("x", "new")), value("x"));
    assert_eq!(client.ask(get("k")), value(""));
    assert_eq!(client.ask(compare_set("", "first")), value("first"));
    assert_eq!(client.ask(compare_set("x", "new")), value("first"));
    assert_eq!(client.ask(compare_set("first", "second")), value("second"));
}

#[test]
fn add_parses_text_like_torch() {
    let server = server();
    let mut client = Client::new(&server);
    client.set("n", "12abc");
    assert_eq!(client.ask(add("n", 1)), Reply::Number(13));
    client.set("n", "hello");
    client.send(&[add("n", 1)]);
    client.assert_closed();
    assert_eq!(Client::new(&server).ask(get("n")), value("hello"));
}

#[test]
fn queue_push_wakes_one_of_two_waiters() {
    let server = server();
    let (mut first, mut second, mut other) =
        (Client::new(&server), Client::new(&server), Client::new(&server));
    first.send(&[wait(&["q"])]);
    first.assert_nothing_came();
    second.send(&[wait(&["q"])]);
    second.assert_nothing_came();
    let push = Request::QueuePush { key: b"q".to_vec(), value: b"v".to_vec() };
    other.send(&[push]);
    assert_eq!(first.answer_of(&wait(&[])), Reply::Arrived);
    second.assert_nothing_came();
    let popped = first.ask(Request::QueuePop { key: b"q".to_vec() });
    assert_eq!(popped, Reply::Popped(Some((1, Arc::new(b"v".to_vec())))));
}

#[test]
fn barrier_opens_at_last_arrival_and_stays_open() {
    let server = server();
    let (mut first, mut second, mut third) =
        (Client::new(&server), Client::new(&server), Client::new(&server));
    first.send(&[barrier("b", 2)]);
    first.assert_nothing_came();
    assert_eq!(second.ask(barrier("b", 2)), Reply::Arrived);
    assert_eq!(first.answer_of(&barrier("b", 2)), Reply::Arrived);
    assert_eq!(third.ask(barrier("b", 2)), Reply::Arrived);
}

#[test]
fn unknown_request_code_closes_connection() {
    let server = server();
    for code in [0, 19, 255] {
        let mut client = Client::new(&server);
        client.write(&[code]);
        client.assert_closed();
    }
}

#[test]
fn requests_before_half_close_are_answered_then_closed() {
    let server = server();
    let mut client = Client::new(&server);
    client.send(&[set("k", "v"), get("k")]);
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.answer_of(&get("k")), value("v"));
    client.assert_closed();
}

#[test]
fn requests_before_garbage_are_answered() {
    let server = server();
    let mut client = Client::new(&server);
    client.write(&[&encode(&[set("k", "v"), get("k")])[..], &[99]].concat());
    assert_eq!(client.answer_of(&get("k")), value("v"));
    client.assert_closed();
}
