//! The quotes are torch's rules; each test holds one of them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

/// A keyspace that remembers what was said, so that a test sees that nothing else was.
#[derive(Default)]
struct Store {
    keyspace: Keyspace,
    said: Vec<(ClientId, Reply)>,
}

impl Store {
    fn ask(&mut self, client: ClientId, request: Request) -> Vec<(ClientId, Reply)> {
        self.try_ask(client, request).expect("the request is refused")
    }

    fn try_ask(
        &mut self,
        client: ClientId,
        request: Request,
    ) -> Result<Vec<(ClientId, Reply)>, KeyspaceError> {
        self.keyspace.handle(client, request, &mut self.said)?;
        Ok(std::mem::take(&mut self.said))
    }

    fn get(&mut self, key: &str) -> String {
        let replies = self.ask(C, Request::Get { key: key.into() });
        let [(C, Reply::Value(value))] = &replies[..] else { panic!("{replies:?}") };
        String::from_utf8(value.to_vec()).expect("the tests store text")
    }
}

fn set(key: &str, value: &str) -> Request {
    Request::Set { key: key.into(), value: value.into() }
}
fn add(key: &str, delta: i64) -> Request {
    Request::Add { key: key.into(), delta }
}
fn append(key: &str, value: &str) -> Request {
    Request::Append { key: key.into(), value: value.into() }
}
fn compare_set(key: &str, expected: &str, desired: &str) -> Request {
    Request::CompareSet { key: key.into(), expected: expected.into(), desired: desired.into() }
}
fn delete(key: &str) -> Request {
    Request::DeleteKey { key: key.into() }
}
fn wait(keys: &[&str]) -> Request {
    Request::Wait { keys: keys.iter().map(|key| (*key).into()).collect() }
}
fn check(keys: &[&str]) -> Request {
    Request::Check { keys: keys.iter().map(|key| (*key).into()).collect() }
}
fn push(key: &str, value: &str) -> Request {
    Request::QueuePush { key: key.into(), value: value.into() }
}
fn pop(key: &str) -> Request {
    Request::QueuePop { key: key.into() }
}
fn queue_len(key: &str) -> Request {
    Request::QueueLen { key: key.into() }
}
fn barrier(key: &str, world_size: i64) -> Request {
    Request::Barrier { key: key.into(), world_size }
}
fn value(text: &str) -> Reply {
    Reply::Value(Arc::new(text.into()))
}
fn popped(length: i64, text: &str) -> Reply {
    Reply::Popped(Some((length, Arc::new(text.into()))))
}
fn nothing() -> Vec<(ClientId, Reply)> {
    Vec::new()
}

#[test]
fn get_absent_key_is_empty() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, Request::Get { key: b"no".to_vec() }), [(A, value(""))]);
    assert_eq!(store.ask(A, set("", "")), nothing());
    assert_eq!(store.ask(A, check(&[""])), [(A, Reply::AllPresent(true))]);
}

#[test]
fn multi_get_answers_in_order_and_absent_is_empty() {
    let mut store = Store::default();
    let pairs = vec![(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())];
    assert_eq!(store.ask(A, Request::MultiSet { pairs }), nothing());
    let keys = vec![b"b".to_vec(), b"no".to_vec(), b"a".to_vec()];
    let values = ["2", "", "1"].map(|text| Arc::new(text.into())).to_vec();
    assert_eq!(store.ask(A, Request::MultiGet { keys }), [(A, Reply::Values(values))]);
}

#[test]
fn compare_set_absent_and_expected_empty_stores_and_answers_desired() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, compare_set("k", "", "new")), [(A, value("new"))]);
    assert_eq!(store.get("k"), "new");
}

#[test]
fn compare_set_absent_with_expected_returns_it_and_stores_none() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, compare_set("k", "old", "new")), [(A, value("old"))]);
    assert_eq!(store.ask(A, check(&["k"])), [(A, Reply::AllPresent(false))]);
}

