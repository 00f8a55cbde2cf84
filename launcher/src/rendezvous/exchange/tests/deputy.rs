//! A member of ours that stands in for a rank 0 of torchrun, whose store is hard to reach.

use std::cell::Cell;

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

fn stand_in(
    store: &StoreServer,
    resolve: &dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>,
    between: &mut Between<'_>,
) -> Result<Round, ExchangeError> {
    let (keys, members) = (keys(), members("T a"));
    let plan = Exchange {
        keys: &keys,
        round: 0,
        role: "default",
        workers: LocalWorldSize::ONE,
        node_rank: NodeRank(1),
        members: &members,
        read_timeout: LIMIT,
        nonce: 7,
        resolve,
    };
    let mut own = NodeStore::new("a").store;
    exchange(&mut connect(store), &plan, &mut own, &mut MasterAddressCache::default(), between)
}

fn at(port: u16) -> Vec<SocketAddr> {
    vec![(Ipv4Addr::LOCALHOST, port).into()]
}

#[test]
fn failed_reset_of_torchrun_store_is_retried() {
    let (store, theirs) = (serve(), NodeStore::new("T"));
    written(&store, &theirs);
    theirs.use_by_worker();
    // Nobody listens there any more.
    let gone = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let gone_port = gone.local_addr().unwrap().port();
    drop(gone);
    let calls = Cell::new(0);
    let resolve = |_: &str, port| {
        calls.set(calls.get() + 1);
        match calls.get() {
            1 => Err(io::ErrorKind::TimedOut.into()),
            2 => Ok(at(gone_port)),
            _ => Ok(at(port)),
        }
    };
    let round = stand_in(&store, &resolve, &mut |_| Ok(())).unwrap();
    assert_eq!((round.base_rank.0, calls.get(), theirs.keys()), (1, 3, 0));
}

#[test]
fn dead_torchrun_rank_zero_ends_round_not_job() {
    let (store, theirs) = (serve(), NodeStore::new("T"));
    written(&store, &theirs);
    let resolve = |_: &str, _| Err(io::ErrorKind::NotFound.into());
    let looks = Cell::new(0);
    let result = stand_in(&store, &resolve, &mut |_| {
        looks.set(looks.get() + 1);
        // By then its heartbeats have failed to come.
        if looks.get() == 3 { Err(Aborted) } else { Ok(()) }
    });
    assert!(matches!(result, Err(ExchangeError::Aborted)), "{result:?}");
}
