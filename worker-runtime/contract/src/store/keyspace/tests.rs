//! The quotes are torch's rules; each test holds one of them.

use super::*;

mod memory;
mod properties;
mod waits;

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