#[test]
fn compare_set_present_stores_only_over_the_expected() {
    let mut store = Store::default();
    store.ask(A, set("k", "old"));
    assert_eq!(store.ask(A, compare_set("k", "other", "new")), [(A, value("old"))]);
    assert_eq!(store.ask(A, compare_set("k", "", "new")), [(A, value("old"))]);
    assert_eq!(store.ask(A, compare_set("k", "old", "new")), [(A, value("new"))]);
    assert_eq!(store.get("k"), "new");
}

#[test]
fn compare_set_without_store_wakes_no_waiter() {
    let mut store = Store::default();
    store.ask(A, wait(&["k"]));
    assert_eq!(store.ask(B, compare_set("k", "old", "new")), [(B, value("old"))]);
    assert_eq!(store.ask(B, compare_set("k", "", "new")), [(A, Reply::Arrived), (B, value("new"))]);
}

#[test]
fn add_keeps_decimal_text() {
    let mut store = Store::default();
    assert_eq!(store.ask(A, add("n", 3)), [(A, Reply::Number(3))]);
    assert_eq!(store.ask(A, add("n", -5)), [(A, Reply::Number(-2))]);
    assert_eq!(store.get("n"), "-2");
    for (text, sum) in [("12abc", 13), (" +5", 6), ("9223372036854775807", i64::MIN)] {
        store.ask(A, set("n", text));
        assert_eq!(store.ask(A, add("n", 1)), [(A, Reply::Number(sum))], "{text}");
        assert_eq!(store.get("n"), sum.to_string());
    }
}

#[test]
fn add_to_non_number_closes_connection() {
    let mut store = Store::default();
    for (text, source) in [
        ("hello", NumberError::NoDigits),
        ("", NumberError::NoDigits),
        ("99999999999999999999", NumberError::OutOfRange),
    ] {
        store.ask(A, set("n", text));
        let refused = KeyspaceError::NotANumber { key: b"n".to_vec(), source };
        assert_eq!(store.try_ask(A, add("n", 1)), Err(refused.clone()));
        assert_eq!(store.try_ask(A, barrier("n", 1)), Err(refused));
        assert_eq!(store.get("n"), text);
    }
}

#[test]
fn write_wakes_waiters_of_its_key() {
    let multi = Request::MultiSet { pairs: vec![(b"k".to_vec(), b"1".to_vec())] };
    let writes = [set("k", "1"), multi, append("k", "1"), add("k", 1), compare_set("k", "", "1")];
    for write in writes {
        let mut store = Store::default();
        assert_eq!(store.ask(A, wait(&["k"])), nothing());
        let replies = store.ask(B, write.clone());
        assert_eq!(replies[0], (A, Reply::Arrived), "{write:?}");
        assert_eq!(store.ask(B, set("k", "2")), nothing(), "{write:?} left a registration");
    }
}

#[test]
fn append_creates_absent_key() {
    let mut store = Store::default();
    store.ask(A, append("k", "ab"));
    store.ask(A, append("k", "cd"));
    assert_eq!(store.get("k"), "abcd");
}

#[test]
fn append_keeps_value_already_replied() {
    let mut store = Store::default();
    store.ask(A, set("k", "ab"));
    let answered = store.ask(A, Request::Get { key: b"k".to_vec() });
    store.ask(A, append("k", "cd"));
    assert_eq!(answered, [(A, value("ab"))]);
}

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

#[test]
fn list_keys_returns_raw_keys() {
    let mut store = Store::default();
    store.ask(A, set("/p/k", "1"));
    store.ask(A, add("init/", 1));
    let replies = store.ask(A, Request::ListKeys);
    let [(A, Reply::Keys(keys))] = &replies[..] else { panic!("{replies:?}") };
    let mut keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
    keys.sort_unstable();
    assert_eq!(keys, [&b"/p/k"[..], b"init/"]);
}

#[test]
fn write_above_capacity_is_refused_and_keys_stay() {
    let mut store = Store { keyspace: Keyspace::new(3 * OVERHEAD), ..Store::default() };
    store.ask(A, set("k", "1"));
    store.ask(A, push("q", "1"));
    let long = "x".repeat(300);
    for request in [set("l", &long), append("k", &long), push("q", &long), wait(&[&long]), add(&long, 1)] {
        let refused = store.try_ask(A, request.clone());
        assert!(matches!(refused, Err(KeyspaceError::Full { .. })), "{request:?}: {refused:?}");
    }
    assert_eq!(store.get("k"), "1");
    assert_eq!(store.ask(A, pop("q")), [(A, popped(1, "1"))]);
}

