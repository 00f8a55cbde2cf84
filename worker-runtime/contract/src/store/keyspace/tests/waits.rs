//! Waits, queues and barriers.

use super::*;

#[test]
fn wait_for_present_keys_replies_at_once() {
    let mut store = Store::default();
    store.ask(A, set("k", "1"));
    store.ask(A, push("q", "1"));
    assert_eq!(store.ask(A, wait(&["k", "q", "k"])), [(A, Reply::Arrived)]);
    assert_eq!(store.ask(A, wait(&[])), [(A, Reply::Arrived)]);
}

#[test]
fn wait_for_several_keys_replies_at_last_key() {
    let mut store = Store::default();
    store.ask(B, set("here", "1"));
    assert_eq!(store.ask(A, wait(&["a", "here", "b"])), nothing());
    assert_eq!(store.ask(B, set("a", "1")), nothing());
    assert_eq!(store.ask(B, set("a", "2")), nothing(), "setting an already present key does not count");
    assert_eq!(store.ask(B, set("here", "2")), nothing());
    assert_eq!(store.ask(B, set("b", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn key_set_then_deleted_satisfies_wait() {
    let mut store = Store::default();
    store.ask(A, wait(&["a", "b"]));
    store.ask(B, set("a", "1"));
    store.ask(B, delete("a"));
    assert_eq!(store.ask(B, set("b", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn duplicate_wait_key_is_satisfied_once() {
    let mut store = Store::default();
    store.ask(A, wait(&["k", "k"]));
    assert_eq!(store.ask(B, set("k", "1")), [(A, Reply::Arrived)]);
    store.ask(A, wait(&["q", "p", "q"]));
    assert_eq!(store.ask(B, push("q", "1")), nothing());
    assert_eq!(store.ask(B, push("p", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn wait_for_queue_and_key_is_released_by_key() {
    let mut store = Store::default();
    store.ask(B, push("q", "1"));
    assert_eq!(store.ask(A, wait(&["q", "k"])), nothing());
    assert_eq!(store.ask(B, set("k", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn second_pending_wait_is_refused() {
    let mut store = Store::default();
    store.ask(B, set("here", "1"));
    store.ask(A, wait(&["a"]));
    assert_eq!(store.ask(A, wait(&["here"])), [(A, Reply::Arrived)]);
    assert_eq!(store.try_ask(A, wait(&["b"])), Err(KeyspaceError::AlreadyWaiting));
    assert_eq!(store.try_ask(A, barrier("b", 2)), Err(KeyspaceError::AlreadyWaiting));
}

#[test]
fn waiting_connection_can_send_other_requests() {
    let mut store = Store::default();
    store.ask(A, wait(&["a"]));
    assert_eq!(store.ask(A, Request::Ping { nonce: 7 }), [(A, Reply::Pong(7))]);
    assert_eq!(store.ask(A, set("a", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn cancel_removes_waits_and_always_replies() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, Request::CancelWait), [(A, Reply::Cancelled)]);
    store.ask(A, wait(&["a", "b"]));
    store.ask(B, wait(&["a"]));
    assert_eq!(store.ask(A, Request::CancelWait), [(A, Reply::Cancelled)]);
    assert_eq!(store.ask(C, set("a", "1")), [(B, Reply::Arrived)]);
    assert_eq!(store.ask(A, wait(&["b"])), nothing(), "the connection is usable after a cancel");
    assert_eq!(store.ask(C, set("b", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn disconnect_removes_waits() {
    let mut store = Store::default();
    store.ask(A, wait(&["a", "b"]));
    store.ask(B, barrier("bar", 3));
    store.keyspace.disconnect(A);
    store.keyspace.disconnect(B);
    store.keyspace.disconnect(ClientId(99));
    assert_eq!(store.ask(C, set("a", "1")), nothing());
    assert_eq!(store.ask(C, set("b", "1")), nothing());
    assert_eq!(store.ask(C, set("bar", "9")), nothing());
}

#[test]
fn delete_key_wakes_no_waiter_and_later_wait_blocks() {
    let mut store = Store::default();
    store.ask(A, set("k", "1"));
    assert_eq!(store.ask(A, delete("k")), [(A, Reply::Number(1))]);
    assert_eq!(store.ask(A, delete("k")), [(A, Reply::Number(0))]);
    assert_eq!(store.ask(A, wait(&["k"])), nothing());
    assert_eq!(store.ask(B, delete("k")), [(B, Reply::Number(0))]);
    assert_eq!(store.ask(B, set("k", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn queues_are_fifo_and_separate_from_keys() {
    let mut store = Store::default();
    store.ask(A, push("q", "1"));
    store.ask(A, push("q", "2"));
    assert_eq!(store.ask(A, Request::GetNumKeys), [(A, Reply::Number(0))]);
    assert_eq!(store.ask(A, Request::ListKeys), [(A, Reply::Keys(Vec::new()))]);
    assert_eq!(store.ask(A, delete("q")), [(A, Reply::Number(0))]);
    assert_eq!(store.ask(A, queue_len("q")), [(A, Reply::Number(2))]);
    assert_eq!(store.ask(A, pop("q")), [(A, popped(2, "1"))]);
    assert_eq!(store.ask(A, pop("q")), [(A, popped(1, "2"))]);
    assert_eq!(store.ask(A, pop("q")), [(A, Reply::Popped(None))]);
    assert_eq!(store.ask(A, check(&["q"])), [(A, Reply::AllPresent(false))]);
    assert_eq!(store.ask(A, queue_len("q")), [(A, Reply::Number(0))]);
}

#[test]
fn push_wakes_longest_waiter_only() {
    let mut store = Store::default();
    store.ask(A, wait(&["q"]));
    store.ask(B, wait(&["q"]));
    assert_eq!(store.ask(C, push("q", "1")), [(A, Reply::Arrived)]);
    assert_eq!(store.ask(C, push("q", "2")), [(B, Reply::Arrived)]);
    assert_eq!(store.ask(C, push("q", "3")), nothing());
}

#[test]
fn push_skips_waiters_with_missing_keys() {
    let mut store = Store::default();
    store.ask(A, wait(&["q", "k"]));
    store.ask(B, wait(&["q"]));
    assert_eq!(store.ask(C, push("q", "1")), [(B, Reply::Arrived)]);
    assert_eq!(store.ask(C, push("q", "2")), nothing(), "a second push does not count again");
    assert_eq!(store.ask(C, set("k", "1")), [(A, Reply::Arrived)]);
}

#[test]
fn barrier_opens_at_last_arrival_and_stays_open() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, barrier("b", 3)), nothing());
    assert_eq!(store.ask(B, barrier("b", 3)), nothing());
    assert_eq!(
        store.ask(C, barrier("b", 3)),
        [(A, Reply::Arrived), (B, Reply::Arrived), (C, Reply::Arrived)]
    );
    assert_eq!(store.ask(A, barrier("b", 3)), [(A, Reply::Arrived)]);
    assert_eq!(store.get("b"), "4");
    assert_eq!(store.ask(A, Request::GetNumKeys), [(A, Reply::Number(1))]);
    for world_size in [1, 0, -1] {
        assert_eq!(store.ask(A, barrier("new", world_size)), [(A, Reply::Arrived)]);
    }
}

#[test]
fn disconnected_client_stays_counted_in_barrier() {
    let mut store = Store::default();
    store.ask(A, barrier("b", 3));
    store.ask(B, barrier("b", 3));
    store.keyspace.disconnect(A);
    store.ask(B, Request::CancelWait);
    assert_eq!(store.ask(C, barrier("b", 3)), [(C, Reply::Arrived)]);
}

#[test]
fn write_to_barrier_key_releases_barrier() {
    for write in [set("b", "0"), add("b", 0)] {
        let mut store = Store::default();
        store.ask(A, barrier("b", 5));
        assert_eq!(store.ask(B, write)[0], (A, Reply::Arrived));
    }
}

#[test]
fn barrier_key_is_created_by_first_arrival() {
    let mut store = Store::default();
    store.ask(A, wait(&["b"]));
    assert_eq!(store.ask(B, barrier("b", 2)), [(A, Reply::Arrived)]);
}
