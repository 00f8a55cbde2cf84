//! The limit of the memory, the freeing of an old generation, and values that replies hold.

use super::*;

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
    for request in [set("/job/rankrun/done", "1"), wait(&["/job/rankrun/1"]), add("/job/rankrun/n", 1)] {
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