#[test]
fn replaced_value_in_full_store_is_charged_net_growth() {
    let limit = 2 * (OVERHEAD + 1) + 10;
    let mut store = Store { keyspace: Keyspace::new(limit), ..Store::default() };
    store.ask(A, set("k", "0123456789"));
    store.ask(A, set("l", ""));
    assert_eq!(store.keyspace.memory.used, limit);
    // As long, shorter, and as long as before: none of them needs room for both values.
    for text in ["9876543210", "1", "abcdefghij"] {
        store.ask(A, set("k", text));
        assert_eq!(store.ask(A, compare_set("k", text, text)), [(A, value(text))]);
    }
    for request in [set("k", "0123456789+"), compare_set("k", "abcdefghij", "0123456789+"), append("l", "x")]
    {
        let refused = store.try_ask(A, request.clone());
        let Err(KeyspaceError::Full { key, used, more: 1, limit: named_limit }) = refused else {
            panic!("{request:?}: {refused:?}")
        };
        assert_eq!((used, named_limit), (limit, limit));
        assert!(key == b"k" || key == b"l", "{key:?}");
    }
    assert_eq!((store.get("k").as_str(), store.keyspace.memory.used), ("abcdefghij", limit));
}

#[test]
fn counter_in_full_store_still_counts() {
    let mut store = Store { keyspace: Keyspace::new(OVERHEAD + 2), ..Store::default() };
    assert_eq!(store.ask(A, add("n", 9)), [(A, Reply::Number(9))]);
    assert_eq!(store.keyspace.memory.used, OVERHEAD + 2);
    assert_eq!(store.ask(A, add("n", 1)), [(A, Reply::Number(10))]);
    assert_eq!(store.ask(A, add("n", i64::MIN)), [(A, Reply::Number(i64::MIN + 10))]);
    assert!(matches!(store.try_ask(A, add("m", 1)), Err(KeyspaceError::Full { .. })), "a new one needs room");
    assert_eq!(store.ask(A, delete("n")), [(A, Reply::Number(1))]);
    assert_eq!(store.keyspace.memory.used, 0);
}

#[test]
fn reserved_keys_have_room_in_a_full_store() {
    let mut store = Store { keyspace: Keyspace::new(OVERHEAD + 2), ..Store::default() };
    store.keyspace.reserve(vec![b"/job/rankrun/".to_vec()]);
    store.ask(A, set("k", "1"));
    for request in [set("/job/rankrun/done", "1"), wait(&["/job/rankrun/bell"]), add("/job/rankrun/n", 1)] {
        store.ask(B, request);
    }
    for request in [set("l", ""), wait(&["l"]), set("/job/other", "")] {
        let refused = store.try_ask(A, request.clone());
        assert!(matches!(refused, Err(KeyspaceError::Full { .. })), "{request:?}: {refused:?}");
    }
    let long = "x".repeat(usize::try_from(RESERVE).unwrap());
    assert!(store.try_ask(B, set("/job/rankrun/long", &long)).is_err(), "the reserve has an end");
}

#[test]
fn new_generation_keeps_matching_keys_and_removes_rest() {
    let mut store = Store::default();
    for request in [set("/job/a", "1"), set("/other/a", "22"), push("/job/q", "3"), push("/other/q", "44")] {
        assert_eq!(store.ask(A, request), nothing());
    }
    assert_eq!(store.ask(B, wait(&["/job/late", "/other/a"])), nothing());
    begin_generation(&mut store, &["/job/", "/none/"]);
    assert_eq!((store.get("/job/a"), store.get("/other/a")), ("1".to_owned(), String::new()));
    assert_eq!(store.ask(A, queue_len("/job/q")), [(A, Reply::Number(1))]);
    assert_eq!(store.ask(A, queue_len("/other/q")), [(A, Reply::Number(0))]);
    assert_eq!(store.keyspace.memory.used, 2 * OVERHEAD + 6 + 1 + 6 + 1);
    // It was there when the wait began: what counts is that a key has been there.
    assert_eq!(store.ask(A, set("/job/late", "")), [(B, Reply::Arrived)]);
    begin_generation(&mut store, &[]);
    assert_eq!((store.keyspace.memory.used, store.get("/job/a")), (0, String::new()));
}

