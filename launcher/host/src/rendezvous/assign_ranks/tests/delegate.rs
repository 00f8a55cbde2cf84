//! A member of ours that stands in for a rank 0 of torchrun, whose store is hard to reach.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// What a rank 0 of torchrun has written for a round with one member of ours.
fn written(store: &StoreServer, theirs: &NodeStore) {
    let (mut client, round) = (connect(store), keys().round(0));
    let place = theirs.place();
    for (key, text) in [
        (round.master_addr(), place.addr),
        (round.master_port(), place.port.to_string()),
        (round.role_info(NodeRank(0)), r#"{"role": "default", "rank": 0, "local_world_size": 1}"#.to_owned()),
        (round.assigned_ranks(NodeRank(1)), "[1, 2, 1, 2]".to_owned()),
    ] {
        client.set(&key, text.as_bytes()).unwrap();
    }
    assert!(client.check(&[&round.assigned_ranks(NodeRank(1))]).unwrap());
}

fn stand_in(resolve: Resolve) -> RankExchange {
    RankExchange {
        keys: keys(),
        round: 0,
        role: "default".to_owned(),
        workers: LocalWorldSize::ONE,
        node_rank: NodeRank(1),
        members: members("T a"),
        read_timeout: LIMIT,
        nonce: 7,
        resolve,
        training_store: NodeStore::new("a").store,
        address_cache: SharedAddressCache::default(),
    }
}

#[test]
fn failed_reset_of_torchrun_store_is_retried() {
    let (store, theirs) = (serve(), NodeStore::new("T"));
    written(&store, &theirs);
    theirs.use_by_worker();
    // No program listens there any more.
    let gone = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let gone_port = gone.local_addr().unwrap().port();
    drop(gone);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let resolve = resolve_to(move |_, port| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err(io::ErrorKind::TimedOut.into()),
        1 => Ok(at(gone_port)),
        _ => Ok(at(port)),
    });
    let round = run(&store, &stand_in(resolve)).unwrap();
    assert_eq!((round.base_rank.0, calls.load(Ordering::SeqCst), theirs.keys()), (1, 3, 0));
}

/// The rendezvous ends the exchange when it has noticed the death.
#[test]
fn exchange_with_dead_torchrun_rank_zero_can_be_dropped() {
    let (store, theirs) = (serve(), NodeStore::new("T"));
    written(&store, &theirs);
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    let exchange = stand_in(resolve_to(move |_, _| {
        asked.send(()).unwrap();
        Err(io::ErrorKind::NotFound.into())
    }));
    let mut client = connect(&store);
    client.runtime.block_on(async {
        tokio::select! {
            result = assign_ranks(&mut client.client, &exchange) => panic!("{result:?}"),
            () = async { for _ in 0..3 { asks.recv().await.unwrap() } } => {}
        }
    });
}
