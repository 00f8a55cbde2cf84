//! Work on many keys: other clients are served meanwhile.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_contract::store::keyspace::{ClientId, KeyListing, Keyspace};

use super::super::server::{ClientLimits, FREED_ENTRIES};
use super::idle_connections::limited;
use super::*;

/// Stores `count` keys, a large request at a time.
fn store_keys(client: &mut Client, count: usize) {
    for first in (0..count).step_by(100_000) {
        let pairs =
            (first..count.min(first + 100_000)).map(|number| (format!("{number}").into_bytes(), vec![b'v']));
        client.send(&[Request::MultiSet { pairs: pairs.collect() }]);
    }
    let count = i64::try_from(count).unwrap();
    assert_eq!(client.ask(Request::GetNumKeys), Reply::Number(count));
}

fn is_readable(client: &Client) -> bool {
    let mut fds = [PollFd::new(client.stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

fn listed_keys(client: &mut Client) -> BTreeSet<Vec<u8>> {
    let Reply::Keys(keys) = client.answer_of(&Request::ListKeys) else {
        panic!("the answer of LIST_KEYS is keys")
    };
    keys.iter().map(|key| key.to_vec()).collect()
}

#[test]
fn clients_are_served_while_keys_are_listed() {
    let count = 20_000;
    let server = limited(ClientLimits { listed_keys: 1, ..ClientLimits::default() });
    let (mut lister, mut other) = (Client::new(&server), Client::new(&server));
    store_keys(&mut other, count);
    lister.send(&[Request::ListKeys, add("n", 1)]);
    let mut pongs = 0;
    while !is_readable(&lister) {
        assert_eq!(other.ask(Request::Ping { nonce: 7 }), Reply::Pong(7));
        pongs += 1;
    }
    // A listing in one step would answer the first ping at its end. On a busy machine few pings fit.
    assert!(pongs > 1, "{pongs}");
    assert_eq!(listed_keys(&mut lister).len(), count);
    assert_eq!(lister.answer_of(&add("n", 1)), Reply::Number(1), "the requests after it are served after it");
}

#[test]
fn client_closed_during_listing_leaves_store_usable() {
    let server = limited(ClientLimits { listed_keys: 1, ..ClientLimits::default() });
    let mut other = Client::new(&server);
    store_keys(&mut other, 5000);
    for _ in 0..3 {
        let mut lister = Client::greeted(&server, 7);
        lister.send(&[Request::ListKeys]);
        drop(lister);
    }
    let mut last = Client::new(&server);
    last.send(&[Request::ListKeys]);
    assert_eq!(listed_keys(&mut last).len(), 5000);
}

#[test]
fn listing_across_reset_has_only_new_generation() {
    let server = limited(ClientLimits { listed_keys: 1, ..ClientLimits::default() });
    let (mut kept, mut other) = (Client::greeted(&server, 7), Client::new(&server));
    store_keys(&mut other, 20_000);
    other.set("/job/a", "1");
    other.assert_nothing_came();
    kept.send(&[Request::ListKeys]);
    server.reset_keeping(&["/job/"], &[7].into()).unwrap();
    assert_eq!(listed_keys(&mut kept), [b"/job/a".to_vec()].into());
}

/// The longest time that a ping takes while `work` goes on, in a store with many keys.
#[expect(clippy::disallowed_methods, reason = "the test is about time")]
fn longest_ping(server: &StoreServer, work: impl FnOnce() + Send) -> Duration {
    use std::time::Instant;
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            let mut client = Client::silent(server);
            // A reset closes it.
            let mut is_open = client.stream.write_all(&HANDSHAKE).is_ok();
            while is_open && !work.is_finished() {
                let begin = Instant::now();
                is_open = client.stream.write_all(&encode(&[Request::Ping { nonce: 7 }])).is_ok()
                    && client.stream.read_exact(&mut [0; 4]).is_ok();
                if is_open {
                    longest = longest.max(begin.elapsed());
                }
            }
        }
    });
    longest
}

#[expect(clippy::disallowed_methods, reason = "the tests read their environment")]
fn is_soak() -> bool {
    std::env::var_os("RANKRUN_SOAK").is_some()
}

/// With `RANKRUN_SOAK=1` as many keys as the default limit admits.
fn many_keys() -> usize {
    if is_soak() { 7_500_000 } else { 400_000 }
}

/// The time that this thread has run on a processor: the load of the machine does not count.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split_whitespace().next().unwrap().parse().unwrap())
}

/// The processor time of the longest step, up to the one that returns true.
fn longest_step(mut step: impl FnMut() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let begin = processor_time();
        let is_last = step();
        longest = longest.max(processor_time() - begin);
        if is_last {
            return longest;
        }
    }
}

#[test]
fn steps_on_many_keys_use_little_processor_time() {
    let (mut keyspace, mut replies) = (Keyspace::default(), Vec::new());
    for number in 0..many_keys() {
        keyspace.handle(ClientId(1), set(&number.to_string(), "v"), &mut replies).unwrap();
    }
    let mut listing = KeyListing::default();
    let listed = longest_step(|| keyspace.list_keys(&mut listing, ClientLimits::default().listed_keys));
    let reset = longest_step(|| {
        keyspace.begin_generation(&[]);
        true
    });
    keyspace.discard_keys(listing.keys.into_iter());
    let freed = longest_step(|| {
        keyspace.free_some(FREED_ENTRIES);
        !keyspace.has_discarded()
    });
    println!("{} keys, longest steps: {listed:?} listing, {reset:?} reset, {freed:?} freeing", many_keys());
    // Without a soak the machine may be a virtual one whose processor is taken away at times.
    let limit = Duration::from_millis(if is_soak() { 20 } else { 100 });
    assert!(listed < limit && reset < limit && freed < limit);
}

#[test]
fn store_with_many_keys_lists_resets_and_frees_them() {
    let count = many_keys();
    let server = server();
    let mut client = Client::new(&server);
    let filled = longest_ping(&server, || store_keys(&mut client, count));
    let listed = longest_ping(&server, || {
        client.send(&[Request::ListKeys]);
        let mut count_bytes = [0; 8];
        client.stream.read_exact(&mut count_bytes).unwrap();
        assert_eq!(u64::from_le_bytes(count_bytes), count as u64);
        let digits: u64 = (0..count as u64).map(|number| u64::from(number.max(1).ilog10()) + 1).sum();
        let mut rest = (&client.stream).take(digits + 8 * count as u64);
        std::io::copy(&mut rest, &mut std::io::sink()).unwrap();
    });
    let freed = longest_ping(&server, || {
        for _ in 0..3 {
            server.reset().unwrap();
            assert_eq!(Client::new(&server).ask(Request::GetNumKeys), Reply::Number(0));
        }
    });
    println!("{count} keys, longest pings: {filled:?} filling, {listed:?} listing, {freed:?} freeing");
}