fn begin_generation(store: &mut Store, kept: &[&str]) {
    let kept: Vec<_> = kept.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
    store.keyspace.begin_generation(&kept);
}

/// Frees all discarded entries, `most` at a time. Returns the number of steps.
fn free_all(store: &mut Store, most: usize) -> usize {
    (0..10_000)
        .take_while(|_| {
            let has_discarded = store.keyspace.has_discarded();
            store.keyspace.free_some(most);
            has_discarded
        })
        .count()
}

#[test]
fn old_generation_is_freed_in_bounded_steps() {
    let mut store = Store::default();
    for number in 0..100 {
        store.ask(A, set(&format!("/job/{number}"), "1"));
        store.ask(A, push(&format!("/other/{}", number % 3), "1"));
        store.ask(A, set(&format!("/other/{number}"), "1"));
    }
    assert!(!store.keyspace.has_discarded());
    begin_generation(&mut store, &["/job/"]);
    // 100 values, 3 queues with 100 values, and the ends of five parts.
    assert_eq!(free_all(&mut store, 10), (100 + 3 + 100 + 5_usize).div_ceil(10));
    assert_eq!(store.ask(A, Request::GetNumKeys), [(A, Reply::Number(100))]);
}

#[test]
fn large_discarded_values_count_by_pages() {
    let mut store = Store::default();
    let large = "x".repeat(100 * 4096);
    for key in ["a", "b", "c"] {
        store.ask(A, set(key, &large));
    }
    let held = store.ask(A, Request::Get { key: b"c".to_vec() });
    begin_generation(&mut store, &[]);
    assert_eq!(free_all(&mut store, 10), 4, "each value takes a step, and so do the ends of both parts");
    store.keyspace.sweep_detached();
    assert_eq!(store.keyspace.detached_bytes(), OVERHEAD + 100 * 4096, "an answer holds one of them");
    drop(held);
}

#[test]
fn key_listing_in_steps_has_each_lasting_key_once() {
    let mut store = Store::default();
    let name = |number: usize| format!("{number:03}");
    (0..100).for_each(|number| drop(store.ask(A, set(&name(number), "v"))));
    let (mut listing, mut steps) = (KeyListing::default(), 0);
    while !store.keyspace.list_keys(&mut listing, 7) {
        steps += 1;
        assert_eq!(listing.keys.len(), 7 * steps);
        // A listed key goes, one comes before it, and one at the end.
        store.ask(A, delete(&name(7 * steps - 1)));
        store.ask(A, set(&format!("!{steps:03}"), "v"));
        store.ask(A, set("~", "v"));
    }
    let listed: Vec<String> =
        listing.keys.iter().map(|key| String::from_utf8(key.to_vec()).unwrap()).collect();
    assert!(listed.is_sorted());
    assert!((0..100).all(|number| listed.iter().filter(|key| **key == name(number)).count() == 1));
    assert_eq!(listing.bytes, listed.iter().map(|key| key.len() as u64).sum::<u64>());
    store.keyspace.discard_keys(listing.keys.into_iter());
    assert_eq!(free_all(&mut store, 10), listed.len() / 10 + 1);
    assert!(Keyspace::default().list_keys(&mut KeyListing::default(), 1));
}

