//! Any requests of any clients in any order.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

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