#[test]
fn detached_bytes_count_values_held_by_replies() {
    let mut store = Store::default();
    let held = |store: &mut Store| {
        store.keyspace.sweep_detached();
        store.keyspace.detached_bytes()
    };
    let ask_get = |store: &mut Store| store.ask(A, Request::Get { key: b"k".to_vec() });
    store.ask(A, set("k", "1234567890"));
    let answers: Vec<_> = (0..3).map(|_| ask_get(&mut store)).collect();
    assert_eq!(store.keyspace.detached_bytes(), 0, "the keyspace holds the value too");
    store.ask(A, set("k", "abc"));
    assert_eq!(held(&mut store), OVERHEAD + 10, "three answers share one value");
    let second = ask_get(&mut store);
    store.ask(A, append("k", "d"));
    let third = ask_get(&mut store);
    store.ask(A, delete("k"));
    assert_eq!(held(&mut store), 3 * OVERHEAD + 10 + 3 + 4);
    drop((answers, second));
    assert_eq!(held(&mut store), OVERHEAD + 4);
    store.ask(A, push("q", "12"));
    let popped = store.ask(A, pop("q"));
    assert_eq!(held(&mut store), 2 * OVERHEAD + 4 + 2);
    drop((third, popped));
    assert_eq!(held(&mut store), 0);
    // Without an answer nothing is listed.
    store.ask(A, set("k", "1"));
    store.ask(A, set("k", "2"));
    assert_eq!(store.keyspace.detached_bytes(), 0);
}

#[test]
fn detached_list_drops_released_values() {
    let mut store = Store::default();
    for round in 0..100_000 {
        store.ask(A, set("k", &round.to_string()));
        drop(store.ask(A, push("q", "1")));
        drop(store.ask(A, pop("q")));
    }
    assert!(store.keyspace.detached_bytes() < 2000 * (OVERHEAD + 1), "{}", store.keyspace.detached_bytes());
}

fn requests() -> impl Strategy<Value = Request> {
    let key = || prop_oneof![Just("a"), Just("b"), Just("c")];
    prop_oneof![
        (key(), "[0-9]{0,3}").prop_map(|(key, value)| set(key, &value)),
        (key(), "[0-9]{0,3}").prop_map(|(key, value)| append(key, &value)),
        (key(), -2i64..3).prop_map(|(key, delta)| add(key, delta)),
        (key(), "[0-9]{0,1}").prop_map(|(key, text)| compare_set(key, &text, "7")),
        key().prop_map(delete),
        vec(key(), 0..4).prop_map(|keys| wait(&keys)),
        (key(), "[0-9]{0,3}").prop_map(|(key, value)| push(key, &value)),
        key().prop_map(pop),
        (key(), 0i64..4).prop_map(|(key, world_size)| barrier(key, world_size)),
        Just(Request::CancelWait),
    ]
}

proptest! {
    /// After any history, emptying the store leaves no byte on the account and no registration behind.
    #[test]
    fn removed_entries_free_all_memory(history in vec((1u64..5, requests()), 0..60)) {
        let mut store = Store::default();
        for (client, request) in history {
            if store.try_ask(ClientId(client), request).is_err() {
                store.keyspace.disconnect(ClientId(client));
            }
        }
        for client in 1..5 {
            store.keyspace.disconnect(ClientId(client));
        }
        for key in ["a", "b", "c"] {
            store.ask(A, delete(key));
            while store.ask(A, pop(key)) != [(A, Reply::Popped(None))] {}
        }
        prop_assert_eq!(store.keyspace.memory.used, 0);
        prop_assert_eq!(store.keyspace.waiters.used(), 0);
        for key in ["a", "b", "c"] {
            prop_assert_eq!(store.ask(A, set(key, "1")), nothing());
        }
    }

    /// A client that waits is answered exactly once: by the wait itself, by what it waited for, or never.
    #[test]
    fn wait_has_one_reply(history in vec((1u64..5, requests()), 0..60)) {
        let mut store = Store::default();
        let mut owed = [0usize; 5];
        for (client, request) in history {
            let index = usize::try_from(client).unwrap();
            match &request {
                Request::Wait { .. } | Request::Barrier { .. } => owed[index] += 1,
                Request::CancelWait => owed[index] = 0,
                _ => {}
            }
            match store.try_ask(ClientId(client), request) {
                Ok(replies) => for (to, reply) in replies {
                    if reply == Reply::Arrived {
                        let to = usize::try_from(to.0).unwrap();
                        prop_assert!(owed[to] > 0, "an answer without a request");
                        owed[to] -= 1;
                    }
                },
                Err(_) => {
                    store.keyspace.disconnect(ClientId(client));
                    owed[index] = 0;
                }
            }
        }
    }
}
